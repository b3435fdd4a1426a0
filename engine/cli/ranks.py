"""The ranks of a run side by side: how far each has come, who waits for whom, who failed first, whether they part.

One pass over all journals, in memory that doesn't grow with them. What is measured is taken from the times of the
records alone: a rank that reaches a transition late makes the others wait at the next collective.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import attrs

from tachograph.engine.diff import Divergence, parting_at
from tachograph.engine.journal import Incarnation, Journal, Record

from .alive import ending, is_alive, writer_of

_WINDOW = 1000
"""Transitions that the times are taken from: the last ones that all ranks have."""
_BY_ANOTHER = "RankFailed"
"""The kind of error of a rank that ended because another one failed."""


@attrs.frozen
class Passing:
    """One transition on all ranks: the state they left, and by rank when, and how long they were in it."""

    source: str
    times: dict[int, float]
    dwells: dict[int, float]


class Abreast:
    """What the journals of all ranks say of each other.

    Args:
        journal: opened with `rank="all"`.
        since: times are taken from this transition on.

    Attributes:
        last: by rank, the last live transition.
        parting: the first transition where the ranks part; None if none do.
    """

    def __init__(self, journal: Journal, since: int) -> None:
        self.last: dict[int, Record] = {}
        self.parting: Divergence | None = None
        self._passings: deque[Passing] = deque(maxlen=_WINDOW)
        for seq, group in itertools.groupby(journal, key=lambda record: record.seq):
            records = list(group)
            if self.parting is None:
                self.parting = parting_at(records)
            if seq >= since:
                self._time(records)
            for record in records:
                self.last[record.rank] = record

    def _time(self, records: Sequence[Record]) -> None:
        times = {record.rank: record.meta["time"] for record in records}
        dwells = {}
        for record in records:
            before = self.last.get(record.rank)
            if before is not None and before.incarnation == record.incarnation:
                dwells[record.rank] = times[record.rank] - before.meta["time"]
        self._passings.append(Passing(records[0].source, times, dwells))

    def passings(self, ranks: Iterable[int]) -> list[Passing]:
        """Return the last transitions that all these ranks have, at most a thousand."""
        wanted = set(ranks)
        return [passing for passing in self._passings if wanted <= passing.times.keys()]


def gather(run_dir: Path, world: int, salvage: bool) -> dict[str, Any]:
    """Compare the ranks of a run, as plain data.

    Args:
        run_dir: the run directory.
        world: how many ranks it began with.
        salvage: pass over what is damaged.

    Raises:
        JournalCorrupt: the journal of a rank is damaged; it names the file.
    """
    journal = Journal(run_dir, rank="all", salvage=salvage)
    missing = [rank for rank in range(world) if rank not in journal.ranks]
    lives = {rank: Journal(run_dir, rank=rank, salvage=salvage).incarnations for rank in journal.ranks}
    current = taking_part(lives)
    reached = min((lives[rank][-1].last_seq for rank in current if lives[rank]), default=0)
    abreast = Abreast(journal, reached - _WINDOW)
    passings = abreast.passings(current) if len(current) > 1 else []
    rows = [_row(run_dir, rank, lives[rank], abreast.last.get(rank), rank in current) for rank in journal.ranks]
    part = [row for row in rows if row["rank"] in current]
    return {
        "rows": rows,
        "missing": missing,
        "machines": len({host for rank in current if (host := writer_of(run_dir, rank)[1])}),
        **compared(rows, part, passings),
        "failure": _failure(part, abreast.last),
        "parting": None if abreast.parting is None else attrs.asdict(abreast.parting),
        "damage": [{**attrs.asdict(damage), "file": str(damage.file)} for damage in journal.damage],
    }


def compared(rows: list[dict[str, Any]], part: Sequence[dict[str, Any]], passings: list[Passing]) -> dict[str, Any]:
    """Say who comes late, and who waits for whom; the rows are filled in.

    Args:
        rows: of all ranks.
        part: those of the ranks that have a part in the last life of the run.
        passings: transitions that all of these have.
    """
    _measure(rows, passings)
    slowest = _slowest(part, passings)
    return {"measured": len(passings), "slowest": slowest, "waits_for": _waits_for(part, slowest)}


def taking_part(lives: Mapping[int, Sequence[Incarnation]]) -> list[int]:
    """Return the ranks that have a part in the last life of the run, those that haven't written anything included."""
    newest = next((held[-1].number for held in lives.values() if held), 0)
    return [rank for rank, held in lives.items() if not held or held[-1].number >= newest]


def _row(run_dir: Path, rank: int, lives: Sequence[Incarnation], last: Record | None, current: bool) -> dict[str, Any]:
    closed = bool(lives) and lives[-1].closed
    return row_of(rank, last, ending(last, closed, is_alive(run_dir, rank)) if current else ("left", ""))


def row_of(rank: int, last: Record | None, ended: tuple[str, str]) -> dict[str, Any]:
    """Return a rank's row, before it is compared with the others.

    Args:
        rank: its number.
        last: its last transition.
        ended: how it ended, as `alive.ending` says.
    """
    return {
        "rank": rank,
        "seq": 0 if last is None else last.seq,
        "state": "" if last is None else last.dest,
        "time": None if last is None else last.meta["time"],
        "ended": ended[0],
        "detail": ended[1],
        "behind": 0,
        "late": None,
        "latest": None,
        "late_by_state": {},
    }


def _measure(rows: list[dict[str, Any]], passings: list[Passing]) -> None:
    """Fill in how far each row's rank is behind, and how much later than the first rank it leaves the states."""
    furthest = max((row["seq"] for row in rows), default=0)
    for row in rows:
        if row["ended"] == "left":
            continue
        row["behind"] = furthest - row["seq"]
        late: dict[str, list[float]] = {}
        for passing in passings:
            late.setdefault(passing.source, []).append(passing.times[row["rank"]] - min(passing.times.values()))
        if late:
            row["late"] = median(itertools.chain(*late.values()))
            row["late_by_state"] = {state: median(seconds) for state, seconds in late.items()}
            state = max(late, key=lambda name: row["late_by_state"][name] * len(late[name]))
            row["latest"] = {"state": state, "seconds": row["late_by_state"][state], "times": len(late[state])}


def _slowest(rows: Sequence[dict[str, Any]], passings: list[Passing]) -> dict[str, Any] | None:
    """Name the rank that costs most by leaving a state late, and where the others wait for it meanwhile."""
    measured = [row for row in rows if row["latest"] is not None]
    if not measured:
        return None
    slow = max(measured, key=lambda row: row["latest"]["seconds"] * row["latest"]["times"])
    told = {"rank": slow["rank"], "state": slow["latest"]["state"], "seconds": slow["latest"]["seconds"]}
    return {**told, "others_wait_in": _others_in(slow["rank"], passings)}


def _waits_for(rows: Sequence[dict[str, Any]], slowest: dict[str, Any] | None) -> dict[str, Any] | None:
    """Say whom the others wait for: those that have come least far, else the one that comes last in time."""
    least, furthest = (f((row["seq"] for row in rows), default=0) for f in (min, max))
    if least == furthest:
        return None if slowest is None else {"ranks": [slowest["rank"]], "by": "time", "behind": 0}
    ranks = [row["rank"] for row in rows if row["seq"] == least]
    return {"ranks": ranks, "by": "transition", "behind": furthest - least}


def _others_in(slow: int, passings: list[Passing]) -> str | None:
    """Name the state in which the other ranks spend the most time above the slow one's: there they wait for it."""
    above: dict[str, list[float]] = {}
    for passing in passings:
        if len(passing.dwells) > 1 and slow in passing.dwells:
            more = _mean_of_others(passing.dwells, slow) - passing.dwells[slow]
            above.setdefault(passing.source, []).append(more)
    cost = {state: median(seconds) * len(seconds) for state, seconds in above.items()}
    most = max(cost.values(), default=0.0)
    return next((state for state, seconds in cost.items() if seconds == most), None) if most > 0 else None


def _mean_of_others(dwells: dict[int, float], rank: int) -> float:
    return (sum(dwells.values()) - dwells[rank]) / (len(dwells) - 1)


def _failure(rows: list[dict[str, Any]], last: dict[int, Record]) -> dict[str, Any] | None:
    """Say who failed first and who ended because of it; None where no rank failed."""
    failed = [last[row["rank"]] for row in rows if row["ended"] == "failed"]
    if not failed:
        return None
    by_themselves = [record for record in failed if record.data.get("kind") != _BY_ANOTHER]
    told = {"because": [record.rank for record in failed if record not in by_themselves]}
    told["as_well"] = []
    if not by_themselves:
        gone = [row["rank"] for row in rows if row["ended"] in ("killed", "unknown")]
        return {"rank": gone[0] if len(gone) == 1 else None, "gone": gone, "kind": None, "error": None, **told}
    first = min(by_themselves, key=lambda record: record.meta["time"])
    told["as_well"] = [record.rank for record in by_themselves if record is not first]
    where = {"seq": first.seq, "time": first.meta["time"], "state": first.source}
    kind, error = (str(first.data.get(name, "")) for name in ("kind", "error"))
    return {"rank": first.rank, "gone": [], **where, "kind": kind, "error": error, **told}
