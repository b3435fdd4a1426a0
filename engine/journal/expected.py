"""What a resumed run is held against: the transitions that earlier incarnations recorded past a snapshot.

Every crash is a free determinism check. The newest account of a transition counts; where an incarnation
diverged from those before it, theirs past its end says nothing about the way the run has taken since; where it went on
under other settings, theirs says nothing at all.
"""

from __future__ import annotations

from .history import RankHistory
from .record import Record, SideRecord

FINAL = ("done", "exception")


def expected_after(history: RankHistory, incarnation: int, seq: int) -> dict[int, Record]:
    """Collect by seq what was recorded after the transition `seq` of `incarnation`, final transitions left out."""
    while (parent := history.segments[incarnation][0][1].parent) is not None and seq <= parent.seq:
        if parent.incarnation not in history.segments:
            break  # the point is where this run was forked off another one
        incarnation = parent.incarnation  # the point lies before this incarnation's first transition
    expected: dict[int, Record] = {}
    for number in sorted(history.segments):
        if _contains(history, number, incarnation, seq):
            _overlay(history, number, seq, expected)
    expected = {n: record for n, record in sorted(expected.items()) if record.dest not in FINAL}
    gap = next((n for n in range(seq + 1, seq + 2 + len(expected)) if n not in expected), 0)
    return {n: record for n, record in expected.items() if n < gap}


def accounts_after(history: RankHistory, incarnation: int, seq: int) -> list[Record]:
    """Collect every account of the transition that follows `seq` of `incarnation`, oldest first."""
    through = (number for number in sorted(history.segments) if _contains(history, number, incarnation, seq))
    return [found for number in through if (found := history.seek(number, seq + 1)) is not None]


def _contains(history: RankHistory, number: int, incarnation: int, seq: int) -> bool:
    upto = dict(history.lineage(number)).get(incarnation, -1)
    return seq == 0 or upto is None or upto >= seq  # all have gone through the beginning


def _overlay(history: RankHistory, number: int, seq: int, expected: dict[int, Record]) -> None:
    """Lay one incarnation's records over those of the incarnations before it."""
    records, diverged = {}, False
    end = history.first_seq(number) - 1
    for item in history.walk(number, None, sides=True, start=seq + 1):
        if isinstance(item, SideRecord):
            diverged = diverged or item.kind == "diverged"
            if item.kind == "resumed" and item.data.get("felt"):
                expected.clear()
            continue
        end = item.seq
        if end > seq:
            records[end] = item
    if diverged:
        for after in [n for n in expected if n > end]:
            del expected[after]
    expected.update(records)
