"""`EarlyStopping`: stops a run whose results no longer get better."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tachograph.states.errors import CallerError

from .callback import Callback
from .monitor import Monitor
from .other_words import names_its_arguments
from .results_monitor import check_validates


@names_its_arguments
class EarlyStopping(Callback):
    """Asks the run to stop when `patience` validations in a row were no better than the best.

    Its memory is saved: patience goes on over a resume, and a run that it stopped stays stopped when it is resumed,
    unless what stopped it is borne now: with more `patience`, say, or without `check_finite`. A second `run()` in the
    same object starts with full patience.

    Args:
        monitor: a key of the results ("loss#val", or "loss" if that is clear), `f(results) -> float or None`, or a
            `Monitor`; None takes the trainer's `monitor`.
        larger_better: a larger value is the better one; None takes the trainer's.
        patience: validations without an improvement that are borne, >= 1.
        min_delta: how much better a value must be to count, >= 0.
        check_finite: stop at once at NaN or an infinity.
        stopping_threshold: stop at once at a value that is better than this: it is good enough.
        divergence_threshold: stop at once at a value that is worse than this: nothing will come of it.

    Raises:
        CallerError: an argument is out of range; or, when the trainer is built: there is no monitor, or no validation.
    """

    def __init__(
        self,
        monitor: Monitor | str | Callable[[dict[str, Any]], Any] | None = None,
        larger_better: bool | None = None,
        patience: int = 10,
        min_delta: float = 0.0,
        check_finite: bool = True,
        stopping_threshold: float | None = None,
        divergence_threshold: float | None = None,
    ) -> None:
        if type(patience) is not int or patience < 1:
            raise CallerError(f"patience must be an integer >= 1, not {patience!r}")
        self._enough = _threshold(stopping_threshold, "stopping_threshold")
        self._too_bad = _threshold(divergence_threshold, "divergence_threshold")
        self.patience = patience
        self.check_finite = check_finite
        self.wait = 0
        self.stopped = ""
        self._last: float | None = None  # the value that decided
        self._asked = (monitor, larger_better, None if _is_zero(min_delta) else min_delta)
        self._monitor = Monitor.of(*self._asked)

    def on_after_trainer_initialized(self, trainer: Any, driver: Any) -> None:
        self.wait, self.stopped, self._last = 0, "", None
        self._monitor = Monitor.of(*self._asked, trainer=trainer, needed_by="EarlyStopping")
        check_validates(trainer, "EarlyStopping")

    def replaying(self, replay: Any) -> None:
        self._monitor = Monitor.of(*self._asked, trainer=replay, needed_by="EarlyStopping")

    def on_sanity_check_end(self, trainer: Any, sanity_check_res: dict[str, Any]) -> None:
        assert self._monitor is not None
        self._monitor.check(sanity_check_res)

    def on_validate_end(self, trainer: Any, results: dict[str, Any]) -> None:
        assert self._monitor is not None
        value = self._monitor.value(results)
        if value is None:
            return
        self._last = value
        if value - value == 0.0 or not self.check_finite:
            self.wait = 0 if self._monitor.improves(value) else self.wait + 1
        reason = self._verdict()
        if reason:
            self._stop(trainer, reason)

    def _verdict(self) -> str:
        """Say why to stop now; "" if there is no reason."""
        assert self._monitor is not None
        value, name, larger = self._last, self._monitor.name, self._monitor.larger_better
        if value is None:
            return ""
        if self.check_finite and value - value != 0.0:
            return f"EarlyStopping: {name} is {value}"
        if self._enough is not None and (value > self._enough if larger else value < self._enough):
            return f"EarlyStopping: {name} is {value}, better than stopping_threshold={self._enough}"
        if self._too_bad is not None and (value < self._too_bad if larger else value > self._too_bad):
            return f"EarlyStopping: {name} is {value}, worse than divergence_threshold={self._too_bad}"
        if self.wait >= self.patience:
            return f"EarlyStopping: {self.wait} validations without improvement on {self._monitor.best}"
        return ""

    def built_with(self) -> dict[str, Any]:
        unknown = {"monitor": None, "larger_better": self._asked[1], "min_delta": self._asked[2] or 0.0}
        watched = unknown if self._monitor is None else self._monitor.built_with()
        thresholds = {"stopping_threshold": self._enough, "divergence_threshold": self._too_bad}
        given = {name: value for name, value in thresholds.items() if value is not None}
        return {**watched, "patience": self.patience, "check_finite": self.check_finite, **given}

    def _stop(self, trainer: Any, reason: str) -> None:
        self.stopped = reason
        trainer.stop(reason)

    def on_after_resume(self, trainer: Any, report: Any) -> None:
        if self.stopped and self._verdict():
            trainer.stop(self.stopped)
        else:
            self.stopped = ""

    def on_continue(self, trainer: Any) -> None:
        self.wait, self.stopped = 0, ""

    def state_dict(self) -> dict[str, Any]:
        """Return nothing before the first value, so that it can be added to a run that had none."""
        if self._monitor is None or self._last is None:
            return {}
        return {"wait": self.wait, "stopped": self.stopped, "last": self._last, **self._monitor.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert self._monitor is not None
        self.wait, self.stopped, self._last = state["wait"], state["stopped"], state["last"]
        self._monitor.load_state_dict(state)


def _is_zero(min_delta: Any) -> bool:
    """Say whether a specification's own is to count: the default can't be told from a 0 that was given."""
    return type(min_delta) in (int, float) and min_delta == 0


def _threshold(value: Any, name: str) -> float | None:
    if value is not None and (type(value) not in (int, float) or value != value):
        raise CallerError(f"{name} must be a number or None, not {value!r}")
    return None if value is None else float(value)


EarlyStopCallback = EarlyStopping
"""The reference trainer's name for it."""
