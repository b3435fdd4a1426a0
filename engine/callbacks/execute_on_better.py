"""`ExecuteOnBetter`: calls a function whenever the results are better than ever."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tachograph.drivers.matching import needed
from tachograph.engine.describing import named
from tachograph.states.errors import CallerError

from .other_words import names_its_arguments
from .results_monitor import Asked, HasMonitorCallback


@names_its_arguments
class ExecuteOnBetter(HasMonitorCallback):
    """Calls a function after each validation that was better than all before it.

    The best value is saved, so a resumed run calls it where the straight one would. What is done again after a crash
    calls it again: it should do the same then, as writing a file under the same name does. Of many ranks each calls it
    (`trainer.ranks.first` says which one should write).

    Args:
        monitor: see `HasMonitorCallback`.
        larger_better: a larger value is the better one; None takes the trainer's.
        execute_fn: `f()`, or `f(trainer)`.

    Raises:
        CallerError: `execute_fn` is neither; or, when the trainer is built, there is no monitor.
    """

    def __init__(
        self,
        monitor: Asked = None,
        larger_better: bool | None = None,
        execute_fn: Callable[..., Any] | None = None,
    ) -> None:
        super().__init__(monitor, larger_better)
        if not callable(execute_fn) or needed(execute_fn) > 1:
            raise CallerError(f"execute_fn must be a function f() or f(trainer), not {execute_fn!r}")
        self.execute_fn = execute_fn
        self._takes_trainer = needed(execute_fn) == 1

    def on_validate_end(self, trainer: Any, results: dict[str, Any]) -> None:
        if self.is_better_results(results):
            self.execute_fn(*([trainer] if self._takes_trainer else []))

    def built_with(self) -> dict[str, Any]:
        return {**super().built_with(), "execute_fn": named(self.execute_fn)}


ExecuteOnceBetterMonitor = ExecuteOnBetter
"""The reference trainer's name for it."""
