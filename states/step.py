"""*step*: one training batch is worked off: forward, backward and, where the window is full, the update."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from .event import Event, evolver
from .trainer_state import TrainerState

_stepped = evolver(
    TrainerState,
    *("global_forward_batches", "batch_idx_in_epoch", "optimizer_steps", "accumulated", "samples", "place"),
    "validate_due",
)
TAILS = ("flush", "carry", "drop")
"""What may happen to an accumulation window that is open when its epoch ends (see `window_size`)."""


@attrs.frozen(kw_only=True)
class Stepped(Event):
    """A training batch is done.

    Attributes:
        loss: its loss, undivided by the window; None where the step made none, or where it is still on its
            way from the device (see `late`). NaN stays NaN.
        lr: the learning rates used, one per parameter group; empty where nobody records or hears the event, as `rng`.
        samples: samples in the batch, over all ranks.
        rng: a number that tells the generators' position after the step; 0 where it isn't taken.
        closed: the accumulation window was closed.
        skipped: the window was closed without a step: the gradient scaler found an infinity, a listener left the update
            out, or nothing in the window weighed anything.
        late: `[seq, loss]` of an earlier step, whose loss has arrived from the device with this one; else [].
        validate_due: a validation follows this step.
    """

    loss: float | None = None
    lr: Sequence[float] = ()
    samples: int = 0
    rng: int = 0
    closed: bool = True
    skipped: bool = False
    late: Sequence[Any] = ()
    validate_due: bool = False

    def fold(self, state: TrainerState, dest: str) -> TrainerState:
        closed = self.closed
        return _stepped(
            state,
            dest,
            state.global_forward_batches + 1,
            state.batch_idx_in_epoch + 1,
            state.optimizer_steps + 1 if closed and not self.skipped else state.optimizer_steps,
            0 if closed else state.accumulated + 1,
            state.samples + self.samples,
            state.place + self.samples,
            dest != "validate" and (self.validate_due or state.validate_due),
        )


def validation_due(state: TrainerState, event: Stepped) -> bool:
    """validation due after this step"""
    return event.validate_due or state.validate_due


def window_size(state: TrainerState, accumulation_steps: int, tail: str = "flush") -> int:
    """Count the micro-batches in the accumulation window that the batch in work belongs to.

    With "flush", the last window of an epoch is as long as the batches that are left for it; where the loader doesn't
    know its length, or has made more than it said, a window counts as full until the epoch turns out to be exhausted.
    With "carry" the next epoch fills the window up, and with "drop" nothing is made of it, so that every window is a
    full one.

    Args:
        state: the state in *step*, before the batch is counted; or in *fetch*, for the window that is open.
        accumulation_steps: micro-batches in a full window, >= 1.
        tail: one of `TAILS`.
    """
    if accumulation_steps == 1 or tail != "flush" or state.num_batches_per_epoch is None:
        return accumulation_steps
    left = state.num_batches_per_epoch - state.batch_idx_in_epoch
    return min(accumulation_steps, state.accumulated + left) if left > 0 else accumulation_steps
