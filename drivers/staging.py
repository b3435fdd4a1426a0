"""Memory that snapshots are copied into, one after the other.

A copy into memory that is at hand costs a fraction of one into fresh memory, which the system hands out page by page.
"""

from __future__ import annotations

from typing import Any

import torch

from . import storage
from .moving import Pair, movable, move


class Staging:
    """The copies of one snapshot, made into the memory of an earlier one wherever that fits.

    Args:
        earlier: whose memory may be used; nobody reads it any more.
    """

    def __init__(self, earlier: Staging | None = None) -> None:
        self._free = {} if earlier is None else earlier._made
        self._made: dict[str, list[torch.Tensor]] = {}

    def copied(self, part: str, tree: Any) -> Any:
        """Copy a tree of plain containers and tensors to the CPU.

        Args:
            part: what it is; its tensors take the places that those of the same part had.
            tree: as `storage.mapped` takes it.
        """
        free, made = self._free.pop(part, []), self._made.setdefault(part, [])
        pairs: list[Pair] = []

        def copy(tensor: torch.Tensor) -> Any:
            own = self._own(tensor.detach())
            made.append(_place(own, free[len(made)] if len(made) < len(free) else None, pairs))
            return self._kept(tensor, made[-1])

        copied = storage.mapped(tree, copy)
        move(pairs)
        return copied

    def _own(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return what is copied of a tensor."""
        return tensor

    def _kept(self, tensor: torch.Tensor, copy: torch.Tensor) -> Any:
        """Return what stands for a tensor in the copied tree."""
        return copy


def _place(tensor: torch.Tensor, place: torch.Tensor | None, pairs: list[Pair]) -> torch.Tensor:
    """Return where a tensor's copy is, or will be when all pairs are moved."""
    if movable(tensor):
        if place is None or not _alike(tensor, place):
            place = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
        pairs.append((place, tensor))
        return place
    plain = type(tensor) is torch.Tensor and tensor.layout is torch.strided and not tensor.is_conj()
    if place is None or not plain or not _alike(tensor, place):
        return tensor.to("cpu", copy=True)
    return place.copy_(tensor)


def _alike(a: torch.Tensor, b: torch.Tensor) -> bool:
    return type(b) is torch.Tensor and a.dtype == b.dtype and a.shape == b.shape and a.stride() == b.stride()


__all__ = ["Staging"]
