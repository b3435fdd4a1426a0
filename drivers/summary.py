"""What a model is made of: its modules, and how many values they hold. No forward pass is made for it."""

from __future__ import annotations

import itertools
from typing import Any

from torch import nn
from torch.nn.parameter import is_lazy


def summary(model: nn.Module, depth: int = 1) -> list[dict[str, Any]]:
    """Describe a model's modules in plain data, the whole of it first; see `Driver.summary`."""
    named = {name: module for name, module in model.named_modules() if depth < 0 or _depth(name) <= depth}
    return [_row(name, module) for name, module in named.items()]


def _depth(name: str) -> int:
    return name.count(".") + 1 if name else 0


def _row(name: str, module: nn.Module) -> dict[str, Any]:
    known = [p for p in module.parameters() if not is_lazy(p)]
    buffers = [b for b in module.buffers() if not is_lazy(b)]
    return {
        "name": name,
        "kind": type(module).__name__,
        "parameters": sum(p.numel() for p in known),
        "trainable": sum(p.numel() for p in known if p.requires_grad),
        "bytes": sum(t.numel() * t.element_size() for t in itertools.chain(known, buffers)),
    }


__all__ = ["summary"]
