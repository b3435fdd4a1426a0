"""What a user subscribes by mistake is refused, or told of, when it's subscribed; filters may be stacked."""

from __future__ import annotations

import functools
import logging
import re
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tachograph.engine import Callback, Events, Filter, Trainer, marked
from tachograph.engine.callbacks.callback import ALIASES, MOMENTS
from tachograph.engine.elsewhere import MOMENTS_ELSEWHERE
from tachograph.states import Stepped
from tachograph.states.errors import CallerError
from tests.toys import stub


@pytest.fixture(autouse=True)
def no_marks() -> Iterator[None]:
    marked._marked.clear()
    yield
    marked._marked.clear()


async def later(trainer: Any) -> None: ...


async def always(filter: Any, trainer: Any) -> bool:
    return True


def lazy(trainer: Any) -> Iterator[None]:
    yield


class Asked:
    """A listener that is no function."""

    def __call__(self, trainer: Any) -> None: ...


# -- refused -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "fn", "said"),
    [
        ("step", later, "a listener is called and not awaited: later must be a plain function"),
        ("step", lazy, "a listener is called and not iterated over: lazy must be a plain function"),
        ("step", functools.partial(later), "a listener is called and not awaited"),
        ("step", Filter(every=2)(lazy), "a listener is called and not iterated over: lazy must be a plain function"),
        ([], print, "there is nothing to hear: give one target at least"),
        ("step -> fetch -> step", print, "the machine has no state 'fetch -> step'"),
        ("-> fetch", print, "the machine has no state ''"),
        (Events, print, "a listener hears a moment, an event, a state or a transition, not Events"),
        ([Events.on_train_begin, ["step"]], print, "a listener hears a moment, an event, a state or a transition, not"),
        ("step", Callback(), "a listener must be callable, not Callback"),
    ],
)
def test_what_would_never_be_heard_is_refused(target: Any, fn: Any, said: str) -> None:
    """S1, S3, C3."""
    trainer = stub()
    for subscribe in (trainer.on, trainer.add_callback_fn, lambda target, fn: Trainer.on(target)(fn)):
        with pytest.raises(CallerError) as caught:
            subscribe(target, fn)
        assert str(caught.value).startswith(said)
    assert marked._marked == {}


@pytest.mark.parametrize("priority", ["high", None, 1.5, True])
def test_a_priority_is_an_integer(priority: Any) -> None:
    """C3."""
    with pytest.raises(CallerError, match="priority must be an integer, a higher one is heard earlier, not "):
        stub().on("step", print, priority=priority)


def test_the_class_s_on_is_a_decorator_and_takes_no_function_as_its_marker() -> None:
    """S1, S2: the function would be subscribed nowhere, without a word."""
    with pytest.raises(CallerError, match=r"Trainer.on is a decorator: @Trainer.on\(event\), or trainer.on\(event, "):
        Trainer.on(Events.on_train_begin, lambda trainer: None)  # type: ignore[arg-type]
    for marker in (3, ["a"], True):
        with pytest.raises(CallerError, match="marker must be a string or None, not "):
            Trainer.on(Events.on_train_begin, marker=marker)  # type: ignore[arg-type]
        with pytest.raises(CallerError, match="marker must be a string or None, not "):
            stub(marker=marker)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Filter(filter_fn=lambda trainer: True), "Filter(filter_fn=...) must take (filter, trainer), which "),
        (lambda: Filter(filter_fn=lambda a, b, c: True), "Filter(filter_fn=...) must take (filter, trainer), which "),
        (lambda: Filter(filter_fn=always), "a filter_fn is called and not awaited: always must be a plain function"),
        (lambda: Filter(every=2)(3), "a Filter decorates a function or a method, not int"),  # type: ignore[arg-type]
        (lambda: Filter(every=2)(Callback), "a Filter decorates a function or a method, not the class Callback"),
    ],
)
def test_a_filter_that_can_never_do_its_work_is_refused(make: Callable[[], Any], said: str) -> None:
    """F4, F6."""
    with pytest.raises(CallerError) as caught:
        make()
    assert str(caught.value).startswith(said)


# -- told --------------------------------------------------------------------------------------------------


def told_of(callback: Callback) -> list[str]:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        stub(callbacks=callback)
    return [str(w.message) for w in told]


def hears(*names: str) -> Callback:
    """A callback with these methods."""
    return type("Mine", (Callback,), {name: lambda self, *args: None for name in names})()  # type: ignore[no-any-return]


def test_a_method_whose_name_is_nearly_a_moment_s_is_told_of_and_others_are_not() -> None:
    """S6, N2: it would never be called."""

    class Subscribes(Callback):
        on_divergence = "warn"

        def subscribe(self, listeners: Any) -> None:
            listeners.add(Stepped, Filter(every=2)(self.on_stepped), owner=self)
            listeners.add("step", self.on_step_entered, owner=self)

        def on_stepped(self, trainer: Any, event: Any) -> None: ...

        def on_step_entered(self, trainer: Any) -> None: ...

        def on_train_batch_end(self, trainer: Any) -> None: ...

        def on_evaluate_end(self, trainer: Any, results: Any) -> None: ...

        def _on_train_batch_begin(self) -> None: ...

    assert told_of(hears("on_train_bach_end")) == [
        "Mine.on_train_bach_end is no moment, so it is never called. Did you mean 'on_train_batch_end'?"
    ]
    assert told_of(Subscribes()) == []


def test_a_method_that_is_no_moment_is_told_of_however_far_its_name_is_from_one() -> None:
    """S6, N2."""
    for told, name in zip(told_of(hears("on_the_whole", "on_click")), ("on_click", "on_the_whole"), strict=True):
        assert told.startswith(f"Mine.{name} is no moment, so it is never called. ")
        assert told.endswith("(A method that you call yourself needs a name without on_.)")


@pytest.mark.parametrize("name", sorted(MOMENTS_ELSEWHERE))
def test_another_library_s_name_of_a_moment_is_answered_with_the_name_here(name: str) -> None:
    """S6, N2: whatever is named here can be subscribed to."""
    here = MOMENTS_ELSEWHERE[name]
    assert name not in (*MOMENTS, *ALIASES)
    assert told_of(hears(name)) == [f"Mine.{name} is no moment, so it is never called: here it is {here}"]
    for subscribe in (stub().on, lambda target, fn: Trainer.on(target)(fn)):
        with pytest.raises(CallerError) as caught:
            subscribe(name, lambda *args: None)
        assert str(caught.value).endswith(f"{name!r}: here it is {here}")
    named = re.findall(r"on_\w+", here)
    assert set(named) <= set(MOMENTS)
    assert named or here.startswith("no moment")


def test_the_names_that_a_newcomer_tries_first_are_known() -> None:
    """S6, N2."""
    for name, here in {
        "on_train_start": "on_train_begin",
        "on_epoch_end": "on_train_epoch_end",
        "on_fit_end": "on_train_end",
        "on_validation_epoch_end": "on_validate_end",
        "on_train_epoch_finish": "on_train_epoch_end",
        "on_step_end": "on_train_batch_end",
        "on_evaluate": "on_validate_end",
        "on_save": "on_after_snapshot",
    }.items():
        (told,) = told_of(hears(name))
        assert f": here it is {here}" in told


# -- filters on filters ------------------------------------------------------------------------------------


def stacked(run_dir: Path | None, heard: list[str], **settings: Any) -> Trainer:
    """Every second call of every third one, in three ways; and every sixth."""

    @Filter(every=3)
    @Filter(every=2)
    def function(trainer: Any) -> None:
        heard.append(f"f{trainer.global_forward_batches}")

    class Listens(Callback):
        @Filter(every=3)
        @Filter(every=2)
        def on_train_batch_end(self, trainer: Any) -> None:
            heard.append(f"m{trainer.global_forward_batches}")

    trainer = stub(range(14), n_epochs=1, run_dir=run_dir, callbacks=Listens(), snapshot_every=None, **settings)
    trainer.on(Events.on_train_batch_end, function)
    trainer.on(Events.on_train_batch_end(every=3), Filter(every=2)(lambda trainer: heard.append("l")))
    trainer.on(Stepped, Filter(every=6)(lambda trainer, event: heard.append("t")))
    return trainer


STACKED = "m6 f6 l t m12 f12 l t"


def test_a_filter_on_a_filter_counts_what_the_other_lets_through() -> None:
    """F5, F6."""
    heard: list[str] = []
    stacked(None, heard).run()
    assert " ".join(heard) == STACKED


@pytest.mark.parametrize("k", range(1, 14))
def test_the_counts_of_stacked_filters_are_all_kept(run_dir: Path, k: int) -> None:
    """F7, B5."""
    heard: list[str] = []
    stacked(run_dir, heard, n_batches=k).run()
    stacked(run_dir, heard).run(resume_from="auto")
    assert " ".join(heard) == STACKED


def test_a_function_without_a_filter_may_come_and_go_beside_one_with_a_filter_of_the_same_name(run_dir: Path) -> None:
    """F7: both are lambdas of one place, and only the filtered one has anything to remember."""

    def fresh(heard: list[int], plain: bool, n_epochs: int) -> Trainer:
        trainer = stub([1, 2, 3], n_epochs=n_epochs, run_dir=run_dir)
        for target in (*([Events.on_train_batch_end] * plain), Events.on_train_batch_end(every=2)):
            trainer.on(target, lambda trainer: heard.append(trainer.global_forward_batches))
        return trainer

    first: list[int] = []
    fresh(first, True, 1).run()
    heard: list[int] = []
    fresh(heard, False, 2).run(resume_from="auto")
    assert heard == [4, 6]


class Thrice(Filter):
    """A filter of a user's own class, with a constructor of its own."""

    def __init__(self, first: int) -> None:
        super().__init__()
        self.first = first

    def passes(self, trainer: Any) -> bool:
        return super().passes(trainer) and self.first <= self.num_called < self.first + 3


def test_a_filter_of_a_user_s_own_class_stays_one_in_each_subscription() -> None:
    """F6: each counts for itself, by its own rule."""
    heard: list[int] = []
    thin = Thrice(4)

    @thin
    def note(trainer: Any) -> None:
        heard.append(trainer.global_forward_batches)

    for _ in range(2):
        trainer = stub(range(9), n_epochs=1)
        trainer.on(Events.on_train_batch_end, note)
        trainer.run()
    assert heard == [4, 5, 6] * 2
    assert thin.num_called == 0


def test_a_listener_that_comes_in_the_middle_of_a_run_is_given_whole_events() -> None:
    """S3: also where nothing is recorded."""
    rates: list[Any] = []
    trainer = stub([1, 2, 3], n_epochs=1)
    trainer.on(
        Events.on_train_batch_end(once=1),
        lambda trainer: trainer.add_callback_fn(Stepped, lambda trainer, event: rates.append(list(event.lr))),
    )
    trainer.run()
    assert rates == [[0.1], [0.1]]


# -- errors ------------------------------------------------------------------------------------------------


class Breaks(Callback):
    @Filter(every=2)
    def on_train_batch_end(self, trainer: Any) -> None:
        raise LookupError("in a method")


def breaks(trainer: Any, *args: Any) -> None:
    raise LookupError("in a function")


@pytest.mark.parametrize(
    ("target", "said"),
    [
        (None, "in the listener Breaks.on_train_batch_end ("),
        (Events.on_before_backward, "in the listener breaks ("),
        ("step -> fetch", "in the listener breaks ("),
    ],
)
def test_an_error_of_a_listener_is_logged_with_the_listener_s_name_and_file(
    target: Any, said: str, caplog: pytest.LogCaptureFixture
) -> None:
    """S8: a filter around it hides nothing."""
    trainer = stub(callbacks=[Breaks()] if target is None else None)
    if target is not None:
        trainer.on(target, breaks)
    with caplog.at_level(logging.ERROR), pytest.raises(LookupError):
        trainer.run()
    (record,) = [r for r in caplog.records if r.levelno == logging.ERROR]
    assert said in record.getMessage()
    assert f"({__file__}:" in record.getMessage()


def test_an_error_of_a_step_is_logged_without_a_listener(caplog: pytest.LogCaptureFixture) -> None:
    """S8."""

    def step(trainer: Any, batch: Any) -> None:
        raise LookupError("in the step")

    with caplog.at_level(logging.ERROR), pytest.raises(LookupError):
        stub(batch_step_fn=step, callbacks=[Breaks()]).run()
    assert [r.getMessage() for r in caplog.records if r.levelno == logging.ERROR] == [
        "LookupError in state 'step', epoch 0, batch 0, after transition 3; the batch holds the samples [0]"
    ]


# -- what is heard of nothing ------------------------------------------------------------------------------


@pytest.mark.parametrize("callbacks", [None, [Callback()]])
def test_what_nobody_hears_is_looked_up_and_calls_nobody(callbacks: Any) -> None:
    """C3, S6: who hears is found out once for each way through the machine, however long the run is."""
    ways = []
    for batches in (3, 300):
        trainer = stub(range(batches), callbacks=callbacks)
        trainer.run()
        assert trainer.listeners.inside == {}
        assert set(trainer.listeners.index.values()) == {()}
        ways.append({(source, dest) for source, _, dest in trainer.listeners.index})
        assert len(trainer.listeners.index) == len(ways[-1])
    assert ways[0] == ways[1]
    assert ways[0] == {
        *(("init", "epoch_begin"), ("epoch_begin", "fetch"), ("fetch", "step"), ("step", "fetch")),
        *(("fetch", "epoch_end"), ("epoch_end", "epoch_begin"), ("epoch_end", "done")),
    }
