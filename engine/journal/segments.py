"""Segments: the files of a journal, how they are listed, and how their lines are checked one by one.

Whether a bad line is a torn tail or damage isn't decided here: `scan` stops at it and says what it found.
"""

from __future__ import annotations

import contextlib
import gzip
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO
from zlib import crc32

import attrs
import msgspec

from .codec import TAIL, stored_crc
from .errors import JournalError
from .files import parse_name, rank_directory

BLOCK = 1 << 18


@attrs.frozen(order=False)
class Segment:
    """One file of a journal.

    Attributes:
        path: where it lies.
        first_seq: the first transition that it may hold, from its name.
        incarnation: from its name.
        compressed: it is a `.gz`.
    """

    path: Path
    first_seq: int
    incarnation: int
    compressed: bool

    @property
    def plain_name(self) -> str:
        """Its name before it was compressed."""
        return self.path.name.removesuffix(".gz")

    def blocks(self, offset: int = 0) -> Iterator[bytes]:
        """Read its text in blocks, from `offset` on."""
        with self._open() as file:
            file.seek(offset)
            while block := file.read(BLOCK):
                yield block

    def _open(self) -> BinaryIO:
        if not self.compressed:
            with contextlib.suppress(FileNotFoundError):  # it may have been compressed since it was listed
                return open(self.path, "rb", 0)
        return gzip.open(self.path.with_name(self.plain_name + ".gz"))  # type: ignore[return-value]

    def text(self) -> bytes:
        """Read its whole text; at most a sealed segment's 64 MiB."""
        return b"".join(self.blocks())


def list_segments(directory: Path) -> list[Segment]:
    """List a rank's segments by incarnation and first seq; of a plain and a compressed twin, the plain one."""
    found: dict[tuple[int, int], Segment] = {}
    for path in directory.iterdir():
        parsed = parse_name(path.name)
        if parsed is not None:
            first, incarnation, compressed = parsed
            key = (incarnation, first)
            if key not in found or not compressed:
                found[key] = Segment(path, first, incarnation, compressed)
    return [found[key] for key in sorted(found)]


def ranks_of(run_dir: Path) -> list[int]:
    """List the ranks that a run directory has journals of.

    Raises:
        JournalError: it isn't a run directory.
    """
    journal = run_dir / "journal"
    names = [p.name for p in journal.iterdir()] if journal.is_dir() else []
    ranks = sorted(int(n[5:]) for n in names if n.startswith("rank-") and n[5:].isdigit())
    if not ranks:
        raise JournalError(f"{run_dir} isn't a run directory: it has no journal/rank-0")
    return ranks


def directory_of(run_dir: Path, rank: int) -> Path:
    """Return one rank's directory, which must exist.

    Raises:
        JournalError: it isn't a run directory, or has no such rank.
    """
    ranks = ranks_of(run_dir)
    if rank not in ranks:
        raise JournalError(f"{run_dir} has no journal of rank {rank}, but of {', '.join(map(str, ranks))}")
    return rank_directory(run_dir, rank)


class BadLine(Exception):
    """A line that isn't what the line before it calls for.

    Attributes:
        offset: where it begins.
        reason: what was found.
        unfinished: the file ended within it, so it may be in the middle of being written.
    """

    def __init__(self, offset: int, reason: str, unfinished: bool = False) -> None:
        self.offset = offset
        self.reason = reason
        self.unfinished = unfinished
        super().__init__(f"{reason} at byte {offset}")


def split(segment: Segment, offset: int = 0) -> Iterator[tuple[int, list[bytes], bool]]:
    """Read (offset, lines, whole) block by block; the last one, not whole, is a line without its newline.

    Raises:
        BadLine: a compressed segment can't be decompressed to its end.
    """
    rest = b""
    try:
        for block in segment.blocks(offset):
            lines = (rest + block).split(b"\n")
            rest = lines.pop()
            if lines:
                yield offset, lines, True
                offset += length(lines)
    except (OSError, EOFError, zlib.error) as error:
        if not segment.compressed:
            raise
        raise BadLine(offset, f"it can't be decompressed further ({error})") from error
    if rest:
        yield offset, [rest], False


def checked(segment: Segment) -> Iterator[tuple[int, list[bytes]]]:
    """Yield (offset, lines) block by block, of lines whose checksums follow each from the line before.

    Raises:
        BadLine: at the first line that doesn't; those before it were yielded.
    """
    crc = 0
    for offset, lines, whole in split(segment):
        if not whole:
            raise BadLine(offset, f"a line without its end, {len(lines[0])} bytes long", unfinished=True)
        for number, line in enumerate(lines):
            crc = crc32(line[:-TAIL], crc)
            if line[-TAIL:] != b',"crc":"%08x"}' % crc:
                if number:
                    yield offset, lines[:number]
                raise BadLine(offset + length(lines[:number]), describe(line))
        yield offset, lines


def length(lines: list[bytes]) -> int:
    """Count the bytes that lines take with their newlines."""
    return sum(map(len, lines)) + len(lines)


def scan_salvage(segment: Segment, damage: list[tuple[int, int, str]]) -> Iterator[tuple[int, bytes]]:
    """Yield every line that is right for the checksum stored in the line before it, good or bad.

    Args:
        segment: the file.
        damage: gets (offset, bytes, reason) of what is passed over.
    """
    before: int | None = 0
    try:
        for offset, lines, whole in split(segment):
            for line in lines:
                stored = stored_crc(line) if whole else None
                if before is not None and stored is not None and crc32(line[:-TAIL], before) == stored:
                    yield offset, line
                else:
                    damage.append((offset, len(line) + whole, describe(line)))
                before = stored
                offset += len(line) + 1
    except BadLine as bad:
        damage.append((bad.offset, 0, bad.reason))


def describe(line: bytes) -> str:
    """Say what a bad line looks like."""
    if not line.strip(b"\0"):
        return f"{len(line)} zero bytes" if line else "an empty line"
    if stored_crc(line) is None:
        return "a line without a checksum at its end"
    try:
        found = msgspec.json.decode(line)
        what = f"the record of seq {found['seq']}" if "from" in found else f"the side record {found['side']!r}"
    except (msgspec.DecodeError, KeyError, TypeError):
        return "a line that isn't JSON"
    return f"{what}, whose checksum doesn't follow from the line before"


def looks_whole(line: bytes) -> bool:
    """Whether a line that ends in a newline is one whole object: no crash tears a line so that it still is."""
    try:
        return isinstance(msgspec.json.decode(line), dict)
    except msgspec.DecodeError:
        return False
