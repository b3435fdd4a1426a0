"""How a loader's data comes to the ranks: by us, or by itself."""

from __future__ import annotations

from enum import Enum
from typing import Any

from torch.utils.data import DataLoader, DistributedSampler, IterableDataset

from tachograph.drivers.epochs import samplers_of
from tachograph.drivers.ranks import Ranks
from tachograph.drivers.samplers import ReproducibleSampler
from tachograph.states.errors import CallerError

from .dealing import whole
from .order import of_torch


class Sharing(Enum):
    """Who shares a loader's data between the ranks."""

    DEALT = "dealt"
    """We do."""
    OWN = "own"
    """Each rank's loader makes what that rank is to read."""
    UNTOLD = "untold"
    """It has no index, so the ranks' first batches will tell."""


def sharing_of(loader: Any, share: bool | None) -> Sharing:
    """Say who shares a loader's data.

    Args:
        loader: any.
        share: the user's `use_dist_sampler`. True: we do; False: the loader; None: whoever can.
    """
    if share is False:
        return Sharing.OWN
    if has_index(loader):
        return Sharing.OWN if _shares_itself(loader) else Sharing.DEALT
    return Sharing.DEALT if share else Sharing.UNTOLD


def has_index(loader: Any) -> bool:
    """Say whether a loader reads samples that a sampler names."""
    return isinstance(loader, DataLoader) and not isinstance(loader.dataset, IterableDataset)


def check_share(loader: Any, ranks: Ranks) -> None:
    """Refuse samplers of this package that share an epoch between other ranks than there are.

    Raises:
        CallerError: one does.
    """
    for sampler in samplers_of(loader):
        if isinstance(sampler, ReproducibleSampler) and sampler.num_replicas > 1:
            said, here = (sampler.num_replicas, sampler.rank), (ranks.world_size, ranks.rank)
            if said != here:
                raise CallerError(
                    f"the {type(sampler).__name__} of a loader is set to rank {said[1]} of {said[0]} by "
                    f"set_distributed, and this is rank {here[1]} of {here[0]}: call set_distributed{here}, or not at "
                    "all, and the data is dealt out over the ranks"
                )


def _shares_itself(loader: Any) -> bool:
    """Whether a loader's samplers give one rank's share, and aren't those of torch's that we replace."""
    sampler = of_torch(loader.sampler if loader.batch_sampler is None else loader.batch_sampler)
    return whole(sampler) is sampler and any(map(_is_a_share, samplers_of(loader)))


def _is_a_share(sampler: Any) -> bool:
    if isinstance(sampler, ReproducibleSampler):
        return sampler.num_replicas > 1
    return isinstance(sampler, DistributedSampler)


__all__ = ["Sharing", "check_share", "has_index", "sharing_of"]
