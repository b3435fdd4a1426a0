"""The loop and the commit: everything a run does passes through these few lines.

    while the state is not final:
        event = perform(state)                 # the driver does this state's work
        commit(event)                          # table → TrainerState → journal → listeners → snapshot if asked for

Commit's order is a promise. (1) The table picks the row or refuses, and a refusal changes nothing; (2) the event folds
the state; (3) the record is written; (4) listeners hear it, in their order, each once; (5) a snapshot that one of them
asked for is taken. So a listener sees committed counters, and what is saved is the state after everyone heard.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeVar, overload

import attrs

from tachograph.drivers import NO_BATCH, Driver
from tachograph.drivers.ranks import ALONE, Ranks
from tachograph.states import Event, Failed, Machine, Stopped, TrainerState
from tachograph.states.errors import CallerError

from . import beginning, ending, recording, resume, saving, sources
from .beginning import Rest
from .callbacks.callback import Callback
from .callbacks.snapshot_policy import SnapshotPolicy
from .checks import Work, as_callbacks, check_perform, check_snapshots, check_without_driver, seed_of, with_engine
from .fitness import check_folds, check_state, watched
from .interruptions import Interruptions
from .journal import Journal, JournalWriteError, Position
from .journal.codec import limits_of
from .listeners import Handle, Listeners
from .notes import attach, message
from .recorder import Recorder
from .requeue import requeue_of
from .signals import Signals
from .together import Together
from .user_state import State
from .world import World

Fn = TypeVar("Fn", bound=Callable[..., Any])

logger = logging.getLogger("tachograph")


class Engine(Interruptions):
    """Runs a machine: any machine, whose states' work is done by functions.

    Args:
        machine: the table.
        perform: state name -> `function(state) -> event`, or `function(engine, state) -> event`, for every state that
            isn't final.
        state: the state to begin in, a frozen attrs value with `state` and `seq`; None means `TrainerState()`.
        driver: does the heavy part of snapshots; None means that there is none, and no snapshot is taken. It is set up,
            and its gradients are cleared, when a run begins.
        run_dir: where the journal and the snapshots go; "auto": `runs/<UTC time>-<short id>`; None: nowhere.
        snapshot_every: "epoch", a number of batches, a time such as "10min", or None: only at signals and errors. On a
            machine that doesn't count batches, a number counts transitions, and "epoch" is refused where none ends.
        callbacks: one `Callback` or a sequence of them.
        keep_snapshots: which snapshots stay when a new one is published: None keeps all, an int the last so many; or a
            `Keep(...)`.
        on_snapshot_fault: what a snapshot that can't be written means: "raise" ends the run with the error, "warn"
            goes on, and the next one is tried.
        requeue: True asks Slurm to requeue the job when SIGUSR1 ends the run; see `requeue_of` for its other values.
        seed: what the driver's generators are seeded with when a run begins; None takes the driver's initial seed, and
            leaves the generators alone.

    Attributes:
        machine: the table.
        driver: the driver, or None.
        seed: the run's seed; None without a driver.
        state: your own values, saved with every snapshot: a dict with attributes.
        ranks: the processes that train together; see `Ranks`.
        listeners: who hears what.
        trainer_state: where the run is; always what is committed.
        run_dir: the run directory, or None.
        exception: the error that ended the run, while `on_exception` is heard and after.
        announced_until: the last transition that a process before this one had announced to its listeners.
        batch: the batch in hand, between its fetch and the end of its step; else None. It is saved with a snapshot.
        world: the disk, the clock, and work beside the run; a simulation gives another one before `run()`.
        as_trained: what the model is saved in once the run has ended: functions that make a context manager, entered in
            their order. A callback that leaves other weights in the model than those that were trained adds one.

    Raises:
        MachineFault: a state that isn't final has no function, or a function no state; or a fold returns no next state.
        CallerError: `state`, an event, a callback, `snapshot_every`, `keep_snapshots`, `on_snapshot_fault` or `seed`
            can't be used.
    """

    seed: int | None

    _quick: Mapping[type[Event], str] = {}  # events that may be held, and where they lead; see `JournalWriter.hold`
    _untold = 0  # the last transition that was committed, though nobody heard of it

    def __init__(
        self,
        machine: Machine,
        perform: Mapping[str, Work],
        *,
        state: Any = None,
        driver: Driver | None = None,
        run_dir: str | Path | None = None,
        snapshot_every: int | str | None = None,
        callbacks: Any = None,
        keep_snapshots: Any = None,
        on_snapshot_fault: str = "raise",
        requeue: Any = None,
        seed: int | None = None,
    ) -> None:
        own = with_engine(self, perform)
        check_perform(machine, own)
        begins = TrainerState(state=str(machine.initial)) if state is None else state
        check_state(machine, begins)
        check_without_driver(driver, snapshot_every=snapshot_every, keep_snapshots=keep_snapshots)
        self.machine = machine
        self.driver = driver
        self.seed, self._seed_given = seed_of(seed, driver), seed is not None
        self.state = State()
        self.ranks: Ranks = ALONE if driver is None else driver.ranks
        self.together = Together()
        self.listeners = Listeners(machine)
        self.trainer_state: Any = begins
        self.run_dir = recording.run_dir_of(run_dir)
        if run_dir == "auto":
            self.run_dir = self.ranks.share(self.run_dir)
        self.exception: BaseException | None = None
        self.announced_until = 0
        self.batch: Any = None
        self.world = World()
        self.as_trained: list[Callable[[], AbstractContextManager[Any]]] = []
        self._own_limits = {name: getattr(begins, name) for name in limits_of(type(begins))}
        self._perform = own
        watched(machine, self._perform, check_folds(machine, begins))
        self._way, self._final, self._index = machine.ways, machine.final, self.listeners.index  # read on every commit
        self._recorder: Recorder | None = None
        self._closing: Recorder | None = None
        self._rest: Rest | None = None
        self._rehearsal: Any = None  # what has brought a trainer to the point of a run where it stands
        self._running = False
        self._thread = 0  # the one that runs it
        self._attention = False
        self._snapshot_asked = False
        self._signal: int | None = None
        self._heeded = False
        self._requeue = requeue_of(requeue)
        self._waiting: list[Callable[[], None]] = []
        self.keep_snapshots, self.on_snapshot_fault = check_snapshots(
            keep_snapshots, on_snapshot_fault, self.trainer_state
        )
        self._snapshot_every = snapshot_every
        self._policy = SnapshotPolicy(snapshot_every, self.keep_snapshots)
        self._policy.fit(machine, begins)
        if driver is not None:
            driver.tell = lambda text: self.later(lambda: self._note(text))
        given = as_callbacks(callbacks)
        for callback in given:
            self.listeners.add_callback(callback)
        if self.run_dir is not None and driver is not None and self._policy.has_work:
            self.listeners.add_callback(self._policy)
        if driver is not None and given:
            for callback in given:
                callback.on_after_trainer_initialized(self, driver)
            self.listeners.check_plain(self, driver.is_tensor)

    # -- for users -----------------------------------------------------------------------------------------

    @overload
    def on(self, target: Any, fn: None = None, *, priority: int = 0) -> Callable[[Fn], Fn]: ...
    @overload
    def on(self, target: Any, fn: Callable[..., Any], *, priority: int = 0) -> Handle: ...
    def on(self, target: Any, fn: Callable[..., Any] | None = None, *, priority: int = 0) -> Any:
        """Subscribe a function to moments, events, states or transitions; see `Listeners.add`.

        Returns:
            A handle with `remove()`; without `fn`, a decorator that returns the function unchanged.
        """
        if fn is not None:
            return self.listeners.add(target, fn, priority=priority)

        def subscribe(listener: Callable[..., Any]) -> Callable[..., Any]:
            self.listeners.add(target, listener, priority=priority)
            return listener

        return subscribe

    def add_callback(self, callback: Callback) -> None:
        """Subscribe a callback after the engine was built, as `callbacks=[...]` does.

        Raises:
            CallerError: it isn't a `Callback`, another has its name, or its state isn't plain data; it wasn't added.
        """
        self.listeners.add_callback(callback)
        try:
            if self.driver is not None:
                callback.on_after_trainer_initialized(self, self.driver)
                self.listeners.check_plain(self, self.driver.is_tensor)
        except BaseException:
            self.listeners.remove_callback(callback)
            raise

    @property
    def journal(self) -> Journal | None:
        """A reader of this rank's journal; None where nothing is kept on disk or nothing was recorded yet."""
        if self.run_dir is None or not recording.holds_a_run(self.run_dir):
            return None
        if self._recorder is not None and threading.get_ident() == self._thread:
            self._recorder.flush()
        return Journal(self.run_dir, rank=self.ranks.rank)

    def stop(self, reason: str = "stop()", on_all_ranks: bool = False) -> None:
        """Ask the run to stop at the next transition; the request is part of the state, so it survives a crash.

        Args:
            reason: who asks and why; not empty.
            on_all_ranks: every rank asks for it here, with this reason, so that they needn't agree on it first.

        Raises:
            CallerError: the state is of a user's own class and has no field `stop_asked`.
        """
        if not hasattr(self.trainer_state, "stop_asked"):
            kind = type(self.trainer_state).__name__
            raise CallerError(
                f"{kind} can't be asked to stop: give it a field stop_asked: str = '', and rows for Stopped"
            )
        self._ask("stop_asked", str(reason) or "stop()", on_all_ranks)

    def _ask(self, field: str, reason: str, on_all_ranks: bool = False) -> None:
        """Put a reason into the state: here and now, or on all ranks when they have agreed."""
        if self._running and self.ranks.world_size > 1 and not on_all_ranks:
            self.together.ask(field, reason)
            self._attention = True
        else:
            self.trainer_state = attrs.evolve(self.trainer_state, **{field: reason})

    def request_snapshot(self, on_all_ranks: bool = False) -> None:
        """Ask for a snapshot after the transition that is being heard, or after the next one.

        Args:
            on_all_ranks: every rank asks for it after this transition, so that they needn't agree on it first.
        """
        self._attention = True
        if on_all_ranks:
            self.together.due = True
        self._snapshot_asked = self._snapshot_asked or not on_all_ranks or self.ranks.world_size == 1

    def say(self, text: str) -> None:
        """Say a sentence to whoever listens to `on_notice`, and to the log."""
        logger.info(text)
        self._hear_inside("on_notice", text)

    def _note(self, text: str) -> None:
        """Say a sentence, and have the journal keep it."""
        if self._recorder is not None:
            self._recorder.side("noted", text=text)
        self.say(text)

    def later(self, act: Callable[[], None]) -> None:
        """Call a function after the transition in work: nothing may speak, or strike, inside a commit."""
        self._waiting.append(act)
        self._attention = True

    def _do_what_waits(self) -> None:
        while self._waiting:
            self._waiting.pop(0)()

    def run(
        self,
        *,
        resume_from: str | Path | None = None,
        resume_training: bool = True,
        on_divergence: str = "warn",
        strict: bool = True,
    ) -> Any:
        """Run the machine until it stands in a final state.

        A second call goes on where the first one ended, if the limits allow it.

        Args:
            resume_from: a run directory, a snapshot, or "auto": go on if the run directory holds a run, else start.
            resume_training: False takes only the model and the optimizers from `resume_from`, and starts a new run.
            on_divergence: what to do when a re-executed transition differs from the recorded one: "warn" or "raise".
            strict: False lets a resume go on with listeners whose saved state is missing, with a warning.

        Returns:
            The final state.

        Raises:
            CallerError: an argument can't be used, or the run directory holds a run already.
            Diverged: a re-executed transition differs, with `on_divergence="raise"`.
            KeyboardInterrupt, SystemExit: a signal ended the run; the status is 128 + its number.
            BaseException: whatever a state's work or a listener raised, after the state `exception` was committed.
        """
        if self._running:
            raise CallerError("this engine is running already")
        if on_divergence not in ("warn", "raise"):
            raise CallerError(f"on_divergence must be 'warn' or 'raise', not {on_divergence!r}")
        self._running, self._thread = True, threading.get_ident()
        self.exception, self._heeded = None, False
        try:
            with Signals(self.interrupt):
                if self._entered(resume_from, resume_training, on_divergence, strict):
                    ending.run(self)
        except SystemExit:
            if self._heeded:
                self._ask_for_requeue()
            raise
        else:
            self._leave()
        finally:
            self._running, self._signal, self.together.signal = False, None, None
        return self.trainer_state

    # -- the loop and the commit ---------------------------------------------------------------------------

    def _loop(self, upto: float = math.inf) -> None:
        """Go from transition to transition until the state is final, or until `upto` of them are committed."""
        perform, final, heeds_stop = self._perform, self.machine.final, self.machine.heeds_stop
        can_stop, many = hasattr(self.trainer_state, "stop_asked"), self.ranks.world_size > 1
        if self._signal is not None or many:  # it came before there was anything to do
            self._attend()
        while (state := self.trainer_state).state not in final and state.seq < upto:
            if can_stop and state.stop_asked and state.state not in heeds_stop:
                event: Event = Stopped(reason=state.stop_asked)
            else:
                event = perform[state.state](state)
            self._commit(event)
            if self._attention or many:
                self._attend()

    def _commit(self, event: Event, hear: Callable[[str, Event, str], None] | None = None) -> None:
        before = self.trainer_state
        source, kind = before.state, event.__class__
        dest = self._way.get((source, kind))
        if dest.__class__ is not str:  # guarded, or not in the table
            dest = self.machine.next_state(before, event)
        if dest in self._final:
            ending.keep_rest(self, event)
        after = event.fold(before, dest)
        recorder = self._recorder
        if recorder is not None:
            try:
                if self._quick.get(kind) == dest:
                    recorder.hold(source, event, before, after)
                else:
                    recorder.append(source, event, after)
            except BaseException as error:
                if isinstance(error, JournalWriteError) or recorder.seq == after.seq:
                    self.trainer_state = after  # its work is done, though nobody will hear of it
                    self._untold = after.seq
                raise
        self.trainer_state = after
        (hear or self._hear)(source, event, dest)

    def _hear(self, source: str, event: Event, dest: str) -> None:
        for fn, give in self._index[source, event.__class__, dest]:
            if give is None:
                fn(self)
            else:
                fn(self, *give(self, event))

    def _hear_each(self, source: str, event: Event, dest: str) -> None:
        """Have everyone hear of a failure, whatever becomes of those before them."""
        assert self.exception is not None
        for fn, give in self._index[source, event.__class__, dest]:
            try:
                fn(self, *(() if give is None else give(self, event)))
            except BaseException as second:
                attach(self.exception, second)

    def _hear_inside(self, moment: str, *args: Any) -> None:
        for fn in self.listeners.inside.get(moment, ()):
            fn(self, *args)

    def _attend(self) -> None:
        """Do what was asked for since the last transition: snapshots, signals, what other threads have to say."""
        if self.ranks.world_size > 1:
            self.together.attend(self)
            return
        self._attention = False
        self._do_what_waits()
        if self._snapshot_asked and self.trainer_state.state not in self.machine.final:
            self._snapshot_asked = False
            saving.wait(self)  # listeners hear of the one before while it is there
            self._snapshot()
        saving.collect(self)
        if self._signal is not None and self.trainer_state.state not in self.machine.final:
            self._commit(self.give_up())

    # -- beginning -----------------------------------------------------------------------------------------

    def _entered(self, *how: Any) -> bool:
        try:
            return self._enter(*how)
        except BaseException as error:  # whatever was opened is closed again
            self.exception = self.ranks.reason(error)
            self.ranks.note_failure(error, "before its first transition")
            ending.close(self)
            ending.raised(self.exception, error)

    def _enter(self, resume_from: Any, resume_training: bool, on_divergence: str, strict: bool) -> bool:
        """Open the recording and stand where the run begins or goes on; False if there's nothing to run."""
        source = sources.find(resume_from, self.run_dir, self.driver)
        self.ranks.barrier()  # before one of them creates what another still looks for
        saving.check(self)  # what was added since the engine was built, before it is trained on for hours
        if source is not None and not resume_training:
            assert self.driver is not None
            self._prepare(fresh=False)
            _, held = self.driver.read(sources.intact_snapshot(source).path)
            self.driver.restore(held, training=False)
            source = None
        if source is not None:
            self._rehearsal = None
            resume.enter(self, source, on_divergence, strict)
            return True
        if self._rehearsal is not None and resume_from is None:
            self._rehearsal.fork()
            self._rehearsal = None
            return True
        if self._rest is not None:
            return beginning.go_on(self, self._rest)
        beginning.start(self)
        return True

    def _open_recorder(
        self, about: dict[str, Any], *, incarnation: int, parent: Position | None, lock: Any = None
    ) -> Recorder:
        assert self.run_dir is not None
        recorder = Recorder(
            self.run_dir,
            about,
            self.machine,
            type(self.trainer_state),
            incarnation,
            parent,
            self._flag_attention,
            lock,
            self.world,
            self.ranks,
        )
        recorder.snapshots.keep = self.keep_snapshots
        return recorder

    def _flag_attention(self) -> None:
        self._attention = True

    # -- snapshots and the end -----------------------------------------------------------------------------

    def _snapshot(self, *, exact: bool = True) -> None:
        """Copy the state after the last transition, and have it written while the run goes on.

        Args:
            exact: no state's work is half done.
        """
        saving.take(self, exact=exact)

    def _failed(self, error: BaseException) -> Failed:
        return Failed(error=message(error), kind=type(error).__name__)

    # -- what a trainer says differently -------------------------------------------------------------------

    def _prepare(self, fresh: bool = True) -> None:
        """Get the driver ready; unless `fresh`, what it holds will be restored, and nothing of it is changed yet."""
        driver, seed = self.driver, self.seed
        if driver is None or seed is None:
            return
        driver.setup(seed, self._seed_given)
        if fresh and self.trainer_state.seq == 0:
            if self._seed_given:
                driver.seed_generators(seed)
            driver.zero_grad()

    def adopts(self, run_dir: Path) -> bool:
        """Say whether this engine goes on writing a run that it is resumed from; else it begins one of its own."""
        return self.run_dir is not None and self.run_dir.resolve() == run_dir.resolve()

    def take_journal(self, journal: Journal) -> None:
        """Take what the earlier lives of the run say; called before the first transition of a resumed one."""

    def take_settings(self, about: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
        """Hold this engine's settings against a run's; return those that changed and may. See `recording`."""
        mine, held = self._settings(), about["settings"]
        if self.driver is not None and not self._seed_given:  # a seed that nobody gave is the run's
            mine |= {"seed": held.get("seed", self.seed), "seed_given": held.get("seed_given", False)}
        changed = recording.compare_settings(held, mine)
        if self.driver is not None:
            self.seed, self._seed_given = mine["seed"], mine["seed_given"]
        return changed

    def _settings(self) -> dict[str, Any]:
        """Return what `run.json` keeps of the settings; see `recording.FIXED`."""
        return {**self._settings_of_work(), **self._settings_of_snapshots()}

    def _settings_of_work(self) -> dict[str, Any]:
        driver = self.driver
        told = {"machine": self.machine.digest, "world": self.ranks.world_size}
        if driver is not None:
            told |= {**driver.fingerprint(), "seed": self.seed, "seed_given": self._seed_given}
            told["hyperparameters"] = driver.hyperparameters()
        return {**told, "callbacks": self.listeners.built_with()}

    def _settings_of_snapshots(self) -> dict[str, Any]:
        return {
            "snapshot_every": self._snapshot_every,
            "keep_snapshots": None if self.keep_snapshots is None else self.keep_snapshots.plain(),
            "on_snapshot_fault": self.on_snapshot_fault,
        }

    def _recorded(self, seq: int) -> Any:
        """Return the record that an earlier life of the run has written of a transition to come, or None."""
        return None if self._recorder is None else self._recorder.recorded(seq)

    def _environment(self) -> dict[str, Any]:
        return {} if self.driver is None else self.driver.environment()

    def _with_limits(self, state: Any) -> Any:
        """Return the state with this run's limits in place of those it was saved with."""
        return attrs.evolve(state, **self._own_limits)

    def _has_work(self, state: Any) -> bool:
        """Say whether a state from before the end would go on under its limits."""
        return self._rest is not None and not self._rest.decided

    def _reenter(self, state: Any, batch: Any) -> None:
        """Stand the driver where a state needs it.

        Args:
            state: where the run goes on.
            batch: the batch in hand, or `NO_BATCH`.
        """
        if batch is not NO_BATCH:
            self.batch = batch

    def _held_batch(self) -> Any:
        """Return the batch that belongs into a snapshot, or `NO_BATCH`."""
        return NO_BATCH if self.batch is None else self.batch

    def _is_in_epoch(self, state: Any) -> bool:
        """Say whether an epoch is under way that could be cut."""
        return False

    def _user_state(self) -> dict[str, Any]:
        return dict(self.state)

    def _take_user_state(self, held: dict[str, Any]) -> None:
        """Take back what `_user_state` returned."""
        self.state.clear()
        self.state.update(held)

    def _own_state(self) -> dict[str, Any]:
        """Return what a resume must know and equal runs may differ in: plain data."""
        return {}

    def _take_own_state(self, held: dict[str, Any]) -> None:
        """Take back what `_own_state` returned; nothing of it may be there."""

    def _where(self, state: Any) -> str:
        return f"in state '{state.state}', after transition {state.seq}"
