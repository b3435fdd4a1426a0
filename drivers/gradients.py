"""The norm of gradients, scaling and clipping them. Nothing here waits for a device, unless an error is asked for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import nn


def norm(parameters: Iterable[torch.Tensor], norm_type: float = 2.0) -> torch.Tensor:
    """Return the norm of all gradients, taken as one vector: a tensor of one element, on the first one's device."""
    grads = [p.grad for p in parameters if p.grad is not None]
    if not grads:
        return torch.tensor(0.0)
    dense = [g.coalesce().values() if g.is_sparse else g for g in grads]
    norms = torch._foreach_norm(dense, norm_type)
    found: torch.Tensor = torch.linalg.vector_norm(torch.stack([n.to(dense[0].device) for n in norms]), norm_type)
    return found


def scale(parameters: Iterable[torch.Tensor], factor: float) -> None:
    """Multiply all gradients by a factor."""
    grads = [p.grad for p in parameters if p.grad is not None]
    at_once = [g for g in grads if type(g) is torch.Tensor and not g.is_sparse]
    if at_once:
        torch._foreach_mul_(at_once, factor)
    for grad in grads:
        if type(grad) is not torch.Tensor or grad.is_sparse:  # in shares over ranks, or sparse
            grad.mul_(factor)


def clip_by_norm(
    parameters: Sequence[torch.Tensor], most: float, norm_type: float = 2.0, error_if_nonfinite: bool = False
) -> torch.Tensor:
    """Scale all gradients so that the norm of them all is `most` at most; return what it was.

    Raises:
        RuntimeError: `error_if_nonfinite`, and it is NaN or infinite.
    """
    return nn.utils.clip_grad_norm_(parameters, most, norm_type, error_if_nonfinite)


def clip_by_value(parameters: Sequence[torch.Tensor], most: float) -> None:
    """Cut every value of the gradients off at -`most` and `most`."""
    nn.utils.clip_grad_value_(parameters, most)


__all__ = ["clip_by_norm", "clip_by_value", "norm", "scale"]
