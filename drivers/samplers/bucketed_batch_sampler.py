"""`BucketedBatchSampler`: batches of samples of like length, in an order drawn anew each epoch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .arranged import ArrangedBatches, fitted_batches, size_of_batch
from .batch_sampler import ends_of
from .sampler import Order, truth, whole
from .sorted_sampler import digest_of, lengths_of, longest_first


class BucketedBatchSampler(ArrangedBatches):
    """Hands out every sample once an epoch, in batches of samples of like length.

    The samples are sorted by length and cut into buckets of `num_batch_per_bucket` batches of all ranks. They are
    shuffled within their buckets, cut into batches, and the batches are shuffled, all but the last one, which may be
    short. So little is padded, and still no epoch is like another.

    Batch size, bucket size and number of ranks may change at a resume: the state carries what was followed so far, the
    old order is made again, what was consumed of it is taken away, and the rest is put into new buckets.

    Args:
        dataset: anything with a length, or the length itself.
        length: one number a sample.
        batch_size: samples in a batch of one rank.
        num_batch_per_bucket: batches in a bucket, >= 1; the more, the more random, and the more is padded.
        shuffle: False takes the samples from the longest to the shortest.
        drop_last: drop the last batch if it's short.
        seed: of the order, together with the epoch; any integer.
    """

    def __init__(
        self,
        dataset: Any,
        length: Any,
        batch_size: int = 32,
        num_batch_per_bucket: int = 10,
        shuffle: bool = True,
        drop_last: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__(dataset, batch_size, drop_last)
        self.length = length
        self.num_batch_per_bucket = whole(num_batch_per_bucket, "num_batch_per_bucket", 1)
        self.shuffle = truth(shuffle, "shuffle")
        self.seed = whole(seed, "seed")
        self._lengths = lengths_of(length, self.num_samples)
        self._digest = digest_of(self._lengths)
        self._longest_first = longest_first(self._lengths)

    def _layout(self) -> dict[str, int]:
        return {**super()._layout(), "num_batch_per_bucket": self.num_batch_per_bucket}

    def _pool(self, epoch: int) -> Order:
        return self._longest_first

    def _arrange(self, rest: Order, layout: Mapping[str, int], rng: np.random.Generator) -> tuple[Order, Order]:
        size = size_of_batch(layout)
        if self.shuffle:
            rest = _mixed_in_buckets(rest, size * layout["num_batch_per_bucket"], rng)
        places = fitted_batches(rest, layout)
        full = max(len(places) - 1, 0) // size  # the last batch stays the last
        if self.shuffle and full:
            mixed = rng.permutation(places[: full * size].reshape(full, size)).ravel()
            places = np.concatenate([mixed, places[full * size :]])
        return places, ends_of(len(places), size)

    def _fixed(self) -> dict[str, Any]:
        return {**super()._fixed(), "lengths": self._digest}

    def _taken(self) -> dict[str, Any]:
        return {"seed": self.seed, "shuffle": self.shuffle}


def _mixed_in_buckets(rest: Order, bucket: int, rng: np.random.Generator) -> Order:
    full = len(rest) // bucket * bucket
    mixed = rng.permuted(rest[:full].reshape(-1, bucket), axis=1).ravel()
    return np.concatenate([mixed, rng.permutation(rest[full:])])
