"""Metrics of torchmetrics, which ask the other ranks for their numbers by themselves when they compute.

They do so state by state, and entry by entry of a list, which waits for ever where ranks have seen different numbers of
batches. Here all states of a metric are gathered at once, and joined by the reductions that the metric names. A metric
that was given a `dist_sync_fn` or a `process_group` of its own keeps its own way.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

_OWN = ("distributed_available_fn", "_sync_dist")


def joins(metric: Any) -> bool:
    """Say whether it is one of torchmetrics', or a collection of them."""
    held: Any = sys.modules.get("torchmetrics")
    return held is not None and isinstance(metric, (held.Metric, held.MetricCollection))


@contextmanager
def joining(metric: Any, gather: Callable[[Any], list[Any]] | None) -> Iterator[None]:
    """Run the body with torchmetrics' metrics in a metric joined over ranks, and put back what they do by themselves.

    Args:
        metric: any.
        gather: gives every rank's value, in their order; None: they aren't joined.
    """
    held = [(one, {name: vars(one).get(name) for name in _OWN}) for one in _parts(metric)]
    try:
        for one, _ in held:
            one.distributed_available_fn = _never if gather is None else _always
            if gather is not None and _is_torchmetrics_way(one):
                one._sync_dist = _joined_at_once(one, gather)
        yield
    finally:
        for one, before in held:
            for name, value in before.items():
                vars(one).pop(name, None)
                if value is not None:
                    vars(one)[name] = value


def _parts(metric: Any) -> list[Any]:
    """Return torchmetrics' metrics in a metric: in its modules, or among the attributes of an object of the user's."""
    library: Any = sys.modules.get("torchmetrics")
    if library is None:
        return []
    found = [one for module in _modules(metric) for one in module.modules() if isinstance(one, library.Metric)]
    return list({id(one): one for one in found}.values())


def _modules(metric: Any) -> Iterator[nn.Module]:
    if isinstance(metric, nn.Module):
        yield metric
        return
    for value in vars(metric).values() if hasattr(metric, "__dict__") else ():
        held: Iterable[Any] = value.values() if isinstance(value, Mapping) else value
        for one in held if isinstance(value, (Mapping, list, tuple)) else (value,):
            if isinstance(one, nn.Module):
                yield one


def _is_torchmetrics_way(metric: Any) -> bool:
    if metric.dist_sync_fn is not None or metric.process_group is not None:
        return False
    return str(type(metric)._sync_dist.__module__).startswith("torchmetrics.")


def _joined_at_once(metric: Any, gather: Callable[[Any], list[Any]]) -> Callable[..., None]:
    def sync(*args: Any, **kwargs: Any) -> None:
        held = gather((bool(metric.update_called), {name: getattr(metric, name) for name in metric._reductions}))
        seen = [states for updated, states in held if updated] or [states for _, states in held]
        for name, reduce in metric._reductions.items():
            setattr(metric, name, _joined([states[name] for states in seen], reduce))

    return sync


def _joined(values: list[Any], reduce: Callable[[Any], Any] | None) -> Any:
    """Return what a state of several ranks comes to: lists become one, tensors are stacked, and both reduced."""
    if any(isinstance(value, list) for value in values):
        together = [one for value in values for one in (value if isinstance(value, list) else [value])]
        return reduce(together) if together and reduce is not None else together
    stacked = torch.stack(values)
    return stacked if reduce is None else reduce(stacked)


def _always() -> bool:
    return True


def _never() -> bool:
    return False


__all__ = ["joining", "joins"]
