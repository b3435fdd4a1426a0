"""`ModelSummary`: says what a model is made of when its training begins."""

from __future__ import annotations

from typing import Any

from tachograph.states.errors import CallerError

from .callback import Callback

_HEAD = ("module", "kind", "values", "trainable", "size")


class ModelSummary(Callback):
    """Says a table of the model's modules when training begins.

    It tells how many values their parameters hold, how many of them are trained, and how many bytes they take with
    their buffers. No forward pass is made for it, and it isn't said again after a resume. Of many ranks the first says
    it.

    Args:
        depth: how deep to go into the modules; 0 means the whole only, -1 everything.

    Raises:
        CallerError: it is no such number.
    """

    replays = False
    outside_effects = True  # what a process before this one has said isn't said again
    in_quick_pass = True
    in_rehearsal = False

    def __init__(self, depth: int = 1) -> None:
        if type(depth) is not int or depth < -1:
            raise CallerError(f"depth must be -1 (everything) or an integer >= 0, not {depth!r}")
        self._depth = depth

    def on_train_begin(self, trainer: Any) -> None:
        rows = trainer.driver.summary(self._depth)
        if rows and trainer.ranks.first:
            trainer.say(as_text(rows))


def as_text(rows: list[dict[str, Any]]) -> str:
    """Write the rows of `Driver.summary` as a table; the whole, which comes first in them, is its last line."""
    whole, *parts = rows
    lines = [_HEAD, *(_cells(row, row["name"]) for row in parts), _cells(whole, "in all")]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(_line(cells, widths) for cells in lines)


def _cells(row: dict[str, Any], name: str) -> tuple[str, ...]:
    return name, row["kind"], f"{row['parameters']:,}", f"{row['trainable']:,}", _size(row["bytes"])


def _size(held: float) -> str:
    for unit in ("B", "KiB", "MiB"):
        if held < 1024:
            return f"{held:.4g} {unit}"
        held /= 1024
    return f"{held:.4g} GiB"


def _line(cells: tuple[str, ...], widths: list[int]) -> str:
    left, right = zip(cells[:2], widths[:2], strict=True), zip(cells[2:], widths[2:], strict=True)
    return "  ".join([*(c.ljust(w) for c, w in left), *(c.rjust(w) for c, w in right)])
