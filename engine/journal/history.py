"""One rank's history: its incarnations, which of their records count, and the checks that hold them together."""

from __future__ import annotations

import itertools
import math
from collections.abc import Generator, Iterator
from pathlib import Path

import attrs

from .damage import Damage, check_length, refuse_damage
from .durable import Mark, read_mark
from .errors import JournalCorrupt, JournalFormat
from .header import Header, Position, read_header
from .holding import left_over
from .links import START, Opened, Reached, check_junction, check_links, check_segment
from .locate import Unpacked, end_of, find
from .record import Item, Record, SideRecord, decode
from .segments import BadLine, Segment, list_segments, scan_salvage
from .walk import read_records

Lineage = list[tuple[int, int | None]]
"""[(incarnation, the last seq of it that counts; None: all)], oldest first."""
NO_HEADER = Header(
    format=1, run="", rank=0, incarnation=0, first_seq=0, chain="", parent=None, machine="", previous=None, state="",
    schema=1, limits=(), defaults={}, time=0.0,
)  # fmt: skip
"""What is known of a segment whose header, like all others, is lost."""


class RankHistory:
    """Reads one rank's directory.

    Args:
        directory: the rank's directory.
        salvage: pass over damage instead of refusing it.
        run: the history of the rank that says what the run went through as it stands; None where it is this one.

    Attributes:
        segments: by incarnation, its segments in order, with their headers.
        mark: the durable mark.
        torn: (file, offset) of a torn tail that was met.
        damage: what a salvage passed over.
    """

    def __init__(self, directory: Path, *, salvage: bool = False, run: RankHistory | None = None) -> None:
        self.directory = directory
        self.salvage = salvage
        self.run = run
        self.segments: dict[int, list[Opened]] = {}
        self.mark: Mark | None = None
        self.torn: tuple[Path, int] | None = None
        self.damage: list[Damage] = []
        self._headers: dict[str, Header] = {}
        self._unpacked = Unpacked()

    def load(self) -> None:
        """List the files anew.

        Raises:
            JournalCorrupt: a file is missing, doesn't belong here, or has a damaged header.
            JournalFormat: a file is foreign, or a newer version wrote it.
        """
        if self.run is not None:
            self.run.load()
        try:
            self._load()
        except JournalCorrupt:
            self._load()  # a segment that was just being replaced by its compressed twin may be missed once

    def _load(self) -> None:
        self.torn, self.damage, self.segments = None, [], {}
        self.mark = self._read_mark()
        listed = list_segments(self.directory)
        for segment in listed:
            header = self._header(segment, segment is listed[-1])
            if header is not None:
                self.segments.setdefault(segment.incarnation, []).append((segment, header))
        if not self.salvage:
            names = [segment.plain_name for segment in listed]
            check_links(self.directory, self.segments, names, self.mark)
            self._check_owner()

    def _check_owner(self) -> None:
        """Hold the headers against where the files lie: they are this rank's, and of the run that the others are of."""
        others = [] if self.run is None else [opened[0][1].run for opened in self.run.segments.values()]
        for segment, header in itertools.chain(*self.segments.values()):
            if self.directory.name != f"rank-{header.rank}":
                raise JournalCorrupt(segment.path, 0, f"it belongs to rank {header.rank}")
            if others and header.run != others[0]:
                reason = f"it belongs to another run than the lowest rank's, {header.run!r}"
                raise JournalCorrupt(segment.path, 0, reason)

    def _read_mark(self) -> Mark | None:
        try:
            return read_mark(self.directory)
        except JournalCorrupt as error:
            if not self.salvage:
                raise
            self.damage.append(Damage(error.file, 0, 0, error.reason))
            return None

    def _header(self, segment: Segment, last: bool) -> Header | None:
        known = self._headers.get(segment.plain_name)
        if known is None:
            try:
                known = self._headers[segment.plain_name] = read_header(segment)
            except (BadLine, JournalCorrupt, JournalFormat) as error:
                if not self.salvage:
                    if not isinstance(error, BadLine):
                        raise
                    refuse_damage(segment, error, last=last, mark=self.mark)
                    self.torn = (segment.path, 0)
                    return None
                known = self._guess(segment)
        return known

    def _guess(self, segment: Segment) -> Header | None:
        """Make up a header for a segment whose own is lost, after a neighbour's."""
        near = next(iter(self._headers.values()), NO_HEADER)
        return attrs.evolve(
            near,
            incarnation=segment.incarnation,
            first_seq=segment.first_seq,
            chain="",
            parent=None,
            previous=None,
            time=0.0,
        )

    @property
    def newest(self) -> int:
        """The newest incarnation; -1 where there is none."""
        return max(self.segments, default=-1)

    def first_seq(self, incarnation: int) -> int:
        """The first transition that an incarnation may hold, >= 1."""
        return max(self.segments[incarnation][0][1].first_seq, 1)

    def lineage(self, incarnation: int) -> Lineage:
        """Return [(incarnation, last seq that counts)], oldest first; None: all of it."""
        path: Lineage = []
        upto: int | None = None
        while incarnation in self.segments:
            if upto is None or upto >= self.first_seq(incarnation):
                path.append((incarnation, upto))
            parent = self.segments[incarnation][0][1].parent
            if parent is None or parent.incarnation >= incarnation:
                break
            incarnation, upto = parent.incarnation, parent.seq if upto is None else min(upto, parent.seq)
        return path[::-1]

    @property
    def current(self) -> Lineage:
        """The live history: the newest incarnation's lineage, as far as the run went that way with this rank.

        Incarnations of one life of the run have the same number on all ranks. A rank that the run was resumed without
        has none of that life: what it wrote past that point counts no more.
        """
        own = self.lineage(self.newest)
        if self.run is None or not self.run.segments:
            return own
        live = dict(self.run.current)
        while own and own[-1][0] not in live:
            own.pop()
        if own:
            (number, upto), bound = own[-1], live[own[-1][0]]
            own[-1] = number, bound if upto is None else upto if bound is None else min(upto, bound)
        return own

    @property
    def beginning(self) -> Position:
        """The point before the live history's first transition."""
        return self._origin(self.current[0][0]) if self.current else START

    def _origin(self, incarnation: int) -> Position:
        """Return the point before the first life that an incarnation goes back to: another run's if that is forked."""
        header = self.segments[incarnation][0][1]
        while header.parent is not None and header.parent.incarnation in self.segments:
            header = self.segments[header.parent.incarnation][0][1]
        return header.before if header.forked else START

    def held(self, incarnation: int, seq: int) -> list[Record]:
        """Return what an incarnation has committed past `seq` and made no lines of yet; see `holding`."""
        if incarnation != self.newest or self.salvage:
            return []
        segment, header = self.segments[incarnation][-1]
        made = (decode(line, header, segment.path, 0) for line in left_over(segment, header).splitlines())
        return [record for record in made if isinstance(record, Record) and record.seq > seq]

    def end(self, incarnation: int) -> tuple[Position, bool]:
        """Return where an incarnation ends, and whether it was closed there."""
        position, closed = self._end_of_lines(incarnation)
        held = [] if closed else self.held(incarnation, position.seq)
        return (Position(incarnation, held[-1].seq, held[-1].chain) if held else position), closed

    def _end_of_lines(self, incarnation: int) -> tuple[Position, bool]:
        segment, header = self.segments[incarnation][-1]
        end = None if self.salvage else end_of(segment, header)
        if end is None:
            return self._end_by_reading(incarnation)
        if end.record is None:
            return header.before, end.closed
        return Position(incarnation, end.record.seq, end.record.chain), end.closed

    @property
    def reached(self) -> Position:
        """Where the live history ends; `START` where there is none."""
        if not self.current:
            return START
        incarnation, upto = self.current[-1]
        end, _ = self.end(incarnation)
        if upto is None or end.seq <= upto:
            return end
        found = self.seek(incarnation, upto)
        return START if found is None else Position(incarnation, upto, found.chain)

    def _end_by_reading(self, incarnation: int) -> tuple[Position, bool]:
        header = self.segments[incarnation][0][1]
        seq, chain, closed = header.before.seq, header.chain, False
        for item in self.walk(incarnation, None, sides=True):
            closed = isinstance(item, SideRecord) and item.kind == "closed"
            if isinstance(item, Record):
                seq, chain = item.seq, item.chain
        return Position(incarnation, seq, chain), closed

    def seek(self, incarnation: int, seq: int) -> Record | None:
        """Find one transition of an incarnation; None where it has none of that number."""
        opened = [o for o in self.segments.get(incarnation, []) if o[1].first_seq <= seq]
        found = find(*opened[-1], seq, self._unpacked) if opened and not self.salvage else None
        if found is None and opened:
            found = next((record for record in self.held(incarnation, seq - 1) if record.seq == seq), None)
        if found is None and opened:
            records = self.walk(incarnation, seq, sides=False)
            found = next((r for r in records if isinstance(r, Record) and r.seq == seq), None)
        return found

    def check_parent(self, incarnation: int) -> None:
        """Hold an incarnation's header against the record it says it went on from.

        Raises:
            JournalCorrupt: its parent has no such record, or another chain there.
        """
        opened = self.segments[incarnation][0]
        parent = opened[1].parent
        if parent is None:
            return check_junction(opened, attrs.evolve(START, incarnation=incarnation))
        if parent.seq == 0:
            return check_junction(opened, START)
        if opened[1].forked:
            return None
        origin = self._origin(incarnation)
        if parent.seq == origin.seq:  # nothing of the lives before it counts
            return check_junction(opened, origin)
        last = next((i for i, _ in self.lineage(incarnation)[-2::-1]), -1)
        found = self.seek(last, parent.seq)
        if found is None:
            raise JournalCorrupt(opened[0].path, 0, f"it goes on from {parent}, of which there is no record")
        return check_junction(opened, Position(last, found.seq, found.chain))

    def live(self, sides: bool, start: int = 0) -> Iterator[Item]:
        """Yield the newest incarnation's records, after those of its ancestors that it went on from.

        Segments that hold nothing from `start` on are passed over unread.
        """
        end = self.beginning
        for incarnation, upto in self.current:
            opened = self.segments[incarnation][0]
            if not self.salvage and not opened[1].forked:
                check_junction(opened, end)
            end = yield from self.walk(incarnation, upto, sides, start)

    def all(self, sides: bool) -> Iterator[Item]:
        """Yield every incarnation's records, one incarnation after the other."""
        for incarnation in sorted(self.segments):
            yield from self.walk(incarnation, None, sides)

    def walk(self, incarnation: int, upto: int | None, sides: bool, start: int = 0) -> Generator[Item, None, Position]:
        """Yield one incarnation's records up to the transition `upto`; return where it ended.

        Segments that hold nothing from `start` on are passed over unread.

        Raises:
            JournalCorrupt: a line is damaged, or a transition or a segment is missing.
        """
        if self.salvage:
            yield from self._walk_salvage(incarnation, upto, sides)
            return START
        opened = self.segments[incarnation]
        early = sum(header.first_seq <= start for _, header in opened[1:])
        opened = opened[early:]
        at = Reached(max(opened[0][1].first_seq, 1) - 1, opened[0][1].chain)
        for segment, header in opened:
            if at.line:
                check_segment(segment, header, at)
            try:
                yield from read_records(segment, header, at, upto, sides)
            except BadLine as bad:
                last = incarnation == self.newest and segment is opened[-1][0]
                refuse_damage(segment, bad, last=last, mark=self.mark)
                self.torn = (segment.path, bad.offset)
                break
            if at.passed:
                break
            check_length(segment, at.offset, self.mark)
        if not at.passed:
            for record in self.held(incarnation, at.seq):
                if record.seq > (math.inf if upto is None else upto) or record.seq != at.seq + 1:  # more was written
                    break
                at.seq, at.chain = record.seq, record.chain
                yield record
        return Position(incarnation, at.seq, at.chain)

    def _walk_salvage(self, incarnation: int, upto: int | None, sides: bool) -> Iterator[Item]:
        for segment, header in self.segments[incarnation]:
            damage: list[tuple[int, int, str]] = []
            for offset, line in scan_salvage(segment, damage):
                try:
                    item = decode(line, header, segment.path, offset)
                except JournalCorrupt as error:
                    damage.append((offset, len(line) + 1, error.reason))
                    continue
                if item.__class__ is Record and upto is not None and item.seq > upto:
                    break
                if sides or item.__class__ is Record:
                    yield item
            self.damage.extend(Damage(segment.path, *found) for found in damage)
