"""What a value is, with its article, for the middle of a sentence."""

from __future__ import annotations

from typing import Any


def a_kind(value: Any) -> str:
    """Return the name of a value's class with its article: "an int", "a DataLoader"."""
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


__all__ = ["a_kind"]
