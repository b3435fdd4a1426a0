"""Files of a trainer's model, and of a whole trainer, where the user wants them: beside the snapshots of its run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tachograph.drivers import Driver
from tachograph.drivers.ranks import Ranks
from tachograph.states.errors import CallerError

from . import saved
from .alike import alone, by_each, by_first

MODEL = "model.pt"
"""The file of the weights in a folder."""


class Models:
    """Saves and loads a trainer's model, or all of a trainer.

    Of many ranks all call these, or one of them within `trainer.ranks.alone()`. What goes wrong on one is raised on
    all.
    """

    # what the other parts of a trainer bring
    driver: Driver | None
    ranks: Ranks
    _hear_inside: Callable[..., None]
    _running: bool
    later: Callable[[Callable[[], None]], None]
    _load_from: Path | None = None

    @property
    def model(self) -> Any:
        """The model as it was given."""
        return self.driver.model  # type: ignore[union-attr]

    @property
    def optimizers(self) -> list[Any]:
        """The optimizers, as a list."""
        return list(self.driver.optimizers)  # type: ignore[union-attr]

    def save_model(
        self, target: Any, only_state_dict: bool = True, model_save_fn: Callable[[Path], Any] | None = None
    ) -> None:
        """Write the model's weights, to be read with `load_model` or plain `torch.load(weights_only=True)`.

        Of many ranks, rank 0 writes them, and calls `model_save_fn`, alone; where each rank holds a share of the
        weights, all call it, and it sees to it that one of them writes. It is done when this returns on any.

        Args:
            target: a path, written whole or not at all; a folder that is there, or one named with a "/" at its end, for
                a `model.pt` in it; or an open binary file.
            only_state_dict: True; a whole module could only be pickled, and nothing is ever unpickled here.
            model_save_fn: `f(folder)`, writes the model in its own way instead; `target` is a folder then, and is made.

        Raises:
            CallerError: the arguments contradict each other.
            OSError: it can't be written.
        """
        _check_arguments(target, only_state_dict, "model_save_fn", model_save_fn)
        self._hear_inside("on_save_model")
        if model_save_fn is not None:
            self._save_by(model_save_fn, Path(target))
            return
        by_first(self.ranks, lambda: _make_room(target))
        by_each(self.ranks, lambda: self.driver.save_model(_model_file(target)))  # type: ignore[union-attr]

    def _save_by(self, model_save_fn: Callable[[Path], Any], folder: Path) -> None:
        by_first(self.ranks, lambda: folder.mkdir(parents=True, exist_ok=True))
        if self.driver.keeps_step:  # type: ignore[union-attr]
            by_each(self.ranks, lambda: model_save_fn(folder))
        else:
            by_first(self.ranks, lambda: alone(self.ranks, lambda: model_save_fn(folder)))

    def load_model(
        self, source: Any, only_state_dict: bool = True, model_load_fn: Callable[[Path], Any] | None = None
    ) -> None:
        """Load weights that `save_model` wrote.

        Of many ranks each reads them, and calls `model_load_fn`.

        Args:
            source: a path; a folder with a `model.pt` in it, which a snapshot is too; or an open binary file.
            only_state_dict: True; see `save_model`.
            model_load_fn: `f(folder)`, reads what a `model_save_fn` has written.

        Raises:
            FileNotFoundError: there is nothing at that path.
            RestoreFault: it doesn't fit the model; nothing was changed.
            CallerError: the arguments contradict each other.
        """
        _check_arguments(source, only_state_dict, "model_load_fn", model_load_fn)
        by_each(self.ranks, lambda: _check_there(source))
        self._hear_inside("on_load_model")
        if model_load_fn is not None:
            by_each(self.ranks, lambda: model_load_fn(Path(source)))
        else:
            by_each(self.ranks, lambda: self.driver.load_model(_model_file(source)))  # type: ignore[union-attr]

    def save(
        self,
        folder: str | Path,
        only_state_dict: bool = True,
        model_save_fn: Callable[[Path], Any] | None = None,
    ) -> None:
        """Write a snapshot of the whole trainer into a folder of its own, to be gone on from with `load`.

        While a run is under way, it is written after the transition in work, when everybody has heard it: then it is
        exact, whoever asks. It is whole or not there; one that was there before is replaced. Of many ranks each gives
        its part.

        Args:
            folder: a path: a new folder, an empty one, or one that was saved to.
            only_state_dict: True; see `save_model`.
            model_save_fn: `f(folder)`, writes the model in its own way too; its files are part of the snapshot. Of many
                ranks, rank 0 calls it, alone.

        Raises:
            CallerError: the run hasn't begun, the folder holds something else, or `model_save_fn` is given where each
                rank holds but a share of the weights.
            SnapshotWriteFault: it can't be written; what was there is there still.
        """
        _check_arguments(folder, only_state_dict, "model_save_fn", model_save_fn)
        if model_save_fn is not None and self.driver.keeps_step:  # type: ignore[union-attr]
            raise CallerError(
                "model_save_fn is called by rank 0 alone here, and each rank holds a share of the weights: leave it "
                "out, and give it to save_model(), where all ranks call it"
            )
        path = Path(folder)
        by_first(self.ranks, lambda: saved.check_folder(path))
        if self._running:
            self.later(lambda: saved.save(self, path, model_save_fn))  # type: ignore[arg-type]
        else:
            saved.save(self, path, model_save_fn)  # type: ignore[arg-type]

    def load(
        self,
        folder: str | Path,
        resume_training: bool = True,
        only_state_dict: bool = True,
        model_load_fn: Callable[[Path], Any] | None = None,
    ) -> None:
        """Load what `save` wrote, a snapshot of a run, or the newest one of a run directory.

        The model and the optimizers are there at once; the rest is restored by the next `run()`, which goes on from
        there, unless it is given another `resume_from`. Of many ranks each loads, and calls `model_load_fn`.

        Args:
            folder: a path.
            resume_training: False takes the model and the optimizers only: the next `run()` begins a new run.
            only_state_dict: True; see `save_model`.
            model_load_fn: `f(folder)`, reads what a `model_save_fn` has written.

        Raises:
            CallerError: the run is under way.
            FileNotFoundError, NotARun, SnapshotFault, RestoreFault: it can't be used; nothing was changed.
        """
        _check_arguments(folder, only_state_dict, "model_load_fn", model_load_fn)
        if self._running:
            raise CallerError("load() is for before run(): a run that is under way can't be put somewhere else")
        self._load_from = saved.load(self, Path(folder), model_load_fn, resume_training)  # type: ignore[arg-type]

    save_checkpoint = save
    load_checkpoint = load


def _model_file(target: Any) -> Any:
    if hasattr(target, "write") or hasattr(target, "read"):
        return target
    path = Path(target)
    return path / MODEL if path.is_dir() or str(target).endswith("/") else path


def _make_room(target: Any) -> None:
    if isinstance(target, (str, Path)):
        Path(_model_file(target)).parent.mkdir(parents=True, exist_ok=True)


def _check_there(source: Any) -> None:
    if not hasattr(source, "read") and not Path(source).exists():
        raise FileNotFoundError(f"there is no model at {source}")


def _check_arguments(place: Any, only_state_dict: Any, name: str, fn: Any) -> None:
    if only_state_dict is not True:
        raise CallerError(
            "only_state_dict must be True: a whole module can only be pickled, and nothing is ever unpickled here. "
            "Give a model_save_fn(folder) that writes it in your way"
        )
    if fn is not None and (not callable(fn) or not isinstance(place, (str, Path))):
        raise CallerError(f"{name} must be a function of (folder), and takes a folder, not {type(place).__name__}")
    if not isinstance(place, (str, Path)) and not hasattr(place, "write") and not hasattr(place, "read"):
        raise CallerError(f"a path or an open binary file is needed, not {place!r}")
