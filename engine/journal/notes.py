"""The notes that people leave at transitions of a run: a file of its own beside the journal, which has one writer.

`notes.jsonl` is only ever appended to, a line at a time, each with a checksum of its own, so that several people may
write while the run goes on. A note is withdrawn by a line that says so. A line that can't be read is passed over.
"""

from __future__ import annotations

import fcntl
import os
import time
import uuid
from pathlib import Path
from typing import Any
from zlib import crc32

import attrs
import msgspec

from tachograph.states import CallerError

from .codec import TAIL, sealed, stored_crc, to_json
from .errors import JournalCorrupt, JournalError
from .segments import ranks_of

NOTES = "notes.jsonl"
MOST = 10_000
"""Characters of one note."""


@attrs.frozen
class Note:
    """What somebody wrote about a transition.

    Attributes:
        id: its name, 8 hex digits.
        seq: the transition.
        text: as it was given.
        time: when, in seconds since 1970.
        withdrawn: when it was taken back; None while it stands.
    """

    id: str
    seq: int
    text: str
    time: float
    withdrawn: float | None = None


@attrs.frozen
class Notes:
    """The notes of a run.

    Attributes:
        all: in the order they were written, those that were withdrawn among them.
        unread: lines that couldn't be read, by their numbers from 1: torn by a crash, or damaged.
    """

    all: tuple[Note, ...] = ()
    unread: tuple[int, ...] = ()

    @property
    def standing(self) -> tuple[Note, ...]:
        """Those that weren't withdrawn."""
        return tuple(note for note in self.all if note.withdrawn is None)

    def at(self, seq: int) -> tuple[Note, ...]:
        """Return those at one transition that stand."""
        return tuple(note for note in self.standing if note.seq == seq)


def read_notes(run_dir: Path | str) -> Notes:
    """Read the notes of a run; none where nobody wrote any."""
    try:
        text = (Path(run_dir) / NOTES).read_bytes()
    except FileNotFoundError:
        return Notes()
    held: dict[str, Note] = {}
    unread = []
    for number, line in enumerate(text.split(b"\n"), 1):
        if line and not _take(line, held):
            unread.append(number)
    return Notes(tuple(held.values()), tuple(unread))


def _take(line: bytes, held: dict[str, Note]) -> bool:
    """Take a line; False where it can't be read."""
    if stored_crc(line) != crc32(line[:-TAIL]):
        return False
    try:
        found = msgspec.json.decode(line)
        if "note" in found:
            note = Note(found["note"], found["seq"], found["text"], found["time"])
            held[note.id] = note
        elif found["withdraws"] in held:
            held[found["withdraws"]] = attrs.evolve(held[found["withdraws"]], withdrawn=found["time"])
    except (msgspec.DecodeError, KeyError, TypeError):
        return False
    return True


def add_note(run_dir: Path | str, seq: int, text: str, now: float | None = None) -> Note:
    """Write a note about a transition; the run may be going on, be over, or be damaged.

    Args:
        run_dir: the run directory.
        seq: the transition.
        text: what to say, at most `MOST` characters.
        now: the time; None: the clock's.

    Raises:
        CallerError: the text is empty or too long.
        JournalError: it isn't a run directory, or has no such transition.
        OSError: it can't be written.
    """
    text = text.encode("utf-8", "backslashreplace").decode()  # arguments of a command may hold any bytes
    if not text.strip():
        raise CallerError("a note needs a text that says something")
    if len(text) > MOST:
        raise CallerError(f"a note has at most {MOST:,} characters, and this one has {len(text):,}")
    _check_seq(Path(run_dir), seq)
    note = Note(uuid.uuid4().hex[:8], seq, text, time.time() if now is None else now)
    _append(Path(run_dir), {"note": note.id, "seq": seq, "text": text, "time": note.time})
    return note


def withdraw_note(run_dir: Path | str, id: str, now: float | None = None) -> Note:
    """Take a note back; its line stays, and another one says that it doesn't count.

    Args:
        run_dir: the run directory.
        id: of the note, or the beginning of it.
        now: the time; None: the clock's.

    Raises:
        JournalError: no note that stands has this id, or several have.
        OSError: it can't be written.
    """
    notes = read_notes(run_dir)
    found = [note for note in notes.standing if id and note.id.startswith(id)]
    if len(found) != 1:
        held = [note for note in notes.all if id and note.id.startswith(id)]
        why = "was withdrawn already" if held and not found else "isn't there" if not found else "stands for several"
        raise JournalError(f"the note {id!r} of {run_dir} {why}: `tachograph note {run_dir} --list` says what there is")
    at = time.time() if now is None else now
    _append(Path(run_dir), {"withdraws": found[0].id, "time": at})
    return attrs.evolve(found[0], withdrawn=at)


def _check_seq(run_dir: Path, seq: int) -> None:
    """Refuse a transition that isn't there; a damaged journal is searched as far as it can be read."""
    from .reader import Journal  # it reads notes itself

    rank = ranks_of(run_dir)[0]
    try:
        Journal(run_dir, rank=rank).seek(seq)
    except JournalCorrupt:
        Journal(run_dir, rank=rank, salvage=True).seek(seq)


def _append(run_dir: Path, fields: dict[str, Any]) -> None:
    """Append a line with a single write; if the last one was torn, on a line of its own."""
    line, _ = sealed(to_json(fields)[:-1], 0)
    fd = os.open(run_dir / NOTES, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)  # against the other notes; the journal's lock is the run's own
        end = os.lseek(fd, 0, os.SEEK_END)
        torn = end > 0 and os.pread(fd, 1, end - 1) != b"\n"
        data = b"\n" + line if torn else line
        if os.write(fd, data) != len(data):
            raise OSError(28, "the disk took a part of the note only", str(run_dir / NOTES))
        os.fsync(fd)
    finally:
        os.close(fd)


__all__ = ["MOST", "NOTES", "Note", "Notes", "add_note", "read_notes", "withdraw_note"]
