"""What the callbacks with a monitor share: which of the results they look at, and what better means."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tachograph.states.errors import CallerError, nearest


class Monitor:
    """Reads one value from validation results and remembers the best.

    Args:
        name: a key of the results, or its first parts ("loss" for "loss#val"), as long as only one key has them; or
            `f(results) -> float or None`.
        larger_better: a larger value is the better one.
        min_delta: how much better a value must be to count, >= 0.

    Attributes:
        best: the best value so far; None before the first.

    Raises:
        CallerError: `name` is neither, or `min_delta` is negative.
    """

    def __init__(
        self, name: str | Callable[[dict[str, Any]], Any], larger_better: bool = True, min_delta: float = 0.0
    ) -> None:
        if not isinstance(name, str) and not callable(name):
            raise CallerError(f"monitor must be a key of the results or a function, not {name!r}")
        if min_delta < 0:
            raise CallerError(f"min_delta must be >= 0, not {min_delta}")
        self.name = name
        self.larger_better = larger_better
        self.min_delta = min_delta
        self.best: float | None = None

    def value(self, results: dict[str, Any]) -> float | None:
        """Read the value; None where a function says that there is none this time.

        Raises:
            CallerError: no key, or more than one, has this name; the keys there are are listed.
        """
        if callable(self.name):
            value = self.name(results)
            return None if value is None else float(value)
        if self.name in results:
            return float(results[self.name])
        alike = [key for key in results if key.split("#")[: self.name.count("#") + 1] == self.name.split("#")]
        if len(alike) != 1:
            what = f"fits {', '.join(alike)}" if alike else f"isn't among the results. {nearest(self.name, results)}"
            raise CallerError(f"monitor {self.name!r} {what}")
        return float(results[alike[0]])

    def improves(self, value: float) -> bool:
        """Say whether a value is better than the best, and remember it if so. NaN never is."""
        if value != value:
            return False
        best = self.best
        gain = 0.0 if best is None else (value - best if self.larger_better else best - value)
        if best is not None and not (gain > self.min_delta):
            return False
        self.best = value
        return True
