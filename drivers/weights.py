"""A model's weights held in the CPU's memory: copied there, put back, held against the model's."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from . import restoring, storage


def copy_weights(model: nn.Module) -> dict[str, Any]:
    """Copy a model's state dict to the CPU's memory."""
    return {name: storage.copied(value) for name, value in model.state_dict().items()}


def put_weights(model: nn.Module, held: dict[str, Any]) -> None:
    """Put weights into a model, in place: the optimizers go on with its parameters.

    Raises:
        RestoreFault: they don't fit; nothing was changed.
    """
    restoring.check_model(model, held)
    model.load_state_dict(held)


def has_weights(model: nn.Module, held: Any) -> bool:
    """Say whether a model's weights are these, bit for bit; NaN equals the same NaN."""
    mine = model.state_dict()
    return isinstance(held, dict) and mine.keys() == held.keys() and all(same(mine[k], held[k]) for k in mine)


def same(here: Any, there: Any) -> bool:
    """Say whether two values are the same, tensors bit for bit."""
    if not (isinstance(here, torch.Tensor) and isinstance(there, torch.Tensor)):
        return type(here) is type(there) and not isinstance(here, torch.Tensor) and bool(here == there)
    if here.shape != there.shape or here.dtype != there.dtype:
        return False
    a, b = (t.detach().cpu().contiguous().reshape(-1).view(torch.uint8) for t in (here, there))
    return torch.equal(a, b)
