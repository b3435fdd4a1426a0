"""`TrainerState` and the events: plain values, checked when they are made, folded by pure functions."""

from __future__ import annotations

import json
from fractions import Fraction
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
    SanityChecked,
    Started,
    StateFault,
    Stepped,
    Stopped,
    TrainerState,
    Validated,
    evolver,
    maker,
    training_machine,
)
from tachograph.states.cadence import Batches, Epochs, Parts, Updates, due_after_step, due_at_epoch_end
from tachograph.states.step import window_size
from tachograph.states.trainer_state import SCHEMA, UPCASTS
from tests.toys import states

FIELDS = [a.name for a in attrs.fields(TrainerState)]
COUNTERS = ["seq", "cur_epoch_idx", "batch_idx_in_epoch", "global_forward_batches", "optimizer_steps"]
COUNTERS += ["accumulated", "samples", "place", "validations"]
OPTIONAL = ["num_batches_per_epoch", "n_epochs", "total_batches"]


# -- the value ---------------------------------------------------------------------------------------------


def test_a_state_has_the_fields_of_the_reference_trainer_and_those_that_resume_needs() -> None:
    """ST2."""
    assert FIELDS == [
        "state",
        "seq",
        "cur_epoch_idx",
        "batch_idx_in_epoch",
        "num_batches_per_epoch",
        "global_forward_batches",
        "optimizer_steps",
        "accumulated",
        "samples",
        "place",
        "validations",
        "epoch_exhausted",
        "epoch_cut_asked",
        "validate_due",
        "stop_asked",
        "results",
        "n_epochs",
        "total_batches",
    ]


def test_a_state_is_frozen_and_takes_no_other_attribute() -> None:
    state = TrainerState()
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        state.seq = 1  # type: ignore[misc]
    with pytest.raises((AttributeError, attrs.exceptions.FrozenInstanceError)):
        state.more = 1  # type: ignore[attr-defined]
    with pytest.raises(TypeError):
        TrainerState("init")  # type: ignore[misc]


@pytest.mark.parametrize("name", COUNTERS)
@pytest.mark.parametrize("wrong", [-1, 1.0, "1", True, None])
def test_a_counter_is_an_integer_from_zero_on(name: str, wrong: Any) -> None:
    with pytest.raises(StateFault, match=f"^{name} must be an integer >= 0, not "):
        TrainerState(**{name: wrong})


@pytest.mark.parametrize("name", OPTIONAL)
@pytest.mark.parametrize("wrong", [-1, 0.5, False])
def test_an_unknown_length_is_legal_and_a_wrong_one_is_not(name: str, wrong: Any) -> None:
    """R53."""
    assert getattr(TrainerState(**{name: None}), name) is None
    with pytest.raises(StateFault, match=f"^{name} must be an integer >= 0"):
        TrainerState(**{name: wrong})


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"state": 3}, "state must be a string, not 3"),
        ({"stop_asked": None}, "stop_asked must be a string, not None"),
        ({"epoch_exhausted": 1}, "epoch_exhausted must be true or false, not 1"),
        ({"results": [1]}, r"results must be a dict with string keys, not \[1\]"),
        ({"results": {1: 2}}, "results must be a dict with string keys"),
    ],
)
def test_every_other_field_is_checked_by_its_name(wrong: dict[str, Any], said: str) -> None:
    with pytest.raises(StateFault, match=said):
        TrainerState(**wrong)


@given(states)
def test_a_state_is_the_same_after_a_way_through_json(state: TrainerState) -> None:
    assert TrainerState.from_dict(json.loads(json.dumps(state.to_dict()))) == state
    assert list(state.to_dict()) == FIELDS


@pytest.mark.parametrize("name", FIELDS)
def test_reading_names_the_field_that_is_missing(name: str) -> None:
    """ST3, with an error in place of an assertion."""
    plain = TrainerState().to_dict()
    del plain[name]
    with pytest.raises(StateFault, match=f"^a state lacks the field '{name}'$"):
        TrainerState.from_dict(plain)


@pytest.mark.parametrize("name", FIELDS)
def test_reading_names_the_field_that_is_unknown_and_the_one_it_is_most_like(name: str) -> None:
    """ST3."""
    plain = TrainerState().to_dict() | {f"{name}x": 0}
    with pytest.raises(StateFault, match=f"^unknown field '{name}x' in a state. Did you mean '{name}'"):
        TrainerState.from_dict(plain)


def test_reading_names_the_field_that_is_wrong() -> None:
    with pytest.raises(StateFault, match=r"^samples must be an integer >= 0, not 'many'"):
        TrainerState.from_dict(TrainerState().to_dict() | {"samples": "many"})


def test_a_newer_schema_is_refused() -> None:
    with pytest.raises(StateFault, match=f"state of schema {SCHEMA + 1}, but this version reads up to {SCHEMA}"):
        TrainerState.from_dict(TrainerState().to_dict(), SCHEMA + 1)


def test_an_older_schema_is_brought_up_to_date_by_pure_functions(monkeypatch: pytest.MonkeyPatch) -> None:
    def upcast(plain: dict[str, Any]) -> dict[str, Any]:
        return {**{k: v for k, v in plain.items() if k != "epoch"}, "cur_epoch_idx": plain["epoch"]}

    monkeypatch.setitem(UPCASTS, SCHEMA - 1, upcast)
    state = TrainerState(cur_epoch_idx=3, samples=9)
    old = {("epoch" if k == "cur_epoch_idx" else k): v for k, v in state.to_dict().items()}
    kept = dict(old)
    assert TrainerState.from_dict(old, SCHEMA - 1) == state
    assert old == kept


def test_a_schema_that_nothing_leads_up_from_is_refused() -> None:
    with pytest.raises(StateFault, match="state of schema 0, which no version of tachograph"):
        TrainerState.from_dict(TrainerState().to_dict(), 0)


# -- evolver -----------------------------------------------------------------------------------------------


@given(st.data(), states)
def test_an_evolver_does_what_attrs_evolve_does(data: st.DataObject, state: TrainerState) -> None:
    free = [name for name in FIELDS if name not in ("state", "seq")]
    names = data.draw(st.lists(st.sampled_from(free), unique=True))
    other = data.draw(states)
    values = [getattr(other, name) for name in names]
    before = state.to_dict()
    moved = evolver(TrainerState, *names)(state, "step", *values)
    assert moved == attrs.evolve(state, state="step", seq=state.seq + 1, **dict(zip(names, values, strict=True)))
    assert type(moved) is TrainerState
    assert state.to_dict() == before


def test_an_evolver_refuses_a_name_that_is_no_field() -> None:
    with pytest.raises(AttributeError, match="TrainerState has no field samplez"):
        evolver(TrainerState, "samplez")


# -- the folds ---------------------------------------------------------------------------------------------


def said(events: Event, **changes: Any) -> tuple[Event, dict[str, Any]]:
    return events, changes


@given(states)
def test_each_event_changes_what_it_is_about_and_nothing_else(state: TrainerState) -> None:
    """R07: after the n-th step, all counters say n."""
    s = state
    step = {"global_forward_batches": s.global_forward_batches + 1, "batch_idx_in_epoch": s.batch_idx_in_epoch + 1}
    fresh = {"batch_idx_in_epoch": 0, "place": 0, "epoch_exhausted": False}
    seen, stepped = {**step, "samples": s.samples + 8, "place": s.place + 8}, s.optimizer_steps + 1
    over = {"epoch_exhausted": True, "epoch_cut_asked": ""}
    table = [
        said(Started(sanity_check=True)),
        said(SanityChecked(results={"loss": 1.0})),
        said(EpochBegan(epoch=1, num_batches_per_epoch=5), **fresh, num_batches_per_epoch=5),
        said(EpochBegan(epoch=1), **fresh, num_batches_per_epoch=None),
        said(Fetched(ids=7)),
        said(Stepped(loss=1.0, samples=8), **seen, optimizer_steps=stepped, accumulated=0),
        said(Stepped(samples=8, closed=False), **seen, accumulated=s.accumulated + 1),
        said(Stepped(samples=8, skipped=True), **seen, accumulated=0),
        said(Exhausted(validate_due=True), **over),
        said(Exhausted(flushed=True), **over, optimizer_steps=stepped, accumulated=0),
        said(Exhausted(flushed=True, skipped=True), **over, accumulated=0),
        said(Exhausted(dropped=2, cut="enough"), **over, accumulated=0),
        said(Stepped(samples=8, validate_due=True), **seen, optimizer_steps=stepped, accumulated=0, validate_due=True),
        said(
            Validated(results={"loss": 1.0}), validations=s.validations + 1, results={"loss": 1.0}, validate_due=False
        ),
        said(EpochEnded(epoch=1), **fresh, cur_epoch_idx=s.cur_epoch_idx + 1),
        said(Stopped(reason="enough")),
        said(Failed(error="no", kind="ValueError")),
    ]
    for event, changes in table:
        moved = event.fold(state, "fetch")
        assert moved == attrs.evolve(state, state="fetch", seq=state.seq + 1, **changes), event


def test_events_are_frozen_and_say_everything_by_name() -> None:
    for event in training_machine().event_classes.values():
        one = event()
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            setattr(one, next((a.name for a in attrs.fields(event)), "x"), 1)
        with pytest.raises(TypeError):
            event(1)


# -- the rules ---------------------------------------------------------------------------------------------


@given(states, st.integers(1, 50))
def test_a_cadence_in_batches_counts_them_over_the_whole_run(state: TrainerState, n: int) -> None:
    """T13, R32: not the batches of an epoch, so it doesn't drift."""
    assert due_after_step((Batches(n),), state, Stepped()) == ((state.global_forward_batches + 1) % n == 0)
    assert not due_at_epoch_end((Batches(n),), state, Exhausted())


@given(states, st.integers(1, 50))
def test_a_cadence_in_epochs_is_due_at_their_ends(state: TrainerState, n: int) -> None:
    """T13."""
    assert due_at_epoch_end((Epochs(n),), state, Exhausted()) == ((state.cur_epoch_idx + 1) % n == 0)
    assert not due_after_step((Epochs(n),), state, Stepped())


@given(states, st.integers(1, 50), st.booleans(), st.booleans())
def test_a_cadence_in_updates_counts_those_that_were_taken(
    state: TrainerState, n: int, closed: bool, skipped: bool
) -> None:
    """R32, C5: of a window, and not of its micro-batches; also of one that an epoch's end closes."""
    due = closed and not skipped and (state.optimizer_steps + 1) % n == 0
    assert due_after_step((Updates(n),), state, Stepped(closed=closed, skipped=skipped)) == due
    assert due_at_epoch_end((Updates(n),), state, Exhausted(flushed=closed, skipped=skipped)) == due


@given(st.fractions(Fraction(1, 20), 4, max_denominator=20), st.integers(1, 30), st.integers(1, 5))
def test_a_cadence_in_parts_is_due_when_the_first_batch_completes_one(part: Fraction, length: int, epochs: int) -> None:
    """R32, C5: counted from the beginning of the run, so that it neither drifts nor starts anew with each epoch."""
    due = []
    for batch in range(epochs * length):
        state = TrainerState(
            state="step", num_batches_per_epoch=length, cur_epoch_idx=batch // length, batch_idx_in_epoch=batch % length
        )
        if due_after_step((Parts(part),), state, Stepped()):
            due.append(batch + 1)
    assert due == sorted({-(-k * part * length // 1) for k in range(1, int(epochs / part) + 1)})


@pytest.mark.parametrize(
    ("cadence", "settings"),
    [(Batches(6), {}), (Updates(3), {"optimizer_steps": 6}), (Parts(Fraction(1, 2)), {}), (Batches(4), None)],
)
def test_what_was_due_after_an_epochs_last_batch_isnt_due_again_at_its_end(
    cadence: Any, settings: dict[str, Any] | None
) -> None:
    """T13, C5."""
    counts = {"batch_idx_in_epoch": 6, "global_forward_batches": 6, "num_batches_per_epoch": 6, **(settings or {})}
    state = TrainerState(state="fetch", **counts)
    assert due_at_epoch_end((cadence, Epochs(1)), state, Exhausted()) == (settings is None)


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5, 7, 8])
@pytest.mark.parametrize("steps", [1, 2, 3, 4, 8])
def test_the_windows_of_an_epoch_partition_it_and_the_last_is_as_long_as_what_is_left(length: int, steps: int) -> None:
    """R06, R23."""
    state, windows = TrainerState(state="step", num_batches_per_epoch=length), []
    for _ in range(length):
        size = window_size(state, steps)
        closed = state.accumulated + 1 >= size
        if state.accumulated:
            assert size == windows[-1], "a window's size is known from its first micro-batch on"
        else:
            windows.append(size)
        state = Stepped(closed=closed).fold(state, "step")
    assert sum(windows) == length
    assert windows == [steps] * (length // steps) + ([length % steps] if length % steps else [])
    assert (state.accumulated, state.optimizer_steps) == (0, -(-length // steps))


def test_a_window_counts_as_full_until_a_loader_of_unknown_length_is_exhausted() -> None:
    """R53."""
    assert window_size(TrainerState(state="step", batch_idx_in_epoch=4, accumulated=1), 3) == 3


def test_a_window_counts_as_full_behind_the_length_that_its_loader_said() -> None:
    """R53: nothing is divided by 0."""
    states = [TrainerState(state="step", num_batches_per_epoch=2, batch_idx_in_epoch=done) for done in range(5)]
    assert [window_size(state, 3) for state in states] == [2, 1, 3, 3, 3]


@pytest.mark.parametrize("tail", ["carry", "drop"])
def test_without_a_flush_every_window_is_a_full_one(tail: str) -> None:
    """R23."""
    state = TrainerState(state="step", num_batches_per_epoch=5, batch_idx_in_epoch=4, accumulated=1)
    assert (window_size(state, 3, tail), window_size(state, 3)) == (3, 2)


def test_a_state_of_the_first_schema_is_read() -> None:
    old = TrainerState(state="fetch", batch_idx_in_epoch=3, samples=24).to_dict()
    del old["place"], old["epoch_cut_asked"], old["validate_due"]
    state = TrainerState.from_dict(old, 1)
    assert (state.place, state.epoch_cut_asked, state.samples) == (0, "", 24)


def test_a_state_of_the_second_schema_is_read() -> None:
    old = TrainerState(state="fetch", batch_idx_in_epoch=3).to_dict()
    del old["validate_due"]
    assert TrainerState.from_dict(old, 2) == TrainerState(state="fetch", batch_idx_in_epoch=3)


def test_a_made_event_is_the_one_that_its_class_makes() -> None:
    make = maker(Stepped, "loss", "lr", "late")
    assert make(0.5, [0.1], (3, 0.25)) == Stepped(loss=0.5, lr=[0.1], late=(3, 0.25))
    assert maker(Fetched, "ids")(7) == Fetched(ids=7)
    with pytest.raises(AttributeError, match="Fetched has no field id"):
        maker(Fetched, "id")
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        make(0.5, [], ()).loss = 1.0
