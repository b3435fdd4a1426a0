"""The guard that keeps a journal to one writer: `flock` on a small file, held as long as the writer lives.

The kernel drops it when its process ends, however it ends. A process forked off inherits the open file and would
hold the lock on, so the files are closed in every child.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import weakref
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Protocol

import msgspec

from .errors import JournalBusy, JournalWriteError
from .files import LOCK, rank_directory


class _Forkable(Protocol):
    def forked(self) -> None: ...


_open: weakref.WeakSet[Any] = weakref.WeakSet()
_registered: list[int] = []


def forget_in_children(owner: _Forkable) -> None:
    """Have `owner.forked()` called in every process that is forked off this one, as long as `owner` lives."""
    if not _registered:
        _registered.append(os.getpid())
        os.register_at_fork(after_in_child=_forked)
    _open.add(owner)


def _forked() -> None:
    for owner in list(_open):
        owner.forked()


class JournalLock:
    """The right to write one rank's journal; held from construction to `release`.

    Args:
        run_dir: the run directory; the rank's directory is created where it doesn't exist.
        rank: whose journal.

    Raises:
        JournalBusy: another writer holds it; it names that writer's process and machine.
        JournalWriteError: the directory can't be made.
    """

    def __init__(self, run_dir: Path | str, *, rank: int = 0) -> None:
        directory = rank_directory(Path(run_dir), rank)
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise JournalWriteError.of(directory, error) from error
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            note = os.pread(self._fd, 4096, 0)
            os.close(self._fd)
            self._fd = -1
            if not isinstance(error, BlockingIOError):
                raise
            raise JournalBusy(directory, *_read(note)) from None
        now = datetime.now(timezone.utc).isoformat(timespec="seconds")
        note = msgspec.json.encode({"pid": os.getpid(), "host": socket.gethostname(), "since": now}) + b"\n"
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, note, 0)
        forget_in_children(self)

    @property
    def held(self) -> bool:
        """Whether this object still holds the lock."""
        return self._fd >= 0

    def release(self) -> None:
        """Let the next writer in. A second call does nothing."""
        fd, self._fd = getattr(self, "_fd", -1), -1
        if fd >= 0:
            os.close(fd)

    def forked(self) -> None:
        """Close the file in a forked child; the parent's lock stays."""
        self.release()

    def __del__(self) -> None:
        with contextlib.suppress(OSError):
            self.release()


def _read(note: bytes) -> tuple[int | None, str, str]:
    try:
        found = msgspec.json.decode(note)
        return int(found["pid"]), str(found["host"]), str(found["since"])
    except (msgspec.DecodeError, KeyError, TypeError, ValueError):
        return None, "", ""
