"""`RandomSampler`: every sample once an epoch, in an order drawn anew each epoch."""

from __future__ import annotations

from typing import Any

import numpy as np

from .sampler import Order, ReproducibleSampler, generator_of, truth, whole


class Shuffled(ReproducibleSampler):
    """A sampler whose order is drawn from a seed, or is the samples' own."""

    shuffle: bool
    seed: int

    def _draw_from(self, shuffle: bool, seed: int) -> None:
        """Take what decides on the order; for the constructors."""
        self.shuffle = truth(shuffle, "shuffle")
        self.seed = whole(seed, "seed")

    def order(self, epoch: int) -> Order:
        return shuffled(self.num_samples, self.shuffle, self.seed, epoch)

    def _taken(self) -> dict[str, Any]:
        return {"seed": self.seed, "shuffle": self.shuffle}


class RandomSampler(Shuffled):
    """Hands out every sample once an epoch, in a random order.

    Args:
        dataset: anything with a length, or the length itself.
        shuffle: False hands them out in their own order.
        seed: of the order, together with the epoch; any integer. It is no trainer's seed: give it that if you like.
    """

    def __init__(self, dataset: Any, shuffle: bool = True, seed: int = 0) -> None:
        super().__init__(dataset)
        self._draw_from(shuffle, seed)


def shuffled(n: int, shuffle: bool, seed: int, epoch: int) -> Order:
    """Return the numbers below `n`, in a random order or in their own."""
    return generator_of(seed, epoch).permutation(n) if shuffle else np.arange(n)
