"""Collating as torch's `default_collate` does, without its walk through the types of every sample.

The usual samples are tensors, or tuples, lists or dicts of them: for these the batch is one `stack` per place, which is
what `default_collate` comes to. Anything else is handed to it, so that the outcome is always its.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import default_collate


def quick(collate_fn: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return `quick_collate` in place of torch's default, and any other function as it is."""
    return quick_collate if collate_fn is default_collate else collate_fn


def quick_collate(samples: list[Any]) -> Any:
    """Collate samples into a batch, exactly as `default_collate`.

    Args:
        samples: one per sample, all of one structure.

    Returns:
        Tensors with a new first dimension of `len(samples)`, in the samples' structure (a list for tuples).

    Raises:
        Exception: whatever `default_collate` raises for them.
    """
    kind = type(samples[0])
    try:
        if kind is torch.Tensor:
            return torch.stack(samples)
        if kind is tuple or kind is list:
            columns = list(zip(*samples, strict=True))
            if all(type(column[0]) is torch.Tensor for column in columns):
                return [torch.stack(column) for column in columns]
        elif kind is dict:
            names = samples[0]
            if all(type(value) is torch.Tensor for value in names.values()):
                return {name: torch.stack([sample[name] for sample in samples]) for name in names}
    except (TypeError, ValueError, KeyError, RuntimeError):
        pass  # mixed or ragged: torch's own function says what is wrong with them
    return default_collate(samples)
