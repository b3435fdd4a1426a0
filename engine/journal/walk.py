"""The inner loop of reading: a segment's lines, checked and decoded, each transition one after the other's number."""

from __future__ import annotations

import math
from collections.abc import Iterator

from .errors import JournalCorrupt
from .header import Header
from .links import Reached
from .record import SIDE, Item, decode, decode_record
from .segments import Segment, checked, length


def read_records(segment: Segment, header: Header, at: Reached, upto: int | None, sides: bool) -> Iterator[Item]:
    """Yield a segment's records and keep `at` up to date.

    Args:
        segment: the file.
        header: its header.
        at: how far the incarnation was read before this segment.
        upto: the last transition that is wanted; None for all.
        sides: yield side records too.

    Raises:
        BadLine: a line's checksum doesn't follow from the line before.
        JournalCorrupt: a line is no record, or its number isn't the next one.
    """
    seq, stop = at.seq, math.inf if upto is None else upto
    for offset, lines in checked(segment):
        for line in lines:
            if line.startswith(SIDE):
                if sides:
                    yield decode(line, header, segment.path, offset)
                continue
            try:
                item = decode_record(line)
                if item.seq != seq + 1:
                    raise ValueError(f"seq {item.seq} follows seq {seq}")
            except ValueError as error:
                where = offset + length(lines[: lines.index(line)])
                raise JournalCorrupt(segment.path, where, str(error)) from error
            if item.seq > stop:
                at.passed = True
                return
            at.seq = seq = item.seq
            at.chain = item.chain
            item.line = line
            item.header = header
            yield item
        at.line, at.offset = lines[-1], offset + length(lines)
