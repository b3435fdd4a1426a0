"""`NanGuard`: says what becomes of an update whose loss or gradients are no finite numbers."""

from __future__ import annotations

import warnings
from typing import Any

from tachograph.drivers.ranks import Ranks
from tachograph.engine.losses import FEW, short
from tachograph.states.errors import CallerError, TachographError, note

from .callback import Callback

_POLICIES = ("raise", "skip", "stop", "continue")
_NOTES = 100
"""Notes of one life of a run; a model that is full of NaN makes one a batch."""


class NotFinite(TachographError, FloatingPointError):
    """A loss or a gradient is NaN or infinite; the message names the batch and its samples."""


class NanGuard(Callback):
    """Looks at the loss of every batch, and at the gradients of every update.

    Whatever the policy, the journal has the true loss; where the run goes on, a note there names the batch and its
    samples, the first hundred times. Where a gradient scaler is at work, it alone sees to the gradients, since it makes
    them overflow now and then. On an accelerator this waits for the device once a batch, and once an update. What a
    batch did to the model beside its gradients (running means, say) isn't undone.

    Of many ranks each looks at its own losses. With "raise" all end with the error of the one that found it; with
    "skip" and "stop" they ask each other once an update, and leave out the same ones.

    Args:
        policy: "raise": the run fails before the batch has done anything, with an error that names it. "skip": the
            update of its accumulation window is left out (`Stepped.skipped`), and counted. "stop": the same, and the
            run is stopped. "continue": it is counted, with one warning, and the update is taken.

    Attributes:
        count: updates that were left out; with "continue", this rank's batches and updates that weren't finite. It is
            saved.

    Raises:
        CallerError: there is no such policy.
    """

    def __init__(self, policy: str = "raise") -> None:
        if policy not in _POLICIES:
            raise CallerError(f"policy must be one of {', '.join(_POLICIES)}, not {policy!r}")
        self.policy = policy
        self.count = 0
        self._bad = ""  # what is wrong with the open accumulation window
        self._noted = 0

    def on_after_trainer_initialized(self, trainer: Any, driver: Any) -> None:
        self.count, self._bad, self._noted = 0, "", 0

    def on_before_backward(self, trainer: Any, outputs: Any) -> None:
        loss = trainer.extract_loss_from_outputs(outputs)
        if not trainer.driver.is_finite(loss):
            self._found(trainer, f"the loss of {name_batch(trainer)} is {trainer.driver.plain(loss)}")

    def on_before_optimizer_step(self, trainer: Any, optimizers: Any) -> None:
        leaves_out = self.policy in ("skip", "stop")
        if leaves_out:
            self._bad = first_said(trainer.ranks, self._bad)
        finite = trainer.driver.gradients_are_finite()  # ranks that hold a share of them each ask together
        if not self._bad and not finite:
            self._found(trainer, f"the gradients aren't finite after {name_batch(trainer)}")
        if self._bad and leaves_out:
            self.count += 1
            trainer.skip_update()
            if self.policy == "stop":
                trainer.stop(f"NanGuard: {self._bad}", on_all_ranks=True)

    def on_before_zero_grad(self, trainer: Any, optimizers: Any) -> None:
        self._bad = ""

    def _found(self, trainer: Any, what: str) -> None:
        listed = where_listed(trainer)
        if self.policy == "raise":
            error = NotFinite(what)
            if listed and trainer.run_dir is not None:  # no part of the message: the record of equal runs is equal
                note(error, f"`tachograph show {trainer.run_dir} {listed}` lists the samples")
            raise error
        self._bad = self._bad or what
        if self._noted < _NOTES:
            self._noted += 1
            trainer.later(lambda: trainer._note(f"NanGuard: {what}{listing(listed)}"))
        if self.policy == "continue":
            self.count += 1
            if self.count == 1:
                warnings.warn(f"{what}; the run goes on with it, and this isn't said again", stacklevel=3)

    def built_with(self) -> dict[str, Any]:
        return {"policy": self.policy}

    def state_dict(self) -> dict[str, Any]:
        """Return nothing where nothing was found, so that a guard can be added to a run that had none."""
        return {"count": self.count, "bad": self._bad} if self.count or self._bad else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count, self._bad = state["count"], state["bad"]


def name_batch(trainer: Any) -> str:
    """Name the batch in work as a person would look for it."""
    state, ranks = trainer.trainer_state, trainer.ranks
    samples = "" if trainer.batch_indices is None else f", samples {short(trainer.batch_indices)}"
    rank = f", rank {ranks.rank}" if ranks.world_size > 1 else ""
    return (
        f"batch {state.global_forward_batches + 1} of the run "
        f"(epoch {state.cur_epoch_idx}, batch {state.batch_idx_in_epoch}{samples}{rank})"
    )


def listing(options: str) -> str:
    """Say in a note which command lists a batch's samples."""
    return f" (tachograph show RUN {options})" if options else ""


def where_listed(trainer: Any) -> str:
    """Return the options of `tachograph show RUN` that list the samples of the batch in work, if `name_batch` doesn't.

    They name the transition that brought the batch; "" where no samples are known, or few.
    """
    ids = trainer.batch_indices
    return "" if ids is None or len(ids) <= FEW else f"--at {trainer.trainer_state.seq} --samples"


def first_said(ranks: Ranks, text: str) -> str:
    """Return the text of the lowest rank that has something to say; "" if none has. All ranks ask."""
    if not ranks.agree(bool(text)):
        return ""
    return next(filter(None, ranks.gather(text)), "")
