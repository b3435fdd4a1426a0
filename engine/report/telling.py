"""What a page tells of one run: the facts as plain data, and the boxes with its transitions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import attrs

from tachograph.engine import recording
from tachograph.engine.cli import overview, ranks
from tachograph.engine.cli.records import fact
from tachograph.engine.cli.rows import Rows
from tachograph.engine.journal import Journal, Record, SideRecord, rank_directory

from .drawing import drawing
from .outline import Outline
from .prints import Prints
from .records import CHAIN_EVERY, LONG, SIZE, Records

MOST_ROWS = 500
"""Rows of a table: the first and the last ones."""
_QUIET = frozenset({"opened", "sealed", "closed", "saved", "fingerprint"})
"""Side records that are told of elsewhere, or stand at nearly every transition."""


@attrs.frozen(kw_only=True)
class Told:
    """A run, ready for the page.

    Attributes:
        run_dir: where it lies.
        facts: plain data.
        outline: the box of all transitions.
        curves: the box of the curves.
        prints: the box of the fingerprints; "" where it took none.
        records: the boxes of the records.
        transitions: how many it has.
        left_out: how many boxes of records there was no room for.
    """

    run_dir: Path
    facts: dict[str, Any]
    outline: str
    curves: str
    prints: str
    records: list[str]
    transitions: int
    left_out: int


def tell(run_dir: Path, about: dict[str, Any], *, rank: int | None, salvage: bool, diverged: Iterable[int]) -> Told:
    """Read a run.

    Args:
        run_dir: the run directory.
        about: its `run.json`.
        rank: whose journal; None for the lowest one.
        salvage: pass over what is damaged.
        diverged: transitions whose records must be in the page.

    Raises:
        JournalError: a journal can't be read.
    """
    begun = rank_directory(run_dir, 0).parent.is_dir()  # else its process died before it wrote a line
    mine = (Journal(run_dir, rank="all").ranks[0] if rank is None else rank) if begun else 0
    facts = _facts(run_dir, about, mine if begun else None, salvage, everyone=rank is None)
    outline, records, prints = _read(run_dir, mine if begun else None, salvage, set(diverged))
    box, curves = outline.packed()
    plan = recording.plan_of(about)
    facts |= {
        "name": str(run_dir),
        "rank": mine,
        "machine": drawing(outline.rows, plan),
        "whole": plan is not None,
        "rows": [list(row) for row in outline.rows],
        "lives": outline.lives,
        "transitions": len(outline),
        "curves_left_out": outline.curves_left_out,
        "records": _records(records, len(outline)),
        "prints": {"kept": len(prints), "count": prints.count},
    }
    return Told(
        run_dir=run_dir,
        facts=plain(facts),
        outline=box,
        curves=curves,
        prints=prints.packed() if prints.count else "",
        records=records.boxes,
        transitions=len(outline),
        left_out=records.left_out,
    )


def _records(records: Records, count: int) -> dict[str, Any]:
    there = [bool(box) for box in records.boxes]
    every = 1 if count < LONG else CHAIN_EVERY
    return {"size": SIZE, "there": there, "cut": records.cut, "chain_every": every}


def _read(run_dir: Path, rank: int | None, salvage: bool, kept: set[int]) -> tuple[Outline, Records, Prints]:
    outline, records, prints = Outline(), Records(), Prints()
    for item in () if rank is None else Journal(run_dir, rank=rank, salvage=salvage).everything():
        if isinstance(item, Record):
            outline.add(item)
            records.add(item, kept=item.event == "Failed" or item.seq in kept)
        elif item.kind == "fingerprint":
            prints.add(item.data)
    records.close(len(outline))
    return outline, records, prints


def _facts(run_dir: Path, about: dict[str, Any], rank: int | None, salvage: bool, *, everyone: bool) -> dict[str, Any]:
    journal = None if rank is None else Journal(run_dir, rank=rank, history="all", salvage=salvage)
    abreast = None
    if journal is not None and everyone and (int(about.get("world") or 1) > 1 or len(_ranks(run_dir)) > 1):
        abreast = ranks.gather(run_dir, int(about.get("world") or 1), salvage)
    asked: dict[str, Any] = {"everything": False, "most": MOST_ROWS, "check": False, "ranks": abreast}
    report = overview.gather(run_dir, about, journal, **asked)
    held = attrs.asdict(report, recurse=False)
    del held["sides"]
    tables = {name: _table(value) if isinstance(value, Rows) else value for name, value in held.items()}
    if journal is not None:
        tables |= {"sides": _table(_sides(journal)), "in_force": recording.in_force(about, journal)}
    return tables


def _ranks(run_dir: Path) -> list[int]:
    return Journal(run_dir, rank="all").ranks


def _table(rows: Rows[Any]) -> dict[str, Any]:
    return {"rows": list(rows), "count": rows.count, "first": len(rows.first)}


def _sides(journal: Journal) -> Rows[dict[str, Any]]:
    rows: Rows[dict[str, Any]] = Rows(MOST_ROWS)
    for item in _facts_beside(journal):
        where = {"seq": item.seq, "incarnation": item.incarnation, "time": item.meta["time"]}
        rows.add({**where, "kind": item.kind, "told": fact(item.kind, item.data)})
    return rows


def _facts_beside(journal: Journal) -> Iterator[SideRecord]:
    return (item for item in journal.sides() if item.kind not in _QUIET)


def plain(value: Any) -> Any:
    """Return a value as JSON can hold it; NaN and infinities as the texts "nan", "inf", "-inf"."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {str(key): plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(part) for part in value]
    return value if isinstance(value, (str, int, float, bool)) or value is None else str(value)
