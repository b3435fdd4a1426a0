"""A part of a journal as a journal of its own: it reads as one, and its chain can be computed anew from its start.

Its records are the run's, byte for byte up to their checksums. Of what the run went through, only the live history is
in it; its lives are counted anew from 0. The first header names the point before its first transition as its parent, as
that of a run which was begun from another one does.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs

from tachograph.states import CallerError
from tachograph.states.table import FINAL

from ..journal import JournalError, Position, Record, SideRecord
from ..journal.codec import TAIL, from_json, sealed, side_line
from ..journal.files import segment_name
from ..journal.header import FORKED, Header, header_data
from ..journal.history import RankHistory
from ..journal.segments import directory_of, ranks_of
from ..journal.writer import SEAL_RECORDS
from . import masking

Piece = tuple[str, bytes]
"""A file's name, and the next of its bytes."""
_OF_FILES = ("opened", "sealed", "closed")
_READ_ALIKE = ("machine", "state", "schema", "limits", "defaults", "format", "run")


class Window:
    """A part of one rank's journal.

    Args:
        run_dir: the run directory.
        rank: whose journal.
        first: the first transition, >= 1; a rank whose journal begins later has those it has.
        last: the last one.
        host: the name of the run's machine; "" if that isn't known.
        keep_secrets: leave what looks like a secret.

    Attributes:
        rank: whose journal.
        before: the point before its first transition.
        numbers: the lives of the run that it has a part of -> their numbers in the file. Those of several ranks are
            made to agree, before it is read.
        masked: what was masked; filled while `pieces` is read.
        end: the last transition, and the chain after it; likewise.
    """

    def __init__(
        self, run_dir: Path, rank: int, first: int, last: int, *, host: str = "", keep_secrets: bool = False
    ) -> None:
        self.rank = rank
        self._history = history_of(run_dir, rank)
        self._first, self._last = max(first, self._history.beginning.seq + 1), last
        self._host = host
        self._keep_secrets = keep_secrets
        self.masked: list[str] = []
        self.before = position_at(self._history, self._first - 1)
        self.end = self.before
        self.numbers = {life: number for number, life in enumerate(self._lives())}

    def _lives(self) -> Iterator[int]:
        """Yield the lives of the live history that have a transition in it, oldest first."""
        history = self._history
        for life, upto in history.current:
            ends = history.end(life)[0].seq
            ends = ends if upto is None else min(ends, upto)
            if max(history.first_seq(life), self._first) <= min(ends, self._last):
                yield life

    def life_of(self, seq: int) -> int:
        """Return the life that a transition of the live history belongs to, by its number in the file."""
        return self.numbers.get(position_at(self._history, seq).incarnation, 0)

    def pieces(self) -> Iterator[Piece]:
        """Yield its files, one after the other, line by line.

        Raises:
            CallerError: a transition holds what looks like a secret, which can't be masked.
            JournalCorrupt: the journal is damaged there.
        """
        segments = _Segments(self.rank, self.before)
        closes = False  # by the run's last transition
        for item in self._items():
            yield from segments.room_for(item, self.numbers[item.incarnation])
            if isinstance(item, Record):
                self.end, closes = segments.take(item), item.dest in FINAL
            yield segments.put(*self._line(item, segments.crc))
        if self.end.seq >= self._first:
            yield from segments.end("" if closes else self._said_of_end())

    def _said_of_end(self) -> str:
        """Say why a window ends where it does, though its run hadn't come to its end there."""
        history = self._history
        if self.end.seq < history.reached.seq:
            return f"a part of a run was packed: its journal goes on to transition {history.reached.seq:,}"
        _, closed = history.end(history.newest)
        return "" if closed else "the run's journal wasn't closed here when it was packed: it was going on, or killed"

    def _items(self) -> Iterator[Record | SideRecord]:
        """Yield the records of the live history from the first transition on, without the headers of its files."""
        begun = False
        for item in self._history.live(sides=True, start=self._first):
            if item.seq > self._last:
                return
            begun = begun or (isinstance(item, Record) and item.seq >= self._first)
            told = isinstance(item, SideRecord) and (item.kind in _OF_FILES or item.incarnation not in self.numbers)
            if begun and not told:
                yield item

    def _line(self, item: Record | SideRecord, crc: int) -> tuple[bytes, int]:
        body = item.line[:-TAIL]
        if self._keep_secrets:
            return sealed(body, crc)
        if isinstance(item, SideRecord):
            data = item.data
            masked = masking.masked(data, f"journal.{item.kind}", self.masked.append, host=self._host)
            if masking.differs(data, masked):
                return side_line(item.kind, item.seq, masked, crc, item.meta["time"])
        elif masking.may_hold_secrets(body):
            found = masking.secrets_in(from_json(item.line), f"transition {item.seq}")
            if found:
                raise CallerError(
                    f"{found[0]} looks like a secret, and a transition can't be changed without breaking the chain: "
                    "leave it out with --after or --before, or leave all secrets in with --keep-secrets"
                )
        return sealed(body, crc)


class _Segments:
    """The files of a window, as they are written: their headers, checksums and footers."""

    def __init__(self, rank: int, before: Position) -> None:
        self._rank = rank
        self._header: Header | None = None
        self._parent = None if before.seq == 0 else attrs.evolve(before, incarnation=FORKED)
        self._last = before
        self._time = 0.0  # of the last transition: a bundle has none of its own
        self._records = 0
        self.crc = 0

    @property
    def _name(self) -> str:
        return "" if self._header is None else segment_name(self._header.first_seq, self._header.incarnation)

    def room_for(self, item: Record | SideRecord, life: int) -> Iterator[Piece]:
        """Begin another file where an item can't stand in this one: it is of another life, or read in another way."""
        header = self._header
        if header is None:
            yield self._opened(item.header, life, None)
        elif header.incarnation != life:
            yield self.footer("closed")
            self._parent = attrs.evolve(self._last, incarnation=header.incarnation)
            yield self._opened(item.header, life, None)
        elif isinstance(item, Record) and (self._records >= SEAL_RECORDS or not _alike(header, item.header)):
            following = segment_name(self._last.seq + 1, life)
            yield self.footer("sealed", next=following)
            previous = {"file": self._name, "crc": f"{self.crc:08x}"}
            yield self._opened(item.header, life, previous)

    def _opened(self, like: Header, life: int, previous: dict[str, Any] | None) -> Piece:
        before = self._last
        self._header = attrs.evolve(
            like,
            rank=self._rank,
            incarnation=life,
            first_seq=0 if before.seq == 0 else before.seq + 1,
            chain=before.chain,
            parent=self._parent,
            previous=previous,
        )
        self._records = 0
        line, self.crc = side_line("opened", before.seq, header_data(self._header), 0, like.time)
        return self._name, line

    def take(self, record: Record) -> Position:
        """Count a transition that is put in next; return the point after it."""
        self._records += 1
        self._last = Position(0, record.seq, record.chain)
        self._time = record.meta["time"]
        return self._last

    def put(self, line: bytes, crc: int) -> Piece:
        """Take a line with its checksum."""
        self.crc = crc
        return self._name, line

    def footer(self, kind: str, **more: Any) -> Piece:
        """Close a file."""
        facts = {"records": self._records, "chain": self._last.chain, **more}
        return self.put(*side_line(kind, self._last.seq, facts, self.crc, self._time))

    def end(self, said: str) -> Iterator[Piece]:
        """Close the last file, with a sentence where the run didn't end there."""
        if said:
            yield self.put(*side_line("noted", self._last.seq, {"text": said}, self.crc, self._time))
        yield self.footer("closed")


def history_of(run_dir: Path, rank: int) -> RankHistory:
    """Open one rank's history.

    Raises:
        JournalError: it isn't a run directory, has no such rank, or its journal is empty.
    """
    lowest = ranks_of(run_dir)[0]
    whole = None if rank == lowest else RankHistory(directory_of(run_dir, lowest), salvage=True)
    history = RankHistory(directory_of(run_dir, rank), run=whole)
    history.load()
    if rank == lowest and history.reached.seq <= history.beginning.seq:
        raise JournalError(f"the journal of {run_dir} is empty: there is nothing to pack")
    return history


def position_at(history: RankHistory, seq: int) -> Position:
    """Return the point after a transition of a live history; that before its first one where it begins later."""
    for incarnation, upto in reversed(history.current):
        if history.first_seq(incarnation) <= seq and (upto is None or seq <= upto):
            found = history.seek(incarnation, seq)
            if found is not None:
                return Position(incarnation, seq, found.chain)
    return history.beginning


def _alike(a: Header, b: Header) -> bool:
    """Say whether records of two files can stand in one: they leave out the same, and are of the same classes."""
    return all(getattr(a, name) == getattr(b, name) for name in _READ_ALIKE)
