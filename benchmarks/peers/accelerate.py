"""Accelerate alone: a loop by hand around what it prepares.

`accumulate` is left out, since nothing is accumulated. A loop has no moments, and so no listeners.
"""

from __future__ import annotations

from accelerate import Accelerator
from torch.optim import Optimizer

from .work import Work

PACKAGES = ("accelerate",)
LISTENER = None


def loop(work: Work, listeners: int) -> Optimizer:
    made, adam, loader = work.new()
    accelerator = Accelerator(cpu=True)
    model, optimizer, loader = accelerator.prepare(made, adam, loader)
    for x, y in loader:
        loss = made.loss(model(x), y)
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
    return adam


CONTENDERS = {"Accelerate": loop}
