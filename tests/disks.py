"""Disks that fail: what this process does to the files below a directory, operation by operation, can be struck.

The system's own calls are replaced, so whoever writes is met: the journal's and the snapshots' files, and drivers.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

Strike = Callable[[str, str, bytes], None]
"""`strike(operation, path, data)`, called before each one; it may raise, write some of it, or end the process."""


@contextmanager
def disk(below: Path, strike: Strike) -> Iterator[None]:
    """Call `strike` before everything that changes the disk below a directory.

    The operations are "create", "write", "sync", "mkdir", "rename", "unlink" and "rmdir".
    """
    root, real = str(below), {name: getattr(os, name) for name in _NAMES}

    def met(operation: str, path: str, data: bytes = b"") -> None:
        if path.startswith(root):
            strike(operation, path, data)

    def opened(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> Any:
        if flags & os.O_CREAT:
            met("create", _path(path, dir_fd))
        return real["open"](path, flags, mode, dir_fd=dir_fd)

    def write(fd: int, data: Any) -> Any:
        met("write", _path("", fd), bytes(data))
        return real["write"](fd, data)

    def plain(name: str, operation: str) -> Callable[..., Any]:
        def call(path: Any, *given: Any, dir_fd: int | None = None, **named: Any) -> Any:
            met(operation, _path("", path) if isinstance(path, int) else _path(path, dir_fd))
            named |= {} if dir_fd is None else {"dir_fd": dir_fd}
            return real[name](path, *given, **named)

        return call

    patches = {"open": opened, "write": write}
    patches |= {name: plain(name, operation) for name, operation in _NAMES.items() if operation}
    # rmtree asks whether these can work relative to a directory, by identity
    with patch.multiple(os, **patches), patch.object(os, "supports_dir_fd", {*os.supports_dir_fd, *patches.values()}):
        yield


_NAMES = {
    "open": "", "write": "", "fsync": "sync", "fdatasync": "sync", "mkdir": "mkdir", "replace": "rename",
    "unlink": "unlink", "rmdir": "rmdir",
}  # fmt: skip


def _path(path: Any, fd: int | None) -> str:
    above = "" if fd is None else os.readlink(f"/proc/self/fd/{fd}")
    return os.path.join(above, os.fspath(path)) if os.fspath(path) else above


class Recording:
    """Notes what was done, as (operation, path).

    Args:
        root: the run directory.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.done: list[tuple[str, str]] = []
        self.sizes: list[int] = []

    def __call__(self, operation: str, path: str, data: bytes) -> None:
        self.done.append((operation, path))
        self.sizes.append(len(data))


class Failing:
    """Fails at the n-th operation, or with `for_good` from there on.

    Args:
        n: which, from 0.
        number: the system's error.
        for_good: the disk doesn't recover.
        but: operations that never fail: a full disk can be tidied.
    """

    def __init__(
        self, n: int, number: int, *, for_good: bool = False, but: tuple[str, ...] = ("unlink", "rmdir")
    ) -> None:
        self.n, self.number, self.for_good, self.but = n, number, for_good, but
        self.struck: tuple[str, str] | None = None

    def __call__(self, operation: str, path: str, data: bytes) -> None:
        if operation in self.but:
            return
        self.n -= 1
        if self.n == -1 or (self.for_good and self.n < 0):
            self.struck = self.struck or (operation, path)
            raise OSError(self.number, os.strerror(self.number))


class Killing:
    """Ends the process by SIGKILL before the n-th operation."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __call__(self, operation: str, path: str, data: bytes) -> None:
        self.n -= 1
        if self.n == -1:
            os.kill(os.getpid(), signal.SIGKILL)


class KillingAfter:
    """Ends the process by SIGKILL when n bytes were written, in the middle of a write where they end there."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __call__(self, operation: str, path: str, data: bytes) -> None:
        if operation != "write":
            return
        if len(data) > self.n:
            with open(path, "ab", 0) as file:
                file.write(data[: self.n])
            os.kill(os.getpid(), signal.SIGKILL)
        self.n -= len(data)
