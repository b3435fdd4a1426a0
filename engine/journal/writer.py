"""`JournalWriter`: commits transitions. Each is a line that one `write(2)` hands to the kernel, and nothing else.

A record is committed when the kernel has it: a killed process loses none. Where steps follow each other within less
than a millisecond, theirs take a shorter way to the kernel, and lines are made of several at a time (`holding`).
The disk is waited for elsewhere (`durable`), and what a failure means is settled below (`output`).
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import attrs

from tachograph.states import TrainerState
from tachograph.states.trainer_state import SCHEMA

from .background import Background
from .codec import TAIL, TRAINING_EVENTS, Encode, defaults_of, encoder, limits_of, sealed, side_line
from .errors import JournalError, JournalWriteError
from .files import Files, rank_directory, segment_name
from .header import FORMAT, Header, Position, header_data
from .holding import Holding
from .lock import JournalLock, forget_in_children
from .output import Line, Output
from .sealing import Sealer, clean

SEAL_RECORDS = 1 << 18
"""Transitions in a segment that is full."""


class JournalWriter:
    """Writes one incarnation of one rank's journal. Made by `JournalWriter.create`."""

    def __init__(
        self,
        header: Header,
        encode: Encode,
        output: Output,
        lock: JournalLock,
        files: Files,
        clock: Callable[[], float],
        seal: tuple[int, int],
        sealer: Sealer,
        holding: Holding,
    ) -> None:
        self._header = header
        self._encode = encode
        self._output = output
        self._lock = lock
        self._files = files
        self._clock = clock
        self._seal_bytes, self._seal_records = seal
        self._seal_at = 0  # the transition at which the segment is full
        self._sealer = sealer
        self._holding = holding
        self._held: list[tuple[str, Any, Any, float]] = holding.held
        self._closed = False
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
        state_class: type[Any] = TrainerState,
        limits: tuple[str, ...] | None = None,
        events: Iterable[type] | None = None,
        lock: JournalLock | None = None,
        files: Files | None = None,
        clock: Callable[[], float] = time.time,
        background: Background | None = None,
        seal_bytes: int = 64 << 20,
        seal_records: int = SEAL_RECORDS,
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
            events: the machine's event classes; a record leaves out their flags, texts and lists while these hold
                their default, which the header names. None means the training machine's.
            lock: the journal's lock where the caller holds it already (recovery needs it); the writer takes it over.
            files: the layer below.
            clock: seconds since 1970.
            background: syncs and compresses beside the run.
            seal_bytes: a segment of this many bytes is sealed and the next one opened.
            seal_records: a segment of this many transitions likewise.
            sync_every: seconds between two syncs to the disk.

        Raises:
            JournalBusy: another writer holds this journal.
            JournalError: this incarnation has been written already.
            JournalWriteError: the first segment can't be written.
        """
        run_dir, files, background = Path(directory), files or Files(), background or Background()
        if parent is not None:
            first_seq, chain = parent.seq + 1, parent.chain
        limits = limits_of(state_class) if limits is None else limits
        defaults = defaults_of((state_class, *(TRAINING_EVENTS if events is None else events)), limits)
        encode = encoder(state_class, limits, defaults)
        header = Header(
            format=FORMAT, run=run_id, rank=rank, incarnation=incarnation, first_seq=first_seq, chain=chain,
            parent=parent, machine=machine, previous=None, state=state_class.__name__, schema=SCHEMA, limits=limits,
            defaults=defaults, time=0.0,
        )  # fmt: skip
        lock = JournalLock(run_dir, rank=rank) if lock is None else lock
        where = rank_directory(run_dir, rank)
        try:
            output = Output(where, max(first_seq, 1) - 1, chain, files, sync_every, background)
        except BaseException as error:
            lock.release()
            if isinstance(error, OSError):
                raise JournalWriteError.of(where, error) from error
            raise
        sealer, holding = Sealer(files, background), Holding(where, state_class, files)
        self = cls(header, encode, output, lock, files, clock, (seal_bytes, seal_records), sealer, holding)
        try:
            self._begin(run_dir, where)
        except BaseException:
            self.abandon()
            raise
        return self

    def _begin(self, run_dir: Path, where: Path) -> None:
        try:
            left = clean(self._files, where)
            self._open_segment(where, self._header)
            self._files.fsync_dir(where.parent)
            self._files.fsync_dir(run_dir)
        except FileExistsError:
            path = self._output.path
            raise JournalError(f"{path} exists: recover the journal and open its next incarnation") from None
        except OSError as error:
            raise JournalWriteError.of(self._output.path, error) from error
        self._output.raise_failure()
        for path in left:
            self._sealer.add(path)

    def _open_segment(self, directory: Path, header: Header) -> None:
        line, crc = side_line("opened", self.seq, header_data(header), 0, self._clock())
        self._output.open(directory / segment_name(header.first_seq, header.incarnation), line, crc)
        self._seal_at = self._output.seq + self._seal_records
        self._holding.state = None  # a file begins with a line that says everything

    @property
    def seq(self) -> int:
        """The last transition committed."""
        return self._held[-1][2].seq if self._held else self._output.seq

    @property
    def chain(self) -> str:
        """The chain after the last transition committed, as 16 hex digits.

        Raises:
            JournalWriteError: what was held back can't be written.
        """
        self.flush()
        return self._output.chain.hex()

    @property
    def path(self) -> Path:
        """The segment being written."""
        return self._output.path

    @property
    def failure(self) -> JournalWriteError | None:
        """Why this writer takes nothing any more; None while it works. The next `append` raises it."""
        return self._output.tail.failure

    @property
    def unwritten(self) -> list[tuple[bytes, str]]:
        """(line, chain) of each record that a failure kept from the journal, oldest first."""
        if self.failure is not None:
            with contextlib.suppress(JournalWriteError):
                self.flush()  # what is held can't be written either
        return self._output.unwritten

    def append(self, source: str, event: Any, state: Any) -> None:
        """Commit one transition.

        If something like Ctrl-C is raised inside, `seq` says whether the transition was committed.

        Args:
            source: the name of the state it left.
            event: what happened.
            state: the state after it.

        Raises:
            JournalWriteError: it isn't committed, and neither will be any other: see `unwritten`.
            JournalError: its number isn't the next one, or it holds what a record can't; nothing was written.
        """
        output, seq, now = self._output, state.seq, self._clock()
        if seq != self.seq + 1:
            raise JournalError(f"transition {seq} can't follow {self.seq} in {output.path}")
        self._holding.passed(state, now)
        if self._held:
            self._held.append((source, event, state, now))
            self.flush()
            return
        line, chain, crc = self._encode(source, event, state, output.chain, output.crc, now)
        if output.put((line, chain, crc, seq)) >= self._seal_bytes or seq >= self._seal_at:
            self._seal()

    def hold(self, source: str, event: Any, before: Any, state: Any) -> None:
        """Commit one transition that may be held; see `Holding`.

        Args:
            source: the name of the state it left.
            event: what happened; a fold of its own fields and of `before` only, in plain data.
            before: the state before it.
            state: the state after it.

        Raises:
            JournalWriteError, JournalError: as `append`.
        """
        holding, now = self._holding, self._clock()
        if self._output.tail.failure is not None or state.seq >= self._seal_at:
            self.append(source, event, state)
        elif holding.take(source, event, before, state, now, self._output.crc):
            if holding.is_full(now):
                self.flush()
        else:
            self.append(source, event, state)

    def flush(self) -> None:
        """Make lines of what is held.

        Raises:
            JournalWriteError: they can't be written; see `unwritten`.
            JournalError: the last of them holds what a record can't; the others are written.
        """
        held, output, encode = self._held, self._output, self._encode
        while held and held[0][2].seq <= output.seq:  # Ctrl-C came right after they were written
            del held[0]
        if not held:
            return
        lines: list[Line] = []
        chain, crc, fault = output.chain, output.crc, None
        for source, event, state, at in held:
            try:
                line, chain, crc = encode(source, event, state, chain, crc, at)
            except Exception as error:
                fault = error
                break
            lines.append((line, chain, crc, state.seq))
        try:
            size = output.put(*lines) if lines else 0
        finally:  # of an interrupted write, what isn't in the file is held on
            gone = fault is not None or output.tail.failure is not None
            held[:] = [] if gone else [one for one in held if one[2].seq > output.seq]
            self._holding.begin()
        if size >= self._seal_bytes or output.seq >= self._seal_at:
            self._seal()
        if fault is not None:
            raise fault

    def rewrite(self, line: bytes, chain: str) -> None:
        """Commit a record that an earlier incarnation couldn't write; see `unwritten`.

        Args:
            line: its line; the checksum is computed anew for this segment.
            chain: the chain after it.

        Raises:
            JournalError: as `append`, a `JournalWriteError` included.
        """
        self.flush()
        output, body = self._output, line.rstrip(b"\n")[:-TAIL]
        seq = int(body[7 : body.index(b",")])
        if seq != output.seq + 1:
            raise JournalError(f"transition {seq} can't follow {output.seq} in {output.path}")
        line, crc = sealed(body, output.crc)
        output.put((line, bytes.fromhex(chain), crc, seq))

    def side(self, kind: str, /, **data: Any) -> None:
        """Write a side record: a fact about the run that is no transition and no part of the chain.

        Raises:
            JournalWriteError: as `append`.
            JournalError: `data` holds what it can't.
        """
        self.flush()
        output = self._output
        line, crc = side_line(kind, output.seq, data, output.crc, self._clock())
        output.put((line, output.chain, crc, output.seq))

    def remark(self, kind: str, /, **data: Any) -> None:
        """Write a side record on the transition just committed, which stays so: a failure waits for the next append."""
        told = self._output.told
        with contextlib.suppress(JournalWriteError):  # kept in `failure`
            self.side(kind, **data)
        self._output.told = told

    def sync(self, wait: bool = True) -> None:
        """Have all lines so far brought to the disk; may be called from any thread, while others are made.

        Args:
            wait: return only when it is there; False asks for it soon.

        Raises:
            JournalWriteError: it isn't there and never will be (`wait` only).
        """
        if not wait:
            self._output.tail.hurry()
            return
        self._output.tail.flush()
        self._output.raise_failure()

    def _seal(self) -> None:
        """End this segment and open the next. The record before is committed: an error waits for the next one."""
        try:
            self._open_next()
        except BaseException:  # Ctrl-C: nobody knows which file is the one to go on with
            if self.failure is None:
                self._output.tail.failure = JournalWriteError(self.path, "the change to the next file was interrupted")
            raise

    def _open_next(self) -> None:
        output, told = self._output, self._output.told
        path, following = output.path, segment_name(output.seq + 1, self._header.incarnation)
        with contextlib.suppress(JournalWriteError):  # kept in `failure`
            self.side("sealed", records=output.records, chain=self.chain, next=following)
            output.tail.flush()
            output.raise_failure()
            previous = {"file": path.name, "crc": f"{output.crc:08x}"}
            header = attrs.evolve(self._header, first_seq=output.seq + 1, chain=self.chain, previous=previous)
            try:
                self._open_segment(path.parent, header)
                self._sealer.add(path)
            except OSError as error:
                output.tail.failure = JournalWriteError.of(output.path, error)
        output.told = told

    def close(self) -> None:
        """End this incarnation: everything is on the disk, the footer says so, and the lock is free.

        Raises:
            JournalWriteError: something failed and nobody was told yet.
        """
        if self._closed:
            return
        self._sealer.join()
        output, told = self._output, self._output.told
        try:
            with contextlib.suppress(JournalWriteError):  # kept in `failure`
                self.flush()
                for error in self._sealer.errors:
                    self.side("noted", text=error)
                self.side("closed", records=output.records, chain=self.chain)
            output.tail.flush()
        finally:
            failure = output.tail.failure
            self._holding.close(remove=failure is None and not self._held)
            self.abandon()
        output.tail.join()
        if failure is not None and not told:
            raise failure

    def abandon(self) -> None:
        """Let go of everything as it is, as if the process had been killed; what the kernel has stays."""
        if self._closed:
            return
        self._closed = True
        if self._output.tail.failure is None:
            self._output.tail.failure = JournalWriteError(self.path, "this writer is closed")
        self._output.tail.stop()
        self._holding.close()
        self._lock.release()

    def forked(self) -> None:
        """In a forked child this writer is another process's: nothing more is written from here."""
        self._closed = True
        self._holding.close()
        self._output.tail.forked(JournalWriteError(self.path, f"this writer belongs to process {os.getppid()}"))

    def __enter__(self) -> JournalWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_closed"):
            self.abandon()
