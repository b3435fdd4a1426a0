"""Reading the batches of a map-style dataset so that what it draws depends on nothing but where its samples stand.

A sample is read under generators seeded by (seed, epoch, place), and a batch is collated under generators seeded by the
place of its first sample. So the same numbers are drawn by any process, and from any position on; and training's
generators don't notice that data was read. Generator objects of the dataset's own are seeded likewise.

Seeding costs more than many a sample, and most data draws nothing, or from one generator only. So the first batch of an
epoch is read with all generators seeded, to see which ones it draws from; from then on only these are seeded. A draw
from another one is noticed after the batch: it is read again, and that generator is among those that are seeded.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import getitem
from typing import Any

from torch.utils.data import Subset

from tachograph.drivers import banks, seeding

from .own_generators import seeding_of
from .source import has_state


class Reader:
    """Reads batches of a map-style dataset, in whatever process.

    Args:
        dataset: map-style.
        collate: makes a batch of samples.
        seed: of the run.
        single: an entry is one index, as in a loader with `batch_size=None`.
    """

    def __init__(self, dataset: Any, collate: Callable[[Any], Any], seed: int, single: bool) -> None:
        self.dataset = dataset
        self.collate = collate
        self.epoch = -1
        self._seed = seed
        self._single = single
        self._many = None if single else many_of(dataset)
        self._drawn: frozenset[int] = frozenset()
        self._probing = True
        self._always_all = has_state(dataset)  # a read counts there, so none is done twice
        self._kept: Any = None
        self._own: Any = None

    def __reduce__(self) -> Any:
        return type(self), (self.dataset, self.collate, self._seed, self._single)

    def begin(self, epoch: int) -> None:
        """Stand in an epoch."""
        self.epoch = epoch
        self._of_sample = seeding.seeds(self._seed, "sample", epoch)
        self._of_batch = seeding.seeds(self._seed, "batch", epoch)
        self._bank = banks.bank()
        self._mark = None
        self._probing = True
        self._own = None if self._always_all else seeding_of(self.dataset, self.collate)

    def read(self, entry: Any, place: int) -> Any:
        """Read a batch.

        Args:
            entry: sample ids, or one of them with `single`.
            place: of the first of them in the epoch's order.
        """
        if self._probing or self._drawn or self._own is not None:
            return self._read_seeded(entry, place)
        bank = self._bank
        mark = bank.mark()
        if mark != self._mark:
            self._mark, self._kept = mark, bank.copy()
        try:
            batch = self._read(entry)
        except BaseException:
            bank.put(self._kept)
            raise
        if bank.mark() == mark:
            return batch
        self._drawn = bank.moved(self._kept)
        bank.put(self._kept)
        return self._read_seeded(entry, place)

    def _read(self, entry: Any) -> Any:
        dataset = self.dataset
        if self._single:
            return self.collate(dataset[entry])
        if self._many is not None:
            return self.collate(self._many(entry))
        return self.collate([dataset[i] for i in entry])

    def _read_seeded(self, entry: Any, place: int) -> Any:
        bank = self._bank
        before = bank.copy()
        try:
            while True:
                which = banks.ALL if self._probing else self._drawn
                batch = self._walk(entry, place, which)
                self._probing = self._always_all
                unseeded = bank.moved(before) - which
                if not unseeded:
                    return batch
                self._drawn |= unseeded
                bank.put(before)
        finally:
            bank.put(before)

    def _walk(self, entry: Any, place: int, which: frozenset[int]) -> Any:
        dataset, of_sample = self.dataset, self._of_sample
        seed = self._bank.seed if self._own is None else self._seed_own_too
        if self._single or self._many is not None:
            seed(which, of_sample(place))
            samples = self._noted(getitem, dataset, entry) if self._single else self._noted(self._many, entry)
        elif self._probing:
            samples = []
            for k, i in enumerate(entry):
                seed(which, of_sample(place + k))
                samples.append(self._noted(getitem, dataset, i))
        else:
            samples = []
            for k, i in enumerate(entry):
                seed(which, of_sample(place + k))
                samples.append(dataset[i])
        seed(which, self._of_batch(place))
        return self._noted(self.collate, samples)

    def _seed_own_too(self, which: frozenset[int], number: int) -> None:
        self._bank.seed(which, number)
        self._own(number)

    def _noted(self, fn: Any, *given: Any) -> Any:
        """Call a function and, while it isn't known which generators are drawn from, note those that it moved."""
        if not self._probing:
            return fn(*given)
        at = self._bank.copy()
        made = fn(*given)
        self._drawn |= self._bank.moved(at)
        return made


def many_of(dataset: Any) -> Callable[[Any], Any] | None:
    """Return a dataset's own way to get many samples at once; None if it goes one by one all the same."""
    if type(dataset) is Subset and many_of(dataset.dataset) is None:
        return None
    return getattr(dataset, "__getitems__", None) or None
