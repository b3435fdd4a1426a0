"""`Output`: the segment that is being written, and how far it got. All or nothing, line by line.

A line counts once the kernel took all of it; several may be handed over at once. A write that failed is never tried
again, since nobody knows what a second one would mean; and Ctrl-C inside a write leaves a line done or not done, never
in doubt.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from .background import Background
from .durable import Durability
from .errors import JournalWriteError
from .files import Files, write_all

Line = tuple[bytes, bytes, int, int]
"""(bytes, the chain after it, its checksum, the last transition then)."""


class Output:
    """Takes the lines of one incarnation, segment after segment.

    Attributes:
        path: the segment being written.
        seq: the last transition committed.
        chain: the chain after it.
        crc: the checksum of the last line.
        unwritten: (line, chain) of each transition that a failure kept from being committed.
        told: a caller has been given the failure.
        tail: brings the segment to the disk; it also keeps the failure.
    """

    def __init__(
        self, directory: Path, seq: int, chain: str, files: Files, sync_every: float, background: Background
    ) -> None:
        self.path = directory
        self.seq = seq
        self.chain = bytes.fromhex(chain)
        self.crc = 0
        self._before = seq  # the last transition of the segment before
        self.unwritten: list[tuple[bytes, str]] = []
        self.told = False
        self.tail = Durability(directory, files, sync_every, background)
        self._files = files
        self._write = files.write
        self._fd = -1

    def open(self, path: Path, line: bytes, crc: int) -> None:
        """Create a segment with its header's line; only then it becomes the one that is written.

        Raises:
            OSError: it can't be created.
        """
        self.path = path
        fd = self._files.open_append(path)
        try:
            write_all(self._files, fd, line)
            self._files.fsync_dir(path.parent)
        except BaseException:
            self._files.close(fd)
            raise
        self.tail.switch(path, fd, (len(line), self.seq))
        self._fd, self.crc, self._before = fd, crc, self.seq
        self.tail.flush()

    @property
    def records(self) -> int:
        """How many transitions are in this segment."""
        return self.seq - self._before

    def put(self, *lines: Line) -> int:
        """Hand lines to the kernel, in one call; return the segment's size.

        Raises:
            JournalWriteError: they weren't all taken; neither will be any other.
        """
        tail = self.tail
        if tail.failure is not None:
            self._refuse(lines)
        data = lines[0][0] if len(lines) == 1 else b"".join([line for line, *_ in lines])
        try:
            taken = self._write(self._fd, data)
            if taken != len(data):
                write_all(self._files, self._fd, data[taken:])
            size = tail.at[0] + len(data)
            _, self.chain, self.crc, seq = lines[-1]
            self.seq, tail.at = seq, (size, seq)
        except OSError as error:
            tail.failure = JournalWriteError.of(self.path, error)
            self._refuse(self._settle(lines))
        except BaseException:
            self._settle(lines)
            raise
        if not tail.dirty:
            tail.touch()
        return size

    def _refuse(self, lines: Sequence[Line]) -> NoReturn:
        if not self.unwritten:
            self.unwritten = [(line, chain.hex()) for line, chain, _, seq in lines if seq > self.seq]
        self.told = True
        assert self.tail.failure is not None
        raise self.tail.failure

    def _settle(self, lines: Sequence[Line]) -> list[Line]:
        """Ask the file how much was written of lines, and stand where it stands; return those that aren't in it."""
        left, size = list(lines), self.tail.at[0]
        try:
            written = os.fstat(self._fd).st_size - size
        except OSError as error:  # the disk is gone altogether
            self.tail.failure = self.tail.failure or JournalWriteError.of(self.path, error)
            return left
        while left and written >= len(left[0][0]):
            line, self.chain, self.crc, self.seq = left.pop(0)
            written, size = written - len(line), size + len(line)
            self.tail.at = (size, self.seq)
        if written and self.tail.failure is None:
            self.tail.failure = JournalWriteError(self.path, "a write was interrupted half way")
        return left

    def raise_failure(self) -> None:
        """Raise the failure, if there is one."""
        if self.tail.failure is not None:
            self.told = True
            raise self.tail.failure
