"""Taking a snapshot, and telling what became of it.

The run pays for a copy. The rest is done beside it (`snapshot_writer`), and is told at the next transition: by side
records, to whoever listens to `on_after_snapshot`, and, if it couldn't be written, by an error or a warning.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import attrs

from tachograph.states.errors import CallerError

from . import resume
from .journal import JournalWriteError
from .listeners import plain_fault

if TYPE_CHECKING:
    from .engine import Engine
    from .recorder import Recorder
    from .snapshot_writer import Outcome


def take(engine: Engine, *, exact: bool, journal_failed: bool = False) -> None:
    """Copy the state after the last transition, and have it written while the run goes on.

    Args:
        engine: whose state.
        exact: no state's work is half done.
        journal_failed: the journal can't be written any more: its lost record travels in the snapshot.

    Raises:
        CallerError: something in a listener's or the user's own state can't be saved; its place is named.
    """
    recorder, driver, state = engine._recorder, engine.driver, engine.trainer_state
    many = engine.ranks.world_size > 1
    if many:
        wait(engine)  # what became of the one before is the same on all ranks only then
    if recorder is None or not recorder.writes or driver is None or state.seq == 0:
        return
    if recorder.snapshots.last_seq == state.seq:
        return
    recorder.snapshots.wait()  # one copy in memory at a time, into which the next may go
    unwritten = recorder.unwritten if journal_failed else ()
    about = {
        "seq": state.seq,
        "chain": unwritten[-1][1] if unwritten else recorder.chain,
        "exact": exact,
        "schema": resume.schema_of(state),
        "state": attrs.asdict(state, recurse=False),
        "unwritten": [[line.decode(), chain] for line, chain in unwritten] or None,
        "untold": engine._untold == state.seq,
    }
    if many:
        about["chains"] = engine.ranks.gather(about["chain"])
    extra = check(engine)
    capture = driver.capture(extra, engine._held_batch())
    durable = (lambda: None) if journal_failed else recorder.sync
    recorder.snapshots.write(
        about, lambda directory: driver.save(capture, directory), durable, lambda: driver.size_of(capture)
    )


def check(engine: Engine) -> dict[str, Any]:
    """Return what the engine and its listeners have to save, unless it can't be saved: it may hold half the program.

    Raises:
        CallerError: something in it is neither plain data nor a tensor; its place is named.
    """
    driver = engine.driver
    extra = {"listeners": engine.listeners.state_dict(engine), "user": engine._user_state(), "own": engine._own_state()}
    if engine.together.asked:
        extra["own"] = {**extra["own"], "asked": [list(pair) for pair in engine.together.asked]}
    if driver is not None:
        engine.listeners.check_plain(engine, driver.is_tensor, extra["listeners"]["callbacks"])
        fault = plain_fault(extra["user"], driver.is_tensor, "trainer.state")
        if fault:
            raise CallerError(f"trainer.state is saved with every snapshot: plain data and tensors only, but {fault}")
    return extra


def collect(engine: Engine) -> None:
    """Tell what became of the snapshots that are done.

    Raises:
        SnapshotWriteFault: one couldn't be written, and the engine's `on_snapshot_fault` is "raise".
        JournalWriteError: the journal couldn't be made durable for it.
    """
    recorder = engine._recorder
    if recorder is None:
        return
    for outcome in recorder.snapshots.collect():
        if outcome.fault is not None:
            _tell_fault(engine, outcome)
        if outcome.snapshot is not None:
            snapshot = outcome.snapshot
            recorder.side("saved", snapshot=snapshot.path.name, at=snapshot.seq, exact=snapshot.exact)
        if outcome.pruned:
            recorder.side("pruned", snapshots=outcome.pruned)
        if outcome.prune_fault:
            recorder.side("not_pruned", error=outcome.prune_fault)
            warnings.warn(f"old snapshots couldn't be removed: {outcome.prune_fault}. The run goes on", stacklevel=3)
        if outcome.snapshot is not None and outcome.snapshot.path.exists():  # a later one may have taken its place
            engine._hear_inside("on_after_snapshot", outcome.snapshot.path)


def _tell_fault(engine: Engine, outcome: Outcome) -> None:
    fault = outcome.fault
    assert fault is not None
    if engine.on_snapshot_fault == "raise" or isinstance(fault, JournalWriteError):
        raise fault
    assert engine._recorder is not None
    engine._recorder.side("not_saved", at=outcome.seq, error=str(fault))
    warnings.warn(f"{fault}. The run goes on", stacklevel=4)


def wait(engine: Engine) -> None:
    """Wait for the snapshot in flight, and tell what became of it."""
    if engine._recorder is not None:
        engine._recorder.snapshots.wait()
        collect(engine)


def emergency(engine: Engine, recorder: Recorder) -> None:
    """Take a snapshot that carries the records which the journal couldn't take, and wait for it.

    Raises:
        SnapshotWriteFault: it couldn't be written either.
    """
    take(engine, exact=True, journal_failed=True)
    recorder.snapshots.wait()
    faults = [o.fault for o in recorder.snapshots.collect() if o.fault is not None]  # no journal is left to tell it to
    if faults:
        raise faults[-1]
