"""The loop and the commit: their order, errors, stops and signals, and machines of a user's own."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest

from tachograph.drivers import StubDriver
from tachograph.engine import Callback, Engine, Events, Journal, Trainer, diff
from tachograph.states import (
    Event,
    Failed,
    IllegalEvent,
    Machine,
    MachineFault,
    Row,
    Started,
    Stepped,
    Stopped,
    TrainerState,
)
from tachograph.states.errors import CallerError
from tachograph.states.step import validation_due
from tests.test_table import Distilled
from tests.toys import Sum, sides, stub, transitions

# -- a machine of a user's own: collect, learn, judge --------------------------------------------------------


@attrs.frozen(kw_only=True)
class Collected(Event):
    """A round of experience was collected."""

    reward: int = 0

    def fold(self, state: Any, dest: str) -> Any:
        return attrs.evolve(super().fold(state, dest), rounds=state.rounds + 1, reward=state.reward + self.reward)


@attrs.frozen(kw_only=True)
class Learned(Event):
    """The policy learned from it."""

    weight: int = 0


@attrs.frozen(kw_only=True)
class Judged(Event):
    """It was decided whether to go on; a state that may lead to the end only decides."""


@attrs.frozen(kw_only=True)
class Where:
    state: str = "collect"
    seq: int = 0
    rounds: int = 0
    reward: int = 0
    stop_asked: str = ""


def five_rounds(state: Any, event: Any) -> bool:
    """five rounds are done"""
    return bool(state.rounds == 5)


def collecting() -> Machine:
    return Machine(
        [
            Row("collect", Collected, "learn"),
            Row("learn", Learned, "judge"),
            Row("judge", Judged, "done", five_rounds),
            Row("judge", Judged, "collect"),
            Row("*", Stopped, "done"),
            Row("*", Failed, "exception"),
        ],
        initial="collect",
    )


def collector(run_dir: Path | None = None, driver: StubDriver | None = None, **settings: Any) -> Engine:
    driver = StubDriver() if driver is None else driver

    def collect(state: Any) -> Event:
        return Collected(reward=driver.draw() % 100)

    def learn(state: Any) -> Event:
        driver.train_step(state.reward)
        driver.weight = (driver.weight * 31 + state.reward + driver.draw()) % 1_000_003
        return Learned(weight=driver.weight)

    perform = {"collect": collect, "learn": learn, "judge": lambda state: Judged()}
    settings = {"state": Where(), "driver": driver, "run_dir": run_dir, **settings}
    return Engine(collecting(), perform, **settings)


def test_an_engine_runs_any_machine(run_dir: Path) -> None:
    engine = collector(run_dir)
    end = engine.run()
    assert (end.state, end.rounds, end.seq) == ("done", 5, 15)
    assert transitions(run_dir) == [
        *["collect --Collected--> learn", "learn --Learned--> judge", "judge --Judged--> collect"] * 4,
        *["collect --Collected--> learn", "learn --Learned--> judge", "judge --Judged--> done"],
    ]
    journal = Journal(run_dir)
    assert journal.seek(15).state == attrs.asdict(end)
    assert journal.seek(14).data == {"weight": engine.driver.weight}  # type: ignore[union-attr]


@pytest.mark.parametrize("k", range(1, 15))
def test_a_machine_of_a_user_s_own_goes_on_from_a_snapshot_at_every_transition(tmp_path: Path, k: int) -> None:
    """R57: both states, and both sides of every transition; what the dead process did after it is held against."""
    straight = collector(tmp_path / "straight")
    straight.run()

    def crash(engine: Any, event: Any = None) -> None:
        if engine.trainer_state.seq == k:
            engine.request_snapshot()
        elif engine.trainer_state.seq == k + 2:
            raise SystemError("the power goes")

    first = collector(tmp_path / "run")
    for state in ("collect", "learn", "judge"):
        first.on(state, crash)
    if k < 13:
        with pytest.raises(SystemError):
            first.run()
    else:
        first.run()
    again = collector(tmp_path / "run")
    said: list[str] = []
    again.on(Events.on_notice, lambda engine, text: said.append(text))
    assert again.run(resume_from="auto") == straight.trainer_state
    assert again.journal.chain == straight.journal.chain  # type: ignore[union-attr]
    assert again.driver.weight == straight.driver.weight  # type: ignore[union-attr]
    if k < 13:
        assert said == [
            f"resumed at {k}; 2 recorded transitions to re-execute",
            f"resumed at {k}; 2 of 2 re-executed transitions match",
        ]


def test_listeners_filters_and_drawing_come_with_a_machine_of_a_user_s_own() -> None:
    engine, log = collector(), []

    @engine.on("judge -> collect")
    def round_done(engine: Any) -> None:
        log.append(engine.trainer_state.rounds)

    engine.on(Learned, lambda engine, event: log.append(event.weight))
    engine.on("done", lambda engine: log.append("done"))
    engine.run()
    weights = [entry for entry in log if isinstance(entry, int) and entry > 5]
    assert len(weights) == 5
    assert [entry for entry in log if entry not in weights] == [1, 2, 3, 4, "done"]
    assert "judge --> done: Judged [five rounds are done]" in engine.machine.mermaid()


@attrs.frozen(kw_only=True)
class Bare:
    state: str = "collect"
    seq: int = 0
    rounds: int = 0
    reward: int = 0


def test_a_state_of_a_user_s_own_needs_no_field_but_state_and_seq() -> None:
    assert collector(state=Bare()).run().state == "done"


def distilling(driver: StubDriver, run_dir: Path | None = None, **settings: Any) -> Trainer:
    """A trainer whose machine has one more state between step and validate, which also says when one is due."""

    def distill(state: Any) -> Event:
        driver.weight = (driver.weight * 7 + driver.draw()) % 1_000_003
        return Distilled(validate_due=state.global_forward_batches % 2 == 0)

    rows = [
        Row("step", Stepped, "distill"),
        Row("distill", Distilled, "validate", validation_due),
        Row("distill", Distilled, "fetch"),
    ]
    settings = {"n_epochs": 2, "metrics": {"m": Sum()}, "validate_dataloaders": [1], "snapshot_every": None, **settings}
    return stub([1, 2, 3], driver, rows=rows, perform={"distill": distill}, run_dir=run_dir, **settings)


def test_a_state_added_between_step_and_validate_takes_its_part_in_every_batch(run_dir: Path) -> None:
    trainer = distilling(StubDriver(), run_dir, n_epochs=1)
    heard: list[str] = []
    trainer.on("distill", lambda trainer: heard.append("distill"))
    trainer.on(Events.on_validate_begin, lambda trainer: heard.append("validate"))
    trainer.on(Events.on_train_batch_end, lambda trainer: heard.append("batch"))
    trainer.run(num_eval_sanity_batch=0)
    assert heard == ["batch", "distill", "batch", "distill", "validate", "batch", "distill", "validate"]
    assert transitions(run_dir)[2:9] == [
        "fetch --Fetched--> step",
        "step --Stepped--> distill",
        "distill --Distilled--> fetch",
        "fetch --Fetched--> step",
        "step --Stepped--> distill",
        "distill --Distilled--> validate",
        "validate --Validated--> fetch",
    ]


@pytest.mark.parametrize("state", ["distill", "fetch", "validate"])
def test_a_run_with_a_state_of_the_user_s_goes_on_from_any_of_its_states(tmp_path: Path, state: str) -> None:
    """R57."""
    straight = distilling(StubDriver(), tmp_path / "straight")
    straight.run()
    for n in (1, 2, 3):
        heard: list[int] = []

        def stop(trainer: Any, heard: list[int] = heard, n: int = n) -> None:
            heard.append(1)
            if len(heard) == n:
                trainer.stop("enough")

        first = distilling(StubDriver(), tmp_path / str(n))
        first.on(state, stop)
        first.run()
        again = distilling(StubDriver(), tmp_path / str(n))
        assert again.run(resume_from="auto") == straight.trainer_state
        assert again.journal.chain == straight.journal.chain  # type: ignore[union-attr]
        assert again.driver.weight == straight.driver.weight  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"rows": [Row("step", Stepped, "distill"), Row("distill", Distilled, "fetch")]},
            "state 'distill' needs a function",
        ),
        ({"perform": {"distill": lambda state: Distilled()}}, "perform names 'distill', which is final or no state of"),
    ],
)
def test_rows_and_functions_of_a_user_s_must_fit(settings: Any, said: str) -> None:
    with pytest.raises(MachineFault, match=said):
        stub(**settings)


# -- what an engine refuses --------------------------------------------------------------------------------


def lone(state: Any) -> Event:
    return Learned()


FIT = {"collect": lone, "learn": lone, "judge": lone}


@pytest.mark.parametrize(
    ("perform", "said"),
    [
        ({"collect": lone, "judge": lone}, "state 'learn' needs a function: perform={'learn': function"),
        ({"collect": lone, "learn": 3, "judge": lone}, "state 'learn' needs a function"),
        ({**FIT, "done": lone}, "perform names 'done', which is final or no state of this machine"),
        (
            {**FIT, "lern": lone},
            "perform names 'lern', which is final or no state of this machine: collect, learn, judge",
        ),
    ],
)
def test_a_machine_and_its_functions_must_fit(perform: Any, said: str) -> None:
    with pytest.raises(MachineFault) as caught:
        Engine(collecting(), perform, state=Where())
    assert str(caught.value).startswith(said)


def test_an_engine_that_runs_cannot_be_run_again_from_inside() -> None:
    trainer = stub([1])
    trainer.on(Events.on_train_begin, lambda trainer: trainer.run())
    with pytest.raises(CallerError, match="this engine is running already"):
        trainer.run()


def test_a_policy_on_divergence_must_be_known() -> None:
    with pytest.raises(CallerError, match="on_divergence must be 'warn' or 'raise', not 'ignore'"):
        stub([1]).run(on_divergence="ignore")


# -- the commit --------------------------------------------------------------------------------------------


class Watched(StubDriver):
    """Says when it is asked for a copy of everything."""

    log: list[str]

    def capture(self, *given: Any) -> Any:
        self.log.append("snapshot")
        return super().capture(*given)


def test_a_commit_is_table_fold_record_listeners_snapshot_in_this_order(run_dir: Path) -> None:
    """Whoever hears a transition sees it committed, and a snapshot is the state after everyone heard."""
    log: list[str] = []

    @attrs.frozen(kw_only=True)
    class Told(Event):
        def fold(self, state: Any, dest: str) -> Any:
            log.append("fold")
            return super().fold(state, dest)

    def to_the_end(state: Any, event: Any) -> bool:
        log.append("table")
        return bool(state.seq == 2)

    machine = Machine(
        [Row("here", Told, "done", to_the_end), Row("here", Told, "here"), Row("*", Failed, "exception")],
        initial="here",
    )

    def work(state: Any) -> Event:
        log.append(f"work {state.seq}")
        return Told()

    driver = Watched()
    driver.log = log
    engine = Engine(machine, {"here": work}, state=TrainerState(state="here"), driver=driver, run_dir=run_dir)
    log.clear()  # folds are tried out when an engine is built

    def listener(name: str) -> Callable[[Any], None]:
        def hear(engine: Any) -> None:
            last = Journal(run_dir).last
            assert last is not None
            log.append(f"{name} of {engine.trainer_state.seq}, recorded {last.seq}")

        return hear

    def ask(engine: Any) -> None:
        if engine.trainer_state.seq == 1:
            engine.request_snapshot()

    engine.on(Told, ask)
    engine.on(Told, listener("first"))
    engine.on("here", listener("second"))
    engine.on("done", listener("last"))
    engine.run()
    assert log == [
        *("work 0", "table", "fold", "first of 1, recorded 1", "second of 1, recorded 1", "snapshot"),
        *("work 1", "table", "fold", "first of 2, recorded 2", "second of 2, recorded 2"),
        *("work 2", "table", "fold", "first of 3, recorded 3", "last of 3, recorded 3"),
    ]
    assert [s["at"] for s in sides(run_dir, "saved")] == [1]


def test_what_is_saved_is_the_state_after_everyone_heard_whoever_asked_first(run_dir: Path) -> None:
    """R07, B14: the order of registration of a saver doesn't matter."""
    trainer = stub([1, 2, 3], n_epochs=1, run_dir=run_dir, snapshot_every=None)
    trainer.state["heard"] = 0

    def count(trainer: Any) -> None:
        trainer.state["heard"] += 1

    trainer.on(Events.on_train_batch_end(once=2), lambda trainer: trainer.request_snapshot(), priority=9)
    trainer.on(Events.on_train_batch_end, count)
    trainer.run()
    (path,) = (run_dir / "snapshots").glob("*6")
    assert json.loads((path / "state.json").read_bytes())["state"]["global_forward_batches"] == 2
    assert json.loads((path / "rank-0.json").read_bytes())["extra"]["user"] == {"heard": 2}


def test_an_illegal_event_changes_no_counter_and_ends_the_run(run_dir: Path) -> None:
    wrong = {"at": 4}

    def learn(state: Any) -> Event:
        return Started() if state.seq == wrong["at"] else Learned()

    perform = {"collect": lambda state: Collected(reward=1), "learn": learn, "judge": lambda state: Judged()}
    engine = Engine(collecting(), perform, state=Where(), run_dir=run_dir)
    with pytest.raises(
        IllegalEvent, match=r"Started can't happen in state 'learn' \(seq 4\), which is unchanged"
    ) as caught:
        engine.run()
    assert caught.value.legal == ("Learned", "Stopped", "Failed")
    assert engine.trainer_state == Where(state="exception", seq=5, rounds=2, reward=2)
    assert transitions(run_dir)[-1] == "learn --Failed--> exception"


# -- errors ------------------------------------------------------------------------------------------------


def strike(error: BaseException, at: int = 2) -> dict[str, Callable[[StubDriver], None]]:
    def on(driver: StubDriver) -> None:
        if driver.calls.count("train_step") == at:
            raise error

    return {"train_step": on}


@pytest.mark.parametrize(
    "error", [ValueError("x"), KeyboardInterrupt(), SystemExit(3), StopIteration("y"), GeneratorExit()]
)
def test_an_error_of_a_state_s_work_is_committed_and_raised_as_it_is(run_dir: Path, error: BaseException) -> None:
    """A2.R11, R34, B23: StopIteration from user code is an error like any other."""
    trainer = stub([1, 2, 3], StubDriver(on=strike(error)), run_dir=run_dir)
    heard: list[BaseException] = []
    trainer.on(Events.on_exception, lambda trainer, exception: heard.append(exception))
    with pytest.raises(type(error)) as caught:
        trainer.run()
    assert caught.value is error
    assert heard == [error]
    last = Journal(run_dir).last
    assert last is not None
    assert (last.event, last.dest) == ("Failed", "exception")
    assert last.data == {"error": str(error), "kind": type(error).__name__, "ids": "[1]"}
    assert trainer.trainer_state.global_forward_batches == 1
    assert error.__notes__ == [  # type: ignore[attr-defined]
        "in state 'step', epoch 0, batch 1, after transition 5; the batch holds the samples [1]"
    ]


def test_an_error_of_a_listener_is_an_error_of_the_run(run_dir: Path) -> None:
    """S8, R34: nobody can swallow it by existing, and its transition stays committed."""
    trainer = stub([1, 2, 3], run_dir=run_dir)

    @trainer.on(Events.on_train_batch_end(once=2))
    def listen(trainer: Any) -> None:
        raise ZeroDivisionError("in a listener")

    calls: list[str] = []
    trainer.on(Events.on_exception, lambda trainer, exception: calls.append("first"))
    trainer.on(Events.on_exception, lambda trainer, exception: calls.append("second"))
    with pytest.raises(ZeroDivisionError, match="in a listener"):
        trainer.run()
    assert calls == ["first", "second"]
    assert transitions(run_dir)[-2:] == ["step --Stepped--> fetch", "fetch --Failed--> exception"]
    assert trainer.trainer_state.global_forward_batches == 2


def test_a_second_error_is_attached_to_the_first_and_does_not_replace_it() -> None:
    """R59: a step's error, then one in on_exception, then one in the clean-up."""
    first, second, third = ValueError("the step"), KeyError("the listener"), OSError("the clean-up")

    class Unclosing(StubDriver):
        def close(self) -> None:
            raise third

    trainer = stub([1, 2, 3], Unclosing(on=strike(first)))
    trainer.on(Events.on_exception, lambda trainer, exception: throw(second))
    with pytest.raises(ValueError, match="the step") as caught:
        trainer.run()
    assert caught.value is first
    assert first.later == [second, third]  # type: ignore[attr-defined]
    assert first.__notes__[1:] == [  # type: ignore[attr-defined]
        "then, while ending the run, KeyError: 'the listener'",
        "then, while ending the run, OSError: the clean-up",
    ]
    assert trainer.trainer_state.state == "exception"


def throw(error: BaseException) -> None:
    raise error


def test_an_error_in_the_clean_up_alone_is_raised() -> None:
    """R59."""

    class Unclosing(StubDriver):
        def close(self) -> None:
            raise OSError("the clean-up")

    trainer = stub([1], Unclosing())
    with pytest.raises(OSError, match="the clean-up"):
        trainer.run()
    assert trainer.trainer_state.state == "done"


def test_the_same_trainer_can_be_run_again_after_an_error() -> None:
    """R59: it goes on in the state whose work failed."""
    error = ValueError("once")
    driver = StubDriver(on=strike(error))
    trainer = stub([1, 2, 3], driver)
    with pytest.raises(ValueError, match="once"):
        trainer.run()
    end = trainer.run()
    assert (end.state, end.global_forward_batches, trainer.exception) == ("done", 6, None)
    assert driver.seen == [1, 2, 3, 1, 2, 3]


# -- stops -------------------------------------------------------------------------------------------------


STATES = ["sanity_check", "epoch_begin", "fetch", "step", "validate", "epoch_end"]


def pausing(run_dir: Path | None = None, **settings: Any) -> Any:
    settings = {"n_epochs": 3, "metrics": {"m": Sum()}, "validate_dataloaders": [5], "validate_every": 2, **settings}
    return stub([1, 2, 3], run_dir=run_dir, snapshot_every=None, **settings)


@pytest.mark.parametrize("state", STATES)
def test_a_stop_is_heeded_at_the_next_transition_from_any_state(run_dir: Path, state: str) -> None:
    """B32: a stop is an event with a reason, and no exception."""
    trainer = pausing(run_dir)
    heard: list[str] = []
    trainer.on(state, lambda trainer: trainer.stop("enough"))
    trainer.on(Events.on_stop, lambda trainer, reason: heard.append(reason))
    trainer.on(Events.on_exception, lambda trainer, exception: heard.append("exception"))
    end = trainer.run()
    assert (end.state, end.stop_asked) == ("done", "enough")
    entered, left = transitions(run_dir)[-2:]
    assert entered.endswith(f"--> {state}")
    if state == "epoch_end":  # its own rows read the request, so the epoch is counted
        assert left == "epoch_end --EpochEnded--> done"
        assert (heard, end.cur_epoch_idx) == ([], 1)
    else:
        assert left == f"{state} --Stopped--> done"
        assert heard == ["enough"]
        last = Journal(run_dir).last
        assert last is not None
        assert last.data == {"reason": "enough"}


@pytest.mark.parametrize("fresh", [False, True])
@pytest.mark.parametrize("state", STATES)
def test_a_run_that_was_stopped_goes_on_at_the_same_place(tmp_path: Path, state: str, fresh: bool) -> None:
    """R24: in the same trainer or in a new one, nothing is skipped or done twice; the chain says so."""
    straight = pausing(tmp_path / "straight")
    straight.run()
    first = pausing(tmp_path / "run")
    handle = first.on(state, lambda trainer: trainer.stop("enough"))
    first.run()
    handle.remove()
    again = pausing(tmp_path / "run") if fresh else first
    end = again.run(resume_from="auto") if fresh else again.run()
    assert end == straight.trainer_state
    assert again.journal.chain == straight.journal.chain
    assert again.driver.weight == straight.driver.weight
    seen = first.driver.seen + again.driver.seen if fresh else again.driver.seen
    assert seen == straight.driver.seen
    assert diff(tmp_path / "run", tmp_path / "straight") is None


def test_a_stop_asked_before_the_run_ends_it_at_once() -> None:
    trainer = stub([1])
    trainer.stop()
    assert (trainer.run().stop_asked, trainer.driver.seen) == ("stop()", [])


def test_a_run_without_a_run_directory_keeps_nothing_and_has_no_journal(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    trainer = stub([1], callbacks=[Callback()])
    trainer.on(Events.on_train_begin, lambda trainer: trainer.request_snapshot())
    assert trainer.run().state == "done"
    assert trainer.journal is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("run_dir", [3, True, b"runs"])
def test_a_run_directory_that_is_no_path_is_refused(run_dir: Any) -> None:
    with pytest.raises(CallerError, match="run_dir must be a path, 'auto' or None"):
        stub([1], run_dir=run_dir)


def test_sigterm_ends_a_machine_that_can_only_fail(tmp_path: Path) -> None:
    """It has no row for a stop: the record says that it failed, and the status is the signal's."""

    def work(state: Any) -> Event:
        assert state.seq < 3, "the signal was passed over"
        if state.seq == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        return Learned(weight=1)

    machine = Machine([Row("learn", Learned, "learn"), Row("*", Failed, "exception")], initial="learn")
    engine = Engine(machine, {"learn": work}, state=Where(state="learn"), run_dir=tmp_path / "run")
    with pytest.raises(SystemExit) as ended:
        engine.run()
    assert ended.value.code == 143
    assert transitions(tmp_path / "run")[-1] == "learn --Failed--> exception"
