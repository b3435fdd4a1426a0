"""`LRSchedule`: steps a learning-rate scheduler, and keeps its state with the run's.

At a resume the scheduler may have been built with other numbers than the run's, another horizon say. Then the new ones
win: the schedule stands where it would stand if it had been that one from the beginning. It is stepped there before
anything of the run is touched, so one that can't go so far is refused.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import attrs

from tachograph.drivers import hyperparameters
from tachograph.engine.describing import described
from tachograph.states.errors import CallerError

from .callback import Callback
from .monitor import Monitor

_STEP_ON = ("update", "batch", "epoch", "plateau")
_PLACE = ("last_epoch", "_step_count", "_last_lr", "_is_initial", "_get_lr_called_within_step", "verbose")
_HORIZONS = frozenset(("total_steps", "T_max", "total_iters", "milestones", "_milestones", "lr_lambdas"))
"""What a scheduler keeps if it was built for so many steps, or may have been."""


@attrs.frozen
class _Position:
    """Where a scheduler stands: its own state, and what it has made of its optimizer's groups."""

    scheduler: dict[str, Any]
    groups: list[dict[str, Any]]

    @property
    def rates(self) -> list[float]:
        return [float(group["lr"]) for group in self.groups if "lr" in group]


class LRSchedule(Callback):
    """Steps a scheduler of `torch.optim.lr_scheduler` (or anything with `step`, `state_dict`, `load_state_dict`).

    A skipped optimizer step doesn't move it. Its state is saved with every snapshot.

    Args:
        scheduler: the scheduler, built on one of the trainer's optimizers.
        step_on: "update": after each optimizer step that was taken; "batch": the reference trainer's word for it;
            "epoch": at each epoch's end; "plateau": after each validation, with the monitored value.
        monitor: for "plateau": the key of the results.

    Raises:
        CallerError: an argument can't be used; or, in a run: the schedule has come to its end, and there are updates
            left.
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
        self._step_on = "update" if step_on == "batch" else step_on
        self._steps = 0
        self._start: _Position | None = None  # as it was built, and the same in words
        self._built: dict[str, Any] = {}
        self._taken: _Position | None = None  # where a resume will put it, if not where it was saved
        self._rates: tuple[list[float], list[float]] = ([], [])  # of the next update: with the old settings, and now
        moment, step = {
            "epoch": ("on_train_epoch_end", self._at_epoch_end),
            "plateau": ("on_validate_end", self._at_validation),
        }.get(step_on, ("on_after_optimizer_step", self._after_update))
        setattr(self, moment, step)  # only the one moment is heard

    def on_after_trainer_initialized(self, trainer: Any, driver: Any) -> None:
        optimizer = getattr(self.scheduler, "optimizer", None)
        if optimizer is not None and not any(optimizer is o for o in driver.optimizers):
            raise CallerError("the scheduler's optimizer isn't one of the trainer's optimizers")

    # -- stepping ------------------------------------------------------------------------------------------

    def _after_update(self, trainer: Any, optimizers: Any) -> None:
        if not trainer.step_skipped:
            self._step()

    def _at_epoch_end(self, trainer: Any) -> None:
        self._step()

    def _at_validation(self, trainer: Any, results: dict[str, Any]) -> None:
        assert self._monitor is not None
        value = Monitor(self._monitor).value(results)
        if value is not None:
            self._step(value)

    def _step(self, *value: float) -> None:
        try:
            self.scheduler.step(*value)
        except ValueError as error:
            if not self._over(self._steps):
                raise
            raise CallerError(self._past_its_end(self._steps)) from error
        self._steps += 1

    def _over(self, steps: int) -> bool:
        """Say whether the scheduler was built for no more steps than these."""
        total = getattr(self.scheduler, "total_steps", None)
        return total is not None and steps >= total

    def _past_its_end(self, steps: int) -> str:
        name = type(self.scheduler).__name__
        return (
            f"the schedule {name} was built with total_steps={self.scheduler.total_steps}, and this run has taken "
            f"{steps} steps of it and goes on: build it with the steps of the whole run"
        )

    # -- memory --------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        self._note_how_it_was_built()
        now = self._now()
        return {"scheduler": now.scheduler, "groups": now.groups, "steps": self._steps, "built": self._built}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._note_how_it_was_built()
        taken, self._taken = self._taken, None
        self._put(taken or _Position(state["scheduler"], []))  # the groups are the driver's to restore
        self._steps = state.get("steps", 0)

    def built_with(self) -> dict[str, Any]:
        self._note_how_it_was_built()
        told = {"class": self._built["class"], "step_on": self._step_on, **self._built["settings"]}
        return {**told, "functions": self._built["functions"]} if self._built["functions"] else told

    def check_state_dict(self, trainer: Any, state: dict[str, Any], at: Any) -> None:
        """Find where the schedule will stand, and refuse one that can't stand or go on there. Nothing is changed."""
        self._note_how_it_was_built()
        saved = _Position(state["scheduler"], state["groups"])
        state = {"steps": 0, "built": self._built, **state}
        self._taken = None if state["built"] == self._built else self._moved(saved, state, at)
        steps_first = self._step_on == "epoch" and at.epoch_exhausted and at.state != "epoch_begin"
        alike = state["built"]["class"] == self._built["class"]
        there = self._taken or saved
        self._rates = self._next_rates(saved, steps_first and alike), self._next_rates(there, steps_first)
        with self._standing(there):
            if self._over(state["steps"]) and _has_epochs_ahead(at):
                raise CallerError(self._past_its_end(state["steps"]))

    def on_after_resume(self, trainer: Any, report: Any) -> None:
        """Say what the next learning rate is, where something that may decide on it was changed."""
        name = next((k for k, callback in trainer.listeners.callbacks.items() if callback is self), "")
        of_ours = any(change.startswith(f"callbacks.{name}.") for change in report.changed)
        moved = self._rates[0] != self._rates[1]
        old, now = (", ".join(f"{rate:g}" for rate in rates) for rates in self._rates)
        if moved and (of_ours or any(change.startswith("hyperparameters.") for change in report.changed)):
            trainer._note(f"{name}: the learning rate of the next update is {now}; as it was set before, {old}")
        elif not of_ours and {"n_epochs", "n_batches"} & set(report.changed) and _has_horizon(self._built["settings"]):
            kind = type(self.scheduler).__name__
            trainer._note(
                f"{name}: the limit is another one, but {kind} was built as before; the learning rate of the next "
                f"update is {now}"
            )

    # -- how it was built, and where that leads ------------------------------------------------------------

    def _note_how_it_was_built(self) -> None:
        if self._start is None:
            self._start = self._now()
            self._built = {
                "class": type(self.scheduler).__name__,
                "step_on": self._step_on,
                "settings": _without_place(described(self._start.scheduler)),
                "functions": _functions(self.scheduler),
                "groups": hyperparameters.of_groups(self._start.groups),
            }

    def _moved(self, saved: _Position, state: dict[str, Any], at: Any) -> _Position:
        """Return where the schedule stands with what is new about it."""
        old, new = state["built"], self._built
        groups = [
            {**group, **hyperparameters.merged(group, was, now)}
            for group, was, now in zip(saved.groups, old["groups"], new["groups"], strict=True)
        ]
        alike = old["class"] == new["class"] and old["step_on"] == new["step_on"]
        if alike and old["settings"] == new["settings"] and old["functions"] == new["functions"]:
            return _Position(saved.scheduler, groups)
        assert self._start is not None
        if "plateau" in (old["step_on"], new["step_on"]):  # what it has seen can't be shown to it again
            kept = saved.scheduler if alike else {}
            set_anew = {k for k, v in new["settings"].items() if old["settings"].get(k) != v}
            settings = {k: v if k in set_anew else kept.get(k, v) for k, v in self._start.scheduler.items()}
            if "_last_lr" in settings:
                settings["_last_lr"] = [group["lr"] for group in groups]
            return _Position(settings, groups)
        steps = state["steps"] if old["step_on"] == new["step_on"] else _steps_at(at, new["step_on"])
        there, its_own = self._stepped(steps)
        made = [{k: v for k, v in g.items() if k in own} for g, own in zip(there.groups, its_own, strict=True)]
        return _Position(there.scheduler, [{**g, **m} for g, m in zip(groups, made, strict=True)])

    def _stepped(self, steps: int) -> tuple[_Position, list[set[str]]]:
        """Step the schedule from its beginning, and back; return where it was, and what it changes of each group."""
        assert self._start is not None
        its_own = [{"lr", "initial_lr"} for _ in self._start.groups]
        with self._standing(self._start):
            for _ in range(steps):
                try:
                    self.scheduler.step()
                except Exception as error:
                    name = type(self.scheduler).__name__
                    raise CallerError(
                        f"the run has taken {steps} steps of its schedule, and {name} as it is built now can't: {error}"
                    ) from error
                for group, start, own in zip(self._groups(), self._start.groups, its_own, strict=True):
                    own.update(k for k, v in group.items() if k != "params" and v != start.get(k))
            return self._now(), its_own

    def _next_rates(self, position: _Position, steps_first: bool) -> list[float]:
        if not steps_first:
            return position.rates
        with self._standing(position):
            try:
                self.scheduler.step()
            except ValueError:  # it is at its end; so there is no next one, or it is refused
                return position.rates
            return self._now().rates

    @contextmanager
    def _standing(self, position: _Position) -> Iterator[None]:
        """Run the body with the scheduler and its optimizer's settings at a position, and put back what they were."""
        before = self._now()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self._put(position)
                yield
        finally:
            self._put(before)

    def _now(self) -> _Position:
        groups = [{k: v for k, v in group.items() if k not in ("params", "param_names")} for group in self._groups()]
        return _Position(_copied(self.scheduler.state_dict()), [_copied(group) for group in groups])

    def _put(self, position: _Position) -> None:
        held = _copied(position.scheduler)
        self.scheduler.load_state_dict(_like(self.scheduler.state_dict(), held))
        for group, settings in zip(self._groups(), position.groups, strict=False):
            hyperparameters.put(group, _copied(settings))
        optimizer = getattr(self.scheduler, "optimizer", None)
        if optimizer is not None:
            optimizer._opt_called = True  # by an earlier process, maybe; torch would warn that no update was taken yet

    def _groups(self) -> list[dict[str, Any]]:
        return getattr(getattr(self.scheduler, "optimizer", None), "param_groups", [])


def _steps_at(at: Any, step_on: str) -> int:
    """Count the steps that a schedule would have taken by now."""
    return int(at.cur_epoch_idx if step_on == "epoch" else at.optimizer_steps)


def _functions(scheduler: Any) -> dict[str, Any]:
    """Describe the functions that a scheduler computes with, and its inner schedulers'; its state doesn't hold them."""
    found: dict[str, Any] = {}
    for name, value in getattr(scheduler, "__dict__", {}).items():
        several = value if isinstance(value, (list, tuple)) else [value]
        if name == "optimizer" or not several:
            continue
        if all(hasattr(part, "load_state_dict") for part in several):
            found[name] = [{"class": type(part).__name__, **_functions(part)} for part in several]
        elif all(callable(part) for part in several):
            found[name] = [described(part) for part in several]
    return {name: held for name, held in found.items() if any(held)}


def _without_place(settings: Any) -> Any:
    """Leave out where a scheduler stands: all stand alike when they were just built."""
    if isinstance(settings, list):
        return [_without_place(part) for part in settings]
    if not isinstance(settings, dict):
        return settings
    return {k: _without_place(v) for k, v in settings.items() if k not in _PLACE}


def _has_horizon(settings: Any) -> bool:
    if isinstance(settings, list):
        return any(map(_has_horizon, settings))
    return isinstance(settings, dict) and (bool(_HORIZONS & set(settings)) or _has_horizon(list(settings.values())))


def _has_epochs_ahead(at: Any) -> bool:
    begun = at.state not in ("init", "sanity_check", "epoch_begin")
    return at.n_epochs is None or at.cur_epoch_idx + begun < at.n_epochs


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _copied(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        parts = [_copied(v) for v in value]
        return parts if isinstance(value, list) else tuple(parts)
    return value.clone() if hasattr(value, "clone") else value  # a tensor, which is changed in place


def _like(own: Any, held: Any) -> Any:
    """Give a saved state the kinds of dict that the scheduler keeps (MultiStepLR a Counter), which loads anything."""
    if isinstance(held, dict):
        kind = type(own) if isinstance(own, dict) else dict
        return kind({k: _like(own.get(k) if isinstance(own, dict) else None, v) for k, v in held.items()})
    if isinstance(held, list) and isinstance(own, list) and len(own) == len(held):
        return [_like(a, b) for a, b in zip(own, held, strict=True)]
    return held
