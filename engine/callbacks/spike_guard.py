"""`SpikeGuard`: what becomes of a batch whose loss stands far above those before it."""

from __future__ import annotations

import math
import statistics
import warnings
from collections import deque
from typing import Any

from tachograph.states.errors import CallerError

from .callback import Callback
from .nan_guard import first_said, listing, name_batch, where_listed

_POLICIES = ("skip", "stop", "warn")
_SIGMA = 1.4826  # the standard deviation of a normal distribution, in median absolute deviations
_LEAST = 0.01  # of the median: losses that hardly differ make no rise of a thousandth a spike


class SpikeGuard(Callback):
    """Holds the loss of every batch against the last `window` finite ones.

    A loss is a spike where it lies more than `threshold` deviations above their median. The deviation is 1.4826 times
    their median absolute deviation, which is the standard deviation for normally distributed losses and isn't moved by
    the spikes themselves; it counts as at least a hundredth of the median. Nothing is judged before the window is full.
    Spikes enter it too, so that a loss which stays on a higher level is the usual one after a while. A loss that isn't
    finite does not, and is no spike: `NanGuard` sees to it.

    What it remembers is saved, so a resumed run judges as the straight one. On an accelerator it waits for the device
    once a batch. What a batch did to the model beside its gradients (running means, say) isn't undone.

    Of many ranks each holds its own losses against those before, and they tell each other once a batch: what is a spike
    on one is one on all.

    Args:
        policy: "skip": the update of the batch's accumulation window is left out (`Stepped.skipped`). "stop": the same,
            and the run is stopped. "warn": the update is taken, with one warning.
        window: how many losses to compare with, >= 2.
        threshold: how many deviations are too many, > 0.
        patience: with "skip" and "warn", the run is stopped at the so many-th spike in a row; None: never.

    Attributes:
        count: batches that were spikes, on whichever rank. It is saved. The journal names each, with its samples, in a
            note, and how
            `tachograph show` lists all of them.

    Raises:
        CallerError: an argument can't be used.
    """

    def __init__(
        self, policy: str = "skip", window: int = 64, threshold: float = 6.0, patience: int | None = None
    ) -> None:
        if policy not in _POLICIES:
            raise CallerError(f"policy must be one of {', '.join(_POLICIES)}, not {policy!r}")
        if type(window) is not int or window < 2:
            raise CallerError(f"window must be an integer >= 2, not {window!r}")
        if type(threshold) not in (int, float) or not threshold > 0:
            raise CallerError(f"threshold must be a number > 0, not {threshold!r}")
        if patience is not None and (type(patience) is not int or patience < 1):
            raise CallerError(f"patience must be an integer >= 1 or None, not {patience!r}")
        self.policy, self.window, self.threshold, self.patience = policy, window, threshold, patience
        self.count = 0
        self._losses: deque[float] = deque(maxlen=window)
        self._in_a_row = 0
        self._bad = ""  # the spike in the open accumulation window

    def on_after_trainer_initialized(self, trainer: Any, driver: Any) -> None:
        self._losses.clear()
        self.count, self._in_a_row, self._bad = 0, 0, ""

    def on_before_backward(self, trainer: Any, outputs: Any) -> None:
        loss = float(trainer.driver.plain(trainer.extract_loss_from_outputs(outputs)))
        what = first_said(trainer.ranks, self._judged(trainer, loss))
        if what:
            self._found(trainer, what)
        elif math.isfinite(loss):
            self._in_a_row = 0

    def _judged(self, trainer: Any, loss: float) -> str:
        """Remember a loss; say what is wrong with it, "" if it is usual."""
        if not math.isfinite(loss):
            return ""
        usual = self._above(loss)
        self._losses.append(loss)
        return "" if usual is None else f"the loss of {name_batch(trainer)} is {loss:.6g}, where {usual:.6g} is usual"

    def _above(self, loss: float) -> float | None:
        """Return the median of the losses before, if one is a spike above it."""
        if len(self._losses) < self.window:
            return None
        usual = statistics.median(self._losses)
        if loss <= usual:  # most of them; the rest of the arithmetic is for those above
            return None
        deviation = _SIGMA * statistics.median(abs(held - usual) for held in self._losses)
        return usual if loss - usual > self.threshold * max(deviation, _LEAST * abs(usual)) else None

    def _found(self, trainer: Any, what: str) -> None:
        self.count += 1
        self._in_a_row += 1
        self._bad = self._bad or what
        listed = where_listed(trainer)
        trainer.later(lambda: trainer._note(f"SpikeGuard: {what}{listing(listed)}"))
        if self.policy == "warn" and self.count == 1 and trainer.ranks.first:
            warnings.warn(f"{what}; the run goes on with it, and this isn't warned of again", stacklevel=3)
        if self.policy == "stop" or (self.patience is not None and self._in_a_row >= self.patience):
            row = f"; that makes {self._in_a_row} in a row" if self._in_a_row > 1 else ""
            trainer.stop(f"SpikeGuard: {what}{row}", on_all_ranks=True)

    def on_before_optimizer_step(self, trainer: Any, optimizers: Any) -> None:
        if self._bad and self.policy != "warn":
            trainer.skip_update()

    def on_before_zero_grad(self, trainer: Any, optimizers: Any) -> None:
        self._bad = ""

    def on_continue(self, trainer: Any) -> None:
        self._in_a_row = 0

    def built_with(self) -> dict[str, Any]:
        names = ("policy", "window", "threshold", "patience")
        return {name: getattr(self, name) for name in names}

    def state_dict(self) -> dict[str, Any]:
        """Return nothing before the first loss, so that a guard can be added to a run that had none."""
        if not self._losses:
            return {}
        return {"losses": list(self._losses), "count": self.count, "in_a_row": self._in_a_row, "bad": self._bad}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._losses = deque(state["losses"], maxlen=self.window)
        self.count, self._in_a_row, self._bad = state["count"], state["in_a_row"], state["bad"]
