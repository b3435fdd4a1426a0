"""What the readers of loaders without an index share: their iterator, and what is drawn while it is read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, IterDataPipe

from tachograph.drivers import generators, seeding
from tachograph.drivers.driver import NO_BATCH
from tachograph.drivers.epochs import tell_epoch
from tachograph.drivers.lengths import length_of

from .double import iterates_as_torch
from .rounds import Rounds
from .source import Tell
from .streams import SeededStream, StreamCollate
from .unstopped import Unstopped
from .workers import Workers


class Iterated:
    """A loader that is iterated over, and a position in batches.

    Args:
        dataloader: anything that can be iterated over again and again.
        seed: of the run.
        max_batches: batches to use of an epoch; -1 uses all.
        tell: takes sentences for the user.
        rounds: how ranks share the batches; None: all of them are this process's.

    Attributes:
        ids: None; sample ids aren't known.
        samples: None; nor is how many samples other ranks have.
    """

    def __init__(self, dataloader: Any, seed: int, max_batches: int, tell: Tell, rounds: Rounds | None = None) -> None:
        self.ids: list[Any] | None = None
        self.samples: int | None = None
        self._rounds = rounds
        self._loader = dataloader
        self._seed = seed
        self._max = max_batches
        self._tell = tell
        self._epoch = self._at = 0
        self._number = torch.zeros(1, dtype=torch.int64).share_memory_()  # of the epoch, for workers that live on
        self._read: Any = dataloader  # what is iterated over
        self._ours: dict[str, Any] = {}
        self._batches: Iterator[Any] | None = None
        self._workers: Workers | None = None
        self._inside = False  # everything that draws is in the dataset and its collating, and seeded there
        if isinstance(dataloader, DataLoader):
            self._read = self._double()

    def _double(self) -> Any:
        loader = self._loader
        self._ours |= {"generator": torch.Generator(), "in_order": True, "collate_fn": Unstopped(loader.collate_fn)}
        data = loader.dataset
        # datapipes are taken apart and put together by torch
        if isinstance(data, IterableDataset) and not isinstance(data, IterDataPipe) and self._by_items():
            self._inside = iterates_as_torch(loader)
            stream = SeededStream.of(data, self._seed, self._number)
            self._ours |= {"dataset": stream, "collate_fn": StreamCollate(stream, self._ours["collate_fn"])}
        self._workers = Workers()
        return self._workers.double(loader, self._ours)

    def _end_workers(self) -> None:
        self._batches = None
        if self._workers is not None:
            self._workers.end()

    def _by_items(self) -> bool:
        """Whether seeds are needed item by item, and not only batch by batch."""
        return bool(self._loader.num_workers)

    def _stand(self, epoch: int, at: int) -> None:
        """Stand before batch `at` of an epoch, whose iterator is begun when its first batch is asked for."""
        self._epoch, self._at, self._batches = epoch, at, None
        if self._rounds is not None:
            self._rounds.epoch = epoch
        self._number[0] = epoch
        if "generator" in self._ours:
            self._ours["generator"].manual_seed(generators.derive(self._seed, "workers", epoch))
        self._turns = seeding.Turns(seeding.seeds(self._seed, "loader", epoch))
        tell_epoch(epoch, self._loader, getattr(self._loader, "dataset", None))

    def _iterate(self) -> None:
        """Begin the iteration."""
        with seeding.kept():
            self._batches = self._turns.begin(lambda: iter(self._read))

    def _take(self) -> Any:
        """Take this rank's next batch of the iterator, and keep training's generators out of it."""
        batches: Any = self._batches
        with seeding.kept():
            turn = lambda: next(batches, NO_BATCH)  # noqa: E731
            if self._rounds is not None:
                batch = self._rounds.take(turn if self._inside else lambda: self._turns.take(turn))
            else:
                batch = turn() if self._inside else self._turns.take(turn)
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

    def length(self) -> int | None:
        return self._known_length()

    def _known_length(self) -> int | None:
        length = length_of(self._loader)
        return self._limited(length if self._rounds is None else self._rounds.steps(length))

    def _limited(self, length: int | None) -> int | None:
        return length if length is None or self._max < 0 else min(length, self._max)
