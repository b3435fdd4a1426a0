"""How long a run goes on: limits in epochs, batches and seconds. Each is a total over all lives of the run."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from tachograph.states import TrainerState


class Limits:
    """The limits of one trainer, and what is known of the time that was spent.

    Args:
        n_batches: batches in all; None: no limit.
        max_time: seconds in all; None: no limit.
        clock: a monotonic clock, in seconds.

    Attributes:
        by_clock: `reached` asks the clock; False where several ranks must agree on what their clocks say.
    """

    def __init__(self, n_batches: int | None, max_time: float | None, clock: Callable[[], float]) -> None:
        self.n_batches = n_batches
        self.max_time = max_time
        self._clock = clock
        self._before = 0.0
        self._since: float | None = None
        self.by_clock = True

    def begin(self) -> None:
        """Let the time run."""
        self._since = self._clock()

    def end(self) -> None:
        """Let it stand: nobody trains."""
        self._before = self.seconds
        self._since = None

    def resume(self, seconds: float) -> None:
        """Take over what earlier processes spent."""
        self._before = seconds

    @property
    def seconds(self) -> float:
        """What was spent so far, in all lives of the run."""
        return self._before + (0.0 if self._since is None else self._clock() - self._since)

    def reached(self, state: TrainerState) -> str:
        """Say which limit is reached; "" if none is. One in epochs is only where it was lowered: see the table."""
        if self.n_batches is not None:
            if state.global_forward_batches >= self.n_batches:
                return f"the limit of {self.n_batches} batches is reached"
        elif state.n_epochs is not None and state.cur_epoch_idx >= state.n_epochs:
            return f"the limit of {state.n_epochs} epochs is reached"
        return self.out_of_time() if self.by_clock else ""

    def out_of_time(self) -> str:
        """Say that the time is up; "" if it isn't."""
        if self.max_time is None or self.seconds < self.max_time:
            return ""
        return f"max_time, {self.max_time:g} seconds, is over"

    def applied(self, state: TrainerState, n_epochs: int | None, length: int | None) -> TrainerState:
        """Compute the one limit from the other: only the epochs ahead have the length that the loader has now.

        Args:
            state: where the run is.
            n_epochs: the limit in epochs; None: there is none.
            length: batches in an epoch ahead; None: unknown.
        """
        total = self.n_batches
        of_this, done, epochs = state.num_batches_per_epoch, state.global_forward_batches, state.cur_epoch_idx
        if state.batch_idx_in_epoch or state.epoch_exhausted:
            left = 0 if state.epoch_exhausted else (of_this or length or 0) - state.batch_idx_in_epoch
            done, epochs = done + max(left, 0), epochs + 1
        if length and total is not None:
            n_epochs = epochs + max(-(-(total - done) // length), 0)
        elif total is not None:
            n_epochs = None
        elif length and n_epochs is not None:
            total = done + max(n_epochs - epochs, 0) * length
        of_this = length if of_this is None else of_this
        return attrs.evolve(state, num_batches_per_epoch=of_this, n_epochs=n_epochs, total_batches=total)
