"""`Passes`: leads a model over evaluation loaders, batch by batch, without training noticing it.

What becomes of the outputs is the business of those who use it: the `Evaluator` gives them to metrics, `predict` hands
them out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from typing import Any

from tachograph.drivers import NO_BATCH, Driver
from tachograph.drivers.epochs import samplers_of, tell_epoch
from tachograph.drivers.lengths import length_of, most_of
from tachograph.drivers.matching import mapping_fn
from tachograph.drivers.ranks import RankFailed
from tachograph.drivers.share import Share
from tachograph.states.errors import CallerError

from .articles import a_kind
from .losses import short
from .notes import note
from .pass_progress import PassProgress
from .turns import Turns

MODES = ("validate", "test")

Limit = int | float
"""Batches of each loader, > 0; -1 for all; or a fraction of its length."""


class Passes:
    """Leads a model over loaders: no gradients, every module's mode put back, the generators' copies drawn from.

    Of many ranks, each evaluates its part of the batches that one process would make.

    Args:
        driver: where the work is done.
        model: the model; None: the driver's.
        dataloaders: one loader, a dict name -> loader, or None where each pass brings its own.
        mode: "validate" or "test".
        evaluate_fn: the name of the model's method; None: what the mode looks for.
        input_mapping: applied to each batch; a callable, or a dict of names.
        output_mapping: applied to the model's outputs likewise.
        eval_mode: put the model in evaluation mode.
        progress_bar: "auto", "rich", "plain" or None; see `PassProgress`.
        share: how ranks share the loaders, in place of the driver's `eval_share`; None: as that says.

    Attributes:
        within: what each pass runs in: functions that make a context manager, entered in their order. A callback that
            evaluates other weights than those that are trained adds one.
        evaluated: batches that the evaluation in work, or the last one, has come to, over all ranks and loaders.
        batch_ids: after an error, the sample ids of the batch that it struck; None where they aren't known.
    """

    def __init__(
        self,
        driver: Driver,
        model: Any = None,
        dataloaders: Any = None,
        *,
        mode: str = "validate",
        evaluate_fn: str | None = None,
        input_mapping: Any = None,
        output_mapping: Any = None,
        eval_mode: bool = True,
        progress_bar: str | None = None,
        share: bool | None = None,
    ) -> None:
        if mode not in MODES:
            raise CallerError(f"mode must be 'validate' or 'test', not {mode!r}")
        if evaluate_fn in MODES:
            raise CallerError(f"evaluate_fn={evaluate_fn!r} is the name of a mode: give the method another name")
        self.driver = driver
        self.model = driver.model if model is None else model
        self.dataloaders = {} if dataloaders is None else named_loaders(dataloaders)
        self._fn_name = evaluate_fn or mode
        self._evaluate: Callable[[Any], Any] | None = None
        self._input_mapping = mapping_fn(input_mapping, "input_mapping")
        self._output_mapping = mapping_fn(output_mapping, "output_mapping")
        self._eval_mode = eval_mode
        self._progress = PassProgress(progress_bar if self.driver.ranks.first else None)
        self._share = share
        self.evaluated = 0
        self._is_alone = False  # no trainer trains with this driver
        self.batch_ids: Any = None
        self.within: list[Callable[[], AbstractContextManager[Any]]] = []

    def evaluate_step(self, batch: Any) -> Any:
        """Run the model's method for evaluation on a batch, and map its outputs."""
        outputs = (self._evaluate or self._choose())(batch)
        return outputs if self._output_mapping is None else self._output_mapping(outputs)

    def _choose(self) -> Callable[[Any], Any]:
        """Look for the model's method; a substitution is told, so that one that isn't needed isn't looked for."""
        self._evaluate = self.driver.evaluate_fn(self.model, self._fn_name)
        return self._evaluate

    def predict(
        self,
        dataloaders: Any = None,
        num_eval_batch_per_dl: Limit = -1,
        on_batch: Callable[[Any, Any], Any] | None = None,
    ) -> Any:
        """Run the model over loaders, and hand out what it returns.

        The model's `predict_step` is called if it has one, and its outputs are left as they are; else what evaluation
        calls, with the output mapping. All outputs of all loaders are held in the CPU's memory at once, unless
        `on_batch` takes them. Of many ranks each runs the model on its part of the batches, and every one returns the
        outputs of all; but what `on_batch` does is done of a batch by the one rank that has it.

        Args:
            dataloaders: one loader, or a dict name -> loader; None: those that are evaluated.
            num_eval_batch_per_dl: batches to use of each loader, > 0; -1 uses all; or a fraction of its length.
            on_batch: `f(outputs, batch)`, given each batch's outputs where the model left them; nothing is collected.

        Returns:
            A list with each batch's outputs, copied to the CPU; of a dict of loaders, a dict of such lists. None with
            `on_batch`.

        Raises:
            CallerError: an argument can't be used, or this is called in the midst of an evaluation.
        """
        loaders = self.dataloaders if dataloaders is None else named_loaders(dataloaders)
        check_limit(num_eval_batch_per_dl)
        if not loaders:
            raise CallerError("there is nothing to predict on: give dataloaders")
        if on_batch is not None and not callable(on_batch):
            raise CallerError(f"on_batch must be a function f(outputs, batch), not {on_batch!r}")
        step, held = self._predict_step(), {name: [] for name in loaders}  # type: ignore[var-annotated]

        def work(batch: Any) -> None:
            outputs = step(batch)
            if on_batch is not None:
                on_batch(outputs, batch)
            else:
                collected.append(self.driver.to_host(outputs))

        try:
            with self._undisturbed():
                for name, loader in loaders.items():
                    collected, share = held[name], self.driver.share_of(loader, self._share)
                    self._over(name, loader, share, num_eval_batch_per_dl, work, step)
                    if on_batch is None and share.is_apart():
                        held[name] = _in_turn(self.driver.ranks.gather(collected))
        finally:
            self._release(loaders)
        if on_batch is not None:
            return None
        return held[""] if list(held) == [""] else held

    def _predict_step(self) -> Callable[[Any], Any]:
        if callable(getattr(self.model, "predict_step", None)):
            return self.driver.evaluate_fn(self.model, "predict_step")
        return self.evaluate_step

    def _release(self, loaders: Mapping[str, Any]) -> None:
        """Let go of loaders that came for one pass only."""
        own = {id(loader) for loader in self.dataloaders.values()}
        for loader in loaders.values():
            if id(loader) not in own:
                self.driver.release(loader)

    @contextmanager
    def _undisturbed(self) -> Iterator[None]:
        """Run the body so that training doesn't notice; one at a time on a driver."""
        driver = self.driver
        if driver.evaluates:
            raise CallerError(
                "an evaluation is under way already, and another one can't be made in its midst (out of its batches or "
                "metrics): on_validate_end is heard when it's over"
            )
        driver.evaluates, self.batch_ids, self.evaluated = True, None, 0
        try:
            with driver.forked(), driver.evaluating(self.model, self._eval_mode), ExitStack() as stack:
                for entered in self.within:
                    stack.enter_context(entered())
                yield
        except CallerError:
            raise
        except BaseException as error:
            if self._is_alone and not isinstance(error, RankFailed):  # in a run its trainer lets the others know
                driver.ranks.note_failure(error, "in an evaluation")
            raise
        finally:
            driver.evaluates = False

    def _over(
        self,
        name: str,
        loader: Any,
        share: Share,
        limit: Limit,
        work: Callable[[Any], None],
        step: Callable[[Any], Any],
        interrupted: Callable[[], bool] = lambda: False,
    ) -> bool:
        """Work off this rank's part of one loader; False if it was given up.

        Args:
            name: what it is called.
            loader: it.
            share: what this rank reads of it.
            limit: batches to use, of all ranks.
            work: done with each batch.
            step: what `work` calls the model by; all that is done in a turn in which this rank has no batch, if the
                driver needs that.
            interrupted: asked after every turn; True gives it up.
        """
        most = most_of(loader, limit, "limit_validate_batches", called(name), length=share.length)
        tell_epoch(-1, *samplers_of(loader))  # every evaluation has the same order, whenever it is
        driver, to_device, mapping = self.driver, self.driver.to_device, self._input_mapping
        turns = Turns(driver.ranks, share, most)
        before = self.evaluated
        together, stand_in = driver.keeps_step and driver.ranks.world_size > 1, None
        try:
            with closing(share.batches()) as batches, self._progress.of(name, turns.length):
                for raw in turns.of(batches):
                    self.evaluated = before + turns.done
                    batch = raw if raw is NO_BATCH else to_device(raw if mapping is None else mapping(raw))
                    if together and turns.taken == 1:
                        stand_in = self._of_any_rank(batch)
                    if batch is not NO_BATCH:
                        work(batch)
                    elif together:
                        step(stand_in)
                    self._progress.moves(turns.done)
                    if turns.of_all and interrupted():
                        return False
        except RankFailed:
            raise
        except BaseException as error:
            self.batch_ids = driver.evaluation_ids
            held = "" if self.batch_ids is None else f", which holds the samples {short(self.batch_ids)}"
            note(error, f"in batch {turns.at} of {called(name)}{held}")
            raise
        if not turns.taken:
            raise CallerError(f"{called(name)} made no batch")
        return True

    def _of_any_rank(self, batch: Any) -> Any:
        """Return this rank's batch, or one of another where it has none; all ranks call it."""
        ranks = self.driver.ranks
        if not ranks.agree(batch is NO_BATCH):
            return batch
        lent = next(held for held in ranks.gather(None if batch is NO_BATCH else batch) if held is not None)
        return self.driver.to_device(lent) if batch is NO_BATCH else batch


def _in_turn(ranks: list[list[Any]]) -> list[Any]:
    """Return the outputs of all ranks in the order of their batches, which the ranks had in turn."""
    return [held[at] for at in range(max(map(len, ranks))) for held in ranks if at < len(held)]


def check_limit(limit: Any) -> None:
    """Refuse a limit that is neither a number of batches nor a fraction."""
    whole = type(limit) is int and (limit == -1 or limit > 0)
    if not whole and not (type(limit) is float and 0.0 < limit <= 1.0):
        raise CallerError(f"num_eval_batch_per_dl must be -1 (all) or > 0, not {limit!r}")


def named_loaders(dataloaders: Any) -> dict[str, Any]:
    """Return loaders by their names; a single one has the name "".

    Raises:
        CallerError: there is none, or one can't be read again and again.
    """
    if dataloaders is None:
        raise CallerError("dataloaders is missing: give one loader, or a dict name -> loader")
    held = dict(dataloaders) if isinstance(dataloaders, Mapping) else {"": dataloaders}
    if not held:
        raise CallerError("dataloaders is an empty dict: give one loader at least")
    if len(held) == 1 and None in held:
        held = {"": held[None]}
    for name, loader in held.items():
        if not isinstance(name, str):
            raise CallerError(f"the name of an evaluation loader must be a string, not {name!r}")
        if isinstance(loader, (str, bytes)) or not isinstance(loader, Iterable):
            raise CallerError(f"{called(name)} can't be iterated over: it is {a_kind(loader)}")
        if isinstance(loader, (list, tuple)) and any(map(_is_loader, loader)):
            raise CallerError(f"{called(name)} is a {type(loader).__name__} of loaders: give a dict name -> loader")
        if hasattr(loader, "__next__"):
            raise CallerError(f"{called(name)} is an iterator, empty after its first use: give what makes it")
        if length_of(loader) == 0:
            raise CallerError(f"{called(name)} is empty")
    return held


def called(name: str) -> str:
    """Name an evaluation loader; a single one has no name of its own."""
    return f"the evaluation loader {name!r}" if name else "the evaluation loader"


def _is_loader(batch: Any) -> bool:
    """Say whether what should be a batch is a loader: it is gone through, but nothing can be looked up in it."""
    return (
        isinstance(batch, Iterable)
        and not hasattr(batch, "__getitem__")
        and not isinstance(batch, (set, frozenset))
        and not hasattr(batch, "__next__")
    )
