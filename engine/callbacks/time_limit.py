"""`TimeLimit`: ends a run when its time is up."""

from __future__ import annotations

from typing import Any

from tachograph.engine import arguments
from tachograph.states.errors import CallerError

from .callback import Callback

_AT = ("batch", "epoch")


class TimeLimit(Callback):
    """Stops the run after the batch, or the epoch, in which its time is up.

    As with `Trainer(max_time=...)` it is a total: the seconds in which the run was at work, in all its lives. A run
    whose time is up trains nothing when it is resumed, and with a larger limit goes on where it stood.

    Args:
        limit: seconds, "90s", "10min", "2h", or a timedelta.
        at: "batch": the run ends after the batch; "epoch": it ends with the epoch, its validation included.

    Raises:
        CallerError: an argument can't be used.
    """

    replays = False
    in_rehearsal = False  # what the clock decided is in the record

    def __init__(self, limit: Any, at: str = "batch") -> None:
        seconds = arguments.duration(limit, "limit")
        if seconds is None:
            raise CallerError("limit must be seconds > 0 or a time such as '2h', not None: leave TimeLimit out")
        if at not in _AT:
            raise CallerError(f"at must be one of {', '.join(_AT)}, not {at!r}")
        self.seconds = seconds
        self.at = at
        moment = "on_train_batch_end" if at == "batch" else "on_train_epoch_end"
        setattr(self, moment, self._look)  # only the one moment is heard

    def _look(self, trainer: Any) -> None:
        if trainer.seconds >= self.seconds:
            trainer.stop(f"TimeLimit: {self.seconds:g} seconds are over")

    def on_after_resume(self, trainer: Any, report: Any) -> None:
        self._begin(trainer)

    def on_continue(self, trainer: Any) -> None:
        self._begin(trainer)

    def _begin(self, trainer: Any) -> None:
        if self.at == "batch" or trainer.trainer_state.state == "epoch_begin":
            self._look(trainer)
