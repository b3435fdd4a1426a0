"""What is in the files of an offline W&B run, which its process may not have finished.

W&B writes blocks of 32 KiB, so when its process dies with ours, the last of what it was given isn't in the file. The
format is LevelDB's log with protobuf records, behind a header of seven bytes; W&B offers no way to read it back.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path

_BLOCK, _HEADER = 32768, 7
_FULL, _FIRST, _LAST = 1, 2, 4  # where a part stands in its record


def names_by_step(folder: Path) -> dict[int, set[str]]:
    """Return the names of the values that the offline runs in a folder have at each step.

    Args:
        folder: what was given to `wandb.init` as `dir`.

    Raises:
        Exception: the files are of another format than W&B wrote up to now.
    """
    from wandb.proto import wandb_internal_pb2

    found: dict[int, set[str]] = {}
    for path in sorted(folder.glob("wandb/offline-run-*/run-*.wandb")):
        for data in _records(path.read_bytes()):
            record = wandb_internal_pb2.Record()  # type: ignore[attr-defined]
            record.ParseFromString(data)
            items = {".".join(item.nested_key) or item.key: item.value_json for item in record.history.item}
            if "step" in items:
                found.setdefault(int(json.loads(items["step"])), set()).update(items)
    return found


def _records(data: bytes) -> Iterator[bytes]:
    """Yield the whole records of a file; one that is torn at its end isn't one."""
    at, parts = _HEADER, b""
    while at + _HEADER <= len(data):
        room = _BLOCK - at % _BLOCK
        if room < _HEADER:  # no part begins so near to the end of a block
            at += room
            continue
        size, kind = struct.unpack_from("<HB", data, at + 4)  # behind its checksum
        part = data[at + _HEADER : at + _HEADER + size]
        if not kind or len(part) < size:
            return
        parts = part if kind in (_FULL, _FIRST) else parts + part
        if kind in (_FULL, _LAST):
            yield parts
        at += _HEADER + size
