"""Following a journal that is being written: over segments, over incarnations, never half a line."""

from __future__ import annotations

from collections.abc import Iterator
from zlib import crc32

from .codec import TAIL, stored_crc
from .damage import FOOTERS
from .errors import JournalCorrupt
from .history import RankHistory
from .links import Opened
from .record import Item, Record, decode
from .segments import Segment, describe


class Follower:
    """Reads what was added to one rank's journal since the last time it was asked.

    Args:
        history: where to look.
        after: records up to this seq are passed over.
        sides: yield side records too.
    """

    def __init__(self, history: RankHistory, after: int, sides: bool) -> None:
        self._history = history
        self._sides = sides
        self._after = after
        self._upto: int | None = None
        self._opened: Opened | None = None
        self._offset = self._crc = 0
        self._ended = False

    def poll(self) -> Iterator[Item]:
        """Yield what is new, as far as it is whole.

        Raises:
            JournalCorrupt: a line is damaged.
        """
        while True:
            self._history.load()
            following = self._next_segment()
            yield from self._drain()
            if following is None:
                return
            if not self._ended and following[0].incarnation == self._incarnation:
                continue  # the footer is still to come
            self._go_on(following)

    @property
    def _incarnation(self) -> int:
        return self._opened[0].incarnation if self._opened else -1

    def _next_segment(self) -> Opened | None:
        """Return the segment to read after the present one; the live history decides.

        It is looked up before the present one is read to its end, which can't grow any more once there is a next.
        """
        history = self._history
        if self._opened is None:
            return self._first_segment()
        segment = self._opened[0]
        for opened in history.segments.get(segment.incarnation, []):
            if opened[0].first_seq > segment.first_seq and not self._past(opened):
                return opened
        after = [n for n, _ in history.current if n > segment.incarnation]
        return history.segments[after[0]][0] if after else None

    def _first_segment(self) -> Opened | None:
        """Return the segment that the first record wanted may stand in."""
        history, begin = self._history, max(self._after, 1)
        lineage = history.current
        live = [o for n, upto in lineage for o in history.segments[n] if upto is None or o[1].first_seq <= upto]
        before = [opened for opened in live if opened[1].first_seq <= begin]
        return max(before, key=lambda opened: opened[1].first_seq) if before else next(iter(live), None)

    def _past(self, opened: Opened) -> bool:
        return self._upto is not None and opened[1].first_seq > self._upto

    def _go_on(self, opened: Opened) -> None:
        newer = opened[0].incarnation != self._incarnation
        if newer and self._opened is not None and opened[1].parent is not None:
            self._after = min(self._after, opened[1].parent.seq)
        self._opened, self._offset, self._crc, self._ended = opened, 0, 0, False
        self._upto = dict(self._history.current).get(opened[0].incarnation)

    def _drain(self) -> Iterator[Item]:
        if self._opened is None or self._ended:
            return
        segment, header = self._opened
        for line in _whole_lines(segment, self._offset):
            self._check(segment, line)
            item = decode(line, header, segment.path, self._offset)
            self._offset += len(line) + 1
            if isinstance(item, Record) and self._upto is not None and item.seq > self._upto:
                self._ended = True
                return
            self._ended = line.startswith(FOOTERS)
            if isinstance(item, Record):
                if item.seq > self._after:
                    self._after = item.seq
                    yield item
            elif self._sides and item.seq >= self._after:
                yield item

    def _check(self, segment: Segment, line: bytes) -> None:
        if stored_crc(line) != crc32(line[:-TAIL], self._crc):
            raise JournalCorrupt(segment.path, self._offset, describe(line))
        self._crc = stored_crc(line) or 0


def _whole_lines(segment: Segment, offset: int) -> Iterator[bytes]:
    rest = b""
    for block in segment.blocks(offset):
        *lines, rest = (rest + block).split(b"\n")
        yield from lines
