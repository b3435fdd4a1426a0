"""One run of a builder's trainer in a folder of its own, and what is kept of it beside journal and snapshots."""

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

from ..journal import Background, Files, Journal, Pulse
from ..world import World
from .census import census

if TYPE_CHECKING:
    from ..trainer import Trainer

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
        build: makes the trainer, all of it anew.
        steps: batches in all; None: to the trainer's own limit.
        run: arguments of `Trainer.run`.
    """

    build: Build
    steps: int | None
    run: Mapping[str, Any]

    def trainer(self, run_dir: Path, seed: int) -> Trainer:
        """Build a trainer that writes to a run directory.

        Args:
            run_dir: where.
            seed: what the generators are seeded with before: what a process drew before is nobody's business.

        Raises:
            CallerError: what was built isn't a trainer that can be run here.
        """
        from tachograph.drivers import generators

        from ..trainer import Trainer

        generators.seed_all(seed)
        offered = {"run_dir": run_dir, "n_batches": self.steps}
        trainer = self.build(**{k: v for k, v in offered.items() if k in self._taken() and v is not None})
        if not isinstance(trainer, Trainer):
            raise CallerError(f"build() returned {type(trainer).__name__}: it must return a Trainer that wasn't run")
        if trainer.trainer_state.seq:
            raise CallerError("build() returned a trainer that was run already: it must build everything anew")
        if trainer.ranks.world_size > 1:
            raise CallerError("build() made a trainer of several processes, and this runs one: give driver='torch'")
        if trainer._debug.fast:
            raise CallerError("build() made a trainer with fast_dev_run, which keeps no journal: leave that out")
        trainer.run_dir = run_dir
        if self.steps is not None:
            trainer.n_batches = self.steps
        return trainer

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
        """Return its snapshot of a transition, or its last one; None without one."""
        from ..snapshots import catalogue

        held = {snapshot.seq: snapshot.path for snapshot in catalogue(self.run_dir)[0]}
        return held.get(max(held, default=0) if seq is None else seq)

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
    trainer = job.trainer(run_dir, seed)
    trainer.world = World(files=Unsynced(), background=AtOnce())
    _keep_batches(trainer, run_dir)
    _snapshot_after(trainer, [1])
    if census_to is not None:
        trainer.on("on_after_resume", lambda trainer, report: census_to.write_text(json.dumps(census(trainer))))
    run(trainer, job, resume)
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
    trainer = job.trainer(run_dir, seed)
    trainer.world = World(files=Unsynced(), background=AtOnce())
    _keep_batches(trainer, run_dir)
    _snapshot_after(trainer, [1, *at])

    def copy(trainer: Any, path: Path) -> None:
        seq = trainer.trainer_state.seq
        if seq in at and not (to / str(seq)).exists():
            shutil.copytree(run_dir, to / str(seq), copy_function=_copy)
            shutil.copyfile(_beside(run_dir), _beside(to / str(seq)))
            census_of(to / str(seq)).write_text(json.dumps(census(trainer)))

    to.mkdir(parents=True, exist_ok=True)
    trainer.on("on_after_snapshot", copy)
    run(trainer, job, resume=False)
    return Lived.of(run_dir)


def run(trainer: Trainer, job: Job, resume: bool) -> None:
    """Have a trainer run; that it parts from what is recorded is found afterwards, and needs no warning here."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="the re-executed run parts")
        trainer.run(resume_from=trainer.run_dir if resume else None, **job.run)


def census_of(run_dir: Path) -> Path:
    """Name the file beside a copy of a run that lists the plain values of its trainer."""
    return run_dir.with_name(f"{run_dir.name}.census.json")


def after_each(trainer: Trainer, fn: Callable[[Any], None]) -> None:
    """Call a function when everyone else has heard a transition, whichever it is."""
    for name in trainer.machine.names:
        if name != trainer.machine.initial:
            trainer.on(name, fn, priority=-1)


def _snapshot_after(trainer: Trainer, seqs: Collection[int]) -> None:
    def ask(trainer: Any) -> None:
        if trainer.trainer_state.seq in seqs:
            trainer.request_snapshot()

    after_each(trainer, ask)


def _keep_batches(trainer: Trainer, run_dir: Path) -> None:
    """Write down what the batches hold, one line each; a resumed run adds to what its predecessor wrote."""
    run_dir.parent.mkdir(parents=True, exist_ok=True)
    path = _beside(run_dir)
    path.touch()

    def keep(trainer: Any, batch: Any, indices: Any = None) -> None:
        with path.open("a") as file:
            file.write(f"{trainer.trainer_state.seq} {trainer.driver.fingerprint_of(batch)}\n")

    trainer.on("on_train_batch_begin", keep, priority=-1)


def _beside(run_dir: Path) -> Path:
    return run_dir.with_name(f"{run_dir.name}.batches")


def _copy(source: str, to: str) -> None:
    """Copy a file; of a snapshot, which nobody changes any more, another name is enough."""
    (os.link if f"{os.sep}snapshots{os.sep}" in source else shutil.copyfile)(source, to)
