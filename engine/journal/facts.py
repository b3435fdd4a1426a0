"""What can be found in a journal without reading it all: side records of one kind, and the chain at its segments' ends.

A line says its kind first, so a segment's text is searched for that. It is for kinds that are many, or far apart, in
journals of millions of lines. The checksum of what is found is checked; of what isn't, not.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from .errors import JournalCorrupt
from .header import Position
from .history import RankHistory
from .links import Opened
from .locate import follows, text_of
from .record import SideRecord, decode

if TYPE_CHECKING:
    from .reader import Journal


def last_facts_of(
    journal: Journal, kind: str, stop: int | None = None, within: int | None = None
) -> Iterator[SideRecord]:
    """Yield the side records of a kind on the live history, newest first.

    Args:
        journal: the journal; of several ranks, the lowest one's records are taken.
        kind: what they are.
        stop: they follow this transition, or earlier ones; None: there is no last one.
        within: how many transitions to go back, at least; segments are searched whole. None: to the beginning.
    """
    history = journal._first
    end = history.reached.seq if stop is None else stop
    for opened, upto in reversed(_parts(history, stop)):
        for segment in reversed(opened):
            yield from _backwards(history, segment, kind, upto)
            if within is not None and segment[1].first_seq <= end - within:
                return


def points_of(journal: Journal) -> dict[int, str]:
    """Return the chain at those points of the live history that the headers of its segments tell: seq -> chain."""
    history, points = journal._first, {}
    for incarnation, upto in history.current:
        for _, header in history.segments[incarnation]:
            if upto is None or header.before.seq <= upto:
                points[header.before.seq] = header.chain
    return points


def start_of(journal: Journal) -> Position:
    """Return the point before the first transition of the live history; of a run that was forked, the fork's."""
    return journal._first.beginning


def _parts(history: RankHistory, stop: int | None) -> list[tuple[list[Opened], int | None]]:
    """Return the segments of the live history by incarnation, with the last transition that counts of each."""
    parts = []
    for incarnation, upto in history.current:
        bound = min((n for n in (upto, stop) if n is not None), default=None)
        opened = [(s, h) for s, h in history.segments[incarnation] if bound is None or h.first_seq <= bound + 1]
        if opened:
            parts.append((opened, bound))
    return parts


def _backwards(history: RankHistory, opened: Opened, kind: str, upto: int | None) -> Iterator[SideRecord]:
    segment, _ = opened
    mark = _mark(kind)
    with text_of(segment, history._unpacked) as text:
        at = text.rfind(mark)
        while at >= 0:
            fact, _ = _fact(opened, text, at + 1)
            if fact is not None and (upto is None or fact.seq <= upto):
                yield fact
            at = text.rfind(mark, 0, at + 1)


def _mark(kind: str) -> bytes:
    return b'\n{"side":"%b",' % kind.encode()


def _fact(opened: Opened, text: object, start: int) -> tuple[SideRecord | None, int]:
    """Read the line that begins at `start`, and say where it ends; None for one that is still being written."""
    segment, header = opened
    end = text.find(b"\n", start)  # type: ignore[attr-defined]
    if end < 0:
        return None, start
    line = text[start:end]  # type: ignore[index]
    before = text[text.rfind(b"\n", 0, start - 1) + 1 : start - 1]  # type: ignore[index,attr-defined]
    if not follows(before, line):
        raise JournalCorrupt(segment.path, start, "a line whose checksum doesn't follow from the line before")
    found = decode(line, header, segment.path, start)
    assert isinstance(found, SideRecord)
    return found, end
