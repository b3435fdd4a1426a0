"""Where training batches come from, and how an epoch is entered in its middle.

The order of an epoch is a pure function of (seed, epoch), and a position is a count of batches consumed. So a
resume asks the sampler again, drops the indices that are done, and loads nothing before the first batch it needs.
The user's objects are never changed: samplers and loaders are copied, and draw from private generators.
"""

from __future__ import annotations

import copy
import itertools
import warnings
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sized
from typing import Any, Protocol
from zlib import crc32

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from tachograph.states.errors import CallerError

from . import generators
from .collating import quick, quick_collate
from .driver import NO_BATCH
from .lengths import length_of

_SEEDABLE = (RandomSampler, SubsetRandomSampler, WeightedRandomSampler)
_CHUNK = 256  # batches asked of a custom sampler at a time, under generators of its own


class BatchSource(Protocol):
    """What a driver asks for batches.

    Attributes:
        ids: the sample ids of the batch returned last; None where they aren't known.
    """

    ids: list[Any] | None

    def open(self, epoch: int, done: int) -> int | None:
        """Stand before batch `done` of `epoch`; return the batches of an epoch, None if unknown."""

    def next(self) -> Any:
        """Return the next batch, as the loader made it, or `NO_BATCH`."""

    def close(self) -> None:
        """Let go of iterators and workers."""


def source_of(dataloader: Any, seed: int, max_batches: int) -> BatchSource:
    """Choose how to read a loader.

    Args:
        dataloader: a `DataLoader`, or anything that can be iterated over again and again.
        seed: of the order.
        max_batches: batches to use of an epoch; -1 uses all.
    """
    if isinstance(dataloader, DataLoader) and not isinstance(dataloader.dataset, IterableDataset):
        inner_iter = type(dataloader).__iter__ is DataLoader.__iter__
        direct = dataloader.num_workers == 0 and inner_iter and not dataloader.pin_memory
        return (DirectSource if direct else ClonedSource)(dataloader, seed, max_batches)
    return ReplayedSource(dataloader, seed, max_batches)


def check_loader(dataloader: Any, name: str = "train_dataloader") -> None:
    """Refuse what can't be a loader, and one that is known to be empty.

    Raises:
        CallerError: it is a list or dict of loaders, can't be iterated over, is an iterator, or has no batch.
    """
    said = f"{name} must be one DataLoader (or an iterable of batches that can be iterated over again)"
    if isinstance(dataloader, (dict, str, bytes)) or not isinstance(dataloader, Iterable):
        raise CallerError(f"{said}, not {type(dataloader).__name__}")
    if isinstance(dataloader, Iterator):
        raise CallerError(f"{said}: an iterator is empty after its first epoch. Give the object that makes it")
    if isinstance(dataloader, (list, tuple)) and any(isinstance(part, DataLoader) for part in dataloader):
        raise CallerError(f"{said}, not a {type(dataloader).__name__} of them")
    if length_of(dataloader) == 0:
        data = getattr(dataloader, "dataset", dataloader)
        size = f" of {len(data)} samples" if isinstance(data, Sized) else ""
        hint = ", with drop_last=True" if getattr(dataloader, "drop_last", False) else ""
        raise CallerError(f"{name} is empty: its {type(data).__name__}{size}{hint} makes no batch")


def described(dataloader: Any, max_batches: int) -> str:
    """Describe what decides the order and the batches of a loader, for comparison at a resume."""
    most = "" if max_batches < 0 else f", at most {max_batches} an epoch"
    if not isinstance(dataloader, DataLoader):
        return f"{type(dataloader).__name__}{most}"
    data = dataloader.dataset
    size = f" of {len(data)} samples" if isinstance(data, Sized) else ""
    batches = f"batches of {dataloader.batch_size}" if dataloader.batch_size is not None else "its own batches"
    sampler = (
        dataloader.sampler if type(dataloader.batch_sampler) in (BatchSampler, type(None)) else dataloader.batch_sampler
    )
    drop = ", the last one dropped if short" if dataloader.drop_last else ""
    return f"{type(data).__name__}{size} in {batches}{drop} by {type(sampler).__name__}{most}"


def hash_ids(ids: list[Any] | None) -> int:
    """Hash sample ids in their order: CRC-32 of them as 64-bit integers, or of their repr; 0 for None."""
    if ids is None:
        return 0
    try:
        return crc32(array("q", ids))
    except (TypeError, OverflowError):  # ids of a user's own kind
        return crc32(repr(ids).encode())


class IndexStream:
    """The lists of sample ids of one epoch, from a position on.

    Args:
        sampler: a batch sampler, or a sampler of single ids (for a loader with `batch_size=None`).
        seed: of the order.
        epoch: whose order.
        done: entries to leave out; nothing is loaded for them.
    """

    def __init__(self, sampler: Any, seed: int, epoch: int, done: int) -> None:
        for part in (sampler, getattr(sampler, "sampler", None)):
            set_epoch = getattr(part, "set_epoch", None)
            if set_epoch is not None:
                set_epoch(epoch)
        order = generators.derive(seed, "order", epoch)
        private = _with_private_generator(sampler, order)
        entries = iter(private) if private is not None else _under_private_generators(sampler, order)
        self._entries = itertools.islice(entries, done, None)

    def __iter__(self) -> Iterator[Any]:
        return self._entries


def _with_private_generator(sampler: Any, order: int) -> Sampler[Any] | None:
    """Copy one of torch's own samplers so that it draws from a private generator; None for any other kind."""
    if type(sampler) is BatchSampler:
        inner = _with_private_generator(sampler.sampler, order)
        if inner is None:
            return None
        sampler = copy.copy(sampler)
        sampler.sampler = inner
        return sampler  # type: ignore[no-any-return]
    if type(sampler) is SequentialSampler:
        return sampler
    if type(sampler) in _SEEDABLE:
        sampler = copy.copy(sampler)
        sampler.generator = torch.Generator()
        sampler.generator.manual_seed(order)
        return sampler  # type: ignore[no-any-return]
    return None


def _under_private_generators(sampler: Any, order: int) -> Iterator[Any]:
    """Ask a sampler of unknown kind, a chunk at a time, while the global generators are its own."""
    with generators.forked(order):
        entries = iter(sampler)
        own = generators.capture()
    while True:
        with generators.forked():
            generators.restore(own)
            chunk = list(itertools.islice(entries, _CHUNK))
            own = generators.capture()
        if not chunk:
            return
        yield from chunk


class _MapStyle:
    """What the two readers of map-style loaders share: the order, the limit and the length."""

    def __init__(self, dataloader: DataLoader[Any], seed: int, max_batches: int) -> None:
        self.ids: list[Any] | None = None
        self._loader = dataloader
        self._seed = seed
        self._max = max_batches
        batched = dataloader.batch_sampler is not None
        self._sampler: Any = dataloader.batch_sampler if batched else dataloader.sampler
        self._single = not batched

    def _order(self, epoch: int, done: int) -> Iterator[Any]:
        stream = iter(IndexStream(self._sampler, self._seed, epoch, done))
        return stream if self._max < 0 else itertools.islice(stream, max(self._max - done, 0))

    def _length(self) -> int | None:
        length = length_of(self._loader)
        if length is None or self._max < 0:
            return length if self._max < 0 else None
        return min(length, self._max)

    def _as_list(self, entry: Any) -> list[Any]:
        return [entry] if self._single else list(entry)


class DirectSource(_MapStyle):
    """Reads a map-style loader without workers: index, fetch, collate, and nothing between them.

    It makes what `DataLoader` makes, bit for bit, at less cost a batch: no iterator that draws a base seed, no profiler
    range, no walk through the types of every sample (`collating`).
    """

    def __init__(self, dataloader: DataLoader[Any], seed: int, max_batches: int) -> None:
        super().__init__(dataloader, seed, max_batches)
        self._entries: Iterator[Any] = iter(())
        self._load = self._loader_of(dataloader)

    def _loader_of(self, dataloader: DataLoader[Any]) -> Callable[[Any], Any]:
        dataset: Any = dataloader.dataset
        many = getattr(dataset, "__getitems__", None)
        collate = quick(dataloader.collate_fn)
        if self._single:
            return lambda entry: collate(dataset[entry])
        if type(dataset) is TensorDataset and collate is quick_collate:
            tensors = dataset.tensors
            return lambda entry: [tensor[entry] for tensor in tensors]
        if many is not None:
            return lambda entry: collate(many(entry))
        return lambda entry: collate([dataset[i] for i in entry])

    def open(self, epoch: int, done: int) -> int | None:
        self._entries = self._order(epoch, done)
        return self._length()

    def next(self) -> Any:
        entry = next(self._entries, NO_BATCH)
        if entry is NO_BATCH:
            return NO_BATCH
        self.ids = entry if type(entry) is list else self._as_list(entry)
        try:
            return self._load(entry)
        except StopIteration as error:  # a user's StopIteration must not look like the end of the epoch
            raise RuntimeError(f"the dataset or collate_fn raised StopIteration for samples {self.ids}") from error

    def close(self) -> None:
        self._entries = iter(())


class ClonedSource(_MapStyle):
    """Reads any other map-style loader, with workers or of a user's own class, through a copy of it.

    The copy is given our order as its batch sampler. Ids are noted when they're handed to the workers and taken
    off the list when their batch arrives, so prefetched batches don't count as consumed.
    """

    def __init__(self, dataloader: DataLoader[Any], seed: int, max_batches: int) -> None:
        super().__init__(dataloader, seed, max_batches)
        self._clone: Any = None
        self._batches: Iterator[Any] | None = None
        self._handed: deque[list[Any]] = deque()
        self._entries: Iterator[Any] = iter(())

    def __iter__(self) -> Iterator[Any]:
        """Be the copy's sampler: hand out entries and note them."""
        for entry in self._entries:
            self._handed.append(self._as_list(entry))
            yield entry

    def __len__(self) -> int:
        return len(self._sampler)

    def open(self, epoch: int, done: int) -> int | None:
        if self._clone is None:
            self._clone = copy.copy(self._loader)
            held = vars(self._clone)  # DataLoader forbids setting these after its construction
            held["sampler" if self._single else "batch_sampler"] = self
            held["_iterator"] = None
        self._clone.generator = torch.Generator()
        self._clone.generator.manual_seed(generators.derive(self._seed, "workers", epoch))
        self._handed.clear()
        self._entries = self._order(epoch, done)
        self._batches = None  # the workers start at the first batch that is asked for
        return self._length()

    def next(self) -> Any:
        if self._batches is None:
            self._batches = iter(self._clone)
        batch = next(self._batches, NO_BATCH)
        if batch is NO_BATCH and self._handed:
            raise RuntimeError(f"the dataset or collate_fn raised StopIteration for samples {self._handed[0]}")
        self.ids = self._handed.popleft() if self._handed else None
        return batch

    def close(self) -> None:
        self._batches, self._clone = None, None
        self._handed.clear()


class ReplayedSource:
    """Reads what has no index: iterable datasets and other iterables. A position is reached by reading up to it."""

    def __init__(self, dataloader: Any, seed: int, max_batches: int) -> None:
        self.ids: list[Any] | None = None
        self._loader = dataloader
        self._seed = seed
        self._max = max_batches
        self._at = (0, 0)
        self._batches: Iterator[Any] | None = None

    def open(self, epoch: int, done: int) -> int | None:
        self._at, self._batches = (epoch, done), None
        length = length_of(self._loader)
        return length if length is None or self._max < 0 else min(length, self._max)

    def next(self) -> Any:
        if self._batches is None:
            self._batches = self._opened(*self._at)
        return next(self._batches, NO_BATCH)

    def _opened(self, epoch: int, done: int) -> Iterator[Any]:
        loader = self._loader
        if hasattr(loader, "set_epoch"):
            loader.set_epoch(epoch)
        if isinstance(loader, DataLoader):
            loader = copy.copy(loader)
            vars(loader)["_iterator"] = None
            loader.generator = torch.Generator()
            loader.generator.manual_seed(generators.derive(self._seed, "workers", epoch))
        batches = iter(loader)
        if done:
            warnings.warn(
                f"the training loader has no index, so {done} batches of epoch {epoch} are read again and dropped; "
                "a map-style dataset resumes at once",
                stacklevel=2,
            )
            with generators.forked():  # what they draw was drawn before
                for _ in itertools.islice(batches, done):
                    pass
        return batches if self._max < 0 else itertools.islice(batches, max(self._max - done, 0))

    def close(self) -> None:
        self._batches = None
