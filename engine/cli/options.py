"""What options take: numbers and ranks, each refused in one sentence."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Literal


def number(least: int = 0) -> Callable[[str], int]:
    """Return the type of an option that takes a number from `least` on."""

    def read(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} isn't a number >= {least}")
        return int(text)

    return read


def rank(text: str) -> int:
    """Read the number of a rank."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} isn't the number of a rank")
    return int(text)


def rank_or_all(text: str) -> int | Literal["all"]:
    """Read the number of a rank, or "all"."""
    if text != "all" and not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} isn't the number of a rank, nor 'all'")
    return "all" if text == "all" else int(text)
