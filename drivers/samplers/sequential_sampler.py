"""`SequentialSampler`: every sample once an epoch, in the dataset's own order."""

from __future__ import annotations

import numpy as np

from .sampler import Order, ReproducibleSampler


class SequentialSampler(ReproducibleSampler):
    """Hands out the samples in their own order; of two ranks, the first one gets samples 0, 2, 4 ...

    Args:
        dataset: anything with a length, or the length itself.
    """

    def order(self, epoch: int) -> Order:
        return np.arange(self.num_samples)
