"""`Checkpoint`: saves the model, or the whole trainer, where and when its user wants it.

Exact resume doesn't need it: the run's own snapshots do that. These saves are for people: the last model, every tenth
epoch's, the three best.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tachograph.states.errors import CallerError

from ..saved import parted
from .callback import Callback
from .other_words import unknown_argument
from .results_monitor import Asked, check_validates
from .saver import owner_of
from .saves import epochs_done
from .snapshot_policy import in_seconds
from .top_k import TopkSaver

_SPELLINGS = {  # the reference trainer's older names
    "save_folder": "folder",
    "save_every_n_epochs": "every_n_epochs",
    "save_every_n_global_batches": "every_n_batches",
    "save_last": "last",
    "save_topk": "topk",
    "save_on_exception": "on_exceptions",
}


class Checkpoint(Callback):
    """Saves under names that say when: `model-epoch_3`, `model-epoch_3-batch_900`, `model-last`.

    Each save is a folder that appears whole, with the weights in `model.pt`, for `trainer.load_model(folder)`; or, with
    `save_object="trainer"`, a snapshot for `run(resume_from=folder)`. What makes room for others goes when they are
    whole. Whatever the run itself hasn't written is never touched. The table of the best is saved: a run that goes on
    writes into its old folder, and what it does again after a crash replaces what the dead process had saved. Of many
    ranks, rank 0 writes the weights, and a trainer is written by all. When one has failed, its error ends all: only
    `on_exceptions` of rank 0's own error (`RankFailed`, where it was another's) are saved at, and no trainer is.

    Args:
        folder: a folder is made in it for each run; None: `<run_dir>/checkpoints`.
        every_n_epochs: save after every n epochs.
        every_n_batches: save after every n batches of the run.
        last: save after each epoch as `{save_object}-last`, in place of the one before.
        topk: save what was validated while it is among the n best; -1 saves every validation, 0 none.
        on_exceptions: the classes of errors to save at, `Exception` say; None: none.
        monitor: what is good, for `topk`: a key of the results ("acc#val", or "acc" if that is clear), `f(results) ->
            float or None`, or a `Monitor`; None takes the trainer's.
        larger_better: a larger value is the better one; None takes the trainer's.
        only_state_dict: True, see `trainer.save_model`.
        model_save_fn: `f(folder)`, writes the model in a way of your own.
        save_object: "model", "weights" (the same, whatever the model) or "trainer".
        save_evaluate_results: put the results into each save of the best, as `tachograph_evaluate_results.json`.
        every: save at the first batch that is done when so much time has passed, "10min" say; many ranks ask each other
            after every batch then.
        keep_last: of what `every_n_epochs`, `every_n_batches` and `every` saved, keep the last n; None: all.
        spellings: `is_trainer_checkpoint`, `save_folder`, `save_every_n_epochs`, `save_every_n_global_batches`,
            `save_last`, `save_topk` and `save_on_exception` are taken for the above.

    Raises:
        CallerError: an argument can't be used, or nothing says when to save; or, when the trainer is built, there is
            no folder, or no monitor for `topk`; or, then or when a run begins, the folder can't be written to.
    """

    replays = False
    in_quick_pass = False

    def __init__(
        self,
        folder: str | Path | None = None,
        every_n_epochs: int | None = None,
        every_n_batches: int | None = None,
        last: bool = False,
        topk: int = 0,
        on_exceptions: type[BaseException] | Sequence[type[BaseException]] | None = None,
        monitor: Asked = None,
        larger_better: bool | None = None,
        only_state_dict: bool = True,
        model_save_fn: Callable[[Any], Any] | None = None,
        save_object: str = "model",
        save_evaluate_results: bool = True,
        every: str | None = None,
        keep_last: int | None = None,
        **spellings: Any,
    ) -> None:
        asked: dict[str, Any] = {"folder": folder, "save_object": save_object, "on_exceptions": on_exceptions}
        asked |= {"every_n_epochs": every_n_epochs, "every_n_batches": every_n_batches, "last": last, "topk": topk}
        given = _translated(asked, spellings)
        self.every_n_epochs = _number(given["every_n_epochs"], "every_n_epochs")
        self.every_n_batches = _number(given["every_n_batches"], "every_n_batches")
        self.keep_last = _number(keep_last, "keep_last")
        self.last = bool(given["last"])
        self.on_exceptions = _classes(given["on_exceptions"])
        self._seconds = _seconds(every)
        self._since: float | None = None
        self._regular: list[str] = []
        topk = 0 if given["topk"] is None else given["topk"]
        about = (only_state_dict, model_save_fn, save_evaluate_results)
        self._top = TopkSaver(topk, monitor, larger_better, given["folder"], given["save_object"], *about)
        if not (
            self.every_n_epochs or self.every_n_batches or self._seconds or self.last or topk or self.on_exceptions
        ):
            raise CallerError(
                "Checkpoint has nothing to save: give it every_n_epochs, every_n_batches, every, last, topk or "
                "on_exceptions. (To go on after a crash a run needs none: it takes its own snapshots.)"
            )
        self._hear()

    def _hear(self) -> None:
        """Hear what there is something to do at, and nothing else."""
        if self.every_n_batches or self._seconds:
            self.on_train_batch_end = self._after_batch  # type: ignore[method-assign]
        if self.every_n_epochs or self.last:
            self.on_train_epoch_end = self._after_epoch  # type: ignore[method-assign]
        if self._top.queue:
            self.on_sanity_check_end = self._after_sanity_check  # type: ignore[method-assign]
            self.on_validate_end = self._after_validation  # type: ignore[method-assign]
        if self.on_exceptions:
            self.on_exception = self._at_exception  # type: ignore[method-assign]

    def folder(self, trainer: Any) -> Path:
        """Return the folder that this run's saves are in."""
        return self._top.saver.folder(trainer)

    def on_after_trainer_initialized(self, trainer: Any, driver: Any) -> None:
        self._top.forget()
        self._regular, self._since = [], None
        self._top.saver.owner = owner_of(self, trainer)
        self._top.saver.check(trainer, type(self).__name__)
        if self._top.queue:
            self._top.take_monitor_of(trainer, type(self).__name__)
            check_validates(trainer, type(self).__name__)

    def on_train_begin(self, trainer: Any) -> None:
        self._go_on(trainer)

    def on_after_resume(self, trainer: Any, report: Any) -> None:
        self._go_on(trainer, report)

    def _go_on(self, trainer: Any, report: Any = None) -> None:
        there = self._top.go_on(trainer, report)
        self._regular = [saved.name for saved in there if saved.kind == "regular"]
        self._since = trainer.world.timer()

    # -- what is saved when --------------------------------------------------------------------------------

    def _after_batch(self, trainer: Any) -> None:
        batches = trainer.trainer_state.global_forward_batches
        by_count = self.every_n_batches is not None and batches % self.every_n_batches == 0
        if by_count or self._time_is_over(trainer):
            self._save_regular(trainer, _where(trainer))
        self._sweep(trainer)

    def _time_is_over(self, trainer: Any) -> bool:
        if self._seconds is None:
            return False
        now = trainer.world.timer()
        if not trainer.ranks.agree(now - (self._since or 0.0) >= self._seconds):
            return False
        self._since = now
        return True

    def _after_epoch(self, trainer: Any) -> None:
        done = trainer.trainer_state.cur_epoch_idx
        if self.every_n_epochs is not None and done % self.every_n_epochs == 0:
            self._save_regular(trainer, f"epoch_{done}")
        if self.last:
            self._save(trainer, "last", "last")
        self._sweep(trainer)

    def _after_sanity_check(self, trainer: Any, sanity_check_res: dict[str, Any]) -> None:
        self._top.check_results(sanity_check_res)

    def _after_validation(self, trainer: Any, results: dict[str, Any]) -> None:
        self._top.save_topk(trainer, results)
        self._sweep(trainer)

    def _at_exception(self, trainer: Any, exception: BaseException) -> None:
        if not isinstance(exception, self.on_exceptions):
            return
        if self._top.saver.save_object == "trainer" and parted(trainer):
            if trainer.ranks.writes:
                warnings.warn("Checkpoint: a trainer isn't saved where one of its ranks has failed", stacklevel=2)
        else:
            self._save(trainer, f"{_where(trainer)}-exception_{type(exception).__name__}", "exception")

    def _save(self, trainer: Any, name: str, kind: str, then: Callable[[Path | None], None] | None = None) -> None:
        saver = self._top.saver
        saver.save(trainer, f"{saver.save_object}-{name}", kind=kind, then=then)

    def _save_regular(self, trainer: Any, name: str) -> None:
        self._save(trainer, name, "regular", lambda place: self._saved(trainer, place))

    def _saved(self, trainer: Any, place: Path | None) -> None:
        if place is None or (self.keep_last is None and not self._top.saver.superseded):
            return  # nobody asks for it
        self._regular = [*(held for held in self._regular if held != place.name), place.name]
        while self.keep_last is not None and len(self._regular) > self.keep_last:
            self._top.saver.remove(trainer, self._regular.pop(0))

    def _sweep(self, trainer: Any) -> None:
        """Remove what the life before had saved up to here; when what was saved just now is there."""
        if self._top.saver.superseded:
            trainer.later(lambda: self._top.saver.sweep(trainer, {*self._regular, *self._top.queue.held}))

    # -- memory --------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return the table of the best; nothing where there is none. The other saves tell of themselves on the disk."""
        return self._top.state_dict() if self._top.queue else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._top.load_state_dict(state)


CheckpointCallback = Checkpoint
"""The reference trainer's name for it."""


def _where(trainer: Any) -> str:
    state = trainer.trainer_state
    return f"epoch_{epochs_done(state)}-batch_{state.global_forward_batches}"


def _translated(given: dict[str, Any], spellings: dict[str, Any]) -> dict[str, Any]:
    """Take older names of arguments for the newer ones."""
    told = dict(spellings)
    if "is_trainer_checkpoint" in told and told.pop("is_trainer_checkpoint"):
        told["save_object"] = "trainer"
    for old, value in told.items():
        name = "save_object" if old == "save_object" else _SPELLINGS.get(old)
        if name is None:
            known = [*given, "monitor", "larger_better", "model_save_fn", "every", "keep_last", *_SPELLINGS]
            raise unknown_argument("Checkpoint", old, value, known)
        if given[name] not in (None, False, 0, "model"):
            raise CallerError(f"{old} is an older name of {name}, which was given too: give one of them")
        given = {**given, name: value}
    return given


def _number(value: Any, name: str) -> int | None:
    if value is not None and (type(value) is not int or value < 1):
        raise CallerError(f"{name} must be an integer >= 1 or None, not {value!r}")
    return value


def _seconds(every: Any) -> float | None:
    if every is None:
        return None
    seconds = in_seconds(every) if isinstance(every, str) else 0.0
    if not seconds > 0:
        raise CallerError(f"every must be a time such as '10min', or None, not {every!r}")
    return seconds


def _classes(given: Any) -> tuple[type[BaseException], ...]:
    classes = tuple(given) if isinstance(given, (list, tuple)) else () if given is None else (given,)
    for each in classes:
        if not (isinstance(each, type) and issubclass(each, BaseException)):
            raise CallerError(f"on_exceptions must be classes of errors, not {each!r}")
    return classes
