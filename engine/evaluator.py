"""`Evaluator`: runs a model over evaluation loaders and gathers metrics, on its own or inside a trainer.

Training doesn't notice it: no gradients, every module's mode put back, the generators' copies drawn from.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack, closing
from typing import Any

from tachograph.drivers import Driver, MatchFault, choose_driver
from tachograph.drivers.epochs import samplers_of, tell_epoch
from tachograph.drivers.lengths import length_of
from tachograph.drivers.matching import Signature, as_mapping, mapping_fn, needed
from tachograph.states.errors import CallerError, nearest

from .describing import named
from .losses import short
from .notes import note

_SETTINGS: dict[str, Any] = {
    "model_use_eval_mode": True,
    "use_dist_sampler": None,
    "separator": "#",
    "progress_bar": "auto",
    "output_from_new_proc": "only_error",
    "evaluate_fn": None,
    "model_wo_auto_param_call": False,
}


class Evaluator:
    """Evaluates a model.

    Args:
        model: an `nn.Module`; may be None with a driver, whose model is taken.
        dataloaders: one loader, or a dict name -> loader.
        metrics: a dict name -> metric: anything with `update`, `compute` and `reset` (torchmetrics, say), or with
            `update`, `get_metric` and `reset`. `update`'s parameters are filled by name from the outputs and the batch.
        driver: a driver or the name of one; None means "torch".
        device: where to evaluate; None: where the model's parameters are.
        batch_step_fn: `f(evaluator, batch)`, called for each batch instead of `evaluate_step` and `update`.
        mode: "validate" looks for the model's `validate_step`, then `test_step`, then its forward pass; "test" for
            `test_step` first.
        input_mapping: applied to each batch; a callable, or a dict of names.
        output_mapping: applied to the model's outputs likewise.
        fp16: evaluate under fp16 autocast.
        verbose: 1 prints the results of a standalone run, 0 doesn't.
        kwargs: `model_use_eval_mode`, `separator`, `evaluate_fn` (the name of a model's method),
            `model_wo_auto_param_call`; `progress_bar`, `use_dist_sampler` and `output_from_new_proc` are accepted.

    Attributes:
        within: what each evaluation runs in: functions that make a context manager, entered in their order. A callback
            that evaluates other weights than those that are trained adds one.
        batch_ids: after an error, the sample ids of the batch that it struck; None where they aren't known.

    Raises:
        CallerError: an argument can't be used; the message says what would be.
    """

    def __init__(
        self,
        model: Any = None,
        dataloaders: Any = None,
        metrics: Mapping[str, Any] | None = None,
        driver: str | Driver | None = None,
        device: Any = None,
        batch_step_fn: Callable[[Evaluator, Any], Any] | None = None,
        mode: str = "validate",
        input_mapping: Any = None,
        output_mapping: Any = None,
        fp16: bool = False,
        verbose: int = 1,
        **kwargs: Any,
    ) -> None:
        for name in kwargs:
            if name not in _SETTINGS:
                raise CallerError(f"Evaluator has no argument {name!r}. {nearest(name, _SETTINGS)}")
        settings = {**_SETTINGS, **kwargs}
        if mode not in ("validate", "test"):
            raise CallerError(f"mode must be 'validate' or 'test', not {mode!r}")
        options = {} if isinstance(driver, Driver) else {"fp16": fp16}
        self.driver = choose_driver("torch" if driver is None else driver, model, device, **options)
        self.model = self.driver.model if model is None else model
        self.dataloaders = _named_loaders(dataloaders)
        self.metrics = _checked_metrics(metrics)
        self.verbose = verbose
        self.separator: str = settings["separator"]
        self._eval_mode: bool = settings["model_use_eval_mode"]
        if batch_step_fn is not None and needed(batch_step_fn) != 2:
            raise CallerError(f"batch_step_fn must be a function of (evaluator, batch), not {batch_step_fn!r}")
        self._batch_step_fn = batch_step_fn
        self._input_mapping = mapping_fn(input_mapping, "input_mapping")
        self._output_mapping = mapping_fn(output_mapping, "output_mapping")
        self._fn_name = named(batch_step_fn) or settings["evaluate_fn"] or mode
        self._evaluate = self.driver.evaluate_fn(self.model, settings["evaluate_fn"] or mode)
        self._updates = {name: _update_of(name, metric) for name, metric in self.metrics.items()}
        self.batch_ids: Any = None
        self.within: list[Callable[[], AbstractContextManager[Any]]] = []
        self.before_batch: Callable[[Any], None] | None = None
        self.after_batch: Callable[[], None] | None = None

    def built_with(self) -> dict[str, Any]:
        """Return plain data on what is evaluated, and how."""
        return {
            "fn": self._fn_name,
            "metrics": {name: named(metric) for name, metric in self.metrics.items()},
            "loaders": {name or "given": self.driver.describe(held) for name, held in self.dataloaders.items()},
        }

    def run(self, num_eval_batch_per_dl: int = -1) -> dict[str, Any]:
        """Evaluate all metrics on all loaders.

        Args:
            num_eval_batch_per_dl: batches to use of each loader, > 0; -1 uses all.

        Returns:
            `indicator#metric#loader` -> value, plain data; empty parts are left out.

        Raises:
            CallerError: the number is 0 or below -1.
            MatchFault: a metric's `update` needs what neither the outputs nor the batch hold.
        """
        results = self.run_until(lambda: False, num_eval_batch_per_dl)
        assert results is not None
        return results

    def run_until(self, interrupted: Callable[[], bool], num_eval_batch_per_dl: int = -1) -> dict[str, Any] | None:
        """Evaluate as `run` does, but give up when asked to.

        Args:
            interrupted: asked after every batch; True ends it.
            num_eval_batch_per_dl: see `run`.

        Returns:
            What `run` returns; None where it was given up.
        """
        if type(num_eval_batch_per_dl) is not int or num_eval_batch_per_dl == 0 or num_eval_batch_per_dl < -1:
            raise CallerError(f"num_eval_batch_per_dl must be -1 (all) or > 0, not {num_eval_batch_per_dl!r}")
        results: dict[str, Any] = {}
        self.batch_ids = None
        with ExitStack() as stack:
            for entered in (
                self.driver.forked,
                lambda: self.driver.evaluating(self.model, self._eval_mode),
                *self.within,
            ):
                stack.enter_context(entered())
            self._reset()
            for name, loader in self.dataloaders.items():
                if not self._over(name, loader, num_eval_batch_per_dl, interrupted):
                    self._reset()
                    return None
                for metric_name, metric in self.metrics.items():
                    results.update(self._named(name, metric_name, self._computed(metric)))
                self._reset()
        if self.verbose and self.before_batch is None:
            print(", ".join(f"{key}: {value}" for key, value in results.items() if not key.startswith("_")))
        return results

    def evaluate_step(self, batch: Any) -> Any:
        """Run the model's method for evaluation on a batch, and map its outputs."""
        outputs = self._evaluate(batch)
        return outputs if self._output_mapping is None else self._output_mapping(outputs)

    def update(self, batch: Any, outputs: Any) -> None:
        """Give a batch and its outputs to every metric; outputs first where both have a name."""
        for update in self._updates.values():
            update(outputs, batch)

    def _over(self, name: str, loader: Any, most: int, interrupted: Callable[[], bool]) -> bool:
        """Work off one loader; False if it was given up."""
        tell_epoch(-1, *samplers_of(loader))  # every evaluation has the same order, whenever it is
        done = 0
        try:
            with closing(self.driver.evaluation_batches(loader)) as batches:
                for raw in batches if most < 0 else itertools.islice(batches, most):
                    self._batch(raw)
                    done += 1
                    if interrupted():
                        return False
        except BaseException as error:
            self.batch_ids = self.driver.evaluation_ids
            held = "" if self.batch_ids is None else f", which holds the samples {short(self.batch_ids)}"
            note(error, f"in batch {done} of the evaluation loader{name and f' {name!r}'}{held}")
            raise
        if not done:
            raise CallerError(f"the evaluation loader {name or 'given'!r} made no batch")
        return True

    def _batch(self, raw: Any) -> None:
        batch = self.driver.to_device(raw if self._input_mapping is None else self._input_mapping(raw))
        if self.before_batch is not None:
            self.before_batch(batch)
        if self._batch_step_fn is not None:
            self._batch_step_fn(self, batch)
        else:
            self.update(batch, self.evaluate_step(batch))
        if self.after_batch is not None:
            self.after_batch()

    def _reset(self) -> None:
        for metric in self.metrics.values():
            metric.reset()

    def _computed(self, metric: Any) -> Any:
        return self.driver.plain((metric.compute if hasattr(metric, "compute") else metric.get_metric)())

    def _named(self, loader: str, metric: str, value: Any) -> dict[str, Any]:
        """Name a metric's values `indicator#metric#loader`; a dict has its keys as indicators."""
        held = value if isinstance(value, Mapping) else {"": value}
        return {self.separator.join(filter(None, (str(k), metric, loader))): v for k, v in held.items()}


def _named_loaders(dataloaders: Any) -> dict[str, Any]:
    held = dict(dataloaders) if isinstance(dataloaders, Mapping) else {"": dataloaders}
    if not held:
        raise CallerError("dataloaders is an empty dict: give one loader at least")
    for name, loader in held.items():
        if isinstance(loader, (str, bytes)) or not isinstance(loader, Iterable):
            raise CallerError(f"the evaluation loader {name!r} can't be iterated over: it is a {type(loader).__name__}")
        if hasattr(loader, "__next__"):
            raise CallerError(
                f"the evaluation loader {name!r} is an iterator, empty after its first use: give what makes it"
            )
        if length_of(loader) == 0:
            raise CallerError(f"the evaluation loader {name!r} is empty")
    return held


def _checked_metrics(metrics: Any) -> dict[str, Any]:
    if not isinstance(metrics, Mapping) or not metrics:
        raise CallerError(f"metrics must be a dict name -> metric with one metric at least, not {metrics!r}")
    for name, metric in metrics.items():
        lacking = [m for m in ("update", "reset") if not callable(getattr(metric, m, None))]
        if not callable(getattr(metric, "compute", None)) and not callable(getattr(metric, "get_metric", None)):
            lacking.append("compute")
        if lacking:
            raise CallerError(
                f"metric {name!r} must have update, compute and reset; {type(metric).__name__} lacks {lacking[0]}"
            )
    return dict(metrics)


def _update_of(name: str, metric: Any) -> Callable[[Any, Any], None]:
    """Compile `update(outputs, batch)` for a metric."""
    signature = Signature(metric.update, f"metric {name!r}")

    def update(outputs: Any, batch: Any) -> None:
        sources = [found for found in (as_mapping(outputs), as_mapping(batch)) if found is not None]
        if not sources:
            raise MatchFault(
                f"metric {name!r} needs names, but outputs are a {type(outputs).__name__} and the batch a "
                f"{type(batch).__name__}: return a dict from the model, or map with output_mapping"
            )
        metric.update(**signature.pick(*sources))

    return update


__all__ = ["Evaluator"]
