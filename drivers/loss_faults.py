"""Why no gradient can be had of a loss: looked at after a backward pass has failed, and never before."""

from __future__ import annotations

from typing import Any

import torch


def fault_of(loss: Any) -> str:
    """Say what is wrong with a loss, and what to return in its place; "" if nothing is. Its values aren't read."""
    if not isinstance(loss, torch.Tensor):
        return (
            f"the loss is of type {type(loss).__name__}, and no tensor: return it as it is computed, without .item() "
            "and the like"
        )
    if not loss.requires_grad:
        return (
            "the loss hangs on no parameter that is trained: it was detached (.detach(), torch.no_grad(), a tensor "
            "made anew), or all parameters in it are frozen (requires_grad=False). Return it as it is computed"
        )
    if loss.numel() != 1:
        return f"the loss has the shape {list(loss.shape)}: return one number, its .mean() say"
    return ""


__all__ = ["fault_of"]
