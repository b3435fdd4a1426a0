"""What of a loader is a setting of the run: what decides on the order, and the batch size."""

from __future__ import annotations

from typing import Any

from torch.utils.data import BatchSampler, DataLoader

from tachograph.drivers.lengths import length_of
from tachograph.drivers.ranks import ALONE, Ranks

from .dealing import whole
from .order import of_torch
from .placed import keeps_its_place
from .remembered import remembered
from .sharing import Sharing, has_index, sharing_of
from .source import has_state


def described(dataloader: Any, max_batches: int, ranks: Ranks = ALONE, share: bool | None = None) -> str:
    """Describe what decides the order and the batches of an evaluation loader, for comparison at a resume.

    Args:
        dataloader: as `EvaluationSource` takes it, as `ranks` and `share` are.
        max_batches: batches to use of it; -1 uses all.
        ranks: those that evaluate together.
        share: the user's `use_eval_dist_sampler`.
    """
    dealt = ranks.world_size > 1 and sharing_of(dataloader, share) is Sharing.DEALT
    return _described(dataloader, max_batches, in_batches=True, dealt=dealt)


def settings_of(dataloader: Any, max_batches: int, ranks: Ranks = ALONE, share: bool | None = None) -> dict[str, Any]:
    """Return the settings that a training loader makes.

    Args:
        dataloader: as `source_of` takes it, as the other arguments are.
        max_batches: batches to use of an epoch; -1 uses all.
        ranks: those that train together.
        share: the user's `use_dist_sampler`.

    Returns:
        `data`: what must be the same at a resume; the number of ranks is in it where it may not be another one.
        `batch_size`: of one rank; it may be another one, since the position is known in samples or the loader knows its
        own; where it isn't, `data` says the batch size too, and this is None.
        `order`: what finds the sample ids of a batch again, see `remembered`.
    """
    many, sharing = ranks.world_size > 1, sharing_of(dataloader, share)
    free = isinstance(dataloader, DataLoader) and not keeps_its_place(dataloader)
    if free and not has_index(dataloader):
        free = has_state(dataloader)
    elif many and sharing is Sharing.OWN:
        free = False
    dealt = many and sharing is Sharing.DEALT
    data = _described(dataloader, max_batches, in_batches=not free, dealt=dealt)
    if many and not (free and dealt and has_index(dataloader) and not has_state(dataloader.dataset)):
        data += f", shared{_BY[sharing]} over {ranks.world_size} ranks"
    size = _batch_size(dataloader) if free else None
    return {"data": data, "batch_size": size, "order": remembered(dataloader, share, size, dealt)}


_BY = {Sharing.DEALT: "", Sharing.OWN: " by itself", Sharing.UNTOLD: " as its first batch tells"}


def _described(dataloader: Any, max_batches: int, in_batches: bool, dealt: bool = False) -> str:
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
    if dealt:
        sampler = whole(sampler)
    return f"{type(data).__name__}{size}{batches}{drop} by {type(sampler).__name__}{most}"


def _batch_size(dataloader: DataLoader[Any]) -> int | None:
    size = dataloader.batch_size
    if size is None:
        size = getattr(dataloader.batch_sampler, "batch_size", None)
    return size if type(size) is int else None
