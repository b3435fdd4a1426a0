"""`LoadBestModel`: remembers the best weights, and leaves them in the model when training has ended.

What a run is extended from are the weights that were trained, not the best: so these come back when it goes on. A
resumed run has them from its last snapshot, which is taken before this callback hears of the end.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tachograph.states.errors import CallerError

from .. import snapshots
from ..alike import found_by_first
from .other_words import names_its_arguments
from .results_monitor import Asked, HasMonitorCallback
from .saver import Saver, owner_of, weights_of_evaluations
from .saves import Saved, epochs_done


@names_its_arguments
class LoadBestModel(HasMonitorCallback):
    """Puts the weights with the best results into the model when a run ends: by its limits, a stop or an error.

    They are kept in memory, or in a folder. In memory they are part of every snapshot, so that they are there wherever
    the run is resumed. In a folder they are files, and a snapshot names its file. Of many ranks each gets them; after
    an error they are left as they are there.

    Args:
        monitor: see `HasMonitorCallback`; None takes the trainer's.
        larger_better: a larger value is the better one; None takes the trainer's.
        only_state_dict: True, see `trainer.save_model`.
        save_folder: where a folder is made for each run; None: in memory.
        model_save_fn: `f(folder)`, writes the model in a way of your own; with `save_folder`.
        model_load_fn: `f(folder)`, reads what `model_save_fn` wrote, into the model.
        delete_after_train: remove the files when they have been loaded at the end of the run. They stay where the run
            is to go on: after an error, a signal, and when its `max_time` is over.

    Attributes:
        best_at: (epochs that were through, batches of the run) when it was the best; None before.

    Raises:
        CallerError: an argument can't be used; or, when the trainer is built, there is no monitor.
    """

    replays = False
    in_quick_pass = False

    def __init__(
        self,
        monitor: Asked = None,
        larger_better: bool | None = None,
        only_state_dict: bool = True,
        save_folder: str | Path | None = None,
        model_save_fn: Callable[[Any], Any] | None = None,
        model_load_fn: Callable[[Any], Any] | None = None,
        delete_after_train: bool = True,
    ) -> None:
        super().__init__(monitor, larger_better)
        if (model_save_fn is None) != (model_load_fn is None):
            lacking = "model_save_fn" if model_save_fn is None else "model_load_fn"
            raise CallerError(f"model_save_fn and model_load_fn belong together: {lacking} is missing")
        if model_save_fn is not None and save_folder is None:
            raise CallerError("model_save_fn writes files: give a save_folder for them")
        self._saver = Saver(save_folder, "model", only_state_dict, model_save_fn)
        self._in_files = save_folder is not None
        self.in_rehearsal = not self._in_files
        self._load_fn = model_load_fn
        self._delete = delete_after_train
        self._begin_anew()
        if self._in_files:
            self.on_after_snapshot = self._published  # type: ignore[method-assign]

    def _begin_anew(self) -> None:
        self.best_at: tuple[int, int] | None = None
        self._weights: Any = None  # the best, in memory
        self._file: Path | None = None  # the best, in a folder
        self._named: set[str] = set()  # the files that a snapshot may name
        self._old: dict[str, int] = {}  # those that were good enough once: name -> since when they aren't
        self._trained: Any = None  # while the best are in the model
        self._put: Any = None
        self._saver.forget()

    def on_after_trainer_initialized(self, trainer: Any, driver: Any) -> None:
        super().on_after_trainer_initialized(trainer, driver)
        if any(isinstance(held, LoadBestModel) and held is not self for held in trainer.listeners.callbacks.values()):
            raise CallerError("two LoadBestModel would each leave its weights in the one model: give one of them")
        self._begin_anew()
        self._saver.owner = owner_of(self, trainer)
        if self._in_files:
            self._saver.check(trainer, type(self).__name__)
        trainer.as_trained.append(lambda: self._as_trained(driver))

    # -- the best ------------------------------------------------------------------------------------------

    def on_validate_end(self, trainer: Any, results: dict[str, Any]) -> None:
        value, state = self.get_monitor_value(results), trainer.trainer_state
        if self.is_better_monitor_value(value, keep_if_better=False):
            at = (epochs_done(state), state.global_forward_batches)
            if self._in_files:
                self._write(trainer, value, at, results)
            else:
                with weights_of_evaluations(trainer):
                    self._keep(value, at, weights=trainer.driver.weights())
        self._sweep(trainer)

    def _write(self, trainer: Any, value: float | None, at: tuple[int, int], results: dict[str, Any] | None) -> None:
        def written(place: Path | None) -> None:
            if place is None:
                return
            if self._file is not None and self._file != place and trainer.ranks.writes:
                self._old[self._file.name] = trainer.trainer_state.seq
            self._keep(value, at, file=place)

        name, evaluated = f"best-epoch_{at[0]}-batch_{at[1]}", results is not None
        self._saver.save(trainer, name, kind="best", results=results, as_evaluated=evaluated, then=written)

    def _keep(self, value: float | None, at: tuple[int, int], *, weights: Any = None, file: Path | None = None) -> None:
        """Remember what is the best now, and is held somewhere."""
        self.is_better_monitor_value(value)
        self.best_at, self._weights, self._file = at, weights, file

    def _sweep(self, trainer: Any) -> None:
        """Remove files that were the best once, but for those that a snapshot may name until a later one is there."""
        if not self._in_files:
            return
        for name in [name for name in self._old if name not in self._named]:
            del self._old[name]
            self._saver.remove(trainer, name)
        self._saver.sweep(trainer, {*self._old, "" if self._file is None else self._file.name})

    def _published(self, trainer: Any, path: Any) -> None:
        if not trainer.ranks.writes:  # which hears of it sooner or later than rank 0, and removes nothing
            return
        now = snapshots.read(Path(path)).seq
        self._named -= {name for name, since in self._old.items() if since <= now}
        self._sweep(trainer)

    # -- the end -------------------------------------------------------------------------------------------

    def on_train_end(self, trainer: Any) -> None:
        several = trainer.ranks.world_size > 1
        if self._trained is not None or (several and trainer.exception is not None) or not self._is_there(trainer):
            return
        trained = trainer.driver.weights()
        if self._weights is not None:
            trainer.driver.put_weights(self._weights)
        else:
            trainer.load_model(self._file, model_load_fn=self._load_fn)
        self._trained, self._put = trained, trainer.driver.weights() if self._weights is None else self._weights
        at = "" if self.best_at is None else f", after batch {self.best_at[1]}"
        trainer.say(f"the model has the best weights now: {self.monitor_name} was {self.monitor_value}{at}")
        if self._in_files and self._delete and _is_over(trainer):
            self._delete_files(trainer)

    def _is_there(self, trainer: Any) -> bool:
        """Say whether there are best weights to be loaded; of many ranks all ask."""
        if self._weights is not None or self._file is None:
            return self._weights is not None
        return found_by_first(trainer.ranks, self._file.exists)

    def _delete_files(self, trainer: Any) -> None:
        saver = self._saver
        for name, held in saver.written(trainer).items():
            if held.kind == "best":
                saver.remove(trainer, name)
        self._old, self._named = {}, set()
        folder = saver.folder(trainer)
        if trainer.ranks.writes and folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()

    @contextmanager
    def _as_trained(self, driver: Any) -> Iterator[None]:
        """Run the body with the weights that were trained in the model, whatever is in it now."""
        if self._trained is None or not driver.has_weights(self._put):
            yield
            return
        driver.put_weights(self._trained)
        try:
            yield
        finally:
            driver.put_weights(self._put)

    # -- going on ------------------------------------------------------------------------------------------

    def on_continue(self, trainer: Any) -> None:
        trained, put, self._trained, self._put = self._trained, self._put, None, None
        if trained is None:
            return
        as_left = trainer.driver.has_weights(put)
        if not trainer.ranks.agree(not as_left):
            if not self._is_there(trainer):  # the files were deleted, but what they held is in the model
                self._write(trainer, self.monitor_value, self.best_at or (0, 0), None)
            trainer.driver.put_weights(trained)
        else:
            trainer.say("the model has other weights than those that LoadBestModel put into it: they are left in it")
        self._forget_what_is_lost(trainer)

    def on_train_begin(self, trainer: Any) -> None:
        self._go_on(trainer)

    def on_after_resume(self, trainer: Any, report: Any) -> None:
        self._go_on(trainer)

    def _go_on(self, trainer: Any) -> None:
        self._trained = self._put = None  # the model has those of the snapshot
        if self._in_files:
            there = self._saver.go_on(trainer)
            if self._file is not None and not self._is_there(trainer):
                self._file = self._saver.folder(trainer) / self._file.name  # the run was moved
            self._take_up(trainer, there)
        self._forget_what_is_lost(trainer)

    def _take_up(self, trainer: Any, there: list[Saved]) -> None:
        """Remember which file the snapshot names that the run goes on from; those before it, a kill has left behind."""
        if not trainer.ranks.writes:
            return
        best = "" if self._file is None else self._file.name
        self._named |= {best} - {""}
        self._old.update((held.name, held.seq) for held in there if held.kind == "best" and held.name != best)
        self._sweep(trainer)

    def _forget_what_is_lost(self, trainer: Any) -> None:
        if self.monitor_value is None or self._is_there(trainer):
            return
        if trainer.ranks.writes:
            warnings.warn(
                f"LoadBestModel: the best weights so far ({self.monitor_name} = {self.monitor_value}) aren't in "
                f"{self._file} any more: the best from here on counts. delete_after_train=False keeps them",
                stacklevel=3,
            )
        self._file = self.best_at = None
        self.forget_best()

    # -- memory --------------------------------------------------------------------------------------------

    def built_with(self) -> dict[str, Any]:
        """Return nothing: none of the settings changes what is trained."""
        return {}

    def on_save_checkpoint(self, trainer: Any) -> dict[str, Any]:
        if self._file is not None and trainer.run_dir is not None and trainer.ranks.writes:
            self._named.add(self._file.name)
        return self.state_dict()

    def state_dict(self) -> dict[str, Any]:
        held = super().state_dict()
        if not held:
            return {}
        file = None if self._file is None else str(self._file)
        return {**held, "weights": self._weights, "file": file, "at": list(self.best_at or ())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._weights = state["weights"]
        self._file = None if state["file"] is None else Path(state["file"])
        self.best_at = tuple(state["at"]) or None


LoadBestModelCallback = LoadBestModel
"""The reference trainer's name for it."""


def _is_over(trainer: Any) -> bool:
    """Say whether a run is done for good, as far as anybody knows: nothing cut it off. Of many ranks all ask."""
    cut = trainer.interrupted() or trainer.exception is not None
    limits = getattr(trainer, "_limits", None)
    return not cut and not trainer.ranks.agree(limits is not None and bool(limits.out_of_time()))
