"""`Evaluator`: runs a model over evaluation loaders and gathers metrics, on its own or inside a trainer.

Training doesn't notice it: no gradients, every module's mode put back, the generators' copies drawn from. Of many ranks
each evaluates a part of the batches, and all have the same results, which are those of one process.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

from tachograph.drivers import Driver, choose_driver
from tachograph.drivers.matching import needed
from tachograph.states.errors import CallerError, nearest

from .describing import named
from .metric_calls import checked_metrics, computed, unjoined, update_of
from .notes import attach
from .output_mean import OutputMean
from .passes import Limit, Passes, check_limit

_SETTINGS: dict[str, Any] = {
    "model_use_eval_mode": True,
    "use_dist_sampler": None,
    "separator": "#",
    "progress_bar": "auto",
    "processes": None,
    "output_from_new_proc": "only_error",
    "evaluate_fn": None,
    "model_wo_auto_param_call": False,
    "precision": None,
}


class Evaluator(Passes):
    """Evaluates a model.

    Args:
        model: an `nn.Module`; may be None with a driver, whose model is taken.
        dataloaders: one loader, or a dict name -> loader.
        metrics: a dict name -> metric: anything with `update`, `compute` and `reset` (torchmetrics, say), or with
            `update`, `get_metric` and `reset`. `update`'s parameters are filled by name from the outputs and the batch;
            those of `(metric, {"preds": "logits"})` from other names. A string such as "loss" is the name of an output,
            whose mean over all samples is the result. Without loaders and metrics it only predicts. Of many ranks, the
            numbers of torchmetrics' metrics and of `tachograph.drivers.metrics` are joined, and of any that has
            `gather_with(gather, distributed)`: it is called before `compute`, with what returns every rank's value of
            one, and whether each rank saw a part of the data. Where one can't be joined, every rank evaluates all.
        driver: a driver or the name of one; None means "torch".
        device: where to evaluate; None: where the model's parameters are.
        batch_step_fn: `f(evaluator, batch)`, called for each batch instead of `evaluate_step` and `update`.
        mode: "validate" looks for the model's `validate_step`, then `test_step`, then its forward pass; "test" for
            `test_step` first.
        input_mapping: applied to each batch; a callable, or a dict of names.
        output_mapping: applied to the model's outputs likewise.
        fp16: the same as `precision="fp16"`.
        verbose: 1 prints the results of a standalone run, 0 doesn't.
        kwargs: `precision` ("fp32", "bf16", "fp16"), `model_use_eval_mode`, `separator`, `evaluate_fn` (the name of a
            model's method), `model_wo_auto_param_call`, `progress_bar` ("auto": a live line in a terminal, "rich",
            "plain", None); `use_dist_sampler`: True deals the batches out to the ranks, False leaves each rank what its
            own loader makes, None deals out what isn't shared already; `processes` and `output_from_new_proc`, as
            `choose_driver` takes them.

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
                own = {*inspect.signature(Evaluator).parameters, *_SETTINGS} - {"kwargs"}
                raise CallerError(f"Evaluator has no argument {name!r}. {nearest(name, own)}")
        settings = {**_SETTINGS, **kwargs}
        if batch_step_fn is not None and needed(batch_step_fn) != 2:
            raise CallerError(f"batch_step_fn must be a function of (evaluator, batch), not {batch_step_fn!r}")
        super().__init__(
            _driver_of(driver, model, device, fp16, settings),
            model,
            dataloaders,
            mode=mode,
            evaluate_fn=settings["evaluate_fn"],
            input_mapping=input_mapping,
            output_mapping=output_mapping,
            eval_mode=settings["model_use_eval_mode"],
            progress_bar=settings["progress_bar"],
            share=settings["use_dist_sampler"],
        )
        self._is_alone = not isinstance(driver, Driver)
        self.metrics, self._sources = self._checked(metrics)
        self.verbose = verbose
        self.separator: str = settings["separator"]
        self._batch_step_fn = batch_step_fn
        self._unjoined = unjoined(self.metrics, self.driver)
        self._told: set[str] = set()
        self._in_hand: Any = None
        self._updates = {
            name: update_of(name, metric, self._sources[name], self.driver.mean_of, self._samples_of)
            for name, metric in self.metrics.items()
        }
        self.before_batch: Callable[[Any], None] | None = None
        self.after_batch: Callable[[], None] | None = None

    def _checked(self, metrics: Any) -> tuple[dict[str, Any], dict[str, Mapping[str, str]]]:
        if metrics is None and not self.dataloaders:
            return {}, {}  # it only predicts, perhaps by a method of its own: none is looked for yet
        if not self.dataloaders:
            raise CallerError("dataloaders is missing: give one loader, or a dict name -> loader")
        if metrics is None:
            raise CallerError(
                "metrics is missing: give a dict name -> metric; what only predicts needs no loaders either"
            )
        checked = checked_metrics(metrics)
        self._choose()
        return checked

    @property
    def given_metrics(self) -> dict[str, Any]:
        """The metrics in the form that `metrics` takes."""
        return {
            name: metric.of if isinstance(metric, OutputMean) else (metric, self._sources[name])
            for name, metric in self.metrics.items()
        }

    def built_with(self) -> dict[str, Any]:
        """Return plain data on what is evaluated, and how."""
        return {
            "fn": named(self._batch_step_fn) or self._fn_name,
            "metrics": {name: self._described(name) for name in self.metrics},
            "loaders": {name or "given": self.driver.describe(held) for name, held in self.dataloaders.items()},
        }

    def _described(self, name: str) -> Any:
        metric, sources = self.metrics[name], self._sources[name]
        if isinstance(metric, OutputMean):
            return f"the mean of {metric.of!r}"
        return [named(metric), dict(sources)] if sources else named(metric)

    def run(self, num_eval_batch_per_dl: Limit = -1) -> dict[str, Any]:
        """Evaluate all metrics on all loaders.

        Args:
            num_eval_batch_per_dl: batches to use of each loader, > 0; -1 uses all; or a fraction of its length.

        Returns:
            `indicator#metric#loader` -> value, plain data; empty parts are left out.

        Raises:
            CallerError: the number is 0 or below -1.
            MatchFault: a metric's `update` needs what neither the outputs nor the batch hold.
        """
        results = self._run(num_eval_batch_per_dl, lambda: False, self._work)
        assert results is not None
        if self.verbose and self.driver.ranks.first:
            print(", ".join(f"{key}: {value}" for key, value in results.items() if not key.startswith("_")))
        return results

    def run_until(self, interrupted: Callable[[], bool], num_eval_batch_per_dl: Limit = -1) -> dict[str, Any] | None:
        """Evaluate as `run` does, but give up when asked to.

        Args:
            interrupted: asked after every batch; True ends it.
            num_eval_batch_per_dl: see `run`; or a fraction of each loader's length.

        Returns:
            What `run` returns; None where it was given up.
        """
        return self._run(num_eval_batch_per_dl, interrupted, self._heard_work)

    def update(self, batch: Any, outputs: Any) -> None:
        """Give a batch and its outputs to every metric; outputs first where both have a name."""
        for update in self._updates.values():
            update(outputs, batch)

    def _run(self, limit: Limit, interrupted: Callable[[], bool], work: Callable[[Any], None]) -> dict[str, Any] | None:
        check_limit(limit)
        if not self.metrics:
            raise CallerError("there is nothing to evaluate: build the Evaluator with dataloaders and metrics")
        every = self._evaluates_all()
        results: dict[str, Any] = {}
        with self._undisturbed(), ExitStack() as stack:
            for metric in self.metrics.values():
                stack.enter_context(self.driver.joining(metric, apart=False))
            try:
                self._ready()
                for name, loader in self.dataloaders.items():
                    share = self.driver.share_of(loader, self._share, every)
                    if not self._over(name, loader, share, limit, work, self.evaluate_step, interrupted):
                        self._reset()
                        return None
                    self._compute(results, name, share.is_apart())
                    self._reset()
            except BaseException as error:
                self._reset_after(error)
                raise
            return self._of_all_ranks(results)

    def _evaluates_all(self) -> bool:
        """Say whether every rank is to evaluate all the data, though it could be dealt out."""
        dealt = (self.driver.eval_share if self._share is None else self._share) is not False
        every = dealt and self.driver.world_size > 1 and bool(self._unjoined)
        if every:
            self._tell(self._unjoined)
        return every

    def _compute(self, results: dict[str, Any], loader: str, apart: bool) -> None:
        """Compute every metric: of what all ranks saw, where each had a part of the data."""
        self._join(apart)
        for name, metric in self.metrics.items():
            with self.driver.joining(metric, apart):
                self._put(results, loader, name, computed(name, metric, self.driver))

    def _of_all_ranks(self, results: dict[str, Any]) -> dict[str, Any]:
        """Return the results, the same on every rank, so that what is decided by them is decided alike."""
        ranks: list[dict[str, Any]] = self.driver.ranks.gather(results)
        keys = dict.fromkeys(key for held in ranks for key in held)
        differ = [key for key in keys if len({repr(held.get(key)) for held in ranks}) > 1]
        if differ:
            self._tell(
                f"the ranks computed different results of {', '.join(map(repr, differ))}: those of rank 0 are taken on "
                "all. Numbers that a rank has of its part of the data only are joined with driver.all_gather(value)"
            )
        return ranks[0] if differ else results

    def _tell(self, text: str) -> None:
        """Tell the user once, on one rank."""
        if text not in self._told and self.driver.ranks.first:
            self._told.add(text)
            warnings.warn(text, stacklevel=4)
            self.driver.tell(text)

    def _samples_of(self, batch: Any) -> int:
        return self.driver.samples_of(batch, batch is self._in_hand)

    def _work(self, batch: Any) -> None:
        self._in_hand = batch
        try:
            if self._batch_step_fn is not None:
                self._batch_step_fn(self, batch)
            else:
                self.update(batch, self.evaluate_step(batch))
        finally:
            self._in_hand = None

    def _heard_work(self, batch: Any) -> None:
        if self.before_batch is not None:
            self.before_batch(batch)
        self._work(batch)
        if self.after_batch is not None:
            self.after_batch()

    def _ready(self) -> None:
        """Begin anew: every metric empty, and where the model is."""
        for metric in self.metrics.values():
            self.driver.place(metric)
            metric.reset()

    def _join(self, apart: bool) -> None:
        """Give the metrics what gathers over ranks; they are to use it where each rank has a part of the data."""
        for metric in self.metrics.values():
            if hasattr(metric, "gather_with"):
                metric.gather_with(self.driver.all_gather, apart)

    def _reset(self) -> None:
        for metric in self.metrics.values():
            metric.reset()

    def _reset_after(self, error: BaseException) -> None:
        """Leave nothing half done in any metric, whatever else goes wrong."""
        for metric in self.metrics.values():
            try:
                metric.reset()
            except Exception as second:
                attach(error, second)

    def _put(self, results: dict[str, Any], loader: str, metric: str, value: Any) -> None:
        """Name a metric's values `indicator#metric#loader`; a dict has its keys as indicators."""
        for indicator, held in (value if isinstance(value, dict) else {"": value}).items():
            key = self.separator.join(filter(None, (indicator, metric, loader)))
            if key in results:
                raise CallerError(f"two results are called {key!r}: give the metrics and loaders other names")
            results[key] = held


def _driver_of(driver: Any, model: Any, device: Any, fp16: bool, settings: Mapping[str, Any]) -> Driver:
    """Choose the driver; one that is given keeps what it was built with."""
    auto_call = not settings["model_wo_auto_param_call"]
    if not isinstance(driver, Driver):
        options = {name: settings[name] for name in ("precision", "processes", "output_from_new_proc")}
        chosen = "torch" if driver is None else driver
        return choose_driver(chosen, model, device, auto_call=auto_call, fp16=fp16, **options)
    for what, asked in {"precision": fp16 or settings["precision"], "way to call": not auto_call}.items():
        if asked:
            raise CallerError(f"a driver that is given has its {what}: give it there, and not to the evaluator")
    return choose_driver(driver, model, device, processes=settings["processes"])


__all__ = ["Evaluator"]
