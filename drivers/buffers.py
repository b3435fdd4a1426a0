"""Buffers over ranks: each rank moves its own in a step (running means, say), and the model of rank 0 is the one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import nn


@contextmanager
def of_the_first(model: nn.Module) -> Iterator[None]:
    """Run the body with the buffers of rank 0 in every rank's model, and put back what was there."""
    buffers = list(model.buffers())
    held = [] if dist.get_rank() == 0 else [buffer.clone() for buffer in buffers]
    for buffer in buffers:
        dist.broadcast(buffer, src=0)
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, own in zip(buffers, held, strict=False):
                buffer.copy_(own)


__all__ = ["of_the_first"]
