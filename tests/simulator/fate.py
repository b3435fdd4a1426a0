"""What befalls one process: it is killed, signalled or struck by an error at one of the moments it passes."""

from __future__ import annotations

import signal
from typing import Any

from tachograph.engine.signals import Signals

from .disk import Disk, Killed
from .plan import Event


class Fate:
    """Strikes a process where it passes by.

    Args:
        events: what is to befall it.
        disk: its disk; it knows whether the process is dead.
        announced: the last transition that processes before it had announced.

    Attributes:
        struck: what has befallen it, with the place.
        early: transitions that somebody heard of before they were handed to the journal.
    """

    def __init__(self, events: tuple[Event, ...], disk: Disk, announced: int) -> None:
        self.struck: list[tuple[Event, str]] = []
        self.early: list[int] = []
        self._events = list(events)
        self._disk = disk
        self._announced = announced

    def pass_by(self, process: Any, moment: str) -> None:
        """Let a process pass a moment, or not."""
        if self._disk.dead:
            raise Killed
        if moment == "first listener":
            self._look(process.trainer.trainer_state)
        for event in [event for event in self._events if event.at <= process.moments]:
            handler: Any = signal.getsignal(event.signal) if event.kind == "signal" else None
            if event.kind == "signal" and not isinstance(getattr(handler, "__self__", None), Signals):
                continue  # it comes when it is heeded
            if event.kind == "error" and self._disk.beside and not isinstance(event.error, Exception):
                continue  # no thread but the main one is interrupted
            self._events.remove(event)
            self.struck.append((event, f"{event}, {moment}, in '{process.trainer.trainer_state.state}'"))
            if event.kind == "kill":
                self._disk.kill()
            if event.kind == "signal":
                handler(event.signal, None)
            elif event.error is not None:
                raise event.error

    def _look(self, state: Any) -> None:
        committed = self._disk.last_line.startswith(b'{"seq":%d,' % state.seq) or state.seq <= self._announced
        if not committed and state.state != "exception":  # how it ended is no announcement
            self.early.append(state.seq)
