"""*epoch_begin*: the epoch's order is fixed and its loader opened."""

from __future__ import annotations

import attrs

from .event import Event, evolver
from .trainer_state import TrainerState

_began = evolver(TrainerState, "batch_idx_in_epoch", "place", "epoch_exhausted", "num_batches_per_epoch")


@attrs.frozen(kw_only=True)
class EpochBegan(Event):
    """An epoch began.

    Attributes:
        epoch: its index, from 0.
        num_batches_per_epoch: batches it has; None where the loader doesn't know.
    """

    epoch: int = 0
    num_batches_per_epoch: int | None = None

    def fold(self, state: TrainerState, dest: str) -> TrainerState:
        return _began(state, dest, 0, 0, False, self.num_batches_per_epoch)
