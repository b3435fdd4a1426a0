"""A trainer in a folder of the user's: a snapshot that carries its run's settings, so that it needs no run directory.

The one that was there before goes aside by a rename while the new one, which is whole, takes its name. A kill between
the two leaves both under other names; `snapshots.settle` then takes the new one.

Of many ranks each gives its part of it, and rank 0 publishes the whole.
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
from .alike import alone, by_each
from .joint import Files, Joint, Save
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
        CallerError: the run hasn't begun, something in it can't be saved, or one of many ranks has failed.
        SnapshotWriteFault: it can't be written; what was there is there still.
    """
    driver, ranks = engine.driver, engine.ranks
    if driver is None or engine.trainer_state.seq == 0:
        raise CallerError("there is no run to save yet: save_model() saves the weights alone")
    if parted(engine):
        raise CallerError("a rank has failed, so the trainer can't be saved: that takes the parts of all ranks")
    if engine._recorder is not None:
        engine._recorder.snapshots.wait()  # one copy in memory at a time
    about, extra, batch = _now(engine)
    if ranks.world_size > 1:
        about["chains"] = ranks.gather(about["chain"])
    with contextlib.ExitStack() as stack:
        for entered in engine.as_trained:
            stack.enter_context(entered())
        capture = driver.capture(extra, batch)

    def part(directory: Path) -> Files:
        return driver.save(capture, directory)

    def whole(directory: Path) -> Files:
        return {**part(directory), **_own_model(engine, directory, model_save_fn)}

    joint = Joint(ranks) if ranks.world_size > 1 else None
    refused: OSError | None = None
    try:
        if joint is None:
            _publish(engine, path, about, whole)
        elif ranks.first:
            with joint.published() as published:
                _publish(engine, path, about, joint.all_parts(whole))
                published(path)
        else:
            joint.part(part, lambda: None)
    except OSError as error:
        refused = error
    ranks.barrier()  # what the others have still to read is in rank 0's keeping
    if refused is not None:
        fault = SnapshotWriteFault(f"the trainer couldn't be saved to {path}: {refused}")
        fault.path, fault.needed, fault.errno = path, driver.size_of(capture), refused.errno
        raise fault from refused


def parted(engine: Engine) -> bool:
    """Say whether one of many ranks has failed, so that they have no common state any more."""
    return engine.ranks.world_size > 1 and engine.exception is not None and not engine._heeded


def _publish(engine: Engine, path: Path, about: dict[str, Any], save: Save) -> None:
    files = engine.world.files
    temporary, aside = path.with_name(f"{TEMPORARY}{path.name}"), path.with_name(f"{REMOVING}{path.name}")
    try:
        make_dirs(files, path.parent)
        write_whole(files, temporary, about, save, about["about"]["run"], about.pop("incarnation"))
        if path.exists():
            files.remove_tree(aside)
            files.rename(path, aside)
        files.rename(temporary, path)
        files.fsync_dir(path.parent)
    except OSError:
        with contextlib.suppress(OSError):
            snapshots.settle(path)
        files.remove_tree(temporary)
        raise
    files.remove_tree(aside)


def load(engine: Engine, path: Path, model_load_fn: Callable[[Path], Any] | None, training: bool) -> Path | None:
    """Put the model and the optimizers of a snapshot in place, on every rank.

    Returns:
        What the next run goes on from; None if not `training`.
    """
    driver, ranks = engine.driver, engine.ranks
    assert driver is not None
    at = by_each(ranks, lambda: _found(engine, path, training))
    engine._prepare(fresh=False)
    _, held = by_each(ranks, lambda: driver.read(at))
    driver.restore(held, training=False)
    if model_load_fn is not None:
        own = at / OWN_MODEL
        by_each(ranks, lambda: model_load_fn(own if own.is_dir() else at))
    return path if training else None


def _found(engine: Engine, path: Path, training: bool) -> Path:
    """Return where the snapshot is that a path means, if it can be used."""
    source = sources.find(path, engine.run_dir, engine.driver)
    assert source is not None
    snapshot = sources.intact_snapshot(source)
    if training and source.about is not None:
        engine.take_settings(source.about)  # refused here, and not in the middle
    return snapshot.path


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
        "about": recording.about(
            engine._settings(), engine._environment(), _run_of(engine), machine=engine.machine
        ),
    }
    return about, extra, NO_BATCH if batch is None else batch


def _run_of(engine: Engine) -> str:
    if engine._recorder is not None:
        return engine._recorder.run
    held = engine.run_dir is not None and recording.holds_a_run(engine.run_dir)
    return recording.load(engine.run_dir)["run"] if held else ""  # type: ignore[arg-type,no-any-return]


def _own_model(engine: Engine, directory: Path, model_save_fn: Callable[[Path], Any] | None) -> Files:
    """Have a user's function write the model, and return its files as a snapshot's own."""
    if model_save_fn is None:
        return {}
    folder = directory / OWN_MODEL
    folder.mkdir()
    alone(engine.ranks, lambda: model_save_fn(folder))
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    return {file.relative_to(directory).as_posix(): (file.stat().st_size, snapshots.digest_of(file)) for file in files}


__all__ = ["check_folder", "load", "parted", "save"]
