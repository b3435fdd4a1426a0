"""The one judgement that reading and recovery share: is a bad line a torn tail, or damage?

A crash can tear only what was being written: the end of the newest segment, past what is known to be on the
disk. Whatever else is wrong with a file has another cause, and nobody should cut or skip it silently.
"""

from __future__ import annotations

from pathlib import Path

import attrs

from .durable import Mark
from .errors import JournalCorrupt
from .segments import BadLine, Segment, looks_whole, split

FOOTERS = (b'{"side":"sealed"', b'{"side":"closed"')
_LOOK_BACK = 1 << 16


@attrs.frozen
class Damage:
    """A stretch that a salvaging reader passed over.

    Attributes:
        file: where.
        offset: from which byte of its uncompressed text.
        bytes: how many; 0 where that can't be told.
        reason: what was found.
    """

    file: Path
    offset: int
    bytes: int
    reason: str


def refuse_damage(segment: Segment, bad: BadLine, *, last: bool, mark: Mark | None) -> None:
    """Return if the bad line begins a torn tail, which was never committed to the disk as a whole.

    Args:
        segment: the file.
        bad: what was found in it.
        last: it is the last segment of the newest incarnation.
        mark: the durable mark, read before the segment was.

    Raises:
        JournalCorrupt: it is damage.
    """
    reason = _damage(segment, bad, last, mark)
    if reason:
        raise JournalCorrupt(segment.path, bad.offset, f"{bad.reason}, {reason}")


def _damage(segment: Segment, bad: BadLine, last: bool, mark: Mark | None) -> str:
    if segment.compressed:
        return "in a sealed segment"
    if not last:
        return "in a segment that another one follows"
    if mark is not None and mark.file == segment.plain_name and bad.offset < mark.bytes:
        return f"while the first {mark.bytes} bytes are known to have been on the disk"
    if has_footer_before(segment, bad.offset):
        return "after the segment's footer"
    if not bad.unfinished:
        whole = _whole_record_from(segment, bad.offset)
        if whole is not None:
            return f"with a whole record at byte {whole}" if whole != bad.offset else "and the line is whole"
    return ""


def has_footer_before(segment: Segment, offset: int) -> bool:
    """Whether the line that ends at `offset` is a footer."""
    start = max(0, offset - _LOOK_BACK)
    text = next(segment.blocks(start), b"")[: offset - start]
    return text.rstrip(b"\n").rpartition(b"\n")[2].startswith(FOOTERS)


def _whole_record_from(segment: Segment, offset: int) -> int | None:
    for at, lines, ended in split(segment, offset):
        for line in lines:
            if ended and looks_whole(line):
                return at
            at += len(line) + 1
    return None


def check_length(segment: Segment, end: int, mark: Mark | None) -> None:
    """Refuse a segment that ends, whole as it looks, before what is known to have been on the disk.

    Raises:
        JournalCorrupt: it does.
    """
    if mark is not None and mark.file == segment.plain_name and end < mark.bytes:
        reason = f"it ends here, while {mark.bytes} bytes, up to seq {mark.seq}, are known to have been on the disk"
        raise JournalCorrupt(segment.path, end, reason)
