"""What is known to be on the disk: how the journal is synced, and the mark that says how far it got.

The writer hands its records to the kernel and goes on; one thread waits for the disk, about once a second while
there is something new. After each sync the mark (file, bytes, seq) is rewritten in place. Recovery never cuts
below it.
"""

from __future__ import annotations

import builtins
import threading
from pathlib import Path

import attrs
import msgspec

from .background import Background
from .codec import sealed, stored_crc, to_json
from .errors import JournalCorrupt, JournalWriteError
from .files import MARK, Files

WIDTH = 192
"""Bytes of the mark, padded, so that it is one small write in place."""


@attrs.frozen
class Mark:
    """How far a journal is known to be on the disk.

    Attributes:
        file: the name of the segment, uncompressed.
        bytes: how many of its bytes are safe.
        seq: the last transition among them.
    """

    file: str
    bytes: int
    seq: int

    def line(self) -> builtins.bytes:
        """Return the mark as it stands in its file."""
        text, _ = sealed(to_json({"file": self.file, "bytes": self.bytes, "seq": self.seq})[:-1], 0)
        return text[:-1].ljust(WIDTH - 1) + b"\n"


def read_mark(directory: Path) -> Mark | None:
    """Read a rank's mark; None where nothing was ever synced, or power went before the mark itself was.

    Raises:
        JournalCorrupt: there is a mark, but it can't be read.
    """
    path = directory / MARK
    try:
        text = path.read_bytes().strip(b" \n\0")
    except FileNotFoundError:
        return None
    if not text:
        return None
    try:
        found = msgspec.json.decode(text)
        mark = Mark(found["file"], found["bytes"], found["seq"])
        if mark.line().rstrip() != text or stored_crc(text) is None:
            raise ValueError
    except (msgspec.DecodeError, KeyError, TypeError, ValueError):
        raise JournalCorrupt(
            path, 0, "the durable mark can't be read; delete it if it is all that is damaged"
        ) from None
    return mark


class Durability:
    """The syncing of one writer's open segment.

    The writer keeps `at` up to date and calls `touch` when it finds `dirty` false; all else happens here. It knows
    nothing of the writer, so that a forgotten writer can be collected.

    Attributes:
        at: (bytes, seq) of what was written to the open segment.
        dirty: something was written since the last sync began.
        failure: why a write or a sync failed; from then on nothing is written or synced.
        pulse: does the syncing.
    """

    def __init__(self, directory: Path, files: Files, every: float, background: Background) -> None:
        self.at = (0, 0)
        self.dirty = False
        self.failure: JournalWriteError | None = None
        self._files = files
        self._path = directory
        self._fd = -1
        self._mark_fd = files.open_update(directory / MARK)
        self._lock = threading.RLock()  # a collector that runs in the thread may call stop()
        self.pulse = background.pulse(self.flush, every, "tachograph-journal-sync")

    def switch(self, path: Path, fd: int, at: tuple[int, int]) -> None:
        """Go on with another segment, of which `at` is written; the one before is closed."""
        with self._lock:
            before, self._fd, self._path, self.at = self._fd, fd, path, at
        if before >= 0:
            self._files.close(before)

    def touch(self) -> None:
        """Say that there is something new to sync."""
        self.dirty = True
        self.pulse.ask()

    def hurry(self) -> None:
        """Have it synced now instead of at the end of its second."""
        if self.dirty:
            self.pulse.hurry()

    def flush(self) -> None:
        """Sync what is written so far, and mark it. A failure is kept in `failure`, never raised nor retried."""
        with self._lock:
            if self._fd < 0 or self.failure is not None:
                return
            self.dirty = False  # before `at` is read: what is written from now on finds it false, and touches
            size, seq = self.at
            try:
                self._files.fdatasync(self._fd)
                self._files.pwrite(self._mark_fd, Mark(self._path.name, size, seq).line(), 0)
            except OSError as error:
                self.failure = JournalWriteError.of(self._path, error)

    def stop(self) -> None:
        """End the thread and close the files, without a sync."""
        self.pulse.stop()
        with self._lock:
            fds = [fd for fd in (self._fd, self._mark_fd) if fd >= 0]
            self._fd = self._mark_fd = -1
        for fd in fds:
            self._files.close(fd)

    def join(self) -> None:
        """Wait for the thread's end, after `stop`."""
        self.pulse.join()

    def forked(self, reason: JournalWriteError) -> None:
        """Let go of everything in a forked child, where the thread doesn't exist and the lock may stand shut."""
        self._lock = threading.RLock()
        self.pulse.forget()
        self.failure = reason
        self.stop()
