"""Which display a run gets: by what was asked for, and by what is on the other side."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.util import find_spec

from tachograph.drivers.among_ranks import local_rank
from tachograph.states.errors import CallerError

from .display import Display
from .json_lines import JsonLines
from .notebook_line import NotebookLine, in_notebook
from .plain import Plain
from .rich_line import RichLine
from .stream import Stream
from .tqdm_bar import TqdmBar
from .wording import Words

MODES = ("auto", "rich", "plain", "json", "tqdm")
_ALIASES = {"raw": "plain"}
"""What the reference trainer calls a mode -> what it is called here."""


def choose(mode: str | None, open_stream: Callable[[str], Stream], words: Words) -> Display | None:
    """Return the display for a mode; None where nothing is shown: by choice, or since another process shows it.

    Args:
        mode: one of `MODES`, or None.
        open_stream: gives the stream to write to, for the standard one that a mode writes to.
        words: how numbers are written.

    Raises:
        CallerError: there is no such mode, or what it needs isn't installed.
    """
    asked = _ALIASES.get(mode, mode) if isinstance(mode, str) else mode
    if asked is not None and asked not in MODES:
        raise CallerError(f"progress must be one of {', '.join(MODES)} or None, not {mode!r}")
    if asked == "tqdm" and find_spec("tqdm") is None:
        raise CallerError("progress 'tqdm' needs tqdm, which isn't installed: pip install 'tachograph[tqdm]'")
    if asked is None or local_rank() != 0:
        return None
    stream = open_stream("stdout" if asked == "json" or (in_notebook() and asked != "tqdm") else "stderr")
    return _KINDS[asked](stream)(stream, words)


def _live(stream: Stream) -> type[Display]:
    if not stream.given and in_notebook():
        return NotebookLine
    return RichLine if _is_terminal(stream) else Plain


def _auto(stream: Stream) -> type[Display]:
    kind = _live(stream)
    return Plain if kind is RichLine and in_ci() else kind


def _tqdm(stream: Stream) -> type[Display]:
    return TqdmBar if _is_terminal(stream) or (not stream.given and in_notebook()) else Plain


_KINDS: dict[str, Callable[[Stream], type[Display]]] = {
    "auto": _auto,
    "rich": _live,
    "plain": lambda stream: Plain,
    "json": lambda stream: JsonLines,
    "tqdm": _tqdm,
}


def _is_terminal(stream: Stream) -> bool:
    """Say whether a line can be drawn over again."""
    return stream.isatty() and os.environ.get("TERM", "").lower() not in ("dumb", "unknown")


def in_ci() -> bool:
    """Say whether a build server runs this program; its log shows every line that is drawn over as one more."""
    return os.environ.get("CI", "").lower() not in ("", "0", "false", "no")
