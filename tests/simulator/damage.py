"""Damage to files between two lives: a bit flips, or a file is gone."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import attrs

from .disk import Disk


@attrs.frozen
class Damage:
    """What was damaged.

    Attributes:
        path: the file, from the root.
        mend: puts back what was there, as from a backup; None where the run has to live with it.
    """

    path: str
    mend: Callable[[], None] | None = None


def damage(disk: Disk, kind: str, rng: Random) -> Damage | None:
    """Damage a file; None if there is none to damage.

    Args:
        disk: what it is on.
        kind: "snapshot": a bit of a snapshot's file; "lost": such a file is gone; "journal": a bit of a segment, in
            front of a whole line at least, since else it would look like a torn tail; "mark": a bit of the durable
            mark; "": nothing.
        rng: decides.
    """
    files = {path: file.data for path, file in disk.files().items() if file.data}
    kinds = {
        "snapshot": [path for path in files if "/snapshots/0" in path],
        "lost": [path for path in files if "/snapshots/0" in path],
        "journal": [path for path in files if ".jsonl" in path and "torn" not in path],
        "mark": [path for path in files if path.endswith("durable.json")],
    }
    found = sorted(kinds.get(kind, []))
    if not found:
        return None
    path = found[int(rng.random() * len(found))]
    before, begin, end = files[path], 0, len(files[path])
    if path.endswith(".gz"):
        begin = 10  # of the header that gzip has no checksum
    elif kind == "journal" and path == max(found, key=_age):
        end = before[: max(before.rfind(b"\n"), 0)].rfind(b"\n") + 1
    if begin >= end:
        return None
    after = None if kind == "lost" else _flipped(before, begin, end, rng)
    disk.replace(disk.root / path, after)
    return Damage(path, None if kind in ("snapshot", "lost") else lambda: _mend(disk, path, after, before))


def _mend(disk: Disk, path: str, damaged: bytes | None, whole: bytes) -> None:
    file = disk.files().get(path)
    if file is not None and file.data == damaged:  # else it has been written anew
        disk.replace(disk.root / path, whole)


def _age(path: str) -> tuple[int, str]:
    return int(path.split(".i")[1].split(".")[0]), path


def _flipped(data: bytes, begin: int, end: int, rng: Random) -> bytes:
    at = begin + int(rng.random() * (end - begin))
    return data[:at] + bytes([data[at] ^ 1 << int(rng.random() * 8)]) + data[at + 1 :]
