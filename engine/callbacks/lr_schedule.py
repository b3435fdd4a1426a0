"""`LRSchedule`: steps a learning-rate scheduler, and keeps its state with the run's."""

from __future__ import annotations

from typing import Any

from tachograph.states.errors import CallerError

from .callback import Callback
from .monitor import Monitor

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
        assert self._monitor is not None
        value = Monitor(self._monitor).value(results)
        if value is not None:
            self.scheduler.step(value)

    def state_dict(self) -> dict[str, Any]:
        return {"scheduler": _plain(self.scheduler.state_dict()), "groups": [_plain(g) for g in self._settings()]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.scheduler.load_state_dict(_like(self.scheduler.state_dict(), state["scheduler"]))
        for group, settings in zip(self._groups(), state["groups"], strict=True):
            group.update(settings)
        optimizer = getattr(self.scheduler, "optimizer", None)
        if optimizer is not None:
            optimizer._opt_called = True  # by an earlier process, maybe; torch would warn that no update was taken yet

    def _groups(self) -> list[dict[str, Any]]:
        return getattr(getattr(self.scheduler, "optimizer", None), "param_groups", [])

    def _settings(self) -> list[dict[str, Any]]:
        """Return what the scheduler has made of the optimizer: a run that goes on stands before its last step."""
        return [{k: v for k, v in group.items() if k != "params"} for group in self._groups()]


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _plain(v) for k, v in value.items()}
    return [_plain(v) for v in value] if isinstance(value, list) else value


def _like(own: Any, held: Any) -> Any:
    """Give a saved state the kinds of dict that the scheduler keeps (MultiStepLR a Counter), which loads anything."""
    if isinstance(held, dict):
        kind = type(own) if isinstance(own, dict) else dict
        return kind({k: _like(own.get(k) if isinstance(own, dict) else None, v) for k, v in held.items()})
    if isinstance(held, list) and isinstance(own, list) and len(own) == len(held):
        return [_like(a, b) for a, b in zip(own, held, strict=True)]
    return held
