"""What a rank takes from a snapshot that was written by as many ranks as there are now, or by another number of them.

Weights and optimizers are the same for all. With another number of ranks, a rank keeps its own generators where it had
some, the gradients of an open accumulation window are carried over as their sum, together with what the engine knows
of them, and a batch in hand is fetched anew, since it was made for another division of the data.
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
        `buffers`, those of the model that are this rank's own. With another number of ranks, what the engine keeps as
        its `own` holds, as `ranks`, that of every saved one on rank 0, and nothing on the others.

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
    parts = [_part(directory, number, strict) for number in range(world)] if rank == 0 else []
    own = {**mine["extra"].get("own", {}), "ranks": [part["extra"].get("own", {}) for part in parts]}
    extra = {**mine["extra"], "own": own}
    summed = _summed([part[gradients] for part in parts], ranks.world_size)
    return {**held, **fetched_anew, "losses": losses, "extra": extra, gradients: summed}


def _part(directory: Path, rank: int, strict: bool) -> dict[str, Any]:
    name = f"rank-{rank}.pt"
    rest = restoring.part(directory, name)
    restoring.check_entries(rest, () if strict else ("generators",), name)
    return rest  # type: ignore[no-any-return]


def _summed(gradients: list[dict[str, Any]], world: int) -> dict[str, Any]:
    """Return the gradients of the open window: rank 0 gets what all had, so that their mean stays what it was."""
    total: dict[str, Any] = {}
    for held in gradients:
        for name, grad in held.items():
            total[name] = grad if name not in total else total[name] + grad
    return {name: grad * (world / len(gradients)) for name, grad in total.items()}


__all__ = ["read"]
