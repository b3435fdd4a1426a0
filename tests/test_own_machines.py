"""Machines that people build have everything that the built-in one has; what can't work is refused by name."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import attrs
import pytest
import torch
from torch import nn

from tachograph.drivers import RestoreFault, StubDriver, choose_driver
from tachograph.engine import Engine, Filter, Journal, Kept, Progress, Trainer, diff, recording, replay
from tachograph.engine.report.telling import tell
from tachograph.engine.testing import assert_deterministic, assert_resumes_exactly
from tachograph.states import (
    CallerError,
    Event,
    Failed,
    Machine,
    MachineFault,
    Row,
    Stepped,
    Stopped,
    TrainerState,
    validation_put_off,
)
from tests.jobs.own_machines import GAME, Judged, Playing, Table, blurring, game
from tests.test_cli_support import cli

# -- exact resume ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("build", [blurring, game])
def test_it_goes_on_exactly_from_every_transition(build: Any, tmp_path: Path, proven: Callable[[int], None]) -> None:
    """R01 R05: states of a user's own too, with a batch in hand that they have changed, and between two epochs."""
    cuts = assert_resumes_exactly(build, None, at="all", folder=tmp_path)
    build(tmp_path / "run").run()
    last = Journal(tmp_path / "run").last
    assert last is not None
    assert [cut.seq for cut in cuts] == list(range(1, last.seq))
    proven(len(cuts))


@pytest.mark.parametrize("build", [blurring, game])
def test_it_goes_on_exactly_where_processes_are_killed(build: Any, tmp_path: Path) -> None:
    """R01: three lives end by SIGKILL, and each process has another hash seed."""
    assert len(assert_resumes_exactly(build, None, kill=True, folder=tmp_path)) == 3


def test_a_machine_of_ones_own_is_deterministic_by_its_seed(tmp_path: Path) -> None:
    assert_deterministic(game, None, folder=tmp_path)


# -- the seed, and values of one's own ---------------------------------------------------------------------


def test_the_seed_of_an_engine_decides_on_what_is_drawn_and_is_kept_in_the_settings(tmp_path: Path) -> None:
    """As a trainer's is."""
    runs = {seed: game(tmp_path / str(seed), seed=seed) for seed in (1, 2, None)}
    for engine in runs.values():
        engine.run()
    one, other, none = (Journal(tmp_path / str(seed)).last.chain for seed in runs)  # type: ignore[union-attr]
    assert one != other != none
    again = game(tmp_path / "again", seed=1)
    again.run()
    assert Journal(tmp_path / "again").last.chain == one  # type: ignore[union-attr]
    with pytest.raises(CallerError, match="this run's seed is 1, this trainer's 2"):
        game(tmp_path / "1", seed=2).run(resume_from="auto")


def test_a_driver_is_set_up_and_its_gradients_cleared_when_a_run_begins() -> None:
    driver = StubDriver()
    engine = Engine(GAME, dict.fromkeys(("play", "judge", "judge_again", "learn"), ended), driver=driver, seed=11)
    with pytest.raises(Ended):
        engine.run()
    assert driver.calls[:2] == ["setup", "zero_grad"]
    assert driver.generator == 11


class Ended(Exception):
    pass


def ended(state: Any) -> Any:
    raise Ended


def test_values_in_the_engine_s_state_are_saved_with_every_snapshot(run_dir: Path) -> None:
    """What a resumed run reads there is what was there."""
    engine = game(run_dir)
    engine.on("judge -> learn", lambda engine: engine.request_snapshot())
    engine.on("learn -> play", lambda engine: engine.stop("enough"))
    engine.run()
    again = game(run_dir)
    plays: list[int] = []
    again.on("on_after_resume", lambda engine, report: plays.append(engine.state.plays))
    again.run(resume_from="auto")
    assert (plays, again.state.plays) == ([1], 4)


def test_what_is_no_plain_data_in_the_engine_s_state_is_refused(run_dir: Path) -> None:
    engine = game(run_dir)
    engine.state.model = nn.Linear(1, 1)
    with pytest.raises(CallerError, match=r"\['model'\] is a Linear"):
        engine.run()


# -- things that are kept ----------------------------------------------------------------------------------


def test_a_thing_that_is_kept_has_its_state_back_at_a_resume(run_dir: Path) -> None:
    engine, table = game(run_dir), Table()
    engine.on("on_after_snapshot", lambda engine, path: engine.stop("enough"))
    engine.on("judge -> learn", lambda engine: engine.request_snapshot())
    engine.run()
    kept = engine.listeners.callbacks["Kept"].things["table"].state_dict()  # type: ignore[attr-defined]
    again = game(run_dir, table)
    seen: list[dict[str, Any]] = []
    again.on("on_after_resume", lambda engine, report: seen.append(table.state_dict()))
    again.run(resume_from="auto")
    assert seen == [kept] != [Table().state_dict()]


class Half:
    def state_dict(self) -> dict[str, Any]:
        return {}


@pytest.mark.parametrize(
    ("things", "said"),
    [
        ({}, "Kept() saves nothing: name what it is to save, Kept(env=env, buffer=buffer)"),
        ({"env": Half()}, "Kept can't save 'env': Half has no load_state_dict()"),
        (
            {"table": Table(), "env": object()},
            "Kept can't save 'env': object has no state_dict() and load_state_dict()",
        ),
        ({"env": Table}, "Kept(env=Table): give an instance, not the class"),
    ],
)
def test_what_cannot_be_kept_is_refused_by_name(things: dict[str, Any], said: str) -> None:
    with pytest.raises(CallerError) as found:
        Kept(**things)
    assert str(found.value).startswith(said)


@pytest.mark.parametrize(
    ("things", "said"),
    [
        ({"env": Table()}, "Kept saves 'env', whose state this snapshot lacks: it holds 'table'"),
        ({"table": Table(), "env": Table()}, "Kept saves 'env', whose state this snapshot lacks: it holds 'table'"),
    ],
)
def test_a_snapshot_of_other_things_is_refused_by_name(things: dict[str, Any], said: str, run_dir: Path) -> None:
    cut(run_dir)
    with pytest.raises(CallerError, match=said):
        game(run_dir, callbacks=[Kept(**things)]).run(resume_from="auto")


def test_a_thing_that_is_not_kept_any_more_is_named(run_dir: Path) -> None:
    cut(run_dir, callbacks=[Kept(table=Table(), tables=Table())])
    with pytest.raises(CallerError, match=r"'tables', which Kept wasn't given\. Did you mean 'table'"):
        game(run_dir).run(resume_from="auto")


def cut(run_dir: Path, **settings: Any) -> None:
    """Leave a run with a snapshot in its middle."""
    engine = game(run_dir, **settings)
    engine.on("judge -> learn", lambda engine: engine.request_snapshot())
    engine.on("learn -> play", lambda engine: engine.stop("enough"))
    engine.run()


# -- a torch driver without a loader -----------------------------------------------------------------------


def test_a_torch_driver_needs_no_loader_and_says_so_where_one_is_asked_for() -> None:
    """All that a state's work does by itself works without one."""
    driver = choose_driver("torch", nn.ModuleDict({"a": nn.Linear(1, 1)}))
    driver.setup(0, True)
    driver.zero_grad()
    assert driver.length() is None
    assert driver.fingerprint().keys() == {"model", "optimizers", "precision", "train_fn"}
    with pytest.raises(CallerError, match="no training loader was given"):
        driver.open_epoch(0, 0)


def test_a_snapshot_with_a_loader_is_refused_by_a_driver_without_one(tmp_path: Path) -> None:
    trainer = blurring(tmp_path / "run", snapshot_every=1)
    trainer.run()
    (snapshot, *_) = sorted((tmp_path / "run" / "snapshots").glob("0*"))
    driver = choose_driver("torch", trainer.driver.model)  # type: ignore[union-attr]
    driver.set_optimizers(torch.optim.Adam(driver.model.parameters(), lr=0.01))
    with pytest.raises(RestoreFault, match="the state of a training loader, and there is none"):
        driver.read(snapshot)


def test_a_batch_in_hand_that_cannot_be_saved_nor_fetched_again_is_refused(run_dir: Path) -> None:
    engine = game(run_dir)

    def hold(engine: Any) -> None:
        engine.batch = [object()]
        engine.request_snapshot()

    engine.on("play -> judge", hold)
    with pytest.raises(CallerError, match="the batch in hand is saved with a snapshot: plain data and tensors only"):
        engine.run()


def test_what_a_builder_for_the_assertions_must_return_is_said(tmp_path: Path) -> None:
    with pytest.raises(CallerError, match="must return a Trainer, or an Engine, that wasn't run"):
        assert_resumes_exactly(lambda: Playing(), folder=tmp_path)


# -- what is refused, by name ------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class Went(Event):
    """It went on."""


@attrs.frozen(kw_only=True)
class Place:
    """Where it is.

    Attributes:
        state: the state's name.
        seq: transitions.
    """

    state: str = "a"
    seq: int = 0


def table(*rows: Row, initial: str = "a") -> Machine:
    return Machine([*rows, Row("*", Failed, "exception")], initial=initial)


def event(fold: Any = None, frozen: bool = True, **fields: Any) -> Any:
    """Make a class of events."""
    body: dict[str, Any] = {"__annotations__": fields}
    if fold is not None:
        body["fold"] = fold
    made = type("Odd", (Event,), body)
    return attrs.frozen(kw_only=True)(made) if frozen else made


async def later(self: Any, state: Any, dest: str) -> Any:
    return state


def with_one(made: Any) -> Machine:
    return table(Row("a", made, "done"))


class Thawed(Event):
    pass


TABLES = {
    "a state that nothing leads to": (
        lambda: table(Row("a", Went, "done"), Row("collekt", Went, "a"), Row("a", Judged, "collect"), *DONE),
        "state 'collekt' can't be reached from 'a'. Did you mean 'collect'?",
    ),
    "a state that nothing leaves": (
        lambda: Machine([Row("a", Went, "b"), Row("a", Failed, "exception")], initial="a"),
        "state 'b' has no way out and isn't final.",
    ),
    "a state that can't fail": (
        lambda: Machine([Row("a", Went, "done")], initial="a"),
        "state 'a' can't fail: it needs a row (a, Failed, exception)",
    ),
    "a trap": (
        lambda: table(Row("a", Went, "b"), Row("a", Judged, "done"), Row("b", Went, "c"), Row("c", Went, "b")),
        "state 'b' is a trap: from there no row but those by Stopped and Failed leads to an end (done, exception), as "
        "there are from 'a'",
    ),
    "an event that isn't decorated": (
        lambda: with_one(Thawed),
        "Thawed is no event: decorate a subclass of Event with attrs.frozen(kw_only=True)",
    ),
    "an event that can be changed": (
        lambda: with_one(attrs.define(kw_only=True)(type("Soft", (Event,), {}))),
        "Soft is no event: decorate a subclass of Event with attrs.frozen(kw_only=True)",
    ),
    "the base of all events": (lambda: with_one(Event), "Event is no event"),
    "a fold of the state alone": (
        lambda: with_one(event(lambda self, state: state)),
        "Odd.fold(self, state) can't be called with a state and a dest: write def fold(self, state, dest)",
    ),
    "a fold that is awaited": (lambda: with_one(event(later)), "Odd.fold must be a plain function"),
}
DONE = [Row("collect", Judged, "done")]


@pytest.mark.parametrize(("build", "said"), TABLES.values(), ids=TABLES)
def test_a_table_that_cannot_work_is_refused_when_the_machine_is_built(build: Any, said: str) -> None:
    with pytest.raises(MachineFault) as found:
        build()
    assert str(found.value).startswith(said)


def test_a_machine_without_any_end_of_its_own_is_no_trap() -> None:
    """It runs until it is stopped."""
    assert table(Row("a", Went, "b"), Row("b", Went, "a"), Row("*", Stopped, "done")).names[:2] == ["a", "b"]


def went(state: Any) -> Event:
    return Went()


def engine_of(made: Any = Went, state: Any = None, perform: Any = None, **settings: Any) -> Engine:
    place = Place() if state is None else state
    return Engine(with_one(made), {"a": went} if perform is None else perform, state=place, **settings)


def place(**fields: Any) -> Any:
    """Make a state with more fields: name -> its type, or (its type, its value)."""
    told = {name: held if isinstance(held, tuple) else (held, attrs.NOTHING) for name, held in fields.items()}
    made = {name: attrs.field(default=value, type=kind) for name, (kind, value) in told.items()}
    return attrs.make_class("There", made, bases=(Place,), frozen=True, kw_only=True)()


@attrs.define
class Thaw:
    state: str = "a"
    seq: int = 0


@attrs.frozen
class Short:
    state: str = "a"


ENGINES = {
    "no function": (
        lambda: engine_of(perform={}),
        "state 'a' needs a function: perform={'a': function(state) -> event",
    ),
    "a function of another name": (
        lambda: Engine(GAME, {**dict.fromkeys(("play", "judge", "learn"), went), "judge_agin": went}, state=Playing()),
        "state 'judge_again' needs a function: perform={'judge_again': function(state) -> event, ...}. Did you mean "
        "'judge_agin'?",
    ),
    "a function for no state": (
        lambda: engine_of(perform={"a": went, "aa": went}),
        "perform names 'aa', which is final or no state of this machine: a. Did you mean 'a'?",
    ),
    "a function of nothing": (
        lambda: engine_of(perform={"a": lambda: Went()}),
        "perform['a'] is called with the state, or with the engine and the state, which <lambda>",
    ),
    "a function of three": (
        lambda: engine_of(perform={"a": lambda engine, state, batch: Went()}),
        "perform['a'] is called with the state, or with the engine and the state, which <lambda>",
    ),
    "a generator": (
        lambda: engine_of(perform={"a": generating}),
        "perform['a'] is called and not iterated over: generating must be a plain function",
    ),
    "a state that can be changed": (
        lambda: engine_of(state=Thaw()),
        "state must be a frozen attrs value with the fields state and seq, not a Thaw",
    ),
    "a dict as a state": (lambda: engine_of(state={"state": "a"}), "state must be a frozen attrs value"),
    "a state without a count": (lambda: engine_of(state=Short()), "Short needs a field seq"),
    "a state that isn't there": (
        lambda: engine_of(state=Place(state="b")),
        "Place begins in 'b', but the states are a, done, exception",
    ),
    "a tensor in a state": (
        lambda: engine_of(state=place(w=(torch.Tensor, None))),
        "There.w is declared as Tensor, which can't be recorded: plain data only",
    ),
    "perhaps a module in a state": (
        lambda: engine_of(state=place(w=(nn.Linear | None, None))),
        "There.w is declared as Linear",
    ),
    "a function in a state": (
        lambda: engine_of(state=place(f=(Callable[[int], int], None))),
        "There.f is declared as Callable",
    ),
    "a set in a state": (lambda: engine_of(state=place(seen=(set[int], attrs.Factory(set)))), "There.seen is declared"),
    "an object in a state": (
        lambda: engine_of(state=place(x=(Any, Table()))),
        "There.x holds a Table, which can't be recorded",
    ),
    "a tuple in a state": (
        lambda: engine_of(state=place(x=(Any, (1, 2)))),
        "There.x is (1, 2), but is read back from a record as [1, 2]: give the field converter=tuple",
    ),
    "numbers as keys in a state": (
        lambda: engine_of(state=place(x=(Any, attrs.Factory(lambda: {1: 2})))),
        "There.x is {1: 2}, but is read back from a record as {'1': 2}: plain data only",
    ),
    "a field that isn't recorded": (
        lambda: engine_of(state=attrs.make_class("There", {"_x": attrs.field(default=0)}, (Place,), frozen=True)()),
        "There._x: a recorded field's name has no underscore before it",
    ),
    "a tensor in an event": (
        lambda: engine_of(event(loss=torch.Tensor)),
        "Odd.loss is declared as Tensor, which can't be recorded",
    ),
    "a fold that returns nothing": (
        lambda: engine_of(event(lambda self, state, dest: None)),
        "Odd.fold returned nothing in state 'a', and must return the next Place",
    ),
    "a fold that stays": (
        lambda: engine_of(event(lambda self, state, dest: attrs.evolve(state, seq=state.seq + 1))),
        "Odd.fold returned state 'a' from 'a', but the table leads to 'done'",
    ),
    "a fold that doesn't count": (
        lambda: engine_of(event(lambda self, state, dest: attrs.evolve(state, state=dest))),
        "Odd.fold returned seq 0 after seq 0: each transition counts one",
    ),
    "epochs without epochs": (
        lambda: engine_of(driver=StubDriver(), snapshot_every="epoch"),
        "snapshot_every='epoch', but no epoch ends in this machine",
    ),
    "snapshots without a driver": (
        lambda: engine_of(snapshot_every=3),
        "snapshot_every=3, but driver is None, and without one no snapshot is taken",
    ),
    "snapshots to keep without a driver": (lambda: engine_of(keep_snapshots=3), "keep_snapshots=3, but driver is None"),
    "a seed without a driver": (lambda: engine_of(seed=3), "seed=3 seeds the generators of a driver"),
    "no seed": (lambda: engine_of(driver=StubDriver(), seed=-3), "seed must be an integer from 0 to 2**63 - 1"),
    "a memory that can't be saved": (
        lambda: engine_of(driver=StubDriver(), callbacks=Kept(thing=Heavy())),
        "the state of callback 'Kept' must be plain data or tensors, but state['thing']['all'] is a Heavy",
    ),
}


def generating(state: Any) -> Any:
    yield Went()


class Heavy:
    def state_dict(self) -> dict[str, Any]:
        return {"all": self}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise NotImplementedError


@pytest.mark.parametrize(("build", "said"), ENGINES.values(), ids=ENGINES)
def test_an_engine_that_cannot_work_is_refused_when_it_is_built(build: Any, said: str) -> None:
    with pytest.raises(CallerError) as found:
        build()
    assert str(found.value).startswith(said)


def test_a_fold_that_cannot_be_tried_before_is_tried_at_its_first_use_and_nothing_wrong_is_written(
    run_dir: Path,
) -> None:
    odd = event(lambda self, state, dest: attrs.evolve(state, state=dest, seq=state.seq + self.step), step=int)
    engine = engine_of(odd, perform={"a": lambda state: odd(step=2)}, run_dir=run_dir)
    with pytest.raises(MachineFault, match=r"Odd.fold returned seq 2 after seq 0"):
        engine.run()
    assert [(record.seq, record.event) for record in Journal(run_dir)] == [(1, "Failed")]


def test_after_its_first_use_nobody_looks_at_a_fold_any_more() -> None:
    folded: list[int] = []

    def fold(self: Any, state: Any, dest: str) -> Any:
        folded.append(self.step)
        return attrs.evolve(state, state=dest, seq=state.seq + self.step)

    odd = event(fold, step=int)
    machine = table(Row("a", odd, "done", lambda_named), Row("a", odd, "a"))
    work = lambda state: odd(step=1)  # noqa: E731 - the very function must be there again
    engine = Engine(machine, {"a": work}, state=Place())
    engine.run()
    assert folded == [1] * 6  # five transitions, and one look
    assert engine._perform["a"] is work


def lambda_named(state: Any, event: Any) -> bool:
    """four are done"""
    return bool(state.seq == 4)


def test_a_number_counts_transitions_where_a_machine_counts_no_batches(run_dir: Path) -> None:
    """A time is looked at after each."""
    game(run_dir, snapshot_every=4).run()
    taken = [record.data["at"] for record in Journal(run_dir).sides() if record.kind == "saved"]
    assert taken == [4, 8, 12]


# -- limits and ends ---------------------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class Counted:
    """Counts up to a limit.

    Attributes:
        state: the state's name.
        seq: transitions.
        n: the count.
        limit: where it ends.
        stop_asked: why it was asked to stop.
    """

    LIMITS: ClassVar = ("limit",)

    state: str = "count"
    seq: int = 0
    n: int = 0
    stop_asked: str = ""
    limit: int = 3


@attrs.frozen(kw_only=True)
class One(Event):
    """It counted one more."""

    def fold(self, state: Any, dest: str) -> Any:
        return attrs.evolve(super().fold(state, dest), n=state.n + 1)


@attrs.frozen(kw_only=True)
class Looked(Event):
    """It looked whether that's enough."""


def at_the_limit(state: Counted, event: Looked) -> bool:
    """the limit is reached, or a stop was asked for"""
    return state.n >= state.limit or bool(state.stop_asked)


COUNTING = Machine(
    [
        Row("count", One, "look"),
        Row("look", Looked, "done", at_the_limit),
        Row("look", Looked, "count"),
        Row("*", Stopped, "done"),
        Row("*", Failed, "exception"),
    ],
    initial="count",
    heeds_stop=("look",),
)


def counting(run_dir: Path | None, limit: int, driver: Any = None) -> Engine:
    driver = StubDriver() if driver is None else driver

    def count(state: Any) -> Event:
        driver.weight = driver.weight * 31 + driver.draw() % 7
        return One()

    perform = {"count": count, "look": lambda state: Looked()}
    return Engine(COUNTING, perform, state=Counted(limit=limit), driver=driver, run_dir=run_dir, seed=3)


def test_a_run_of_ones_own_is_extended_by_raising_its_limit(tmp_path: Path) -> None:
    """It re-enters before the decision that ended it, which is made anew; all bits are the straight run's."""
    straight = counting(tmp_path / "straight", 5)
    straight.run()
    counting(tmp_path / "run", 3).run()
    longer = counting(tmp_path / "run", 5)
    assert longer.run(resume_from="auto") == straight.trainer_state
    assert longer.driver.weight == straight.driver.weight  # type: ignore[union-attr]
    assert Journal(tmp_path / "run").chain == Journal(tmp_path / "straight").chain


def test_a_run_of_ones_own_that_was_stopped_goes_on_by_a_second_run(tmp_path: Path) -> None:
    straight = counting(tmp_path / "straight", 5)
    straight.run()
    engine = counting(tmp_path / "run", 5)
    handle = engine.on("count -> look", lambda engine: engine.trainer_state.n == 2 and engine.stop("enough"))
    assert engine.run().n == 2
    handle.remove()
    assert engine.run() == straight.trainer_state
    assert Journal(tmp_path / "run").chain == Journal(tmp_path / "straight").chain
    assert engine.run() == straight.trainer_state  # it has ended, and nothing is left to run


# -- read without the program ------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=[blurring, game])
def lived(request: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Engine, Path]:
    """An engine that has run, with a snapshot in its middle, and its run directory."""
    run_dir = tmp_path_factory.mktemp("own") / "run"
    engine = request.param(run_dir, snapshot_every=3)
    engine.run()
    return engine, run_dir


def test_a_run_s_machine_is_drawn_and_told_without_its_program(lived: tuple[Engine, Path]) -> None:
    """The drawing is the machine's own."""
    engine, run_dir = lived
    assert "\n".join(cli("graph", run_dir).lines) + "\n" == engine.machine.mermaid()
    rows = cli("graph", run_dir, "--table").lines
    assert rows[0] == "| source | event | guard | dest |"
    assert "| any that isn't final | Failed | | exception |" in rows
    own = "| rest | Rested | all epochs are done | done |" if isinstance(engine, Trainer) else OVER
    assert own in rows


OVER = "| learn | Learned | four rounds are learned from | done |"


def test_a_run_that_told_no_table_is_drawn_by_its_program_only(lived: tuple[Engine, Path], tmp_path: Path) -> None:
    shutil.copytree(lived[1], tmp_path / "run")
    about = json.loads((tmp_path / "run" / "run.json").read_text())
    del about["machine"]
    (tmp_path / "run" / "run.json").write_text(json.dumps(about))
    said = cli("graph", tmp_path / "run")
    assert said.status == 2
    assert "only the program that built the other one can draw it, with machine.mermaid()" in said.err


def test_the_page_of_a_run_has_the_whole_machine(lived: tuple[Engine, Path], tmp_path: Path) -> None:
    engine, run_dir = lived
    told = tell(run_dir, recording.load(run_dir), rank=None, salvage=False, diverged=()).facts
    assert {state["name"] for state in told["machine"]["states"]} == set(engine.machine.names)
    assert told["whole"]
    assert cli("report", run_dir, "-o", tmp_path / "page.html").status == 0


@pytest.mark.parametrize(
    "command",
    [("show",), ("show", "--at", "3"), ("show", "--json"), ("watch", "--lines"), ("snapshots", "ls")],
    ids=" ".join,
)
def test_it_is_looked_at_from_a_terminal(lived: tuple[Engine, Path], command: tuple[str, ...]) -> None:
    name, *options = command
    before = [options.pop(0)] if options and not options[0].startswith("-") else []
    said = cli(name, *before, lived[1], *options)
    assert said.status == 0, said.err
    assert "\n".join(said.lines).strip()


@pytest.mark.parametrize("form", ["csv", "sqlite", "trace"])
def test_it_is_exported(lived: tuple[Engine, Path], form: str, tmp_path: Path) -> None:
    said = cli("export", lived[1], "--to", form, "-o", tmp_path / "out")
    assert said.status == 0, said.err


def test_two_runs_are_compared_to_their_first_difference(lived: tuple[Engine, Path], tmp_path: Path) -> None:
    build = blurring if isinstance(lived[0], Trainer) else game
    build(tmp_path / "same", snapshot_every=3).run()
    assert diff(lived[1], tmp_path / "same") is None
    build(tmp_path / "other", seed=99).run()
    found = diff(lived[1], tmp_path / "other")
    assert found is not None
    assert found.cause
    assert cli("diff", lived[1], tmp_path / "other").status == 1


def test_it_is_replayed_with_its_machine_and_without_it_that_is_asked_for(lived: tuple[Engine, Path]) -> None:
    engine, run_dir = lived
    state = "blur" if isinstance(engine, Trainer) else "judge"
    heard: list[int] = []
    kind = type(engine.trainer_state)
    replay(run_dir, engine.machine, state=kind).on(state, lambda run: heard.append(run.trainer_state.seq)).run()
    assert heard == [record.seq for record in Journal(run_dir) if record.dest == state] != []
    with pytest.raises(CallerError, match="give replay\\(\\) the machine of the run"):
        replay(run_dir).on("on_exception", lambda run, error: None).run()


# -- heard and shown ---------------------------------------------------------------------------------------


def test_filters_thin_transitions_of_ones_own_and_their_counts_survive_a_resume(tmp_path: Path) -> None:
    def build(run_dir: Path) -> tuple[Engine, list[int]]:
        engine, heard = game(run_dir), []
        engine.on("play -> judge", Filter(every=2)(lambda engine: heard.append(engine.trainer_state.rounds)))
        return engine, heard

    straight, all_of_them = build(tmp_path / "straight")
    straight.run()
    assert all_of_them == [1, 3]
    first, before = build(tmp_path / "run")
    first.on("learn -> play", lambda engine: engine.trainer_state.rounds == 1 and engine.stop("enough"))
    first.run()
    again, after = build(tmp_path / "run")
    again.run(resume_from="auto")
    assert before + after == all_of_them


@pytest.mark.parametrize("bar", ["plain", "json", "rich", "tqdm"])
@pytest.mark.parametrize("build", [blurring, game])
def test_its_progress_is_shown(build: Any, bar: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The state's name, the transition, and the state's own counters."""
    engine = build(None)
    engine.add_callback(Progress(bar))
    engine.run()
    shown = "".join(capsys.readouterr())
    assert shown.strip()
    if build is game and bar in ("plain", "json"):
        assert "rounds" in shown


# -- executed again ----------------------------------------------------------------------------------------


def test_a_trainer_with_states_of_its_own_verifies_and_rewinds(tmp_path: Path) -> None:
    """The batch is in hand in a state of its own too, with the noise that another one has added."""
    straight = blurring(tmp_path / "run", snapshot_every=2)
    straight.run()
    assert blurring(None).verify(tmp_path / "run") is None
    for record in Journal(tmp_path / "run"):
        if record.source in ("blur", "rest"):
            trainer = blurring(None)
            assert trainer.rewind(tmp_path / "run", seq=record.seq).state == record.source
            assert (trainer.batch is not None) == (record.source == "blur")


# -- a validation that a state of one's own comes before ---------------------------------------------------


@attrs.frozen(kw_only=True)
class Lent(Event):
    """A state of one's own has done its work."""


def every_second(state: TrainerState, event: Event) -> bool:
    """every second batch"""
    return state.global_forward_batches % 2 == 1


LENDS = [Row("step", Stepped, "lend", every_second)]


def lending(run_dir: Path, rows: list[Row], validate_every: int) -> Trainer:
    return Trainer(
        None, StubDriver(), [1, 2, 3, 4, 5, 6, 7], None, n_epochs=2, metrics={"value": "value"},
        validate_dataloaders=[1, 2], validate_every=validate_every, rows=rows, perform={"lend": lambda state: Lent()},
        run_dir=run_dir, progress_bar=None,
    )  # fmt: skip


def validated_after(run_dir: Path) -> list[int]:
    return [r.state.global_forward_batches for r in Journal(run_dir) if r.event == "Validated"]


def test_a_validation_that_a_state_of_ones_own_comes_before_is_made_after_it(tmp_path: Path) -> None:
    """The row takes `Stepped` away just where a validation is due."""
    rows = [*LENDS, Row("lend", Lent, "validate", validation_put_off), Row("lend", Lent, "fetch")]
    trainer = lending(tmp_path / "run", rows, 2)
    trainer.run(num_eval_sanity_batch=0)
    assert validated_after(tmp_path / "run") == [2, 4, 6, 8, 10, 12, 14]
    assert not trainer.trainer_state.validate_due


def test_a_validation_that_nobody_leads_to_is_made_after_the_next_step_or_at_the_epochs_end(tmp_path: Path) -> None:
    """A table without a row from the state to *validate* loses none."""
    rows = [*LENDS, Row("lend", Lent, "fetch")]
    lending(tmp_path / "run", rows, 2).run(num_eval_sanity_batch=0)
    assert validated_after(tmp_path / "run") == [3, 5, 7, 9, 11, 13, 14]


def test_a_validation_that_was_put_off_survives_a_kill(tmp_path: Path) -> None:
    rows = [*LENDS, Row("lend", Lent, "validate", validation_put_off), Row("lend", Lent, "fetch")]
    assert_resumes_exactly(lambda run_dir: lending(run_dir, rows, 4), steps=None, at="all", folder=tmp_path)


def test_a_states_work_is_given_the_engine_if_it_wants_it(tmp_path: Path) -> None:
    """As a step function is; so it may stand anywhere, also before the trainer is built."""
    seen: list[Any] = []

    def lend(trainer: Trainer, state: TrainerState) -> Event:
        seen.append((trainer, state is trainer.trainer_state))
        return Lent()

    trainer = Trainer(
        None, StubDriver(), [1, 2, 3, 4], None, n_epochs=1, rows=[*LENDS, Row("lend", Lent, "fetch")],
        perform={"lend": lend}, run_dir=tmp_path / "run", progress_bar=None,
    )  # fmt: skip
    trainer.run()
    assert seen == [(trainer, True)] * 2
