"""`EarlyStopping`: stops a run whose results no longer get better."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tachograph.states.errors import CallerError

from .callback import Callback
from .monitor import Monitor


class EarlyStopping(Callback):
    """Asks the run to stop when `patience` validations in a row were no better than the best.

    Its memory is saved: patience goes on over a resume, and a run that it stopped stays stopped when it is resumed,
    unless what stopped it is borne now: with more `patience`, or without `check_finite`. A second `run()` in the same
    object starts with full patience.

    Args:
        monitor: a key of the results ("loss#val", or "loss" if that is clear), `f(results) -> float or None`, or a
            `Monitor`; None takes the trainer's `monitor`.
        larger_better: a larger value is the better one; None takes the trainer's.
        patience: validations without an improvement that are borne, >= 1.
        min_delta: how much better a value must be to count, >= 0.
        check_finite: stop at once at NaN or an infinity.

    Raises:
        CallerError: an argument is out of range, or there is no monitor (when the trainer is built).
    """

    def __init__(
        self,
        monitor: Monitor | str | Callable[[dict[str, Any]], Any] | None = None,
        larger_better: bool | None = None,
        patience: int = 10,
        min_delta: float = 0.0,
        check_finite: bool = True,
    ) -> None:
        if type(patience) is not int or patience < 1:
            raise CallerError(f"patience must be an integer >= 1, not {patience!r}")
        self.patience = patience
        self.check_finite = check_finite
        self.wait = 0
        self.stopped = ""
        self._not_finite = False  # why it stopped, if it did
        self._asked = (monitor, larger_better, min_delta or None)
        self._monitor = Monitor.of(*self._asked)

    def on_after_trainer_initialized(self, trainer: Any, driver: Any) -> None:
        self._monitor = Monitor.of(*self._asked, trainer=trainer, needed_by="EarlyStopping")

    def on_sanity_check_end(self, trainer: Any, sanity_check_res: dict[str, Any]) -> None:
        assert self._monitor is not None
        self._monitor.check(sanity_check_res)

    def on_validate_end(self, trainer: Any, results: dict[str, Any]) -> None:
        assert self._monitor is not None
        value = self._monitor.value(results)
        if value is None:
            return
        self._not_finite = self.check_finite and value - value != 0.0
        if self._not_finite:
            self._stop(trainer, f"EarlyStopping: {self._monitor.name} is {value}")
        elif self._monitor.improves(value):
            self.wait = 0
        else:
            self.wait += 1
            if self.wait >= self.patience:
                self._stop(
                    trainer, f"EarlyStopping: {self.wait} validations without improvement on {self._monitor.best}"
                )

    def built_with(self) -> dict[str, Any]:
        unknown = {"monitor": None, "larger_better": self._asked[1], "min_delta": self._asked[2] or 0.0}
        watched = unknown if self._monitor is None else self._monitor.built_with()
        return {**watched, "patience": self.patience, "check_finite": self.check_finite}

    def _stop(self, trainer: Any, reason: str) -> None:
        self.stopped = reason
        trainer.stop(reason)

    def on_after_resume(self, trainer: Any, report: Any) -> None:
        still = self.check_finite if self._not_finite else self.wait >= self.patience
        if self.stopped and still:
            trainer.stop(self.stopped)
        else:
            self.stopped = ""

    def on_continue(self, trainer: Any) -> None:
        self.wait, self.stopped = 0, ""

    def state_dict(self) -> dict[str, Any]:
        seen = {"key": None, "best": None} if self._monitor is None else self._monitor.state_dict()
        return {"wait": self.wait, "stopped": self.stopped, "not_finite": self._not_finite, **seen}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.wait, self.stopped = state["wait"], state["stopped"]
        self._not_finite = state.get("not_finite", False)
        assert self._monitor is not None
        self._monitor.load_state_dict(state)


EarlyStopCallback = EarlyStopping
"""The reference trainer's name for it."""
