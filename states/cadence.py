"""When a validation is due: after so many batches, updates or epochs, or parts of an epoch. The unit is part of it.

Each kind is a function of the state and of the event that is about to leave *step* or *fetch*, so a resumed run decides
as a straight one. Counts go over the whole run: a rhythm doesn't drift with the length of an epoch. How much time has
passed isn't known here; see `tachograph.engine.due`.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import attrs

from .fetch import Exhausted
from .step import Stepped
from .trainer_state import TrainerState


@attrs.frozen
class Cadence:
    """How often something is due.

    Attributes:
        every: the number of units between two times, > 0.
    """

    every: Any

    def after_step(self, state: TrainerState, event: Stepped) -> bool:
        """Say whether it is due after the batch in work.

        Args:
            state: the state in *step*, before the batch is counted.
            event: what will leave it.
        """
        return False

    def at_epoch_end(self, state: TrainerState, event: Exhausted) -> bool:
        """Say whether it is due at the end of the epoch in work.

        Args:
            state: the state in *fetch*, before the epoch is counted.
            event: what will leave it.
        """
        return False

    def just_was(self, state: TrainerState) -> bool:
        """Say whether it was due after the epoch's last batch, so that nothing is left to do at its end."""
        return False

    def plain(self) -> int | str:
        """Return it as `run.json` keeps it."""
        raise NotImplementedError


class Batches(Cadence):
    """Every n training batches of the run."""

    def after_step(self, state: TrainerState, event: Stepped) -> bool:
        return (state.global_forward_batches + 1) % self.every == 0  # type: ignore[no-any-return]

    def just_was(self, state: TrainerState) -> bool:
        return state.global_forward_batches % self.every == 0  # type: ignore[no-any-return]

    def plain(self) -> int | str:
        return self.every  # type: ignore[no-any-return]


class Updates(Cadence):
    """Every n optimizer steps that were really taken, however many batches they are made of."""

    def after_step(self, state: TrainerState, event: Stepped) -> bool:
        taken = event.closed and not event.skipped
        return taken and (state.optimizer_steps + 1) % self.every == 0

    def at_epoch_end(self, state: TrainerState, event: Exhausted) -> bool:
        taken = event.flushed and not event.skipped
        return taken and (state.optimizer_steps + 1) % self.every == 0

    def just_was(self, state: TrainerState) -> bool:
        return not state.accumulated and state.optimizer_steps > 0 and state.optimizer_steps % self.every == 0

    def plain(self) -> int | str:
        return f"{self.every} updates"


class Epochs(Cadence):
    """At the end of every n-th epoch."""

    def at_epoch_end(self, state: TrainerState, event: Exhausted) -> bool:
        return (state.cur_epoch_idx + 1) % self.every == 0  # type: ignore[no-any-return]

    def plain(self) -> int | str:
        return -self.every  # type: ignore[no-any-return]


class Parts(Cadence):
    """Every so large a part of an epoch: 1/4 four times an epoch, 3/2 twice in three. Lengths must be known.

    It is due after the first batch that completes a part, counted from the beginning of the run.
    """

    every: Fraction

    def after_step(self, state: TrainerState, event: Stepped) -> bool:
        length = state.num_batches_per_epoch
        return length is not None and self._done(state, 1, length) > self._done(state, 0, length)

    def just_was(self, state: TrainerState) -> bool:
        at_end = state.batch_idx_in_epoch == state.num_batches_per_epoch
        return at_end and (state.cur_epoch_idx + 1) % self.every == 0

    def _done(self, state: TrainerState, more: int, length: int) -> int:
        """Count the parts that are complete with so many more batches."""
        part = self.every
        batches = state.cur_epoch_idx * length + state.batch_idx_in_epoch + more
        return batches * part.denominator // (length * part.numerator)

    def plain(self) -> int | str:
        return f"{self.every} epoch"


class Seconds(Cadence):
    """Every so many seconds of the run; only who has a clock can tell."""

    def plain(self) -> int | str:
        return f"{self.every:g}s"


def due_after_step(cadences: tuple[Cadence, ...], state: TrainerState, event: Stepped) -> bool:
    """Say whether any of them is due after the batch in work; see `Cadence.after_step`."""
    return any(cadence.after_step(state, event) for cadence in cadences)


def due_at_epoch_end(cadences: tuple[Cadence, ...], state: TrainerState, event: Exhausted) -> bool:
    """Say whether any of them is due at an epoch's end, and none was after its last batch."""
    due = any(cadence.at_epoch_end(state, event) for cadence in cadences)
    return due and (event.flushed or not any(cadence.just_was(state) for cadence in cadences))


__all__ = ["Batches", "Cadence", "Epochs", "Parts", "Seconds", "Updates", "due_after_step", "due_at_epoch_end"]
