"""The file: a zip with a manifest, the same bytes for the same part of a run.

Entries have no time and no owner. `bundle.json`, the last of them, names every other with its size and its digest, so a
flipped bit is found.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import zipfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

from ..snapshots import digest_of_commit

FORMAT = 1
MANIFEST = "bundle.json"
_NEVER = (1980, 1, 1, 0, 0, 0)  # the earliest time that a zip can say
_BLOCK = 1 << 20


class Archive:
    """Writes a bundle.

    Args:
        path: the file, under a temporary name.

    Attributes:
        files: name -> [size in bytes, digest] of what was written.
    """

    def __init__(self, path: Path) -> None:
        self.files: dict[str, list[Any]] = {}
        self._zip = zipfile.ZipFile(path, "x", zipfile.ZIP_DEFLATED, allowZip64=True, compresslevel=6)

    def add(self, name: str, blocks: Iterable[bytes], *, packed: bool = True) -> None:
        """Write a file.

        Args:
            name: its way in the bundle.
            blocks: its bytes.
                packed: compress it. Weights hardly become smaller; and what is all zeros would look like a bomb.
        """
        digest, size = hashlib.blake2b(digest_size=16), 0
        with self._zip.open(_entry(name, packed), "w", force_zip64=True) as file:
            for block in blocks:
                file.write(block)
                digest.update(block)
                size += len(block)
        self.files[name] = [size, digest.hexdigest()]

    def close(self, manifest: dict[str, Any]) -> None:
        """Write the manifest, and end the file."""
        told = {"format": FORMAT, **manifest, "files": self.files}
        text = json.dumps({**told, "digest": digest_of_commit(told)}, indent=1).encode() + b"\n"
        with self._zip.open(_entry(MANIFEST, True), "w") as file:
            file.write(text)
        self._zip.close()

    def abandon(self) -> None:
        """Let go of the file as it is."""
        with contextlib.suppress(OSError, ValueError):
            self._zip.close()


def _entry(name: str, packed: bool) -> zipfile.ZipInfo:
    entry = zipfile.ZipInfo(name, _NEVER)
    entry.create_system = 3  # the same on every system
    entry.external_attr = 0o100644 << 16
    entry.compress_type = zipfile.ZIP_DEFLATED if packed else zipfile.ZIP_STORED
    return entry


def blocks_of(path: Path) -> Iterator[bytes]:
    """Read a file in blocks."""
    with open(path, "rb") as file:
        yield from blocks_in(file)


def blocks_in(file: IO[bytes]) -> Iterator[bytes]:
    """Read an open file in blocks."""
    while block := file.read(_BLOCK):
        yield block


@contextlib.contextmanager
def written(path: Path) -> Iterator[Archive]:
    """Write a bundle that is there whole or not at all.

    Raises:
        OSError: it can't be written; what was there before still is.
    """
    temporary = path.with_name(f".{path.name}.writing")
    temporary.unlink(missing_ok=True)
    archive = Archive(temporary)
    try:
        yield archive
        os.replace(temporary, path)
    finally:
        archive.abandon()
        temporary.unlink(missing_ok=True)
