"""One run of what a builder makes in a folder of its own, and what is kept of it beside journal and snapshots."""

from __future__ import annotations

import inspect
import json
import os
import shutil
import warnings
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from tachograph.states import CallerError

from .. import saving
from ..journal import Background, Files, Journal, Pulse
from ..world import World
from .census import census

if TYPE_CHECKING:
    from ..engine import Engine

Build = Callable[..., Any]
_OFFERED = ("run_dir", "n_batches")


class Unsynced(Files):
    """Writes, and doesn't wait for the disk: a test's runs needn't survive a power cut."""

    def fdatasync(self, fd: int) -> None:
        pass

    def fsync_dir(self, path: Path) -> None:
        pass


class _Done:
    def is_alive(self) -> bool:
        return False

    def join(self) -> None:
        pass


class _Asleep(Pulse):
    def ask(self) -> None:
        pass


class AtOnce(Background):
    """Does work before the run goes on, so that a cut is at the transition that was asked for."""

    def start(self, work: Callable[[], None], name: str) -> _Done:
        work()
        return _Done()

    def pulse(self, work: Callable[[], None], every: float, name: str) -> Pulse:
        return _Asleep(work, every, name)


@attrs.frozen
class Job:
    """What is run.

    Attributes:
        build: makes the trainer or the engine, all of it anew.
        steps: batches in all; None: to the trainer's own limit. An engine of a user's own knows no batches.
        run: arguments of its `run`.
    """

    build: Build
    steps: int | None
    run: Mapping[str, Any]

    def engine(self, run_dir: Path, seed: int) -> Engine:
        """Build a trainer, or an engine, that writes to a run directory.

        Args:
            run_dir: where.
            seed: what the generators are seeded with before: what a process drew before is nobody's business.

        Raises:
            CallerError: what was built can't be run here.
        """
        from tachograph.drivers import generators

        from ..engine import Engine
        from ..trainer import Trainer

        generators.seed_all(seed)
        offered = {"run_dir": run_dir, "n_batches": self.steps}
        engine = self.build(**{k: v for k, v in offered.items() if k in self._taken() and v is not None})
        if not isinstance(engine, Engine):
            raise CallerError(
                f"build() returned {type(engine).__name__}: it must return a Trainer, or an Engine, that wasn't run"
            )
        what = "a trainer" if isinstance(engine, Trainer) else "an engine"
        if engine.trainer_state.seq:
            raise CallerError(f"build() returned {what} that was run already: it must build everything anew")
        if engine.ranks.world_size > 1:
            raise CallerError(f"build() made {what} of several processes, and this runs one: give driver='torch'")
        engine.run_dir = run_dir
        if isinstance(engine, Trainer):
            if engine._debug.fast:
                raise CallerError("build() made a trainer with fast_dev_run, which keeps no journal: leave that out")
            if self.steps is not None:
                engine.n_batches = self.steps
        return engine

    def _taken(self) -> Collection[str]:
        """Say which of the settings that are offered the builder takes."""
        parameters = inspect.signature(self.build).parameters
        if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
            return _OFFERED
        return [name for name in _OFFERED if name in parameters]


@attrs.frozen
class Lived:
    """A run as it lies in its folder.

    Attributes:
        run_dir: the run directory.
        batches: by transition, the fingerprint of the batch that was trained on after it.
    """

    run_dir: Path
    batches: dict[int, str]

    @property
    def journal(self) -> Journal:
        """Its journal."""
        return Journal(self.run_dir)

    def snapshot(self, seq: int | None = None) -> Path | None:
        """Return its snapshot of a transition, or, of the same form, what was held at its end; None without one."""
        from ..snapshots import catalogue

        if seq is None:
            end = _end_of(self.run_dir)
            return end if end.is_dir() else None
        return {snapshot.seq: snapshot.path for snapshot in catalogue(self.run_dir)[0]}.get(seq)

    @classmethod
    def of(cls, run_dir: Path) -> Lived:
        """Read what a run has left."""
        beside, batches = _beside(run_dir), {}
        for line in beside.read_text().splitlines() if beside.is_file() else ():
            seq, _, told = line.partition(" ")
            batches[int(seq)] = told
        return cls(run_dir, batches)


def go(job: Job, run_dir: Path, seed: int, *, resume: bool = False, census_to: Path | None = None) -> Lived:
    """Run to the end, or go on to it.

    Args:
        job: what.
        run_dir: where.
        seed: of what is drawn before the trainer is built.
        resume: go on with the run that is there.
        census_to: where the plain values of the resumed trainer are listed.
    """
    engine = job.engine(run_dir, seed)
    engine.world = World(files=Unsynced(), background=AtOnce())
    _keep_batches(engine, run_dir)
    _snapshot_after(engine, [1])
    if census_to is not None:
        engine.on("on_after_resume", lambda engine, report: census_to.write_text(json.dumps(census(engine))))
    run(engine, job, resume)
    return Lived.of(run_dir)


def photograph(job: Job, run_dir: Path, seed: int, at: Collection[int], to: Path) -> Lived:
    """Run to the end, and copy the run directory as it is after some transitions: that is what a kill leaves there.

    Args:
        job: what.
        run_dir: where.
        seed: of what is drawn before.
        at: the transitions.
        to: where the copies go, each under its transition's number, with a census beside it.
    """
    engine = job.engine(run_dir, seed)
    engine.world = World(files=Unsynced(), background=AtOnce())
    _keep_batches(engine, run_dir)
    _snapshot_after(engine, [1, *at])

    def copy(engine: Any, path: Any = None) -> None:
        seq = engine.trainer_state.seq
        if seq in at and not (to / str(seq)).exists():
            shutil.copytree(run_dir, to / str(seq), copy_function=_copy)
            shutil.copyfile(_beside(run_dir), _beside(to / str(seq)))
            census_of(to / str(seq)).write_text(json.dumps(census(engine)))

    to.mkdir(parents=True, exist_ok=True)
    when_kept(engine, copy)
    run(engine, job, resume=False)
    return Lived.of(run_dir)


def run(engine: Engine, job: Job, resume: bool) -> None:
    """Have an engine run; that it parts from what is recorded is found afterwards, and needs no warning here."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="the re-executed run parts")
        engine.run(resume_from=engine.run_dir if resume else None, **job.run)
    _keep_end(engine)


def _keep_end(engine: Engine) -> None:
    """Save what the driver and the listeners hold at the end, of which not every machine leaves a snapshot."""
    driver, run_dir = engine.driver, engine.run_dir
    if driver is not None and run_dir is not None:
        end = _end_of(run_dir)
        end.mkdir()
        driver.save(driver.capture(saving.check(engine), engine._held_batch()), end)


def census_of(run_dir: Path) -> Path:
    """Name the file beside a copy of a run that lists the plain values of its engine."""
    return run_dir.with_name(f"{run_dir.name}.census.json")


def after_each(engine: Engine, fn: Callable[[Any], None]) -> None:
    """Call a function when everyone else has heard a transition, whichever it is."""
    for name in dict.fromkeys(row.dest for row in engine.machine.rows):
        engine.on(name, fn, priority=-1)


def when_kept(engine: Engine, fn: Callable[..., None]) -> None:
    """Call a function when a snapshot was published; without a driver there is none, and a transition is enough."""
    if engine.driver is None:
        after_each(engine, fn)
    else:
        engine.on("on_after_snapshot", fn)


def _snapshot_after(engine: Engine, seqs: Collection[int]) -> None:
    def ask(engine: Any) -> None:
        if engine.trainer_state.seq in seqs:
            engine.request_snapshot()

    after_each(engine, ask)


def _keep_batches(engine: Engine, run_dir: Path) -> None:
    """Write down what the batches hold, one line each; a resumed run adds to what its predecessor wrote."""
    run_dir.parent.mkdir(parents=True, exist_ok=True)
    path = _beside(run_dir)
    path.touch()

    def keep(engine: Any, batch: Any, indices: Any = None) -> None:
        if engine.driver is not None:
            with path.open("a") as file:
                file.write(f"{engine.trainer_state.seq} {engine.driver.fingerprint_of(batch)}\n")

    engine.on("on_train_batch_begin", keep, priority=-1)


def _beside(run_dir: Path) -> Path:
    return run_dir.with_name(f"{run_dir.name}.batches")


def _end_of(run_dir: Path) -> Path:
    return run_dir.with_name(f"{run_dir.name}.end")


def _copy(source: str, to: str) -> None:
    """Copy a file; of a snapshot, which nobody changes any more, another name is enough."""
    (os.link if f"{os.sep}snapshots{os.sep}" in source else shutil.copyfile)(source, to)
