"""`LRSchedule`: steps a learning-rate scheduler, and keeps its state with the run's."""

from __future__ import annotations

from typing import Any

from tachograph.states.errors import CallerError

from .callback import Callback

_STEP_ON = ("update", "batch", "epoch", "plateau")


class LRSchedule(Callback):
    """Steps a scheduler of `torch.optim.lr_scheduler` (or anything with `step`, `state_dict`, `load_state_dict`).

    A skipped optimizer step doesn't move it. Its state is saved with every snapshot.

    Args:
        scheduler: the scheduler, built on one of the trainer's optimizers.
        step_on: "update": after each optimizer step that was taken; "batch": the reference trainer's word for it;
            "epoch": at each epoch's end; "plateau": after each validation, with the monitored value.
        monitor: for "plateau": the key of the results.

    Raises:
        CallerError: an argument can't be used.
    """

    def __init__(self, scheduler: Any, step_on: str = "update", monitor: str | None = None) -> None:
        for method in ("step", "state_dict", "load_state_dict"):
            if not callable(getattr(scheduler, method, None)):
                raise CallerError(f"scheduler must have {method}(), which {type(scheduler).__name__} lacks")
        if step_on not in _STEP_ON:
            raise CallerError(f"step_on must be one of {', '.join(_STEP_ON)}, not {step_on!r}")
        if step_on == "plateau" and monitor is None:
            raise CallerError("step_on='plateau' needs a monitor: the key of the results that the scheduler watches")
        self.scheduler = scheduler
        self._monitor = monitor
        moment, step = {
            "epoch": ("on_train_epoch_end", self._at_epoch_end),
            "plateau": ("on_validate_end", self._at_validation),
        }.get(step_on, ("on_after_optimizer_step", self._after_update))
        setattr(self, moment, step)  # only the one moment is heard

    def on_after_trainer_initialized(self, trainer: Any, driver: Any) -> None:
        optimizer = getattr(self.scheduler, "optimizer", None)
        if optimizer is not None and not any(optimizer is o for o in driver.optimizers):
            raise CallerError("the scheduler's optimizer isn't one of the trainer's optimizers")

    def _after_update(self, trainer: Any, optimizers: Any) -> None:
        if not trainer.step_skipped:
            self.scheduler.step()

    def _at_epoch_end(self, trainer: Any) -> None:
        self.scheduler.step()

    def _at_validation(self, trainer: Any, results: dict[str, Any]) -> None:
        from .monitor import Monitor

        assert self._monitor is not None
        self.scheduler.step(Monitor(self._monitor).value(results))

    def state_dict(self) -> dict[str, Any]:
        return {"scheduler": _plain(self.scheduler.state_dict())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        own = self.scheduler.state_dict()
        # a scheduler keeps some dicts as their own kind (MultiStepLR a Counter) and loads whatever it is given
        self.scheduler.load_state_dict(
            {k: type(own[k])(v) if isinstance(own.get(k), dict) else v for k, v in state["scheduler"].items()}
        )


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    return [_plain(v) for v in value] if isinstance(value, list) else value
