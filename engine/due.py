"""When a trainer validates: what `validate_every` was given, asked after every batch and at every epoch's end.

The counts are the state's. What a clock or a user's function decides is in the event that leaves *step*, and so in the
journal; where a resumed run does again what was recorded, the clock's decision is the recorded one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tachograph.states import Exhausted, Stepped, TrainerState
from tachograph.states.cadence import Cadence, Parts, Seconds, due_after_step, due_at_epoch_end
from tachograph.states.errors import CallerError

Recorded = Callable[[int], Any]
_DUE, _KNOWN, _DUE_AS_RECORDED = 1, 2, 4  # what ranks tell each other of a clock's decision


class Due:
    """Says when a validation is due.

    Args:
        every: the cadences; or `f(trainer) -> bool`, asked after every batch, with the batch counted.
        seconds: the seconds that the run has been at work.
    """

    def __init__(self, every: tuple[Cadence, ...] | Callable[[Any], bool], seconds: Callable[[], float]) -> None:
        self._fn = every if callable(every) else None
        self._all: tuple[Cadence, ...] = () if callable(every) else every
        self._after_step = tuple(c for c in self._all if type(c).after_step is not Cadence.after_step)
        self._epochs_only = False
        self._parts = next((c for c in self._all if isinstance(c, Parts)), None)
        self._timed = min((c.every for c in self._all if isinstance(c, Seconds)), default=None)
        self._seconds = seconds
        self._last = 0.0
        self._agree: Callable[[int], int] | None = None

    def agree_by(self, agree: Callable[[int], int]) -> None:
        """Decide together with other ranks what a clock or a function says: it is due where it is on one of them.

        Args:
            agree: returns the bits of all ranks, or'ed.
        """
        self._agree = agree

    def plain(self) -> Any:
        """Return what `run.json` keeps of it."""
        return [c.plain() for c in self._all] if self._fn is None else getattr(self._fn, "__qualname__", "a function")

    def check_length(self, length: int | None) -> None:
        """Refuse an epoch that can't be divided.

        Raises:
            CallerError: its length isn't known, and validations are due by parts of it.
        """
        if length is None and self._parts is not None:
            raise CallerError(
                f"validate_every='{self._parts.plain()}' needs a train_dataloader that knows its length: count batches "
                "(500), updates ('100 updates') or time ('10min') instead"
            )

    def only_between_epochs(self) -> bool:
        """Be asked at epochs' ends only, since a loop of the user's own works off an epoch at once.

        Returns:
            Whether there would have been validations inside an epoch.
        """
        self._epochs_only = True
        return self._fn is not None or bool(self._after_step) or self._timed is not None

    def after_step(self, trainer: Any, state: TrainerState, event: Stepped, recorded: Recorded) -> bool:
        """Say whether a validation follows the batch in work.

        Args:
            trainer: what a function is asked about.
            state: the state in *step*.
            event: what will leave it.
            recorded: returns the record that an earlier life of the run has written of a transition, or None.
        """
        if self._fn is not None:
            return self._asked(trainer, state, event)
        if self._after_step and due_after_step(self._after_step, state, event):
            return True
        return self._timed is not None and self._by_the_clock(recorded(state.seq + 1))

    def at_epoch_end(self, state: TrainerState, event: Exhausted) -> bool:
        """Say whether a validation belongs to the end of the epoch in work."""
        if self._epochs_only:  # whatever was due after the last batch, nobody has asked
            return any(cadence.at_epoch_end(state, event) for cadence in self._all)
        return due_at_epoch_end(self._all, state, event)

    def _asked(self, trainer: Any, state: TrainerState, event: Stepped) -> bool:
        trainer.trainer_state = event.fold(state, "fetch")  # the function is promised a counted batch
        try:
            due = bool(self._fn(trainer))  # type: ignore[misc]
        finally:
            trainer.trainer_state = state
        return due if self._agree is None else bool(self._agree(due))

    def _by_the_clock(self, record: Any) -> bool:
        assert self._timed is not None
        known = record is not None and record.event == Stepped.__name__
        due = record.data["validate_due"] if known else self._seconds() - self._last >= self._timed
        if self._agree is None:
            return bool(due)
        bits = self._agree(_KNOWN | _DUE_AS_RECORDED * due if known else _DUE * due)
        return bool(bits & (_DUE_AS_RECORDED if bits & _KNOWN else _DUE))

    # -- the time since the last validation ----------------------------------------------------------------

    def validated(self) -> None:
        """Hear that a validation was done."""
        if self._timed is not None:
            self._last = self._seconds()

    def waited(self) -> float:
        """Return the seconds since the last validation; 0 where they don't matter."""
        return 0.0 if self._timed is None else self._seconds() - self._last

    def go_on(self, waited: float) -> None:
        """Take over the seconds that had passed when a snapshot was taken."""
        self._last = self._seconds() - waited


__all__ = ["Due"]
