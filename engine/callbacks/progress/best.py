"""`Best`: which validation was the best so far, for a person to be told.

It isn't saved with snapshots but read from the journal again: a display must have no say in whether a run can go on,
and a snapshot with its memory would be refused by a run that shows nothing, or shows it in another way.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tachograph.engine.callbacks.monitor import Monitor
from tachograph.engine.journal import Journal
from tachograph.states.errors import CallerError


class Best:
    """Compares each validation with the best one before it.

    Args:
        monitor: a key of the results, a `Monitor`, or `f(results) -> float or None`; None takes the trainer's, and
            without one nothing is compared.
        larger_better: a larger value is the better one; None takes the trainer's.

    Raises:
        CallerError: `monitor` can't be one.
    """

    def __init__(
        self, monitor: Monitor | str | Callable[[dict[str, Any]], Any] | None, larger_better: bool | None
    ) -> None:
        self._asked = (monitor, larger_better)
        self._monitor = Monitor.of(monitor, larger_better)
        self._checked: Monitor | None = None  # the one that looked at a sanity check's results
        self._at: tuple[int, int] | None = None  # validation and batch of the best
        self._warned = False

    def begin(self, trainer: Any) -> None:
        """Begin anew, with this trainer's monitor if none of its own was given."""
        self._monitor, self._at = Monitor.of(*self._asked, trainer=trainer), None
        checked, self._checked = self._checked, None
        if checked is not None and self._monitor is not None and checked.name == self._monitor.name:
            self._monitor.key = checked.key

    def resume(self, trainer: Any, run_dir: Path, seq: int) -> None:
        """Read again what was the best up to a transition."""
        self.begin(trainer)
        if self._monitor is None:
            return
        for record in Journal(run_dir):
            if record.seq > seq:
                break
            if record.event == "Validated":
                self.judge(record.data["results"], record.state)

    def check(self, trainer: Any, results: dict[str, Any]) -> str:
        """Say what a monitor doesn't find among a sanity check's results; "" if nothing.

        It is no reason to refuse the run: nothing that is trained depends on what is called better here.
        """
        self._checked, self._warned = Monitor.of(*self._asked, trainer=trainer), False
        try:
            if self._checked is not None:
                self._checked.check(results)
        except CallerError as error:
            return self._complaint(error)
        return ""

    def judge(self, results: dict[str, Any], state: Any) -> dict[str, Any]:
        """Compare a validation with the best before it, and remember it if it is better.

        Args:
            results: its results.
            state: the state after it.

        Returns:
            The facts: `better`, `monitor`, `before` (the best until now) and `before_at` (its validation); or nothing,
            where there is nothing to compare.
        """
        monitor = self._monitor
        value = None if monitor is None else self._value(monitor, results)
        if monitor is None or value is None:
            return {}
        before, at = monitor.best, self._at
        better = monitor.improves(value)
        if better:
            self._at = (state.validations, state.global_forward_batches)
        return {"better": better, "monitor": monitor.label, "before": before, "before_at": at and at[0]}

    @property
    def facts(self) -> dict[str, Any]:
        """The best so far: `monitor`, `best`, `best_at` (its validation) and `best_batch`; or nothing."""
        if self._monitor is None or self._at is None:
            return {}
        held = {"monitor": self._monitor.label, "best": self._monitor.best}
        return {**held, "best_at": self._at[0], "best_batch": self._at[1]}

    def _value(self, monitor: Monitor, results: dict[str, Any]) -> float | None:
        """Read the value; a display that can't doesn't end a run, but says so, once."""
        try:
            return monitor.value(results)
        except CallerError as error:
            if said := self._complaint(error):
                warnings.warn(said, stacklevel=4)
            return None

    def _complaint(self, error: CallerError) -> str:
        if self._warned:
            return ""
        self._warned = True
        return f"progress: {error} A validation without it is called neither better nor worse"
