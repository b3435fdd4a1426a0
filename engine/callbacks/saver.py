"""`Saver`: writes models, or whole trainers, under names in a folder that belongs to one run.

A save is a folder of its own that appears whole: it is written under a temporary name. It carries a note of who wrote
it and when, so that a run that goes on knows its own saves, and touches no others.

Of many ranks all save together, and rank 0 writes. What it finds on the disk, the others are told, so that all decide
alike; a save that fails there has failed on all.
"""

from __future__ import annotations

import json
import os
import re
import uuid
import warnings
from collections.abc import Callable, Container, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from tachograph.states.errors import CallerError, TachographError

from .. import recording, saved, snapshots
from ..alike import by_first, found_by_first
from ..journal import write_file
from ..retention import remove
from ..snapshots import SnapshotWriteFault
from .saves import (
    MODEL,
    NOTE,
    RESULTS,
    Saved,
    epochs_done,
    fitting,
    free_name,
    is_of,
    make_anew,
    publish,
    saves_of,
    tidy,
)
from .writable import check_early, check_writable

OBJECTS = ("model", "trainer", "weights")
_COUNTED = ("best", "regular", "topk")  # kinds of saves that make room for others


class SaveFault(TachographError, OSError):
    """A save couldn't be written; those that were there before still are. `filename` is where it was to be."""

    def __str__(self) -> str:
        return str(self.strerror)  # a sentence, which names the file


class Saver:
    """Saves a trainer's model, or the trainer, under names.

    Args:
        folder: where a folder is made for each run that saves; None: `<run_dir>/checkpoints` of the run.
        save_object: "model": the model's weights, as `trainer.save_model` writes them, or what `model_save_fn` does;
            "weights": the weights; "trainer": a snapshot that `run(resume_from=...)` takes, as `trainer.save` does.
        only_state_dict: True, see `trainer.save_model`; of no matter to a `model_save_fn`.
        model_save_fn: `f(folder)`, writes the model into an empty folder in place of `trainer.save_model`.
        save_evaluate_results: put the results, where there are some, into a file of the save.
        owner: whose saves these are, where several savers work in one run; "": nobody's else.

    Raises:
        CallerError: an argument can't be used.
    """

    def __init__(
        self,
        folder: str | Path | None = None,
        save_object: str = "model",
        only_state_dict: bool = True,
        model_save_fn: Callable[[Any], Any] | None = None,
        save_evaluate_results: bool = True,
        *,
        owner: str = "",
    ) -> None:
        if folder is not None and not isinstance(folder, (str, Path)):
            raise CallerError(f"folder must be a path or None, not {folder!r}")
        if save_object not in OBJECTS:
            raise CallerError(f"save_object must be one of {', '.join(map(repr, OBJECTS))}, not {save_object!r}")
        if model_save_fn is not None and not callable(model_save_fn):
            raise CallerError(f"model_save_fn must be a function f(folder), not {model_save_fn!r}")
        if model_save_fn is not None and save_object != "model":
            raise CallerError(f"model_save_fn is for save_object='model', not for {save_object!r}")
        if only_state_dict is not True and model_save_fn is None and save_object == "model":
            raise CallerError(
                "only_state_dict must be True: a whole module can only be pickled, and nothing is ever unpickled here. "
                "Give a model_save_fn(folder) that writes it in your way"
            )
        self.base = None if folder is None else Path(folder)
        self.save_object = save_object
        self.model_save_fn = model_save_fn
        self.save_evaluate_results = save_evaluate_results
        self.owner = owner
        self._who = "this callback"  # for messages
        self._own: tuple[str, str] | None = None  # the folder and the id of a run that keeps nothing on disk
        self.superseded: dict[str, int] = {}  # what an earlier life made past here: name -> seq
        self.source: Path | None = None  # the save that this process was resumed from

    def check(self, trainer: Any, who: str) -> None:
        """Refuse a trainer that there is no folder for, or one that can't be written to.

        Args:
            trainer: who saves.
            who: what messages call the callback that saves.

        Raises:
            CallerError: neither the trainer nor the caller said where to write; or nothing can be written there.
        """
        self._who = who
        self.folder(trainer)  # here, where all ranks are
        by_first(trainer.ranks, lambda: self._check_early(trainer))

    def _check_early(self, trainer: Any) -> None:
        with self._as_policy_says(trainer):
            check_early(self.base, self._who)

    def folder(self, trainer: Any) -> Path:
        """Return the folder of this run's saves: the same in all its lives."""
        own = f"-{self.owner}" if self.owner else ""
        if self.base is None:
            if trainer.run_dir is None:
                raise CallerError(f"{self._who} needs a folder, since this trainer has no run_dir: give it one of them")
            return Path(trainer.run_dir) / fitting(f"checkpoints{own}")
        return self.base / fitting(self._run(trainer)[0] + own)

    def save(
        self,
        trainer: Any,
        name: str,
        *,
        kind: str = "",
        results: Any = None,
        as_evaluated: bool = False,
        then: Callable[[Path | None], None] | None = None,
    ) -> Path:
        """Save under a name; a save of this run that has it is replaced when the new one is whole.

        A model is saved at once. A trainer is saved when everybody has heard the transition in work, so that what is
        saved is exact. Of many ranks all call it.

        Args:
            trainer: whose model; or it itself.
            name: of the save; what no file system likes in it is replaced.
            kind: what it is made for.
            results: of the validation that it is made for.
            as_evaluated: save the weights that evaluations use, where a callback has them use others (an average).
            then: called with the folder when the save is there; with None if it couldn't be written, be that an error
                or, with the trainer's `on_snapshot_fault="warn"`, a warning.

        Returns:
            The folder that it is, or will be, in.

        Raises:
            SaveFault: it couldn't be written.
        """
        folder, run = self.folder(trainer), self._run(trainer)[1]
        place = folder / found_by_first(trainer.ranks, lambda: free_name(folder, fitting(name), run))
        about = (place, kind, results)
        if self.save_object != "trainer":
            self._whole(trainer, lambda: self._save_model(trainer, *about, as_evaluated), place, then)
        elif trainer._running:
            trainer.later(lambda: self._whole(trainer, lambda: self._save_trainer(trainer, *about), place, then))
        else:
            self._whole(trainer, lambda: self._save_trainer(trainer, *about), place, then)
        return place

    def remove(self, trainer: Any, name: str) -> bool:
        """Remove a save of this run; one that is somebody else's, or that this process was resumed from, is left alone.

        Of many ranks, rank 0 does it, and the others don't wait for it.

        Returns:
            Whether it was there and is gone.
        """
        if not trainer.ranks.writes:
            return False
        folder = self.folder(trainer)
        if folder / name == self.source or not is_of(self._run(trainer)[1], folder / name):
            return False
        try:
            remove(trainer.world.files, folder / name)
        except OSError as error:
            warnings.warn(f"{folder / name} couldn't be removed: {error}. The run goes on", stacklevel=2)
        return True

    def written(self, trainer: Any) -> dict[str, Saved]:
        """List this run's saves that are there, by their names; of many ranks all call it."""
        folder, run = self.folder(trainer), self._run(trainer)[1]
        return found_by_first(trainer.ranks, lambda: saves_of(run, folder))

    def tidy(self, trainer: Any) -> None:
        """Put right what a process that died had begun: half written saves go, half replaced ones come back."""
        folder, files = self.folder(trainer), trainer.world.files
        by_first(trainer.ranks, lambda: tidy(folder, files))

    def forget(self) -> None:
        """Forget the run that this has saved in: what comes is another trainer's."""
        self._own, self.superseded, self.source = None, {}, None

    def go_on(self, trainer: Any, report: Any = None) -> list[Saved]:
        """Stand where a run begins or goes on: put the folder right, and look for what an earlier life made past here.

        The folder is tried, unless it isn't there yet and is to lie in the run directory.

        Args:
            trainer: where it is.
            report: of a resume; what it was resumed from isn't removed in this life.

        Returns:
            This run's saves that count here, in the order they were made.

        Raises:
            CallerError: nothing can be written into the folder.
        """
        folder = self.folder(trainer)
        by_first(trainer.ranks, lambda: self._try(trainer, folder))
        self.tidy(trainer)
        given = None if report is None else report.snapshot
        self.source = None if given is None else folder / Path(given).name
        there, now = sorted(self.written(trainer).values(), key=lambda s: s.seq), trainer.trainer_state.seq
        self.superseded = {s.name: s.seq for s in there if s.seq > now and s.kind in _COUNTED}
        return [s for s in there if s.name not in self.superseded]

    def _try(self, trainer: Any, folder: Path) -> None:
        with self._as_policy_says(trainer):
            if self.base is not None:
                check_writable(folder if os.path.isdir(folder) else self.base, self._who)
            elif os.path.lexists(folder):
                check_writable(folder, self._who)

    @contextmanager
    def _as_policy_says(self, trainer: Any) -> Iterator[None]:
        """Refuse a folder that can't be written to, or only warn of it, as of a save that can't."""
        try:
            yield
        except CallerError as error:
            if trainer.on_snapshot_fault != "warn":
                raise
            warnings.warn(f"{error}. The run goes on", stacklevel=4)

    def sweep(self, trainer: Any, counted: Container[str]) -> None:
        """Remove what an earlier life of the run made up to here, and this one hasn't made again.

        It isn't removed before: should this process die too, it would be the best there is.

        Args:
            trainer: where it is.
            counted: the names of the saves that this life keeps.
        """
        now = trainer.trainer_state.seq
        for name in [name for name, seq in self.superseded.items() if seq <= now]:
            del self.superseded[name]
            if name not in counted:
                self.remove(trainer, name)

    # -- one save ------------------------------------------------------------------------------------------

    def _whole(
        self, trainer: Any, save: Callable[[], None], place: Path, then: Callable[[Path | None], None] | None
    ) -> None:
        """Save, say what went wrong in one way, and tell who waits for it."""
        there = False
        try:
            save()
            there = True
        except OSError as error:
            why = error if isinstance(error, SnapshotWriteFault) else error.strerror or error
            left = ". Earlier saves are intact" if self.written(trainer) else ""
            fault = SaveFault(error.errno, f"{place} couldn't be written: {why}{left}")
            fault.filename = str(place)
            if trainer.on_snapshot_fault != "warn":
                raise fault from error
            if trainer.ranks.writes:
                warnings.warn(f"{fault}. The run goes on", stacklevel=3)
        finally:
            if then is not None:
                then(place if there else None)

    def _save_trainer(self, trainer: Any, place: Path, kind: str, results: Any) -> None:
        run = self._run(trainer)[1]
        by_first(trainer.ranks, lambda: saved.check_folder(place))
        saved.save(trainer, place)
        by_first(trainer.ranks, lambda: self._tell(trainer, place, run, place.name, kind, results))

    def _save_model(self, trainer: Any, place: Path, kind: str, results: Any, as_evaluated: bool) -> None:
        ranks, files, run = trainer.ranks, trainer.world.files, self._run(trainer)[1]
        temporary = place.with_name(f"{snapshots.TEMPORARY}{place.name}")

        def finish() -> None:
            self._tell(trainer, temporary, run, place.name, kind, results)
            files.fsync_dir(temporary)
            publish(files, temporary, place)

        try:
            by_first(ranks, lambda: make_anew(temporary, files))
            self._write_model(trainer, temporary, as_evaluated)
            by_first(ranks, finish)
        except BaseException:
            if ranks.writes:
                files.remove_tree(temporary)
            raise

    def _write_model(self, trainer: Any, folder: Path, as_evaluated: bool) -> None:
        with weights_of_evaluations(trainer) if as_evaluated else nullcontext():
            if self.model_save_fn is not None:
                trainer.save_model(folder, model_save_fn=self.model_save_fn)
            else:
                trainer.save_model(folder / MODEL)

    def _tell(self, trainer: Any, folder: Path, run: str, name: str, kind: str, results: Any) -> None:
        state, files = trainer.trainer_state, trainer.world.files
        if results is not None and self.save_evaluate_results:
            write_file(files, folder / RESULTS, json.dumps(results, indent=2, default=str).encode())
        note = {"run": run, "name": name, "kind": kind, "seq": state.seq}
        note |= {"epoch": epochs_done(state), "batch": state.global_forward_batches}
        write_file(files, folder / NOTE, json.dumps(note).encode())

    def _run(self, trainer: Any) -> tuple[str, str]:
        """Return the name of this run's folder, and its id; both are those of `run.json`, where there is one."""
        if trainer.run_dir is not None and recording.holds_a_run(trainer.run_dir):
            about = recording.load(trainer.run_dir)
            began = re.sub(r"[-:]|\+.*", "", about["created"])
            return f"{began}Z-{about['run'][:6]}", about["run"]
        if self._own is None:
            self._own = trainer.ranks.share((recording.new_run_dir().name, uuid.uuid4().hex))
        return self._own


@contextmanager
def weights_of_evaluations(trainer: Any) -> Iterator[None]:
    """Run the body with the weights in the model that its evaluations use, where a callback has them use others."""
    with ExitStack() as stack:
        for entered in trainer.within:
            stack.enter_context(entered())
        yield


def owner_of(callback: Any, trainer: Any) -> str:
    """Return what tells a callback's saves from those of others of one run; "" for the one that most runs have."""
    key = next((key for key, held in trainer.listeners.callbacks.items() if held is callback), "")
    return "" if key == "Checkpoint" else key


__all__ = ["SaveFault", "Saver", "owner_of", "weights_of_evaluations"]
