"""What the readers of loaders without an index share: their iterator, and what is drawn while it is read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, IterDataPipe

from tachograph.drivers import generators, seeding
from tachograph.drivers.driver import NO_BATCH
from tachograph.drivers.lengths import length_of

from .double import double_of, iterates_as_torch
from .source import Tell
from .streams import StreamCollate, seeded_stream


class Iterated:
    """A loader that is iterated over, and a position in batches.

    Args:
        dataloader: anything that can be iterated over again and again.
        seed: of the run.
        max_batches: batches to use of an epoch; -1 uses all.
        tell: takes sentences for the user.

    Attributes:
        ids: None; sample ids aren't known.
    """

    def __init__(self, dataloader: Any, seed: int, max_batches: int, tell: Tell) -> None:
        self.ids: list[Any] | None = None
        self._loader = dataloader
        self._seed = seed
        self._max = max_batches
        self._tell = tell
        self._epoch = self._at = 0
        self._number = torch.zeros(1, dtype=torch.int64).share_memory_()  # of the epoch, for workers that live on
        self._read: Any = dataloader  # what is iterated over
        self._ours: dict[str, Any] = {}
        self._batches: Iterator[Any] | None = None
        self._elsewhere = False  # everything that could draw does so in worker processes
        if isinstance(dataloader, DataLoader):
            self._read = self._double()

    def _double(self) -> Any:
        loader = self._loader
        self._ours |= {"generator": torch.Generator(), "in_order": True, "_iterator": None}
        if loader.num_workers and isinstance(loader.dataset, IterableDataset):
            self._elsewhere = iterates_as_torch(loader)
            if not isinstance(loader.dataset, IterDataPipe):  # these are taken apart and put together by torch
                stream = seeded_stream(loader.dataset, self._seed, self._number)
                self._ours |= {"dataset": stream, "collate_fn": StreamCollate(stream, loader.collate_fn)}
        return double_of(loader, self._ours)

    def _stand(self, epoch: int, at: int) -> None:
        """Stand before batch `at` of an epoch, whose iterator is begun when its first batch is asked for."""
        self._epoch, self._at, self._batches = epoch, at, None
        self._number[0] = epoch
        if "generator" in self._ours:
            self._ours["generator"].manual_seed(generators.derive(self._seed, "workers", epoch))
        self._turns = seeding.Turns(seeding.seeds(self._seed, "loader", epoch))
        for part in (self._loader, getattr(self._loader, "dataset", None)):
            set_epoch = getattr(part, "set_epoch", None)
            if set_epoch is not None:
                set_epoch(epoch)

    def _iterate(self) -> None:
        """Begin the iteration."""
        with seeding.kept():
            self._batches = self._turns.begin(lambda: iter(self._read))

    def _take(self) -> Any:
        """Take the next batch of the iterator, and keep training's generators out of it."""
        batches: Any = self._batches
        if self._elsewhere:
            batch = next(batches, NO_BATCH)
            self._turns.done += 1
        else:
            with seeding.kept():
                batch = self._turns.take(lambda: next(batches, NO_BATCH))
        if batch is not NO_BATCH:
            self._at += 1
        return batch

    def _pass_over(self, n: int) -> None:
        """Read batches that were consumed already, and drop them."""
        with generators.forked():  # what a device's generator gave them was drawn before
            for _ in range(n):
                if self._take() is NO_BATCH:
                    return

    def _at_limit(self) -> bool:
        return 0 <= self._max <= self._at

    def _known_length(self) -> int | None:
        length = length_of(self._loader)
        return length if length is None or self._max < 0 else min(length, self._max)
