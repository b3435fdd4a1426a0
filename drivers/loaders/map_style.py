"""What the readers of map-style loaders share: the order, the limit, the length, and what samplers and data keep."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from torch.utils.data import DataLoader

from tachograph.drivers.epochs import tell_epoch
from tachograph.drivers.errors import RestoreFault

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

    Attributes:
        ids: the sample ids of the batch returned last.
    """

    def __init__(self, dataloader: DataLoader[Any], seed: int, max_batches: int, tell: Tell) -> None:
        self.ids: list[Any] | None = None
        self._loader = dataloader
        self._seed = seed
        self._max = max_batches
        self._tell = tell
        self._single = dataloader.batch_sampler is None
        self._sampler: Any = dataloader.sampler if self._single else dataloader.batch_sampler
        self._order = Order(self._sampler, seed, self._single)
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
        self._place, self._length = opened.place, opened.length
        if self._max < 0:
            return opened.entries
        self._length = None if opened.length is None else min(opened.length, self._max)
        return itertools.islice(opened.entries, max(self._max - done, 0))

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
