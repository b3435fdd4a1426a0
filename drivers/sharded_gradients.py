"""The norm of gradients that are in shares over ranks, and clipping them; see `gradients`.

torch's own works on shares too, but on a rank whose share of a tensor is empty it finds no largest element. Nothing
here waits for a device, unless an error is asked for.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist

from .fsdp_api import DeviceMesh, DTensor
from .spread import local


def norm(parameters: Iterable[torch.Tensor], norm_type: float, mesh: DeviceMesh) -> torch.Tensor:
    """Return the norm of all gradients, taken as one vector: the same on every rank; all of them call it.

    Args:
        parameters: whose; gradients that aren't in shares are the same on all ranks.
        norm_type: which norm.
        mesh: over which the shares are; along its last dimension they make up the whole.
    """
    grads = [parameter.grad for parameter in parameters if parameter.grad is not None]
    device = local(grads[0]).device if grads else torch.device(mesh.device_type)
    own = _norm([local(grad) for grad in grads if isinstance(grad, DTensor)], norm_type, device)
    largest = math.isinf(norm_type)
    over_ranks = own if largest else own**norm_type
    dist.all_reduce(over_ranks, dist.ReduceOp.MAX if largest else dist.ReduceOp.SUM, mesh.get_group(mesh.ndim - 1))
    shared = over_ranks if largest else over_ranks ** (1.0 / norm_type)
    rest = _norm([grad for grad in grads if not isinstance(grad, DTensor)], norm_type, device)
    found: torch.Tensor = torch.linalg.vector_norm(torch.stack([shared, rest]), norm_type)
    return found


def clip_by_norm(
    parameters: Sequence[torch.Tensor], most: float, norm_type: float, error_if_nonfinite: bool, mesh: DeviceMesh
) -> torch.Tensor:
    """Scale all gradients so that the norm of them all is `most` at most; return what it was.

    Raises:
        RuntimeError: `error_if_nonfinite`, and it is NaN or infinite.
    """
    found = norm(parameters, norm_type, mesh)
    if error_if_nonfinite and not bool(torch.isfinite(found)):
        raise RuntimeError(f"the norm of the gradients is {float(found)}, so they can't be clipped")
    factor = torch.clamp(most / (found + 1e-6), max=1.0)
    grads = [local(parameter.grad) for parameter in parameters if parameter.grad is not None]
    if grads:
        torch._foreach_mul_(grads, factor)
    return found


def _norm(tensors: Sequence[torch.Tensor], norm_type: float, device: torch.device) -> torch.Tensor:
    held = [tensor for tensor in tensors if tensor.numel()]
    if not held:
        return torch.zeros((), device=device)
    norms = torch._foreach_norm(held, norm_type)
    found: torch.Tensor = torch.linalg.vector_norm(torch.stack([n.to(device).float() for n in norms]), norm_type)
    return found


__all__ = ["clip_by_norm", "norm"]
