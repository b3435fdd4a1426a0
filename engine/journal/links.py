"""What holds the files of a journal together: every header says what came before it, and that must be there."""

from __future__ import annotations

import itertools
from pathlib import Path

import attrs

from .codec import GENESIS, stored_crc
from .durable import Mark
from .errors import JournalCorrupt
from .header import Header, Position
from .segments import Segment

Opened = tuple[Segment, Header]
START = Position(-1, 0, GENESIS.hex())
"""The position before anything was recorded."""


@attrs.define
class Reached:
    """How far an incarnation has been read.

    Attributes:
        seq: the last transition's number.
        chain: the chain there.
        line: the segment's last line; empty before the first.
        offset: where the segment's good lines end.
        passed: a transition past the last one that was wanted has been met.
    """

    seq: int
    chain: str
    line: bytes = b""
    offset: int = 0
    passed: bool = False


def check_links(directory: Path, segments: dict[int, list[Opened]], names: list[str], mark: Mark | None) -> None:
    """Hold the headers against each other: no file is missing, none is another run's.

    Raises:
        JournalCorrupt: one is.
    """
    if mark is not None and mark.file not in names:
        raise JournalCorrupt(directory / mark.file, 0, "the file is missing, though it is known to have been written")
    runs = {header.run for opened in segments.values() for _, header in opened}
    numbers, alone = sorted(segments), len(list(directory.parent.glob("rank-*"))) == 1
    for last, incarnation in itertools.pairwise([-1, *numbers]):
        (segment, header), *_ = segments[incarnation]
        if alone and incarnation != last + 1:  # of several ranks, one may have had no part in a life
            raise JournalCorrupt(segment.path, 0, f"the segments of incarnation {last + 1} are missing")
        if len(runs) > 1 and header.run != segments[numbers[0]][0][1].run:
            raise JournalCorrupt(segment.path, 0, f"it belongs to another run, {header.run!r}")
        if header.previous is not None or (incarnation == 0 and header.first_seq != 0 and not header.forked):
            raise JournalCorrupt(segment.path, 0, "the segment before it is missing")
        parent = header.parent
        if parent is not None and (parent.incarnation >= incarnation or parent.seq + 1 != header.first_seq):
            raise JournalCorrupt(segment.path, 0, f"it can't go on from {parent}")
        for (before, _), (after, header) in itertools.pairwise(segments[incarnation]):
            if header.previous is None or header.previous["file"] != before.plain_name:
                raise JournalCorrupt(after.path, 0, "the segment before it is missing")


def check_junction(opened: Opened, end: Position) -> None:
    """Hold the first header of an incarnation against the record it goes on from.

    Raises:
        JournalCorrupt: its number or its chain is another.
    """
    segment, header = opened
    if (max(header.first_seq, 1) - 1, header.chain) != (end.seq, end.chain):
        reason = (
            f"it goes on from seq {max(header.first_seq - 1, 0)}, chain {header.chain}, but the incarnation before "
        )
        raise JournalCorrupt(segment.path, 0, f"{reason}leads to seq {end.seq}, chain {end.chain}")


def check_segment(segment: Segment, header: Header, at: Reached) -> None:
    """Hold a later segment's header against the end of the segment before it, down to the last line's checksum.

    Raises:
        JournalCorrupt: it begins elsewhere.
    """
    crc = f"{stored_crc(at.line):08x}"
    if header.first_seq != at.seq + 1 or header.chain != at.chain or (header.previous or {}).get("crc") != crc:
        reason = f"it doesn't go on from the segment before, which ends at seq {at.seq}, chain {at.chain}"
        raise JournalCorrupt(segment.path, 0, reason)
