"""Stand-ins for iterable datasets, which know where they are: at which item, what was drawn, and whether it's over."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from types import GeneratorType
from typing import Any

import torch
from torch.utils.data import IterableDataset, get_worker_info

from tachograph.drivers import seeding

from .source import has_state
from .stand_in import ShowsState, StandIn, set_own


class SeededStream(StandIn, IterableDataset[Any]):
    """Stands in for an iterable dataset: the same, but what it draws is a function of seed, epoch, worker and item.

    Args:
        dataset: the user's.
        seed: of the run.
        epoch: its number, in shared memory, so that workers that live on learn of the next one.
    """

    def __init__(self, dataset: Any, seed: int, epoch: torch.Tensor) -> None:
        set_own(self, _dataset=dataset, _seed=seed, _epoch=epoch, _items=None, _to_load=None)

    @staticmethod
    def of(dataset: Any, seed: int, epoch: torch.Tensor) -> SeededStream:
        """Return a stream, with a state if the dataset has one."""
        return (StatefulStream if has_state(dataset) else SeededStream)(dataset, seed, epoch)

    def __reduce__(self) -> Any:
        return type(self), (self._dataset, self._seed, self._epoch)

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        worker, epoch = (0 if info is None else info.id), int(self._epoch)
        set_epoch = getattr(self._dataset, "set_epoch", None)
        if set_epoch is not None and info is not None:
            set_epoch(epoch)
        turns = seeding.Turns(seeding.seeds(self._seed, "stream", epoch, worker))
        items = self._begun(turns)
        set_own(self, _items=items, _of_batch=seeding.seeds(self._seed, "stream's batch", epoch, worker))
        return items

    def _begun(self, turns: seeding.Turns) -> SeededItems:
        state = self._to_load
        set_own(self, _to_load=None)
        if state is not None and state["over"]:
            items: SeededItems = StatefulItems(iter(()), None, turns)
        else:
            own = turns.begin(lambda: iter(self._dataset))
            turns.alike = not isinstance(own, GeneratorType)
            kind = StatefulItems if has_state(own) or has_state(self._dataset) else SeededItems
            # a state that was taken at an iteration's end may be used by the dataset only as its next one begins
            after_end = self._items is not None and self._items.was_over
            items = kind(own, self._dataset.__iter__ if after_end else None, turns)
        if state is not None:
            items.load_state_dict(state)  # type: ignore[attr-defined]
        return items

    def collated(self, collate: Any, samples: Any) -> Any:
        """Collate the items that were read last, under seeds of their batch."""
        with seeding.seeded(self._of_batch(self._items.turns.done)):
            return collate(samples)


class StatefulStream(ShowsState, SeededStream):
    """A stream whose dataset has a state."""


class StreamState:
    """The state of a stream and of its iterator in one, for a loader that asks for neither.

    Args:
        stream: what is read in this process.
    """

    def __init__(self, stream: StatefulStream) -> None:
        self._stream = stream

    def state_dict(self) -> dict[str, Any]:
        """Return the states of the dataset and of its iterator."""
        items = self._stream._items
        return {"dataset": self._stream.state_dict(), "items": None if items is None else items.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Have the next iteration go on where `state_dict` was taken."""
        self._stream.load_state_dict(state["dataset"])
        set_own(self._stream, _to_load=state["items"])


class SeededItems:
    """The iterator over a stream.

    Args:
        items: the dataset's own.
        again: begins another one, if this one is empty; None leaves it so.
        turns: seeds its items.

    Attributes:
        turns: see above.
        over: it came to its end.
        was_over: it was at its end when its state was loaded.
    """

    def __init__(self, items: Iterator[Any], again: Callable[[], Iterator[Any]] | None, turns: seeding.Turns) -> None:
        self._items = items
        self._again = again
        self.turns = turns
        self.over = self.was_over = False

    def __iter__(self) -> SeededItems:
        return self

    def __next__(self) -> Any:
        again, self._again = self._again, None
        if not self.over:
            try:
                return self.turns.take(self._items.__next__)
            except StopIteration:
                if again is not None:
                    self._items = self.turns.begin(again)
                    return next(self)
                self.over = True
        raise StopIteration


class StatefulItems(SeededItems):
    """The iterator over a stream that has a state."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the seeds, that of the dataset's iterator, and whether it is over."""
        own = self._items.state_dict() if has_state(self._items) else None  # type: ignore[attr-defined]
        return {"turns": self.turns.state(), "items": own, "over": self.over}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken."""
        self.turns.load(state["turns"])
        self.over = self.was_over = state["over"]
        own: Any = self._items
        if state["items"] is None or self.over or pickle.dumps(own.state_dict()) == pickle.dumps(state["items"]):
            return  # a dataset that is its own iterator has its state already, and would use it once more
        own.load_state_dict(state["items"])


class StreamCollate:
    """Stands in for the `collate_fn` of a stream's loader.

    Args:
        stream: what is collated.
        collate: the user's function.
    """

    def __init__(self, stream: SeededStream, collate: Any) -> None:
        self._stream, self._collate = stream, collate

    def __call__(self, samples: Any) -> Any:
        return SeededStream.collated(self._stream, self._collate, samples)
