"""Going on: which snapshot a run re-enters at, and what is restored in which order.

The state is re-entered without a callback being called again. Then the run goes on, and what the dead process had
recorded past the snapshot is expected of the transitions that follow.
"""

from __future__ import annotations

import functools
import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from tachograph.drivers import NO_BATCH
from tachograph.states import TrainerState
from tachograph.states.errors import CallerError
from tachograph.states.trainer_state import SCHEMA

from . import beginning, choosing, recording, snapshots
from .diff import Diverged, Divergence
from .journal import Incarnation, Journal, JournalLock, Position, Record
from .journal.codec import restored
from .snapshots import Snapshot, SnapshotFault
from .sources import Chosen, Source, intact_snapshot

if TYPE_CHECKING:
    from .engine import Engine

GENESIS = Position(0, 0, "0" * 16)
"""The point before the first transition of a run."""


@attrs.frozen
class ResumeReport:
    """Where a run was resumed.

    Attributes:
        run_dir: the run it goes on from.
        snapshot: the snapshot's directory; None if there was none and the run began again.
        seq: the transition it stands after.
        to_match: how many recorded transitions will be re-executed.
        passed_over: a sentence for each snapshot that couldn't be used.
        torn: the names of the snapshots that were being written when their process died; they are gone.
        changed: the settings that changed: name -> (old, new).
    """

    run_dir: Path
    snapshot: Path | None
    seq: int
    to_match: int
    passed_over: list[str]
    torn: list[str]
    changed: dict[str, tuple[Any, Any]]


@attrs.frozen
class Past:
    """What a journal says of a point of its run; nothing where there is no journal.

    Attributes:
        lives: the run's incarnations.
        last: its last transition.
        expected: by seq, what was recorded past the point and should come again.
        accounts: what each life did next there.
    """

    lives: list[Incarnation] = attrs.field(factory=list)
    last: Record | None = None
    expected: dict[int, Record] = attrs.field(factory=dict)
    accounts: list[Record] = attrs.field(factory=list)

    @classmethod
    def of(cls, journal: Journal, snapshot: Snapshot | None) -> Past:
        """Read what a journal says of a snapshot's point; None: of the beginning."""
        point, lives = point_of(snapshot), journal.incarnations
        expected = journal.expected_after(point.incarnation, point.seq) if lives else {}
        return cls(lives, journal.last, expected, journal.accounts_after(point.incarnation, point.seq))


def point_of(snapshot: Snapshot | None) -> Position:
    """Return the point of a snapshot; None: that of the beginning."""
    return GENESIS if snapshot is None else Position(snapshot.incarnation, snapshot.seq, snapshot.chain)


def enter(engine: Engine, source: Source, on_divergence: str, strict: bool) -> None:
    """Stand an engine where a run goes on, with its recording open.

    Raises:
        SettingsChanged: a fixed setting differs.
        RestoreFault, RestoreMismatch: the snapshot doesn't fit the driver or the listeners.
        JournalBusy, JournalCorrupt: the journal is being written, or is damaged.
    """
    if source.about is not None:
        _enter_saved(engine, source, source.about, on_divergence, strict)
        return
    about = recording.load(source.run_dir)
    here = engine.adopts(source.run_dir)
    ranks = engine.ranks
    lock = JournalLock(source.run_dir, rank=ranks.rank) if here else None
    try:
        torn: list[str] = []
        if here:
            recovery, torn = choosing.recovered(source.run_dir, ranks, engine.world.files)
            _report_cut(engine, recovery)
        journal = choosing.journal_of(source.run_dir, ranks)
        if here:
            engine.take_journal(journal)
        changed = _changed(engine, about, Journal(source.run_dir))
        place, lacking = snapshots.place_in(journal), snapshots.lacking_in(journal)
        if source.snapshot is None:
            look = snapshots.newest if ranks.world_size == 1 else functools.partial(choosing.newest_for_all, ranks)
            chosen = Chosen(*look(source.run_dir, about["run"], place, engine.world.files, lacking), torn)
        else:
            chosen = Chosen(_given(engine, intact_snapshot(source), place, lacking if here else _nothing), torn=torn)
        if chosen.snapshot is None and about.get("parent") and about["parent"]["seq"]:
            raise SnapshotFault(_orphaned(source.run_dir, about["parent"], chosen.passed_over))
        known = chosen.snapshot is None or choosing.of_rank(chosen.snapshot, ranks) is not None
        past = Past.of(journal, chosen.snapshot) if known else Past()
        _restore(engine, source.run_dir, about, past, chosen, changed, lock, strict, on_divergence)
    except BaseException:
        if lock is not None:
            lock.release()
        raise


def _given(
    engine: Engine, given: Snapshot, place: Callable[[Snapshot], int | None], lacking: Callable[[Snapshot], str]
) -> Snapshot:
    """Return a snapshot that the user chose, as this rank's journal knows it."""
    mine = choosing.of_rank(given, engine.ranks)
    if mine is None:
        return attrs.evolve(given, chain=choosing.NEW)
    where = place(mine)
    mine = mine if where is None else attrs.evolve(mine, incarnation=where)
    if lacking(mine):
        raise SnapshotFault(
            f"{given.path} can't be gone on from: {lacking(mine)}. Give another snapshot, or another run_dir"
        )
    return mine


def _nothing(snapshot: Snapshot) -> str:
    return ""


def _enter_saved(engine: Engine, source: Source, about: dict[str, Any], on_divergence: str, strict: bool) -> None:
    """Stand an engine where a trainer was saved to a folder: no journal tells what followed."""
    snapshot = intact_snapshot(source)
    held = {**about["settings"], "environment": about["environment"]}
    here = {"environment": recording.environment(engine._environment())}
    changed = {**engine.take_settings({**about, "settings": held}), **recording.compare_settings(held, here)}
    _restore(engine, source.run_dir, about, Past(), Chosen(snapshot), changed, None, strict, on_divergence)


def _changed(engine: Engine, about: dict[str, Any], journal: Journal) -> dict[str, tuple[Any, Any]]:
    """Hold the settings of now against those of the run's last life, and this environment against its."""
    held = recording.in_force(about, journal)
    changed = engine.take_settings({**about, "settings": held})
    here = {"environment": recording.environment(engine._environment())}
    return {**changed, **recording.compare_settings(held, here)}


def _restore(
    engine: Engine,
    run_dir: Path,
    about: dict[str, Any],
    past: Past,
    chosen: Chosen,
    changed: dict[str, tuple[Any, Any]],
    lock: Any,
    strict: bool,
    on_divergence: str,
) -> None:
    snapshot = chosen.snapshot
    start, last = point_of(snapshot), past.last
    batch: Any = NO_BATCH
    if snapshot is None:
        engine._prepare()
    else:
        batch = load(engine, snapshot, strict)
    heeded = any(_heeded_stop(engine, record) for record in past.accounts)
    if engine.ranks.agree(heeded):  # a rank's journal may lack that, or all of it if the rank is a new one
        _ask_again(engine)
    lost: Any = None if snapshot is None else snapshot.about()["unwritten"]
    untold = lost is not None and snapshot is not None and snapshot.about()["untold"]
    path = None if snapshot is None else snapshot.path
    _record(engine, run_dir, about, past, start, path, lost, lock)
    engine.announced_until = start.seq - untold
    if lock is not None:  # how it ended isn't what will happen there now
        engine.announced_until = 0 if last is None else last.seq - (last.event in ("Failed", "Stopped"))
    report = ResumeReport(run_dir, path, start.seq, len(past.expected), chosen.passed_over, chosen.torn, changed)
    _tell(engine, report, snapshot, about)
    if engine._recorder is not None and lock is not None and not recording.is_felt(changed):
        engine._recorder.expect(dict(past.expected), _saying(engine, start.seq), _on_divergence(engine, on_divergence))
    if snapshot is not None:
        engine._reenter(engine.trainer_state, batch)
        engine._hear_inside("on_after_resume", report)
        assert engine.driver is not None
        passed_over = engine.driver.restore_generators()  # the last act: nothing may draw after it
        if passed_over:
            _tell_of_generators(engine, snapshot, passed_over)
        if untold:  # its listeners' memory is that of before: nobody heard what the journal couldn't take
            _hear_again(engine, lost[-1][0])
        if lock is None:
            engine._snapshot()  # a run of its own must not depend on its parent's files, not even for a moment
            if engine._recorder is not None:
                engine._recorder.snapshots.wait()


def _heeded_stop(engine: Engine, record: Record) -> bool:
    """Say whether a run ended here as it was asked to; an error or a signal has another reason."""
    if record.dest not in engine.machine.final or record.event == "Failed":
        return False
    return record.event != "Stopped" or record.data["reason"] == getattr(engine.trainer_state, "stop_asked", "")


def _orphaned(run_dir: Path, parent: dict[str, Any], passed_over: list[str]) -> str:
    why = f" {'. '.join(passed_over)}." if passed_over else ""
    return (
        f"{run_dir} goes on from transition {parent['seq']} of the run {parent['run']}, and has no snapshot of its own "
        f"that can be used.{why} Begin it anew from there, in another run_dir"
    )


def _ask_again(engine: Engine) -> None:
    """A life of the run had ended here: who had asked it to stop may ask again, and the limits of now decide."""
    if getattr(engine.trainer_state, "stop_asked", ""):
        engine.trainer_state = attrs.evolve(engine.trainer_state, stop_asked="")


def load(engine: Engine, snapshot: Snapshot, strict: bool, newcomers: bool = False) -> Any:
    """Restore driver, listeners, the user's state and the position; return the batch in hand.

    Args:
        engine: built, and not running.
        snapshot: an intact one.
        strict: False warns of what is missing.
        newcomers: listeners that the snapshot doesn't know begin anew.
    """
    if engine.driver is None:
        raise CallerError("this engine has no driver, so it can't restore a snapshot")
    held = snapshot.about()
    state = _state(type(engine.trainer_state), held)
    if state.state not in engine.machine.names or state.state in engine.machine.final:
        raise SnapshotFault(f"{snapshot.path} was taken in state '{state.state}', which this machine can't enter")
    engine._prepare(fresh=False)
    extra, held_by_driver = engine.driver.read(snapshot.path, strict=strict)
    engine.listeners.check(extra["listeners"], engine, engine._with_limits(state), strict, newcomers)
    # all that can be refused is refused before this line
    engine._rest = None  # another run of this engine's ended there, and held its batch
    batch = engine.driver.restore(held_by_driver)
    engine.listeners.load_state_dict(extra["listeners"], engine)
    engine._take_user_state(extra["user"])
    engine._take_own_state(extra.get("own", {}))
    engine.together.asked = [(field, reason) for field, reason in extra.get("own", {}).get("asked", [])]
    engine.trainer_state = engine._with_limits(state)
    return batch


def _record(
    engine: Engine,
    run_dir: Path,
    about: dict[str, Any],
    past: Past,
    start: Position,
    source: Path | None,
    lost: Any,
    lock: Any,
) -> None:
    """Open this process's part of the recording: a new incarnation, or a new run with this one as its parent.

    The record of the snapshot's own transition may have travelled in the snapshot; then it is written first.
    """
    if engine.run_dir is None:
        return
    if lock is None:
        parent = {"run": about["run"], **attrs.asdict(start), "run_dir": str(run_dir)}
        about = beginning.created(engine, engine.run_dir, parent)
        engine._recorder = engine._open_recorder(about, incarnation=0, parent=attrs.evolve(start, incarnation=-1))
        return
    engine.run_dir = run_dir
    number, parent_at = 0, None
    lives = {life.number: life for life in past.lives}
    taken_in = lives.get(start.incarnation)
    written = 0 if taken_in is None else taken_in.last_seq
    travelled = lost is not None and start.seq > written
    if lives:
        number = max(lives) + 1
        parent_at = start
        if travelled and taken_in is not None:
            parent_at = Position(taken_in.number, taken_in.last_seq, taken_in.chain)
    elif start.seq:  # a rank that the run hadn't got: its journal begins here
        parent_at = attrs.evolve(start, incarnation=-1)
    number = max(engine.ranks.gather(number))
    engine._recorder = engine._open_recorder(about, incarnation=number, parent=parent_at, lock=lock)
    engine._recorder.snapshots.last_seq = start.seq  # what it was resumed from
    engine._recorder.snapshots.source = source
    if travelled:
        for line, chain in lost[written - start.seq :]:
            engine._recorder.rewrite(line.encode(), chain)


def _hear_again(engine: Engine, line: str) -> None:
    told = json.loads(line)
    event = engine.machine.event_classes[told["event"]](**restored(told["data"]))
    engine._hear(told["from"], event, told["to"])


def _tell(engine: Engine, report: ResumeReport, snapshot: Snapshot | None, about: dict[str, Any]) -> None:
    for sentence in report.passed_over:
        warnings.warn(sentence, stacklevel=5)
    inexact = snapshot is not None and not snapshot.exact
    if inexact:
        warnings.warn(
            f"{report.snapshot} was taken when an error had struck inside a state's work: what follows isn't exact",
            stacklevel=5,
        )
    code = beginning.changed_code(engine, report.run_dir, about)
    if engine._recorder is not None:
        name = None if report.snapshot is None else report.snapshot.name
        changed = {k: list(v) for k, v in report.changed.items()}
        engine._recorder.side(
            "resumed",
            snapshot=name,
            at=report.seq,
            passed_over=report.passed_over,
            torn=report.torn,
            changed=changed,
            felt=recording.is_felt(changed),
            exact=not inexact,
            **code,
        )
    where = "from the beginning: there was no snapshot" if snapshot is None else f"at {report.seq:,}"
    n = report.to_match
    again = f"; {n:,} recorded transition{'' if n == 1 else 's'} to re-execute" if n else ""
    engine.say(f"resumed {where}{again}")
    for name, (old, new) in report.changed.items():
        others = "; what follows may have other bits" if name.startswith("environment.") else ""
        engine.say(f"{name} changed from {old} to {new}{others}")
    beginning.say_changed(engine, code)
    for name in report.torn:
        engine.say(f"{name} wasn't finished when its process died, and was removed")
    for name in [] if snapshot is None else snapshot.strangers():
        engine.say(f"{name} isn't part of the snapshot {report.snapshot}, and was left alone")


def _tell_of_generators(engine: Engine, snapshot: Snapshot, passed_over: str) -> None:
    warnings.warn(f"{snapshot.path}: {passed_over}. What follows isn't exact", stacklevel=5)
    if engine._recorder is not None:
        engine._recorder.side("rng_not_restored", snapshot=snapshot.path.name, reason=passed_over)


def _saying(engine: Engine, seq: int) -> Callable[[str], None]:
    return lambda text: engine.later(lambda: engine.say(f"resumed at {seq:,}; {text}"))


def _on_divergence(engine: Engine, policy: str) -> Callable[[Divergence], None]:
    def diverged(found: Divergence) -> None:
        error = Diverged(found)

        def act() -> None:
            if policy == "raise":
                raise error
            warnings.warn(f"{error}; the run goes on", stacklevel=4)
            engine.say(f"{error}; the run goes on")

        engine.later(act)

    return diverged


def _report_cut(engine: Engine, recovery: Any) -> None:
    for cut in recovery.cut:
        engine.say(f"{cut.file} ended in a torn record: {cut.bytes} bytes were put aside in {cut.aside}")


def schema_of(state: Any) -> int:
    """Return the version of a state's fields, for a snapshot."""
    return SCHEMA if isinstance(state, TrainerState) else 0


def _state(cls: type, held: dict[str, Any]) -> Any:
    if issubclass(cls, TrainerState):
        return cls.from_dict(held["state"], held["schema"])
    return cls(**held["state"])


__all__ = ["GENESIS", "ResumeReport", "enter", "load", "point_of", "schema_of"]
