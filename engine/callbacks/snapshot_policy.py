"""`SnapshotPolicy`: says when a snapshot is due. The engine takes it after everybody has heard the transition."""

from __future__ import annotations

import re
from typing import Any

from tachograph.states import Machine
from tachograph.states.errors import CallerError

from ..events import hangs_on
from ..retention import Keep
from .callback import Callback

_UNITS = {"s": 1.0, "sec": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0}


class SnapshotPolicy(Callback):
    """Asks for snapshots by a policy. `Trainer(snapshot_every=...)` makes one.

    Args:
        every: "epoch": at each epoch's end; an int n > 0: after every n training batches of the run; a time ("30s",
            "10min", "2h"): at the first batch that is done when so much time has passed, on the clock of rank 0 where
            there are many; None: never. An engine whose machine counts no batches has its transitions counted.
        keep: the rules that snapshots are kept by. If they look for the best, each evaluation's results must have what
            they look at.

    Raises:
        CallerError: `every` is none of these; or, at the first evaluation, the results lack `keep`'s monitor.
    """

    replays = False

    def __init__(self, every: int | str | None = "epoch", keep: Keep | None = None) -> None:
        self.every = every
        self.has_work = every is not None or (keep is not None and keep.best > 0)
        self._batches = every if type(every) is int else 0
        self._seconds = in_seconds(every) if isinstance(every, str) and every != "epoch" else 0.0
        self._last: float | None = None
        self._everywhere: list[str] = []
        self._looks = keep is not None and keep.best > 0
        if not (every is None or every == "epoch" or self._batches > 0 or self._seconds > 0):
            raise CallerError(
                "snapshot_every must be 'epoch', a number of batches > 0, a time such as '10min', or None, "
                f"not {every!r}"
            )
        if self._batches or self._seconds:  # heard per batch only where the policy needs it
            self.on_train_batch_end = self._count if self._batches else self._watch  # type: ignore[method-assign]
        if self._seconds:
            self.on_train_epoch_begin = self._begin  # type: ignore[method-assign]
            self.on_after_resume = lambda trainer, report: self._begin(trainer)  # type: ignore[method-assign]
        if keep is not None and keep.best:  # a name that isn't there is no matter to find out hours later
            self.on_sanity_check_end = lambda trainer, sanity_check_res: _look(keep, sanity_check_res)  # type: ignore[method-assign]
            self.on_validate_end = lambda trainer, results: _look(keep, results)  # type: ignore[method-assign]

    def fit(self, machine: Machine, state: Any) -> None:
        """Count transitions where a machine counts no batches; called before it is registered.

        Args:
            machine: the table.
            state: a state of the engine's.

        Raises:
            CallerError: "epoch", and no epoch ever ends.
        """
        fires = {moment for row in machine.rows for moment in hangs_on(row.source, row.event.__name__, row.dest)}
        if self.every == "epoch" and "on_train_epoch_end" not in fires:
            raise CallerError(
                "snapshot_every='epoch', but no epoch ends in this machine (no row has EpochEnded): give a number of "
                "transitions, a time such as '10min', or have a listener call engine.request_snapshot()"
            )
        counts = "on_train_batch_end" in fires and hasattr(state, "global_forward_batches")
        if not counts and (self._batches or self._seconds):
            del self.on_train_batch_end
            self._everywhere = [name for name in machine.names if name not in machine.final]

    def subscribe(self, listeners: Any) -> None:
        for name in self._everywhere:
            listeners.add(name, self._count_transitions if self._batches else self._watch, owner=self)

    def _count_transitions(self, trainer: Any) -> None:
        if trainer.trainer_state.seq % self._batches == 0:
            trainer.request_snapshot(on_all_ranks=True)

    def on_after_trainer_initialized(self, trainer: Any, driver: Any) -> None:
        self._last = None
        if self._looks:
            _check(trainer)

    def _count(self, trainer: Any) -> None:
        if trainer.trainer_state.global_forward_batches % self._batches == 0:
            trainer.request_snapshot(on_all_ranks=True)

    def _begin(self, trainer: Any) -> None:
        if self._last is None:
            self._last = trainer.world.timer()

    def _watch(self, trainer: Any) -> None:
        now = trainer.world.timer()
        if self._last is None:
            self._last = now
        if now - self._last >= self._seconds:
            self._last = now
            if trainer.ranks.first:  # every rank's clock would ask, one a batch after the other
                trainer.request_snapshot()

    def on_train_epoch_end(self, trainer: Any) -> None:
        if self.every == "epoch":
            trainer.request_snapshot(on_all_ranks=True)


def _check(trainer: Any) -> None:
    if getattr(trainer, "evaluator", None) is None:
        raise CallerError("keep_snapshots: the best ones are those with the best results, so give the trainer metrics")


def _look(keep: Keep, results: dict[str, Any]) -> None:
    try:
        keep.value(results)
    except CallerError as error:
        raise CallerError(f"keep_snapshots: {error}") from None


def in_seconds(text: str) -> float:
    """Read a time such as "30s", "10min" or "2h"; 0 if it isn't one."""
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]+)\s*", text)
    return float(match[1]) * _UNITS.get(match[2], 0.0) if match else 0.0
