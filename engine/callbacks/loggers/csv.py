"""`CSVLogger`: a file of comma-separated values, one line a step."""

from __future__ import annotations

import csv
import io
import os
from pathlib import Path
from typing import Any

from tachograph.engine.journal import Files, write_file

from .appending import append
from .logger import Logger


class CSVLogger(Logger):
    """Writes `metrics.csv`: a column for each name, in the order in which they came up, and a line for each step.

    A number reads back as the same number; a value that a step doesn't have is empty. Each line is handed to the system
    as soon as its step is over. When a new name comes up, or lines are taken back, the file is replaced by a new one as
    a whole. The file of a run that was killed and resumed has the same bytes as that of a straight run.

    Args:
        monitor, larger_better, log_exception, log_loss_every: as of `Logger`, as are all others.

    Attributes:
        path: the file; None before the run.
    """

    kind = "csv"
    path: Path | None = None

    def _forget(self) -> None:
        super()._forget()
        self.path = None

    def open(self, folder: Path, memory: dict[str, Any]) -> None:
        self.path = folder / "metrics.csv"
        self._files = Files()
        self._fd: int | None = None
        self._columns = ["step"]

    def purge(self, after: int) -> None:
        assert self.path is not None
        held = self.path.read_bytes() if self.path.exists() else b""
        whole = held[: held.rfind(b"\n") + 1]  # a line may have been torn
        lines = list(csv.reader(io.StringIO(whole.decode(), newline="")))
        self._columns, rows = (lines[0], lines[1:]) if lines else (["step"], [])
        kept = [dict(zip(self._columns, row, strict=False)) for row in rows if int(row[0]) <= after]
        if len(kept) < len(rows) or whole != held:
            still = dict.fromkeys(name for row in kept for name, value in row.items() if value and name != "step")
            self._replace(kept, ["step", *still])

    def write(self, step: int, values: dict[str, Any]) -> None:
        row = {"step": step, **values}
        new = [name for name in row if name not in self._columns]
        if new:
            self._widen(new)
        if self._fd is None:
            self._append_to_file()
        assert self._fd is not None
        append(self._fd, _lines([[row.get(name, "") for name in self._columns]]))

    def close(self) -> None:
        if self._fd is not None:
            fd, self._fd = self._fd, None
            try:
                self._files.fdatasync(fd)
            finally:
                self._files.close(fd)

    def _append_to_file(self) -> None:
        assert self.path is not None
        if not self.path.exists():
            self._replace([], self._columns)
        self._fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)

    def _widen(self, new: list[str]) -> None:
        assert self.path is not None
        rows: list[dict[str, Any]] = []
        if self.path.exists():
            with self.path.open(encoding="utf-8", newline="") as file:
                rows = list(csv.DictReader(file))
        self._replace(rows, [*self._columns, *new])

    def _replace(self, rows: list[dict[str, Any]], columns: list[str]) -> None:
        """Put a new file in the place of the old one, whole or not at all."""
        assert self.path is not None
        self.close()
        temporary = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        temporary.unlink(missing_ok=True)
        text = _lines([columns, *([row.get(name, "") for name in columns] for row in rows)])
        try:
            write_file(self._files, temporary, text)
            self._files.rename(temporary, self.path)
        except OSError:
            temporary.unlink(missing_ok=True)
            raise
        self._columns = columns


def _lines(rows: list[list[Any]]) -> bytes:
    held = io.StringIO(newline="")
    csv.writer(held, lineterminator="\n").writerows(rows)
    return held.getvalue().encode()
