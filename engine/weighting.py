"""Windows whose micro-batches count by what they hold, valid targets say, rather than alike: `loss_weight`.

With the weights w and the gradients g of its micro-batches, on all ranks, a window's gradient is sum(w * g) / sum(w).
The second sum is known when the window closes. Until then the gradients are divided by a unit, which keeps them at the
size they'd have without weights, as fp16 needs it; it is a power of two, so no bit is rounded off by it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tachograph.drivers import Driver
from tachograph.drivers.matching import as_mapping
from tachograph.states.errors import CallerError

from . import describing

SAMPLES = "samples"
"""The weight of a batch is the number of its samples."""


class Weighting:
    """Knows what the micro-batches of the open window weigh.

    Args:
        given: "samples", the name of an output, or `f(outputs, batch)`.
    """

    def __init__(self, given: str | Callable[[Any, Any], Any]) -> None:
        self._given = given
        self._sum: Any = 0  # of the open window, on this rank; a tensor where one was given that isn't on the host
        self._unit = 0.0  # 0: nothing has weighed anything yet

    def add(self, driver: Driver, outputs: Any, batch: Any, whole: bool, steps: int) -> Any:
        """Take a micro-batch into the window.

        Args:
            driver: who made the outputs.
            outputs: what the training step returned.
            batch: what they were made of.
            whole: it is the batch in hand, and not a part of it.
            steps: micro-batches in a full window.

        Returns:
            What its loss is multiplied with: a number, or a tensor where the weight is one.

        Raises:
            CallerError: there is no weight, or it is none.
        """
        weight = self._weight(driver, outputs, batch, whole)
        self._sum = self._sum + weight
        if not self._unit:
            self._unit = _unit(self._over_ranks(driver, weight) / driver.world_size * steps)
        return weight / self._unit if self._unit else 0

    def close(self, driver: Driver) -> bool:
        """Divide the window's gradients by what it weighs; False if that is nothing.

        They were averaged over the ranks, and the weights of all ranks count. An accelerator is waited for if the
        weights are on it; and every rank for all others.
        """
        total = self._over_ranks(driver, self._sum)
        if total:
            driver.scale_gradients(self._unit * driver.world_size / total)
        return total > 0

    def clear(self) -> None:
        """Begin a window."""
        self._sum = 0

    def _over_ranks(self, driver: Driver, weight: Any) -> float:
        total = math.fsum(driver.ranks.gather(float(driver.plain(weight))))
        if not 0 <= total < math.inf:
            raise CallerError(f"{self}: weights must be finite and >= 0, and those of this window add up to {total}")
        return total

    def _weight(self, driver: Driver, outputs: Any, batch: Any, whole: bool) -> Any:
        found = self._found(driver, outputs, batch, whole)
        weight = driver.scalar(found)
        if weight is None or (isinstance(weight, (int, float)) and not 0 <= weight < math.inf):
            raise CallerError(f"{self}: a weight must be a number >= 0, or a tensor of one, not {found!r}")
        return weight

    def _found(self, driver: Driver, outputs: Any, batch: Any, whole: bool) -> Any:
        given = self._given
        if callable(given):
            return given(outputs, batch)
        if given == SAMPLES:
            ids = driver.batch_ids if whole else None
            return driver.samples_of(batch, False) if ids is None else len(ids)
        held = as_mapping(outputs)
        if held is None or given not in held:
            there = f"but {', '.join(sorted(map(str, held)))}" if held else f"being a {type(outputs).__name__}"
            raise CallerError(f"{self}: the training step's outputs have no {given!r}, {there}")
        return held[given]

    def __str__(self) -> str:
        return f"loss_weight={self.plain()!r}"

    def plain(self) -> str | None:
        """Describe it for the settings of a run."""
        return self._given if isinstance(self._given, str) else describing.named(self._given)

    def state(self, driver: Driver) -> dict[str, Any]:
        """Return what goes with the gradients of an open window: plain data."""
        return {"weight": driver.plain(self._sum), "unit": self._unit}

    def load(self, state: Mapping[str, Any]) -> None:
        """Take back what `state` returned."""
        self._sum, self._unit = state["weight"], state["unit"]

    def carry(self, driver: Driver, states: Sequence[Mapping[str, Any]], unit: float) -> None:
        """Take over the open window of another number of ranks, whose gradients are on rank 0 now.

        Args:
            driver: multiplied their sum with the ranks there are for each there was, so that a mean stays what it was;
                here it's the sum that has to stay.
            states: what `state` returned, on all of them; none on another rank than 0.
            unit: theirs.
        """
        self._sum, self._unit = sum(state["weight"] for state in states), unit
        if states:
            driver.scale_gradients(len(states) / driver.world_size)


def _unit(size: float) -> float:
    """Return the power of two nearest to a size; 0.0 if there is none."""
    return 2.0 ** round(math.log2(size)) if size else 0.0


__all__ = ["SAMPLES", "Weighting"]
