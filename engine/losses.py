"""The loss in what a training step returned, and how its batch is named in messages."""

from __future__ import annotations

from typing import Any

from tachograph.drivers import LossFault
from tachograph.drivers.matching import as_mapping


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


def short(ids: Any, most: int = 64) -> str:
    """Write out sample ids, as many as a message bears."""
    held = list(ids)
    return repr(held) if len(held) <= most else f"{held[:most]!r} and {len(held) - most} more"
