"""The table: what it says, what it refuses to be, and that its short way is the library's own."""

from __future__ import annotations

from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tachograph.states import (
    EpochBegan,
    EpochEnded,
    Event,
    Exhausted,
    Failed,
    Fetched,
    IllegalEvent,
    Machine,
    MachineFault,
    Row,
    SanityChecked,
    Started,
    Stepped,
    Stopped,
    TrainerState,
    Validated,
    training_machine,
    training_rows,
)
from tachograph.states.step import validation_due
from tests.toys import states

TABLE = """\
init          Started        nothing to train                 done
init          Started        a sanity check is asked for      sanity_check
init          Started        -                                epoch_begin
sanity_check  SanityChecked  -                                epoch_begin
epoch_begin   EpochBegan     -                                fetch
fetch         Fetched        -                                step
fetch         Exhausted      validation due at epoch end      validate
fetch         Exhausted      -                                epoch_end
step          Stepped        validation due after this step   validate
step          Stepped        -                                fetch
validate      Validated      the epoch is exhausted           epoch_end
validate      Validated      -                                fetch
epoch_end     EpochEnded     epochs left, no stop asked for   epoch_begin
epoch_end     EpochEnded     -                                done
*             Stopped        -                                done
*             Failed         -                                exception
"""

DRAWING = """\
stateDiagram-v2
    [*] --> init
    init --> done: Started [nothing to train]
    init --> sanity_check: Started [a sanity check is asked for]
    init --> epoch_begin: Started
    sanity_check --> epoch_begin: SanityChecked
    epoch_begin --> fetch: EpochBegan
    fetch --> step: Fetched
    fetch --> validate: Exhausted [validation due at epoch end]
    fetch --> epoch_end: Exhausted
    step --> validate: Stepped [validation due after this step]
    step --> fetch: Stepped
    validate --> epoch_end: Validated [the epoch is exhausted]
    validate --> fetch: Validated
    epoch_end --> epoch_begin: EpochEnded [epochs left, no stop asked for]
    epoch_end --> done: EpochEnded
    note right of init
        any state that isn't final --> done: Stopped
        any state that isn't final --> exception: Failed
    end note
    done --> [*]
    exception --> [*]
"""


@attrs.frozen(kw_only=True)
class Went(Event):
    n: int = 0


@attrs.frozen(kw_only=True)
class Turned(Event):
    n: int = 0


@attrs.frozen(kw_only=True)
class Slept(Event):
    n: int = 0


@attrs.frozen(kw_only=True)
class Distilled(Event):
    """A teacher was asked about the batch."""

    validate_due: bool = False


OWN = (Went, Turned, Slept)
FAILS = Row("*", Failed, "exception")
events = st.one_of(
    st.builds(Started, sanity_check=st.booleans()),
    st.builds(Stepped, validate_due=st.booleans(), closed=st.booleans()),
    st.builds(Exhausted, validate_due=st.booleans(), flushed=st.booleans()),
    *(st.builds(e) for e in (SanityChecked, EpochBegan, Fetched, Validated, EpochEnded, Stopped, Failed, Went)),
)


# -- what it says ------------------------------------------------------------------------------------------


def test_the_training_machine_is_this_table() -> None:
    said = (f"{r.source:<13} {r.event.__name__:<14} {r.label or '-':<32} {r.dest}\n" for r in training_rows())
    assert "".join(said) == TABLE


def test_the_machine_draws_itself() -> None:
    assert training_machine().mermaid() == DRAWING


def test_the_machine_writes_any_out_for_every_state_that_is_not_final() -> None:
    machine = training_machine()
    assert machine.names == [
        *("init", "sanity_check", "epoch_begin", "fetch", "step", "validate", "epoch_end"),
        *("done", "exception"),
    ]
    for name in machine.names:
        legal = machine.legal(name)
        assert ({"Stopped", "Failed"} <= set(legal)) == (name not in machine.final)
        assert bool(legal) == (name not in machine.final)


def test_a_table_has_a_digest_that_changes_with_any_row_and_any_guard() -> None:
    digests = {training_machine().digest}
    for rows in (
        [Row("step", Went, "fetch")],
        [Row("step", Went, "validate")],
        [Row("step", Went, "fetch", validation_due)],
        [Row("fetch", Went, "fetch")],
        [Row("step", Turned, "fetch")],
    ):
        digests.add(training_machine(rows).digest)
    assert len(digests) == 6
    assert training_machine().digest in digests
    assert all(len(d) == 16 and int(d, 16) >= 0 for d in digests)


# -- what it refuses to be ---------------------------------------------------------------------------------


def never(state: Any, event: Any) -> bool:
    """never"""
    return False


def other_event_of_that_name() -> type[Event]:
    return attrs.frozen(kw_only=True)(type("Went", (Event,), {}))


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([Row("a", Went, "b"), FAILS, Row("done", Went, "a")], r"row \(done, Went, a\) leaves 'done', which is final"),
        ([Row("a", Went, "done"), Row("a", Went, "done"), FAILS], r"row \(a, Went, done\) stands twice"),
        (
            [Row("a", Went, "done", never), Row("a", Went, "exception", never), FAILS],
            r"row \(a, Went, exception\) stands twice, or its guard does",
        ),
        (
            [Row("a", Went, "done"), Row("a", Went, "exception", never), FAILS],
            r"row \(a, Went, exception\) can't be reached: a row before it has no guard",
        ),
        ([Row("a", Went, "b"), Row("a", Failed, "exception")], "state 'b' has no way out and isn't final"),
        ([Row("a", Went, "done")], r"state 'a' can't fail: it needs a row \(a, Failed, exception\)"),
        ([Row("a", Went, "done"), Row("a", Failed, "exception", never)], "state 'a' can't fail"),
        ([Row("a", Went, "done"), Row("b", Went, "a"), FAILS], "state 'b' can't be reached from 'a'"),
        ([Row("a", Went, "*"), FAILS], r"row \(a, Went, \*\) leads anywhere: name the state"),
        ([Row("a -> b", Went, "done"), FAILS], "a state's name must be a string without '->', not 'a -> b'"),
        ([Row("a", Went, ""), FAILS], "a state's name must be a string without '->', not ''"),
        ([Row("a", Went, 3), FAILS], "a state's name must be a string without '->', not 3"),  # type: ignore[arg-type]
        ([Row("a", Went(), "done"), FAILS], r"the row \(a, ..., done\) needs a class of events, not Went\(n=0\)"),  # type: ignore[arg-type]
        ([Row("a", "Went", "done"), FAILS], "needs a class of events, not 'Went'"),  # type: ignore[arg-type]
        ([Row("a", int, "done"), FAILS], "needs a class of events, not <class 'int'>"),  # type: ignore[arg-type]
        ([Row("a", Went, "done", "never"), FAILS], "has a guard that is no function with a name: 'never'"),  # type: ignore[arg-type]
        (
            [Row("a", Went, "b"), Row("b", other_event_of_that_name(), "done"), FAILS],
            "two classes of events are named Went",
        ),
    ],
)
def test_a_table_that_contradicts_itself_is_refused_by_name(rows: list[Row], said: str) -> None:
    with pytest.raises(MachineFault, match=said):
        Machine(rows, initial="a")


def test_a_state_that_is_named_but_stands_in_no_row_is_refused() -> None:
    with pytest.raises(MachineFault, match="state 'lost' can't be reached from 'init'"):
        training_machine(states=["lost"])


# -- what may happen ---------------------------------------------------------------------------------------


def test_an_illegal_event_changes_nothing_and_says_what_is_legal() -> None:
    machine, state = training_machine(), TrainerState(state="fetch", seq=7)
    kept = state.to_dict()
    with pytest.raises(IllegalEvent) as caught:
        machine.next_state(state, Stepped())
    error = caught.value
    assert str(error) == (
        "Stepped can't happen in state 'fetch' (seq 7), which is unchanged. "
        "Legal here: Fetched, Exhausted, Stopped, Failed."
    )
    assert (error.state, error.event) == ("fetch", "Stepped")
    assert error.legal == ("Fetched", "Exhausted", "Stopped", "Failed")
    assert state.to_dict() == kept
    assert machine.next_state(state, Fetched()) == "step"


@pytest.mark.parametrize("name", ["done", "exception"])
def test_nothing_leaves_a_final_state(name: str) -> None:
    with pytest.raises(IllegalEvent, match="Legal here: nothing: it is final"):
        training_machine().next_state(TrainerState(state=name), Failed())


def test_an_event_whose_guards_all_say_no_is_illegal() -> None:
    machine = Machine([Row("a", Went, "done", never), FAILS], initial="a")
    for ask in (machine.next_state, machine.by_library):
        with pytest.raises(IllegalEvent, match="Went can't happen in state 'a'"):
            ask(TrainerState(state="a"), Went())


def asked(ask: Any, state: Any, event: Event) -> Any:
    try:
        return ask(state, event)
    except IllegalEvent as error:
        return str(error)


TRAINING = training_machine()


@given(states, events)
def test_the_short_way_through_the_training_machine_is_the_library_s(state: TrainerState, event: Event) -> None:
    kept = {name: list(e.transitions) for name, e in TRAINING.events.items()}
    assert asked(TRAINING.next_state, state, event) == asked(TRAINING.by_library, state, event)
    assert kept == {name: list(e.transitions) for name, e in TRAINING.events.items()}, "asking added a row"
    assert TRAINING.models == []


def test_both_ways_refuse_a_state_that_the_machine_does_not_know() -> None:
    state = TrainerState(state="nowhere")
    assert asked(TRAINING.next_state, state, Started()) == asked(TRAINING.by_library, state, Started())


def guard(k: int) -> Any:
    def by_residue(state: Any, event: Any) -> bool:
        return bool((state.samples + getattr(event, "n", 0)) % 3 == k)

    by_residue.__name__ = f"residue_{k}"
    return by_residue


GUARDS = [guard(k) for k in range(3)]


@st.composite
def small_machines(draw: st.DrawFn) -> Machine:
    """A random machine: a chain through all states keeps them reachable, guarded rows lead anywhere."""
    names = [f"s{i}" for i in range(draw(st.integers(1, 4)))]
    everywhere = [*names, "done", "exception"]
    rows = []
    for source, following in zip(names, [*names[1:], "done"], strict=True):
        for event in OWN:
            guards = draw(st.lists(st.sampled_from(GUARDS), unique=True, max_size=2))
            rows += [Row(source, event, draw(st.sampled_from(everywhere)), g) for g in guards]
            if event is Went or draw(st.booleans()):
                dest = following if event is Went else draw(st.sampled_from(everywhere))
                rows.append(Row(source, event, dest))
    return Machine([*rows, FAILS], initial="s0")


@given(small_machines(), st.data())
def test_the_short_way_through_any_machine_is_the_library_s(machine: Machine, data: st.DataObject) -> None:
    for _ in range(10):
        state = TrainerState(state=data.draw(st.sampled_from(machine.names)), samples=data.draw(st.integers(0, 5)))
        event = data.draw(st.sampled_from(OWN))(n=data.draw(st.integers(0, 5)))
        assert asked(machine.next_state, state, event) == asked(machine.by_library, state, event)


# -- a user's own states -----------------------------------------------------------------------------------


def distilling() -> Machine:
    return training_machine(
        [
            Row("step", Stepped, "distill"),
            Row("distill", Distilled, "validate", validation_due),
            Row("distill", Distilled, "fetch"),
        ]
    )


def test_a_row_without_a_guard_replaces_the_rows_of_its_source_and_event() -> None:
    machine = distilling()
    assert [(r.source, r.event, r.dest) for r in machine.rows if r.source == "step"] == [
        ("step", Stepped, "distill"),
        ("step", Stopped, "done"),
        ("step", Failed, "exception"),
    ]
    assert machine.legal("distill") == ["Distilled", "Stopped", "Failed"]
    assert machine.next_state(TrainerState(state="step"), Stepped(validate_due=True)) == "distill"
    assert machine.next_state(TrainerState(state="distill"), Distilled(validate_due=True)) == "validate"
    assert machine.next_state(TrainerState(state="distill"), Distilled()) == "fetch"
    drawing = machine.mermaid()
    assert "    step --> distill: Stepped\n" in drawing
    assert "    distill --> validate: Distilled [validation due after this step]\n" in drawing
    assert "    step --> fetch" not in drawing
    assert machine.digest != training_machine().digest


def test_a_guarded_row_takes_an_event_away_from_the_rows_behind_it() -> None:
    def long_enough(state: Any, event: Any) -> bool:
        """enough samples were seen"""
        return bool(state.samples >= 10)

    machine = training_machine([Row("step", Stepped, "done", long_enough)])
    assert machine.next_state(TrainerState(state="step", samples=9), Stepped()) == "fetch"
    assert machine.next_state(TrainerState(state="step", samples=10), Stepped(validate_due=True)) == "done"
    assert "step --> done: Stepped [enough samples were seen]" in machine.mermaid()
