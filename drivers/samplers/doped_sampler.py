"""`DopedSampler`: several datasets in one shuffled mix."""

from __future__ import annotations

import numpy as np

from .mix import MixSampler
from .sampler import Order, generator_of


class DopedSampler(MixSampler):
    """Hands out batches of one shuffled mix of several datasets.

    Where a dataset's samples stand in the mix is drawn anew each epoch; in which order they stand there says `sampler`.
    `MixSampler` says what the arguments are.
    """

    def order(self, epoch: int) -> Order:
        whose = generator_of(self.seed, epoch).permutation(np.repeat(np.arange(len(self._datasets)), self._counts()))
        order = np.empty(len(whose), np.int64)
        for place, sequence in enumerate(self._sequences(epoch)):
            order[whose == place] = sequence
        return order
