"""`Stream`: where a display writes. A terminal that is gone, or a pipe nobody reads, never ends a run."""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import IO, Any

logger = logging.getLogger("tachograph")

_WIDE = 80  # columns where nobody says


class Stream:
    """Writes text to a file, to a path, or to one of the standard streams as it is at the time.

    Args:
        file: an open file; a path, which is opened when there is something to write, and appended to; or None.
        standard: what None stands for: "stdout" or "stderr".
    """

    def __init__(self, file: IO[str] | str | Path | None, standard: str = "stderr") -> None:
        self._given, self._standard = file, standard
        self._opened: IO[str] | None = None
        self._lost = False

    @property
    def given(self) -> bool:
        """Somebody said where to write."""
        return self._given is not None

    @property
    def file(self) -> Any:
        """What is written to; None where there is nothing, as in a program without a console."""
        if self._given is None:
            return getattr(sys, self._standard)
        if not isinstance(self._given, (str, Path)):
            return self._given
        if self._opened is None:
            self._opened = open(self._given, "a", encoding="utf-8")  # noqa: SIM115 - closed at the run's end
        return self._opened

    def write(self, text: str) -> int:
        """Write text; characters that the file can't hold are escaped."""
        self._try(self._write, text)
        return len(text)

    def flush(self) -> None:
        """Hand on what was written."""
        self._try(lambda: self.file.flush())

    def line(self, text: str) -> None:
        """Write a line, at once."""
        self.write(f"{text}\n")
        self.flush()

    def close(self) -> None:
        """Close what was opened here."""
        if self._opened is not None:
            self._try(self._opened.close)
            self._opened = None

    def isatty(self) -> bool:
        """Say whether a terminal is on the other side."""
        try:
            return not isinstance(self._given, (str, Path)) and bool(self.file.isatty())
        except (AttributeError, ValueError):
            return False

    @property
    def encoding(self) -> str:
        """The encoding of what is written."""
        return getattr(self.file, "encoding", None) or "utf-8"

    @property
    def columns(self) -> int:
        """How wide the terminal is; it may have changed."""
        try:
            columns = os.get_terminal_size(self.file.fileno()).columns
        except (AttributeError, OSError, ValueError):
            columns = 0
        return columns or _number_of(os.environ.get("COLUMNS", "")) or _WIDE

    def _write(self, text: str) -> None:
        file = self.file
        try:
            file.write(text)
        except UnicodeEncodeError:
            encoding = self.encoding
            file.write(text.encode(encoding, "backslashreplace").decode(encoding))

    def _try(self, act: Any, *args: Any) -> None:
        if self._lost or self.file is None:
            return
        try:
            act(*args)
        except (OSError, ValueError) as error:  # ValueError: it is closed
            self._lost = True
            logger.warning("progress can't be shown any more (%s); the run goes on", error)


def _number_of(text: str) -> int:
    return int(text) if text.isdecimal() else 0
