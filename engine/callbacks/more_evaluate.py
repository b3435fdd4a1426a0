"""`MoreEvaluate`: evaluates on other data, or with other metrics, in a rhythm of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import attrs

from tachograph.states import Exhausted, Stepped
from tachograph.states.cadence import Cadence, Seconds, due_after_step, due_at_epoch_end
from tachograph.states.errors import CallerError

from .. import arguments
from ..evaluator import Evaluator
from .callback import Callback
from .results_monitor import Asked, ResultsMonitor, check_validates
from .saver import owner_of
from .top_k import TopkSaver


class MoreEvaluate(Callback):
    """Runs a second evaluator: every so often, or whenever the trainer's own results are better than ever.

    Training doesn't notice it, by no bit. Its results go to the loggers through `trainer.log`, under their names. An
    evaluation that a signal interrupts is done when the run goes on; one that a crash had cut off is done again. Of
    many ranks it is due on all where a clock or a function says so on one, for which they ask each other after every
    batch.

    Args:
        dataloaders: what it evaluates on; see `Evaluator`.
        metrics: a dict name -> metric.
        evaluate_every: in the forms of `Trainer(validate_every=...)`; -1: at each epoch's end.
        watch_monitor: evaluate after each of the trainer's validations where this is better than ever; in place of
            `evaluate_every`.
        watch_monitor_larger_better: of it, a larger value is the better one; None takes the trainer's setting.
        evaluate_fn: the name of a model's method.
        num_eval_sanity_batch: batches of each loader to try it with when training begins; 0 for none, -1 for all.
        topk: save what is among the n best of these results; -1 saves every one, 0 none.
        topk_monitor: what is good: a key of these results, `f(results) -> float or None`, or a `Monitor`.
        topk_larger_better: a larger value is the better one.
        folder: where a folder for the saves of each run is made; None: `<run_dir>/checkpoints-MoreEvaluate`.
        only_state_dict: True, see `trainer.save_model`.
        save_object: "model", "weights" or "trainer", see `Checkpoint`.
        model_save_fn: `f(folder)`, writes the model in a way of your own.
        save_evaluate_results: put the results into each save.
        save_kwargs: any of the five above, as a dict.
        evaluator_kw: further arguments of `Evaluator`.

    Attributes:
        evaluator: the second one; None until the trainer is built.
        results: of the last evaluation; {} before the first.
        count: evaluations so far.

    Raises:
        CallerError: an argument can't be used.
    """

    replays = False
    in_quick_pass = False

    def __init__(
        self,
        dataloaders: Any,
        metrics: Mapping[str, Any],
        evaluate_every: int | str | Sequence[Any] | Callable[..., bool] | None = -1,
        watch_monitor: Asked = None,
        watch_monitor_larger_better: bool | None = None,
        evaluate_fn: str | None = None,
        num_eval_sanity_batch: int = 2,
        topk: int = 0,
        topk_monitor: Asked = None,
        topk_larger_better: bool | None = None,
        folder: str | Path | None = None,
        only_state_dict: bool = True,
        save_object: str = "model",
        model_save_fn: Callable[[Any], Any] | None = None,
        save_evaluate_results: bool = True,
        save_kwargs: Mapping[str, Any] | None = None,
        **evaluator_kw: Any,
    ) -> None:
        if watch_monitor is not None and evaluate_every not in (None, -1):
            raise CallerError("evaluate_every and watch_monitor exclude each other: give one")
        if watch_monitor is None and evaluate_every is None:
            raise CallerError("MoreEvaluate evaluates when? Give evaluate_every or watch_monitor")
        if num_eval_sanity_batch != 0:
            arguments.batches(num_eval_sanity_batch, "num_eval_sanity_batch")
        watched = ResultsMonitor(watch_monitor, watch_monitor_larger_better)
        self._watched = None if watch_monitor is None else watched
        self._every = None if self._watched is not None else _cadence(evaluate_every)
        self._asked = (dataloaders, metrics, {"evaluate_fn": evaluate_fn, "verbose": 0, **evaluator_kw})
        self._sanity = num_eval_sanity_batch
        saving: dict[str, Any] = {"only_state_dict": only_state_dict, "save_object": save_object}
        saving |= {"model_save_fn": model_save_fn, "save_evaluate_results": save_evaluate_results, "folder": folder}
        saving |= save_kwargs or {}
        if topk and topk_monitor is None:
            raise CallerError("topk needs topk_monitor: what is good of these results")
        self.in_rehearsal = not topk
        self._top = TopkSaver(topk, topk_monitor, topk_larger_better, **saving)
        self.evaluator: Evaluator | None = None
        self.results: dict[str, Any] = {}
        self.count = 0
        self._due = False  # an evaluation that a signal interrupted is still to be done
        self._since = 0.0
        self._hear()

    def _hear(self) -> None:
        if self._watched is not None:
            self.on_sanity_check_end = self._check_watched  # type: ignore[method-assign]
            self.on_validate_end = self._after_validation  # type: ignore[method-assign]

    def subscribe(self, listeners: Any) -> None:
        if self._every is not None:
            listeners.add(Stepped, self._after_batch, owner=self)
            listeners.add(Exhausted, self._after_last_batch, owner=self)

    def on_after_trainer_initialized(self, trainer: Any, driver: Any) -> None:
        self.results, self.count, self._due, self._since = {}, 0, False, 0.0
        self._top.forget()
        loaders, metrics, more = self._asked
        self.evaluator = Evaluator(None, loaders, metrics, driver, **more)
        self.evaluator.within = trainer.within  # the same weights, whoever has them use others
        if self._watched is not None:
            self._watched.take_monitor_of(trainer)
            check_validates(trainer, type(self).__name__)
        if self._top.queue:
            self._top.saver.owner = owner_of(self, trainer)
            self._top.saver.check(trainer, f"{type(self).__name__} with topk")

    # -- when ----------------------------------------------------------------------------------------------

    def on_train_begin(self, trainer: Any) -> None:
        self._stand(trainer)
        if self._sanity == 0:
            return
        assert self.evaluator is not None
        results = self.evaluator.run_until(trainer.interrupted, self._sanity)
        if results is not None and self._top.queue:
            self._top.check_results(results)

    def on_after_resume(self, trainer: Any, report: Any) -> None:
        self._stand(trainer, report)
        self._do_what_is_due(trainer)

    def on_continue(self, trainer: Any) -> None:
        with ExitStack() as stack:  # a callback that comes later may have other weights in the model still
            for entered in trainer.as_trained:
                stack.enter_context(entered())
            self._do_what_is_due(trainer)

    def _stand(self, trainer: Any, report: Any = None) -> None:
        self._since = trainer.world.timer()
        if self._top.queue:
            self._top.go_on(trainer, report)

    def _do_what_is_due(self, trainer: Any) -> None:
        if self._due and self._evaluated(trainer):  # what loggers heard of this transition was announced: tell it later
            trainer.later(lambda: self._tell(trainer))

    def _check_watched(self, trainer: Any, sanity_check_res: dict[str, Any]) -> None:
        assert self._watched is not None
        self._watched.check_results(sanity_check_res)

    def _after_validation(self, trainer: Any, results: dict[str, Any]) -> None:
        assert self._watched is not None
        if self._watched.is_better_results(results):
            self._evaluate(trainer)

    def _after_batch(self, trainer: Any, event: Stepped) -> None:
        every = self._every
        if callable(every):
            due = bool(trainer.ranks.agree(bool(every(trainer))))
        else:
            assert every is not None
            due = due_after_step(every, _before(trainer.trainer_state, event), event)
            due = due or self._time_is_over(trainer, every)
        if due:
            self._evaluate(trainer)

    def _after_last_batch(self, trainer: Any, event: Exhausted) -> None:
        state = trainer.trainer_state
        taken = event.flushed and not event.skipped
        before = attrs.evolve(state, optimizer_steps=state.optimizer_steps - taken)
        if isinstance(self._every, tuple) and due_at_epoch_end(self._every, before, event):
            self._evaluate(trainer)

    def _time_is_over(self, trainer: Any, every: tuple[Cadence, ...]) -> bool:
        least = min((cadence.every for cadence in every if isinstance(cadence, Seconds)), default=None)
        return least is not None and bool(trainer.ranks.agree(trainer.world.timer() - self._since >= least))

    # -- the evaluation ------------------------------------------------------------------------------------

    def _evaluate(self, trainer: Any) -> None:
        if self._evaluated(trainer):
            self._tell(trainer)

    def _evaluated(self, trainer: Any) -> bool:
        """Evaluate; False if a signal came in between, and it is due still."""
        assert self.evaluator is not None
        self._due = True
        results = self.evaluator.run_until(trainer.interrupted)
        if results is None:
            return False
        self._due = False
        self.results, self.count, self._since = results, self.count + 1, trainer.world.timer()
        if self._top.queue:
            self._top.save_topk(trainer, results)
            trainer.later(lambda: self._top.saver.sweep(trainer, self._top.queue.held))
        return True

    def _tell(self, trainer: Any) -> None:
        told = {k: v for k, v in self.results.items() if isinstance(v, (int, float)) and not k.startswith("_")}
        trainer.log(told)

    # -- memory --------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return nothing where nothing was evaluated, so that it can be added to a run that had none."""
        watched = {} if self._watched is None else self._watched.monitor_state()
        if not (self.count or self._due or watched):
            return {}
        about = {"count": self.count, "due": self._due, "results": dict(self.results)}
        return {**about, "watched": watched, "topk": self._top.state_dict() if self._top.queue else {}}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count, self._due, self.results = state["count"], state["due"], dict(state["results"])
        if self._watched is not None:
            self._watched.load_monitor_state(state["watched"])
        self._top.load_state_dict(state["topk"])


MoreEvaluateCallback = MoreEvaluate
"""The reference trainer's name for it."""


def _cadence(every: Any) -> Any:
    try:
        return arguments.cadence(every)
    except CallerError as error:
        raise CallerError(str(error).replace("validate_every", "evaluate_every", 1)) from None


def _before(state: Any, event: Stepped) -> Any:
    """Return the state that a batch was worked off in: listeners are given the one after it."""
    taken = event.closed and not event.skipped
    return attrs.evolve(
        state,
        state="step",
        seq=state.seq - 1,
        global_forward_batches=state.global_forward_batches - 1,
        batch_idx_in_epoch=state.batch_idx_in_epoch - 1,
        optimizer_steps=state.optimizer_steps - taken,
    )
