"""Holding what was saved against what it is to be restored into. Nothing is changed, and every fault is named."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from tachograph.states.errors import CallerError

from . import hyperparameters, storage
from .errors import RestoreFault

ENTRIES = (
    *("optimizers", "scaler", "built", "evaluating", "gradients", "generators", "losses", "loader"),
    *("batch", "batch_ids", "batch_samples", "has_batch", "extra"),
)
"""What a rank's file of a snapshot holds."""


def part(directory: Path, name: str) -> Any:
    """Read a file of a snapshot."""
    if not (directory / name).is_file():
        raise RestoreFault(f"{directory} has no {name}: another driver took it")
    return storage.read(directory / name)


def check_entries(rest: Any, but: Sequence[str] = (), name: str = "rank-0.pt") -> None:
    """Refuse the rest of a snapshot that lacks an entry.

    Args:
        rest: what a rank's file holds.
        but: entries it may lack.
        name: of the file.
    """
    if not isinstance(rest, dict):
        raise RestoreFault(f"{name} holds a {type(rest).__name__}, not the entries of a snapshot")
    lost = [key for key in ENTRIES if key not in rest and key not in but]
    if lost:
        raise RestoreFault(f"the snapshot lacks the entry '{lost[0]}'")


def check_model(model: nn.Module, held: Any) -> None:
    """Hold a saved state dict against a model."""
    if not isinstance(held, dict):
        raise RestoreFault(f"this file holds a {type(held).__name__}, not a model's state dict")
    mine = model.state_dict()
    if mine and not mine.keys() & held.keys():
        _tell_where(mine, held)
    for name in [*mine, *held]:
        if name not in held:
            raise RestoreFault(f"the model has '{name}', which the saved one lacks")
        if name not in mine:
            raise RestoreFault(f"the saved model has '{name}', which this one lacks")
        here, there = (getattr(h[name], "shape", None) for h in (mine, held))
        if here != there:
            raise RestoreFault(
                f"'{name}' has shape {list(there or ())} in the saved model, {list(here or ())} in this one"
            )


def _tell_where(mine: dict[str, Any], held: dict[Any, Any]) -> None:
    """Refuse a file with none of a model's names by what it is, where that shows: weights in a dict, or a wrapper's."""
    inner = [key for key, value in held.items() if _is_state(value)]
    if inner and not any(isinstance(value, torch.Tensor) for value in held.values()):
        own = next((key for key in inner if any(str(name).endswith(tuple(mine)) for name in held[key])), inner[0])
        keys = ", ".join(map(repr, list(held)[:5])) + (", ..." if len(held) > 5 else "")
        raise RestoreFault(
            f"this file holds {keys}, and no weights at its top: "
            f"model.load_state_dict(torch.load(path)[{own!r}]) takes it"
        )
    first, other = next(iter(mine)), str(next(iter(held), ""))
    prefix = other.removesuffix(first)
    if prefix != other and held.keys() == {prefix + name for name in mine}:
        raise RestoreFault(
            f"all names of the saved model begin with {prefix!r}, as a wrapper makes them: take that off them"
        )


def _is_state(value: Any) -> bool:
    return isinstance(value, Mapping) and any(isinstance(v, torch.Tensor) for v in value.values())


def check_optimizers(optimizers: Sequence[Optimizer], held: Any) -> None:
    """Hold saved optimizers against these: how many there are, and the parameters of their groups."""
    if not isinstance(held, list) or len(held) != len(optimizers):
        there = len(held) if isinstance(held, list) else "no"
        raise RestoreFault(f"the snapshot holds {there} optimizers, this trainer {len(optimizers)}")
    for number, (optimizer, state) in enumerate(zip(optimizers, held, strict=True)):
        here = [len(group["params"]) for group in optimizer.param_groups]
        there = _groups(state)
        if here != there:
            raise RestoreFault(
                f"optimizer {number} has groups of {here} parameters, the saved one of {there}: build it as it was"
            )


def _groups(state: Any) -> Any:
    try:
        return [len(group["params"]) for group in state["param_groups"]]
    except (KeyError, TypeError):
        return "nothing"


def check_values(optimizers: Sequence[Optimizer], held: Any, old: Any, new: Any) -> None:
    """Refuse new values of groups that need more of each parameter than was saved, as `amsgrad=True` does.

    Args:
        optimizers: as they are built now.
        held: their saved states.
        old: the plain values of their groups, as they were built when the run began.
        new: as they are built now.
    """
    for optimizer, state, was, now in zip(optimizers, held, old, new, strict=True):
        for group, saved, before, after in zip(optimizer.param_groups, state["param_groups"], was, now, strict=True):
            changed = hyperparameters.merged(saved, before, after)
            states = [state["state"][n] for n in saved["params"] if n in state["state"]]
            lacking = _kept(optimizer, group) - set(states[0]) if changed and states else ()
            if lacking:
                told = ", ".join(f"{k} changed from {before.get(k)} to {v}" for k, v in changed.items())
                raise CallerError(
                    f"{told}: {type(optimizer).__name__} needs '{min(lacking)}' of each parameter for it, which wasn't "
                    "kept so far. Use the old value, or start a new run with another run_dir"
                )


def _kept(optimizer: Optimizer, group: dict[str, Any]) -> set[str]:
    """Find out what an optimizer keeps of each parameter of a group, from a step with a parameter of one element."""
    like = group["params"][0]
    one = torch.zeros((1,) * like.dim(), dtype=like.dtype, device=like.device, requires_grad=True)
    one.grad = torch.zeros_like(one)
    try:
        other = copy.copy(optimizer)
        other.state = defaultdict(dict)
        other.param_groups = [{**group, "params": [one]}]
        other.step()
        return set(other.state[one])
    except Exception:  # it wants more than a gradient, a closure say
        return set()


def check_scaler(scaler: Any, held: Any) -> None:
    """Hold a saved gradient scaler against this one; None: there is none."""
    if (held is None) != (scaler is None):
        holder, other = ("trainer", "snapshot") if held is None else ("snapshot", "trainer")
        raise RestoreFault(f"the {holder} has a gradient scaler, the {other} has none: use the same precision")
    if scaler is not None and not (isinstance(held, dict) and scaler.state_dict().keys() <= held.keys()):
        raise RestoreFault("the snapshot's entry 'scaler' isn't the state of a gradient scaler")


def what_is(path: Any) -> str:
    """Say what a file is that isn't a snapshot, for the middle of a sentence."""
    try:
        held = storage.read(path)
    except RestoreFault:
        return "no file of tensors and plain data"
    if storage.is_model(held):
        return f"a model that save_model wrote, with {len(held)} tensors"
    if isinstance(held, Mapping) and held and all(isinstance(v, torch.Tensor) for v in held.values()):
        return f"a state dict of {len(held)} tensors"
    if isinstance(held, Mapping):
        return f"a file of torch.save with the keys {', '.join(repr(key) for key in list(held)[:5])}"
    return f"a file of torch.save with a {type(held).__name__} in it"


def scaler_state(saved: dict[str, Any], old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Return a gradient scaler's saved state with the values that are built otherwise now than when the run began."""
    state = {**saved, **{k: v for k, v in new.items() if old.get(k) != v}}
    if "_growth_tracker" in state:  # torch grows the scale when it equals the interval, so it must not have passed it
        state["_growth_tracker"] = min(state["_growth_tracker"], state["growth_interval"] - 1)
    return state
