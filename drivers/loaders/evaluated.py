"""Reading an evaluation loader: again and again from its beginning, in its own order.

Over ranks, batches are composed as in one process, and each of them is one rank's: the first goes to the first rank,
the second to the second one. So every sample is scored once, whatever the number of ranks, and none to make them even.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Generator, Iterator
from typing import Any

from torch.utils.data import DataLoader

from tachograph.drivers.driver import NO_BATCH
from tachograph.drivers.epochs import samplers_of
from tachograph.drivers.lengths import length_of
from tachograph.drivers.ranks import ALONE, Ranks

from .content import content_hash
from .dealing import compared, whole
from .double import is_torchdata, iterates_as_torch
from .handed import HandingSampler
from .order import Order, ids_in
from .sharing import Sharing, check_share, has_index, sharing_of
from .unstopped import Unstopped
from .workers import Workers


class EvaluationSource:
    """Reads any loader. A `DataLoader` is read through a double, which knows its samples and ends its workers.

    Args:
        loader: anything that can be iterated over again and again.
        ranks: those that evaluate together.
        share: the user's choice. None: the batches are dealt out, unless the loader shares its data by itself; True:
            they're dealt out; False: each rank's loader makes what that rank is to read.

    Attributes:
        ids: the sample ids of the batch yielded last, or of the one that couldn't be made; None where they aren't
            known.
    """

    def __init__(self, loader: Any, ranks: Ranks = ALONE, share: bool | None = None) -> None:
        self.ids: list[Any] | None = None
        self._loader = loader
        self._read = loader
        self._ranks = ranks
        self._sharing = sharing_of(loader, share)
        self._is_own_part = share is not False or any(getattr(s, "num_replicas", 1) > 1 for s in samplers_of(loader))
        self._every = False
        if ranks.world_size > 1:
            check_share(loader, ranks)
        self._handed: deque[list[Any]] = deque()
        self._workers = Workers()
        self._by_entries = False
        if isinstance(loader, DataLoader):
            kind = DataLoader if is_torchdata(loader) else None
            self._read = self._workers.double(loader, self._ours(loader), kind)

    def _ours(self, loader: Any) -> dict[str, Any]:
        ours: dict[str, Any] = {"collate_fn": Unstopped(loader.collate_fn)}
        if has_index(loader) and iterates_as_torch(loader) and getattr(loader, "in_order", True):
            self._by_entries = True
            single = loader.batch_sampler is None
            sampler = loader.sampler if single else loader.batch_sampler
            handing = HandingSampler(sampler, lambda: self._hand_out(self._entries(sampler, single), single))
            ours["sampler" if single else "batch_sampler"] = handing
        return ours

    def _hand_out(self, entries: Iterator[Any], single: bool) -> Iterator[Any]:
        for entry in entries:
            self._handed.append(ids_in(entry, single))
            yield entry

    def _entries(self, sampler: Any, single: bool) -> Iterator[Any]:
        """This rank's batches of the order; what is shuffled is shuffled alike on all ranks, and each time."""
        if not self._deals:
            return iter(sampler)
        order = Order(whole(sampler), 0, single)
        entries = order.open(0, 0).entries
        return self._mine(entries if self._ranks.world_size == 1 else compared(entries, order.sampler, self._ranks))

    @property
    def _deals(self) -> bool:
        """Whether this rank takes its batches out of those of all ranks, though it may be `alone` for now."""
        return self._ranks is not ALONE and self._sharing is Sharing.DEALT

    def _mine(self, batches: Iterator[Any]) -> Iterator[Any]:
        rank, world = self._ranks.rank, self._ranks.world_size
        return batches if self._every or world == 1 else itertools.islice(batches, rank, None, world)

    def is_apart(self, every: bool = False) -> bool:
        """Say whether each rank has a part of the data, as far as that is known before the first batch."""
        if self._ranks.world_size == 1:
            return False
        return self._is_own_part if self._sharing is Sharing.OWN else not every

    def length(self) -> int | None:
        """Return how many batches all ranks have together; None if that isn't known.

        Where each rank's loader is its own, it is this rank's.
        """
        if self._deals and self._by_entries:
            return length_of(whole(self._loader.batch_sampler or self._loader.sampler))
        return length_of(self._loader)

    def rounds(self, every: bool = False) -> int | None:
        """Return how many batches the rank has that has most of them; None if that isn't known.

        The first ranks may have one more than the last ones. Where each rank's loader is its own, it is this rank's.
        """
        length = self.length()
        if length is None or (self._ranks.world_size > 1 and self._sharing is Sharing.UNTOLD):
            return None
        return -(-length // self._ranks.world_size) if self._deals and not every else length

    def batches(self, every: bool = False) -> Generator[Any, None, None]:
        """Yield the batches. Workers that don't live on are ended when this generator is closed, or fails.

        Args:
            every: all of them, where they're dealt out, and not this rank's only.
        """
        self._handed.clear()
        self._every = every
        try:
            batches = self._begun()
            while True:
                self.ids = None
                try:
                    batch = next(batches)
                except StopIteration as error:
                    if self._handed:
                        ids = self._handed[0]
                        raise RuntimeError(f"the dataset raised StopIteration for samples {ids}") from error
                    return
                self.ids = self._handed.popleft() if self._handed else None
                yield batch
        except GeneratorExit:
            if not getattr(self._loader, "persistent_workers", False):
                self.close()
            raise
        except BaseException:
            self.ids = self._workers.asked_of_the_dead(self._handed) or (self._handed[0] if self._handed else None)
            self.close()
            raise

    def _begun(self) -> Iterator[Any]:
        batches = iter(self._read)
        if self._ranks.world_size > 1 and self._sharing is Sharing.UNTOLD:
            batches = self._told_by_the_first(batches)
        return self._mine(batches) if self._deals and not self._by_entries else batches

    def _told_by_the_first(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Find out whether an iterable shares its data by itself: then the ranks are given different batches."""
        first = next(batches, NO_BATCH)
        seen = self._ranks.gather(None if first is NO_BATCH else content_hash(first))
        if any(held is not None for held in seen):
            self._sharing = Sharing.DEALT if len(set(seen)) == 1 else Sharing.OWN
        return iter(()) if first is NO_BATCH else itertools.chain([first], batches)

    def close(self) -> None:
        """End the workers."""
        self._workers.end()
