"""What the samplers of several datasets share: how much is taken of each, and in which order.

Indices are those of `torch.utils.data.ConcatDataset(datasets)`: behind the samples of the first dataset come those of
the second one. How many samples an epoch has of each dataset is said by `ds_ratio`. Where that is more than the dataset
holds, it is gone through again, in a new order if it's shuffled; where it's less, the rest is left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tachograph.drivers import generators
from tachograph.drivers.epochs import tell_epoch
from tachograph.states.errors import CallerError

from .batch_sampler import ReproducibleBatchSampler
from .sampler import Order, ReproducibleSampler, generator_of, size_of, whole


class MixSampler(ReproducibleBatchSampler):
    """Hands out batches of several datasets' samples.

    Args:
        dataset: a list or a dict of datasets, or of their lengths.
        batch_size: samples in a batch of one rank.
        sampler: the order within each dataset. None or "seq": its own; "rand": a random one; or a list or dict with a
            sampler for each dataset, which gives indices into it. One that isn't of this package is asked once an
            epoch, under private generators, and must give equal indices for an equal epoch.
        ds_ratio: how many samples of each dataset an epoch has. None: all. "pad_to_most": as many as the longest has.
            "truncate_to_least": as many as the shortest has. A list or dict of numbers >= 0: that many times its
            length, rounded down.
        drop_last: drop batches that would be short.
        rank: as `set_distributed` takes it, from 0; -1: not shared.
        word_size: the number of ranks; -1: not shared.
        seed: of the order, together with the epoch; any integer.

    Raises:
        CallerError: an argument can't be used, or two of them don't fit together.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int,
        sampler: Any = None,
        ds_ratio: Any = None,
        drop_last: bool = False,
        rank: int = -1,
        word_size: int = -1,
        seed: int = 0,
    ) -> None:
        self._datasets = _one_each(dataset, dataset, "dataset")
        super().__init__(sum(map(size_of, self._datasets)), batch_size, drop_last)
        self.dataset = dataset
        self.sampler = sampler
        self.ds_ratio = ds_ratio
        self.seed = whole(seed, "seed")
        self._samplers = _samplers(sampler, dataset)
        self._counts()
        if (rank, word_size) != (-1, -1):
            self.set_distributed(word_size, rank)

    @property
    def word_size(self) -> int:
        """The number of ranks, by the name that the constructor has for it."""
        return self.num_replicas

    @property
    def num_samples(self) -> int:
        return sum(self._counts())

    # -- how much ------------------------------------------------------------------------------------------

    def _lengths(self) -> list[int]:
        """How many indices one pass over each dataset has."""
        sizes = map(size_of, self._datasets)
        return [n if own is None else _length_of(own) for n, own in zip(sizes, self._samplers, strict=True)]

    def _counts(self) -> list[int]:
        """How many samples of each dataset an epoch has."""
        lengths = self._lengths()
        if self.ds_ratio is None:
            return lengths
        if self.ds_ratio == "truncate_to_least":
            return [min(lengths)] * len(lengths)
        if self.ds_ratio == "pad_to_most":
            counts = [max(lengths)] * len(lengths)
        else:
            ratios = _one_each(self.ds_ratio, self.dataset, "ds_ratio")
            counts = [int(round(n * _ratio(ratio), 6)) for n, ratio in zip(lengths, ratios, strict=True)]
        for place, (n, count) in enumerate(zip(lengths, counts, strict=True)):
            if count and not n:
                raise CallerError(f"dataset {place} is empty, and {count} samples of it are asked for by ds_ratio")
        return counts

    # -- in which order ------------------------------------------------------------------------------------

    def _sequences(self, epoch: int) -> list[Order]:
        """The samples of each dataset, as an epoch takes them."""
        sizes = list(map(size_of, self._datasets))
        firsts = np.cumsum([0, *sizes])[:-1]
        return [
            first + self._sequence(epoch, place, n, count)
            for place, (first, n, count) in enumerate(zip(firsts, sizes, self._counts(), strict=True))
        ]

    def _sequence(self, epoch: int, place: int, n: int, count: int) -> Order:
        own = self._samplers[place]
        if own is not None:
            return np.resize(_order_of(own, n, self.seed, epoch, place), count)
        if self.sampler != "rand":
            return np.resize(np.arange(n), count)
        passes = range(-(-count // n) if n else 0)
        drawn = [generator_of(self.seed, epoch, place + 1, number + 1).permutation(n) for number in passes]
        return np.concatenate([np.arange(0), *drawn])[:count]

    # -- states --------------------------------------------------------------------------------------------

    def _fixed(self) -> dict[str, Any]:
        within = [_described(own) for own in self._samplers] if self._samplers[0] is not None else self.sampler or "seq"
        return {
            **super()._fixed(),
            "lengths": list(map(size_of, self._datasets)),
            "counts": self._counts(),
            "sampler": within,
        }

    def _taken(self) -> dict[str, Any]:
        return {"seed": self.seed}


def _one_each(values: Any, datasets: Any, name: str) -> list[Any]:
    """One value for each dataset, in the datasets' order; they're named, or come in that order."""
    if isinstance(datasets, Mapping) and isinstance(values, Mapping):
        if set(values) != set(datasets):
            raise CallerError(f"{name} must have the keys of dataset, {list(datasets)}, not {list(values)}")
        values = [values[key] for key in datasets]
    if not isinstance(values, Sequence) or isinstance(values, (str, bytes)) or not len(values):
        several = "a list or dict of datasets" if name == "dataset" else "one value for each dataset"
        raise CallerError(f"{name} must be {several}, not {values!r}")
    if len(values) != len(datasets):
        raise CallerError(f"{name} must hold one value for each of the {len(datasets)} datasets, not {len(values)}")
    return list(values)


def _ratio(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
        raise CallerError(f"a ratio in ds_ratio must be a number >= 0, not {value!r}")
    return value


def _samplers(sampler: Any, datasets: Any) -> list[Any]:
    if sampler in (None, "seq", "rand"):
        return [None] * len(datasets)
    if isinstance(sampler, str):
        raise CallerError(f'sampler must be None, "seq", "rand" or one sampler for each dataset, not {sampler!r}')
    own = _one_each(sampler, datasets, "sampler")
    for each in own:
        batches = isinstance(each, (ReproducibleBatchSampler, str))
        if batches or not hasattr(each, "__iter__") or not hasattr(each, "__len__"):
            raise CallerError(f"a dataset's sampler must give single indices and have a length, not {each!r}")
    return own


def _length_of(sampler: Any) -> int:
    return sampler.num_samples if isinstance(sampler, ReproducibleSampler) else len(sampler)


def _order_of(sampler: Any, n: int, seed: int, epoch: int, place: int) -> Order:
    """Ask a dataset's sampler for a whole epoch."""
    if isinstance(sampler, ReproducibleSampler):
        order = sampler.order(epoch)
    else:
        tell_epoch(epoch, sampler)
        with generators.forked(generators.derive(seed, "mix", epoch, place)):
            order = np.fromiter(iter(sampler), np.int64)
    if len(order) and (order.min() < 0 or order.max() >= n):
        raise CallerError(f"the sampler of dataset {place} gives indices that are not below its {n} samples")
    return order


def _described(sampler: Any) -> list[Any]:
    known = sampler._taken() if isinstance(sampler, ReproducibleSampler) else {}
    return [type(sampler).__name__, *known.values()]
