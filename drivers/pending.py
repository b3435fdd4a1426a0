"""Gradients that a sharded model holds whole, since they were made without an exchange (`no_sync`).

FSDP2 keeps them where no public name leads to: they would be lost with a snapshot, and with a window that ends before
the batch that was to exchange them. What isn't public in torch is reached through `_groups` and `_root`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from .ranks import Ranks
from .sharding import sharded_modules


class Pending:
    """The gradients of a sharded model that its ranks have still to average.

    Args:
        model: sharded.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._units = sharded_modules(model)
        self._root._lazy_init()
        named = {id(parameter): name for name, parameter in model.named_parameters()}
        self._parameters = {
            named[id(held.sharded_param)]: held for group in self._groups() for held in group.fsdp_params
        }

    @property
    def _root(self) -> Any:
        root: Any = self._model
        return root._get_fsdp_state()

    def _groups(self) -> Iterator[Any]:
        for unit in self._units:
            state: Any = unit._get_fsdp_state()
            yield from getattr(state, "_fsdp_param_groups", None) or filter(None, [state._fsdp_param_group])

    def named(self) -> dict[str, torch.Tensor]:
        """Return the gradients by the names of their parameters, uncopied; in the dtype they are averaged in."""
        found = ((name, _gradient(held)) for name, held in self._parameters.items())
        return {name: gradient for name, gradient in found if gradient is not None}

    def put(self, gradients: Mapping[str, torch.Tensor], device: torch.device) -> None:
        """Put back what `named` returned, in the place of what there is."""
        self.clear()
        for name, gradient in gradients.items():
            self._parameters[name].unsharded_accumulated_grad = gradient.to(device)

    def clear(self) -> None:
        """Drop them all."""
        for held in self._parameters.values():
            held.unsharded_accumulated_grad = None
            if hasattr(held, "_unsharded_param"):
                held._unsharded_param.grad = None

    def scale(self, factor: float) -> None:
        """Multiply them all by a factor."""
        for gradient in self.named().values():
            gradient.mul_(factor)

    @torch.no_grad()
    def exchange(self, ranks: Ranks) -> None:
        """Average them over all ranks and add each rank's share to its gradients, as a backward pass does at its end.

        A rank without one counts as zero.
        """
        mine = self.named()
        there = ranks.gather([name in mine for name in self._parameters])
        for unit in self._units:
            unit.unshard()
        for (name, held), some in zip(self._parameters.items(), map(any, zip(*there, strict=True)), strict=True):
            if some and name not in mine:
                held.unsharded_accumulated_grad = torch.zeros_like(held.unsharded_param, dtype=held.reduce_dtype)
        self._root._root_post_backward_final_callback()


def _gradient(held: Any) -> torch.Tensor | None:
    """Return the gradient of a parameter that is waiting for its exchange; None if there is none."""
    accumulated: torch.Tensor | None = held.unsharded_accumulated_grad
    if accumulated is not None or not hasattr(held, "_unsharded_param"):
        return accumulated
    gradient: torch.Tensor | None = held._unsharded_param.grad
    return gradient


__all__ = ["Pending"]
