"""Tensors that are spread over the ranks of a sharded model, and this rank's pieces of them."""

from __future__ import annotations

from typing import Any

import attrs
import torch

from tachograph.states.errors import CallerError

from .fsdp_api import DeviceMesh, DTensor, Replicate, Shard
from .pieces import Piece, Share


def share_of(mesh: DeviceMesh) -> Share:
    """Return this rank's place in a mesh."""
    last = mesh.ndim - 1
    return Share(mesh.get_local_rank(last), mesh.size(last), first=last == 0 or mesh.get_local_rank(0) == 0)


def piece_of(tensor: DTensor, values: torch.Tensor) -> Piece:
    """Return what this rank holds of a tensor as a piece.

    Args:
        tensor: spread over the mesh of a sharded model.
        values: a copy of this rank's part, on the CPU.

    Raises:
        CallerError: it is spread in another way than `fully_shard` does.
    """
    dims = [placement.dim for placement in tensor.placements if type(placement) is Shard]
    if len(dims) > 1 or any(type(placement) not in (Shard, Replicate) for placement in tensor.placements):
        raise CallerError(
            f"a tensor spread as {tensor.placements} can't be saved: torch_fsdp knows tensors in shares along one "
            "dimension, and copies of them"
        )
    share = share_of(tensor.device_mesh)
    dim = dims[0] if dims else None
    start = 0 if dim is None else share.of(tensor.shape[dim])[0]
    first = share.first and (dim is not None or share.index == 0)
    return Piece(values, tuple(tensor.shape), dim, start, first)


def placed(piece: Piece, mesh: DeviceMesh, device: torch.device) -> DTensor:
    """Make a tensor over a mesh of this rank's piece."""
    own = Replicate() if piece.dim is None else Shard(piece.dim)
    size = torch.Size(piece.size)
    return DTensor.from_local(
        piece.values.to(device),
        mesh,
        [Replicate()] * (mesh.ndim - 1) + [own],
        run_check=False,
        shape=size,
        stride=torch.empty(size, device="meta").stride(),
    )


def cut(whole: torch.Tensor, like: Any) -> Any:
    """Cut this rank's share out of a whole tensor, spread as another one is; as it is where that isn't spread."""
    if not isinstance(like, DTensor):
        return whole
    piece = piece_of(like, like.to_local())
    if piece.dim is not None:
        length = piece.values.shape[piece.dim]
        whole = whole.narrow(piece.dim, piece.start if length else 0, length)
    own = attrs.evolve(piece, values=whole.to(like.dtype).contiguous())
    return placed(own, like.device_mesh, like.device)


def local(tensor: Any) -> Any:
    """Return this rank's part of a tensor that is spread over ranks; any other one as it is."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def whole(tensor: Any) -> Any:
    """Return a tensor that is spread over ranks in one; all ranks call it. Any other one as it is."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


__all__ = ["cut", "local", "piece_of", "placed", "share_of", "whole"]
