"""`LRMonitor`: hands the learning rates to the loggers."""

from __future__ import annotations

from typing import Any

from tachograph.engine import arguments

from ..events import Events
from .callback import Callback

_LAST = -(1 << 30)


class LRMonitor(Callback):
    """Logs the learning rates that every n-th update uses: "lr", or "lr/0", "lr/1", ... for several parameter groups.

    The numbers are those of the record's `lr`: the groups of the first optimizer, then those of the second, and so on.
    It looks when everybody else has heard that the update comes, so `Warmup` has set them.

    Args:
        every: of how many updates one is logged, >= 1.

    Raises:
        CallerError: it is none.
    """

    replays = False

    def __init__(self, every: int = 1) -> None:
        self._every = arguments.count(every, "every")

    def on_after_trainer_initialized(self, trainer: Any, driver: Any) -> None:
        trainer.listeners.add(Events.on_before_optimizer_step, self._look, priority=_LAST, owner=self)

    def _look(self, trainer: Any, optimizers: Any) -> None:
        if (trainer.trainer_state.optimizer_steps + 1) % self._every or not trainer.listeners.inside.get("on_log"):
            return
        rates = trainer.driver.learning_rates()
        trainer.log({"lr" if len(rates) == 1 else f"lr/{i}": rate for i, rate in enumerate(rates)})
