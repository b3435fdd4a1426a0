"""`ThroughputMonitor`: hands the rate of training to the loggers."""

from __future__ import annotations

from typing import Any

from tachograph.engine import arguments

from .callback import Callback


class ThroughputMonitor(Callback):
    """Logs samples and batches per second, as "throughput/samples" and "throughput/batches", every n batches.

    It is the rate since the last time, without the evaluations between, and the samples are those of all ranks. A clock
    is looked at then only, and no device.

    Args:
        every: batches of the run between two values, >= 1.

    Raises:
        CallerError: it is none.
    """

    def __init__(self, every: int = 100) -> None:
        self._every = arguments.count(every, "every")
        self._from: tuple[float, int, int] | None = None  # when it was looked at last, and the counts then
        self._evaluating: float | None = None

    def on_train_begin(self, trainer: Any) -> None:
        self._look(trainer)

    def on_after_resume(self, trainer: Any, report: Any) -> None:
        self._look(trainer)

    def on_continue(self, trainer: Any) -> None:
        self._look(trainer)

    def on_validate_begin(self, trainer: Any) -> None:
        self._evaluating = trainer.world.timer()

    def on_validate_end(self, trainer: Any, results: dict[str, Any]) -> None:
        if self._evaluating is not None and self._from is not None:
            then, batches, samples = self._from
            self._from = (then + trainer.world.timer() - self._evaluating, batches, samples)
        self._evaluating = None

    def on_train_batch_end(self, trainer: Any) -> None:
        if trainer.trainer_state.global_forward_batches % self._every:
            return
        before = self._from
        now, batches, samples = self._look(trainer)
        if before is not None and now > before[0]:
            seconds = now - before[0]
            rates = {"samples": (samples - before[2]) / seconds, "batches": (batches - before[1]) / seconds}
            trainer.log({f"throughput/{name}": rate for name, rate in rates.items()})

    def _look(self, trainer: Any) -> tuple[float, int, int]:
        state = trainer.trainer_state
        self._from = (trainer.world.timer(), state.global_forward_batches, state.samples)
        return self._from
