"""Recovery: what is done to a journal, under its lock, before a new incarnation goes on writing it.

It reads everything. A provably torn tail is copied aside and cut; whatever else is wrong is refused, and nothing
is touched. What the dead process held is written. Afterwards all that is left is on the disk, since the next
incarnation builds on it.
"""

from __future__ import annotations

import os
from pathlib import Path

import attrs

from .damage import check_length, refuse_damage
from .durable import Mark, read_mark
from .errors import JournalWriteError
from .files import MARK, TEMPORARY, Files, rank_directory, write_all, write_file
from .header import Position, read_header
from .history import RankHistory
from .holding import left_over
from .links import START
from .segments import BadLine, Segment, checked, length, list_segments


@attrs.frozen
class Cut:
    """A torn tail that was cut off.

    Attributes:
        file: the segment.
        offset: where the tail began.
        bytes: how long it was.
        aside: the file that now holds it.
    """

    file: Path
    offset: int
    bytes: int
    aside: Path


@attrs.frozen
class Recovery:
    """What recovery found and did.

    Attributes:
        cut: the torn tails that were cut; empty after a clean end.
        added: how many lines were made of what the dead process held.
        end: the last committed transition; incarnation -1 where nothing was ever recorded.
    """

    cut: list[Cut]
    end: Position
    added: int = 0


def recover(run_dir: Path | str, rank: int = 0, files: Files | None = None) -> Recovery:
    """Make a journal ready for its next incarnation. The caller holds its `JournalLock`.

    Args:
        run_dir: the run directory.
        rank: whose journal.
        files: the layer below.

    Raises:
        JournalCorrupt: something is damaged that no crash explains; nothing was changed.
        JournalFormat: a file is foreign, or a newer version wrote it.
        JournalWriteError: the tail can't be put aside or cut.
    """
    directory, files = rank_directory(Path(run_dir), rank), files or Files()
    if not directory.is_dir():
        return Recovery([], START)
    try:
        return _recover(directory, files)
    except OSError as error:
        raise JournalWriteError.of(Path(error.filename or directory), error) from error


def _recover(directory: Path, files: Files) -> Recovery:
    history = RankHistory(directory)
    history.load()
    end = _check_all(history)
    mark, cut = read_mark(directory), []
    while (listed := list_segments(directory)) and (bad := _first_bad(listed[-1], mark)) is not None:
        cut.append(_cut(files, listed[-1], bad.offset))
    added = 0
    if listed and not listed[-1].compressed:
        added = _add_held(files, listed[-1])
        _settle(files, listed[-1], end.seq)
    return Recovery(cut, end, added)


def _add_held(files: Files, segment: Segment) -> int:
    """Make lines of what the dead process held; return how many."""
    missing = left_over(segment, read_header(segment))
    if missing:
        fd = files.open_update(segment.path)
        try:
            os.lseek(fd, 0, os.SEEK_END)
            write_all(files, fd, missing)
        finally:
            files.close(fd)
    return missing.count(b"\n")


def _check_all(history: RankHistory) -> Position:
    """Read every incarnation to its end; return where the newest one stands."""
    end = START
    for incarnation in sorted(history.segments):
        history.check_parent(incarnation)
        walk = history.walk(incarnation, None, sides=False)
        try:
            while True:
                next(walk)
        except StopIteration as stop:
            end = stop.value
    return end


def _first_bad(segment: Segment, mark: Mark | None) -> BadLine | None:
    """Return where a last segment's torn tail begins; None without one."""
    end = 0
    try:
        for offset, lines in checked(segment):
            end = offset + length(lines)
    except BadLine as bad:
        refuse_damage(segment, bad, last=True, mark=mark)
        return bad
    check_length(segment, end, mark)
    return None if end else BadLine(0, "an empty file", unfinished=True)


def _cut(files: Files, segment: Segment, offset: int) -> Cut:
    """Copy a tail aside, then cut it; a segment of which nothing is left is renamed as a whole."""
    tail = segment.path.read_bytes()[offset:]
    aside = _free(segment.path.with_name(f"{segment.path.name}.torn-{offset}"), tail)
    if offset == 0:
        files.rename(segment.path, aside)
        files.fsync_dir(aside.parent)
        return Cut(segment.path, offset, len(tail), aside)
    temporary = aside.with_name(aside.name + TEMPORARY)
    if temporary.exists():
        files.unlink(temporary)
    write_file(files, temporary, tail)
    files.rename(temporary, aside)
    files.fsync_dir(aside.parent)
    fd = files.open_update(segment.path)
    try:
        files.truncate(fd, offset)
        files.fdatasync(fd)
    finally:
        files.close(fd)
    return Cut(segment.path, offset, len(tail), aside)


def _free(path: Path, content: bytes) -> Path:
    """Find a name that isn't taken, or is by the same bytes: then a recovery was itself cut short."""
    number, free = 1, path
    while free.exists() and free.read_bytes() != content:
        number += 1
        free = path.with_name(f"{path.name}.{number}")
    return free


def _settle(files: Files, segment: Segment, seq: int) -> None:
    """Bring the last segment to the disk and mark it: records that only the kernel had are built upon now."""
    fd = files.open_update(segment.path)
    try:
        files.fdatasync(fd)
    finally:
        files.close(fd)
    fd = files.open_update(segment.path.with_name(MARK))
    try:
        files.pwrite(fd, Mark(segment.plain_name, os.path.getsize(segment.path), seq).line(), 0)
    finally:
        files.close(fd)
