"""What an evaluation must leave as it was: every module's mode, and what a module keeps for itself while it trains."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def undisturbed(model: nn.Module, eval_mode: bool) -> Iterator[None]:
    """Run the body with a model in evaluation mode, or as it is, and put back what that changes.

    A module in training mode moves its buffers with every batch (running means, say), so that those of a model that
    is left in that mode are copied.

    Args:
        model: the model; each of its modules gets back the mode that it has now.
        eval_mode: put it in evaluation mode.
    """
    modules = list(model.modules())
    modes = [(module, module.training) for module in modules]
    kept = [] if eval_mode else [held for module in modules if module.training for held in _buffers(module)]
    if eval_mode:
        model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training
        with torch.no_grad():
            for module, name, buffer, copy in kept:
                buffer.copy_(copy)
                module._buffers[name] = buffer


def _buffers(module: nn.Module) -> Iterator[tuple[nn.Module, str, torch.Tensor, torch.Tensor]]:
    for name, buffer in module._buffers.items():
        if buffer is not None:
            yield module, name, buffer, buffer.clone()
