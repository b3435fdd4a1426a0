"""Which reader is fit for a loader."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from .cloned import ClonedSource
from .direct import DirectSource
from .double import iterates_as_torch
from .placed import PlacedSource, keeps_its_place
from .replayed import ListSource, ReplayedSource
from .source import BatchSource, Tell, has_state, warned
from .stateful import StatefulSource


def source_of(dataloader: Any, seed: int, max_batches: int, tell: Tell = warned) -> BatchSource:
    """Choose how to read a loader.

    Args:
        dataloader: a `DataLoader`, or anything that can be iterated over again and again.
        seed: of the run.
        max_batches: batches to use of an epoch; -1 uses all.
        tell: takes sentences for the user.
    """
    if type(dataloader) in (list, tuple):
        return ListSource(dataloader, seed, max_batches)
    if not isinstance(dataloader, DataLoader):
        return (StatefulSource if has_state(dataloader) else ReplayedSource)(dataloader, seed, max_batches, tell)
    if isinstance(dataloader.dataset, IterableDataset):
        known = has_state(dataloader) or (has_state(dataloader.dataset) and not dataloader.num_workers)
        return (StatefulSource if known else ReplayedSource)(dataloader, seed, max_batches, tell)
    if keeps_its_place(dataloader):
        return PlacedSource(dataloader, seed, max_batches, tell)
    direct = not dataloader.num_workers and not dataloader.pin_memory and iterates_as_torch(dataloader)
    return (DirectSource if direct else ClonedSource)(dataloader, seed, max_batches, tell)
