"""Which device a model is on, which of its methods is called, and with what of a batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from tachograph.states.errors import CallerError, nearest, note

from . import compiling
from .matching import matched


def device_of(device: Any, model: nn.Module) -> torch.device:
    """Return the device that an argument means; None: where the model's parameters are.

    Raises:
        CallerError: it isn't one, or this machine hasn't got it.
    """
    if device is None:
        first = next(model.parameters(), None)
        return first.device if first is not None else torch.device("cpu")
    try:
        chosen = torch.device("cuda", device) if type(device) is int else torch.device(device)
    except (RuntimeError, TypeError) as error:
        raise CallerError(f"device {device!r} isn't one: {str(error).splitlines()[0]}") from error
    if chosen.type == "cuda":
        count = torch.cuda.device_count()
        if (chosen.index or 0) >= count or (chosen.index or 0) < 0:
            raise CallerError(f"device {device!r}: this machine has {count} CUDA device{'' if count == 1 else 's'}")
    return chosen


def check_optimized(model: nn.Module, optimizers: Sequence[Any]) -> None:
    """Refuse optimizers that hold no parameter of the model: nothing of it would be trained.

    Raises:
        CallerError: it has parameters, and they hold none of them.
    """
    own = {id(parameter) for parameter in model.parameters()}
    held = (id(p) for optimizer in optimizers for group in optimizer.param_groups for p in group["params"])
    if own and own.isdisjoint(held):
        raise CallerError(
            f"no parameter of the {type(model).__name__} is in the optimizers, so nothing of it would be trained: "
            "build them on this very model"
        )


def method_of(model: nn.Module, name: str, parameter: str) -> str:
    """Return the name of a model's method.

    Raises:
        CallerError: it has no such method; the nearest are offered.
    """
    if not isinstance(name, str):
        raise CallerError(f"{parameter} must be the name of a method of the model, not {name!r}")
    if not callable(getattr(model, name, None)):
        own = [n for n in dir(type(model)) if not n.startswith("_") and n not in dir(nn.Module)]
        raise CallerError(
            f"{parameter}={name!r}: {type(model).__name__} has no such method. {nearest(name, own or ['forward'])}"
        )
    return name


def train_fn_of(model: nn.Module, name: str | None, auto_call: bool) -> Callable[[Any], Any]:
    """Return what is called with a training batch: the method of this name; None: `train_step`, or the forward pass."""
    if name is None:
        name = "train_step" if hasattr(model, "train_step") else None
    else:
        name = method_of(model, name, "train_fn")
    return caller_of(model, name, auto_call)


def caller_of(
    model: nn.Module, name: str | None, auto_call: bool, options: Mapping[str, Any] | None = None
) -> Callable[[Any], Any]:
    """Return `call(batch)` for a method of the model, compiled where there are options for that.

    The forward pass is called through its hooks.
    """
    fn = model if name in (None, "forward") else getattr(model, name)
    called = compiling.compiled(fn, options)
    if auto_call:
        called = matched(called, f"{type(model).__name__}.{name or 'forward'}", model.forward if fn is model else fn)
    otherwise = fn is model and any(hasattr(model, there) for there, _ in _ELSEWHERE.values())
    return _explaining(called, model, auto_call) if otherwise else called


_ELSEWHERE = {True: ("training_step", "train_step"), False: ("validation_step", "validate_step")}
"""Whether gradients are wanted -> what the method that is looked for then is called in another library, and here."""


def _explaining(call: Callable[[Any], Any], model: nn.Module, auto_call: bool) -> Callable[[Any], Any]:
    """Add to the errors of a forward pass that the model has a step, which goes by another name."""

    def explaining(batch: Any) -> Any:
        try:
            return call(batch)
        except Exception as error:
            kind, (there, here) = type(model).__name__, _ELSEWHERE[torch.is_grad_enabled()]
            how = "filled the parameters of" if auto_call and isinstance(batch, dict) else "was passed whole to"
            if hasattr(model, there):
                note(
                    error,
                    f"the batch, a {type(batch).__name__}, {how} {kind}.forward; {kind} has {there}, which is called "
                    f"{here} here, and takes the batch alone",
                )
            raise

    return explaining


def batch_size(batch: Any) -> int:
    """Guess the samples in a batch whose ids aren't known: the first tensor's first dimension, else 1."""
    stack = [batch]
    while stack:
        value = stack.pop(0)
        if isinstance(value, torch.Tensor):
            return int(value.shape[0]) if value.dim() else 1
        if isinstance(value, Mapping):
            stack.extend(value.values())
        elif isinstance(value, (list, tuple)):
            stack.extend(value)
    return 1


__all__ = ["batch_size", "caller_of", "check_optimized", "device_of", "method_of", "train_fn_of"]
