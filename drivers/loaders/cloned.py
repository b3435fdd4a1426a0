"""Reading a map-style loader that reads by itself: with workers, with pinned memory, or of a user's own class."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import Generator
from torch.utils.data import DataLoader

from tachograph.drivers import generators, seeding
from tachograph.drivers.driver import NO_BATCH
from tachograph.drivers.ranks import ALONE, Ranks
from tachograph.states.errors import CallerError

from .double import is_torchdata, iterates_as_torch
from .handed import Handed, HandedCollate, HandedOne, HandingSampler, handed_dataset
from .map_style import MapStyle
from .reading import Reader
from .source import Tell, warned
from .workers import Workers


class ClonedSource(MapStyle):
    """Reads any map-style loader through a double of it, which is given our order.

    Ids are noted when they're handed out and taken off the list when their batch arrives, so prefetched batches don't
    count as consumed.

    Args:
        dataloader: a `DataLoader`.
        seed: of the run.
        max_batches: batches to use of an epoch; -1 uses all.
        tell: takes sentences for the user.
        ranks: over which the order is dealt out.
        draws: the seed of what data draws; None: that of the run.
    """

    def __init__(
        self,
        dataloader: DataLoader[Any],
        seed: int,
        max_batches: int,
        tell: Tell = warned,
        ranks: Ranks = ALONE,
        draws: int | None = None,
    ) -> None:
        super().__init__(dataloader, seed, max_batches, tell, ranks, draws)
        self._is_dealt = ranks.world_size > 1
        self._own_iterator = not iterates_as_torch(dataloader)
        self._generator = Generator()
        self._ours: dict[str, Any] = {
            "sampler" if self._single else "batch_sampler": HandingSampler(self._sampler, self._hand_out),
            "dataset": handed_dataset(dataloader.dataset),
            "collate_fn": HandedCollate(Reader(dataloader.dataset, dataloader.collate_fn, self._draws, self._single)),
            "generator": self._generator,
            "in_order": True,  # batches in any order would be another order each time
        }
        self._workers = Workers()
        self._double = self._workers.double(dataloader, self._ours, DataLoader if is_torchdata(dataloader) else None)
        self._batches: Iterator[Any] | None = None
        self._entries: Iterator[Any] = iter(())
        self._handed: deque[tuple[list[Any], int | None]] = deque()  # ids, and the samples of that step
        self._epoch = self._at = self._skip = 0
        self._asked = self._unordered = False

    def _hand_out(self) -> Iterator[Any]:
        kind, epoch = (HandedOne if self._single else Handed), self._epoch
        for entry in self._entries:
            self._asked = True
            ids = self._ids_in(entry)
            self._handed.append((ids, self.samples))
            place = self._place
            self._place = place + len(ids)
            yield kind(entry, epoch, place)

    def open(self, epoch: int, done: int, samples: int | None = None) -> int | None:
        self._generator.manual_seed(generators.derive(self._seed, "workers", epoch))
        self._handed.clear()
        self._entries = self._opened(epoch, done, samples)
        self._epoch = epoch
        self._at, self._skip = (0, done) if self._unordered else (done, 0)
        self._of_next = seeding.seeds(self._seed, "iterator", epoch)
        self._batches = None  # the workers start at the first batch that is asked for
        return self._length

    def next(self) -> Any:
        self._before_fetch()
        try:
            batch = self._fetched()
        except BaseException:
            asked = [ids for ids, _ in self._handed]
            self.ids = self._workers.asked_of_the_dead(asked) or (asked[0] if asked else None)
            raise
        if batch is not NO_BATCH and self._own_iterator:
            batch = self._checked(batch)
        if batch is NO_BATCH:
            return self._ended()
        self.ids, self.samples = self._handed.popleft() if self._handed else (None, None)
        self._at += 1
        return batch

    def _fetched(self) -> Any:
        with self._private():
            if self._batches is None:
                self._batches = iter(self._double)
            return next(self._batches, NO_BATCH)

    def _checked(self, batch: Any) -> Any:
        """Find out whether a user's own iterator asks for entries; if it doesn't, go by the number of its batches."""
        if not self._asked and not self._unordered:
            if self._is_dealt:
                raise CallerError(
                    f"the iterator of {type(self._loader).__name__} doesn't ask its sampler for samples, so they can't "
                    "be dealt out over ranks: let its __iter__ go over super().__iter__(), or say "
                    "use_dist_sampler=False if it reads what its rank is to read"
                )
            self._unordered, self._at, self._skip = True, 0, self._at
            self._tell(
                f"the iterator of {type(self._loader).__name__} doesn't ask its sampler for samples, so its batches "
                "have no index, their order isn't the run's, and a resume reads an epoch again from its beginning: let "
                "its __iter__ go over super().__iter__(), or give it state_dict() and load_state_dict()"
            )
        if not self._unordered:
            return batch
        while self._skip and batch is not NO_BATCH:
            self._skip, self._at = self._skip - 1, self._at + 1
            batch = self._fetched()
        return NO_BATCH if self._max >= 0 and self._at >= self._max else batch

    def _private(self) -> AbstractContextManager[None]:
        """What an iterator of the user's own draws in this process is no business of training's either."""
        return seeding.seeded(self._of_next(self._at)) if self._own_iterator else nullcontext()

    def _ended(self) -> Any:
        if self._handed and not self._own_iterator:
            raise RuntimeError(f"the dataset or collate_fn raised StopIteration for samples {self._handed[0][0]}")
        self.ids = None
        return NO_BATCH

    def close(self) -> None:
        super().close()
        self._batches = None
        self._workers.end()
        self._handed.clear()

    def state(self, again: bool = False) -> Any:
        held = super().state(again)
        if self._own_iterator:
            held["unordered"] = self._unordered
        return held

    def load(self, held: Any) -> None:
        super().load(held)
        self._unordered = bool(held.get("unordered"))
