"""`GradNormMonitor`: hands the norm of the gradients to the loggers."""

from __future__ import annotations

from typing import Any

from tachograph.engine import arguments
from tachograph.states.errors import CallerError

from .callback import Callback


class GradNormMonitor(Callback):
    """Logs the norm of all gradients, as "grad_norm", before every n-th update.

    It is that of the gradients as this callback finds them: registered before `GradClip`, that of the unclipped ones.
    It is computed for those updates alone, and only where somebody listens to `on_log`; then the device is waited for.

    Args:
        every: of how many updates one is logged, >= 1.
        norm_type: of the norm, 2.0 or float("inf") say; > 0.
        name: what it is logged as.

    Raises:
        CallerError: an argument can't be used.
    """

    def __init__(self, every: int = 1, norm_type: float = 2.0, name: str = "grad_norm") -> None:
        if type(norm_type) not in (int, float) or not norm_type > 0:
            raise CallerError(f"norm_type must be a number > 0, not {norm_type!r}")
        self._every, self._norm_type, self._name = arguments.count(every, "every"), float(norm_type), name

    def on_before_optimizer_step(self, trainer: Any, optimizers: Any) -> None:
        if (trainer.trainer_state.optimizer_steps + 1) % self._every or not trainer.listeners.inside.get("on_log"):
            return
        norm = trainer.driver.gradient_norm(self._norm_type)
        if norm is not None:
            trainer.log({self._name: norm})
