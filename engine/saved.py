"""A trainer in a folder of the user's: a snapshot that carries its run's settings, so that it needs no run directory.

The one that was there before goes aside by a rename while the new one, which is whole, takes its name. A kill between
the two leaves both under other names; `snapshots.settle` then takes the new one.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from tachograph.drivers import NO_BATCH
from tachograph.states.errors import CallerError

from . import recording, resume, saving, snapshots, sources
from .journal import make_dirs
from .retention import REMOVING
from .snapshot_writer import write_whole
from .snapshots import TEMPORARY, SnapshotWriteFault

if TYPE_CHECKING:
    from .engine import Engine

OWN_MODEL = "model"
"""Where in the folder a user's own files of the model are."""


def check_folder(path: Path) -> None:
    """Refuse a folder that holds anything but what was saved to it.

    Raises:
        CallerError: it does, or it is a file, or lies in a run directory as one of the run's own snapshots.
    """
    snapshots.settle(path)
    if path.is_dir() and any(path.iterdir()) and not (path / "COMMIT").is_file():
        raise CallerError(f"{path} holds other files: give save() a folder of its own")
    if path.exists() and not path.is_dir():
        raise CallerError(f"{path} is a file: give save() a folder")
    if path.resolve().parent.name == "snapshots" and recording.holds_a_run(path.resolve().parent.parent):
        raise CallerError(f"{path} is where a run keeps its own snapshots: give save() another folder")


def save(engine: Engine, path: Path, model_save_fn: Callable[[Path], Any] | None = None) -> None:
    """Write a snapshot of an engine between two transitions, or of one that isn't running.

    Raises:
        CallerError: the run hasn't begun, or something in it can't be saved.
        SnapshotWriteFault: it can't be written; what was there is there still.
    """
    driver, files = engine.driver, engine.world.files
    if driver is None or engine.trainer_state.seq == 0:
        raise CallerError("there is no run to save yet: save_model() saves the weights alone")
    if engine._recorder is not None:
        engine._recorder.snapshots.wait()  # one copy in memory at a time
    about, extra, batch = _now(engine)
    with contextlib.ExitStack() as stack:
        for entered in engine.as_trained:
            stack.enter_context(entered())
        capture = driver.capture(extra, batch)

    def write(directory: Path) -> dict[str, tuple[int, str]]:
        written = driver.save(capture, directory)
        return {**written, **_own_model(directory, model_save_fn)}

    temporary, aside = path.with_name(f"{TEMPORARY}{path.name}"), path.with_name(f"{REMOVING}{path.name}")
    try:
        make_dirs(files, path.parent)
        write_whole(files, temporary, about, write, about["about"]["run"], about.pop("incarnation"))
        if path.exists():
            files.remove_tree(aside)
            files.rename(path, aside)
        files.rename(temporary, path)
        files.fsync_dir(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            snapshots.settle(path)
        files.remove_tree(temporary)
        fault = SnapshotWriteFault(f"the trainer couldn't be saved to {path}: {error}")
        fault.path, fault.needed, fault.errno = path, driver.size_of(capture), error.errno
        raise fault from error
    files.remove_tree(aside)


def load(engine: Engine, path: Path, model_load_fn: Callable[[Path], Any] | None, training: bool) -> Path | None:
    """Put the model and the optimizers of a snapshot in place.

    Returns:
        What the next run goes on from; None if not `training`.
    """
    source = sources.find(path, engine.run_dir, engine.driver)
    assert source is not None
    assert engine.driver is not None
    snapshot = sources.intact_snapshot(source)
    if training and source.about is not None:
        engine.take_settings(source.about)  # refused here, and not in the middle
    engine._prepare(fresh=False)
    _, held = engine.driver.read(snapshot.path)
    engine.driver.restore(held, training=False)
    if model_load_fn is not None:
        own = snapshot.path / OWN_MODEL
        model_load_fn(own if own.is_dir() else snapshot.path)
    return path if training else None


def _now(engine: Engine) -> tuple[dict[str, Any], dict[str, Any], Any]:
    """Say where the engine stands: what a snapshot tells of it, what belongs to its listeners, the batch in hand.

    One that ended stands before its final transition, as its last snapshot does, so that it can be extended.
    """
    state, recorder, rest = engine.trainer_state, engine._recorder, engine._rest
    extra, batch, exact = saving.check(engine), engine.batch, state.state != "exception"
    position = None if recorder is None else recorder.position
    if state.state in engine.machine.final and rest is not None:
        state, batch, position = rest.state, rest.batch, rest.position
        if rest.memory is not None:
            extra["listeners"] = rest.memory
        if hasattr(state, "stop_asked"):  # who had asked it to stop may ask again
            state = attrs.evolve(state, stop_asked="")
    position = position or attrs.evolve(resume.GENESIS, seq=state.seq)
    about = {
        "seq": state.seq,
        "chain": position.chain,
        "exact": exact,
        "schema": resume.schema_of(state),
        "state": attrs.asdict(state, recurse=False),
        "unwritten": None,
        "incarnation": position.incarnation,
        "about": recording.about(engine._settings(), engine._environment(), _run_of(engine)),
    }
    return about, extra, NO_BATCH if batch is None else batch


def _run_of(engine: Engine) -> str:
    if engine._recorder is not None:
        return engine._recorder.run
    held = engine.run_dir is not None and recording.holds_a_run(engine.run_dir)
    return recording.load(engine.run_dir)["run"] if held else ""  # type: ignore[arg-type,no-any-return]


def _own_model(directory: Path, model_save_fn: Callable[[Path], Any] | None) -> dict[str, tuple[int, str]]:
    """Have a user's function write the model, and return its files as a snapshot's own."""
    if model_save_fn is None:
        return {}
    folder = directory / OWN_MODEL
    folder.mkdir()
    model_save_fn(folder)
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    return {file.relative_to(directory).as_posix(): (file.stat().st_size, snapshots.digest_of(file)) for file in files}


__all__ = ["check_folder", "load", "save"]
