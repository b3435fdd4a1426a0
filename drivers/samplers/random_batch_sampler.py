"""`RandomBatchSampler`: batches of samples in an order drawn anew each epoch."""

from __future__ import annotations

from typing import Any

from .batch_sampler import ReproducibleBatchSampler
from .random_sampler import Shuffled


class RandomBatchSampler(Shuffled, ReproducibleBatchSampler):
    """Hands out every sample once an epoch, in a random order, in batches.

    Args:
        dataset: anything with a length, or the length itself.
        batch_size: samples in a batch of one rank. The order doesn't depend on it: it may be another one at a resume.
        shuffle: False takes the samples in their own order.
        drop_last: drop the last batch if it's short.
        seed: of the order, together with the epoch; any integer.
    """

    def __init__(
        self, dataset: Any, batch_size: int = 32, shuffle: bool = True, drop_last: bool = False, seed: int = 0
    ) -> None:
        super().__init__(dataset, batch_size, drop_last)
        self._draw_from(shuffle, seed)
