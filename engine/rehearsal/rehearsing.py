"""A part of a run, executed again in memory, from the nearest snapshot on: what verify, rewind and a fork stand on.

The trainer that does it has the run's settings. Nothing is written, the run's directory least of all; and callbacks
that would leave something behind hear nothing. Every transition on the way is held against its record.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import itertools
import platform
import shutil
import sys
import tempfile
import warnings
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from tachograph.drivers import NO_BATCH
from tachograph.states import Failed, Stopped
from tachograph.states.errors import CallerError

from .. import beginning, recording, resume, saving, snapshots
from ..callbacks.fingerprints import Fingerprints
from ..comparison.divergence import Divergence
from ..journal import Journal, JournalError, Position, Record, SideRecord
from ..listeners import takes_part
from ..snapshot_writer import write_whole
from ..snapshots import Snapshot, SnapshotFault
from .reexecution import Reexecution

if TYPE_CHECKING:
    from ..trainer import Trainer

_SANITY_BATCHES = 2
"""What `run()` takes for the sanity check where a run of an older version hasn't told."""


_LOOKED_AT = 5_000
"""Records at a run's beginning, among which there would be a fingerprint."""


class Rehearsal:
    """A run, and the trainer that does a part of it again.

    Args:
        trainer: built as the run's was.
        run_dir: the run.

    Attributes:
        journal: the run's.
        first: the first transition that its journal has.
        last: the last one.
        differing: settings that differ between the run and the trainer, and may: name -> (the run's, the trainer's).
        changed_code: the user's own files that changed since the run's last life.
        begun: the snapshot that it began at; None: the run's beginning.
        ended: why it can't go on, though the run did; "" where it can.
        passed_over: a sentence for each snapshot that couldn't be used.
        by_hand: what was changed where the trainer stands, in words.
        reexecution: what the transitions are held against.

    Raises:
        CallerError: several processes train; or the trainer is running.
        FileNotFoundError, NotARun, JournalError: it isn't a run, or its journal can't be read.
    """

    def __init__(self, trainer: Trainer, run_dir: str | Path) -> None:
        if trainer._running:
            raise CallerError("this trainer is running: a part of a run is executed again by a trainer of its own")
        self.trainer = trainer
        self.run_dir = Path(run_dir)
        self.about = recording.load(self.run_dir)
        worlds = self.about.get("world", 1), trainer.ranks.world_size
        if max(worlds) > 1:
            raise CallerError(
                f"a run is executed again in one process: {run_dir} was made by {worlds[0]}, and here are {worlds[1]}"
            )
        self.journal = Journal(self.run_dir)
        if self.journal.last is None:
            raise JournalError(f"{run_dir} has no transition yet: there is nothing to execute again")
        self.first, self.last = self.journal.beginning.seq + 1, self.journal.last.seq
        self.differing: dict[str, tuple[Any, Any]] = {}
        self.changed_code: list[str] = []
        self.by_hand: list[str] = []
        self.passed_over: list[str] = []
        self.begun: Snapshot | None = None
        self.ended = ""
        self.reexecution: Reexecution | None = None

    # -- where to begin ------------------------------------------------------------------------------------

    def check(self, seq: int, name: str) -> None:
        """Refuse a transition that the run hasn't got."""
        if type(seq) is not int or not self.first <= seq <= self.last:
            raise CallerError(f"{name}={seq!r}: {self.run_dir} has the transitions {self.first} to {self.last}")

    def nearest(self, seq: int) -> Snapshot | None:
        """Return the newest snapshot at or before a transition from which the run can be done again exactly."""
        place = snapshots.place_in(self.journal)
        held, self.passed_over = snapshots.candidates(*snapshots.catalogue(self.run_dir), self.about["run"])
        for snapshot in held:
            where = place(snapshot) if snapshot.seq <= seq and _is_fit(snapshot) else None
            if where is None:
                continue
            placed = attrs.evolve(snapshot, incarnation=where)
            fault = placed.fault()
            if not fault:
                return placed
            self.passed_over.append(f"{snapshot.path.name} was passed over: {fault}")
        return None

    def start(self, seq: int) -> Snapshot | None:
        """Return what the run is done again from, to stand after a transition; None: from its beginning.

        Raises:
            SnapshotFault: there is no snapshot at or before it, and the beginning isn't at hand; it names the nearest.
        """
        found = self.nearest(seq)
        if found is not None:
            return found
        if self._can_begin():
            return None
        why = (
            "its journal begins later than the run did"
            if self.first > 1
            else "this trainer has run, so the weights it began with are gone: build a new one"
        )
        after = next((entry for entry in self.entries() if entry > seq), None)
        there = "it has none" if after is None else f"the first one that can be used is after {after:,}"
        told = "".join(f" {sentence}." for sentence in self.passed_over)
        raise SnapshotFault(
            f"{self.run_dir} has no snapshot at or before transition {seq:,}: {there}; and {why}.{told}"
        )

    def entries(self) -> list[int]:
        """Return the transitions after which the run can be entered: those of its snapshots, and 0 if it can begin."""
        place = snapshots.place_in(self.journal)
        held, _ = snapshots.candidates(*snapshots.catalogue(self.run_dir), self.about["run"])
        fit = {s.seq for s in held if _is_fit(s) and place(s) is not None}
        return sorted({0, *fit} if self._can_begin() else fit)

    def earliest(self) -> int:
        """Return the first transition that can be executed again: the first of all, or the one after a snapshot."""
        return next(iter(self.entries()), self.first - 1) + 1

    def _can_begin(self) -> bool:
        trainer = self.trainer
        if self.first > 1:
            return False
        return _is_new(trainer) or (
            trainer._beginning is not None and not self._later_memory(trainer._beginning.snapshot)
        )

    def _later_memory(self, snapshot: Snapshot) -> str:
        """Name a callback that remembers something, and had nothing to remember at a snapshot: it can't be put back."""
        trainer = self.trainer
        assert trainer.driver is not None
        if _is_new(trainer):
            return ""
        extra, _ = trainer.driver.read(snapshot.path)
        held = extra["listeners"]["callbacks"]
        callbacks = trainer.listeners.callbacks.items()
        return next((name for name, c in callbacks if name not in held and c.on_save_checkpoint(trainer)), "")

    def cost(self, start: Snapshot | None, seq: int) -> str:
        """Say where it is done again from, and how many transitions that takes, and how long they took in the run."""
        begins = 0 if start is None else start.seq
        where = "the beginning" if start is None else f"the snapshot after {begins:,}"
        n = seq - begins
        if n == 0:
            return f"from {where}"
        spent = self._time(seq) - self._time(begins)
        took = f", which took {spent:.3g} s in the run" if spent > 0 else ""
        return f"from {where}: {n:,} transition{'' if n == 1 else 's'} to execute again{took}"

    def _time(self, seq: int) -> float:
        return float(self.journal.seek(max(seq, self.first)).meta["time"])

    # -- going there ---------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def entered(self, start: Snapshot | None, parted: Callable[[Divergence], None]) -> Iterator[None]:
        """Run the body with the trainer standing at a snapshot, or at the beginning, as the run's trainer stood there.

        Args:
            start: what `start()` returned.
            parted: told of the first transition that differs from its record.

        Raises:
            SettingsChanged, RestoreFault, RestoreMismatch: the trainer isn't built as the run's was.
        """
        late = "" if start is None else self._later_memory(start)
        if late:
            raise CallerError(f"{late} remembers what came later, and can't be put back to before: build a new trainer")
        life = 0 if start is None else self._borders().get(start.seq, (0, start.incarnation))[1]
        held = recording.in_force(self.about, self.journal, life)
        with self._closing(), self._at_work(held):
            self._take_limits(held)
            self._hold_settings(held)
            self._stand(start, parted)
            yield

    @contextlib.contextmanager
    def going_on(self) -> Iterator[None]:
        """Run the body with the trainer at work where it stands."""
        life = self.record(self.trainer.trainer_state.seq + 1).incarnation
        with self._closing(), self._at_work(recording.in_force(self.about, self.journal, life)):
            self.trainer._recorder = self.reexecution  # type: ignore[assignment]
            yield
        self.trainer._rehearsal = self

    @contextlib.contextmanager
    def _closing(self) -> Iterator[None]:
        """Run the body, and let go of the loader's workers if it fails: nobody stands there then."""
        trainer, driver = self.trainer, self.trainer.driver
        assert driver is not None
        if trainer._rehearsal is not self:
            driver.close()
        trainer._rehearsal = None
        try:
            yield
        except BaseException:
            driver.close()
            raise

    @contextlib.contextmanager
    def _at_work(self, held: dict[str, Any]) -> Iterator[None]:
        trainer = self.trainer
        limits, seconds = (trainer.n_epochs, trainer.n_batches, trainer.max_time), trainer.seconds
        with (
            trainer._at_work(*_batches(held)),
            trainer.listeners.hushed(),
            self._fingerprinted(),
        ):
            trainer._running = trainer._measured = True
            trainer.announced_until = sys.maxsize  # whatever it says was said when it was recorded
            try:
                yield
            finally:
                self._leave(*limits)
        trainer._limits.resume(seconds)  # what is done again is no time of a run

    def _leave(self, n_epochs: int | None, n_batches: int | None, max_time: float | None) -> None:
        trainer = self.trainer
        trainer._running = trainer._attention = trainer._snapshot_asked = False
        trainer._recorder = trainer._rest = trainer._signal = None
        trainer._waiting.clear()
        trainer._limits.n_batches, trainer._limits.max_time = n_batches, max_time
        state = attrs.evolve(trainer.trainer_state, n_epochs=n_epochs)
        trainer.trainer_state = state
        trainer.announced_until = state.seq

    @contextlib.contextmanager
    def _fingerprinted(self) -> Iterator[None]:
        """Run the body with fingerprints taken where the run has some, be the trainer built with them or not."""
        listeners = self.trainer.listeners
        own = any(isinstance(callback, Fingerprints) for callback in listeners.callbacks.values())
        if own or self.trainer.train_batch_loop is not None or not self._has_fingerprints:
            yield
            return
        added = Fingerprints(every=1)
        listeners.add_callback(added)
        try:
            yield
        finally:
            listeners.remove_callback(added)

    @functools.cached_property
    def _has_fingerprints(self) -> bool:
        items = itertools.islice(self.journal.everything_since(self.first), _LOOKED_AT)
        return any(isinstance(item, SideRecord) and item.kind == "fingerprint" for item in items)

    def _take_limits(self, held: dict[str, Any]) -> None:
        """Have the run end where it ended: schedules may look at that, and at nothing of the clock."""
        trainer = self.trainer
        trainer._limits.n_batches, trainer._limits.max_time = held.get("n_batches"), None
        trainer.trainer_state = attrs.evolve(trainer.trainer_state, n_epochs=held.get("n_epochs"))

    def _hold_settings(self, held: dict[str, Any]) -> None:
        trainer = self.trainer
        changed = trainer.take_settings({**self.about, "settings": held})
        here = {"environment": recording.environment(trainer._environment())}
        changed = {**changed, **recording.compare_settings(held, here)}
        weighs = (*recording.FELT, "environment")
        self.differing = {name: pair for name, pair in changed.items() if name.split(".")[0] in weighs}
        self.changed_code = sorted(recording.changed_code(self.about, self.journal))
        host = platform.node()
        if self.about.get("host", host) != host:
            self.differing["host"] = self.about["host"], host

    def differences(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return what differs, name -> (the run's, the trainer's): settings, and parts of the environment."""
        held = {name.removeprefix("environment."): pair for name, pair in self.differing.items()}
        environment = {k: v for k, v in held.items() if k == "host" or f"environment.{k}" in self.differing}
        return {k: v for k, v in held.items() if k not in environment}, environment

    def _stand(self, start: Snapshot | None, parted: Callable[[Divergence], None]) -> None:
        trainer, point = self.trainer, start
        if start is None and trainer._beginning is not None:
            point = trainer._beginning.snapshot
        batch: Any = NO_BATCH
        trainer.batch = trainer.batch_indices = None
        trainer._skips_batch = False
        if point is None:
            trainer.trainer_state = attrs.evolve(trainer.trainer_state, seq=0)
            trainer._prepare()
            trainer._beginning = Beginning.of(trainer)
        else:
            batch = resume.load(trainer, point, strict=True, newcomers=True)
        state = trainer.trainer_state
        if getattr(state, "stop_asked", "") and start is not None and start.seq in self._borders():
            state = trainer.trainer_state = attrs.evolve(state, stop_asked="")
        at = resume.point_of(start)
        self.reexecution = Reexecution(self.journal, self.about["run"], trainer.machine, type(state), at, parted)
        trainer._recorder = self.reexecution  # type: ignore[assignment]
        for callback in trainer.listeners.callbacks.values():
            if isinstance(callback, Fingerprints):
                self.reexecution.inputs = lambda held=callback: held.inputs  # type: ignore[misc]
        self.begun = start
        if point is not None:
            trainer._reenter(state, batch)
            if start is not None:
                trainer._hear_inside("on_after_resume", self._report())
            assert trainer.driver is not None
            trainer.driver.restore_generators()

    def _report(self) -> resume.ResumeReport:
        """Say where the trainer stands, as a resume does: callbacks begin what they count there."""
        snapshot = None if self.begun is None else self.begun.path
        seq = self.trainer.trainer_state.seq
        return resume.ResumeReport(self.run_dir, snapshot, seq, 0, self.passed_over, [], {})

    def _borders(self) -> dict[int, tuple[int, int]]:
        """Return by the last transition of each life that another one followed: (which, and which that was)."""
        pairs = itertools.pairwise(self.journal.lineage)
        return {upto: (before, after) for (before, upto), (after, _) in pairs if upto is not None}

    def refuse_other_hyperparameters(self) -> None:
        """Refuse a trainer whose optimizers were built with other values: they would be felt on the way.

        Raises:
            CallerError: it names one.
        """
        for name, (old, new) in self.differing.items():
            if name.startswith("hyperparameters."):
                raise CallerError(
                    f"{name} is {old} in the run and {new} in this trainer: build it as the run's was, and change that "
                    "after rewind()"
                )

    def go(self, upto: int) -> str:
        """Go on until so many transitions are committed, over the borders of lives.

        Returns:
            Why it stopped before; "" where it didn't.
        """
        trainer = self.trainer
        for border, lives in sorted(self._borders().items()):
            if trainer.trainer_state.seq < border <= upto:
                trainer._loop(border)
                self.ended = self._early(border) or self._cross(border, *lives)
                if self.ended:
                    return self.ended
        trainer._loop(upto)
        self.ended = self._early(upto)
        return self.ended

    def _early(self, upto: int) -> str:
        """Say that the trainer came to an end of its own before so many transitions; "" if it didn't."""
        state = self.trainer.trainer_state
        if state.seq >= upto:
            return ""
        why = f": {state.stop_asked}" if getattr(state, "stop_asked", "") else ""
        return f"after {state.seq:,} this trainer came to its end, and the run didn't{why}"

    def _cross(self, border: int, before: int, life: int) -> str:
        """Go over to the life that was resumed here, without restoring what it restored: that must be what is there."""
        trainer = self.trainer
        held, now = (recording.in_force(self.about, self.journal, number) for number in (before, life))
        felt = {k: pair for k, pair in recording.differences(held, now).items() if recording.is_felt([k])}
        for name, (old, new) in felt.items():
            return f"after {border:,} the run went on with another {name}: {old} before, {new} from there on"
        told = [record for record in self.journal.beginnings() if record.incarnation == life]
        if not all(record.data.get("exact", True) for record in told):
            return f"after {border:,} the run went on from a snapshot that isn't exact: an error had struck in a step"
        self._take_limits(now)
        trainer.trainer_state = trainer._with_limits(attrs.evolve(trainer.trainer_state, stop_asked=""))
        return ""

    def ends_from_outside(self, seq: int) -> bool:
        """Say whether a transition is an end that somebody asked for (a stop, a signal, Ctrl-C): no work was done."""
        record = self.record(seq)
        if record.event == Failed.__name__:
            return record.data.get("kind") in ("KeyboardInterrupt", "SystemExit")
        return record.event == Stopped.__name__

    # -- standing there ------------------------------------------------------------------------------------

    def record(self, seq: int) -> Record:
        """Return what is recorded of a transition."""
        return self.journal.seek(seq)

    @property
    def run_arguments(self) -> dict[str, Any]:
        """The limits that `run()` was given where the trainer stands."""
        assert self.reexecution is not None
        held = recording.in_force(self.about, self.journal, self.reexecution.position.incarnation)
        names = ("num_train_batch_per_epoch", "num_eval_batch_per_dl", "num_eval_sanity_batch")
        return dict(zip(names, _batches(held), strict=True))

    def fork(self) -> None:
        """Begin a run of the trainer's own where it stands; the point is told as its parent.

        Raises:
            CallerError: its run directory holds a run already, or the trainer stands at an end.
        """
        trainer, driver, reexecution = self.trainer, self.trainer.driver, self.reexecution
        assert reexecution is not None
        assert driver is not None
        position, state, batch = reexecution.position, trainer.trainer_state, trainer.batch
        if state.state in trainer.machine.final:
            raise CallerError(
                f"the trainer stands at its end, in '{state.state}': rewind() to the last transition, {state.seq}, and "
                "let the limits be others"
            )
        driver.close()
        trainer._prepare()
        self._ask_again()
        if trainer.run_dir is not None:
            self._record_fork(position)
        trainer.announced_until = position.seq
        trainer._reenter(trainer.trainer_state, NO_BATCH if batch is None else batch)
        if position.seq:
            with driver.forked():
                trainer._hear_inside("on_after_resume", self._report())
        trainer.say(f"goes on from transition {state.seq:,} of {self.run_dir}")
        for sentence in self._unheard():
            trainer.say(sentence)
        trainer._snapshot()  # it must not depend on the other run's files, not even for a moment
        if trainer._recorder is not None:
            trainer._recorder.snapshots.wait()

    def _record_fork(self, position: Position) -> None:
        trainer = self.trainer
        assert trainer.run_dir is not None
        held = recording.in_force(self.about, self.journal, position.incarnation)
        parent = {"run": self.about["run"], **attrs.asdict(position), "run_dir": str(self.run_dir)}
        about = beginning.created(trainer, trainer.run_dir, parent)
        point = attrs.evolve(position, incarnation=-1) if position.seq else None
        trainer._recorder = trainer._open_recorder(about, incarnation=0, parent=point)
        changed = recording.differences(held, {**about["settings"], "environment": about["environment"]})
        told = {"changed": {k: list(v) for k, v in changed.items()}, "by_hand": self.by_hand}
        trainer._recorder.side("forked", **parent, **told)
        policy = trainer._policy
        if policy.has_work and not any(policy is held for held in trainer.listeners.callbacks.values()):
            trainer.listeners.add_callback(policy)  # the trainer was built without a run directory

    def _ask_again(self) -> None:
        """Who had asked the run to stop where it ended may ask again, and the limits of now decide."""
        state = self.trainer.trainer_state
        ended = state.seq < self.last and self.record(state.seq + 1).dest in self.trainer.machine.final
        if ended and state.stop_asked:
            self.trainer.trainer_state = attrs.evolve(state, stop_asked="")

    def _unheard(self) -> Iterator[str]:
        """Say which callbacks with a memory heard nothing of what was executed again."""
        trainer, begun = self.trainer, 0 if self.begun is None else self.begun.seq
        upto = trainer.trainer_state.seq
        for name, callback in trainer.listeners.callbacks.items():
            silent = not takes_part(callback, callback.in_rehearsal)
            if upto > begun and silent and callback.on_save_checkpoint(trainer):
                yield f"{name} heard nothing from {begun + 1:,} to {upto:,}: what it remembers is that of {begun:,}"


class Beginning:
    """What a trainer was before its first transition, kept beside it, so that it can begin again.

    Attributes:
        snapshot: it.
    """

    def __init__(self, folder: str, snapshot: Snapshot) -> None:
        weakref.finalize(self, shutil.rmtree, folder, ignore_errors=True)
        self.snapshot = snapshot

    @classmethod
    def of(cls, trainer: Trainer) -> Beginning:
        """Keep what a trainer is that is ready for its first transition."""
        driver, state = trainer.driver, trainer.trainer_state
        assert driver is not None
        capture = driver.capture(saving.check(trainer), NO_BATCH)
        about = {
            "seq": 0,
            "chain": resume.GENESIS.chain,
            "exact": True,
            "schema": resume.schema_of(state),
            "state": attrs.asdict(state, recurse=False),
            "unwritten": None,
        }
        folder = tempfile.mkdtemp(prefix="tachograph-")
        path = Path(folder) / "beginning"
        snapshot = write_whole(trainer.world.files, path, about, lambda to: driver.save(capture, to), "", 0)
        return cls(folder, snapshot)


def _batches(held: dict[str, Any]) -> tuple[int, int | float, int]:
    """Return the limits that `run()` was given: of an epoch, of each validation loader, of the sanity check."""
    validate = held.get("validation", {}).get("batches", -1)
    return held.get("num_train_batch_per_epoch", -1), validate, held.get("sanity_batches", _SANITY_BATCHES)


def _is_fit(snapshot: Snapshot) -> bool:
    """Say whether a run can be entered at a snapshot, so that what follows is exact and stands in the journal."""
    return snapshot.exact and not snapshot.fault_by_size() and snapshot.about()["unwritten"] is None


_standing: weakref.WeakSet[Any] = weakref.WeakSet()
"""Drivers whose loaders are open, though no run is under way."""


def let_go_at_exit(driver: Any) -> None:
    """Have a driver's workers ended before Python waits for them, if nobody has by then."""
    if not _standing:
        atexit.register(_let_go)
    _standing.add(driver)


def _let_go() -> None:
    for driver in list(_standing):
        driver.close()


def _is_new(trainer: Trainer) -> bool:
    return trainer.trainer_state.seq == 0 and trainer._rest is None


def warn(divergence: Divergence) -> None:
    """Say that the way to a point differs from what is recorded."""
    warnings.warn(f"the way there isn't what was recorded: {divergence}", stacklevel=8)


__all__ = ["Beginning", "Rehearsal", "let_go_at_exit", "warn"]
