"""`Schedule`: a learning-rate scheduler that can be asked where it would stand, and stands afterwards where it stood.

`LRSchedule` steps it in a run. Here is what a resume must know: how it was built, where other settings lead, and what
the next learning rate is.
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

_PLACE = ("last_epoch", "_step_count", "_last_lr", "_is_initial", "_get_lr_called_within_step", "verbose")
"""What a scheduler's state says of where it stands; the rest is how it was built."""
_HORIZONS = frozenset(("total_steps", "T_max", "total_iters", "milestones", "_milestones", "lr_lambdas"))
"""What a scheduler keeps if it was built for so many steps, or may have been."""


@attrs.frozen
class Place:
    """Where a scheduler stands: its own state, and the settings of its optimizer's groups."""

    scheduler: dict[str, Any]
    groups: list[dict[str, Any]]

    @property
    def rates(self) -> list[float]:
        """The learning rates of the groups."""
        return [float(group["lr"]) for group in self.groups if "lr" in group]


class Schedule:
    """A scheduler as it was built.

    Args:
        scheduler: the scheduler, just built.
        step_on: "update", "epoch" or "plateau": what it is stepped on.

    Attributes:
        built: how it was built, in plain data; equal for two that are built alike on optimizers that are.
    """

    def __init__(self, scheduler: Any, step_on: str) -> None:
        self._scheduler = scheduler
        self._start = self.now()
        self.built: dict[str, Any] = {
            "class": type(scheduler).__name__,
            "step_on": step_on,
            "settings": _without_place(described(self._start.scheduler)),
            "functions": _functions(scheduler),
            "groups": hyperparameters.of_groups(self._start.groups),
        }

    @property
    def has_horizon(self) -> bool:
        """It was built for so many steps, or may have been."""
        return _has_horizon(self.built["settings"])

    def now(self) -> Place:
        """Say where it stands."""
        groups = [{k: v for k, v in group.items() if k not in ("params", "param_names")} for group in self._groups()]
        return Place(_copied(self._scheduler.state_dict()), [_copied(group) for group in groups])

    def put(self, scheduler: dict[str, Any], groups: list[dict[str, Any]] | None = None) -> None:
        """Stand it somewhere; None leaves the groups as they are."""
        self._scheduler.load_state_dict(_like(self._scheduler.state_dict(), _copied(scheduler)))
        if groups is not None:
            for group, settings in zip(self._groups(), groups, strict=True):
                hyperparameters.put(group, _copied(settings))
        optimizer = getattr(self._scheduler, "optimizer", None)
        if optimizer is not None:
            optimizer._opt_called = True  # by an earlier process, maybe; torch would warn that no update was taken yet

    def moved(self, saved: Place, was: dict[str, Any], steps: int) -> Place:
        """Find where it stands instead of a saved place, since it was built otherwise then.

        One that steps with the run stands where it would if it had been this one from the beginning. One on a plateau
        keeps what it has seen, which can't be shown to it again.

        Args:
            saved: where it stood.
            was: how it was built then.
            steps: how many steps it has taken, or would have.

        Raises:
            CallerError: it can't take so many steps.
        """
        built = self.built
        groups = [
            {**group, **hyperparameters.merged(group, before, now)}
            for group, before, now in zip(saved.groups, was["groups"], built["groups"], strict=True)
        ]
        alike = {k: v for k, v in was.items() if k != "groups"} == {k: v for k, v in built.items() if k != "groups"}
        if alike:
            return Place(saved.scheduler, groups)
        if "plateau" in (was["step_on"], built["step_on"]):
            return Place(self._set_anew(saved, was, groups), groups)
        there, its_own = self._stepped(steps)
        made = [{k: v for k, v in g.items() if k in own} for g, own in zip(there.groups, its_own, strict=True)]
        return Place(there.scheduler, [{**g, **m} for g, m in zip(groups, made, strict=True)])

    def next_rates(self, place: Place, *, steps_first: bool) -> list[float]:
        """Compute the learning rates of the next update.

        Args:
            place: where it stands before that.
            steps_first: it takes a step before the update.
        """
        if not steps_first:
            return place.rates
        with self._standing(place):
            try:
                self._scheduler.step()
            except ValueError:  # it is at its end
                return place.rates
            return self.now().rates

    def _set_anew(self, saved: Place, was: dict[str, Any], groups: list[dict[str, Any]]) -> dict[str, Any]:
        kept = saved.scheduler if was["class"] == self.built["class"] and was["step_on"] == "plateau" else {}
        settings = self.built["settings"]
        new = {k for k in settings if k not in was["settings"] or was["settings"][k] != settings[k]}
        state = {k: v if k in new else kept.get(k, v) for k, v in self._start.scheduler.items()}
        if "_last_lr" in state:
            state["_last_lr"] = [group["lr"] for group in groups]
        return state

    def _stepped(self, steps: int) -> tuple[Place, list[set[str]]]:
        """Step it from its beginning; return where that leads, and what it changes of each group."""
        its_own = [{"lr", "initial_lr"} for _ in self._start.groups]
        with self._standing(self._start):
            for _ in range(steps):
                try:
                    self._scheduler.step()
                except Exception as error:
                    raise CallerError(
                        f"the run has taken {steps} steps of its schedule, and {self.built['class']} as it is built "
                        f"now can't: {error}"
                    ) from error
                for group, start, own in zip(self._groups(), self._start.groups, its_own, strict=True):
                    own.update(k for k, v in group.items() if k in start and v != start[k])
            return self.now(), its_own

    @contextmanager
    def _standing(self, place: Place) -> Iterator[None]:
        """Run the body with everything at a place, and put back what was."""
        before = self.now()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                self.put(place.scheduler, place.groups)
                yield
        finally:
            self.put(before.scheduler, before.groups)

    def _groups(self) -> list[dict[str, Any]]:
        return getattr(getattr(self._scheduler, "optimizer", None), "param_groups", [])


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
    return found


def _without_place(settings: Any) -> Any:
    if isinstance(settings, list):
        return [_without_place(part) for part in settings]
    if not isinstance(settings, dict):
        return settings
    return {k: _without_place(v) for k, v in settings.items() if k not in _PLACE}


def _has_horizon(settings: Any) -> bool:
    if isinstance(settings, list):
        return any(map(_has_horizon, settings))
    return isinstance(settings, dict) and (bool(_HORIZONS & set(settings)) or _has_horizon(list(settings.values())))


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


__all__ = ["Place", "Schedule"]
