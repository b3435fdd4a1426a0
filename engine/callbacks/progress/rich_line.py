"""`RichLine`: one line at the bottom of a terminal, drawn by rich; what stays is printed above it.

It has no thread of its own: rich's refresh thread and its capture of stdout stay off, since a live display deadlocks
workers that are forked under it. Nor does it hide the cursor, so that not even SIGKILL leaves a terminal without one.
"""

from __future__ import annotations

from typing import Any

from tachograph.engine.live import console_of, start_live

from .display import Display
from .status import Status
from .stream import Stream
from .wording import GAP, MARGIN, Columns, Words, bar, fit

_STYLES = {"state": "cyan", "epoch": "bold", "loss": "bold", "eta": "green", "saved": "dim", "results": "magenta"}
_BAR = (8, 40)  # columns that a bar takes, at least and at most


class RichLine(Display):
    """Shows a run in a live line of a terminal."""

    name = "rich"
    live = True
    every = 0.2

    def __init__(self, stream: Stream, words: Words) -> None:
        super().__init__(stream, words)
        self._console: Any = None
        self._live: Any = None
        self._columns = Columns()

    def update(self, status: Status) -> None:
        console = self._console_here()
        columns = self.stream.columns
        console.size = (columns, 25)
        if self._live is None:
            self._live = start_live(console)
            console.show_cursor(True)
        self._live.update(self._line(status, columns - MARGIN), refresh=True)

    def print(self, text: str) -> None:
        console = self._console_here()
        console.size = (self.stream.columns, 25)
        style = {"+++": "green", "---": "yellow"}.get(text[:3])
        console.print(text, style=style, highlight=False, markup=False, emoji=False, soft_wrap=True)

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _console_here(self) -> Any:
        if self._console is None:
            self._console = console_of(self.stream, force_terminal=True, force_jupyter=False)
        return self._console

    def _line(self, status: Status, width: int) -> Any:
        from rich.cells import cell_len
        from rich.text import Text

        fields = fit(self._columns.padded(self.words.fields(status)), width, cell_len)
        room = width - cell_len(GAP.join(fields.values())) - len(GAP)
        line = Text(no_wrap=True, overflow="crop", end="")
        for i, (name, text) in enumerate(fields.items()):
            line.append(GAP if i else "")
            line.append(text, _STYLES.get(name))
            if name == "batch" and room >= _BAR[0]:
                self._draw_bar(line, status, min(room, _BAR[1]))
        return line

    def _draw_bar(self, line: Any, status: Status, width: int) -> None:
        parts = bar(status, width)
        if parts is not None:
            full, empty = ("━", "─") if self.stream.encoding.lower().startswith("utf") else ("#", ".")
            line.append(GAP).append(full * parts[0], "cyan").append(empty * parts[1], "dim")
