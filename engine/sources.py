"""What `resume_from` names: a run, or one snapshot of it. Whatever else it may be is said in a sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import attrs

from tachograph.drivers import Driver
from tachograph.drivers.ranks import ALONE
from tachograph.states.errors import CallerError

from . import recording, snapshots
from .alike import by_first
from .journal import Journal
from .snapshots import Snapshot, SnapshotFault

_LEGAL = "resume_from takes a run directory, or a snapshot of it: runs/<run>/snapshots/<name>"

_OF_WEIGHTS = (".pt", ".pth", ".ckpt", ".bin", ".tar")


@attrs.frozen
class Source:
    """A run, and a snapshot of it if one was given.

    Attributes:
        run_dir: the run; or the folder that a trainer was saved to.
        snapshot: the one that was given.
        about: what a trainer that was saved to a folder tells of its run; None for a run, whose `run.json` does.
    """

    run_dir: Path
    snapshot: Snapshot | None
    about: dict[str, Any] | None = None


@attrs.frozen
class Chosen:
    """What a run goes on from.

    Attributes:
        snapshot: None if there was none that can be used, and the run begins again.
        passed_over: a sentence for each snapshot that couldn't be used.
        torn: the names of those that were being written when their process died; they are gone.
    """

    snapshot: Snapshot | None
    passed_over: list[str] = attrs.field(factory=list)
    torn: list[str] = attrs.field(factory=list)


def find(resume_from: Any, run_dir: Path | None, driver: Driver | None = None) -> Source | None:
    """Read what `resume_from` names; None means that a new run begins.

    Args:
        resume_from: a path, "auto" or None.
        run_dir: what "auto" looks into.
        driver: knows what a foreign file is, and whose ranks look for it together.

    Raises:
        FileNotFoundError: there is nothing at that path.
        NotARun: it is neither a run directory nor a snapshot.
        SnapshotFault: it is a snapshot that isn't complete, is of a newer format, or lies in another run.
        CallerError: it is no path; or "auto" without a run directory.
    """
    if resume_from is None:
        return None
    if resume_from == "auto":
        if run_dir is None:
            raise CallerError("resume_from='auto' looks into run_dir, which is None: give the trainer a run_dir")
        return Source(run_dir, None) if recording.holds_a_run(run_dir) else None
    if not isinstance(resume_from, (str, Path)):
        raise CallerError(f"resume_from must be a path, 'auto' or None, not {resume_from!r}")
    path = Path(resume_from)
    by_first(ALONE if driver is None else driver.ranks, lambda: snapshots.settle(path))
    if not path.exists():
        raise FileNotFoundError(f"resume_from: there is nothing at {path}")
    if not path.is_dir():
        raise recording.NotARun(_about_file(path, driver))
    if path.resolve().parent.name == "snapshots" or (path / "COMMIT").is_file():
        return _saved(path, run_dir) or _in_its_run(path, snapshots.read(path))
    if path.name == "snapshots" and recording.holds_a_run(path.parent):
        raise recording.NotARun(f"{path} holds the snapshots of the run {path.parent}: give that, or one of them")
    try:
        recording.load(path)
    except recording.NotARun as fault:
        if recording.holds_a_run(path):
            raise
        raise recording.NotARun(f"{fault} {_about_folder(path)}") from None
    return Source(path, None)


def _about_file(path: Path, driver: Driver | None) -> str:
    within = next((p for p in path.parents if (p / "COMMIT").is_file() or recording.holds_a_run(p)), None)
    if within is not None:
        what = "snapshot" if (within / "COMMIT").is_file() else "run"
        return f"{path} is a file of the {what} {within}: give its directory"
    what = "a file" if driver is None else driver.what_is(path)
    return f"{path} is {what}, and no run. {_LEGAL}; trainer.load_model(path) takes a model's weights"


def _about_folder(path: Path) -> str:
    """Say what can be done with a folder that holds no run."""
    weights = sorted(p for p in path.iterdir() if p.suffix in _OF_WEIGHTS)
    if not weights:
        return _LEGAL
    if path / "model.pt" in weights:
        return f"{_LEGAL}; trainer.load_model(path) takes its model.pt"
    return f"{_LEGAL}; trainer.load_model({str(weights[0])!r}) takes its weights, if that is what it holds"


def _saved(path: Path, run_dir: Path | None) -> Source | None:
    """Return a trainer that was saved to a folder: as a point of the run that goes on here, or by itself."""
    snapshot = snapshots.read(path)
    fault = snapshot.fault_of("state.json")
    about = None if fault else snapshot.about().get("about")
    if about is None:
        return None
    here = run_dir is not None and recording.holds_a_run(run_dir) and recording.load(run_dir)["run"] == snapshot.run
    return Source(run_dir, snapshot) if here and run_dir is not None else Source(path, snapshot, about)


def _in_its_run(path: Path, snapshot: Snapshot) -> Source:
    """Find the run that a snapshot lies in, and hold it against the one that it says it is of."""
    above = path.resolve().parent
    if above.name != "snapshots" or not recording.holds_a_run(above.parent):
        raise recording.NotARun(
            f"{path} is a snapshot of the run {snapshot.run}, but doesn't lie in its run directory, where the settings "
            "and the journal are: put it back under <run>/snapshots"
        )
    run = recording.load(above.parent)["run"]
    if snapshot.run != run:
        raise SnapshotFault(
            f"{path} is a snapshot of the run {snapshot.run}, and lies in the run {run}: give it in its own run"
        )
    return Source(above.parent, snapshot)


def intact_snapshot(source: Source) -> Snapshot:
    """Return the snapshot that a source means, checked.

    Raises:
        SnapshotFault: the one that was given is damaged, or the run has none that is intact.
    """
    if source.snapshot is not None:
        fault = source.snapshot.fault()
        if fault:
            raise SnapshotFault(
                f"{source.snapshot.path} is damaged: {fault}. Give another snapshot, or the run directory"
            )
        return source.snapshot
    run = recording.load(source.run_dir)["run"]
    found, skipped = snapshots.newest(source.run_dir, run, snapshots.place_in(Journal(source.run_dir)))
    if found is None:
        raise SnapshotFault(f"{source.run_dir} has no intact snapshot. {' '.join(skipped)}")
    return found


__all__ = ["Chosen", "Source", "find", "intact_snapshot"]
