"""`JournalWriter`: one `write(2)` per transition, and nothing else on the hot path.

A record is committed when the kernel has it: a killed process loses none. The disk is waited for elsewhere
(`durable`). A write that failed is never tried again, since nobody knows what a second one would mean: the
writer keeps the reason and refuses from then on, and the run stops at that transition.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NoReturn

import attrs
from tachograph.states import TrainerState
from tachograph.states.trainer_state import SCHEMA

from .codec import TAIL, TRAINING_EVENTS, defaults_of, encoder, limits_of, sealed, side_line
from .durable import Durability
from .errors import JournalError, JournalWriteError
from .files import Files, rank_directory, segment_name, write_all
from .header import FORMAT, Header, Position, header_data
from .lock import JournalLock, forget_in_children
from .sealing import Sealer, clean


class JournalWriter:
    """Writes one incarnation of one rank's journal. Made by `JournalWriter.create`.

    Attributes:
        seq: the last transition committed.
        path: the segment being written.
        unwritten: (line, chain) of the record that a failure kept from being committed; None without a failure.
    """

    def __init__(
        self, header: Header, encode: Any, directory: Path, lock: JournalLock, files: Files, clock: Callable[[], float]
    ) -> None:
        self.path = directory
        self.seq = max(header.first_seq - 1, 0)
        self.unwritten: tuple[bytes, str] | None = None
        self._header = header
        self._encode = encode
        self._directory = directory
        self._lock = lock
        self._files = files
        self._clock = clock
        self._write = files.write
        self._chain = bytes.fromhex(header.chain)
        self._crc = 0
        self._fd = -1
        self._records = 0
        self._seal_bytes = self._seal_records = 1 << 62
        self._told = self._closed = False
        self._sealer = Sealer(files)
        self._tail = Durability(directory, files, 1.0)
        forget_in_children(self)

    @classmethod
    def create(
        cls,
        directory: Path | str,
        *,
        run_id: str,
        rank: int = 0,
        incarnation: int = 0,
        first_seq: int = 0,
        chain: str = "0" * 16,
        parent: Position | None = None,
        machine: str = "",
        state_class: type = TrainerState,
        limits: tuple[str, ...] | None = None,
        events: Iterable[type] | None = None,
        lock: JournalLock | None = None,
        files: Files | None = None,
        clock: Callable[[], float] = time.time,
        seal_bytes: int = 64 << 20,
        seal_records: int = 1 << 18,
        sync_every: float = 1.0,
    ) -> JournalWriter:
        """Open a new incarnation of a journal.

        Args:
            directory: the run directory.
            run_id: the run's id, the same in all its incarnations.
            rank: whose journal.
            incarnation: 0 for a new run; one more than the newest for a resumed one.
            first_seq: the first transition it will hold; 0 for a new run. Taken from `parent` where that is given.
            chain: the chain before it, likewise.
            parent: the position this incarnation goes on from.
            machine: the digest of the machine's table.
            state_class: the class of the states.
            limits: its last fields that are no part of the chain; None means `TrainerState`'s, or the class's LIMITS.
            events: the machine's event classes, whose fields are left out of a record while they hold their default;
                None means the training machine's.
            lock: the journal's lock where the caller holds it already (recovery needs it); the writer takes it over.
            files: the layer below.
            clock: seconds since 1970.
            seal_bytes: a segment of this many bytes is sealed and the next one opened.
            seal_records: a segment of this many transitions likewise.
            sync_every: seconds between two syncs to the disk.

        Raises:
            JournalBusy: another writer holds this journal.
            JournalError: this incarnation has been written already.
            JournalWriteError: the first segment can't be written.
        """
        directory = Path(directory)
        if parent is not None:
            first_seq, chain = parent.seq + 1, parent.chain
        limits = limits_of(state_class) if limits is None else limits
        defaults = defaults_of(TRAINING_EVENTS if events is None else events)
        encode = encoder(state_class, limits, defaults)
        header = Header(
            format=FORMAT, run=run_id, rank=rank, incarnation=incarnation, first_seq=first_seq, chain=chain, parent=parent,
            machine=machine, previous=None, state=state_class.__name__, schema=SCHEMA, limits=limits,
            defaults=defaults, time=0.0,
        )  # fmt: skip
        lock = JournalLock(directory, rank=rank) if lock is None else lock
        try:
            self = cls(header, encode, rank_directory(directory, rank), lock, files or Files(), clock)
        except OSError as error:
            raise JournalWriteError.of(rank_directory(directory, rank), error) from error
        self._seal_bytes, self._seal_records, self._tail.every = seal_bytes, seal_records, sync_every
        try:
            self._begin(directory)
        except BaseException:
            self.abandon()
            raise
        return self

    def _begin(self, run_dir: Path) -> None:
        try:
            left = clean(self._files, self._directory)
            self._open_segment(self._header)
            self._files.fsync_dir(self._directory.parent)
            self._files.fsync_dir(run_dir)
        except FileExistsError:
            raise JournalError(
                f"{self.path} exists already: recover the journal, then open the next incarnation"
            ) from None
        except OSError as error:
            raise JournalWriteError.of(self.path, error) from error
        self._raise_failure()
        for path in left:
            self._sealer.add(path)

    def _open_segment(self, header: Header) -> None:
        """Create a segment and write its header; only then it becomes the one that is written."""
        path = self._directory / segment_name(header.first_seq, header.incarnation)
        line, crc = side_line("opened", self.seq, header_data(header), 0, self._clock())
        self.path = path
        fd = self._files.open_append(path)
        try:
            write_all(self._files, fd, line)
            self._files.fsync_dir(self._directory)
        except BaseException:
            self._files.close(fd)
            raise
        self._tail.switch(path, fd, (len(line), self.seq))
        self._fd, self._crc, self._records = fd, crc, 0
        self._tail.flush()

    @property
    def chain(self) -> str:
        """The chain after the last transition committed, as 16 hex digits."""
        return self._chain.hex()

    @property
    def failure(self) -> JournalWriteError | None:
        """Why this writer takes nothing any more; None while it works. The next `append` raises it."""
        return self._tail.failure

    def append(self, source: str, event: Any, state: Any) -> None:
        """Commit one transition.

        Args:
            source: the name of the state it left.
            event: what happened.
            state: the state after it.

        Raises:
            JournalWriteError: it isn't committed, and neither will be any other: see `unwritten`.
            JournalError: its number isn't the next one, or it holds what a record can't; nothing was written.
        """
        seq = state.seq
        if seq != self.seq + 1:
            raise JournalError(f"transition {seq} can't follow {self.seq} in {self.path}")
        line, chain, crc = self._encode(source, event, state, self._chain, self._crc, self._clock())
        if self._put(line, chain, crc, seq) >= self._seal_bytes or self._records >= self._seal_records:
            self._seal()

    def _put(self, line: bytes, chain: bytes, crc: int, seq: int) -> int:
        """Hand a line to the kernel; return the segment's size. All or nothing, also when Ctrl-C strikes inside."""
        tail = self._tail
        if tail.failure is not None:
            self._refuse(line, chain, seq)
        size = tail.at[0]
        try:
            taken = self._write(self._fd, line)
            if taken != len(line):
                write_all(self._files, self._fd, line[taken:])
            size += len(line)
            self._records += seq != self.seq
            self._chain, self._crc, self.seq, tail.at = chain, crc, seq, (size, seq)
        except OSError as error:
            tail.failure = JournalWriteError.of(self.path, error)
            self._refuse(line, chain, seq)
        except BaseException:
            self._settle(line, chain, crc, seq)
            raise
        if not tail.dirty:
            tail.touch()
        return size

    def _refuse(self, line: bytes, chain: bytes, seq: int) -> NoReturn:
        if self.unwritten is None and seq != self.seq:
            self.unwritten = (line, chain.hex())
        self._told = True
        assert self._tail.failure is not None
        raise self._tail.failure

    def _settle(self, line: bytes, chain: bytes, crc: int, seq: int) -> None:
        """After an interruption, ask the file whether the line was written, and stand where it stands."""
        written = os.fstat(self._fd).st_size - self._tail.at[0]
        if written == len(line):
            self._records += seq != self.seq
            self._chain, self._crc, self.seq = chain, crc, seq
            self._tail.at = (self._tail.at[0] + len(line), seq)
        elif written and self._tail.failure is None:
            self._tail.failure = JournalWriteError(self.path, "a write was interrupted half way")

    def rewrite(self, line: bytes, chain: str) -> None:
        """Commit a record that an earlier incarnation couldn't write; see `unwritten`.

        Args:
            line: its line; the checksum is computed anew for this segment.
            chain: the chain after it.

        Raises:
            JournalWriteError: as `append`.
        """
        body = line.rstrip(b"\n")[:-TAIL]
        seq = int(body[7 : body.index(b",")])
        if seq != self.seq + 1:
            raise JournalError(f"transition {seq} can't follow {self.seq} in {self.path}")
        line, crc = sealed(body, self._crc)
        self._put(line, bytes.fromhex(chain), crc, seq)

    def side(self, kind: str, /, **data: Any) -> None:
        """Write a side record: a fact about the run that is no transition and no part of the chain.

        Raises:
            JournalWriteError: as `append`.
        """
        line, crc = side_line(kind, self.seq, data, self._crc, self._clock())
        self._put(line, self._chain, crc, self.seq)

    def sync(self, wait: bool = True) -> None:
        """Have everything written so far brought to the disk.

        Args:
            wait: return only when it is there; False asks for it soon.

        Raises:
            JournalWriteError: it isn't there and never will be (`wait` only).
        """
        if not wait:
            self._tail.hurry()
            return
        if self._tail.dirty or self._tail.failure is not None:
            self._tail.flush()
        self._raise_failure()

    def _raise_failure(self) -> None:
        if self._tail.failure is not None:
            self._told = True
            raise self._tail.failure

    def _seal(self) -> None:
        """End this segment and open the next. The record before is committed: an error waits for the next one."""
        path, following, told = self.path, segment_name(self.seq + 1, self._header.incarnation), self._told
        with contextlib.suppress(JournalWriteError):  # kept in `failure`
            self.side("sealed", records=self._records, chain=self.chain, next=following)
            self._tail.flush()
            self._raise_failure()
            previous = {"file": path.name, "crc": f"{self._crc:08x}"}
            header = attrs.evolve(self._header, first_seq=self.seq + 1, chain=self.chain, previous=previous)
            try:
                self._open_segment(header)
                self._sealer.add(path)
            except OSError as error:
                self._tail.failure = JournalWriteError.of(self.path, error)
        self._told = told

    def close(self) -> None:
        """End this incarnation: everything is on the disk, the footer says so, and the lock is free.

        Raises:
            JournalWriteError: something failed and nobody was told yet.
        """
        if self._closed:
            return
        self._sealer.join()
        told = self._told
        try:
            with contextlib.suppress(JournalWriteError):  # kept in `failure`
                for error in self._sealer.errors:
                    self.side("noted", text=error)
                self.side("closed", records=self._records, chain=self.chain)
            self._tail.flush()
        finally:
            failure = self._tail.failure
            self._release()
        self._tail.join()
        if failure is not None and not told:
            self._told = True
            raise failure

    def abandon(self) -> None:
        """Let go of everything as it is, as if the process had been killed; what the kernel has stays."""
        self._release()

    def _release(self) -> None:
        if not self._closed:
            self._closed = True
            if self._tail.failure is None:
                self._tail.failure = JournalWriteError(self.path, "this writer is closed")
            self._tail.stop()
            self._lock.release()

    def forked(self) -> None:
        """In a forked child this writer is another process's: nothing more is written from here."""
        self._closed = self._told = True
        self._tail.forked(JournalWriteError(self.path, f"this writer belongs to process {os.getppid()}"))

    def __enter__(self) -> JournalWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_tail", None) is not None:
            self.abandon()
