"""Filters: which calls of a listener go through, decided from counts that are kept with the run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tachograph.drivers import StubDriver
from tachograph.engine import Callback, Events, Filter
from tachograph.states.errors import CallerError
from tests.toys import Sum, stub

TEN = list(range(10))


def calls(thin: Filter) -> list[int]:
    """The numbers of those calls, of twelve, that a filter lets through."""
    return [n for n in range(1, 13) if thin.passes(None)]


@pytest.mark.parametrize(
    ("condition", "through"),
    [
        ({}, list(range(1, 13))),
        ({"every": 1}, list(range(1, 13))),
        ({"every": 2}, [2, 4, 6, 8, 10, 12]),
        ({"every": 5}, [5, 10]),
        ({"once": 1}, [1]),
        ({"once": 4}, [4]),
        ({"once": [3, 5, 3]}, [3, 5]),
        ({"once": (12,)}, [12]),
        ({"before": 4}, [1, 2, 3]),
        ({"before": 1}, []),
        ({"after": 9}, [10, 11, 12]),
        ({"after": 0}, list(range(1, 13))),
        ({"before": 8, "after": 5}, [6, 7]),
        ({"filter_fn": lambda filter, trainer: filter.num_called in (2, 3)}, [2, 3]),
        ({"filter_fn": lambda filter, trainer: filter.num_executed < 2}, [1, 2]),
    ],
)
def test_a_filter_counts_from_one_and_lets_through_what_it_says(condition: dict[str, Any], through: list[int]) -> None:
    """F1, F2, F3, F4, C3."""
    thin = Filter(**condition)
    assert calls(thin) == through
    assert (thin.num_called, thin.num_executed) == (12, len(through))


@pytest.mark.parametrize(
    "several",
    [
        {"every": 2, "once": 3},
        {"every": 2, "filter_fn": lambda f, t: True},
        {"once": 2, "before": 5},
        {"filter_fn": lambda f, t: True, "after": 5},
        {"every": 2, "once": 3, "filter_fn": lambda f, t: True},
    ],
)
def test_a_filter_takes_one_condition(several: dict[str, Any]) -> None:
    """F1, B2: three at once were taken."""
    with pytest.raises(CallerError, match="takes one of every, once, filter_fn and before/after, not several"):
        Filter(**several)
    with pytest.raises(ValueError):
        Events.on_train_begin(**several)


@pytest.mark.parametrize(
    ("condition", "said"),
    [
        ({"every": 0}, r"Filter\(every=...\) must be an integer >= 1, not 0"),
        ({"every": True}, r"Filter\(every=...\) must be an integer >= 1, not True"),
        ({"every": 2.0}, r"Filter\(every=...\) must be an integer >= 1, not 2.0"),
        ({"once": 0}, r"Filter\(once=...\) must be an integer > 0 or a list of them, not 0"),
        ({"once": []}, r"Filter\(once=...\) must be an integer > 0 or a list of them, not \[\]"),
        ({"once": [1, 0]}, r"Filter\(once=...\) must be an integer > 0 or a list of them, not \[1, 0\]"),
        ({"once": True}, r"Filter\(once=...\) must be an integer > 0 or a list of them, not True"),
        ({"before": 0}, r"Filter\(before=...\) must be an integer >= 1, not 0"),
        ({"after": -1}, r"Filter\(after=...\) must be an integer >= 0, not -1"),
        ({"filter_fn": 3}, r"Filter\(filter_fn=...\) must be callable, not int"),
    ],
)
def test_a_condition_of_the_wrong_kind_is_refused_by_its_name(condition: dict[str, Any], said: str) -> None:
    """F2, F3, F4."""
    with pytest.raises(CallerError, match=said) as caught:
        Filter(**condition)
    assert isinstance(caught.value, TypeError)
    assert isinstance(caught.value, ValueError)


def test_a_filter_keeps_its_counts_as_plain_data() -> None:
    """F7."""
    thin, other = Filter(every=3), Filter(every=3)
    for _ in range(4):
        thin.passes(None)
    assert thin.state_dict() == {"num_called": 4, "num_executed": 1}
    other.load_state_dict(thin.state_dict())
    assert [other.passes(None) for _ in range(3)] == [False, True, False]


def test_a_filter_decorates_a_function_and_what_is_held_back_returns_none() -> None:
    """F5, F6, F8: one filter around two functions keeps one count."""
    thin = Filter(every=2)

    @thin
    def one(x: int) -> int:
        """Say one."""
        return x

    @thin
    def other(x: int) -> int:
        return -x

    assert (one.__name__, one.__doc__) == ("one", "Say one.")
    assert one.__tachograph_filter__ is thin  # type: ignore[attr-defined]
    assert [one(1), other(2), one(3), one(4)] == [None, -2, None, 4]
    assert (thin.num_called, thin.num_executed) == (4, 2)


def test_a_filter_function_gets_the_filter_and_the_trainer() -> None:
    """F4."""
    asked: list[tuple[type, int, int]] = []

    def odd_batch(filter: Filter, trainer: Any) -> bool:
        asked.append((type(filter), filter.num_called, trainer.trainer_state.global_forward_batches))
        return bool(trainer.trainer_state.global_forward_batches % 2)

    heard: list[int] = []
    trainer = stub([1, 2, 3], n_epochs=1)
    trainer.on(Events.on_train_batch_end(filter_fn=odd_batch), lambda t: heard.append(t.global_forward_batches))
    trainer.run()
    assert asked == [(Filter, 1, 1), (Filter, 2, 2), (Filter, 3, 3)]
    assert heard == [1, 3]


def test_a_method_of_a_callback_is_thinned_for_each_instance_by_itself() -> None:
    """F6, R42."""

    class Thinned(Callback):
        def __init__(self) -> None:
            self.heard: list[int] = []

        @Filter(every=4)
        def on_train_batch_end(self, trainer: Any) -> None:
            self.heard.append(trainer.trainer_state.global_forward_batches)

    one, other = Thinned(), Thinned()
    stub(TEN, n_epochs=1, callbacks=[one, other]).run()
    assert one.heard == other.heard == [4, 8]
    assert Thinned.on_train_batch_end.__name__ == "on_train_batch_end"


def test_a_decorated_function_counts_for_each_trainer_by_itself() -> None:
    heard: list[int] = []

    @Filter(once=[2, 3])
    def note(trainer: Any) -> None:
        heard.append(trainer.trainer_state.global_forward_batches)

    for _ in range(2):
        trainer = stub([1, 2, 3, 4], n_epochs=1)
        trainer.on(Events.on_train_batch_end, note)
        trainer.run()
    assert heard == [2, 3, 2, 3]


def test_a_thinned_moment_may_be_kept_in_a_name_and_used_again() -> None:
    """S5: each subscription has a filter of its own."""
    second = Events.on_train_batch_end(every=2)
    heard: list[str] = []
    trainer = stub([1, 2, 3, 4], n_epochs=1)
    trainer.on(second, lambda t: heard.append(f"a{t.global_forward_batches}"))
    trainer.on(second, lambda t: heard.append(f"b{t.global_forward_batches}"))
    trainer.run()
    assert heard == ["a2", "b2", "a4", "b4"]


def test_the_sanity_check_counts_for_nothing_that_hangs_on_validations() -> None:
    """F9."""
    heard: list[int] = []
    trainer = stub([1], n_epochs=4, metrics={"m": Sum()}, validate_dataloaders=[1])
    trainer.on(Events.on_validate_end(every=2), lambda t, results: heard.append(t.trainer_state.validations))
    trainer.run(num_eval_sanity_batch=2)
    assert heard == [2, 4]


# -- over a resume -----------------------------------------------------------------------------------------


class Every3(Callback):
    """Hears every third batch, by a filter on its method, and tells a list."""

    def __init__(self, heard: list[str], name: str) -> None:
        self._heard, self._name = heard, name

    @Filter(every=3)
    def on_train_batch_end(self, trainer: Any) -> None:
        self._heard.append(f"{self._name}{trainer.trainer_state.global_forward_batches}")


def listening(run_dir: Path | None, heard: list[str], **settings: Any) -> Any:
    callbacks = [Every3(heard, "x"), Every3(heard, "y")]
    settings = {"n_epochs": 1, "run_dir": run_dir, "callbacks": callbacks, "snapshot_every": None, **settings}
    trainer = stub(TEN, **settings)

    def note(name: str) -> Callable[..., None]:
        return lambda t, *args: heard.append(f"{name}{t.global_forward_batches}")

    trainer.on(Events.on_train_batch_end(every=4), note("m"))
    trainer.on(Events.on_train_batch_end(every=4), note("n"))
    trainer.on(Events.on_train_batch_end(once=[1, 6]) | Events.on_train_batch_end(after=8), note("o"))
    return trainer


STRAIGHT = "o1 x3 y3 m4 n4 x6 y6 o6 m8 n8 x9 y9 o9 o10"


def test_filters_without_an_interruption_let_through_what_they_say() -> None:
    heard: list[str] = []
    listening(None, heard).run()
    assert " ".join(heard) == STRAIGHT


@pytest.mark.parametrize("k", range(1, 10))
def test_every_filter_goes_on_counting_where_it_stood_when_the_run_was_stopped(run_dir: Path, k: int) -> None:
    """F7, B5: each of several filters of one callback, and of two callbacks of one class, has its own counts kept."""
    heard: list[str] = []
    listening(run_dir, heard, n_batches=k).run()
    again = listening(run_dir, heard)
    again.run(resume_from="auto")
    assert " ".join(heard) == STRAIGHT
    assert again.trainer_state.global_forward_batches == 10


def test_two_moments_of_one_callback_that_are_one_under_two_names_keep_two_counts(run_dir: Path) -> None:
    class Twice(Callback):
        def __init__(self) -> None:
            self.heard: list[str] = []

        @Filter(every=2)
        def on_validate_begin(self, trainer: Any) -> None:
            self.heard.append(f"v{trainer.trainer_state.validations}")

        @Filter(every=3)
        def on_evaluate_begin(self, trainer: Any) -> None:
            self.heard.append(f"e{trainer.trainer_state.validations}")

    def fresh(n_epochs: int) -> tuple[Any, Twice]:
        twice = Twice()
        settings = {"metrics": {"m": Sum()}, "validate_dataloaders": [1], "callbacks": twice, "run_dir": run_dir}
        return stub([1], n_epochs=n_epochs, **settings), twice

    fresh(3)[0].run()
    trainer, twice = fresh(6)
    trainer.run(resume_from="auto")
    assert twice.heard == ["v3", "v5", "e5"]


def test_a_filter_counts_transitions_that_were_announced_before_the_crash_although_it_stays_silent(
    run_dir: Path,
) -> None:
    """R56: after a resume, a logger is called for the same batches as without it, each once."""

    class Log(Callback):
        outside_effects = True

        def __init__(self, lines: list[int]) -> None:
            self._lines = lines

        @Filter(every=2)
        def on_train_batch_end(self, trainer: Any) -> None:
            self._lines.append(trainer.trainer_state.global_forward_batches)

    def crash(driver: StubDriver) -> None:
        if len(driver.seen) == 6:
            raise SystemError("the power goes")

    lines: list[int] = []
    first = stub(TEN, StubDriver(on={"train_step": crash}), n_epochs=1, run_dir=run_dir, callbacks=Log(lines))
    first.on(Events.on_train_batch_end(once=3), lambda t: t.request_snapshot())
    with pytest.raises(SystemError):
        first.run()
    assert lines == [2, 4, 6]
    again = stub(TEN, n_epochs=1, run_dir=run_dir, callbacks=Log(lines))
    again.on(Events.on_train_batch_end(once=3), lambda t: t.request_snapshot())
    again.run(resume_from=run_dir)
    assert lines == [2, 4, 6, 8, 10]
