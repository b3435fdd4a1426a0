"""`Incarnation`: one life of a run, as a journal's headers and last lines tell it."""

from __future__ import annotations

from pathlib import Path

import attrs

from .header import Position
from .history import RankHistory


@attrs.frozen(kw_only=True)
class Incarnation:
    """One life of a run, from its start or a resume to its end.

    Attributes:
        number: 0 for the first.
        parent: the position it went on from; None for the first.
        first_seq: its first transition, >= 1.
        last_seq: its last one; `first_seq - 1` where it has none.
        chain: the chain there.
        files: its segments, in order.
        opened: when it began, in seconds since 1970.
        closed: it ended by itself; False while it runs, or after a kill.
        machine: the digest of its machine's table.
    """

    number: int
    parent: Position | None
    first_seq: int
    last_seq: int
    chain: str
    files: tuple[Path, ...]
    opened: float
    closed: bool
    machine: str


def incarnation_of(history: RankHistory, number: int) -> Incarnation:
    """Tell of one of a rank's incarnations."""
    opened = history.segments[number]
    header = opened[0][1]
    end, closed = history.end(number)
    return Incarnation(
        number=number,
        parent=header.parent,
        first_seq=history.first_seq(number),
        last_seq=end.seq,
        chain=end.chain,
        files=tuple(segment.path for segment, _ in opened),
        opened=header.time,
        closed=closed,
        machine=header.machine,
    )
