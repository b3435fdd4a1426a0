"""`OutputMean`: the metric that a string stands for, the mean of one of the model's outputs over all samples."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tachograph.states.errors import CallerError


class OutputMean:
    """Averages an output, or an entry of the batch, over samples: each batch counts by how many it holds.

    Args:
        of: what it is called there.
    """

    def __init__(self, of: str) -> None:
        self.of = of
        self._gather: Callable[[Any], list[Any]] = _alone
        self.reset()

    def reset(self) -> None:
        """Forget what was counted."""
        self._sum: Any = 0.0
        self._samples = 0

    def update(self, mean: Any, samples: int) -> None:
        """Count a batch.

        Args:
            mean: of the batch, a number, or a tensor of one, which isn't read before `compute`.
            samples: in the batch.
        """
        self._sum = self._sum + mean * samples
        self._samples += samples

    def compute(self) -> float:
        """Return the mean over all samples, of all ranks where they share the data; NaN if one was.

        Raises:
            CallerError: nothing was counted.
        """
        ranks = self._gather((float(self._sum), self._samples))
        samples = sum(n for _, n in ranks)
        if samples == 0:
            raise CallerError(f"there is no mean of {self.of!r}: no sample was counted")
        return float(sum(total for total, _ in ranks) / samples)

    def gather_with(self, gather: Callable[[Any], list[Any]], distributed: bool) -> None:
        """Take what gathers values over ranks; it is used where they share the data."""
        self._gather = gather if distributed else _alone


def _alone(value: Any) -> list[Any]:
    return [value]


__all__ = ["OutputMean"]
