"""`NotebookLine`: a live line in a notebook's output, through IPython's display; no widgets, no thread."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from .display import Display
from .status import Status
from .stream import Stream
from .wording import Columns, Words, fit, joined

_WIDE = 110  # columns; a notebook doesn't say


class NotebookLine(Display):
    """Shows a run in an output of a cell that is changed in place; what stays is printed."""

    name = "rich"
    live = True
    every = 0.2

    def __init__(self, stream: Stream, words: Words) -> None:
        super().__init__(stream, words)
        self._handle: Any = None
        self._columns = Columns()

    def update(self, status: Status) -> None:
        fields = self._columns.padded(self.words.fields(status))
        shown = {"text/plain": joined(fit(fields, _WIDE))}
        if self._handle is None:
            self._handle = import_module("IPython.display").display(shown, raw=True, display_id=True)
        else:
            self._handle.update(shown, raw=True)

    def close(self) -> None:
        self._handle = None


def in_notebook() -> bool:
    """Say whether a kernel runs this program: Jupyter, Colab, VS Code; not IPython in a terminal."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None
