"""What a loader that reads by itself is given in place of its sampler, its dataset and its `collate_fn`.

The sampler hands out entries that know the epoch and their place in its order, wherever they travel: to a worker,
forked or spawned, or through an iterator of a user's own. The dataset passes such an entry on to the `collate_fn`,
which does the whole reading. Anything else they are asked for is the user's objects' business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import get_worker_info

from .reading import Reader, many_of
from .source import has_state
from .stand_in import ShowsState, StandIn, set_own


class Handed(list[Any]):
    """The entry of a batch: its sample ids, and where it stands.

    Args:
        given: what the sampler yielded.
        epoch: its number.
        place: of the first sample in the epoch's order.
    """

    __slots__ = ("epoch", "given", "place")

    def __init__(self, given: Any, epoch: int, place: int) -> None:
        super().__init__(given)
        self.given, self.epoch, self.place = given, epoch, place

    def __reduce_ex__(self, protocol: Any) -> Any:
        return Handed, (self.given, self.epoch, self.place)


class HandedOne:
    """The entry of a loader with `batch_size=None`.

    Args:
        given: what the sampler yielded.
        epoch: its number.
        place: its place in the epoch's order.
    """

    __slots__ = ("epoch", "given", "place")

    def __init__(self, given: Any, epoch: int, place: int) -> None:
        self.given, self.epoch, self.place = given, epoch, place


class HandingSampler:
    """Stands in for a sampler: the same, but for what it yields.

    Args:
        sampler: the user's.
        hand_out: returns the iterator over an epoch's entries.
        stateless: show no state of the sampler, so that a loader finds its place by counting entries.
    """

    def __init__(self, sampler: Any, hand_out: Callable[[], Iterator[Any]], stateless: bool = False) -> None:
        self._sampler = sampler
        self._hand_out = hand_out
        self._stateless = stateless

    def __iter__(self) -> Iterator[Any]:
        return self._hand_out()

    def __len__(self) -> int:
        return len(self._sampler)

    def __getattr__(self, name: str) -> Any:
        if self._stateless and name in ("state_dict", "load_state_dict"):
            raise AttributeError(name)
        return getattr(self._sampler, name)


def handed_dataset(dataset: Any) -> HandedDataset:
    """Return what stands in for a map-style dataset, with a state if it has one."""
    return (StatefulHandedDataset if has_state(dataset) else HandedDataset)(dataset)


class HandedDataset(StandIn):
    """Stands in for a map-style dataset: the same, but for what was handed out, which it leaves to the collating.

    Args:
        dataset: the user's.
    """

    def __init__(self, dataset: Any) -> None:
        set_own(self, _dataset=dataset, _many=many_of(dataset))

    def __reduce__(self) -> Any:
        return type(self), (self._dataset,)

    def __getitem__(self, index: Any) -> Any:
        return index if type(index) is HandedOne else self._dataset[index]

    def __getitems__(self, entry: Any) -> Any:
        if type(entry) is Handed:
            return entry
        return [self._dataset[i] for i in entry] if self._many is None else self._many(entry)


class StatefulHandedDataset(ShowsState, HandedDataset):
    """The same, for a dataset that has a state."""


class HandedCollate:
    """Stands in for a `collate_fn`: reads and collates what was handed out.

    Args:
        reader: of the user's dataset and `collate_fn`.
    """

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def __reduce__(self) -> Any:
        return HandedCollate, (self._reader,)

    def __call__(self, entry: Any) -> Any:
        if type(entry) is not Handed and type(entry) is not HandedOne:
            return self._reader.collate(entry)
        reader = self._reader
        if reader.epoch != entry.epoch:
            self._begin(entry.epoch)
        try:
            return reader.read(entry.given, entry.place)
        except StopIteration as error:  # a user's StopIteration must not look like the end of the epoch
            raise RuntimeError(f"the dataset or collate_fn raised StopIteration for samples {entry.given}") from error

    def _begin(self, epoch: int) -> None:
        reader = self._reader
        reader.begin(epoch)
        set_epoch = getattr(reader.dataset, "set_epoch", None)
        if set_epoch is not None and get_worker_info() is not None:  # a worker that lives on has an old epoch's dataset
            set_epoch(epoch)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader.collate, name)
