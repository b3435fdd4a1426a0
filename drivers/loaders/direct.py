"""Reading a map-style loader without workers, in the training process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import DataLoader, TensorDataset

from tachograph.drivers.collating import quick, quick_collate
from tachograph.drivers.driver import NO_BATCH
from tachograph.drivers.ranks import ALONE, Ranks

from .map_style import MapStyle
from .reading import Reader
from .source import Tell, warned

_DRAWLESS = (list, tuple, range, dict)


class DirectSource(MapStyle):
    """Reads a map-style loader without workers: index, fetch, collate, and nothing between them.

    It makes what `DataLoader` makes, at less cost a batch: no iterator that draws a base seed, no profiler range, no
    walk through the types of every sample (`collating`).

    Args:
        dataloader: a `DataLoader` with `num_workers=0`.
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
        self._entries: Iterator[Any] = iter(())
        collate = quick(dataloader.collate_fn)
        self._reader = Reader(dataloader.dataset, collate, self._draws, self._single)
        self._read = _without_draws(dataloader.dataset, collate, self._single) or self._reader.read

    def open(self, epoch: int, done: int, samples: int | None = None) -> int | None:
        self._entries = self._opened(epoch, done, samples)
        self._reader.begin(epoch)
        return self._length

    def next(self) -> Any:
        self._before_fetch()
        self.ids = None  # if the sampler fails, no samples are to blame
        entry = next(self._entries, NO_BATCH)
        if entry is NO_BATCH:
            return NO_BATCH
        ids = self.ids = entry if type(entry) is list else self._ids_in(entry)
        place = self._place
        self._place = place + len(ids)
        try:
            return self._read(entry, place)
        except StopIteration as error:  # a user's StopIteration must not look like the end of the epoch
            raise RuntimeError(f"the dataset or collate_fn raised StopIteration for samples {ids}") from error

    def close(self) -> None:
        super().close()
        self._entries = iter(())


def _without_draws(dataset: Any, collate: Callable[[Any], Any], single: bool) -> Callable[[Any, int], Any] | None:
    """Return `f(entry, place)` for data that is known to draw nothing; None for any other."""
    if collate is not quick_collate or single:
        return None
    if type(dataset) is TensorDataset:
        tensors = dataset.tensors
        return lambda entry, place: [tensor[entry] for tensor in tensors]
    if type(dataset) in _DRAWLESS:
        return lambda entry, place: collate([dataset[i] for i in entry])
    return None
