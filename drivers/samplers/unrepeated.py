"""Samplers for evaluation: every sample on exactly one rank, for any number of ranks.

Nothing is repeated and nothing is dropped, so the first ranks may have one sample more than the others, and the ranks
may have unequally many batches. A metric over all ranks then counts each sample once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np

from tachograph.drivers.errors import SamplerFault
from tachograph.states.errors import CallerError

from .arranged import Arranged
from .batch_sampler import ends_of
from .random_sampler import Shuffled
from .sampler import Order, ReproducibleSampler, truth, whole
from .sorted_sampler import digest_of, lengths_of, longest_first

S = TypeVar("S", bound="UnrepeatedSampler")


class UnrepeatedSampler(ReproducibleSampler):
    """Hands out every sample on exactly one rank."""

    def __init__(self, dataset: Any) -> None:
        super().__init__(dataset)
        self.pad = False

    def set_distributed(self: S, num_replicas: int, rank: int, pad: bool = False) -> S:
        """Share the epoch with other ranks.

        Args:
            num_replicas: how many ranks there are, >= 1, and at most as many as samples.
            rank: which this one is, from 0.
            pad: must be False: nothing is repeated here.

        Returns:
            The sampler.

        Raises:
            SamplerFault: an iteration is under way, or a rank would have no sample.
            CallerError: there is no such rank, or `pad` is True.
        """
        if truth(pad, "pad"):
            raise CallerError(f"a {type(self).__name__} repeats no sample: pad must be False")
        if whole(num_replicas, "num_replicas", 1) > self.num_samples:
            raise SamplerFault(
                f"{num_replicas} ranks can't share {self.num_samples} samples so that each has one: use at most "
                f"{self.num_samples} ranks, or evaluate on one rank"
            )
        return super().set_distributed(num_replicas, rank, False)

    def _left(self, epoch: int, consumed: int) -> Order:
        return self.order(epoch)[consumed:]

    def _count_left(self, epoch: int, consumed: int) -> int:
        return max(self.num_samples - consumed, 0)

    def _share(self, total: int) -> int:
        return total // self.num_replicas + (self.rank < total % self.num_replicas)


class UnrepeatedRandomSampler(Shuffled, UnrepeatedSampler):
    """Hands out every sample on exactly one rank, in a random order or in their own.

    Args:
        dataset: anything with a length, or the length itself.
        shuffle: True draws another order for every epoch.
        seed: of the order, together with the epoch; any integer.
    """

    def __init__(self, dataset: Any, shuffle: bool = False, seed: int = 0) -> None:
        super().__init__(dataset)
        self._draw_from(shuffle, seed)


class UnrepeatedSortedSampler(UnrepeatedSampler):
    """Hands out every sample on exactly one rank, from the longest to the shortest.

    Args:
        dataset: anything with a length, or the length itself.
        length: one number a sample.
    """

    def __init__(self, dataset: Any, length: Any) -> None:
        super().__init__(dataset)
        self.length = length
        self._lengths = lengths_of(length, self.num_samples)
        self._digest = digest_of(self._lengths)

    def order(self, epoch: int) -> Order:
        return longest_first(self._lengths)

    def _fixed(self) -> dict[str, Any]:
        return {**super()._fixed(), "lengths": self._digest}


class UnrepeatedSequentialSampler(Arranged, UnrepeatedSampler):
    """Hands out every sample on exactly one rank, in the dataset's own order.

    Args:
        dataset: anything with a length, or the length itself.
        chunk_dist: how the ranks share. Of 10 samples and 2 ranks, False gives the first rank 0, 2, 4, 6, 8; True gives
            it 0, 1, 2, 3, 4.
    """

    def __init__(self, dataset: Any, chunk_dist: bool = False) -> None:
        super().__init__(dataset)
        self.chunk_dist = truth(chunk_dist, "chunk_dist")

    def _layout(self) -> dict[str, int]:
        return {"chunks": self.num_replicas if self.chunk_dist else 1}

    def _pool(self, epoch: int) -> Order:
        return np.arange(self.num_samples)

    def _arrange(self, rest: Order, layout: Mapping[str, int], rng: np.random.Generator) -> tuple[Order, Order]:
        """Deal the chunks out in turn: the next of the first chunk, the next of the second one, and so on."""
        n, chunks = len(rest), layout["chunks"]
        longer, length = n % chunks, n // chunks
        begins = np.arange(chunks) * length + np.minimum(np.arange(chunks), longer)
        turn, chunk = np.divmod(np.arange(n), chunks)
        return rest[begins[chunk] + turn], ends_of(n, chunks)

    def _whole(self) -> int:
        return self.num_samples
