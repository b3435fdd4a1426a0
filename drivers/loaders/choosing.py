"""Which reader is fit for a loader."""

from __future__ import annotations

from typing import Any

from torch.utils.data import DataLoader

from tachograph.drivers import generators
from tachograph.drivers.lengths import length_of
from tachograph.drivers.ranks import ALONE, Ranks

from .agreed import AgreedSource
from .cloned import ClonedSource
from .direct import DirectSource
from .double import iterates_as_torch
from .placed import PlacedSource, keeps_its_place
from .replayed import ListSource, ReplayedSource
from .rounds import Rounds
from .sharing import Sharing, check_share, has_index, sharing_of
from .source import BatchSource, Tell, has_state, warned
from .stateful import StatefulSource


def source_of(
    dataloader: Any,
    seed: int,
    max_batches: int,
    tell: Tell = warned,
    ranks: Ranks = ALONE,
    share: bool | None = None,
) -> BatchSource:
    """Choose how to read a loader.

    Args:
        dataloader: a `DataLoader`, or anything that can be iterated over again and again.
        seed: of the run.
        max_batches: batches to use of an epoch; -1 uses all. Over ranks, each of them uses so many.
        tell: takes sentences for the user.
        ranks: those that train together.
        share: the user's `use_dist_sampler`. None: the data is dealt out over the ranks, unless it is shared already;
            True: it's dealt out; False: each rank's loader makes what that rank is to read.

    Raises:
        CallerError: a sampler shares the data between other ranks than there are, or they have no batch each.
    """
    if ranks.world_size == 1:
        return _indexed(dataloader, seed, max_batches, tell) or _iterated(dataloader, seed, max_batches, tell)
    check_share(dataloader, ranks)
    sharing = sharing_of(dataloader, share)
    own = sharing is Sharing.OWN
    if has_index(dataloader):
        draws = generators.derive(seed, "rank", ranks.rank) if own and ranks.rank else seed
        indexed = _indexed(dataloader, seed, max_batches, tell, ALONE if own else ranks, draws)
        certain = not own and iterates_as_torch(dataloader) and length_of(_sampler_of(dataloader)) is not None
        return indexed if certain else AgreedSource(indexed, ranks, tell, None, own)
    rounds = Rounds(ranks, None if sharing is Sharing.UNTOLD else not own, tell, _named(dataloader))
    return AgreedSource(_iterated(dataloader, seed, max_batches, tell, rounds), ranks, tell, rounds, own)


def _indexed(
    dataloader: Any, seed: int, max_batches: int, tell: Tell, ranks: Ranks = ALONE, draws: int | None = None
) -> Any:
    """Return the reader of a map-style loader; None for any other."""
    if not has_index(dataloader):
        return None
    if keeps_its_place(dataloader):
        return PlacedSource(dataloader, seed, max_batches, tell, ranks, draws)
    direct = not dataloader.num_workers and not dataloader.pin_memory and iterates_as_torch(dataloader)
    return (DirectSource if direct else ClonedSource)(dataloader, seed, max_batches, tell, ranks, draws)


def _iterated(dataloader: Any, seed: int, max_batches: int, tell: Tell, rounds: Rounds | None = None) -> BatchSource:
    """Return the reader of what is iterated over."""
    if type(dataloader) in (list, tuple):
        return ListSource(dataloader, seed, max_batches, rounds)
    known = has_state(dataloader)
    if isinstance(dataloader, DataLoader) and not dataloader.num_workers:
        known = known or has_state(dataloader.dataset)
    return (StatefulSource if known else ReplayedSource)(dataloader, seed, max_batches, tell, rounds)


def _sampler_of(dataloader: DataLoader[Any]) -> Any:
    return dataloader.sampler if dataloader.batch_sampler is None else dataloader.batch_sampler


def _named(dataloader: Any) -> str | None:
    data = getattr(dataloader, "dataset", dataloader)
    return None if type(data) in (list, tuple) else f"the training data, a {type(data).__name__},"
