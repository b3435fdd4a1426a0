"""`TqdmBar`: tqdm draws the bar; the numbers beside it are ours. It has no thread: tqdm's monitor stays off."""

from __future__ import annotations

import threading
from typing import Any

from .display import Display
from .status import Status
from .stream import Stream
from .wording import MARGIN, Columns, Words, fit, joined

_BAR = 12  # columns for the bar, at least


class TqdmBar(Display):
    """Shows a run as a bar of tqdm's over the batches of an epoch."""

    name = "tqdm"
    live = True
    every = 0.2

    def __init__(self, stream: Stream, words: Words) -> None:
        super().__init__(stream, words)
        self._bar: Any = None
        self._columns = Columns()

    def update(self, status: Status) -> None:
        if self._bar is None:
            self._bar = _bar_class()(file=self.stream, leave=False, bar_format="{before}|{bar}|{after}", total=None)
        held, width = self._bar, self.stream.columns - MARGIN
        fields = fit(self._columns.padded(self.words.fields(status)), width - _BAR)
        left = {name: text for name, text in fields.items() if name in ("state", "epoch")}
        held.before, held.after = (
            _spaced(joined(part)) for part in (left, {n: t for n, t in fields.items() if n not in left})
        )
        held.before, held.after = held.before.lstrip(), held.after.rstrip()
        held.ncols, held.total, held.n = width, status.n_batches, status.batch or 0
        held.refresh()

    def print(self, text: str) -> None:
        if self._bar is None:
            self.stream.line(text)
        else:
            self._bar.write(text, file=self.stream)
            self.stream.flush()

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()
            self._bar = None


def _spaced(text: str) -> str:
    return f" {text} " if text else ""


def _bar_class() -> Any:
    from tqdm import tqdm

    class Bar(tqdm):  # type: ignore[misc, type-arg]
        monitor_interval = 0  # no thread
        before = after = ""

        @property
        def format_dict(self) -> Any:
            return {**super().format_dict, "before": self.before, "after": self.after}

    Bar.set_lock(threading.RLock())  # tqdm's own is one between processes
    return Bar
