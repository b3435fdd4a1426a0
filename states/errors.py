"""The errors of this floor, split by whose fault they are.

Every message names what was found, what would be legal, and what to do next. The floors above add
their own kinds below `TachographError` (the journal's in `engine.journal`, the snapshots' in
`engine.snapshots`).
"""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Iterable


class TachographError(Exception):
    """The root of every error that Tachograph raises on its own account."""


class CallerError(TachographError, ValueError, TypeError):
    """The caller gave something that can't be used; nothing was started and nothing is lost.

    It is a `ValueError` and a `TypeError` at once, so that code written for either goes on working.
    """


class MachineFault(CallerError):
    """A machine's table contradicts itself; raised when the machine is built."""


class StateFault(TachographError, ValueError):
    """A state's plain data can't be read: a field is unknown, missing or wrong."""


class IllegalEvent(TachographError):
    """An event arrived that no row of the table takes; the state is as it was.

    Attributes:
        state: the name of the state the machine is in.
        event: the name of the event it refused.
        legal: the names of the events that it would take here.
    """

    def __init__(self, state: str, event: str, legal: Iterable[str], seq: int | None = None) -> None:
        self.state = state
        self.event = event
        self.legal = tuple(legal)
        where = f"'{state}'" if seq is None else f"'{state}' (seq {seq})"
        may = ", ".join(self.legal) if self.legal else "nothing: it is final"
        super().__init__(f"{event} can't happen in state {where}, which is unchanged. Legal here: {may}.")


def nearest(name: object, known: Iterable[str], n: int = 3) -> str:
    """Say the known names most like `name`, for the end of a sentence about one that isn't known."""
    names = sorted(known)
    return did_you_mean(name, names, n) or "Known: " + ", ".join(names) + "."


def did_you_mean(name: object, known: Iterable[str], n: int = 3) -> str:
    """Ask for the known names most like `name`, where the sentence names them all already; "" if none is like it."""
    close = difflib.get_close_matches(str(name), sorted(known), n=n, cutoff=0.5)
    return "Did you mean " + " or ".join(repr(c) for c in close) + "?" if close else ""


def note(error: BaseException, text: str) -> None:
    """Add a sentence to an error, shown below its traceback (from Python 3.11 on; kept in `__notes__` before).

    An error that takes none is left as it is.
    """
    with contextlib.suppress(Exception):
        notes = getattr(error, "__notes__", None)
        if notes is None:
            notes = []
            error.__notes__ = notes  # type: ignore[attr-defined]
        if text not in notes:
            notes.append(text)
