"""*fetch*: the next batch is asked for. There is one (`Fetched`), or the epoch has no more (`Exhausted`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs

from .event import Event, evolver
from .trainer_state import TrainerState

_fetched = evolver(TrainerState)
_exhausted = evolver(TrainerState, "epoch_exhausted", "epoch_cut_asked", "optimizer_steps", "accumulated")


@attrs.frozen(kw_only=True)
class Fetched(Event):
    """A batch is in hand.

    Attributes:
        ids: the 32-bit hash of its sample ids in their order; 0 where they aren't known.
    """

    ids: int = 0

    def fold(self, state: TrainerState, dest: str) -> TrainerState:
        return _fetched(state, dest)


@attrs.frozen(kw_only=True)
class Exhausted(Event):
    """The epoch has no batch left, or a listener asked it to end here.

    Attributes:
        validate_due: a validation belongs to the end of this epoch.
        late: `[seq, loss]` of each step whose loss hadn't arrived from the device before.
        flushed: an open accumulation window had to be closed here, since only now its end was known.
        skipped: that window's update was skipped, as a `Stepped` tells of its own.
        dropped: micro-batches of an open window whose gradients were dropped here.
        cut: why the epoch ended before its data did; "" where the data was exhausted.
    """

    validate_due: bool = False
    flushed: bool = False
    skipped: bool = False
    late: Sequence[Any] = ()
    dropped: int = 0
    cut: str = ""

    def fold(self, state: TrainerState, dest: str) -> TrainerState:
        steps = state.optimizer_steps + (self.flushed and not self.skipped)
        closed = self.flushed or self.dropped
        return _exhausted(state, dest, True, "", steps, 0 if closed else state.accumulated)


def validation_due(state: TrainerState, event: Exhausted) -> bool:
    """validation due at epoch end"""
    return event.validate_due or state.validate_due
