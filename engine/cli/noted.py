"""Notes for a person and for a program: rows of a table, lines under a transition, plain data."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .screen import clock, printable

if TYPE_CHECKING:
    from tachograph.engine.journal import Note

COLUMNS = ("seq", "<", "<when", "~note")


def as_data(note: Note) -> dict[str, Any]:
    """Return a note as plain data."""
    return {"note": note.id, "seq": note.seq, "text": note.text, "time": note.time, "withdrawn": note.withdrawn}


def row(note: dict[str, Any]) -> tuple[str, ...]:
    """Return a note's row of a table."""
    gone = "" if note["withdrawn"] is None else f"  (withdrawn {clock(note['withdrawn'])})"
    return f"{note['seq']:,}", note["note"], clock(note["time"]), f"{printable(note['text'])}{gone}"


def tell_unread(run_dir: Path, lines: Sequence[int]) -> None:
    """Say on stderr which lines of the notes can't be read."""
    if lines:
        which = f"line{'' if len(lines) == 1 else 's'} {', '.join(map(str, lines))}"
        print(f"{which} of {run_dir}/notes.jsonl can't be read, and {_verb(lines)} passed over", file=sys.stderr)


def _verb(lines: Sequence[int]) -> str:
    return "is" if len(lines) == 1 else "are"
