"""Signals raise a flag, and the run heeds it at its next transition. A second one acts at once.

A process that was launched may be told twice of one thing: Slurm signals every process of a job's step, and torchrun,
which is one of them, passes the signal on. So there the same signal again is no second one if it comes soon.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

from tachograph.drivers.launch_environment import world_size_of

HEEDED: dict[int, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
"""Signal -> the handler that nobody has put another in place of."""
if hasattr(signal, "SIGUSR1"):  # what Slurm sends before a job's time is up; Windows has none
    HEEDED[signal.SIGUSR1] = signal.SIG_DFL
SOON = 3.0
"""Seconds in which the same signal is taken for the first one, in a process that was launched with others."""


class Signals:
    """Within its `with` block, SIGINT, SIGTERM and SIGUSR1 call a function instead of striking in the middle of a step.

    Only in the main thread, and only where nobody has put a handler of their own in place. The handlers that were
    there are put back at the end, and as soon as one signal has come: so a second one does what it always did.

    Args:
        heed: called with the number of the signal.
        soon: seconds in which the same signal again isn't a second one; None: `SOON` in a process that was launched
            with others, else 0.
    """

    def __init__(self, heed: Callable[[int], None], soon: float | None = None) -> None:
        self._heed = heed
        self._before: dict[int, Any] = {}
        self._soon = (SOON if world_size_of() > 1 else 0.0) if soon is None else soon
        self._first: int | None = None
        self._at = 0.0

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
        if self._first is None:
            self._first, self._at = number, time.monotonic()
            if not self._soon:
                self._put_back()
            self._heed(number)
        elif number != self._first or time.monotonic() - self._at >= self._soon:
            self._put_back()
            os.kill(os.getpid(), number)
