"""Work beside the run: a thread for a task, and a thread that comes back about once a second.

Whoever needs either asks a `Background` for it, so that a simulation can do the same work without threads, at moments
of its own choice.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol


class Task(Protocol):
    """Work that was started."""

    def is_alive(self) -> bool:
        """Say whether it is still at work."""

    def join(self) -> None:
        """Wait for its end."""


class Pulse:
    """A thread that does a piece of work every so many seconds, while there is something to do.

    Args:
        work: what it does.
        every: seconds between being asked and doing it.
        name: the thread's.
    """

    def __init__(self, work: Callable[[], None], every: float, name: str) -> None:
        self._work = work
        self._every = every
        self._name = name
        self._wake = threading.Event()
        self._hurry = threading.Event()
        self._stopping = False
        self.thread: threading.Thread | None = None

    def ask(self) -> None:
        """Say that there is something to do; the first call starts the thread."""
        if self.thread is None:
            self.thread = threading.Thread(target=self._run, name=self._name, daemon=True)
            self.thread.start()
        self._wake.set()

    def hurry(self) -> None:
        """Have it done now instead of at the end of its time."""
        self._hurry.set()

    def _run(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            if not self._stopping:
                self._hurry.wait(self._every)
                self._hurry.clear()
            if self._stopping:
                return
            self._work()

    def stop(self) -> None:
        """End the thread, after what it is doing."""
        self._stopping = True
        self._wake.set()
        self._hurry.set()

    def join(self) -> None:
        """Wait for the thread's end, after `stop`."""
        if self.thread is not None and self.thread is not threading.current_thread():
            self.thread.join()

    def forget(self) -> None:
        """Let go of the thread in a forked child, where it doesn't exist."""
        self.thread = None


_LOOK_UP = 0.5
"""Seconds after which a wait is begun anew: a signal that came just before it wasn't seen in it."""


class _Work(threading.Thread):
    """A thread that can be waited for again when a first wait was broken off by a signal.

    A plain one can't: in Python 3.10 to 3.12, `Thread.join` takes it for ended then (bpo-45274).
    """

    def __init__(self, work: Callable[[], None], name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._work = work
        self._go = threading.Lock()
        self._done = threading.Event()

    def start(self) -> None:
        """Begin, and go on at once: `Thread.start` waits for the new thread, which mustn't keep the interpreter."""
        self._go.acquire()
        super().start()
        self._go.release()

    def run(self) -> None:
        try:
            with self._go:
                pass
            self._work()
        finally:
            self._done.set()

    def join(self, timeout: float | None = None) -> None:
        while not self._done.wait(_LOOK_UP if timeout is None else timeout):
            if timeout is not None:
                return
        super().join()


class Background:
    """Does work in threads."""

    def start(self, work: Callable[[], None], name: str) -> Task:
        """Begin to do a piece of work; an error in it is its own to keep."""
        thread = _Work(work, name)
        thread.start()
        return thread

    def pulse(self, work: Callable[[], None], every: float, name: str) -> Pulse:
        """Return what does a piece of work every so many seconds, once it is asked to."""
        return Pulse(work, every, name)
