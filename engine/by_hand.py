"""Evaluations that nobody is told of: a trainer's `validate`, `test` and `predict`.

They may be called before, after and between the runs of a trainer, and by a listener in the midst of one: no transition
is made, no moment is heard, and training goes on as if they hadn't been. Of many ranks, all call them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from tachograph.drivers import Driver
from tachograph.states.errors import CallerError

from .evaluator import Evaluator
from .passes import Limit, Passes


class ByHand:
    """Evaluates a trainer's model when it is asked to.

    Attributes:
        evaluator: what validates; None without metrics.
        within: what every evaluation of this trainer runs in; see `Passes`.
    """

    # what the other parts of a trainer bring
    driver: Driver | None

    evaluator: Evaluator | None = None
    within: list[Callable[[], AbstractContextManager[Any]]]
    _passes: Passes | None = None
    _evaluation: dict[str, Any]  # how this trainer evaluates: what `Evaluator` takes

    def validate(self, num_eval_batch_per_dl: Limit = -1) -> dict[str, Any]:
        """Run the evaluator by hand; training doesn't notice, and no transition is recorded.

        Args:
            num_eval_batch_per_dl: batches to use of each loader, > 0; -1 uses all; or a fraction of its length.

        Returns:
            `indicator#metric#loader` -> value.

        Raises:
            CallerError: this trainer has no metrics, or this is called in the midst of an evaluation.
        """
        if self.evaluator is None:
            raise CallerError("this trainer has nothing to validate: give it metrics and validate_dataloaders")
        return self.evaluator.run(num_eval_batch_per_dl)

    def test(
        self,
        dataloaders: Any,
        metrics: Mapping[str, Any] | None = None,
        num_eval_batch_per_dl: Limit = -1,
        *,
        verbose: int = 0,
    ) -> dict[str, Any]:
        """Evaluate the model on other loaders, by its `test_step` if it has one.

        All else is done as in a validation of this trainer: its mappings, its `evaluate_fn`, its own step.

        Args:
            dataloaders: one loader, or a dict name -> loader.
            metrics: a dict name -> metric, as `Evaluator` takes it; None takes the trainer's.
            num_eval_batch_per_dl: batches to use of each loader, > 0; -1 uses all; or a fraction of its length.
            verbose: 1 prints the results.

        Returns:
            `indicator#metric#loader` -> value.

        Raises:
            CallerError: there are no metrics, or this is called in the midst of an evaluation.
        """
        if metrics is None and self.evaluator is None:
            raise CallerError("this trainer has no metrics: give test() some")
        given = self.evaluator.given_metrics if metrics is None else metrics  # type: ignore[union-attr]
        how = {**self._evaluation, "mode": self._test_mode(), "verbose": verbose}
        evaluator = Evaluator(dataloaders=dataloaders, metrics=given, driver=self.driver, **how)
        evaluator.within = self.within
        try:
            return evaluator.run(num_eval_batch_per_dl)
        finally:
            self._forget_loaders(evaluator)

    def _test_mode(self) -> str:
        """Return the mode that finds the step of a test; nobody asked for one, so that a substitution isn't told."""
        model = self._evaluation["model"]
        model = getattr(self.driver, "model", None) if model is None else model
        return "test" if hasattr(model, "test_step") else "validate"

    def predict(
        self,
        dataloaders: Any,
        num_eval_batch_per_dl: Limit = -1,
        on_batch: Callable[[Any, Any], Any] | None = None,
    ) -> Any:
        """Run the model over loaders, and hand out what it returns; see `Evaluator.predict`.

        Of many ranks each runs it on its part of the batches, and every one returns the outputs of all.

        Args:
            dataloaders: one loader, or a dict name -> loader.
            num_eval_batch_per_dl: batches to use of each loader, > 0; -1 uses all; or a fraction of its length.
            on_batch: `f(outputs, batch)`, given each batch's outputs where the model left them; nothing is collected.

        Returns:
            A list with each batch's outputs, copied to the CPU; of a dict of loaders, a dict of such lists. None with
            `on_batch`.

        Raises:
            CallerError: an argument can't be used, or this is called in the midst of an evaluation.
        """
        if dataloaders is None:
            raise CallerError("dataloaders is missing: give predict() one loader, or a dict name -> loader")
        return (self.evaluator or self._predictor()).predict(dataloaders, num_eval_batch_per_dl, on_batch)

    def _predictor(self) -> Passes:
        """Return what predicts where nothing is evaluated."""
        if self._passes is None:
            how = self._evaluation
            assert self.driver is not None
            self._passes = Passes(
                self.driver,
                how["model"],
                mode=how["mode"],
                evaluate_fn=how["evaluate_fn"],
                input_mapping=how["input_mapping"],
                output_mapping=how["output_mapping"],
                eval_mode=how["model_use_eval_mode"],
            )
            self._passes.within = self.within
        return self._passes

    def _forget_loaders(self, evaluator: Evaluator) -> None:
        """Let go of loaders that were given for one evaluation only."""
        own = () if self.evaluator is None else tuple(self.evaluator.dataloaders.values())
        for loader in evaluator.dataloaders.values():
            if not any(loader is one for one in own):
                evaluator.driver.release(loader)
