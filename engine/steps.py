"""The work of *step*, and the helpers it is made of, which a user's own step or loop calls too.

`Steps` is the part of `Trainer` that knows accumulation windows: what a loss is divided by, which batch closes a
window, what was skipped, and what is measured. Everything with tensors is the driver's.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NoReturn

import attrs

from tachograph.drivers import Driver
from tachograph.states import Event, Stepped, TrainerState, maker
from tachograph.states.errors import CallerError
from tachograph.states.step import window_size

from .custom_loop import CustomLoop
from .due import Due
from .evaluator import Evaluator
from .legality import Check
from .listeners import Listeners
from .losses import backward, check_logged, extract_loss, total
from .weighting import Weighting

_stepped = maker(Stepped, "loss", "lr", "samples", "rng", "closed", "skipped", "late")


class Steps:
    """What a trainer does with one batch.

    Attributes:
        accumulation_steps: micro-batches in a full window.
        last_loss: the loss of the last step that has been measured; None before the first.
        step_skipped: the last update was skipped, by the gradient scaler or by a listener, or since nothing in its
            window weighed anything.
    """

    # what the other parts of a trainer bring
    driver: Driver | None
    listeners: Listeners
    evaluator: Evaluator | None
    trainer_state: Any
    train_dataloader: Any
    batch: Any
    batch_indices: Any
    _hear_inside: Callable[..., None]
    _output_mapping: Callable[[Any], Any] | None
    _due: Due
    _recorded: Callable[[int], Any]
    _step_fn: Callable[[Any, Any], Any]
    _own_step: bool

    accumulation_steps: int = 1
    last_loss: float | None = None
    step_skipped: bool = False
    _check: Check | None = None
    _custom_loop: CustomLoop | None = None
    _weighting: Weighting | None = None
    _given: Any = None  # the batch that `train_step` got last
    _losses: list[Any]
    _measured: bool = True  # what a step measured is recorded
    _rates: Sequence[float] = ()  # that the update of the batch in work used
    _divisor: int = 1
    _closes: bool = True
    _tail: str = "flush"
    _skips_batch: bool = False  # the next step passes over its batch
    _leave_out: bool | None = None  # None: it can't be asked for now

    @property
    def train_batch_loop(self) -> Any:
        """A loop of the user's own over one epoch, in place of fetch and step (see `custom_loop`); None without one."""
        return None if self._custom_loop is None else self._custom_loop.loop

    @train_batch_loop.setter
    def train_batch_loop(self, loop: Any) -> None:
        self._custom_loop = None if loop is None else CustomLoop(loop)
        if loop is not None and self._own_step:
            warnings.warn("train_batch_loop is given, so batch_step_fn isn't called", stacklevel=2)

    def on_train_batch_begin(self, batch: Any, indices: Any = None) -> None:
        """Have the listeners of the moment hear it; for a loop of the user's own."""
        self._hear_inside("on_train_batch_begin", batch, indices)

    def on_train_batch_end(self) -> None:
        """Have the listeners of the moment hear it; for a loop of the user's own."""
        self._hear_inside("on_train_batch_end")

    def train_step(self, batch: Any) -> Any:
        """Run the model on a batch, under the precision, and map its outputs."""
        if self._weighting is not None:
            self._given = batch
        outputs = self.driver.train_step(batch)  # type: ignore[union-attr]
        return outputs if self._output_mapping is None else self._output_mapping(outputs)

    def backward(self, outputs: Any) -> None:
        """Add the gradients of the outputs' loss, divided by the micro-batches in the window, or weighed.

        Raises:
            LossFault: the outputs hold no loss, or one that can have no gradients.
            CallerError: the outputs or the batch have no weight, though the losses are weighed.
        """
        inside = self.listeners.inside
        if self._custom_loop is not None:
            self._divisor, self._closes = self.accumulation_steps, self._custom_loop.closes(self)
        if "on_before_backward" in inside:
            self._hear_inside("on_before_backward", outputs)
        loss = extract_loss(outputs)
        self._losses.append(loss)
        if self._weighting is None:
            backward(self.driver, loss, self._divisor)  # type: ignore[arg-type]
        else:
            self._backward_weighed(self._weighting, outputs, loss)
        if "on_after_backward" in inside:
            self._hear_inside("on_after_backward")

    def _backward_weighed(self, weighting: Weighting, outputs: Any, loss: Any) -> None:
        """Add the gradients of a loss by its weight.

        A batch without any weight is passed over where no other rank counts on its backward pass: the loss of no target
        is often no number, nor are its gradients.
        """
        driver, given = self.driver, self.batch if self._given is None else self._given
        weight = weighting.add(driver, outputs, given, given is self.batch, self.accumulation_steps)  # type: ignore[arg-type]
        passed_over = isinstance(weight, (int, float)) and weight == 0
        if not passed_over or self._is_counted_on():
            backward(driver, loss, 1, weight)  # type: ignore[arg-type]

    def _is_counted_on(self) -> bool:
        """Say whether other ranks wait for this one's backward pass of the batch in work."""
        driver = self.driver
        return driver.world_size > 1 and (self._closes or driver.keeps_step)  # type: ignore[union-attr]

    def step(self) -> None:
        """Take the optimizer step, if this batch closes the accumulation window."""
        if not self._closes:
            return
        inside, driver = self.listeners.inside, self.driver
        left_out = self._weighting is not None and not self._weighting.close(driver)  # type: ignore[arg-type]
        if "on_before_optimizer_step" in inside:
            driver.unscale()  # type: ignore[union-attr]
            self._leave_out = left_out
            self._hear_inside("on_before_optimizer_step", driver.optimizers)  # type: ignore[union-attr]
            left_out, self._leave_out = bool(self._leave_out), None
        if self._measured or self.listeners.hear_events:  # now, since a schedule may move right after the update
            self._rates = driver.learning_rates()  # type: ignore[union-attr]
        if left_out:
            driver.leave_out_step()  # type: ignore[union-attr]
        self.step_skipped = left_out or not driver.optimizer_step()  # type: ignore[union-attr]
        if self._custom_loop is not None:
            self._custom_loop.count_update(self)
        if self.step_skipped:
            self._hear_inside("on_skipped_optimizer_step", driver.optimizers)  # type: ignore[union-attr]
        if "on_after_optimizer_step" in inside:
            self._hear_inside("on_after_optimizer_step", driver.optimizers)  # type: ignore[union-attr]

    def skip_update(self) -> None:
        """Leave out the optimizer step that is about to be taken: it counts as skipped, and no schedule moves.

        All ranks call it for an update, or none does: weights that one of them moves alone are no longer those of all.

        Raises:
            CallerError: it isn't called while `on_before_optimizer_step` is heard.
        """
        if self._leave_out is None:
            raise CallerError("skip_update() is for listeners of on_before_optimizer_step")
        self._leave_out = True

    @staticmethod
    def _pass_over(trainer: Any, batch: Any) -> None:
        """Do nothing with the batch in work; close its window if it is the last of it."""
        if trainer._closes and trainer.trainer_state.accumulated == 0:
            trainer.driver.leave_out_step()
            trainer.step_skipped = True
            return
        trainer.step()
        trainer.zero_grad()

    def zero_grad(self) -> None:
        """Clear the gradients, if this batch closes the accumulation window."""
        if not self._closes:
            return
        inside, driver = self.listeners.inside, self.driver
        if "on_before_zero_grad" in inside:
            self._hear_inside("on_before_zero_grad", driver.optimizers)  # type: ignore[union-attr]
        driver.zero_grad()  # type: ignore[union-attr]
        if self._weighting is not None:
            self._weighting.clear()
        if "on_after_zero_grad" in inside:
            self._hear_inside("on_after_zero_grad", driver.optimizers)  # type: ignore[union-attr]

    def log(self, values: Mapping[str, Any] | None = None, *wrong: NoReturn, **more: Any) -> None:
        """Hand values to the loggers, for the update in work or, between two batches, the last one.

        They are read where somebody listens to `on_log`, and only there: a tensor on an accelerator is waited for. The
        journal doesn't keep them, so they may differ between equal runs (a rate, a temperature).

        Args:
            values: name -> number, or tensor of one element.
            wrong: nothing; what stands here is answered.
            more: the same, as keyword arguments.

        Raises:
            CallerError: a name isn't a string, or a value no number.
        """
        if wrong or not (values is None or isinstance(values, Mapping)):
            raise CallerError(f"log takes x=1 or {{'x': 1}}, not {', '.join(map(repr, (values, *wrong)))}")
        given = {**(values or {}), **more}
        check_logged(given, self.driver.is_tensor)  # type: ignore[union-attr]
        if "on_log" in self.listeners.inside:
            self._hear_inside("on_log", self.driver.plain(given))  # type: ignore[union-attr]

    def move_data_to_device(self, batch: Any) -> Any:
        """Move a batch to the device."""
        return self.driver.to_device(batch)  # type: ignore[union-attr]

    def get_no_sync_context(self) -> AbstractContextManager[Any]:
        """Return what the forward and the backward pass of the batch in work run in; for a loop of the user's own.

        Inside an accumulation window the ranks exchange no gradients; the batch that closes it exchanges those of all.
        A step of the user's own runs in it as it is.
        """
        if self._custom_loop is not None:
            self._closes = self._custom_loop.closes(self)
        driver = self.driver
        return nullcontext() if self._closes or driver.world_size == 1 else driver.no_sync()  # type: ignore[union-attr]

    def extract_loss_from_outputs(self, outputs: Any) -> Any:
        """Return the loss in a step's outputs; see `extract_loss`."""
        return extract_loss(outputs)

    def _late(self) -> Sequence[Any]:
        late = self.driver.measured_late()  # type: ignore[union-attr]
        if not late:
            return ()
        self.last_loss = late[-1][1]
        return late

    def _step(self, state: TrainerState) -> Event:
        driver = self.driver
        if self.accumulation_steps != 1:
            self._place_in_window(state)
        self.step_skipped = False
        self._rates = ()
        losses = self._losses = []
        step_fn = self._step_fn
        if self._skips_batch:
            step_fn, self._skips_batch = Steps._pass_over, False
        if self._closes or driver.world_size == 1:  # type: ignore[union-attr]
            step_fn(self, self.batch)
        else:
            with driver.no_sync():  # type: ignore[union-attr]
                step_fn(self, self.batch)
        if self._check is not None:
            self._check = self._check.after_step()
        self._losses = []
        loss, late = driver.measure(losses[0] if len(losses) == 1 else total(losses), state.seq + 1)  # type: ignore[union-attr]
        self.last_loss = late[1] if late else loss
        if self._measured or self.listeners.hear_events:
            event = _stepped(
                loss,
                self._rates or driver.learning_rates(),  # type: ignore[union-attr]
                driver.batch_samples,  # type: ignore[union-attr]
                driver.rng_digest(),  # type: ignore[union-attr]
                self._closes,
                self.step_skipped,
                late,
            )
        else:
            event = _stepped(loss, (), driver.batch_samples, 0, self._closes, self.step_skipped, late)  # type: ignore[union-attr]
        if self.evaluator is not None and self._due.after_step(self, state, event, self._recorded):
            event = attrs.evolve(event, validate_due=True)
        self.batch = self.batch_indices = self._given = None
        return event

    def _place_in_window(self, state: TrainerState) -> None:
        """Find what the loss of the batch in work is divided by, and whether it closes its window."""
        self._divisor = window_size(state, self.accumulation_steps, self._tail)
        self._closes = state.accumulated + 1 >= self._divisor

    def _flush(self, state: TrainerState) -> None:
        """Take the update of an open window that turned out to end here.

        Its micro-batches were worked off as those of a longer one: divided by its length, and without an exchange of
        gradients, since a batch that was still to come would have made it.
        """
        driver = self.driver
        driver.exchange_gradients()  # type: ignore[union-attr]
        if self._weighting is None:
            driver.scale_gradients(window_size(state, self.accumulation_steps) / state.accumulated)  # type: ignore[union-attr]
        self.step()

    def _window(self) -> dict[str, Any]:
        """Return what goes with the gradients of the open window."""
        return {} if self._weighting is None else {"window": self._weighting.state(self.driver)}  # type: ignore[arg-type]

    def _take_window(self, held: Mapping[str, Any]) -> None:
        """Take back what `_window` returned; with `ranks`, what it returned on each of another number of ranks."""
        weighting, window = self._weighting, held.get("window")
        if weighting is None or window is None:
            return
        if "ranks" in held:
            weighting.carry(self.driver, [own["window"] for own in held["ranks"]], window["unit"])  # type: ignore[arg-type]
        else:
            weighting.load(window)

    def _lengthen(self, before: int, now: int) -> None:
        """Have the gradients of the open window divided by another length."""
        if self._weighting is None and before != now:
            self.driver.scale_gradients(before / now)  # type: ignore[union-attr]

    @staticmethod
    def _default_step(trainer: Any, batch: Any) -> None:
        outputs = trainer.train_step(batch)
        trainer.backward(outputs)
        trainer.step()
        trainer.zero_grad()
