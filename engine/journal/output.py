"""`Output`: the segment that is being written, and how far it got. All or nothing, line by line.

A line counts once the kernel took all of it. A write that failed is never tried again, since nobody knows what a
second one would mean; and Ctrl-C inside a write leaves it done or not done, never in doubt.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NoReturn

from .background import Background
from .durable import Durability
from .errors import JournalWriteError
from .files import Files, write_all


class Output:
    """Takes the lines of one incarnation, segment after segment.

    Attributes:
        path: the segment being written.
        seq: the last transition committed.
        chain: the chain after it.
        crc: the checksum of the last line.
        unwritten: (line, chain) of the first transition that a failure kept from being committed.
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
        self.unwritten: tuple[bytes, str] | None = None
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

    def put(self, line: bytes, chain: bytes, crc: int, seq: int) -> int:
        """Hand a line to the kernel; return the segment's size.

        Raises:
            JournalWriteError: it wasn't taken; neither will be any other.
        """
        tail = self.tail
        if tail.failure is not None:
            self._refuse(line, chain, seq)
        size = tail.at[0]
        try:
            taken = self._write(self._fd, line)
            if taken != len(line):
                write_all(self._files, self._fd, line[taken:])
            size += len(line)
            self.chain, self.crc, self.seq, tail.at = chain, crc, seq, (size, seq)
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
        self.told = True
        assert self.tail.failure is not None
        raise self.tail.failure

    def _settle(self, line: bytes, chain: bytes, crc: int, seq: int) -> None:
        """After an interruption, ask the file whether the line was written, and stand where it stands."""
        size = self.tail.at[0]
        written = os.fstat(self._fd).st_size - size
        if written == len(line):
            self.chain, self.crc, self.seq, self.tail.at = chain, crc, seq, (size + len(line), seq)
        elif written and self.tail.failure is None:
            self.tail.failure = JournalWriteError(self.path, "a write was interrupted half way")

    def raise_failure(self) -> None:
        """Raise the failure, if there is one."""
        if self.tail.failure is not None:
            self.told = True
            raise self.tail.failure
