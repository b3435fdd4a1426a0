"""Reading a map-style loader that keeps a state of its own: it is given an epoch's whole order, and finds its place.

Such are a user's own kind of `DataLoader` with `state_dict` and `load_state_dict`, and torchdata's loader over a
dataset that has a state in every worker.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

from torch import Generator
from torch.utils.data import DataLoader, IterableDataset

from tachograph.drivers.driver import NO_BATCH
from tachograph.drivers.errors import RestoreFault
from tachograph.drivers.ranks import ALONE, Ranks

from .dealing import Dealt
from .double import iterates_as_torch
from .handed import Handed, HandedCollate, HandedOne, HandingSampler, handed_dataset
from .map_style import order_of
from .order import ids_in
from .plain import decoded
from .reading import Reader
from .sampler_states import SamplerStates
from .source import Tell, has_state, warned
from .stateful import StatefulSource
from .workers import Workers


def keeps_its_place(loader: Any) -> bool:
    """Say whether a loader over an index must be read through its own state all the same."""
    if not isinstance(loader, DataLoader) or isinstance(loader.dataset, IterableDataset) or not has_state(loader):
        return False
    of_torchdata = type(loader).state_dict.__module__.startswith("torchdata.")  # type: ignore[attr-defined]
    return not of_torchdata or bool(loader.num_workers and has_state(loader.dataset))


class PlacedSource(StatefulSource):
    """Reads a map-style loader with a state. Sample ids are known, and what is drawn is a function of their places."""

    def __init__(
        self,
        dataloader: Any,
        seed: int,
        max_batches: int,
        tell: Tell = warned,
        ranks: Ranks = ALONE,
        draws: int | None = None,
    ) -> None:
        self._ranks = ranks
        self._draws = seed if draws is None else draws
        super().__init__(dataloader, seed, max_batches, tell)

    def _double(self) -> Any:
        loader = self._loader
        self._single = loader.batch_sampler is None
        sampler = loader.sampler if self._single else loader.batch_sampler
        self._order = order_of(sampler, self._seed, self._single, self._ranks, self._tell)
        self._samplers = SamplerStates(sampler)
        self._entries: Iterator[Any] = iter(())
        self._handed: deque[tuple[list[Any], int | None]] = deque()  # ids, and the samples of that step
        self._behind = 0
        self._made: Any = None
        self._inside = iterates_as_torch(loader)
        self._ours |= {
            "sampler" if self._single else "batch_sampler": HandingSampler(sampler, self._hand_out, stateless=True),
            "dataset": handed_dataset(loader.dataset),
            "collate_fn": HandedCollate(Reader(loader.dataset, loader.collate_fn, self._draws, self._single)),
            "generator": Generator(),
            "in_order": True,
            "next_iter_state": None,  # this one and the next are torchdata's
            "_initial_iter_for_state_dict": False,
        }
        self._workers = Workers()
        double = self._workers.double(loader, self._ours)
        self._make, self._ours["_get_iterator"] = self._ours["_get_iterator"], self._noted
        return double

    def _noted(self) -> Any:
        self._made = self._make()
        return self._made

    def _hand_out(self) -> Iterator[Any]:
        kind, epoch, place = (HandedOne if self._single else Handed), self._epoch, 0
        for given in self._entries:
            entry, samples = given, None
            if self._is_dealt:
                entry, place, samples = given.entry, given.place, given.samples
            ids = ids_in(entry, self._single)
            self._handed.append((ids, samples))
            yield kind(entry, epoch, place)
            place += len(ids)

    @property
    def _is_dealt(self) -> bool:
        return isinstance(self._order, Dealt)

    def _known_length(self) -> int | None:
        return self._limited(self._order.length()) if self._is_dealt else super()._known_length()

    def _length_behind(self, done: int, samples: int | None) -> int | None:
        return self._known_length() if self._is_dealt else super()._length_behind(done, samples)

    def _stand(self, epoch: int, at: int) -> None:
        super()._stand(epoch, at)
        self._samplers.begin(epoch)
        self._entries = self._order.open(epoch, 0, 0, self._samplers.told).entries
        self._handed.clear()
        self._behind = 0

    def _apply(self, loaded: dict[str, Any], epoch: int, done: int) -> None:
        self._behind = loaded["at"] if loaded["epoch"] == epoch else 0
        super()._apply(loaded, epoch, done)

    def _take(self) -> Any:
        batch = super()._take()
        if self._behind and batch is not NO_BATCH:
            batch = self._behind_what_is_done(batch)
        handed = self._handed and batch is not NO_BATCH
        self.ids, self.samples = self._handed.popleft() if handed else (None, None)
        return batch

    def _behind_what_is_done(self, batch: Any) -> Any:
        """See whether the loader went to its place by itself; if its state says something else only, go there."""
        behind, self._behind = self._behind, 0
        went = getattr(self._made, "_num_yielded", behind + 1) != 1  # of torch's own iterator
        if not went:
            for _ in range(behind - 1):
                super()._take()
            self._holder.load_state_dict(decoded(self._here["held"]))  # as it was before it was read again
            batch = super()._take()
            self._at = behind + 1
        for _ in range(min(behind, len(self._handed) - 1)):
            self._handed.popleft()
        return batch

    def close(self) -> None:
        super().close()
        self._made = None

    # -- the state -----------------------------------------------------------------------------------------

    def state(self, again: bool = False) -> dict[str, Any]:
        return {**super().state(again), "samplers": self._samplers.state()}

    def check(self, held: Any) -> None:
        if not isinstance(held, dict) or "samplers" not in held:
            raise RestoreFault(f"the snapshot holds no state of {self._name} which needs one to go on")
        super().check({key: value for key, value in held.items() if key != "samplers"})
        self._samplers.check(held["samplers"])

    def load(self, held: Any) -> None:
        super().load(held)
        self._samplers.load(held["samplers"])
