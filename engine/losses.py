"""The loss in what a training step returned, what else of it is told, and how its batch is named in messages."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from tachograph.drivers import Driver, LossFault
from tachograph.drivers.matching import as_mapping
from tachograph.states.errors import CallerError

IN_A_RECORD = 64
"""The sample ids that the journal keeps of the batch in which a run failed."""


def extract_loss(outputs: Any) -> Any:
    """Return the loss in a training step's outputs: `outputs["loss"]` of a dict, `outputs.loss` of a dataclass.

    Raises:
        LossFault: there is none; it names what there is.
    """
    if isinstance(outputs, dict):
        if "loss" in outputs:
            return outputs["loss"]
        held: Any = sorted(map(str, outputs))
    else:
        found = as_mapping(outputs)
        loss = getattr(outputs, "loss", None)
        if loss is not None:
            return loss
        held = sorted(map(str, found)) if found is not None else f"a {type(outputs).__name__}"
    raise LossFault(
        f"the training step must return a dict or dataclass with 'loss', but it returned {held}. Return one, or name "
        "it with output_mapping={'its name': 'loss'}"
    )


def total(losses: list[Any]) -> Any:
    """Add up the losses that one step went backward from; None if there was none."""
    return sum(losses[1:], losses[0]) if losses else None


def check_logged(values: Mapping[Any, Any], is_tensor: Callable[[Any], bool]) -> None:
    """Refuse what is logged and is no number. A tensor's shape is looked at, and not its value.

    Args:
        values: name -> value.
        is_tensor: says whether a value is a tensor.

    Raises:
        CallerError: it names the first of them.
    """
    for name, value in values.items():
        shape = None
        if isinstance(name, str):
            if isinstance(value, (int, float)):
                continue
            if is_tensor(value):
                shape = list(value.shape)
                if math.prod(shape) == 1:
                    continue
        told = repr(value) if shape is None else f"a {type(value).__name__} of the shape {shape}"
        raise CallerError(f"log takes name -> number, not {name!r}: {told}")


def backward(driver: Driver, loss: Any, divisor: int, weight: Any = None) -> None:
    """Add a loss's gradients.

    Args:
        driver: goes backward.
        loss: what a training step made.
        divisor: what its gradients are divided by.
        weight: a number, or a tensor of one, that the loss is multiplied with before; None: it isn't.

    Raises:
        LossFault: it can have none; it says what the loss is. Whatever else goes wrong is raised as it is.
    """
    try:
        driver.backward(loss if weight is None else loss * weight, divisor)
    except Exception as error:
        fault = driver.loss_fault(loss)
        if fault:
            raise LossFault(fault) from error
        raise


FEW = 8
"""Sample ids that are written out in a sentence."""


def short(ids: Any, most: int = FEW) -> str:
    """Write out sample ids, as many as a line for a person bears."""
    held = list(ids)
    return repr(held) if len(held) <= most else f"{held[:most]!r} and {len(held) - most} more"
