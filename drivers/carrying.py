"""What a rank takes from a snapshot that was written by as many ranks as there are now, or by another number of them.

Weights and optimizers are the same for all. With another number of ranks, a rank keeps its own generators where it had
some, the gradients of an open accumulation window are carried over as their sum, and a batch in hand is fetched anew,
since it was made for another division of the data.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from . import restoring
from .ranks import Ranks


def read(directory: Path, ranks: Ranks, strict: bool, gradients: str = "gradients") -> dict[str, Any]:
    """Read what belongs to a rank of a snapshot.

    Args:
        directory: the snapshot.
        ranks: who reads.
        strict: False lets the generators be missing.
        gradients: the entry with those that the ranks have still to average.

    Returns:
        The entries of `restoring.ENTRIES`, and: `new_rank`, which says that the saved run hadn't got this rank;
        `buffers`, those of the model that are this rank's own.

    Raises:
        RestoreFault: a file isn't there, or lacks an entry.
    """
    first = _part(directory, 0, strict)
    world, rank = first.get("world", 1), ranks.rank
    new = rank >= world
    mine = first if new or rank == 0 else _part(directory, rank, strict)
    held = {**mine, "optimizers": first["optimizers"], "buffers": mine.get("buffers") or {}, "new_rank": new}
    if world == ranks.world_size:
        return held
    fetched_anew: dict[str, Any] = {"batch": None, "has_batch": False, "buffers": {}}
    losses = [] if new else mine["losses"]
    summed = _summed(directory, gradients, world, ranks, strict)
    return {**held, **fetched_anew, "losses": losses, gradients: summed}


def _part(directory: Path, rank: int, strict: bool) -> dict[str, Any]:
    name = f"rank-{rank}.pt"
    rest = restoring.part(directory, name)
    restoring.check_entries(rest, () if strict else ("generators",), name)
    return rest  # type: ignore[no-any-return]


def _summed(directory: Path, gradients: str, world: int, ranks: Ranks, strict: bool) -> dict[str, Any]:
    """Return the gradients of the open window: rank 0 gets what all had, so that their mean stays what it was."""
    if ranks.rank != 0:
        return {}
    total: dict[str, Any] = {}
    for rank in range(world):
        for name, grad in _part(directory, rank, strict)[gradients].items():
            total[name] = grad if name not in total else total[name] + grad
    return {name: grad * (ranks.world_size / world) for name, grad in total.items()}


__all__ = ["read"]
