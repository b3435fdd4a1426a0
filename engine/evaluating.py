"""What a trainer does with its evaluator in a run: the sanity check and the validations.

`Evaluations` is the part of `Trainer` that knows when a model is evaluated and who is told; how it's done is the
`Evaluator`'s.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from tachograph.drivers import Driver
from tachograph.states import Event, SanityChecked, TrainerState, Validated
from tachograph.states.errors import CallerError

from . import arguments
from .by_hand import ByHand
from .due import Due
from .evaluator import Evaluator
from .listeners import Listeners

_IN_A_VALIDATION = ("on_validate_batch_begin", "on_validate_batch_end")


class Evaluations(ByHand):
    """Evaluates a trainer's model, in the states of a run and by hand."""

    # what the other parts of a trainer bring
    listeners: Listeners
    interrupted: Callable[[], bool]
    give_up: Callable[[], Event]
    _hear_inside: Callable[..., None]
    _user_state: Callable[[], dict[str, Any]]
    _take_user_state: Callable[[dict[str, Any]], None]

    _due: Due
    _sanity: int = 0
    _num_eval: int | float = -1

    def _sanity_check(self, state: TrainerState) -> Event:
        results = self._evaluated(self._sanity)
        return self.give_up() if results is None else SanityChecked(results=results)

    def _validate(self, state: TrainerState) -> Event:
        results = self._evaluated(self._num_eval)
        if results is None:
            return self.give_up()
        self._due.validated()
        return Validated(results=results)

    def _evaluated(self, batches: int | float) -> dict[str, Any] | None:
        """Evaluate; None if a signal came in between: then listeners have forgotten what they heard of it."""
        assert self.evaluator is not None
        listening = any(name in self.listeners.inside for name in _IN_A_VALIDATION)
        memory = copy.deepcopy((self.listeners.state_dict(self), self._user_state())) if listening else None
        results = self.evaluator.run_until(self.interrupted, batches)
        if results is None and memory is not None:
            self.listeners.load_state_dict(memory[0], self)
            self._take_user_state(memory[1])
        return results

    def _evaluator(
        self,
        driver: Driver,
        model: Any,
        loaders: Any,
        metrics: Any,
        step_fn: Any,
        mode: str,
        input_mapping: Any,
        output_mapping: Any,
        given: dict[str, Any],
    ) -> Evaluator | None:
        if mode not in ("validate", "test"):
            raise CallerError(f"validate_mode must be 'validate' or 'test', not {mode!r}")
        self._evaluation = {
            "model": model if driver.world_size == 1 else driver.model,
            "batch_step_fn": None
            if step_fn is None
            else arguments.step_fn(step_fn, "validate_batch_step_fn", "evaluator"),
            "mode": mode,
            "input_mapping": arguments.one_mapping("input", input_mapping, given["evaluate_input_mapping"]),
            "output_mapping": arguments.one_mapping("output", output_mapping, given["evaluate_output_mapping"]),
            "verbose": 0,
            "progress_bar": None,
            "evaluate_fn": given["evaluate_fn"],
            "model_use_eval_mode": given["model_use_eval_mode"],
            "use_dist_sampler": given["use_eval_dist_sampler"],
        }
        self.within = []
        if metrics is None:
            return None
        evaluator = Evaluator(dataloaders=loaders, metrics=metrics, driver=driver, **self._evaluation)
        evaluator.within = self.within
        evaluator.before_batch = lambda batch: self._hear_inside("on_validate_batch_begin", batch)
        evaluator.after_batch = lambda: self._hear_inside("on_validate_batch_end")
        return evaluator
