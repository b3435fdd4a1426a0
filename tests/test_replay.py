"""Dry replay: the same calls with the same values as live, and moving about in a journal."""

from __future__ import annotations

import json
import os
import signal
import sys
import tracemalloc
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

from tachograph.drivers import StubDriver
from tachograph.engine import (
    Callback,
    CSVLogger,
    EarlyStopping,
    Events,
    Filter,
    HasMonitorCallback,
    Journal,
    NanGuard,
    TensorBoardLogger,
    ThroughputMonitor,
    Timer,
    Trainer,
    replay,
)
from tachograph.engine.callbacks.callback import MOMENTS
from tachograph.engine.events import hangs_on
from tachograph.engine.journal import JournalCorrupt, JournalError
from tachograph.engine.journal.segments import Segment
from tachograph.engine.replay import NotReplayed, Replay
from tachograph.engine.replayable import INSIDE, OF_THE_PROCESS
from tachograph.engine.world import World
from tachograph.states import CallerError, Event, Row, Stepped, TrainerState, training_machine
from tests.test_engine import collecting, collector
from tests.test_journal_ranks import ranks
from tests.test_journal_support import in_child
from tests.toys import Run, Sum, scribe, stop_at, stub

COUNTERS = (
    "n_epochs",
    "cur_epoch_idx",
    "global_forward_batches",
    "batch_idx_in_epoch",
    "num_batches_per_epoch",
    "total_batches",
)
HEARD = [name for name in MOMENTS if name not in (*INSIDE, *OF_THE_PROCESS, "on_log", "on_notice")]


class Diary(Callback):
    """Hears every moment on a transition, every event, state and transition, plainly and through every filter.

    It notes what it was given and what it sees of the trainer. Its notes are its memory: after a resume they are those
    of the history as it stands.
    """

    def __init__(self, machine: Any = None) -> None:
        self.notes: list[str] = []
        self.machine = machine or training_machine()

    def state_dict(self) -> dict[str, Any]:
        return {"notes": list(self.notes)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.notes = list(state["notes"])

    def subscribe(self, listeners: Any) -> None:
        passes: dict[str, dict[str, Any]] = {
            "every": {"every": 2},
            "once": {"once": [1, 4]},
            "window": {"after": 1, "before": 6},
        }
        passes["asked"] = {"filter_fn": lambda filter, trainer: trainer.trainer_state.seq % 3 == 0}
        for name in HEARD:
            listeners.add(name, self._note(name), owner=self)
            for kind, condition in passes.items():
                listeners.add(getattr(Events, name)(**condition), self._note(f"{name}, {kind}"), owner=self)
        pairs = sorted({f"{row.source} -> {row.dest}" for row in self.machine.rows})
        for name in [*self.machine.event_classes.values(), *self.machine.names, *pairs]:
            listeners.add(name, self._note(str(name)), owner=self)
        listeners.add("Stepped", self._note("first"), owner=self, priority=5)

    @Filter(every=3)
    def on_train_batch_end(self, trainer: Any) -> None:
        self._note("a method, every 3")(trainer)

    def _note(self, point: str) -> Callable[..., None]:
        def heard(trainer: Any, *given: Any) -> None:
            error = trainer.exception
            seen = [None if error is None else f"{type(error).__name__}: {error}", trainer.last_loss]
            seen += [getattr(trainer, name) for name in COUNTERS]
            told = [repr(part) if isinstance(part, (Event, dict)) else str(part) for part in given]
            self.notes.append(json.dumps([point, told, trainer.trainer_state.to_dict(), seen], default=str))

        return heard


class Hears(Diary):
    """The same without methods, for machines that have other events than a training run's."""

    on_train_batch_end = Callback.on_train_batch_end


def counts(trainer: Any) -> dict[str, Any]:
    return dict(trainer.listeners.state_dict(trainer)["filters"])


def replayed(run_dir: Path, *, times: int = 1, **settings: Any) -> tuple[list[str], dict[str, Any]]:
    """What a diary holds after a replay, and the counts of its filters."""
    diary = Diary(settings.get("machine"))
    dry = replay(run_dir, **settings).add_callback(diary)
    dry.run()
    assert dry.skipped == []
    return diary.notes, counts(dry)


def live_and_dry(trainer: Trainer, run_dir: Path, error: type[BaseException] | None = None, **arguments: Any) -> Diary:
    """Run a trainer with a diary, and hold what it heard against a replay."""
    (diary,) = [c for c in trainer.listeners.callbacks.values() if isinstance(c, Diary)]
    if error is None:
        trainer.run(**arguments)
    else:
        with pytest.raises(error):
            trainer.run(**arguments)
    notes, filters = replayed(run_dir)
    if "resume_from" in arguments:
        notes = [
            without_loss(dry) if "[null, null," in live else dry for dry, live in zip(notes, diary.notes, strict=True)
        ]
    assert notes == diary.notes
    assert filters == counts(trainer)
    assert len(notes) > 20
    return diary


def without_loss(note: str) -> str:
    """A trainer that has just resumed has measured no loss yet; a replay goes on as a straight run does."""
    point, given, state, (error, _, *counters) = json.loads(note)
    return json.dumps([point, given, state, [error, None, *counters]])


def diaried(run_dir: Path, driver: StubDriver | None = None, **settings: Any) -> Trainer:
    return stub([1, 2, 3, 4, 5], driver, run_dir=run_dir, callbacks=Diary(), **settings)


def validating(run_dir: Path, **settings: Any) -> Trainer:
    settings = {"validate_dataloaders": [1, 2], "metrics": {"sum": Sum()}, **settings}
    return diaried(run_dir, **settings)


# -- the same calls as live --------------------------------------------------------------------------------


def test_every_moment_is_either_heard_in_a_replay_or_told_apart() -> None:
    machine = training_machine()
    hung = {name for row in machine.rows for name in hangs_on(row.source, row.event.__name__, row.dest)}
    assert set(HEARD) == hung - set(INSIDE)
    assert not set(INSIDE) & set(OF_THE_PROCESS)
    assert {*INSIDE, *OF_THE_PROCESS} <= set(MOMENTS)


@pytest.mark.parametrize(
    "settings",
    [{}, {"accumulation_steps": 2}, {"accumulation_steps": 3, "accumulation_tail": "carry"}, {"n_batches": 7}],
    ids=["plain", "accumulation", "carried", "batches"],
)
def test_a_replay_makes_the_calls_of_the_live_run(tmp_path: Path, settings: dict[str, Any]) -> None:
    settings = {"n_epochs": None, **settings} if "n_batches" in settings else settings
    live_and_dry(diaried(tmp_path / "run", **settings), tmp_path / "run")


@pytest.mark.parametrize("cadence", [2, -1, (3, -1)])
def test_validations_are_heard_with_their_results(tmp_path: Path, cadence: Any) -> None:
    diary = live_and_dry(validating(tmp_path / "run", validate_every=cadence), tmp_path / "run")
    assert any("on_validate_end" in note and "sum" in note for note in diary.notes)
    assert any("on_sanity_check_end" in note for note in diary.notes)


def test_a_run_that_failed_is_heard_with_its_error(tmp_path: Path) -> None:
    def strike(driver: StubDriver) -> None:
        if len(driver.seen) == 3:
            raise KeyError("a key")

    trainer = diaried(tmp_path / "run", StubDriver(on={"train_step": strike}))
    diary = live_and_dry(trainer, tmp_path / "run", KeyError)
    assert any("on_exception" in note and "KeyError: 'a key'" in note for note in diary.notes)


@pytest.mark.parametrize("error", [ZeroDivisionError("zero"), UnicodeDecodeError("utf-8", b"x", 0, 1, "no"), OSError()])
def test_a_replayed_error_is_of_the_recorded_kind(tmp_path: Path, error: Exception) -> None:
    def strike(driver: StubDriver) -> None:
        raise error

    trainer = diaried(tmp_path / "run", StubDriver(on={"train_step": strike}))
    live_and_dry(trainer, tmp_path / "run", type(error))
    dry = replay(tmp_path / "run")
    dry.run()
    assert isinstance(dry.exception, type(error))
    assert str(dry.exception) == str(error)


def test_an_error_of_a_class_that_is_not_builtin_is_replayed_by_its_name(tmp_path: Path) -> None:
    class Odd(Exception):
        pass

    def strike(driver: StubDriver) -> None:
        raise Odd("how odd")

    trainer = diaried(tmp_path / "run", StubDriver(on={"train_step": strike}))
    diary = live_and_dry(trainer, tmp_path / "run", Odd)
    assert any("Odd: how odd" in note for note in diary.notes)


@pytest.mark.parametrize("target", ["Stepped", "fetch", "EpochEnded"])
def test_a_run_that_was_stopped_is_heard_with_the_reason(tmp_path: Path, target: str) -> None:
    trainer = diaried(tmp_path / "run")
    stop_at(target, 1, "enough of it")(trainer)
    diary = live_and_dry(trainer, tmp_path / "run")
    assert any("enough of it" in note for note in diary.notes)


def test_a_run_that_was_extended_is_heard_as_one(tmp_path: Path) -> None:
    diaried(tmp_path / "run", n_epochs=1).run()
    live_and_dry(diaried(tmp_path / "run", n_epochs=3), tmp_path / "run", resume_from="auto")


@pytest.mark.parametrize("at", [9, 14, 21])
def test_a_run_that_was_killed_and_resumed_is_heard_as_it_stands(tmp_path: Path, at: int) -> None:
    """Its filters go on counting where the history does."""

    def die() -> None:
        trainer = validating(tmp_path / "run", snapshot_every=2, validate_every=3)
        trainer.on("Stepped", lambda t: t.trainer_state.seq >= at and os.kill(os.getpid(), signal.SIGKILL))
        trainer.run()

    assert os.waitpid(in_child(die), 0)[1] == signal.SIGKILL
    resumed = validating(tmp_path / "run", snapshot_every=2, validate_every=3)
    live_and_dry(resumed, tmp_path / "run", resume_from="auto")
    assert len(Journal(tmp_path / "run").incarnations) == 2
    straight = live_and_dry(validating(tmp_path / "straight", validate_every=3), tmp_path / "straight")
    assert replayed(tmp_path / "run")[0] == straight.notes


def test_a_run_on_torch_is_heard_as_it_was(tmp_path: Path) -> None:
    diary = Diary()
    run = Run(run_dir=tmp_path / "run", callbacks=lambda run: diary, accumulation_steps=2)
    run.run()
    assert replayed(tmp_path / "run") == (diary.notes, counts(run.trainer))


def test_the_moments_of_callbacks_and_functions_are_heard_in_their_order(tmp_path: Path) -> None:
    live: list[str] = []
    hidden = (*INSIDE, *OF_THE_PROCESS, "on_notice", "on_log")
    trainer = stub(run_dir=tmp_path / "run", callbacks=scribe(live, but=hidden))
    trainer.on("on_train_batch_end", lambda t: live.append("a function"), priority=1)
    trainer.run()
    dry: list[str] = []
    again = replay(tmp_path / "run").add_callback(scribe(dry, but=hidden))
    again.on("on_train_batch_end", lambda t: dry.append("a function"), priority=1).run()
    assert dry == live


@pytest.mark.parametrize("rank", [0, 1])
def test_any_rank_s_own_losses_are_heard(tmp_path: Path, rank: int) -> None:
    ranks(tmp_path, 12, 12)
    heard: list[Any] = []
    replay(tmp_path, rank=rank).on(Stepped, lambda r, event: heard.append((event.loss, r.last_loss))).run()
    recorded = [r.data["loss"] for r in Journal(tmp_path, rank=rank) if r.event == "Stepped"]
    assert heard == [(loss, loss) for loss in recorded]


def test_a_machine_of_ones_own_is_replayed_with_states_of_their_class(tmp_path: Path) -> None:
    def noting(notes: list[Any]) -> Callable[..., None]:
        return lambda run, event: notes.append((repr(event), run.trainer_state))

    live: list[Any] = []
    engine = collector(tmp_path / "run")
    for name in collecting().event_classes:
        engine.on(name, noting(live))
    engine.run()
    dry: list[Any] = []
    again = replay(tmp_path / "run", collecting(), state=type(engine.trainer_state))
    for name in collecting().event_classes:
        again.on(name, noting(dry))
    assert again.run() == engine.trainer_state
    assert dry == live


def test_a_run_with_rows_of_its_own_needs_its_machine(tmp_path: Path) -> None:
    @attrs.frozen(kw_only=True)
    class Distilled(Event):
        temperature: float = 1.0

    rows = [Row("step", Stepped, "distill"), Row("distill", Distilled, "fetch")]
    machine = training_machine(rows)
    diary = Diary(machine)
    settings = {"rows": rows, "perform": {"distill": lambda state: Distilled(temperature=2.0)}}
    trainer = stub(run_dir=tmp_path / "run", callbacks=diary, **settings)
    trainer.run()
    assert replayed(tmp_path / "run", machine=machine) == (diary.notes, counts(trainer))
    with pytest.raises(CallerError, match="is Distilled, which this machine doesn't know so: give replay"):
        replay(tmp_path / "run").on("Stepped", lambda run: None).run()
    assert replay(tmp_path / "run").run() == trainer.trainer_state, "nobody would hear it"


def test_losses_that_arrived_late_are_the_last_ones_from_where_they_arrived(tmp_path: Path) -> None:
    class Late(StubDriver):
        """Hands out each loss with the step after, as a driver of an accelerator does."""

        def __init__(self) -> None:
            super().__init__()
            self.waits: list[Any] = []

        def measure(self, loss: Any, seq: int) -> tuple[Any, Any]:
            self.waits.append([seq, float(loss)])
            return None, self.waits.pop(0) if len(self.waits) > 1 else ()

        def measured_late(self) -> Any:
            late, self.waits = self.waits, []
            return late

    diary = live_and_dry(diaried(tmp_path / "run", Late(), snapshot_every=None), tmp_path / "run")
    assert any("late=[[" in note for note in diary.notes)


# -- callbacks ---------------------------------------------------------------------------------------------


def test_early_stopping_says_where_it_would_have_stopped(tmp_path: Path) -> None:
    """A replay changes nothing: it notes what was asked of it."""
    run = stub([1, 2], run_dir=tmp_path / "run", n_epochs=6, validate_dataloaders=[1], metrics={"sum": Sum()})
    run.run()
    dry = replay(tmp_path / "run").add_callback(EarlyStopping("sum", patience=2))
    state = dry.run()
    ends = [record.seq for record in Journal(tmp_path / "run") if record.event == "Validated"]
    assert state.cur_epoch_idx == 6
    assert (dry.wishes[0].seq, dry.wishes[0].what) == (ends[2], "stop")
    assert "2 validations without improvement" in dry.wishes[0].reason
    with pytest.raises(CallerError, match="EarlyStopping needs a monitor"):
        replay(tmp_path / "run").add_callback(EarlyStopping()).run()


@pytest.mark.parametrize("settings", [{}, {"accumulation_steps": 2}])
def test_loggers_write_what_they_wrote_live(tmp_path: Path, settings: dict[str, Any]) -> None:
    """C4: to the byte, and TensorBoard at the times of the records."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator").EventAccumulator

    def loggers(name: str) -> list[Callback]:
        return [CSVLogger("sum", folder=tmp_path / f"csv-{name}"), TensorBoardLogger(folder=tmp_path / f"tb-{name}")]

    def scalars(name: str) -> dict[str, list[tuple[int, float]]]:
        held = accumulator(str(tmp_path / f"tb-{name}"))
        held.Reload()
        return {tag: [(e.step, e.value) for e in held.Scalars(tag)] for tag in held.Tags()["scalars"]}

    settings = {"validate_dataloaders": [1, 2], "metrics": {"sum": Sum()}, "validate_every": 2, **settings}
    stub([1, 2, 3, 4, 5], run_dir=tmp_path / "run", callbacks=loggers("live"), **settings).run()
    dry = replay(tmp_path / "run")
    for logger in loggers("dry"):
        dry.add_callback(logger)
    dry.run(stop=9)
    dry.run()  # it goes on where it was closed
    live, again = ((tmp_path / f"csv-{name}" / "metrics.csv").read_bytes() for name in ("live", "dry"))
    assert live == again
    assert live.count(b"\n") > 4
    assert scalars("live") == scalars("dry")


def test_a_monitor_finds_its_best_result_again(tmp_path: Path) -> None:
    class Best(HasMonitorCallback):
        def on_validate_end(self, trainer: Any, results: dict[str, Any]) -> None:
            self.is_better_results(results)

    live, dry = Best("sum"), Best("sum")
    settings: dict[str, Any] = {"validate_dataloaders": [1, 2], "metrics": {"sum": Sum()}, "callbacks": live}
    stub(run_dir=tmp_path / "run", **settings).run()
    replay(tmp_path / "run").add_callback(dry).run()
    assert dry.state_dict() == live.state_dict() != {}


def test_rates_are_those_of_the_recorded_times(tmp_path: Path) -> None:
    stub([1] * 20, run_dir=tmp_path / "run").run()
    rates: list[float] = []
    dry = replay(tmp_path / "run").add_callback(ThroughputMonitor(every=10))
    dry.on("on_log", lambda run, values: rates.append(values["throughput/batches"])).run()
    times = {r.state.global_forward_batches: r.meta["time"] for r in Journal(tmp_path / "run") if r.event == "Stepped"}
    assert len(rates) == 4
    assert rates[1] == pytest.approx(10 / (times[20] - times[10]))


def test_what_a_replay_can_not_drive_is_left_out_whole_and_listed(tmp_path: Path) -> None:
    stub(run_dir=tmp_path / "run").run()
    heard: list[str] = []

    class Both(Callback):
        def on_train_batch_end(self, trainer: Any) -> None:
            heard.append("end")

        def on_before_backward(self, trainer: Any, outputs: Any) -> None:
            heard.append("backward")

    class Declared(Both):
        replays = True

    class Heavy(Callback):
        replays = False

        def on_train_end(self, trainer: Any) -> None:
            heard.append("heavy")

    dry = replay(tmp_path / "run").add_callback(Both()).add_callback(Heavy()).add_callback(Timer())
    dry.add_callback(NanGuard()).on(Events.on_after_backward(every=2), lambda run: heard.append("no"))
    dry.on(Events.on_train_batch_begin, lambda run, batch, ids: heard.append("no"))
    dry.on("on_after_snapshot", lambda run, path: heard.append("no"))
    with pytest.warns(UserWarning, match="not replayed: Both .*; Heavy .*; Timer .*; NanGuard") as warned:
        dry.run()
    assert len(warned) == 1
    assert heard == []
    assert len(dry.skipped) == 7
    why = {s.listener.rpartition(".")[2]: s.why for s in dry.skipped}
    assert why["Both"] == "it hears on_before_backward, of which a journal holds nothing"
    assert why["Heavy"] == "it works on more than a journal holds"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        replay(tmp_path / "run").add_callback(Declared()).run()
    assert heard == ["end"] * 6


def test_a_listener_that_asks_for_more_than_a_journal_holds_is_named_with_the_transition(tmp_path: Path) -> None:
    stub(run_dir=tmp_path / "run").run()

    def asks(run: Any) -> None:
        run.model.eval()

    match = r"no 'model' at transition 4 \(Stepped, step -> fetch\).*listener .*asks \(.*test_replay.py:\d+\)"
    with pytest.raises(NotReplayed, match=match) as caught:
        replay(tmp_path / "run").on("on_train_batch_end", asks).run()
    assert isinstance(caught.value, AttributeError), "hasattr and getattr with a default go on working"
    assert not hasattr(replay(tmp_path / "run"), "optimizers")
    with pytest.raises(NotReplayed, match="changes nothing"):
        replay(tmp_path / "run").on("done", lambda run: setattr(run, "n_epochs", 3)).run()


def test_an_error_of_a_listener_says_where_in_the_journal_it_struck(tmp_path: Path) -> None:
    stub(run_dir=tmp_path / "run").run()

    def fails(run: Any) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        replay(tmp_path / "run").on("validate", fails).on("epoch_end", fails).run()
    (told,) = caught.value.__notes__
    assert told.startswith("while transition 9 (Exhausted, fetch -> epoch_end) of")
    assert "fails" in told


def test_a_listener_may_come_and_go_while_it_replays(tmp_path: Path) -> None:
    stub(run_dir=tmp_path / "run").run()
    heard: list[int] = []
    dry = replay(tmp_path / "run")
    handle = dry.listeners.add("Stepped", lambda run: (heard.append(run.record.seq), handle.remove()))
    dry.on("EpochEnded", lambda run: dry.on("done", lambda run: heard.append(run.record.seq)))
    dry.run()
    last = Journal(tmp_path / "run").chain and Journal(tmp_path / "run").last
    assert heard[0] == 4
    assert last is not None
    assert heard[1:] == [last.seq]


def test_what_is_put_off_is_done_after_the_transition(tmp_path: Path) -> None:
    stub(run_dir=tmp_path / "run").run()
    order: list[str] = []
    dry = replay(tmp_path / "run")
    dry.on("done", lambda run: run.later(lambda: order.append("later"))).on("done", lambda run: order.append("heard"))
    dry.on("on_notice", lambda run, text: order.append(text)).on("done", lambda run: run.say("a word")).run()
    assert order == ["heard", "a word", "later"]


# -- moving about ------------------------------------------------------------------------------------------


def test_a_replay_steps_goes_back_and_jumps(tmp_path: Path) -> None:
    """Nobody hears that the position moved; what is stepped over is heard."""
    stub(run_dir=tmp_path / "run").run()
    records = list(Journal(tmp_path / "run"))
    heard: list[int] = []
    dry = replay(tmp_path / "run")
    for name in training_machine().event_classes:
        dry.on(name, lambda run: heard.append(run.record.seq))
    assert dry.trainer_state is dry.record is None
    assert [dry.step().seq for _ in range(4)] == heard == [1, 2, 3, 4]  # type: ignore[union-attr]
    assert dry.last_loss == records[3].data["loss"]
    assert dry.back().seq == 3  # type: ignore[union-attr]
    assert dry.trainer_state == records[2].state
    assert heard == [1, 2, 3, 4]
    assert dry.step().seq == 4  # type: ignore[union-attr]
    assert dry.jump(10).seq == 10  # type: ignore[union-attr]
    assert dry.trainer_state == records[9].state
    assert dry.last_loss == [r.data["loss"] for r in records[:10] if r.event == "Stepped"][-1]
    assert heard == [1, 2, 3, 4, 4]
    assert dry.run(stop=12) == records[11].state
    assert heard[5:] == [11, 12]
    assert dry.run(stop=12) == records[11].state, "it stands there already"
    dry.run()
    assert heard[7:] == list(range(13, len(records) + 1))
    assert dry.step() is None
    assert dry.record.seq == len(records)
    assert dry.jump(0) is None
    assert dry.trainer_state is None
    assert dry.last_loss is None
    assert dry.step().seq == 1  # type: ignore[union-attr]
    assert dry.back() is None
    assert dry.back() is None
    with pytest.raises(JournalError, match=f"has no transition 99: it holds 1 to {len(records)}"):
        dry.jump(99)


def test_a_replay_runs_until_a_condition_and_goes_on_from_there(tmp_path: Path) -> None:
    stub(run_dir=tmp_path / "run").run()
    heard: list[int] = []
    dry = replay(tmp_path / "run").on("Stepped", lambda run: heard.append(run.record.seq))
    dry.run(stop=lambda record: record.event == "EpochEnded")
    assert dry.trainer_state.cur_epoch_idx == 1
    assert heard == [4, 6, 8]
    dry.run()
    assert heard == [r.seq for r in Journal(tmp_path / "run") if r.event == "Stepped"]


def test_a_replay_of_a_run_that_goes_on_goes_on_with_it(tmp_path: Path) -> None:
    trainer = stub(run_dir=tmp_path / "run")
    heard: list[int] = []
    dry: list[Replay] = []

    def look(trainer: Any) -> None:
        if not dry:
            dry.append(replay(trainer.run_dir).on("Stepped", lambda run: heard.append(run.record.seq)))
        dry[0].run()

    trainer.on("on_train_epoch_end", look)
    trainer.run()
    dry[0].run()
    assert heard == [r.seq for r in Journal(tmp_path / "run") if r.event == "Stepped"]


def test_one_replay_closes_what_its_callbacks_opened(tmp_path: Path) -> None:
    stub(run_dir=tmp_path / "run").run()
    closed: list[int] = []

    class Opens(Callback):
        def replayed(self, replay: Any) -> None:
            closed.append(replay.record.seq)

    with replay(tmp_path / "run").add_callback(Opens()) as dry:
        dry.step()
        dry.step()
        assert closed == []
    assert closed == [2]


def test_a_damaged_journal_is_refused_and_read_on_demand(tmp_path: Path) -> None:
    stub([1] * 10, run_dir=tmp_path / "run").run()
    (path,) = (tmp_path / "run" / "journal" / "rank-0").glob("*.jsonl")
    held = path.read_bytes()
    lines = held.split(b"\n")
    lines[8] = lines[8].replace(b'"seq":', b'"SEQ":')
    path.write_bytes(b"\n".join(lines))
    with pytest.raises(JournalCorrupt):
        replay(tmp_path / "run").run()
    heard: list[int] = []
    dry = replay(tmp_path / "run", salvage=True).on("Stepped", lambda run: heard.append(run.record.seq))
    dry.run()
    assert len(dry.journal.damage) == 1
    assert 8 not in heard
    assert len(heard) >= 18
    again = replay(tmp_path / "run", salvage=True)
    assert [r.seq for _ in range(5) if (r := again.step()) is not None] == [1, 2, 3, 4, 5]


# -- what it costs -----------------------------------------------------------------------------------------


def test_only_what_is_heard_is_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stub([1] * 50, run_dir=tmp_path / "run").run()
    made: list[int] = []
    read = TrainerState.from_dict.__func__  # type: ignore[attr-defined]
    monkeypatch.setattr(
        TrainerState, "from_dict", classmethod(lambda cls, *args: (made.append(1), read(cls, *args))[1])
    )
    dry = replay(tmp_path / "run").on("EpochEnded", lambda run: run.trainer_state and run.cur_epoch_idx)
    dry.on("Stepped", lambda run: None)
    dry.run()
    assert len(made) == 2, "once for each epoch's end; the last is what run() returns"
    assert dry.heard == 102


def test_moving_within_a_compressed_file_unpacks_it_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = stub([1] * 50, run_dir=tmp_path / "run", snapshot_every=None)
    trainer.world = World(segment=60)
    trainer.run()
    assert len(list((tmp_path / "run" / "journal" / "rank-0").glob("*.jsonl.gz"))) >= 2
    unpacked: list[str] = []
    text = Segment.text
    monkeypatch.setattr(Segment, "text", lambda segment: (unpacked.append(segment.path.name), text(segment))[1])
    dry = replay(tmp_path / "run")
    assert [dry.jump(n).seq for n in range(40, 20, -1)] == list(range(40, 20, -1))  # type: ignore[union-attr]
    assert [dry.back().seq, dry.step().seq, dry.jump(50).seq] == [20, 21, 50]  # type: ignore[union-attr]
    assert len(unpacked) == 1
    assert dry.jump(100).seq == 100  # type: ignore[union-attr]
    assert len(set(unpacked)) == 2


def test_memory_does_not_grow_with_the_run(tmp_path: Path) -> None:
    peaks = []
    for batches in (500, 5000):
        stub([1] * batches, run_dir=tmp_path / str(batches), snapshot_every=None).run()
        dry = replay(tmp_path / str(batches)).on("Stepped", lambda run, event: run.last_loss)
        tracemalloc.start()
        dry.run()
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] + 1_500_000, f"{peaks[0]} bytes for a tenth of the records, {peaks[1]} for all"


def test_a_replay_imports_no_torch(tmp_path: Path) -> None:
    import subprocess

    stub(run_dir=tmp_path / "run").run()
    script = (
        "import sys; from tachograph.engine import replay; "
        f"replay({str(tmp_path / 'run')!r}).on('Stepped', lambda run, event: run.last_loss).run(); "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", script], timeout=60).returncode == 0
