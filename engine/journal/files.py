"""The files below journal and snapshots: a thin layer over `os`, and the names that a journal's files have.

The writer, the sealing, the recovery and the snapshots change the disk through a `Files` only, so that a subclass can
fail or stop at any single operation; that is how the tests play power cuts and full disks.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import re
import shutil
from pathlib import Path
from typing import Any, BinaryIO

_NAME = re.compile(r"(\d{12})\.i(\d+)\.jsonl(\.gz)?")

MARK = "durable.json"
HELD = "held.bin"
LOCK = "lock"
TEMPORARY = ".tmp"


def rank_directory(run_dir: Path, rank: int) -> Path:
    """Return the directory of one rank's journal."""
    return run_dir / "journal" / f"rank-{rank}"


def segment_name(first_seq: int, incarnation: int) -> str:
    """Return the name of a segment while it isn't compressed."""
    return f"{first_seq:012d}.i{incarnation}.jsonl"


def parse_name(name: str) -> tuple[int, int, bool] | None:
    """Read (first seq, incarnation, compressed) back from a file's name; None where it is no segment's."""
    match = _NAME.fullmatch(name)
    return (int(match[1]), int(match[2]), match[3] is not None) if match else None


class Files:
    """The operations on files that journal and snapshots need; nearly each is one call into the system."""

    def open_append(self, path: Path) -> int:
        """Create `path`, which must not exist, and open it for appending."""
        return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)

    def open_update(self, path: Path) -> int:
        """Open `path` for writing in place; it is created where it doesn't exist."""
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)

    def write(self, fd: int, data: bytes) -> int:
        """Write at the end; return how many bytes were taken. Interrupted calls are Python's to repeat."""
        return os.write(fd, data)

    def pwrite(self, fd: int, data: bytes, offset: int) -> int:
        """Write at `offset`; return how many bytes were taken."""
        return os.pwrite(fd, data, offset)

    def map(self, path: Path, size: int) -> Any:
        """Create a file of `size` zero bytes, or empty it, and return it as memory that the kernel keeps with it.

        Its blocks are written, not only promised: nothing that is stored later can find the disk full.
        """
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.ftruncate(fd, size)
            taken = os.pwrite(fd, bytes(size), 0)
            if taken != size:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            return mmap.mmap(fd, size)
        finally:
            os.close(fd)

    def fdatasync(self, fd: int) -> None:
        """Wait until the file's bytes are on the disk."""
        getattr(os, "fdatasync", os.fsync)(fd)  # macOS has fsync only

    def fsync_dir(self, path: Path) -> None:
        """Wait until a directory's entries are on the disk."""
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def truncate(self, fd: int, size: int) -> None:
        """Cut an open file to `size` bytes."""
        os.ftruncate(fd, size)

    def open_read(self, path: Path) -> BinaryIO:
        """Open `path` for reading from its beginning."""
        return open(path, "rb")

    def make_dir(self, path: Path) -> None:
        """Create a directory, whose parent must exist."""
        os.mkdir(path)

    def remove_tree(self, path: Path) -> None:
        """Delete a directory with all that is in it; what isn't there, or can't be deleted, is left."""
        shutil.rmtree(path, ignore_errors=True)

    def rename(self, source: Path, dest: Path) -> None:
        """Give a file another name; a file of that name is replaced. Or a directory, by a name that nobody has."""
        os.replace(source, dest)

    def unlink(self, path: Path) -> None:
        """Delete a file."""
        os.unlink(path)

    def close(self, fd: int) -> None:
        """Close an open file."""
        os.close(fd)


def write_all(files: Files, fd: int, data: bytes) -> None:
    """Write all of `data`, going on where the system took a part of it only.

    Raises:
        OSError: the system refused, or took nothing.
    """
    while data:
        taken = files.write(fd, data)
        if taken <= 0:
            raise OSError(5, "nothing was taken")
        data = data[taken:]


def write_file(files: Files, path: Path, data: bytes) -> None:
    """Create a file, which must not exist, with `data` in it; its bytes are on the disk, its name not yet.

    Raises:
        OSError: the system refused.
    """
    fd = files.open_append(path)
    try:
        write_all(files, fd, data)
        files.fdatasync(fd)
    finally:
        files.close(fd)


def make_dirs(files: Files, path: Path) -> None:
    """Create a directory, and those above it, where they are missing; then their names are on the disk.

    Raises:
        OSError: the system refused.
    """
    missing = [directory for directory in (path, *path.parents) if not directory.exists()]
    for directory in reversed(missing):
        with contextlib.suppress(FileExistsError):
            files.make_dir(directory)
        files.fsync_dir(directory.parent)
