"""Showing a person how far an evaluation is that runs by itself; a trainer's is shown by its `Progress`."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

from tachograph.states.errors import CallerError

from .live import console_of, start_live

_MODES = {"auto": "auto", "rich": "rich", "plain": "plain", "raw": "plain", "tqdm": "rich"}
_EVERY = {"rich": 0.2, "plain": 10.0}  # seconds between two updates


class PassProgress:
    """Shows batches and time, on stderr.

    Args:
        mode: "rich": one live line for each loader; "plain": a line at its end, and about every ten seconds; "auto":
            rich in a terminal, else nothing; None: nothing. "raw" and "tqdm", the reference trainer's words, mean plain
            and rich.
        file: where to write; None means stderr.

    Raises:
        CallerError: the mode isn't known.
    """

    def __init__(self, mode: str | None, file: IO[str] | None = None) -> None:
        if mode is not None and mode not in _MODES:
            raise CallerError(f"progress_bar must be one of {', '.join(_MODES)} or None, not {mode!r}")
        wanted = None if mode is None else _MODES[mode]
        self._file = file
        self.mode = ("rich" if (file or sys.stderr).isatty() else None) if wanted == "auto" else wanted
        self._live: Any = None
        self._text: Any = None
        self._title = ""
        self._done, self._of = 0, ""
        self._began = self._shown = 0.0

    @contextmanager
    def of(self, name: str, length: int | None) -> Iterator[None]:
        """Show the pass over one loader.

        Args:
            name: what it is called.
            length: batches used of it; None where that isn't known.
        """
        if self.mode is None:
            yield
            return
        self._title = f"evaluating {name}".rstrip()
        self._done, self._of = 0, "" if length is None else f"/{length}"
        self._began = self._shown = time.monotonic()
        try:
            yield
        finally:
            if self._live is not None:
                self._live.stop()
                self._live = None
            if self.mode == "plain":
                self._print(self._line())

    def moves(self, done: int) -> None:
        """Hear how many batches are done."""
        if self.mode is None:
            return
        self._done = done
        now = time.monotonic()
        if now - self._shown < _EVERY[self.mode]:
            return
        self._shown = now
        if self.mode == "plain":
            self._print(self._line())
        else:
            if self._live is None:
                self._live = self._start()
            self._live.update(self._text(self._line()), refresh=True)

    def _line(self) -> str:
        spent = time.monotonic() - self._began
        return f"{self._title}: batch {self._done:,}{self._of}  {spent:.1f} s"

    def _print(self, line: str) -> None:
        print(line, file=self._file or sys.stderr, flush=True)

    def _start(self) -> Any:
        console = console_of(self._file or sys.stderr)
        from rich.text import Text

        self._text = Text  # whose digits aren't coloured
        return start_live(console)
