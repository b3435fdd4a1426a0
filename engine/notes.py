"""Saying more about an error without replacing it: where it struck, and what else went wrong after it.

Errors come from anywhere, so nothing is taken for granted here: one may refuse attributes, or fail to say what it is.
"""

from __future__ import annotations

import contextlib

from tachograph.states.errors import note


def attach(first: BaseException, second: BaseException) -> None:
    """Attach a later error to the one that is raised, in words and as an object in `first.later`."""
    if second is first:
        return
    with contextlib.suppress(Exception):
        later = getattr(first, "later", None)
        if later is None:
            later = []
            first.later = later  # type: ignore[attr-defined]
        if not any(held is second for held in later):
            later.append(second)
    note(first, f"then, while ending the run, {type(second).__name__}: {message(second)}")


def message(error: BaseException) -> str:
    """Return an error's message, as text that any file takes; what can't be said is replaced by a word on that."""
    try:
        return str(error).encode("utf-8", "backslashreplace").decode()
    except Exception as fault:
        return f"(its message can't be told: {type(fault).__name__})"


__all__ = ["attach", "message", "note"]
