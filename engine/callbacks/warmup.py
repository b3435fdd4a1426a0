"""`Warmup`: brings the learning rate up at the beginning of a run, and down again towards its end.

It keeps no place of its own: the rate is a function of the batches that are counted, so it is right after any resume.
"""

from __future__ import annotations

import math
from typing import Any

from tachograph.drivers import hyperparameters
from tachograph.states.errors import CallerError

from .callback import Callback
from .lr_schedule import LRSchedule

_SCHEDULES = ("linear", "constant", "cosine")


class Warmup(Callback):
    """Sets the learning rates before each optimizer step, from how far the run has come.

    A rate is a group's own, as it was built, times a factor. The factor rises in a line, to 1 at the end of the warmup;
    the batches of the update in work count, so it is above 0 in the first. What it is afterwards is the schedule's.
    With accumulation windows of k batches it is that of every k-th batch. An update that is skipped holds nothing up.

    Args:
        warmup: a float from 0 to 1 is a part of all batches of the run, an int is so many batches.
        schedule: after the warmup "constant" leaves the factor 1, "linear" and "cosine" bring it down to 0, which it is
            in the last update.

    Raises:
        CallerError: an argument can't be used; the run's length is needed and isn't known; or another callback moves
            the learning rates of the same optimizers.
    """

    replays = False

    def __init__(self, warmup: float = 0.1, schedule: str = "linear") -> None:
        if type(warmup) not in (int, float) or not (warmup >= 0 and (type(warmup) is int or warmup <= 1)):
            raise CallerError(
                f"warmup must be a part of the run from 0.0 to 1.0, or a number of batches, not {warmup!r}"
            )
        if schedule not in _SCHEDULES:
            raise CallerError(f"schedule must be one of {', '.join(_SCHEDULES)}, not {schedule!r}")
        self.warmup = warmup
        self.schedule = schedule
        self._needs_total = type(warmup) is float or schedule != "constant"
        self._total: int | None = None

    def on_after_trainer_initialized(self, trainer: Any, driver: Any) -> None:
        if self._needs_total and trainer.n_batches is None and driver.length() is None:
            raise CallerError(self._without_length("train_dataloader doesn't know its length"))
        self._total = None
        for optimizer in driver.optimizers:
            for group in optimizer.param_groups:
                group.setdefault(
                    "initial_lr", float(group["lr"])
                )  # where torch's schedules keep the rate as it was built
        self._refuse_others(trainer)

    def on_train_begin(self, trainer: Any) -> None:
        self._refuse_others(trainer)
        self._look_at_total(trainer)

    def on_after_resume(self, trainer: Any, report: Any) -> None:
        self._refuse_others(trainer)
        self._look_at_total(trainer)

    def on_continue(self, trainer: Any) -> None:
        self._look_at_total(trainer)

    def on_before_optimizer_step(self, trainer: Any, optimizers: Any) -> None:
        state = trainer.trainer_state
        if self._needs_total and state.total_batches != self._total:  # an epoch was of another length
            self._look_at_total(trainer)
        counted = state.state != "step" and trainer.train_batch_loop is None  # the window is closed at an epoch's end
        factor = self.factor(state.global_forward_batches + (not counted))
        for optimizer in optimizers:
            for group in optimizer.param_groups:
                base = group.get("initial_lr")
                if base is None:  # a group that was added since
                    base = group["initial_lr"] = float(group["lr"])
                hyperparameters.put(group, {"lr": float(base) * factor})

    def factor(self, batches: int) -> float:
        """Compute what the rates are multiplied by in the update that a batch closes.

        Args:
            batches: the number of the batch in the run, from 1.
        """
        total = self._total or 0
        warm = self.warmup * total if type(self.warmup) is float else self.warmup
        if batches < warm:
            return batches / warm
        if self.schedule == "constant" or warm >= total:
            return 1.0
        left = max(total - batches, 0) / (total - warm)
        return left if self.schedule == "linear" else (1 - math.cos(math.pi * left)) / 2

    def _look_at_total(self, trainer: Any) -> None:
        """Take the run's length; say what follows where it is another one than it was."""
        if not self._needs_total:
            return
        state, before = trainer.trainer_state, self._total
        self._total = state.total_batches
        if self._total is None:
            raise CallerError(self._without_length("the run has no limit in epochs or batches"))
        if before not in (None, self._total):
            factor = self.factor(state.global_forward_batches + 1)
            text = (
                f"Warmup: the run has {self._total} batches in all now, not {before}: the next batch's learning rate is"
            )
            trainer.later(lambda: trainer._note(f"{text} {factor:.3g} of the full one"))

    def _without_length(self, why: str) -> str:
        return (
            f"Warmup(warmup={self.warmup!r}, schedule={self.schedule!r}) needs to know how many batches the run has, "
            f"and {why}: give n_batches, or a whole number as warmup with schedule='constant'"
        )

    def _refuse_others(self, trainer: Any) -> None:
        mine = trainer.driver.optimizers
        for other in trainer.listeners.callbacks.values():
            moved = getattr(other.scheduler, "optimizer", None) if isinstance(other, LRSchedule) else None
            if other is not self and (isinstance(other, Warmup) or any(moved is optimizer for optimizer in mine)):
                raise CallerError(
                    f"Warmup and {type(other).__name__} would both set the learning rates of one optimizer: give one "
                    "of them (torch's SequentialLR puts a warmup, LinearLR, before another schedule)"
                )

    def built_with(self) -> dict[str, Any]:
        return {"warmup": self.warmup, "schedule": self.schedule}

    def state_dict(self) -> dict[str, Any]:
        """Return the length of the run that was reckoned with, so that a resume can say that it is another one."""
        return {} if self._total is None else {"total": self._total}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._total = state["total"]


TorchWarmupCallback = Warmup  # the reference trainer's name
