"""Who hears what, when, with what, and in which order."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tachograph.drivers import StubDriver
from tachograph.engine import Callback, Events, EventsList, Filter, Trainer, marked
from tachograph.engine.callbacks.callback import ALIASES, MOMENTS
from tachograph.engine.events import Moment
from tachograph.states import Fetched, Row, Stepped, training_machine
from tachograph.states.errors import CallerError
from tests.toys import Sum, scribe, stub


@pytest.fixture(autouse=True)
def no_marks() -> Iterator[None]:
    """Functions that were marked for other trainers are none of a test's business."""
    marked._marked.clear()
    yield
    marked._marked.clear()


# -- the moments -------------------------------------------------------------------------------------------


def test_the_moments_and_what_they_give_are_these() -> None:
    """E19, E21, E22, E23: the reference trainer's 24, under both of their names, and ours."""
    assert (
        "\n".join(f"{name}({', '.join(given)})" for name, given in MOMENTS.items())
        == """\
on_after_trainer_initialized(driver)
on_sanity_check_begin()
on_sanity_check_end(sanity_check_res)
on_train_begin()
on_train_end()
on_train_epoch_begin()
on_train_epoch_end()
on_fetch_data_begin()
on_fetch_data_end()
on_train_batch_begin(batch, indices)
on_train_batch_end()
on_exception(exception)
on_save_model()
on_load_model()
on_before_backward(outputs)
on_after_backward()
on_before_optimizer_step(optimizers)
on_after_optimizer_step(optimizers)
on_before_zero_grad(optimizers)
on_after_zero_grad(optimizers)
on_validate_begin()
on_validate_end(results)
on_validate_batch_begin(batch)
on_validate_batch_end()
on_skipped_optimizer_step(optimizers)
on_stop(reason)
on_after_snapshot(path)
on_after_resume(report)
on_log(values)
on_notice(text)"""
    )
    assert ALIASES == {
        "on_evaluate_begin": "on_validate_begin",
        "on_evaluate_end": "on_validate_end",
        "on_before_optimizers_step": "on_before_optimizer_step",
        "on_after_optimizers_step": "on_after_optimizer_step",
    }


def told(name: str, trainer: Any, args: tuple[Any, ...]) -> str:
    s = trainer.trainer_state
    given = ", ".join(type(a).__name__ if isinstance(a, StubDriver) else str(a) for a in args)
    counts = f"{s.seq:>2} {s.cur_epoch_idx} {s.batch_idx_in_epoch} {s.optimizer_steps}"
    return f"{s.state:<12} {counts} {name}({given})"


BEGINNING = """\
init          0 0 0 0 on_after_trainer_initialized(StubDriver)
sanity_check  1 0 0 0 on_sanity_check_begin()
sanity_check  1 0 0 0 on_validate_batch_begin(5)
sanity_check  1 0 0 0 on_validate_batch_end()
epoch_begin   2 0 0 0 on_sanity_check_end({'sum#m': 5, 'n#m': 1})
epoch_begin   2 0 0 0 on_train_begin()
fetch         3 0 0 0 on_train_epoch_begin()
fetch         3 0 0 0 on_fetch_data_begin()
step          4 0 0 0 on_fetch_data_end()
step          4 0 0 0 on_train_batch_begin(10, [0])
step          4 0 0 0 on_before_backward({'loss': 7.0})
step          4 0 0 0 on_after_backward()
fetch         5 0 1 0 on_train_batch_end()
fetch         5 0 1 0 on_fetch_data_begin()
step          6 0 1 0 on_fetch_data_end()
step          6 0 1 0 on_train_batch_begin(20, [1])
step          6 0 1 0 on_before_backward({'loss': 7.0})
step          6 0 1 0 on_after_backward()
step          6 0 1 0 on_before_optimizer_step(['adam'])
step          6 0 1 0 on_after_optimizer_step(['adam'])
step          6 0 1 0 on_before_zero_grad(['adam'])
step          6 0 1 0 on_after_zero_grad(['adam'])
"""

BY_STEP = """\
validate      7 0 2 1 on_train_batch_end()
validate      7 0 2 1 on_validate_begin()
validate      7 0 2 1 on_validate_batch_begin(5)
validate      7 0 2 1 on_validate_batch_end()
validate      7 0 2 1 on_validate_batch_begin(6)
validate      7 0 2 1 on_validate_batch_end()
fetch         8 0 2 1 on_validate_end({'sum#m': 11, 'n#m': 2})
fetch         8 0 2 1 on_fetch_data_begin()
step          9 0 2 1 on_fetch_data_end()
step          9 0 2 1 on_train_batch_begin(30, [2])
step          9 0 2 1 on_before_backward({'loss': 7.0})
step          9 0 2 1 on_after_backward()
step          9 0 2 1 on_before_optimizer_step(['adam'])
step          9 0 2 1 on_after_optimizer_step(['adam'])
step          9 0 2 1 on_before_zero_grad(['adam'])
step          9 0 2 1 on_after_zero_grad(['adam'])
fetch        10 0 3 2 on_train_batch_end()
fetch        10 0 3 2 on_fetch_data_begin()
epoch_end    11 0 3 2 on_fetch_data_end()
done         12 1 0 2 on_train_epoch_end()
done         12 1 0 2 on_train_end()
"""

BY_EPOCH = """\
fetch         7 0 2 1 on_train_batch_end()
fetch         7 0 2 1 on_fetch_data_begin()
step          8 0 2 1 on_fetch_data_end()
step          8 0 2 1 on_train_batch_begin(30, [2])
step          8 0 2 1 on_before_backward({'loss': 7.0})
step          8 0 2 1 on_after_backward()
step          8 0 2 1 on_before_optimizer_step(['adam'])
step          8 0 2 1 on_after_optimizer_step(['adam'])
step          8 0 2 1 on_before_zero_grad(['adam'])
step          8 0 2 1 on_after_zero_grad(['adam'])
fetch         9 0 3 2 on_train_batch_end()
fetch         9 0 3 2 on_fetch_data_begin()
validate     10 0 3 2 on_fetch_data_end()
validate     10 0 3 2 on_validate_begin()
validate     10 0 3 2 on_validate_batch_begin(5)
validate     10 0 3 2 on_validate_batch_end()
validate     10 0 3 2 on_validate_batch_begin(6)
validate     10 0 3 2 on_validate_batch_end()
epoch_end    11 0 3 2 on_validate_end({'sum#m': 11, 'n#m': 2})
done         12 1 0 2 on_train_epoch_end()
done         12 1 0 2 on_train_end()
"""


@pytest.mark.parametrize(("every", "rest"), [(2, BY_STEP), (-1, BY_EPOCH)])
def test_a_run_is_heard_in_this_order_with_these_counters_and_arguments(every: int, rest: str) -> None:
    """A2.R4, A2.R8, A2.R9, L1, L2, L4, L5, L6, L7, E1, E2, E3, E4, E5, E6, E7, E8, E9, E10, E11.

    E17, E18, E19, E20, E21, E22, E23, E24. Columns are the committed state, seq, epoch, batch in epoch, optimizer
    steps. An epoch's validation comes before its end, so that `on_train_epoch_end` sees its results.
    """
    log: list[str] = []
    trainer = Trainer(
        None,
        StubDriver(loss=lambda batch, n: 7.0),
        [10, 20, 30],
        ["adam"],
        n_epochs=1,
        accumulation_steps=2,
        metrics={"m": Sum()},
        validate_dataloaders=[5, 6],
        validate_every=every,
        callbacks=scribe(log, told),
        run_dir=None,
        progress_bar=None,
    )
    trainer.run(num_eval_sanity_batch=1)
    assert "".join(f"{line}\n" for line in log) == BEGINNING + rest


def test_begins_and_ends_pair_over_an_epoch_of_n_batches_and_its_exhaustion() -> None:
    """L2, C2: the loader is asked n + 1 times, and each time has its end."""
    log: list[str] = []
    stub([1] * 10, n_epochs=1, callbacks=scribe(log)).run()
    counts = {name: log.count(name) for name in MOMENTS}
    assert counts["on_fetch_data_begin"] == counts["on_fetch_data_end"] == 11
    assert counts["on_train_batch_begin"] == counts["on_train_batch_end"] == 10
    assert counts["on_train_epoch_begin"] == counts["on_train_epoch_end"] == 1
    assert counts["on_train_begin"] == counts["on_train_end"] == 1


def test_an_error_is_heard_once_before_the_end_of_training() -> None:
    """A2.R9, A2.R11, E5, E12: the ends are heard after an error too, and the error is handed over as it is."""
    log: list[str] = []
    heard: list[BaseException] = []

    def strike(driver: StubDriver) -> None:
        if len(driver.seen) == 1:
            raise ArithmeticError("no")

    trainer = stub([1, 2], StubDriver(on={"train_step": strike}), callbacks=scribe(log))
    trainer.on(Events.on_exception, lambda t, exception: heard.append(exception))
    with pytest.raises(ArithmeticError) as caught:
        trainer.run()
    assert heard == [caught.value]
    assert log[-3:] == ["on_train_batch_begin", "on_exception", "on_train_end"]


def test_an_error_of_the_loader_is_heard_after_the_end_of_the_fetch() -> None:
    """C2: begin and end pair on errors too."""
    log: list[str] = []

    def strike(driver: StubDriver) -> None:
        raise OSError("the disk")

    trainer = stub([1, 2], StubDriver(on={"next_batch": strike}), callbacks=scribe(log))
    with pytest.raises(OSError, match="the disk"):
        trainer.run()
    assert log[-4:] == ["on_fetch_data_begin", "on_fetch_data_end", "on_exception", "on_train_end"]


def test_a_skipped_update_is_told_between_its_begin_and_its_end() -> None:
    log: list[str] = []
    stub([1, 2], StubDriver(skip=[1]), n_epochs=1, callbacks=scribe(log)).run()
    around = [name for name in log if "optimizer" in name]
    assert around == [
        "on_before_optimizer_step",
        "on_after_optimizer_step",
        "on_before_optimizer_step",
        "on_skipped_optimizer_step",
        "on_after_optimizer_step",
    ]


def test_moments_of_the_recording_are_heard_with_their_arguments(run_dir: Path) -> None:
    """C2: after a snapshot, after a resume, on stop."""
    log: list[str] = []

    def note(name: str, trainer: Any, args: tuple[Any, ...]) -> str:
        return f"{name} {getattr(args[0], 'name', args[0])}" if name == "on_after_snapshot" else name

    def fresh(**settings: Any) -> Trainer:
        return stub([1], run_dir=run_dir, callbacks=scribe(log, note), **settings)

    fresh(n_epochs=1).run()
    assert log[-1] == "on_after_snapshot 000000000005"
    log.clear()
    second = fresh(n_epochs=3)
    reports: list[Any] = []
    second.on(Events.on_after_resume, lambda trainer, report: reports.append(report))
    second.run(resume_from="auto")
    assert log[:4] == ["on_after_trainer_initialized", "on_notice", "on_notice", "on_after_resume"]
    (report,) = reports
    assert (report.run_dir, report.snapshot.name, report.seq, report.to_match) == (run_dir, "000000000005", 5, 0)
    assert report.passed_over == []


# -- order -------------------------------------------------------------------------------------------------


class Says(Callback):
    def __init__(self, log: list[str], word: str) -> None:
        self._log, self._word = log, word

    def on_train_begin(self, trainer: Any) -> None:
        self._log.append(self._word)


def test_marked_functions_are_heard_first_then_callbacks_then_functions_added_later() -> None:
    """S4."""
    log: list[str] = []

    @Trainer.on(Events.on_train_begin)
    def one(trainer: Any) -> None:
        log.append("marked")

    trainer = stub([1], n_epochs=1, callbacks=[Says(log, "first"), Says(log, "second")])
    trainer.add_callback_fn(Events.on_train_begin, lambda trainer: log.append("added"))
    trainer.on(Events.on_train_begin, lambda trainer: log.append("on"))
    trainer.run()
    assert log == ["marked", "first", "second", "added", "on"]


def test_a_higher_priority_is_heard_earlier_and_equal_ones_in_their_order() -> None:
    """C3."""
    log: list[str] = []
    trainer = stub([1], n_epochs=1, callbacks=Says(log, "callback"))
    for priority, word in ((0, "a"), (-1, "late"), (5, "early"), (0, "b"), (5, "early too")):
        trainer.on("on_train_begin", lambda trainer, word=word: log.append(word), priority=priority)
    trainer.run()
    assert log == ["early", "early too", "callback", "a", "b", "late"]


def test_moments_of_a_transition_are_heard_before_its_other_listeners() -> None:
    log: list[str] = []
    trainer = stub([1], n_epochs=1)
    trainer.on("step -> fetch", lambda trainer: log.append("transition"))
    trainer.on("fetch", lambda trainer: log.append("state"))
    trainer.on(Stepped, lambda trainer, event: log.append("event"))
    trainer.on(Events.on_fetch_data_begin, lambda trainer: log.append("begin"))
    trainer.on(Events.on_train_batch_end, lambda trainer: log.append("end"))
    trainer.run()
    assert log == ["begin", "state", "end", "begin", "transition", "state", "event"]


# -- targets -----------------------------------------------------------------------------------------------


def test_a_listener_hears_moments_events_states_and_transitions_each_by_name_or_value() -> None:
    """C3."""
    log: list[str] = []
    trainer = stub([1, 2], n_epochs=1, metrics={"m": Sum()}, validate_dataloaders=[1], validate_every=2)
    for target in (
        *(Events.on_validate_begin, "on_validate_begin", "on_evaluate_begin", Events.on_evaluate_begin),
        *("step -> validate", "step->validate", "validate", Stepped, "Stepped"),
    ):
        trainer.on(target, lambda trainer, target=target: log.append(getattr(target, "__name__", str(target))))
    trainer.run(num_eval_sanity_batch=0)
    assert sorted(log) == sorted(
        [*["on_validate_begin"] * 3, "on_evaluate_begin", "step -> validate", "step->validate", "validate"]
        + ["Stepped"] * 4
    )


def test_a_listener_of_an_event_gets_it_if_it_takes_two_arguments() -> None:
    one: list[Any] = []
    two: list[Any] = []
    trainer = stub([1, 2], StubDriver(loss=lambda batch, n: float(n)), n_epochs=1)
    trainer.on(Stepped, lambda *given: one.append(given))
    trainer.on("step -> fetch", lambda trainer, event: two.append(event.loss))
    trainer.on("step", lambda trainer: two.append("in step"))
    trainer.run()
    assert [(t is trainer, type(e)) for t, e in one] == [(True, Stepped)] * 2
    assert two == ["in step", 0.0, "in step", 1.0]


@pytest.mark.parametrize(
    ("targets", "heard"),
    [
        (Events.on_train_begin | Events.on_train_batch_end(every=2), "1 6"),
        (Events.on_train_begin | (Events.on_train_batch_end(every=2) | Events.on_train_end), "1 6 8"),
        (Events.on_train_begin | "step -> fetch" | Fetched, "1 3 4 5 6"),
        ("step" | Events.on_train_begin, "1 3 5"),
        (Stepped | Events.on_train_begin, "1 4 6"),
        (Stepped | Fetched, "3 4 5 6"),
        ("step" | (Events.on_train_begin | Events.on_train_end), "1 3 5 8"),
        ([Events.on_train_begin, "step"], "1 3 5"),
        (Events.on_train_batch_end(every=2) | Events.on_train_batch_end(once=1), "4 6"),
    ],
)
def test_several_targets_are_joined_by_a_bar(targets: Any, heard: str) -> None:
    """S5, B4."""
    log: list[str] = []
    trainer = stub([1, 2], n_epochs=1)
    trainer.on(targets, lambda trainer: log.append(str(trainer.trainer_state.seq)))
    trainer.run()
    assert " ".join(log) == heard


def test_a_list_of_targets_can_be_looked_at() -> None:
    """S5."""
    joined = Events.on_train_begin | Events.on_train_batch_end(every=3)
    assert isinstance(joined, EventsList)
    assert len(joined) == 2
    assert list(joined) == ["on_train_begin", "on_train_batch_end"]
    assert joined[1] == Events.on_train_batch_end
    assert joined[1].filter.every == 3


def test_a_marked_function_may_hear_several_targets_with_a_filter_each() -> None:
    """B4, S5."""
    log: list[int] = []

    @Trainer.on(Events.on_train_begin | Events.on_train_batch_end(every=2))
    def note(trainer: Any) -> None:
        log.append(trainer.trainer_state.seq)

    stub([1, 2, 3, 4], n_epochs=1).run()
    assert log == [1, 6, 10]


def test_moments_are_equal_by_name_and_can_be_compared_with_anything() -> None:
    """F10, B25."""
    assert Events.on_train_begin == Events.on_train_begin(every=3) == "on_train_begin"
    assert Events.on_train_begin != Events.on_train_end
    assert Events.on_train_begin != 3
    assert Events.on_train_begin != None  # noqa: E711
    assert len({Events.on_train_begin, Events.on_train_begin(once=1), Events.on_evaluate_end}) == 2
    assert Events.on_evaluate_end == Events.on_validate_end
    assert str(Events.on_train_begin) == "on_train_begin"
    assert [str(m) for m in Events] == list(MOMENTS)
    assert set(MOMENTS) <= set(dir(Events))
    assert hasattr(Events, "on_train_begin")
    assert not hasattr(Events, "on_tea_break")
    assert isinstance(Events.on_train_begin, Moment)


# -- what is refused ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "said"),
    [
        (
            "on_train_bach_end",
            "there is no moment, state or event 'on_train_bach_end'. Did you mean 'on_train_batch_end'",
        ),
        ("stepp", "there is no moment, state or event 'stepp'. Did you mean 'step'"),
        ("stap -> fetch", "the machine has no state 'stap'. Did you mean 'step'"),
        ("step -> done ", None),
        (
            "step -> epoch_end",
            "no row of the machine leads step -> epoch_end. Known: step -> done, step -> exception, ",
        ),
        (3, "a listener hears a moment, an event, a state or a transition, not int"),
        (None, "a listener hears a moment, an event, a state or a transition, not NoneType"),
        (Callback, "a listener hears a moment, an event, a state or a transition, not the class Callback"),
    ],
)
def test_a_target_that_does_not_exist_is_refused_with_the_nearest_names(target: Any, said: str | None) -> None:
    """S3."""
    trainer = stub()
    if said is None:
        trainer.on(target, print)
        return
    for subscribe in (trainer.add_callback_fn, trainer.on):
        with pytest.raises(CallerError) as caught:
            subscribe(target, lambda trainer: None)
        assert str(caught.value).startswith(said)
        assert isinstance(caught.value, ValueError)


def test_a_moment_that_does_not_exist_is_no_attribute_and_the_nearest_are_offered() -> None:
    with pytest.raises(
        AttributeError, match=r"there is no moment 'on_train_bach_end'. Did you mean 'on_train_batch_end'"
    ):
        Events.on_train_bach_end


@pytest.mark.parametrize(
    ("target", "fn", "said"),
    [
        (
            "on_train_begin",
            lambda: None,
            r"on_train_begin calls its listeners with \(trainer\), which .*<lambda>\(\) can't",
        ),
        ("on_train_begin", lambda trainer, more: None, r"\(trainer\), which .*<lambda>\(trainer, more\) can't take"),
        ("on_train_batch_begin", lambda trainer: None, r"with \(trainer, batch, indices\), which"),
        ("on_evaluate_end", lambda trainer: None, r"on_validate_end calls its listeners with \(trainer, results\)"),
        ("step -> fetch", lambda: None, r"step -> fetch calls its listeners with \(trainer\) or \(trainer, event\)"),
        (
            Stepped,
            lambda trainer, event, more: None,
            r"Stepped calls its listeners with \(trainer\) or \(trainer, event\)",
        ),
        ("on_train_begin", 3, "a listener must be callable, not int"),
    ],
)
def test_a_function_that_cannot_take_what_it_would_be_given_is_refused(target: Any, fn: Any, said: str) -> None:
    """S1."""
    trainer = stub()
    with pytest.raises(CallerError, match=said):
        trainer.on(target, fn)
    with pytest.raises(CallerError, match=said):
        Trainer.on(target)(fn)


def test_a_function_that_was_refused_for_one_target_is_kept_for_none() -> None:
    """B24."""
    log: list[str] = []

    def one(trainer: Any) -> None:
        log.append("heard")

    with pytest.raises(CallerError):
        Trainer.on(Events.on_train_begin | Events.on_train_batch_begin)(one)
    trainer = stub([1], n_epochs=1)
    with pytest.raises(CallerError):
        trainer.on(Events.on_train_begin | Events.on_train_batch_begin, one)
    trainer.run()
    assert log == []


def test_a_method_of_a_callback_with_the_wrong_arguments_is_refused_when_the_trainer_is_built() -> None:
    class Wrong(Callback):
        def on_validate_end(self, trainer: Any) -> None:  # type: ignore[override]
            pass

    with pytest.raises(
        CallerError, match=r"on_validate_end calls its listeners with \(trainer, results\), which .*Wrong"
    ):
        stub(callbacks=Wrong())


# -- marks -------------------------------------------------------------------------------------------------


def test_a_mark_returns_the_function_unchanged() -> None:
    """S1."""

    def one(trainer: Any) -> None:
        pass

    assert Trainer.on(Events.on_train_begin)(one) is one
    trainer = stub()
    assert trainer.on(Events.on_train_begin)(one) is one


def heard_by(marker: str | None) -> list[str]:
    log: list[str] = []
    trainer = stub([1], n_epochs=1, marker=marker)
    trainer.state["log"] = log
    trainer.run()
    return log


def test_a_function_belongs_to_the_next_trainer_or_to_all_or_to_those_of_its_marker() -> None:
    """S2, T20."""
    for marker in (None, "all", "mine"):

        @Trainer.on(Events.on_train_begin, marker=marker)
        def note(trainer: Any, marker: str = str(marker)) -> None:
            trainer.state["log"].append(marker)

    assert heard_by(None) == ["None", "all"]
    assert heard_by(None) == ["all"]
    assert heard_by("mine") == ["all", "mine"]
    assert heard_by("mine") == ["all", "mine"]
    assert heard_by("all") == ["all"]


def test_a_marker_that_no_function_has_is_told() -> None:
    """S2."""
    with pytest.warns(UserWarning, match="no function is marked 'theirs'"):
        assert heard_by("theirs") == []


def test_marked_functions_with_filters_count_for_each_trainer_by_itself() -> None:
    """S2, S5."""

    @Trainer.on(Events.on_train_batch_end(every=2), marker="all")
    @Filter(every=1)
    def note(trainer: Any) -> None:
        trainer.state["log"].append(str(trainer.global_forward_batches))

    for _ in range(2):
        trainer = stub([1, 2, 3], n_epochs=1)
        trainer.state["log"] = []
        trainer.run()
        assert trainer.state["log"] == ["2"]


def test_a_trainer_that_could_not_be_built_has_taken_no_function_away() -> None:
    """S2."""
    log: list[str] = []

    @Trainer.on(Events.on_train_begin)
    def one(trainer: Any) -> None:
        log.append("heard")

    for wrong in ({"n_epochs": -1}, {"callbacks": 3}, {"callbacks": [3]}, {"snapshot_every": -1}):
        with pytest.raises(CallerError):
            stub(**wrong)
    stub([1], n_epochs=1).run()
    assert log == ["heard"]


# -- handles -----------------------------------------------------------------------------------------------


def test_a_subscription_can_be_taken_back_and_taking_it_back_twice_does_nothing() -> None:
    """S7."""
    log: list[str] = []
    trainer = stub([1], n_epochs=1)
    handle = trainer.on(Events.on_train_begin | Events.on_train_end | Stepped, lambda trainer: log.append("gone"))
    kept = trainer.on(Events.on_train_begin, lambda trainer: log.append("kept"))
    handle.remove()
    handle.remove()
    with trainer.on(Events.on_train_begin, lambda trainer: log.append("in the block")):
        pass
    trainer.run()
    assert log == ["kept"]
    kept.remove()


def test_a_listener_may_take_itself_back_while_it_is_called() -> None:
    """S7."""
    log: list[int] = []
    trainer = stub([1, 2, 3], n_epochs=1)

    def once(trainer: Any) -> None:
        log.append(trainer.global_forward_batches)
        handle.remove()

    handle = trainer.on(Events.on_train_batch_end, once)
    trainer.on(Events.on_train_batch_end, lambda trainer: log.append(-trainer.global_forward_batches))
    trainer.run()
    assert log == [1, -1, -2, -3]


def test_a_listener_may_subscribe_another_while_it_is_called() -> None:
    log: list[int] = []
    trainer = stub([1, 2, 3], n_epochs=1)

    def first(trainer: Any) -> None:
        trainer.on(Events.on_train_batch_end, lambda trainer: log.append(trainer.global_forward_batches))

    trainer.on(Events.on_train_batch_end(once=2), first)
    trainer.run()
    assert log == [3]


# -- callbacks ---------------------------------------------------------------------------------------------


def test_a_moment_is_heard_if_it_is_overridden_however_it_was_written() -> None:
    """S6, B6, N3: no source text is looked at."""
    space: dict[str, Any] = {"Callback": Callback, "log": []}
    exec(
        "class Typed(Callback):\n"
        "    def on_train_begin(self, trainer):\n"
        "        log.append('typed')\n"
        "class Child(Typed):\n"
        "    pass\n"
        "class Empty(Callback):\n"
        "    pass\n",
        space,
    )
    given = space["Child"]()
    given.on_train_end = lambda trainer: space["log"].append("set on the instance")
    trainer = stub([1], n_epochs=1, callbacks=[given, space["Empty"]()])
    trainer.run()
    assert space["log"] == ["typed", "set on the instance"]
    assert list(trainer.listeners.callbacks) == ["Child", "Empty"]


def test_a_callback_may_override_a_moment_under_its_later_name() -> None:
    """E19, E21, E22, E23."""

    class Later(Callback):
        def __init__(self) -> None:
            self.heard: list[str] = []

        def on_evaluate_begin(self, trainer: Any) -> None:
            self.heard.append("begin")

        def on_evaluate_end(self, trainer: Any, results: dict[str, Any]) -> None:
            self.heard.append(f"end {results}")

        def on_before_optimizers_step(self, trainer: Any, optimizers: Any) -> None:
            self.heard.append("before")

        def on_after_optimizers_step(self, trainer: Any, optimizers: Any) -> None:
            self.heard.append("after")

    later = Later()
    stub([1], n_epochs=1, metrics={"m": Sum()}, validate_dataloaders=[1], callbacks=later).run(num_eval_sanity_batch=0)
    assert later.heard == ["before", "after", "begin", "end {'sum#m': 1, 'n#m': 1}"]


def test_a_listener_sees_the_live_trainer_and_may_change_its_counters() -> None:
    """S10, ST4."""
    trainer = stub([1, 2], n_epochs=1)

    @trainer.on(Events.on_train_batch_end(once=1))
    def more(trainer: Any) -> None:
        trainer.n_epochs = 3

    assert trainer.run().cur_epoch_idx == 3


def test_an_error_in_a_listener_ends_the_run_and_says_where_it_struck() -> None:
    """S8."""
    trainer = stub([1, 2, 3])
    log: list[str] = []

    @trainer.on(Events.on_train_batch_end(once=2))
    def strike(trainer: Any) -> None:
        raise LookupError("in the listener")

    trainer.on(Events.on_train_batch_end, lambda trainer: log.append("after it"))
    with pytest.raises(LookupError) as caught:
        trainer.run()
    assert caught.value.__notes__ == ["in state 'fetch', epoch 0, batch 2, after transition 6"]  # type: ignore[attr-defined]
    assert log == ["after it"]
    assert trainer.trainer_state.state == "exception"


def test_a_machine_of_a_user_s_own_can_be_subscribed_to_by_its_own_names() -> None:
    from tachograph.engine.listeners import Listeners

    listeners = Listeners(training_machine([Row("step", Stepped, "distill"), Row("distill", Fetched, "fetch")]))
    listeners.add("step -> distill", lambda trainer: None)
    listeners.add("distill", lambda trainer: None)
    with pytest.raises(CallerError, match=r"there is no moment, state or event 'distil'. Did you mean 'distill'"):
        listeners.add("distil", lambda trainer: None)
