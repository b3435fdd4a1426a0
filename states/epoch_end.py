"""*epoch_end*: the epoch is counted, with its validation's results at hand."""

from __future__ import annotations

import attrs

from .event import Event, evolver
from .trainer_state import TrainerState

_ended = evolver(TrainerState, "cur_epoch_idx", "batch_idx_in_epoch", "place", "epoch_exhausted")


@attrs.frozen(kw_only=True)
class EpochEnded(Event):
    """An epoch ended.

    Attributes:
        epoch: its index, from 0.
    """

    epoch: int = 0

    def fold(self, state: TrainerState, dest: str) -> TrainerState:
        return _ended(state, dest, state.cur_epoch_idx + 1, 0, 0, False)


def epochs_left(state: TrainerState, event: EpochEnded) -> bool:
    """epochs left, no stop asked for"""
    epochs = state.n_epochs is None or state.cur_epoch_idx + 1 < state.n_epochs
    batches = state.total_batches is None or state.global_forward_batches < state.total_batches
    return epochs and batches and not state.stop_asked
