"""The order of an epoch: which samples make which batch, from any position on.

The order is a pure function of (seed, epoch), and a position is a count of samples consumed. So a resume asks the
sampler again and passes over what is done; nothing is loaded for it. The user's samplers are copied, or asked while the
global generators are their own. Samplers of this package are told the position, and begin there.
"""

from __future__ import annotations

import copy
import itertools
import sys
from array import array
from collections.abc import Iterator
from typing import Any
from zlib import crc32

import attrs
from torch import Generator
from torch.utils.data import (
    BatchSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from tachograph.drivers import generators
from tachograph.drivers.epochs import tell_epoch
from tachograph.drivers.lengths import length_of
from tachograph.drivers.samplers import ReproducibleBatchSampler, ReproducibleSampler

_SEEDABLE = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)
_CHUNK = 256  # batches asked of a custom sampler at a time, under generators of its own


def hash_ids(ids: list[Any] | None) -> int:
    """Hash sample ids in their order: CRC-32 of them as 64-bit integers, or of their repr; 0 for None."""
    if ids is None:
        return 0
    try:
        return crc32(array("q", ids))
    except (TypeError, OverflowError):  # ids of a user's own kind
        return crc32(repr(ids).encode())


def ids_in(entry: Any, single: bool) -> list[Any]:
    """Return the sample ids that an entry of an order holds.

    Args:
        entry: what the sampler yielded.
        single: the loader has `batch_size=None`, so that an entry is a sample, or a list of them for the dataset.
    """
    if type(entry) is list:
        return entry
    return [entry] if single else list(entry)


@attrs.define
class Opened:
    """An epoch's order, opened at a position.

    Attributes:
        entries: what is left of it.
        place: samples before the first of them.
        length: entries of the whole epoch, if those before the position are counted as they were consumed; None if
            the sampler doesn't say.
    """

    entries: Iterator[Any]
    place: int
    length: int | None


class Order:
    """The orders of a sampler.

    Args:
        sampler: a batch sampler, or a sampler of entries for a loader with `batch_size=None`.
        seed: of the order.
        single: the loader has `batch_size=None`.
    """

    def __init__(self, sampler: Any, seed: int, single: bool = False) -> None:
        self.sampler = of_torch(sampler)
        self._seed = seed
        self._single = single
        self._decides = self.sampler.sampler if type(self.sampler) is BatchSampler else self.sampler

    def length(self) -> int | None:
        """Return how many entries an epoch has that is gone through from its beginning; None if that isn't known."""
        return length_of(self.sampler)

    def open(self, epoch: int, done: int, samples: int | None = None, told: bool = False) -> Opened:
        """Stand behind what was consumed of an epoch.

        Args:
            epoch: its number.
            done: entries consumed.
            samples: samples consumed: they decide on the position, `done` on the length. None: both follow from `done`.
            told: the sampler was just given a state. If that was of an epoch's end, the next iteration counts.
        """
        self._told = told
        tell_epoch(epoch, self.sampler, getattr(self.sampler, "sampler", None))
        if isinstance(self._decides, ReproducibleSampler) and (samples is not None or not done):
            return self._sought(self._decides, epoch, done, samples or 0)
        order = generators.derive(self._seed, "order", epoch)
        if type(self.sampler) is BatchSampler:
            return self._in_batches(order, done, samples)
        return self._entry_by_entry(order, done, samples)

    def _sought(self, ours: ReproducibleSampler, epoch: int, done: int, place: int) -> Opened:
        """Have a sampler of this package begin behind what was consumed."""
        ours.seek(epoch, place)
        entries = iter(ours)
        if ours is self.sampler:
            left = ours.num_left_batches if isinstance(ours, ReproducibleBatchSampler) else ours.num_left_samples
            return Opened(entries, place, done + left)
        batches = copy.copy(self.sampler)
        batches.sampler = _Once(entries)
        return Opened(iter(batches), place, self._batches(done, place))

    def _in_batches(self, order: int, done: int, samples: int | None) -> Opened:
        """Pass over samples, and let torch make batches of the rest."""
        sampler: Any = self.sampler
        size = sampler.batch_size
        place = done * size if samples is None else samples
        ids = self._iterated(sampler.sampler, order, _CHUNK * size)
        batches = copy.copy(sampler)
        batches.sampler = _Once(_passed(ids, place))
        return Opened(iter(batches), place, self._batches(done, place))

    def _iterated(self, sampler: Any, order: int, chunk: int) -> Iterator[Any]:
        entries = _iterated(sampler, order, chunk)
        if not self._told:
            return entries
        first = next(entries, _END)
        return _iterated(sampler, order, chunk) if first is _END else itertools.chain([first], entries)

    def _batches(self, done: int, place: int) -> int | None:
        sampler: Any = self.sampler
        n, size = length_of(sampler.sampler), int(sampler.batch_size)
        if n is None or place == done * size:
            return length_of(sampler)
        left = max(n - place, 0)
        return done + (left // size if sampler.drop_last else -(-left // size))

    def _entry_by_entry(self, order: int, done: int, samples: int | None) -> Opened:
        """Pass over entries, and cut one that was consumed in part."""
        entries = self._iterated(self.sampler, order, _CHUNK)
        place = passed = 0
        cut = False
        while passed < done if samples is None else place < samples:
            entry = next(entries, _END)
            if entry is _END:
                break
            ids = ids_in(entry, self._single)
            if samples is not None and place + len(ids) > samples:
                entries, cut = itertools.chain([ids[samples - place :]], entries), True
                place = samples
                break
            place, passed = place + len(ids), passed + 1
        length = length_of(self.sampler)
        if length is not None and (cut or passed != done):
            length = done + max(length - passed, 0)
        return Opened(entries, place, length)


_END = object()


def of_torch(sampler: Any) -> Any:
    """Return torch's own sampler in place of torchdata's of the same name, which only adds a state to it."""
    module = sys.modules.get("torchdata.stateful_dataloader.sampler")
    if module is None:
        return sampler
    if type(sampler) is module.BatchSampler:
        return BatchSampler(of_torch(sampler.sampler), sampler.batch_size, sampler.drop_last)
    if type(sampler) is module.RandomSampler:
        return RandomSampler(sampler.data_source, sampler.replacement, sampler._num_samples)
    return sampler


@attrs.frozen
class _Once:
    """A sampler for one iteration."""

    ids: Iterator[Any]

    def __iter__(self) -> Iterator[Any]:
        return self.ids


def _passed(entries: Iterator[Any], n: int) -> Iterator[Any]:
    if n:
        next(itertools.islice(entries, n - 1, n), None)
    return entries


def _iterated(sampler: Any, order: int, chunk: int) -> Iterator[Any]:
    private = _with_private_generator(sampler, order)
    return iter(private) if private is not None else _under_private_generators(sampler, order, chunk)


def _with_private_generator(sampler: Any, order: int) -> Any:
    """Copy one of torch's own samplers so that it draws from a private generator; None for any other kind."""
    if type(sampler) is BatchSampler:
        inner = _with_private_generator(sampler.sampler, order)
        if inner is None:
            return None
        sampler = copy.copy(sampler)
        sampler.sampler = inner
        return sampler
    if type(sampler) in (SequentialSampler, list, tuple, range):
        return sampler
    if type(sampler) in _SEEDABLE:
        sampler = copy.copy(sampler)
        sampler.generator = Generator()
        sampler.generator.manual_seed(order)
        return sampler
    return None


def _under_private_generators(sampler: Sampler[Any], order: int, chunk: int) -> Iterator[Any]:
    """Ask a sampler of unknown kind, a chunk at a time, while the global generators are its own."""
    with generators.forked(order):
        entries = iter(sampler)
        own = generators.capture()
    return itertools.chain.from_iterable(_chunks(entries, own, chunk))


def _chunks(entries: Iterator[Any], own: dict[str, Any], chunk: int) -> Iterator[list[Any]]:
    while True:
        with generators.forked():
            generators.restore(own)
            held = list(itertools.islice(entries, chunk))
            own = generators.capture()
        if not held:
            return
        yield held
