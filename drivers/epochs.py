"""Telling samplers and data which epoch it is. No torch: training loaders and the evaluator's are told alike."""

from __future__ import annotations

from typing import Any


def tell_epoch(epoch: int, *parts: Any) -> None:
    """Call `set_epoch(epoch)` of every object that has it."""
    for part in parts:
        set_epoch = getattr(part, "set_epoch", None)
        if set_epoch is not None:
            set_epoch(epoch)


def samplers_of(loader: Any) -> tuple[Any, ...]:
    """Return what decides on a loader's order, as far as there is any of it."""
    batches = getattr(loader, "batch_sampler", None)
    return getattr(loader, "sampler", None), batches, getattr(batches, "sampler", None)
