"""Beginning a run, and going on with one that had ended, in the same object."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from tachograph.drivers import NO_BATCH
from tachograph.states import Event
from tachograph.states.errors import CallerError

from . import recording
from .journal import Journal, Position

if TYPE_CHECKING:
    from .engine import Engine


@attrs.frozen
class Rest:
    """Where a run stood before its final transition; a second `run()` goes on from there.

    Attributes:
        state: the state.
        position: the same point in the journal; None without one.
        memory: the listeners' states there; None after an error, when they keep what they have.
        batch: the batch in hand.
        decided: its own event ended the run, and was heard; not a stop, nor an error, before its work was done.
    """

    state: Any
    position: Position | None
    memory: Any
    batch: Any
    decided: bool


def start(engine: Engine) -> None:
    """Get the driver ready, and open the recording of a new run.

    Raises:
        CallerError: the engine stands somewhere in a run that it has executed again.
    """
    if engine.trainer_state.seq != 0:
        raise CallerError(
            f"this trainer stands after transition {engine.trainer_state.seq} of a run that it executed again, which "
            "is no beginning: rewind() it, give a resume_from, or build a new one"
        )
    engine._prepare()
    if engine.run_dir is not None:
        about = created(engine, engine.run_dir)
        engine._recorder = engine._open_recorder(about, incarnation=0, parent=None)


def created(engine: Engine, run_dir: Path, parent: Any = None) -> dict[str, Any]:
    """Create a run directory, once for all ranks; return its `run.json`.

    Args:
        engine: whose run.
        run_dir: where.
        parent: the point of another run that it goes on from.

    Raises:
        CallerError: as `recording.create`; on every rank.
    """
    ranks, told = engine.ranks, (engine._settings(), engine._environment())
    about: Any = ""
    if ranks.first:
        try:
            about = recording.create(run_dir, *told, parent, engine.world.files, ranks.world_size, engine.machine)
        except CallerError as error:
            if ranks.world_size == 1:
                raise
            about = str(error)
    about = ranks.share(about)
    if isinstance(about, str):
        raise CallerError(about)
    return about  # type: ignore[no-any-return]


def go_on(engine: Engine, rest: Rest) -> bool:
    """Go on from before the final transition; False if the limits leave nothing to run.

    What decided on the end is decided again under the limits of now. Its event has been heard and its work is done, so
    only its record is written anew.
    """
    engine._prepare()
    state = engine._with_limits(rest.state)
    if hasattr(state, "stop_asked"):
        state = attrs.evolve(state, stop_asked="")
    ended, engine.trainer_state = engine.trainer_state, state
    failed = ended.state != "done"
    decided = rest.decided and state.state in engine.machine.heeds_stop
    event = engine._perform[state.state](state) if decided else None
    state = engine.trainer_state
    dest = None if event is None else engine.machine.next_state(state, event)
    if dest in engine.machine.final or not (failed or decided or engine._has_work(state)):
        engine.trainer_state = ended
        engine.say("the limit is reached already: nothing was run")
        return False
    _record(engine, rest)
    engine.trainer_state, engine.batch, engine._rest = state, rest.batch, None
    if event is not None and dest is not None:
        _decide_again(engine, event, dest)
    elif rest.memory is not None:
        engine.listeners.load_state_dict(rest.memory, engine)
    for callback in engine.listeners.callbacks.values():
        callback.on_continue(engine)
    engine._reenter(engine.trainer_state, NO_BATCH if rest.batch is None else rest.batch)
    return True


def _record(engine: Engine, rest: Rest) -> None:
    if engine.run_dir is None or rest.position is None:
        return
    about, journal = recording.load(engine.run_dir), Journal(engine.run_dir)
    changed = recording.differences(recording.in_force(about, journal), engine._settings())
    incarnation = journal.incarnations[-1].number + 1
    engine._recorder = engine._open_recorder(about, incarnation=incarnation, parent=rest.position)
    engine._recorder.snapshots.last_seq = rest.position.seq
    code = changed_code(engine, engine.run_dir, about)
    told = {"changed": {k: list(v) for k, v in changed.items()}, **code}
    engine._recorder.side("continued", at=rest.position.seq, **told)
    say_changed(engine, code)


def changed_code(engine: Engine, run_dir: Path, about: dict[str, Any]) -> dict[str, Any]:
    """Return, for rank 0's side record, which of the user's own modules changed since a run's last life.

    Args:
        engine: which goes on with it.
        run_dir: the run, or a folder that a trainer was saved to.
        about: its `run.json`.

    Returns:
        {"code": {file: [old, new]}}, or nothing where none did.
    """
    if not engine.ranks.first:
        return {}
    code = recording.changed_code(about, Journal(run_dir) if recording.holds_a_run(run_dir) else None)
    return {"code": {name: list(pair) for name, pair in code.items()}} if code else {}


def say_changed(engine: Engine, code: dict[str, Any]) -> None:
    """Say what `changed_code` found."""
    for name in code.get("code", ()):
        engine.say(f"{name} changed since the run was at work last")


def _decide_again(engine: Engine, event: Event, dest: str) -> None:
    before = engine.trainer_state
    after = event.fold(before, dest)
    if engine._recorder is not None:
        engine._recorder.append(before.state, event, after)
    engine.trainer_state = after
