"""Generator objects that a dataset or a `collate_fn` keeps to itself, found where they are kept.

Left to themselves they would go on from sample to sample: in another way in each worker, and anew after a resume. So
they are seeded as the global ones are.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn

Seed = Callable[[int], object]

_DEPTH = 5  # dataset, transform, list of them, one of them, what it wraps
_MANY = 100  # entries of a container: more are data
_MOST = 10_000  # objects looked at
_MASK = (1 << 64) - 1


def seeding_of(*parts: Any) -> Callable[[int], None] | None:
    """Return `f(number)`, which seeds every generator object found in some objects; None if there is none.

    Args:
        parts: a dataset, a function. They are searched through their attributes, containers, partial arguments and
            closures, a few steps deep.
    """
    seen: set[int] = {id(part) for part in (random._inst, torch.default_generator, _global_numpy())}  # type: ignore[attr-defined]
    found = [seed for part in parts for seed in _found(part, _DEPTH, seen)]
    if not found:
        return None

    def seed_all(number: int) -> None:
        for i, seed in enumerate(found):
            seed((number + i * 0xD1342543DE82EF95) & _MASK)

    return seed_all


def _global_numpy() -> Any:
    return np.random.mtrand._rand  # type: ignore[attr-defined]


def _found(value: Any, depth: int, seen: set[int]) -> Iterator[Seed]:
    if depth < 0 or id(value) in seen or len(seen) > _MOST or isinstance(value, (*_LEAVES, type, ModuleType)):
        return
    if isinstance(value, nn.Module) and next(value.parameters(), None) is not None:
        return  # a model: what it draws is training's
    seen.add(id(value))
    for kind, seeding in _KINDS.items():
        if isinstance(value, kind):
            yield seeding(value)
            return
    for held in _inside(value):
        yield from _found(held, depth - 1, seen)


def _inside(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values()) if len(value) <= _MANY else []
    if isinstance(value, (list, tuple)):
        return list(value) if len(value) <= _MANY else []
    if isinstance(value, MethodType):
        return [value.__self__]
    if isinstance(value, functools.partial):
        return [value.func, *value.args, *value.keywords.values()]
    if isinstance(value, FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or () if _is_filled(cell)]
        return [held for held in cells if isinstance(held, tuple(_KINDS))]
    return list(getattr(value, "__dict__", {}).values())


def _is_filled(cell: Any) -> bool:
    try:
        return cell.cell_contents is not None
    except ValueError:
        return False


def _numpy(generator: np.random.Generator) -> Seed:
    bits: Any = generator.bit_generator
    kind: Any = type(bits)

    def seed(number: int) -> None:
        bits.state = kind(number).state

    return seed


def _legacy(generator: np.random.RandomState) -> Seed:
    return lambda number: generator.seed(number >> 32)


_LEAVES = (torch.Tensor, np.ndarray, str, bytes, int, float, type(None))
_KINDS: dict[Any, Callable[[Any], Seed]] = {
    torch.Generator: lambda generator: generator.manual_seed,
    random.Random: lambda generator: generator.seed,
    np.random.Generator: _numpy,
    np.random.RandomState: _legacy,
}
