"""The tree of runs for a person: what a run goes on from, and what goes on from it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

from .screen import Screen, printable

_MOST = 60
"""Runs that are drawn; the others are counted."""


def print_tree(found: Mapping[str, Any] | None, screen: Screen, here: str = "") -> None:
    """Print the tree of runs.

    Args:
        found: what `family.family` found; None where a run stands alone.
        screen: where.
        here: the id of the run that is looked at.
    """
    if found is None:
        return
    lines = list(_lines(found["tree"], here, _branches()))
    remark = "the search was cut off: there are too many" if found["incomplete"] else ""
    screen.title("Tree of runs", remark)
    for line in _shown(lines, here):
        screen.line(f"  {line}")


def _shown(lines: list[tuple[str, str]], here: str) -> Iterator[str]:
    """The first lines, and that of the run itself; between them, how many are left out."""
    mine = next((i for i, (run, _) in enumerate(lines) if run == here), 0)
    kept = sorted({*range(min(_MOST, len(lines))), mine})
    before = -1
    for i in kept:
        if i > before + 1:
            yield f"... {i - before - 1:,} more"
        yield lines[i][1]
        before = i
    if before + 1 < len(lines):
        yield f"... {len(lines) - before - 1:,} more"


def _lines(top: Mapping[str, Any], here: str, drawn: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Yield (id, line) of a run and of what is below it; without recursion, since a tree may be deep."""
    fork, last, bar, gap = drawn
    stack = [(top, "", "")]
    while stack:
        kin, own, below = stack.pop()
        yield kin["run"], own + _named(kin, here)
        children = kin["children"]
        for i, child in reversed(list(enumerate(children))):
            ends = i == len(children) - 1
            stack.append((child, below + (last if ends else fork), below + (gap if ends else bar)))


def _named(kin: Mapping[str, Any], here: str) -> str:
    where = f"run {kin['run']}, which isn't found here" if kin["run_dir"] is None else kin["run_dir"]
    since = "" if kin["seq"] is None else f"from {kin['seq']:,}: "
    created = f"  {kin['created'][:19].replace('T', ' ')}" if kin["created"] else ""
    mine = "  <- this run" if kin["run"] == here else ""
    return printable(f"{since}{where}{created}{mine}")


def _branches() -> tuple[str, str, str, str]:
    unicode = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    return ("├─ ", "└─ ", "│  ", "   ") if unicode else ("|- ", "`- ", "|  ", "   ")


__all__ = ["print_tree"]
