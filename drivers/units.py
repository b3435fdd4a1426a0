"""Units of a sharded model: the modules whose parameters are gathered and let go as one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch import nn

from tachograph.states.errors import CallerError

LARGE = 1_000_000
"""Values from which a direct child of the model is a unit by itself."""
_NO_FORWARD = (nn.ModuleList, nn.ModuleDict)


def units_of(model: nn.Module, policy: Any = None) -> list[nn.Module]:
    """Choose the modules that are gathered and freed as one, inner ones before outer ones; the model isn't among them.

    Args:
        model: not sharded yet.
        policy: module classes, one or several; or `f(module) -> bool`; None: the blocks in its `ModuleList`s, and its
            direct children with a million values or more.

    Raises:
        CallerError: the policy can't be used, chooses nothing, or parts modules that share a parameter.
    """
    if policy is None:
        return [unit for unit in _ordered(model, _usual(model)) if not _shared_with(model, unit)]
    chosen = [m for m in model.modules() if m is not model and _chooses(policy)(m) and _has_parameters(m)]
    if not chosen:
        kinds = sorted({type(m).__name__ for m in model.modules() if m is not model})
        raise CallerError(f"wrap_policy chooses no module of the model with parameters; it has {', '.join(kinds)}")
    for unit in chosen:
        shared = _shared_with(model, unit)
        if shared:
            raise CallerError(
                f"wrap_policy makes a unit of a {type(unit).__name__} whose '{shared[0]}' is '{shared[1]}' too: shared "
                "parameters must be in one unit, so choose a module that holds both, or neither"
            )
    return _ordered(model, chosen)


def _chooses(policy: Any) -> Callable[[nn.Module], bool]:
    kinds = tuple(policy) if isinstance(policy, (set, frozenset, list, tuple)) else policy
    if isinstance(kinds, type) or (isinstance(kinds, tuple) and all(isinstance(kind, type) for kind in kinds)):
        return lambda module: isinstance(module, kinds)
    if not callable(policy):
        raise CallerError(f"wrap_policy must be module classes, or a function of a module, not {policy!r}")
    return lambda module: not isinstance(module, _NO_FORWARD) and bool(policy(module))


def _usual(model: nn.Module) -> Iterator[nn.Module]:
    blocks: set[nn.Module] = set()
    for module in model.modules():
        if isinstance(module, nn.ModuleList) and not any(module in block.modules() for block in blocks):
            blocks.update(block for block in module if not isinstance(block, _NO_FORWARD))
    yield from (block for block in blocks if _has_parameters(block))
    for child in model.children():
        large = sum(p.numel() for p in child.parameters()) >= LARGE
        if large and not isinstance(child, _NO_FORWARD) and blocks.isdisjoint(child.modules()):
            yield child


def _ordered(model: nn.Module, chosen: Iterable[nn.Module]) -> list[nn.Module]:
    held = set(chosen)
    return [module for module in reversed(list(model.modules())) if module in held]


def _has_parameters(module: nn.Module) -> bool:
    return next(module.parameters(), None) is not None


def _shared_with(model: nn.Module, unit: nn.Module) -> tuple[str, str] | None:
    """Return the names of a parameter in a unit and outside it; None if it shares none."""
    inside = {id(p): name for name, p in unit.named_parameters(remove_duplicate=False)}
    within = set(unit.modules())
    for path, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False) if module not in within else ():
            if id(parameter) in inside:
                return inside[id(parameter)], f"{path}.{name}".lstrip(".")
    return None


__all__ = ["LARGE", "units_of"]
