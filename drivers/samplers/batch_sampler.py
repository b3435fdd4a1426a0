"""What every batch sampler is: the order of a sampler, dealt out in batches.

A batch of all ranks together is `batch_size * num_replicas` samples, of which each rank gets every `num_replicas`-th.
So all ranks have equally many batches, equally large ones at the same time, whatever the last ones look like.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from .sampler import Order, ReproducibleSampler, fitted, fitted_length, truth, whole


class ReproducibleBatchSampler(ReproducibleSampler):
    """Hands out batches of sample indices, from any position on. Give it to a `DataLoader` as `batch_sampler`.

    Args:
        dataset: anything with a length, or the length itself.
        batch_size: samples in a batch of one rank, >= 1. It may be another one at a resume.
        drop_last: drop a batch that would be short.
    """

    def __init__(self, dataset: Any, batch_size: int, drop_last: bool) -> None:
        super().__init__(dataset)
        self.batch_size = whole(batch_size, "batch_size", 1)
        self.drop_last = truth(drop_last, "drop_last")

    @property
    def _size(self) -> int:
        """Samples in a batch of all ranks."""
        return self.batch_size * self.num_replicas

    def _left(self, epoch: int, consumed: int) -> Order:
        order = self.order(epoch)
        return fitted(order[consumed:], self._size, self.num_replicas, self.pad, self.drop_last, order)

    def _count_left(self, epoch: int, consumed: int) -> int:
        left = max(self.num_samples - consumed, 0)
        return fitted_length(left, self._size, self.num_replicas, self.pad, self.drop_last)

    def _batches(self, epoch: int, consumed: int) -> tuple[Order, Order]:
        """The samples behind a position, over all ranks, and where among them each batch ends."""
        left = self._left(epoch, consumed)
        return left, ends_of(len(left), self._size)

    def _entries(self, epoch: int, start: int) -> Iterator[tuple[Any, int]]:
        return _cut(*self._batches(epoch, start), start, self.rank, self.num_replicas)

    def _count_batches(self, epoch: int, consumed: int) -> int:
        return -(-self._count_left(epoch, consumed) // self._size)

    def __len__(self) -> int:
        return self._count_batches(self.epoch, 0)

    @property
    def num_left_batches(self) -> int:
        """How many batches this rank is still to hand out in this epoch."""
        return self._count_batches(self.epoch, self.num_consumed_samples)


def _cut(left: Order, ends: Order, start: int, rank: int, replicas: int) -> Iterator[tuple[list[int], int]]:
    first = 0
    for end in ends.tolist():
        yield left[first + rank : end : replicas].tolist(), start + end
        first = end


def ends_of(n: int, size: int) -> Order:
    """Return where the batches of `n` samples end, all of `size` but the last."""
    return np.minimum(np.arange(size, n + size, size), n)
