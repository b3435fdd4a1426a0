"""`MixSequentialSampler`: one dataset after the other."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from .arranged import ArrangedBatches, fitted_batches, size_of_batch
from .batch_sampler import ends_of
from .mix import MixSampler
from .sampler import Order


class OneAtATime(ArrangedBatches, MixSampler):
    """A sampler of several datasets whose batches are of one dataset each.

    The last batch of each dataset may be short; where ranks share it, it is filled up from its own samples.
    """

    def _pool(self, epoch: int) -> Order:
        return np.concatenate(self._sequences(epoch))

    def _portions(self) -> list[int]:
        return self._counts()

    def _parts(self, rest: Order, layout: Mapping[str, int]) -> list[Order]:
        """The places of each dataset that are left, made even for the ranks."""
        firsts = np.cumsum(self._counts())[:-1]
        return [fitted_batches(part, layout) for part in np.split(rest, np.searchsorted(rest, firsts))]


class MixSequentialSampler(OneAtATime):
    """Hands out batches of one dataset each, all of the first one before the first of the second one.

    `MixSampler` says what the arguments are.
    """

    def _arrange(self, rest: Order, layout: Mapping[str, int], rng: np.random.Generator) -> tuple[Order, Order]:
        parts, size = self._parts(rest, layout), size_of_batch(layout)
        firsts = np.cumsum([0, *map(len, parts)])
        ends = [first + ends_of(len(part), size) for first, part in zip(firsts, parts, strict=False)]
        return np.concatenate(parts), np.concatenate(ends)
