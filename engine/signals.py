"""Signals raise a flag, and the run heeds it at its next transition. A second one acts at once."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

HEEDED: dict[int, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
"""Signal -> the handler that nobody has put another in place of."""
if hasattr(signal, "SIGUSR1"):  # what Slurm sends before a job's time is up; Windows has none
    HEEDED[signal.SIGUSR1] = signal.SIG_DFL


class Signals:
    """Within its `with` block, SIGINT, SIGTERM and SIGUSR1 call a function instead of striking in the middle of a step.

    Only in the main thread, and only where nobody has put a handler of their own in place. The handlers that were
    there are put back at the end, and as soon as one signal has come: so a second one does what it always did.

    Args:
        heed: called with the number of the signal.
    """

    def __init__(self, heed: Callable[[int], None]) -> None:
        self._heed = heed
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():
            for number, default in HEEDED.items():
                if signal.getsignal(number) is default:
                    self._before[number] = signal.signal(number, self._caught)
        return self

    def __exit__(self, *error: object) -> None:
        self._put_back()

    def _put_back(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def _caught(self, number: int, frame: FrameType | None) -> None:
        self._put_back()
        self._heed(number)
