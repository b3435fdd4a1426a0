"""What `tachograph show RUN` tells, as plain data: the survey of the journal, and what only the directory knows.

Times are in seconds, those of day since 1970. What is printed for a person is made of the same data.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import attrs

from tachograph.engine.family import family
from tachograph.engine.journal import Journal, read_notes
from tachograph.engine.snapshots import Snapshot, catalogue

from .alive import ending, is_alive
from .noted import as_data as note_as_data
from .records import as_data, state_of
from .rows import Rows
from .survey import Life, Survey


@attrs.define(kw_only=True)
class Report:
    """A run.

    Attributes:
        run: its `run.json`.
        stands: the last live transition: seq, time, state, and the counters in it; None before the first.
        incarnations: one for each.
        states: the time spent in each.
        epochs, validations, errors, sides, snapshots, notes: their rows.
        saves: how many snapshots were recorded as saved.
        torn: file and offset of a torn tail; None without one.
        damage: what a salvage passed over.
        ranks: the ranks side by side; None where it has one only, or one was asked for.
        tree: the runs that it belongs with, as `family.family` finds them; None where it stands alone.
    """

    run: dict[str, Any]
    stands: dict[str, Any] | None = None
    incarnations: list[dict[str, Any]] = attrs.field(factory=list)
    states: list[dict[str, Any]] = attrs.field(factory=list)
    epochs: Rows[dict[str, Any]] = attrs.field(factory=Rows)
    validations: Rows[dict[str, Any]] = attrs.field(factory=Rows)
    errors: Rows[dict[str, Any]] = attrs.field(factory=Rows)
    sides: Rows[dict[str, Any]] = attrs.field(factory=Rows)
    snapshots: Rows[dict[str, Any]] = attrs.field(factory=Rows)
    notes: Rows[dict[str, Any]] = attrs.field(factory=Rows)
    saves: int = 0
    torn: dict[str, Any] | None = None
    damage: list[dict[str, Any]] = attrs.field(factory=list)
    ranks: dict[str, Any] | None = None
    tree: dict[str, Any] | None = None

    def as_data(self) -> dict[str, Any]:
        """Return it as one plain dict."""
        held = attrs.asdict(self, recurse=False)
        return {name: list(value) if isinstance(value, Rows) else value for name, value in held.items()}


def gather(
    run_dir: Path,
    about: dict[str, Any],
    journal: Journal | None,
    *,
    everything: bool,
    most: int | None,
    check: bool,
    ranks: dict[str, Any] | None = None,
) -> Report:
    """Read a run.

    Args:
        run_dir: the run directory.
        about: its `run.json`.
        journal: its journal, opened with `history="all"`; None where there is none yet.
        everything: count superseded transitions as well.
        most: rows kept of each table; None for all.
        check: read the snapshots whole and compare their digests, instead of their sizes only.
        ranks: what `ranks.gather` found; None where it wasn't asked.

    Raises:
        JournalCorrupt, JournalFormat: the journal can't be read.
        StateFault: a state in it can't be.
    """
    found, faults = catalogue(run_dir)
    report = Report(run=about, snapshots=Rows(most), notes=Rows(most), ranks=ranks, tree=family(run_dir, about))
    saved: dict[str, float] = {}
    if journal is not None:
        survey = Survey(journal, everything=everything, most=most, snapshots={s.path.name for s in found})
        _tell(report, survey, journal, is_alive(run_dir, journal.ranks[0]))
        saved = survey.saved
    if ranks is not None:
        report.damage = ranks.pop("damage")  # the journal's own is part of it
    for note in read_notes(run_dir).standing:
        report.notes.add(note_as_data(note))
    for snapshot in found:
        report.snapshots.add(_snapshot(snapshot, saved, check))
    for path, reason in faults:
        report.snapshots.add({"snapshot": path.name, "fault": reason, "checked": "COMMIT"})
    return report


def _tell(report: Report, survey: Survey, journal: Journal, alive: bool | None) -> None:
    newest = max(survey.lives, default=-1)
    for number, life in survey.lives.items():
        report.incarnations.append(_incarnation(life, alive if number == newest else False))
    report.stands = _stands(survey)
    total = sum(dwell.seconds for dwell in survey.dwells.values())
    for name, dwell in survey.dwells.items():
        share = dwell.seconds / total if total else None
        held = {"state": name, "visits": dwell.visits, "seconds": dwell.seconds, "mean": dwell.seconds / dwell.visits}
        report.states.append({**held, "share": share})
    report.epochs = survey.epochs.map(attrs.asdict)
    report.validations = survey.validations.map(attrs.asdict)
    report.errors = survey.failures.map(attrs.asdict)
    report.sides = survey.facts.map(as_data)
    report.saves = survey.saves
    report.torn = None if journal.torn is None else {"file": str(journal.torn[0]), "offset": journal.torn[1]}
    report.damage = [{**attrs.asdict(damage), "file": str(damage.file)} for damage in journal.damage]


def _incarnation(life: Life, alive: bool | None) -> dict[str, Any]:
    about, last = life.about, life.last
    ended, detail = ending(last, life.closed is not None, alive)
    return {
        "incarnation": about.number,
        "began": about.opened,
        "seconds": 0.0 if last is None else max(last.meta["time"] - about.opened, 0.0),
        "parent": None if about.parent is None else attrs.asdict(about.parent),
        "first_seq": about.first_seq,
        "last_seq": about.first_seq - 1 if last is None else last.seq,
        "live_until": None if life.live_until == math.inf else max(life.live_until, about.first_seq - 1),
        "ended": ended,
        "detail": detail,
    }


def _stands(survey: Survey) -> dict[str, Any] | None:
    record = survey.last
    if record is None:
        return None
    return {"seq": record.seq, "time": record.meta["time"], "chain": record.chain, **state_of(record)}


def _snapshot(snapshot: Snapshot, saved: dict[str, float], check: bool) -> dict[str, Any]:
    return {
        "snapshot": snapshot.path.name,
        "seq": snapshot.seq,
        "incarnation": snapshot.incarnation,
        "state": _state_in(snapshot),
        "bytes": snapshot.size,
        "saved": saved.get(snapshot.path.name),
        "exact": snapshot.exact,
        "fault": snapshot.fault() if check else snapshot.fault_by_size(),
        "checked": "digest" if check else "size",
    }


def _state_in(snapshot: Snapshot) -> str | None:
    try:
        return str(snapshot.about()["state"]["state"])
    except (OSError, ValueError, KeyError, TypeError):
        return None
