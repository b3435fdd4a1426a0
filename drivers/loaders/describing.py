"""What of a loader is a setting of the run: what decides on the order, and the batch size."""

from __future__ import annotations

from typing import Any

from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from tachograph.drivers.lengths import length_of

from .order import of_torch
from .placed import keeps_its_place
from .source import has_state


def described(dataloader: Any, max_batches: int) -> str:
    """Describe what decides the order and the batches of a loader, for comparison at a resume."""
    return _described(dataloader, max_batches, in_batches=True)


def settings_of(dataloader: Any, max_batches: int) -> dict[str, Any]:
    """Return the settings that a training loader makes.

    Returns:
        `data`: what must be the same at a resume. `batch_size`: may be another one, since the position is known in
        samples or the loader knows its own; where it isn't, `data` says the batch size too, and this is None.
    """
    free = isinstance(dataloader, DataLoader) and not keeps_its_place(dataloader)
    if free and isinstance(dataloader.dataset, IterableDataset):
        free = has_state(dataloader)
    return {
        "data": _described(dataloader, max_batches, in_batches=not free),
        "batch_size": _batch_size(dataloader) if free else None,
    }


def _described(dataloader: Any, max_batches: int, in_batches: bool) -> str:
    most = "" if max_batches < 0 else f", at most {max_batches} an epoch"
    if not isinstance(dataloader, DataLoader):
        return f"{type(dataloader).__name__}{most}"
    data = dataloader.dataset
    length = length_of(data)
    size = "" if length is None else f" of {length} samples"
    number = _batch_size(dataloader)
    batches = "" if not in_batches else " in its own batches" if number is None else f" in batches of {number}"
    drop = ", the last one dropped if short" if dataloader.drop_last else ""
    sampler = of_torch(dataloader.sampler if dataloader.batch_sampler is None else dataloader.batch_sampler)
    if type(sampler) is BatchSampler:
        sampler = of_torch(sampler.sampler)
    return f"{type(data).__name__}{size}{batches}{drop} by {type(sampler).__name__}{most}"


def _batch_size(dataloader: DataLoader[Any]) -> int | None:
    size = dataloader.batch_size
    if size is None:
        size = getattr(dataloader.batch_sampler, "batch_size", None)
    return size if type(size) is int else None
