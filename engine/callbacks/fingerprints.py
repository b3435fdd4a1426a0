"""`Fingerprints`: records, every so many updates, what went into one and what came of it, bit for bit."""

from __future__ import annotations

from typing import Any

from tachograph.engine import arguments
from tachograph.engine.events import Events
from tachograph.states import Exhausted, Fetched, Stepped

from .callback import Callback

_LAST = -(1 << 30)  # a priority after everyone else's
_AFTER = ("parameters", "buffers", "optimizers", "scaler")


class Fingerprints(Callback):
    """Takes fingerprints of every n-th update, and writes them into the journal beside its transition.

    Of two runs they say which part differed first: the batch, the gradients, the parameters, the buffers, the
    optimizers or the gradient scaler. A fingerprint is 16 hex digits: equal for equal bits, on any device and with any
    number of threads. It is taken of each micro-batch of the accumulation window, as it goes to the step; of the
    gradients as the optimizer is given them, after all other listeners (clipped, say); of all else after the update,
    when everyone has heard of it, as a snapshot there would have it. The update may have been skipped. Such a one
    isn't counted, so the next one is taken too.

    The history of a run is the same with this callback and without it, and it may be added or left out at a resume. A
    window that turns out to end with its epoch has no batch in hand. With a loop of your own (`train_batch_loop`), the
    machine knows an epoch as one transition: then one is taken at its end, with the batch and the gradients of the last
    update that was due.

    On an accelerator the device is waited for, for those updates alone. Each rank tells of what it holds.

    Args:
        every: of how many updates one is taken, >= 1.

    Attributes:
        taken: the last ones: "at", the number of the transition; and the digits or None of "batch", "gradients",
            "parameters", "buffers", "optimizers" and "scaler", of which each follows from those before. None before the
            first.

    Raises:
        CallerError: `every` can't be used.
    """

    replays = False  # a journal holds no tensors

    def __init__(self, every: int = 100) -> None:
        self._every = arguments.count(every, "every")
        self.taken: dict[str, Any] | None = None
        self._batch: str | None = None  # in a window that is due
        self._update: dict[str, Any] | None = None  # what went into the last one that was due, until it is taken

    def subscribe(self, listeners: Any) -> None:
        listeners.add(Fetched, self._fetched, priority=_LAST, owner=self)
        listeners.add(Events.on_train_batch_begin, self._begun_by_hand, priority=_LAST, owner=self)
        listeners.add(Events.on_before_optimizer_step, self._before_update, priority=_LAST, owner=self)
        listeners.add(Stepped, self._stepped, priority=_LAST, owner=self)
        listeners.add(Exhausted, self._exhausted, priority=_LAST, owner=self)

    def on_after_trainer_initialized(self, trainer: Any, driver: Any) -> None:
        self.taken = self._batch = self._update = None

    def on_after_resume(self, trainer: Any, report: Any) -> None:
        """Look at the batch in hand, of whose beginning only the process before has heard."""
        self._batch = self._update = None
        if trainer.trainer_state.state == "step" and trainer.batch is not None:
            self._fetched(trainer)

    @property
    def inputs(self) -> dict[str, Any]:
        """What is known of the update in work: the digests of "batch" and "gradients", or None."""
        return self._update or {"batch": self._batch, "gradients": None}

    def _fetched(self, trainer: Any) -> None:
        due = self._is_due(trainer.trainer_state.optimizer_steps)
        self._batch = trainer.driver.fingerprint_of(trainer.batch) if due else None

    def _begun_by_hand(self, trainer: Any, batch: Any, indices: Any = None) -> None:
        if trainer.train_batch_loop is not None:
            due = self._is_due(trainer.trainer_state.optimizer_steps)
            self._batch = trainer.driver.fingerprint_of(batch) if due else None

    def _before_update(self, trainer: Any, optimizers: Any) -> None:
        if self._is_due(trainer.trainer_state.optimizer_steps):
            gradients = trainer.driver.fingerprints(["gradients"]).get("gradients")
            self._update = {"batch": self._batch, "gradients": gradients}

    def _stepped(self, trainer: Any) -> None:
        state = trainer.trainer_state
        if trainer.train_batch_loop is not None:  # its epoch is no transition yet
            return
        if state.accumulated:
            self._take_batch(trainer)
            return
        if self._is_due(state.optimizer_steps - (not trainer.step_skipped)):
            # a step of the user's own may have taken its update unheard
            self._take(trainer, self.inputs)

    def _exhausted(self, trainer: Any) -> None:
        if self._update is not None:
            self._take(trainer, self._update)

    def _take_batch(self, trainer: Any) -> None:
        """Tell of a micro-batch that closes no window: nothing else has come of it yet."""
        if self._batch is not None:
            self.taken = {"at": trainer.trainer_state.seq, "batch": self._batch, "gradients": None}
            self.taken |= dict.fromkeys(_AFTER)
            self._batch = None
            if trainer._recorder is not None:
                trainer._recorder.side("fingerprint", **self.taken)

    def _take(self, trainer: Any, before: dict[str, Any]) -> None:
        found = trainer.driver.fingerprints(_AFTER)
        after = {part: found.get(part) for part in _AFTER}
        self.taken = {"at": trainer.trainer_state.seq, **before, **after}
        self._batch = self._update = None
        if trainer._recorder is not None:
            trainer._recorder.side("fingerprint", **self.taken)

    def _is_due(self, updates: int) -> bool:
        return (updates + 1) % self._every == 0
