"""`LRSchedule`: steps a learning-rate scheduler, and keeps its state with the run's.

At a resume the scheduler may have been built with other numbers than the run's, another horizon say. Then the new ones
win: the schedule stands where it would stand if it had been that one from the beginning. It is stepped there before
anything of the run is touched, so one that can't go so far is refused.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tachograph.states.errors import CallerError

from .callback import Callback
from .monitor import Monitor
from .schedule import Place, Schedule

_STEP_ON = ("update", "batch", "epoch", "plateau")


class LRSchedule(Callback):
    """Steps a scheduler of `torch.optim.lr_scheduler` (or anything with `step`, `state_dict`, `load_state_dict`).

    A skipped optimizer step doesn't move it. Its state is saved with every snapshot.

    Args:
        scheduler: the scheduler, built on one of the trainer's optimizers.
        step_on: "update": after each optimizer step that was taken; "batch": the reference trainer's word for it;
            "epoch": at each epoch's end; "plateau": after each validation, with the monitored value.
        monitor: for "plateau": the key of the results, `f(results) -> float or None`, or a `Monitor`; None takes the
            trainer's.

    Raises:
        CallerError: an argument can't be used; or, when the trainer is built, there is no monitor; or, in a run: the
            schedule has come to its end, and there are updates left.
    """

    replays = False

    def __init__(
        self,
        scheduler: Any,
        step_on: str = "update",
        monitor: Monitor | str | Callable[[dict[str, Any]], Any] | None = None,
    ) -> None:
        for method in ("step", "state_dict", "load_state_dict"):
            if not callable(getattr(scheduler, method, None)):
                raise CallerError(f"scheduler must have {method}(), which {type(scheduler).__name__} lacks")
        if step_on not in _STEP_ON:
            raise CallerError(f"step_on must be one of {', '.join(_STEP_ON)}, not {step_on!r}")
        self.scheduler = scheduler
        self._asked = monitor
        self._monitor = Monitor.of(monitor)
        self._step_on = "update" if step_on == "batch" else step_on
        self._steps = 0
        self._known: Schedule | None = None
        self._taken: tuple[Place, int] | None = None  # where a resume will put it, if not where it was saved
        self._rates: tuple[list[float], list[float]] = ([], [])  # of the next update: as it was built before, and now
        moment, step = {
            "epoch": ("on_train_epoch_end", self._at_epoch_end),
            "plateau": ("on_validate_end", self._at_validation),
        }.get(step_on, ("on_after_optimizer_step", self._after_update))
        setattr(self, moment, step)  # only the one moment is heard
        if step_on == "plateau":
            self.on_sanity_check_end = self._at_sanity_check  # type: ignore[method-assign]

    def on_after_trainer_initialized(self, trainer: Any, driver: Any) -> None:
        optimizer = getattr(self.scheduler, "optimizer", None)
        if optimizer is not None and not any(optimizer is o for o in driver.optimizers):
            raise CallerError("the scheduler's optimizer isn't one of the trainer's optimizers")
        if self._step_on == "plateau":
            self._monitor = Monitor.of(self._asked, trainer=trainer, needed_by="LRSchedule(step_on='plateau')")

    # -- stepping ------------------------------------------------------------------------------------------

    def _after_update(self, trainer: Any, optimizers: Any) -> None:
        if not trainer.step_skipped:
            self._step()

    def _at_epoch_end(self, trainer: Any) -> None:
        self._step()

    def _at_sanity_check(self, trainer: Any, sanity_check_res: dict[str, Any]) -> None:
        assert self._monitor is not None
        self._monitor.check(sanity_check_res)

    def _at_validation(self, trainer: Any, results: dict[str, Any]) -> None:
        assert self._monitor is not None
        value = self._monitor.value(results)
        if value is not None:
            self._step(value)

    def _step(self, *value: float) -> None:
        try:
            self.scheduler.step(*value)
        except ValueError as error:
            self._refuse_the_end(self._steps, error)
            raise
        self._steps += 1

    def follow(self) -> None:
        """Go on from the optimizer's learning rates, which somebody has set."""
        _take_bases(self.scheduler)

    def _refuse_the_end(self, steps: int, cause: Exception | None = None) -> None:
        """Refuse a step after so many that the scheduler was built for no more."""
        total = getattr(self.scheduler, "total_steps", None)
        if total is not None and steps >= total:
            raise CallerError(
                f"the schedule {type(self.scheduler).__name__} was built with total_steps={total}, and this run has "
                f"taken {steps} steps of it and goes on: build it with the steps of the whole run"
            ) from cause

    # -- memory --------------------------------------------------------------------------------------------

    @property
    def _schedule(self) -> Schedule:
        if self._known is None:  # the first to ask is the trainer, when it is built
            self._known = Schedule(self.scheduler, self._step_on)
        return self._known

    def state_dict(self) -> dict[str, Any]:
        now = self._schedule.now()
        held = {"scheduler": now.scheduler, "groups": now.groups, "steps": self._steps, "built": self._schedule.built}
        if self._step_on == "plateau" and self._monitor is not None:
            held["monitor"] = self._monitor.state_dict()
        return held

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if self._monitor is not None and "monitor" in state:
            self._monitor.load_state_dict(state["monitor"])
        taken, self._taken = self._taken, None
        if taken is None:
            self._schedule.put(state["scheduler"])  # the groups are the driver's to restore
            self._steps = state.get("steps", 0)
        else:
            place, self._steps = taken
            self._schedule.put(place.scheduler, place.groups)

    def built_with(self) -> dict[str, Any]:
        built = self._schedule.built
        told = {"class": built["class"], "step_on": self._step_on, **built["settings"]}
        return {**told, "functions": built["functions"]} if built["functions"] else told

    def check_state_dict(self, trainer: Any, state: dict[str, Any], at: Any) -> None:
        """Find where the schedule will stand, and refuse one that can't stand or go on there. Nothing is changed."""
        schedule, saved = self._schedule, Place(state["scheduler"], state["groups"])
        was, steps = state.get("built", schedule.built), state.get("steps", 0)
        if was["step_on"] != self._step_on:  # then they were steps of another kind
            steps = at.cur_epoch_idx if self._step_on == "epoch" else at.optimizer_steps
        there = saved if was == schedule.built else schedule.moved(saved, was, steps)
        self._taken = None if there is saved else (there, steps)
        if _has_epochs_ahead(at):
            self._refuse_the_end(steps)
        first = self._step_on == "epoch" and at.epoch_exhausted and at.state != "epoch_begin"
        self._rates = (
            schedule.next_rates(saved, steps_first=first and was["class"] == schedule.built["class"]),
            schedule.next_rates(there, steps_first=first),
        )

    def on_after_resume(self, trainer: Any, report: Any) -> None:
        """Say what the next learning rate is, where something that may decide on it was changed."""
        name = next((k for k, callback in trainer.listeners.callbacks.items() if callback is self), "")
        of_ours = any(change.startswith(f"callbacks.{name}.") for change in report.changed)
        moved = self._rates[0] != self._rates[1]
        old, now = (", ".join(f"{rate:g}" for rate in rates) or "unknown" for rates in self._rates)
        if moved and (of_ours or any(change.startswith("hyperparameters.") for change in report.changed)):
            trainer._note(f"{name}: the learning rate of the next update is {now}; as it was set before, {old}")
        elif not of_ours and {"n_epochs", "n_batches"} & set(report.changed) and self._schedule.has_horizon:
            trainer._note(
                f"{name}: the limit is another one, but {type(self.scheduler).__name__} was built as before; the "
                f"learning rate of the next update is {now}"
            )


def _take_bases(scheduler: Any) -> None:
    groups = getattr(getattr(scheduler, "optimizer", None), "param_groups", [])
    if hasattr(scheduler, "base_lrs") and all("initial_lr" in group for group in groups):
        scheduler.base_lrs = [float(group["initial_lr"]) for group in groups]
    for inner in getattr(scheduler, "_schedulers", ()):
        _take_bases(inner)


def _has_epochs_ahead(at: Any) -> bool:
    begun = at.state not in ("init", "sanity_check", "epoch_begin")
    return at.n_epochs is None or at.cur_epoch_idx + begun < at.n_epochs


LRSchedCallback = LRSchedule  # the reference trainer's name
