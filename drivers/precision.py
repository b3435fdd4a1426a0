"""fp32, bf16 and fp16: which autocast a step runs under, and whether a scaler guards its gradients."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import attrs
import torch

from tachograph.states.errors import CallerError, did_you_mean

PRECISIONS = ("fp32", "bf16", "fp16")

_ELSEWHERE = {
    **dict.fromkeys(("32", "32-true", "float32", "float", "full", "no"), "fp32"),
    **dict.fromkeys(("bf16-mixed", "bfloat16"), "bf16"),
    **dict.fromkeys(("16", "16-mixed", "float16", "half", "amp"), "fp16"),
}
"""What other libraries call them."""


@attrs.frozen
class Precision:
    """What a precision means on a device.

    Attributes:
        name: "fp32", "bf16" or "fp16".
        autocast: makes the context of a forward pass; None for fp32.
        scaler: the gradient scaler; None but for fp16.
    """

    name: str
    autocast: Callable[[], AbstractContextManager[Any]] | None
    scaler: Any


def unscale(scaler: Any, optimizers: Sequence[Any]) -> None:
    """Unscale the gradients of all optimizers, but of those that somebody has unscaled in this window."""
    for optimizer in optimizers if _has_scaled(scaler) else ():
        with contextlib.suppress(RuntimeError):  # it has been called already
            scaler.unscale_(optimizer)


def _has_scaled(scaler: Any) -> bool:
    """Say whether a scaler has ever multiplied a loss; before, it lacks what its other methods need."""
    return scaler.is_enabled() and scaler._scale is not None


def forget_unscaled(scaler: Any) -> None:
    """Have a scaler forget whose gradients were unscaled, after an update that wasn't taken; its scale stays."""
    if _has_scaled(scaler):
        scaler.update(scaler.get_scale())


def overflowed(scaler: Any, optimizers: Sequence[Any]) -> bool:
    """Unscale the gradients of all optimizers, unless somebody has, and say whether any of them overflowed.

    By itself a scaler skips the step of that optimizer alone, and the others would take theirs.
    """
    if not scaler.is_enabled():
        return False
    unscale(scaler, optimizers)
    return any(found.item() for o in optimizers for found in scaler._found_inf_per_device(o).values())


def take_step(scaler: Any, optimizers: Sequence[Any]) -> bool:
    """Take one step of all optimizers, or of none where gradients overflowed, and say whether it was taken.

    The scale moves once, however many optimizers there are. One without any gradient, which a scaler refuses, takes a
    step that does nothing, as it does without a scaler.
    """
    before = scaler.get_scale()
    with_gradients = [optimizer for optimizer in optimizers if _has_gradients(optimizer)]
    if len(with_gradients) <= 1 or not overflowed(scaler, with_gradients):
        for optimizer in optimizers:
            if optimizer in with_gradients:
                scaler.step(optimizer)
            else:
                optimizer.step()
    if with_gradients:
        scaler.update()
    else:
        forget_unscaled(scaler)
    return bool(scaler.get_scale() >= before)


def _has_gradients(optimizer: Any) -> bool:
    return any(p.grad is not None for group in optimizer.param_groups for p in group["params"])


def _scaler(device: torch.device, options: Any) -> Any:
    try:
        return torch.amp.GradScaler(device.type, **options)
    except TypeError as error:
        raise CallerError(f"torch_kwargs: gradscaler_kwargs aren't those of torch.amp.GradScaler: {error}") from error


def _meant(name: Any) -> str:
    """Return the end of a sentence about a precision that isn't known."""
    asked = str(name).removeprefix("torch.")
    if asked in _ELSEWHERE:
        return f": here it is {_ELSEWHERE[asked]!r}"
    near = did_you_mean(asked, PRECISIONS)
    return near and f". {near}"


def choose_precision(name: str | None, fp16: bool, device: torch.device, scaler_options: dict[str, Any]) -> Precision:
    """Build a precision.

    Args:
        name: "fp32", "bf16", "fp16"; None means fp32, or fp16 if `fp16` is true.
        fp16: the reference trainer's switch.
        device: where the forward pass runs.
        scaler_options: keyword arguments of `torch.amp.GradScaler`.

    Raises:
        CallerError: the name isn't known, or contradicts `fp16`.
    """
    if fp16 and name not in (None, "fp16"):
        raise CallerError(f"fp16=True and precision={name!r} contradict each other: give one of them")
    name = name or ("fp16" if fp16 else "fp32")
    if name not in PRECISIONS:
        raise CallerError(f"precision must be one of {', '.join(PRECISIONS)}, not {name!r}{_meant(name)}")
    if name == "fp32":
        return Precision("fp32", None, None)
    dtype = torch.bfloat16 if name == "bf16" else torch.float16

    def autocast() -> AbstractContextManager[Any]:
        return torch.autocast(device.type, dtype=dtype)

    scaler = _scaler(device, scaler_options) if name == "fp16" else None
    return Precision(name, autocast, scaler)
