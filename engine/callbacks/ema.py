"""`EMA`: keeps an average of the weights over many updates, and evaluates with it.

The average is in the model only while an evaluation is at work, and inside `applied`. A snapshot is taken between two
transitions, so it holds the weights that are trained in the model's place, and the average in this callback's.

An average stands for the weights that it is one of, and for no others. So when training has ended, it is noted which
weights are left in the model. What somebody puts there in their place (`LoadBestModel` does, `trainer.load_model` by
hand) is evaluated as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from tachograph.drivers import Driver
from tachograph.states.errors import CallerError

from ..events import Events
from .callback import Callback

_FIRST = 1 << 30
_BUFFERS = ("copy", "average")


class EMA(Callback):
    """Averages the weights after each update that was taken: average = decay * average + (1 - decay) * weights.

    It is saved with every snapshot, and costs the memory of the weights once more. A skipped update doesn't count.

    Args:
        decay: what the average keeps of itself, from 0 to 1.
        warmup: n > 0 begins with a smaller decay, so that the first weights are soon forgotten: that of the k-th
            average is (1 + k) / (n + k), where that is less than `decay`. 10 is usual; 0 means none.
        update_every: of how many updates the weights of one are taken.
        start_at: the updates to let pass before the first is taken; until then evaluations use the trained weights.
        buffers: "copy": an evaluation uses the buffers (running means, say) that training has; "average": those in
            floating point are averaged too.
        evaluate: evaluate with the average, in the sanity check, in validations and in `trainer.validate()`; of
            several averages, one at most. When no run is under way and other weights were put into the model, these
            are evaluated.

    Attributes:
        count: how many updates' weights are in the average.

    Raises:
        CallerError: an argument can't be used; or, when the trainer is built, the driver keeps no averages, or another
            `EMA` is evaluated with too.
    """

    replays = False

    def __init__(
        self,
        decay: float = 0.999,
        warmup: int = 0,
        update_every: int = 1,
        start_at: int = 0,
        buffers: str = "copy",
        evaluate: bool = True,
    ) -> None:
        if type(decay) not in (int, float) or not 0 <= decay <= 1:
            raise CallerError(f"decay must be a number from 0 to 1, not {decay!r}")
        for name, value, least in (("warmup", warmup, 0), ("update_every", update_every, 1), ("start_at", start_at, 0)):
            if type(value) is not int or value < least:
                raise CallerError(f"{name} must be an integer >= {least}, not {value!r}")
        if buffers not in _BUFFERS:
            raise CallerError(f"buffers must be one of {', '.join(_BUFFERS)}, not {buffers!r}")
        self.decay = float(decay)
        self.count = 0
        self._warmup, self._every, self._start, self._buffers = warmup, update_every, start_at, buffers
        self._evaluate = evaluate
        self._updates = 0
        self._trainer: Any = None
        self._held: Any = None

    def on_after_trainer_initialized(self, trainer: Any, driver: Driver) -> None:
        if self._evaluate and any(other._evaluate for other in self._others(trainer)):
            raise CallerError(
                "two EMA would each evaluate with an average of its own: give evaluate=False to all but one, and "
                "evaluate inside `with ema.applied():` for another"
            )
        self._trainer, self._updates, self.count = trainer, 0, 0
        held = self._held = driver.averages(buffers=self._buffers == "average")
        if self._evaluate:
            trainer.within.append(lambda: self._evaluated(trainer, held))
            # before anybody who hears of the end puts other weights into the model
            trainer.listeners.add(Events.on_train_end, self._leave, priority=_FIRST, owner=self)

    def _others(self, trainer: Any) -> list[EMA]:
        return [c for c in trainer.listeners.callbacks.values() if isinstance(c, EMA) and c is not self]

    @contextmanager
    def _evaluated(self, trainer: Any, held: Any) -> Iterator[None]:
        """Run an evaluation with the average in the model, unless others than the trained weights are in it."""
        by_hand = any(other._held is not None and other._held.are_applied for other in self._others(trainer))
        with ExitStack() as stack:
            if held.are_applied or (not by_hand and held.are_in_place):
                stack.enter_context(held.applied())
            yield

    def _leave(self, trainer: Any) -> None:
        if self.count:
            self._held.leave()

    def on_train_begin(self, trainer: Any) -> None:
        self._go_on()

    def on_after_resume(self, trainer: Any, report: Any) -> None:
        self._go_on()

    def on_continue(self, trainer: Any) -> None:
        self._go_on()

    def _go_on(self) -> None:
        self._refuse_applied("train")
        self._held.take_up()

    def on_after_optimizer_step(self, trainer: Any, optimizers: Any) -> None:
        if trainer.step_skipped:
            return
        self._updates += 1
        if self._updates > self._start and (self._updates - self._start - 1) % self._every == 0:
            self._held.add(self._decay_now() if self.count else None)
            self.count += 1

    def _decay_now(self) -> float:
        if not self._warmup:
            return self.decay
        return min(self.decay, (1 + self.count) / (self._warmup + self.count))

    @contextmanager
    def applied(self, trainer: Any = None) -> Iterator[None]:
        """Run the body with the average in the model; before there is one, with the weights as they are.

        Where `LoadBestModel` has left the best weights in the model, the average takes the place of those that were
        trained, and has their buffers; the best ones come back.

        Args:
            trainer: whose model; None means the trainer that this callback was given to.

        Raises:
            CallerError: this callback belongs to another trainer, or to none.
        """
        if self._trainer is None or trainer not in (None, self._trainer):
            raise CallerError("EMA.applied: this callback isn't one of that trainer's callbacks")
        with ExitStack() as stack:
            for entered in () if self._held.are_applied else self._trainer.as_trained:
                stack.enter_context(entered())
            stack.enter_context(self._held.applied())
            yield

    def save_model(self, target: Any) -> None:
        """Write the model with the averaged weights, to be read with `load_model` or `torch.load(weights_only=True)`.

        Args:
            target: what `trainer.save_model` takes: a path, a folder, or an open binary file.

        Raises:
            CallerError: there is no average yet.
        """
        if not self.count:
            raise CallerError("EMA.save_model: there is no average yet, since no update was taken into it")
        with self.applied():
            self._trainer.save_model(target)

    def _refuse_applied(self, what: str) -> None:
        if self._held.are_applied:
            raise CallerError(f"the averaged weights are in the model, and can't {what}: leave EMA.applied() first")

    def built_with(self) -> dict[str, Any]:
        return {
            "decay": self.decay,
            "warmup": self._warmup,
            "update_every": self._every,
            "start_at": self._start,
            "buffers": self._buffers,
            "evaluate": self._evaluate,
        }

    def state_dict(self) -> dict[str, Any]:
        """Return nothing before the first update, so that a callback can be added to a run that had none."""
        if not self._updates:
            return {}
        self._refuse_applied("be saved as the average")
        return {"updates": self._updates, "count": self.count, "average": self._held.state()}

    def check_state_dict(self, trainer: Any, state: dict[str, Any], at: Any) -> None:
        self._refuse_applied("be gone on with")
        fault = self._held.fault(state["average"])
        if fault:
            raise CallerError(
                f"the saved average of EMA doesn't fit this model: {fault}. Build both as they were, or start a new run"
            )

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._updates, self.count = state["updates"], state["count"]
        self._held.load(state["average"])
