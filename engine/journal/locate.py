"""Finding single records without reading everything: a segment's last one, and the one of a given number.

Lines are in the order of their seq, so a segment's text can be bisected as it lies on the disk.
"""

from __future__ import annotations

import contextlib
import mmap
import re
from collections.abc import Iterator
from zlib import crc32

import attrs

from .codec import TAIL, stored_crc
from .damage import FOOTERS
from .header import Header
from .record import SIDE, Record, decode
from .segments import Segment

_SEQ = re.compile(rb'\{"(?:side":"[^"]*",")?seq":(\d+)')
_LOOK_BACK = 1 << 16


@attrs.frozen
class End:
    """How a segment ends: its last transition, None without one, and whether its incarnation was closed there."""

    record: Record | None
    closed: bool


def end_of(segment: Segment, header: Header) -> End | None:
    """Look at a segment's last lines; None where these don't tell and it must be read as a whole."""
    with text_of(segment) as text:
        stop = text.rfind(b"\n") + 1
        start = max(0, stop - _LOOK_BACK)
        lines = text[start:stop].split(b"\n")[:-1]
    if start:
        lines = lines[1:]
    at = next((i for i in range(len(lines) - 1, -1, -1) if not lines[i].startswith(SIDE)), None)
    if (at is None and start) or at == 0 or not lines:
        return None
    first = 1 if at is None else at
    if not all(follows(before, line) for before, line in zip(lines[first - 1 :], lines[first:], strict=False)):
        return None
    record = None if at is None else decode(lines[at], header, segment.path, 0)
    assert record is None or isinstance(record, Record)
    return End(record, lines[-1].startswith(FOOTERS[1]))


class Unpacked:
    """Keeps the text of the compressed file that was looked into last, at most 64 MiB: the next look is often there."""

    def __init__(self) -> None:
        self._held: tuple[Segment, bytes] | None = None

    def text(self, segment: Segment) -> bytes:
        """Return a segment's whole text."""
        if self._held is None or self._held[0] != segment:
            self._held = None  # not two at once
            self._held = segment, segment.text()
        return self._held[1]


def find(segment: Segment, header: Header, seq: int, unpacked: Unpacked | None = None) -> Record | None:
    """Bisect a segment for the transition `seq`; None where it isn't there, or its line is damaged.

    Args:
        segment: the file.
        header: its header.
        seq: which one.
        unpacked: keeps the text of a compressed file for the next look.
    """
    with text_of(segment, unpacked) as text:
        low, high = 0, text.rfind(b"\n") + 1
        while low < high:
            middle = (low + high) // 2
            start = text.rfind(b"\n", 0, middle) + 1
            match = _SEQ.match(text, start)
            if match is not None and int(match[1]) < seq:
                low = text.find(b"\n", middle) + 1
            else:
                high = start
        line = text[low : text.find(b"\n", low)]
        before = text[text.rfind(b"\n", 0, low - 1) + 1 : low - 1] if low else b""
    if line.startswith(SIDE) or not follows(before, line):
        return None
    record = decode(line, header, segment.path, low)
    return record if isinstance(record, Record) and record.seq == seq else None


def follows(before: bytes, line: bytes) -> bool:
    """Say whether a line's checksum is right, and follows from that of the line before."""
    seed, stored = stored_crc(before), stored_crc(line)
    return seed is not None and stored is not None and crc32(line[:-TAIL], seed) == stored


@contextlib.contextmanager
def text_of(segment: Segment, unpacked: Unpacked | None = None) -> Iterator[mmap.mmap | bytes]:
    """Open a segment's text for the body, without reading it where it isn't compressed."""
    if segment.compressed:
        yield segment.text() if unpacked is None else unpacked.text(segment)
        return
    try:
        file = open(segment.path, "rb", 0)  # noqa: SIM115 # closed below
    except FileNotFoundError:  # it was compressed since it was listed
        yield segment.text()
        return
    with file:
        if not file.seek(0, 2):
            yield b""
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as text:
            yield text
