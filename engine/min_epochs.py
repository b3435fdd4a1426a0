"""`MinEpochs`: has a run wait with a stop that is asked for too early; what `Trainer(min_epochs=n)` adds."""

from __future__ import annotations

from typing import Any

from tachograph.states.errors import CallerError

from .callbacks.callback import Callback


class MinEpochs(Callback):
    """Keeps a listener's wish to stop until so many epochs are done, and asks again then.

    Limits, signals and errors end a run all the same.

    Args:
        least: epochs, > 0.
    """

    def __init__(self, least: int) -> None:
        self._least = least
        self._asked = ""

    def defers(self, trainer: Any, reason: str) -> bool:
        """Say whether a stop has to wait; then the first reason is kept, and said once."""
        state = trainer.trainer_state
        if state.cur_epoch_idx + (state.state == "epoch_end") >= self._least:
            return False
        if not self._asked:
            self._asked = reason
            trainer.later(lambda: trainer.say(f"min_epochs={self._least}: the run goes on until then ({reason})"))
        return True

    def on_train_epoch_end(self, trainer: Any) -> None:
        self._ask(trainer)

    def on_after_resume(self, trainer: Any, report: Any) -> None:
        self._ask(trainer)  # fewer epochs may be asked for now

    def _ask(self, trainer: Any) -> None:
        state = trainer.trainer_state
        if self._asked and state.cur_epoch_idx >= self._least and state.state not in trainer.machine.final:
            reason, self._asked = self._asked, ""
            trainer.stop(reason)

    def on_continue(self, trainer: Any) -> None:
        self._asked = ""

    def built_with(self) -> dict[str, Any]:
        return {"min_epochs": self._least}

    def state_dict(self) -> dict[str, Any]:
        return {"asked": self._asked} if self._asked else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._asked = state["asked"]


def min_epochs_of(value: Any, n_epochs: int | None) -> list[MinEpochs]:
    """Return the callback that `min_epochs` asks for, if it does.

    Args:
        value: what the trainer was given.
        n_epochs: its limit in epochs; None: none.

    Raises:
        CallerError: it isn't a number of epochs, or more than the limit.
    """
    if type(value) is not int or value < 0:
        raise CallerError(f"min_epochs must be an integer >= 0, not {value!r}")
    if n_epochs is not None and value > n_epochs:
        raise CallerError(f"min_epochs={value} is more than n_epochs={n_epochs}: raise n_epochs, or lower min_epochs")
    return [MinEpochs(value)] if value else []
