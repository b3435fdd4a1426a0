"""How a run ends: by its last transition, by a stop, or by an error; and what is put in order then.

Nothing is swallowed on the way out: the first error is the one that is raised, and later ones are attached to it.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from tachograph.drivers.ranks import RankFailed
from tachograph.states import Event, Failed, Stopped
from tachograph.states.errors import CallerError

from . import saving
from .beginning import Rest
from .journal import JournalWriteError
from .notes import attach, note
from .snapshots import SnapshotWriteFault

if TYPE_CHECKING:
    from .engine import Engine

logger = logging.getLogger("tachograph")


def keep_rest(engine: Engine, event: Event) -> None:
    """Keep the point before a final transition, so that the run can be extended from there."""
    state = engine.trainer_state
    failed = isinstance(event, Failed)
    position = None if engine._recorder is None else engine._recorder.position
    memory = None if failed else copy.deepcopy(engine.listeners.state_dict(engine))
    engine._rest = Rest(state, position, memory, engine.batch, decided=not isinstance(event, (Failed, Stopped)))
    if isinstance(event, Stopped) or state.state in engine.machine.heeds_stop:
        engine._snapshot()  # no work was done in this state, so what the driver holds is what the state says


def run(engine: Engine) -> None:
    """Go through the loop, and put everything in order after it, however it ended."""
    try:
        engine._loop()
    except BaseException as error:
        cause = engine.ranks.reason(error)
        _fail(engine, cause)
        raised(cause, error)
    finally:
        close(engine)


def raised(cause: BaseException, error: BaseException) -> NoReturn:
    """Raise what went wrong: an error of this rank, or what another rank's failure has done to it."""
    if cause is error:
        raise error
    raise cause from None  # a broken connection is its effect, and says no more than it


def _fail(engine: Engine, error: BaseException) -> None:
    """Commit that the run failed; a second error is attached to the first."""
    engine.exception = error
    where = engine._where(engine.trainer_state)
    note(error, where)
    if not engine._heeded:
        engine.ranks.note_failure(error, where)
    if isinstance(error, Exception):
        told = filter(None, (where, engine.listeners.blamed(error)))
        why = f": {str(error).splitlines()[0]}," if isinstance(error, RankFailed) else ""  # its traceback may not come
        logger.error("%s%s %s", type(error).__name__, why, ", ".join(told))
    for step in (_save_what_is_left, _commit_failure):
        try:
            step(engine, error)
        except BaseException as second:
            attach(error, second)


def _save_what_is_left(engine: Engine, error: BaseException) -> None:
    """Take a snapshot where the run failed; if the journal can't be written, it carries the record that is lost."""
    recorder, ended = engine._recorder, engine.trainer_state.state in engine.machine.final
    if _in_a_hurry(engine):
        return
    if engine.ranks.world_size > 1:  # the others are somewhere else: no snapshot of all can be taken
        if isinstance(error, JournalWriteError):
            engine._recorder, engine._closing = None, recorder
        return
    if isinstance(error, JournalWriteError) and recorder is not None:
        try:
            if not ended:
                saving.emergency(engine, recorder)
        finally:
            engine._recorder, engine._closing = None, recorder
    elif not ended and not isinstance(error, CallerError):
        engine._snapshot(exact=isinstance(error, SnapshotWriteFault))  # that one strikes between two transitions


def _commit_failure(engine: Engine, error: BaseException) -> None:
    if engine.trainer_state.state not in engine.machine.final:
        engine._commit(engine._failed(error), engine._hear_each)


def close(engine: Engine) -> None:
    """Wait for the snapshot in flight, write the journal's footer, give back the driver's workers.

    Raises:
        BaseException: what went wrong here, if nothing had gone wrong before.
    """
    recorder = engine._recorder or engine._closing
    pending = engine.exception
    steps: list[Callable[[], Any]] = [lambda: _finish_snapshots(engine), engine._do_what_waits]
    steps.append(lambda: _release(engine))
    if recorder is not None:
        steps[1:1] = [recorder.close]
    if pending is None or engine._heeded:
        steps[1:1] = [engine.ranks.barrier]  # rank 0 may keep the store, which others may still have to read
    for step in steps:
        try:
            step()
        except BaseException as error:
            if pending is None:
                pending = error
                engine.ranks.note_failure(error, "at the end of the run")
            else:
                attach(pending, error)
    engine._recorder = engine._closing = None
    if pending is not None and pending is not engine.exception:
        raise pending


def _finish_snapshots(engine: Engine) -> None:
    if _in_a_hurry(engine):
        return
    try:
        saving.wait(engine)
    except Exception:  # it may have struck from outside, as that of a worker that died: then one is still in work
        saving.wait(engine)
        raise


def _in_a_hurry(engine: Engine) -> bool:
    """Say whether Ctrl-C struck after a signal that hadn't been heeded yet: whoever sends two doesn't wait."""
    return engine._signal is not None and not engine._heeded and isinstance(engine.exception, KeyboardInterrupt)


def _release(engine: Engine) -> None:
    engine._attention = engine._snapshot_asked = False
    if engine.driver is not None:
        engine.driver.close()


__all__ = ["close", "keep_rest", "run"]
