"""Iterable datasets in worker processes: what they draw is a function of the run's seed, epoch, worker and item."""

from __future__ import annotations

from collections.abc import Iterator
from types import GeneratorType
from typing import Any

import torch
from torch.utils.data import IterableDataset, get_worker_info

from tachograph.drivers import seeding

from .source import has_state


def seeded_stream(dataset: Any, seed: int, epoch: torch.Tensor) -> SeededStream:
    """Wrap an iterable dataset.

    Args:
        dataset: the user's.
        seed: of the run.
        epoch: its number, in shared memory, so that workers that live on learn of the next one.
    """
    return (StatefulStream if has_state(dataset) else SeededStream)(dataset, seed, epoch)


class SeededStream(IterableDataset[Any]):
    """Stands in for an iterable dataset: the same, but for what it draws from.

    Args:
        dataset: the user's; what is read or set on this object is read or set there.
        seed: of the run.
        epoch: its number, in shared memory.
    """

    def __init__(self, dataset: Any, seed: int, epoch: torch.Tensor) -> None:
        for name, value in (("_dataset", dataset), ("_seed", seed), ("_epoch", epoch)):
            object.__setattr__(self, name, value)  # any other attribute is the dataset's

    def __reduce__(self) -> Any:
        return type(self), (self._dataset, self._seed, self._epoch)

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        worker, epoch = (0 if info is None else info.id), int(self._epoch)
        set_epoch = getattr(self._dataset, "set_epoch", None)
        if set_epoch is not None and info is not None:
            set_epoch(epoch)
        turns = seeding.Turns(seeding.seeds(self._seed, "stream", epoch, worker))
        items = turns.begin(lambda: iter(self._dataset))
        turns.alike = not isinstance(items, GeneratorType)
        kind = StatefulItems if has_state(items) or has_state(self._dataset) else SeededItems
        object.__setattr__(self, "_of_batch", seeding.seeds(self._seed, "stream's batch", epoch, worker))
        object.__setattr__(self, "_items", kind(items, turns))
        return self._items  # type: ignore[no-any-return]

    def collated(self, collate: Any, samples: Any) -> Any:
        """Collate the items that were read last, under seeds of their batch."""
        with seeding.seeded(self._of_batch(self._items.turns.done)):
            return collate(samples)

    def __len__(self) -> int:
        return len(self._dataset)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dataset, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._dataset, name, value)

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """The user's class: `isinstance(get_worker_info().dataset, ...)` is asked in `worker_init_fn`."""
        return type(self._dataset)


class StatefulStream(SeededStream):
    """A stream whose dataset has a state."""

    def state_dict(self) -> Any:
        """Return the dataset's state."""
        return self._dataset.state_dict()

    def load_state_dict(self, state: Any) -> None:
        """Give the dataset its state."""
        self._dataset.load_state_dict(state)


class SeededItems:
    """The iterator over a stream.

    Args:
        items: the dataset's own.
        turns: seeds its items.
    """

    def __init__(self, items: Iterator[Any], turns: seeding.Turns) -> None:
        self._items = items
        self.turns = turns

    def __iter__(self) -> SeededItems:
        return self

    def __next__(self) -> Any:
        return self.turns.take(self._items.__next__)


class StatefulItems(SeededItems):
    """The iterator over a stream that has a state."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the seeds, and that of the dataset's iterator."""
        own = self._items.state_dict() if has_state(self._items) else None  # type: ignore[attr-defined]
        return {"turns": self.turns.state(), "items": own}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where `state_dict` was taken."""
        self.turns.load(state["turns"])
        if state["items"] is not None:
            self._items.load_state_dict(state["items"])  # type: ignore[attr-defined]


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
