"""Dry replay: the listeners of today over a journal of last month. No torch, no data, no device."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tachograph.states import Event, Machine, training_machine
from tachograph.states.errors import CallerError

from .callbacks.callback import Callback
from .journal import Journal, Record
from .listeners import Listeners

_NEEDS_MORE = ("on_train_batch_begin", "on_before_backward", "on_validate_batch_begin")
"""Moments whose listeners are given tensors, which no journal holds."""


class Replay:
    """Drives listeners from a run's journal, with the same calls and values as live.

    Listeners are given this object in the trainer's place: it has `trainer_state`, `last_loss`, `exception`, `run_dir`
    and `announced_until`. What lies inside a step isn't in a journal and isn't heard.

    Args:
        run_dir: a run directory.
        machine: the machine whose run it is; None means the training machine.
        rank: whose journal.

    Attributes:
        trainer_state: the state after the transition that is being heard.
        skipped: the moments that were subscribed to and can't be replayed.
    """

    def __init__(self, run_dir: str | Path, machine: Machine | None = None, *, rank: int = 0) -> None:
        self.run_dir = Path(run_dir)
        self.journal = Journal(run_dir, rank=rank)
        self.machine = training_machine() if machine is None else machine
        self.listeners = Listeners(self.machine)
        self.trainer_state: Any = None
        self.last_loss: float | None = None
        self.exception: BaseException | None = None
        self.batch: Any = None
        self.batch_indices: Any = None
        self.announced_until = 0
        self.driver = None
        self.state = SimpleNamespace()
        self.skipped: list[str] = []

    def on(self, target: Any, fn: Callable[..., Any] | None = None, *, priority: int = 0) -> Any:
        """Subscribe a function, as `Engine.on` does.

        Returns:
            This replay, to go on with `.on(...)` or `.run()`; without `fn`, a decorator.
        """
        if fn is None:
            return lambda listener: (self.on(target, listener, priority=priority), listener)[1]
        self.listeners.add(target, fn, priority=priority)
        return self

    def add_callback(self, callback: Callback) -> Replay:
        """Subscribe a callback's moments."""
        self.listeners.add_callback(callback)
        return self

    def run(self, stop: int | Callable[[Record], bool] | None = None) -> Any:
        """Go through the journal.

        Args:
            stop: the transition to stop after, or `f(record) -> bool`, asked after each; None goes to the end.

        Returns:
            The state after the last transition that was heard; None if there was none.

        Raises:
            CallerError: the journal has an event that the machine doesn't know.
            JournalCorrupt: the journal is damaged there.
        """
        without = self._skip()
        heard = self.listeners.index
        for record in self.journal:
            event = self._event(record)
            self.trainer_state = record.state
            loss = getattr(event, "loss", None)
            self.last_loss = self.last_loss if loss is None else loss
            if record.event == "Failed":
                self.exception = RuntimeError(f"{record.data.get('kind')}: {record.data.get('error')}")
            for fn, give in heard[record.source, type(event), record.dest]:
                if fn not in without:
                    fn(self) if give is None else fn(self, *give(self, event))
            if stop is not None and (stop(record) if callable(stop) else record.seq >= stop):
                break
        for callback in self.listeners.callbacks.values():
            callback.replayed(self)
        return self.trainer_state

    def _event(self, record: Record) -> Event:
        try:
            return self.machine.event_classes[record.event](**record.data)
        except (KeyError, TypeError) as error:
            raise CallerError(
                f"transition {record.seq} of {self.run_dir} is {record.event}, which this machine doesn't know so: "
                "give replay() the machine of the run"
            ) from error

    def _skip(self) -> set[Callable[..., Any]]:
        """Say which moments can't be replayed, and return what would be called there."""
        inside = self.listeners.inside
        self.skipped = sorted(name for name in _NEEDS_MORE if name in inside)
        if self.skipped:
            warnings.warn(f"not replayed, since a journal holds no tensors: {', '.join(self.skipped)}", stacklevel=3)
        return {fn for name in self.skipped for fn in inside[name]}


def replay(run_dir: str | Path, machine: Machine | None = None, *, rank: int = 0) -> Replay:
    """Replay a run's journal: `replay(run_dir).on("step -> validate", fn).run()`.

    Args:
        run_dir: a run directory.
        machine: the machine whose run it is; None means the training machine.
        rank: whose journal.

    Raises:
        JournalError: it isn't a run directory, has no such rank, or its format is newer.
    """
    return Replay(run_dir, machine, rank=rank)
