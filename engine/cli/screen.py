"""How output looks: text for a person, JSON for a program. What is said is decided elsewhere.

In a terminal there is a little bold and dim; in a pipe, with TERM=dumb or with NO_COLOR there are no escape codes, and
a row stays on one line whatever its length. rich lays out the tables, and is imported for the first one.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
import textwrap
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_CODES = {"bold": "1", "dim": "2", "red": "31"}
GLUE = "\ue000"
"""In a table, a space that no line is broken at; it is written as a space."""
_ENDLESS = 10_000  # columns of a pipe
_CONTROL = {i: f"\\x{i:02x}" for i in [*range(32), *range(127, 160)]} | {9: "\\t", 10: "\\n", 13: "\\r"}


class Screen:
    """Standard output.

    Attributes:
        decorated: escape codes are understood there.
        width: columns.
    """

    def __init__(self) -> None:
        terminal = sys.stdout.isatty()
        self.decorated = terminal and os.environ.get("TERM") not in (None, "", "dumb", "unknown") and not _no_color()
        self.width = shutil.get_terminal_size().columns if terminal or os.environ.get("COLUMNS") else _ENDLESS
        self._console: Any = None

    def style(self, text: str, name: str) -> str:
        """Return text in a style: "bold", "dim" or "red"."""
        return f"\x1b[{_CODES[name]}m{text}\x1b[0m" if self.decorated and text else text

    def line(self, text: str = "") -> None:
        """Print a line."""
        sys.stdout.write(f"{text}\n")

    def title(self, text: str, remark: str = "") -> None:
        """Print a section's title, after an empty line."""
        self.line(f"\n{self.style(text, 'bold')}{self.style(f'  {remark}' if remark else '', 'dim')}")

    def pairs(self, rows: Iterable[tuple[str, str]]) -> None:
        """Print names and values in two columns; a long value is wrapped within its own."""
        held = [row for row in rows if row[1]]
        label = max((len(name) for name, _ in held), default=0) + 4
        for name, value in held:
            room = max(self.width - label, 20)
            first, *rest = textwrap.wrap(value, room, break_on_hyphens=False) or [""]
            self.line(self.style(f"  {name}".ljust(label), "dim") + first)
            for more in rest:
                self.line(" " * label + more)

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[str] | str]) -> None:
        """Print a table.

        Args:
            columns: their names. "<name" is set to the left, "~name" as well and wrapped where there is no room; other
                columns are set to the right.
            rows: a text for each column, or one text that stands for rows left out.
        """
        from rich.table import Table
        from rich.text import Text

        held = list(rows)
        used = [i for i in range(len(columns)) if any(row[i] for row in held if not isinstance(row, str))]
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
        for name in (columns[i] for i in used):
            left, wrapped = name[:1] in ("<", "~"), name[:1] == "~"
            table.add_column(
                name.lstrip("<~"), justify="left" if left else "right", no_wrap=not wrapped, overflow="fold"
            )
        for row in held:
            cells = [Text(row, "dim")] if isinstance(row, str) else [Text(row[i]) for i in used]
            table.add_row(*cells)
        self._print(table)

    def _print(self, table: Any) -> None:
        if self._console is None:
            from rich.console import Console

            self._console = Console(
                force_terminal=self.decorated,
                color_system="standard" if self.decorated else None,
                width=self.width - 2,
                legacy_windows=False,
            )
        with self._console.capture() as captured:
            self._console.print(table)
        for line in captured.get().splitlines():
            self.line(f"  {line}".rstrip().replace(GLUE, " "))

    def json(self, value: Any, *, indent: int | None = None) -> None:
        """Print a value as JSON; NaN and infinities as the strings "nan", "inf", "-inf"."""
        escaped = (sys.stdout.encoding or "").lower().replace("-", "") != "utf8"
        self.line(json.dumps(plain(value), indent=indent, ensure_ascii=escaped, default=str))


def _no_color() -> bool:
    return bool(os.environ.get("NO_COLOR"))


def plain(value: Any) -> Any:
    """Return a value with floats that JSON hasn't as strings, as the journal writes them."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def text(value: Any) -> str:
    """Write a recorded value for a person: floats with six digits, lists of one as what they hold."""
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, dict):
        return "  ".join(f"{key} {text(item)}" for key, item in value.items())
    if isinstance(value, (list, tuple)):
        return text(value[0]) if len(value) == 1 else "[" + ", ".join(map(text, value)) + "]"
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    return printable(str(value))


def exact(value: Any) -> str:
    """Write a value as Python does, every digit of it; text as it is."""
    return printable(value if isinstance(value, str) else repr(value)) or '""'


def results(held: Mapping[str, Any], glue: str = " ") -> str:
    """Write an evaluation's results; names that begin with an underscore are the program's own."""
    shown = {name: value for name, value in held.items() if not name.startswith("_")}
    return "  ".join(f"{printable(name)}{glue}{text(value)}" for name, value in shown.items())


def printable(line: str) -> str:
    """Return text on one line, with control characters written out: what was recorded can't steer the terminal."""
    return line.translate(_CONTROL)


_UNCLOSED = {
    "running": "still running",
    "killed": "killed",
    "unknown": "running or killed: its process isn't on this machine",
}


def ended(life: Mapping[str, Any]) -> str:
    """Write how a life of a run ended, as `alive.ending` tells it."""
    how, detail = life["ended"], printable(life["detail"])
    if how in _UNCLOSED:
        return _UNCLOSED[how]
    return detail if how == "closed" and detail else f"{how}: {detail}" if detail else how


def clock(seconds: float, *, date: bool = True) -> str:
    """Write a time since 1970 in local time."""
    moment = time.localtime(seconds)
    if date:
        return time.strftime("%Y-%m-%d %H:%M:%S", moment)
    return f"{time.strftime('%H:%M:%S', moment)}.{int(seconds * 1000) % 1000:03d}"


def duration(seconds: float) -> str:
    """Write a length of time with its unit, in three digits or two units."""
    if seconds < 0.9995:  # what rounds to 1,000 ms is 1 s
        return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.0f} us"
    if seconds < 59.95:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes}m {rest:02d}s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h {minutes:02d}m" if hours < 48 else f"{hours // 24}d {hours % 24}h"


def size(count: int) -> str:
    """Write a number of bytes."""
    amount = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 999.5:
            return f"{amount:.3g} {unit}"
        amount /= 1000
    return f"{amount:.3g} TB"
