"""A new file that knows the size and the digest of what was written to it."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from types import TracebackType
from typing import Any


class HashedFile:
    """A file that is created, written once and brought to the disk, within a `with` block.

    The first error of the disk is kept, what comes after it is let fall, and the block's end raises it: a library that
    writes through C++ would turn it into something else, or end the process.

    Args:
        path: the file; it must not exist.

    Attributes:
        size: bytes written.

    Raises:
        OSError: it can't be created; or, at the end of the block, not be written whole.
    """

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        self._hash = hashlib.blake2b(digest_size=16)
        self._error: OSError | None = None
        self.size = 0

    def write(self, data: Any) -> int:
        """Write bytes, all of them; return how many."""
        view = memoryview(data).cast("B")
        self._hash.update(view)
        self.size += view.nbytes
        if self._error is None:
            try:
                left = view
                while left:
                    left = left[os.write(self._fd, left) :]
            except OSError as error:
                self._error = error
        return view.nbytes

    def flush(self) -> None:
        """Do nothing: nothing is held back."""

    @property
    def digest(self) -> str:
        """blake2b of what was written, with 16 bytes, as hex."""
        return self._hash.hexdigest()

    def __enter__(self) -> HashedFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        try:
            if self._error is not None:
                raise self._error
            if error is None:
                os.fsync(self._fd)
        finally:
            os.close(self._fd)


def write_bytes(raw: bytes, path: Path) -> tuple[int, str]:
    """Write a new file and bring it to the disk; return its size and its digest."""
    with HashedFile(path) as file:
        file.write(raw)
    return file.size, file.digest
