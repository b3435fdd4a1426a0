"""`Callback`: a listener with a memory. Override the moments you want to hear.

This class is the one list of moments: `Events` and the dispatch index are made from its `on_...` methods. A new moment
is one new method here, and one line where it fires.
"""

from __future__ import annotations

import inspect
from typing import Any


class Callback:
    """The base of all callbacks.

    A moment that isn't overridden costs nothing. A callback with a memory overrides `state_dict` and
    `load_state_dict` (or the reference trainer's `on_save_checkpoint` and `on_load_checkpoint`): plain data and
    tensors only, which is checked when the trainer is built, when one is added later, and when a run begins.

    Attributes:
        outside_effects: True for a callback that writes somewhere outside (a logger): after a resume it doesn't hear
            again the transitions that the dead process had announced. Others hear all and rebuild their memory.
        in_quick_pass: whether it hears of a run with `fast_dev_run`, which is to leave nothing behind; None: unless it
            has `outside_effects`.
        replays: whether a replay drives it. None: unless it hears a moment inside a step or an evaluation, or is handed
            a batch; True: yes, without those moments; False: no, since it works on more than a journal holds.
        in_rehearsal: whether it hears what `verify` and `rewind` execute again; None: as in a quick pass.
    """

    outside_effects: bool = False
    in_quick_pass: bool | None = None
    replays: bool | None = None
    in_rehearsal: bool | None = None

    @property
    def callback_name(self) -> str:
        """The key of its state in snapshots; two callbacks of one class are numbered in their order."""
        return type(self).__name__

    def state_dict(self) -> dict[str, Any]:
        """Return what must survive a resume; plain data and tensors only."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` returned."""

    def built_with(self) -> dict[str, Any]:
        """Return the settings that `run.json` keeps: plain data. One that a resume changes is said and recorded."""
        return {}

    def check_state_dict(self, trainer: Any, state: dict[str, Any], at: Any) -> None:
        """Refuse a snapshot's state that can't be gone on from, before anything of the run is changed.

        Args:
            trainer: the engine; nothing of it is restored yet.
            state: what `state_dict` returned.
            at: the state that the run will be in, with the limits of now.

        Raises:
            CallerError: it can't be used.
        """

    def on_save_checkpoint(self, trainer: Any) -> dict[str, Any]:
        """Return the state for a snapshot: `state_dict()`, unless overridden."""
        return self.state_dict()

    def on_load_checkpoint(self, trainer: Any, states: dict[str, Any]) -> None:
        """Take the state of a snapshot: `load_state_dict(states)`, unless overridden."""
        self.load_state_dict(states)

    def subscribe(self, listeners: Any) -> None:
        """Subscribe to more than moments, when it is registered: `listeners.add(Stepped, self.stepped, owner=self)`."""

    def replaying(self, replay: Any) -> None:
        """Hear that a replay begins, which has no driver and calls no `on_after_trainer_initialized`; get ready."""

    def replayed(self, replay: Any) -> None:
        """Hear that a replay has gone through its journal, which may end anywhere; give back what was opened."""

    def on_continue(self, trainer: Any) -> None:
        """Hear that a run that had ended goes on in the same object, by a second `run()`; forget what ended it."""

    # -- the moments, in the order of a run -----------------------------------------------------------------

    def on_after_trainer_initialized(self, trainer: Any, driver: Any) -> None:
        """Hear that the trainer was built."""

    def on_sanity_check_begin(self, trainer: Any) -> None:
        """Hear that the sanity check begins."""

    def on_sanity_check_end(self, trainer: Any, sanity_check_res: dict[str, Any]) -> None:
        """Hear that the sanity check ran through."""

    def on_train_begin(self, trainer: Any) -> None:
        """Hear that training begins, after the sanity check."""

    def on_train_end(self, trainer: Any) -> None:
        """Hear that training ended: by its limits, by a stop, or by an error (after `on_exception`)."""

    def on_train_epoch_begin(self, trainer: Any) -> None:
        """Hear that an epoch begins; its order is fixed, and nothing of it has been read yet."""

    def on_train_epoch_end(self, trainer: Any) -> None:
        """Hear that an epoch is counted; its validation's results are there."""

    def on_fetch_data_begin(self, trainer: Any) -> None:
        """Hear that a batch is asked for."""

    def on_fetch_data_end(self, trainer: Any) -> None:
        """Hear that a batch is in hand, or there's none left."""

    def on_train_batch_begin(self, trainer: Any, batch: Any, indices: Any = None) -> None:
        """Hear that a batch, mapped and on the device, goes to the step; `indices` are its sample ids, if known."""

    def on_train_batch_end(self, trainer: Any) -> None:
        """Hear that a batch is done and counted."""

    def on_exception(self, trainer: Any, exception: BaseException) -> None:
        """Hear that an error ended the run; it will be raised."""

    def on_save_model(self, trainer: Any) -> None:
        """Hear that a model is about to be saved."""

    def on_load_model(self, trainer: Any) -> None:
        """Hear that a model is about to be loaded."""

    def on_before_backward(self, trainer: Any, outputs: Any) -> None:
        """Hear that the outputs are mapped; the backward pass comes."""

    def on_after_backward(self, trainer: Any) -> None:
        """Hear that the gradients of this batch are added."""

    def on_before_optimizer_step(self, trainer: Any, optimizers: Any) -> None:
        """Hear that an accumulation window closes; its update comes."""

    def on_after_optimizer_step(self, trainer: Any, optimizers: Any) -> None:
        """Hear that the update is done."""

    def on_before_zero_grad(self, trainer: Any, optimizers: Any) -> None:
        """Hear that the gradients will be cleared."""

    def on_after_zero_grad(self, trainer: Any, optimizers: Any) -> None:
        """Hear that the gradients are cleared."""

    def on_validate_begin(self, trainer: Any) -> None:
        """Hear that a validation begins."""

    def on_validate_end(self, trainer: Any, results: dict[str, Any]) -> None:
        """Hear that a validation is done; `results` maps `indicator#metric#loader` to values."""

    def on_validate_batch_begin(self, trainer: Any, batch: Any) -> None:
        """Hear that an evaluation batch goes to the model."""

    def on_validate_batch_end(self, trainer: Any) -> None:
        """Hear that an evaluation batch is done."""

    def on_skipped_optimizer_step(self, trainer: Any, optimizers: Any) -> None:
        """Hear that an update was skipped: the gradient scaler found an infinity, or a listener left it out."""

    def on_stop(self, trainer: Any, reason: str) -> None:
        """Hear that the run is stopped before its end."""

    def on_after_snapshot(self, trainer: Any, path: Any) -> None:
        """Hear that a snapshot was published in this directory."""

    def on_after_resume(self, trainer: Any, report: Any) -> None:
        """Hear that the run stands where a snapshot was taken; `report` says where and what follows."""

    def on_log(self, trainer: Any, values: dict[str, Any]) -> None:
        """Hear that there are values for loggers: `values` holds the numbers that `trainer.log` was given, by name."""

    def on_notice(self, trainer: Any, text: str) -> None:
        """Hear that the run has a sentence for a person."""


def half_a_memory(callback: Callback) -> str:
    """Say what a callback lacks that saves a state and takes none back, or the other way round; "" if nothing."""
    own = type(callback)
    saves = [n for n in ("state_dict", "on_save_checkpoint") if getattr(own, n) is not getattr(Callback, n)]
    takes = [n for n in ("load_state_dict", "on_load_checkpoint") if getattr(own, n) is not getattr(Callback, n)]
    if bool(saves) == bool(takes):
        return ""
    has, lacks = (saves[0], "load_state_dict") if saves else (takes[0], "state_dict")
    return f"{own.__name__} has {has} and no {lacks}, so its memory would be lost at a resume: give it both"


_NOT_MOMENTS = ("on_save_checkpoint", "on_load_checkpoint", "on_continue")

MOMENTS: dict[str, tuple[str, ...]] = {
    name: tuple(inspect.signature(method).parameters)[2:]
    for name, method in vars(Callback).items()
    if name.startswith("on_") and name not in _NOT_MOMENTS
}
"""The name of each moment, and what its listeners are given after the trainer."""

ALIASES = {
    "on_evaluate_begin": "on_validate_begin",
    "on_evaluate_end": "on_validate_end",
    "on_before_optimizers_step": "on_before_optimizer_step",
    "on_after_optimizers_step": "on_after_optimizer_step",
}
"""Later names of the reference trainer for the same moments; a callback may override either."""
