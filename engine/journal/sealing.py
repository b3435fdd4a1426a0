"""Compressing sealed segments, off the hot path: a new file under a temporary name, checked, published, then the
plain one deleted. A crash between any two of these steps leaves a journal that reads the same.
"""

from __future__ import annotations

import contextlib
import gzip
import itertools
import threading
import zlib
from pathlib import Path

from .background import Background, Task
from .files import TEMPORARY, Files, write_all
from .segments import BLOCK, list_segments

_GZIP = 31  # zlib's word for a gzip header, which it writes without a time


def compress(files: Files, path: Path) -> None:
    """Replace a sealed segment by its `.gz`.

    Raises:
        OSError: it couldn't be written; the plain segment is still there.
    """
    packed = path.with_name(path.name + ".gz")
    temporary = packed.with_name(packed.name + TEMPORARY)
    with contextlib.suppress(FileNotFoundError):
        files.unlink(temporary)
    try:
        _pack_checked(files, path, temporary)
        files.rename(temporary, packed)
    except OSError:
        with contextlib.suppress(OSError):
            files.unlink(temporary)
        raise
    files.fsync_dir(path.parent)
    files.unlink(path)


def _pack_checked(files: Files, path: Path, temporary: Path) -> None:
    fd = files.open_append(temporary)
    try:
        crc = _pack(files, path, fd)
        files.fdatasync(fd)
    finally:
        files.close(fd)
    if _unpacked_crc(temporary) != crc:
        raise OSError(5, f"{temporary} doesn't read back as it was written")


def _pack(files: Files, path: Path, fd: int) -> int:
    packer, crc = zlib.compressobj(6, zlib.DEFLATED, _GZIP), 0
    with open(path, "rb", 0) as plain:
        while block := plain.read(BLOCK):
            crc = zlib.crc32(block, crc)
            write_all(files, fd, packer.compress(block))
    write_all(files, fd, packer.flush())
    return crc


def _unpacked_crc(path: Path) -> int:
    crc = 0
    with gzip.open(path) as packed:
        while block := packed.read(BLOCK):
            crc = zlib.crc32(block, crc)
    return crc


def clean(files: Files, directory: Path) -> list[Path]:
    """Delete what an interrupted sealing left behind; return the plain segments that it hadn't compressed yet."""
    for path in directory.glob("*" + TEMPORARY):
        with contextlib.suppress(FileNotFoundError):  # a forgotten writer's thread may have finished with it
            files.unlink(path)
    segments = list_segments(directory)
    pairs = itertools.pairwise(segments)
    return [one.path for one, after in pairs if not one.compressed and after.incarnation == one.incarnation]


class Sealer:
    """Compresses sealed segments one after the other, beside the run.

    Attributes:
        errors: what went wrong; the segments concerned are whole, and stay uncompressed.
    """

    def __init__(self, files: Files, background: Background) -> None:
        self.errors: list[str] = []
        self._files = files
        self._background = background
        self._turn = threading.Lock()
        self._tasks: list[Task] = []

    def add(self, path: Path) -> None:
        """Compress `path` when those before it are done."""
        self._tasks = [task for task in self._tasks if task.is_alive()]
        self._tasks.append(self._background.start(lambda: self._work(path), "tachograph-journal-seal"))

    def _work(self, path: Path) -> None:
        with self._turn:
            try:
                compress(self._files, path)
            except (OSError, EOFError, zlib.error) as error:
                self.errors.append(f"{path.name} stays uncompressed: {error}")

    def join(self) -> None:
        """Wait until all are compressed."""
        for task in self._tasks:
            task.join()
