"""`ResultsMonitor` and `HasMonitorCallback`: what callbacks of your own look at results with, and remember the best."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tachograph.states import training_machine
from tachograph.states.errors import CallerError

from .callback import Callback
from .monitor import Monitor

Asked = Monitor | str | Callable[[dict[str, Any]], Any] | None


class ResultsMonitor:
    """Looks at one value of validation results, and remembers the best.

    Args:
        monitor: a key of the results ("acc#val", or "acc" if that is clear), `f(results) -> float or None`, or a
            `Monitor`; None: none yet, see `set_monitor`.
        larger_better: a larger value is the better one; None means what the trainer says, or True without one.
    """

    def __init__(self, monitor: Asked = None, larger_better: bool | None = None) -> None:
        self._asked: tuple[Asked, bool | None] = (monitor, larger_better)
        self._monitor = Monitor.of(monitor, larger_better)

    def set_monitor(self, monitor: Asked, larger_better: bool | None = None) -> None:
        """Look at another value from now on; what was remembered is forgotten."""
        self._asked = (monitor, larger_better)
        self._monitor = Monitor.of(monitor, larger_better)

    def take_monitor_of(self, trainer: Any, needed_by: str = "") -> None:
        """Fill in what wasn't given from the trainer.

        Args:
            trainer: whose `monitor` and `larger_better` fill in.
            needed_by: who can't do without a monitor; "": it can.

        Raises:
            CallerError: it can't do without, and there is none.
        """
        self._monitor = Monitor.of(*self._asked, trainer=trainer, needed_by=needed_by)

    @property
    def monitor_name(self) -> str:
        """The name of what is looked at: a key, its first parts, or a function's name; "" without a monitor."""
        return "" if self._monitor is None else self._monitor.label

    @property
    def real_monitor(self) -> str | None:
        """The key that was read last; None before the first results, and for a function."""
        return None if self._monitor is None else self._monitor.key

    @property
    def monitor_value(self) -> float | None:
        """The best value so far; None before the first."""
        return None if self._monitor is None else self._monitor.best

    @property
    def larger_better(self) -> bool:
        """Whether a larger value is the better one."""
        return self._monitor is None or self._monitor.larger_better

    def check_results(self, results: dict[str, Any]) -> None:
        """Find the key in a sanity check's results; no best value is made of them.

        Raises:
            CallerError: the key isn't among them, or isn't one of a number.
        """
        if self._monitor is not None:
            self._monitor.check(results)

    def get_monitor_value(self, results: dict[str, Any]) -> float | None:
        """Read the value; None where there is none this time, or no monitor.

        Raises:
            CallerError: the results don't have it; those there are are listed.
        """
        return None if self._monitor is None else self._monitor.value(results)

    def is_better_monitor_value(self, value: float | None, keep_if_better: bool = True) -> bool:
        """Say whether a value is better than the best so far. None and NaN never are, nor is a tie.

        Args:
            value: what `get_monitor_value` returned.
            keep_if_better: remember it, if so.
        """
        if value is None or self._monitor is None:
            return False
        if keep_if_better:
            return self._monitor.improves(value)
        return self._monitor.better(value, self._monitor.best)

    def is_better_results(self, results: dict[str, Any], keep_if_better: bool = True) -> bool:
        """Say whether results are better than the best so far; see `is_better_monitor_value`."""
        return self.is_better_monitor_value(self.get_monitor_value(results), keep_if_better)

    def forget_best(self) -> None:
        """Forget the best value: the next one will be better."""
        if self._monitor is not None:
            self._monitor.best = None

    def monitor_state(self) -> dict[str, Any]:
        """Return what must survive a resume: the best value and the key it was read from; {} before the first value."""
        return {} if self._monitor is None or self._monitor.best is None else self._monitor.state_dict()

    def load_monitor_state(self, state: dict[str, Any]) -> None:
        """Take back what `monitor_state` returned."""
        if self._monitor is not None and "best" in state:
            self._monitor.load_state_dict(state)

    def monitor_built_with(self) -> dict[str, Any]:
        """Return the settings, for a callback's `built_with`."""
        return {} if self._monitor is None else self._monitor.built_with()


class HasMonitorCallback(ResultsMonitor, Callback):
    """The base of a callback with a monitor: override `on_validate_end`, and ask `is_better_results` there.

    A monitor that isn't among the results is refused at the sanity check already. The best value is saved; a subclass
    with more to remember adds to `state_dict` and `load_state_dict`.

    Args:
        monitor: see `ResultsMonitor`; None takes the trainer's.
        larger_better: a larger value is the better one; None takes the trainer's.
        must_have_monitor: refuse a trainer where there is none.

    Raises:
        CallerError: the monitor can't be one; or, when the trainer is built, there is none, or nothing is validated.
    """

    def __init__(
        self, monitor: Asked = None, larger_better: bool | None = None, must_have_monitor: bool = True
    ) -> None:
        super().__init__(monitor, larger_better)
        self.must_have_monitor = must_have_monitor

    def on_after_trainer_initialized(self, trainer: Any, driver: Any) -> None:
        self.take_monitor_of(trainer, type(self).__name__ if self.must_have_monitor else "")
        if self.must_have_monitor:
            check_validates(trainer, type(self).__name__)

    def replaying(self, replay: Any) -> None:
        self.take_monitor_of(replay, type(self).__name__ if self.must_have_monitor else "")

    def on_sanity_check_end(self, trainer: Any, sanity_check_res: dict[str, Any]) -> None:
        self.check_results(sanity_check_res)

    def built_with(self) -> dict[str, Any]:
        return self.monitor_built_with()

    def state_dict(self) -> dict[str, Any]:
        return self.monitor_state()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.load_monitor_state(state)


def check_validates(trainer: Any, who: str) -> None:
    """Refuse a trainer that never validates, for a callback that lives on results.

    A machine with rows of the user's own may validate without an evaluator.

    Raises:
        CallerError: it has no metrics.
    """
    if getattr(trainer, "evaluator", None) is None and trainer.machine.digest == training_machine().digest:
        raise CallerError(
            f"{who} looks at validations, and this trainer has none: give it metrics and validate_dataloaders"
        )
