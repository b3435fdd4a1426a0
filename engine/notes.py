"""Saying more about an error without replacing it: where it struck, and what else went wrong after it."""

from __future__ import annotations


def note(error: BaseException, text: str) -> None:
    """Add a sentence to an error, shown below its traceback (from Python 3.11 on; kept in `__notes__` before)."""
    notes = getattr(error, "__notes__", None)
    if notes is None:
        notes = []
        error.__notes__ = notes  # type: ignore[attr-defined]
    if text not in notes:
        notes.append(text)


def attach(first: BaseException, second: BaseException) -> None:
    """Attach a later error to the one that is raised, in words and as an object in `first.later`."""
    if second is first:
        return
    later = getattr(first, "later", None)
    if later is None:
        later = []
        first.later = later  # type: ignore[attr-defined]
    later.append(second)
    note(first, f"then, while ending the run, {type(second).__name__}: {second}")
