"""What the readers of map-style loaders share: the order, the limit, the length, and what samplers and data keep."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader

from tachograph.drivers.epochs import tell_epoch
from tachograph.drivers.errors import RestoreFault
from tachograph.drivers.ranks import ALONE, Ranks
from tachograph.states.errors import CallerError

from .dealing import Dealt, Part
from .order import Order, ids_in
from .plain import decoded, encoded
from .sampler_states import SamplerStates
from .source import Tell, has_state


class MapStyle:
    """A map-style loader, and a position in its order.

    Args:
        dataloader: a `DataLoader` over a map-style dataset.
        seed: of the run.
        max_batches: batches to use of an epoch; -1 uses all.
        tell: takes sentences for the user.
        ranks: over which the order is dealt out.
        draws: the seed of what data draws; None: that of the run.

    Attributes:
        ids: the sample ids of the batch returned last.
        samples: how many samples all ranks have in that step; None in one process, and where a rank reads its own.
    """

    def __init__(
        self,
        dataloader: DataLoader[Any],
        seed: int,
        max_batches: int,
        tell: Tell,
        ranks: Ranks = ALONE,
        draws: int | None = None,
    ) -> None:
        self.ids: list[Any] | None = None
        self.samples: int | None = None
        self._loader = dataloader
        self._seed = seed
        self._draws = seed if draws is None else draws
        self._max = max_batches
        self._tell = tell
        self._single = dataloader.batch_sampler is None
        self._sampler: Any = dataloader.sampler if self._single else dataloader.batch_sampler
        self._order = order_of(self._sampler, seed, self._single, ranks, tell)
        self._samplers = SamplerStates(self._sampler)
        self._place = 0
        self._length: int | None = None
        kept = dataloader.dataset if has_state(dataloader.dataset) else None
        self._data: Any = None if dataloader.num_workers else kept
        self._forgets = kept is not None and self._data is None
        self._data_before: Any = None
        self._data_to_load: Any = None

    def _opened(self, epoch: int, done: int, samples: int | None) -> Iterator[Any]:
        """Open the order at a position; what was loaded is applied first."""
        if self._forgets and (done or epoch):
            self._forgets = False
            self._tell(
                f"the dataset, a {type(self._loader.dataset).__name__}, has a state, but in worker processes only "
                "torchdata's StatefulDataLoader can ask for it, so it begins anew: use that, or num_workers=0"
            )
        self._samplers.begin(epoch)
        self._load_data()
        tell_epoch(epoch, self._loader.dataset)
        opened = self._order.open(epoch, done, samples, self._samplers.told)
        self._place, self._length = opened.place, self._limited(opened.length)
        entries = self._mine(opened.entries) if isinstance(self._order, Dealt) else opened.entries
        return entries if self._max < 0 else itertools.islice(entries, max(self._max - done, 0))

    def _mine(self, parts: Iterator[Part]) -> Iterator[Any]:
        """Yield this rank's entries, and note what counts over all ranks as each of them is taken."""
        for part in parts:
            self._place, self.samples = part.place, part.samples
            yield part.entry

    def length(self) -> int | None:
        return self._limited(self._order.length())

    def _limited(self, length: int | None) -> int | None:
        return length if length is None or self._max < 0 else min(length, self._max)

    def _ids_in(self, entry: Any) -> list[Any]:
        return ids_in(entry, self._single)

    # -- what a data set keeps -----------------------------------------------------------------------------

    def _before_fetch(self) -> None:
        if self._data is not None:
            self._data_before = self._data_state()

    def _data_state(self) -> Any:
        name = type(self._data).__name__
        return encoded(self._data.state_dict(), f"state_dict() of the dataset, a {name},")

    def _load_data(self) -> None:
        if self._data_to_load is None:
            return
        held, self._data_to_load = self._data_to_load, None
        try:
            self._data.load_state_dict(decoded(held))
        except Exception as error:
            name = type(self._data).__name__
            raise RestoreFault(f"the state of the dataset, a {name}, can't be loaded: {error}") from error

    # -- the state -----------------------------------------------------------------------------------------

    def state(self, again: bool = False) -> Any:
        held = {"samplers": self._samplers.state()}
        if self._data is not None:
            known = self._data_to_load is None
            held["dataset"] = (self._data_before if again else self._data_state()) if known else self._data_to_load
        return held

    def check(self, held: Any) -> None:
        if not isinstance(held, dict) or "samplers" not in held:
            raise RestoreFault(
                f"the snapshot's entry 'loader' is of a loader of another kind than this {type(self._loader).__name__}"
            )
        self._samplers.check(held["samplers"])
        if ("dataset" in held) != (self._data is not None):
            holder, other = ("snapshot", "trainer") if "dataset" in held else ("trainer", "snapshot")
            raise RestoreFault(
                f"the {holder} has a state of the dataset ({type(self._loader.dataset).__name__}), the {other} has "
                "none: use the same dataset, in the training process or in workers as before"
            )

    def load(self, held: Any) -> None:
        self._samplers.load(held["samplers"])
        self._data_to_load = held.get("dataset")

    def close(self) -> None:
        """Let go of what is held for an epoch."""


def order_of(sampler: Any, seed: int, single: bool, ranks: Ranks, tell: Tell) -> Order | Dealt:
    """Return the orders of a sampler, dealt out if there are many ranks.

    Raises:
        CallerError: an epoch has no step for all of them.
    """
    if ranks.world_size == 1:
        return Order(sampler, seed, single)
    dealt = Dealt(sampler, seed, single, ranks, tell)
    if dealt.length() == 0:
        raise CallerError(
            f"train_dataloader is empty over {ranks.world_size} ranks: its {type(sampler).__name__} makes no batch for "
            "all of them. Use fewer processes, smaller batches, or more data"
        )
    return dealt
