"""What a monitor reads of the results: strictly unless asked otherwise, early enough, with a memory that is saved."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.optim import lr_scheduler as schedules
from torch.utils.data import DataLoader

from tachograph.engine import (
    Checkpoint,
    CSVLogger,
    EarlyStopping,
    Events,
    ExecuteOnBetter,
    GradClip,
    HasMonitorCallback,
    LoadBestModel,
    LRSchedule,
    Monitor,
    MoreEvaluate,
    Progress,
    ResultsMonitor,
)
from tachograph.states.errors import CallerError
from tests.toys import Indexed, Run, Sum, stub, validated

INF = float("inf")


def said_by(fn: Callable[[], Any]) -> list[str]:
    """The warnings of a call, in their order."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fn()
    return [str(warning.message) for warning in caught]


# -- what it is told ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("larger", ["min", "max", 0, 1, "", np.True_, [True]])
@pytest.mark.parametrize("monitor", ["score", None])
def test_a_direction_that_is_none_is_refused_by_whoever_takes_one_when_it_is_built(
    larger: Any, monitor: str | None
) -> None:
    """C6: "min" isn't taken for True."""
    builders: list[Callable[..., Any]] = [EarlyStopping, LoadBestModel, CSVLogger, HasMonitorCallback, ResultsMonitor]
    builders += [partial(Checkpoint, topk=1), partial(ExecuteOnBetter, execute_fn=print), partial(Progress, "raw")]
    for build in builders:
        with pytest.raises(CallerError, match=r"^larger_better must be True \(more is better\), False \(less is\) or"):
            build(monitor=monitor, larger_better=larger)
    for told in ({"watch_monitor_larger_better": larger}, {"topk_larger_better": larger}):
        with pytest.raises(CallerError, match=r"^larger_better must be True"):
            MoreEvaluate([1], {}, **told)
    with pytest.raises(CallerError, match=r"^larger_better must be True"):
        Monitor("score", larger)


@pytest.mark.parametrize(
    ("build", "told", "said"),
    [
        (EarlyStopping, {"mode": "min"}, "'mode': larger_better=False is what mode='min' is called here"),
        (LoadBestModel, {"dirpath": "a"}, "'dirpath': it is called save_folder here"),
        (ExecuteOnBetter, {"score_function": print}, "'score_function': it is called monitor here"),
        (GradClip, {"max_norm": 1}, "'max_norm': it is called clip_value here"),
        (CSVLogger, {"log_dir": "a"}, "'log_dir': it is called folder here"),
        (EarlyStopping, {"patience": 1, "patiance": 1}, "'patiance'. Did you mean 'patience'?"),
    ],
)
def test_an_argument_of_another_library_s_name_is_refused_with_ours(
    build: Any, told: dict[str, Any], said: str
) -> None:
    with pytest.raises(CallerError) as refused:
        build(**told)
    assert str(refused.value) == f"{build.__name__} has no argument {said}"


def test_a_class_of_one_s_own_below_one_of_these_takes_what_it_likes() -> None:
    class Mine(EarlyStopping):
        def __init__(self, mode: str, **more: Any) -> None:
            super().__init__("score", mode == "max", **more)

    assert Mine(mode="max", patience=3).patience == 3
    with pytest.raises(CallerError, match=r"^Mine has no argument 'patiance'"):
        Mine("max", patiance=3)
    assert list(inspect.signature(EarlyStopping).parameters)[:2] == ["monitor", "larger_better"]


@pytest.mark.parametrize("delta", ["0.1", "", -1, float("nan"), True, [], 1j])
def test_a_min_delta_that_is_no_number_is_refused(delta: Any) -> None:
    """C6."""
    for monitor in ("score", None):
        with pytest.raises(CallerError, match=r"^min_delta must be a number >= 0, not "):
            EarlyStopping(monitor, min_delta=delta)
    with pytest.raises(CallerError, match=r"^min_delta must be a number >= 0, not "):
        Monitor("score", min_delta=delta)


def test_a_number_of_any_kind_may_be_a_min_delta() -> None:
    assert [Monitor("x", min_delta=d).min_delta for d in (0, 2, np.float32(0.5))] == [0.0, 2.0, 0.5]


# -- what is read ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("held", "value"),
    [(1, 1.0), (True, 1.0), (0.5, 0.5), (np.float32(0.5), 0.5), (torch.tensor([[0.5]]), 0.5), (None, None)],
)
def test_a_monitored_value_is_a_number_or_nothing_this_time(held: Any, value: float | None) -> None:
    """MO3, MO7."""
    read = Monitor("x").value({"x": held})
    assert read == value
    assert type(read) is type(value)
    assert Monitor(lambda results: results["x"]).value({"x": held}) == value


def test_numbers_that_a_journal_writes_as_words_are_numbers() -> None:
    assert [Monitor("x").value({"x": word}) for word in ("inf", "-inf")] == [INF, -INF]
    assert str(Monitor("x").value({"x": "nan"})) == "nan"


@pytest.mark.parametrize("held", [[0.5], [1, 2], {"a": 1}, "0.5", torch.ones(2), 1j])
def test_what_is_no_number_cannot_be_monitored_and_the_keys_that_can_are_told(held: Any) -> None:
    """C6."""
    with pytest.raises(CallerError, match=r"monitor 'x' is a \w+ and no number. Numbers: y, z\."):
        Monitor("x").value({"x": held, "y": 1, "z": 2})
    with pytest.raises(CallerError, match=r"monitor '.*<lambda>' is a \w+ and no number"):
        Monitor(lambda results: results["x"]).value({"x": held})


def test_a_key_that_more_than_one_fits_is_refused_and_remembered_by_nobody() -> None:
    """MO2, C6."""
    monitor = Monitor("loss")
    assert monitor.value({"loss#a": 1, "acc#a": 2}) == 1
    with pytest.raises(CallerError, match="monitor 'loss' fits loss#a, loss#b: give the whole key"):
        monitor.value({"loss#a": 1, "loss#b": 2})
    assert monitor.key == "loss#a"


# -- what is better ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("larger", [True, False])
def test_a_tie_is_no_improvement_and_neither_is_the_worst_there_is(larger: bool) -> None:
    """MO4: strictly better, from minus or plus infinity on."""
    monitor, worst = Monitor("x", larger), -INF if larger else INF
    values = [worst, float("nan"), 1.0, 1.0, worst, -worst, -worst]
    assert [monitor.improves(value) for value in values] == [False, False, True, False, False, True, False]
    assert monitor.best == -worst


def test_two_values_are_compared_without_being_remembered() -> None:
    """MO4."""
    monitor = Monitor("x", larger_better=False, min_delta=0.5)
    assert [monitor.better(1.0), monitor.better(1.0, 2.0), monitor.better(1.0, 1.5), monitor.better(1.0, 1.0)] == [
        True,
        True,
        False,
        False,
    ]
    assert monitor.best is None


# -- whose monitor it is -----------------------------------------------------------------------------------


class Given:
    """What a trainer says of monitors."""

    def __init__(self, monitor: Any, larger_better: bool = True) -> None:
        self.monitor, self.larger_better = monitor, larger_better


@pytest.mark.parametrize(
    ("asked", "larger", "trainer", "name", "larger_better"),
    [
        ("a", None, Given("b", False), "a", False),
        ("a", True, Given("b", False), "a", True),
        (None, None, Given("b", False), "b", False),
        (None, True, Given("b", False), "b", True),
        (Monitor("a", False), None, Given("b", True), "a", False),
        (Monitor("a"), None, Given("b", False), "a", False),
        (Monitor("a", False), True, Given("b", False), "a", True),
        (None, None, Given(Monitor("b", False)), "b", False),
        ("a", None, None, "a", True),
    ],
)
def test_a_callback_s_monitor_is_its_own_else_the_trainer_s(
    asked: Any, larger: bool | None, trainer: Any, name: str, larger_better: bool
) -> None:
    """MO1, T18."""
    monitor = Monitor.of(asked, larger, trainer=trainer)
    assert monitor is not None
    assert (monitor.name, monitor.larger_better) == (name, larger_better)


def test_two_callbacks_with_one_specification_have_a_memory_each() -> None:
    """MO1."""
    shared = Monitor("x", fuzzy=True, min_delta=0.5)
    one, other = Monitor.of(shared), Monitor.of(shared, min_delta=0.1)
    assert one is not None
    assert other is not None
    assert one.improves(3.0)
    assert (other.best, shared.best) == (None, None)
    assert (one.fuzzy, one.min_delta, other.min_delta) == (True, 0.5, 0.1)


def test_a_callback_that_needs_a_monitor_says_so_and_one_that_does_not_has_none() -> None:
    """MO5."""
    assert Monitor.of(None, trainer=Given(None)) is None
    with pytest.raises(CallerError, match=r"Checks needs a monitor: give it one, or Trainer\(monitor=...\)"):
        Monitor.of(None, trainer=Given(None), needed_by="Checks")


# -- the sanity check --------------------------------------------------------------------------------------


def test_a_wrong_monitor_is_refused_at_the_sanity_check() -> None:
    """MO6: not hours later."""
    trainer = validated([1, 2], callbacks=EarlyStopping("scores"))
    with pytest.raises(CallerError) as caught:
        trainer.run()
    assert str(caught.value) == (
        "monitor 'scores' isn't among the results. Did you mean 'score'? (These are the sanity check's results; "
        "run(num_eval_sanity_batch=...) says of how many batches they are made, 0 for no check.)"
    )
    assert trainer.trainer_state.global_forward_batches == 0


def test_a_sanity_check_finds_the_key_and_leaves_the_best_alone() -> None:
    """MO6."""
    monitor = Monitor("n")
    monitor.check({"n#m": 7})
    assert (monitor.key, monitor.best) == ("n#m", None)
    stopping = EarlyStopping("score", patience=1)
    assert validated([3, 2, 1], callbacks=stopping).run().validations == 2
    assert stopping.state_dict()["best"] == 3


# -- the fuzzy way -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "results", "key"),
    [
        ("acc", {"loss": 1, "acc": 2, "accuracy": 3}, "acc"),
        ("f1", {"loss#m#dev": 1, "micro_f1#m#dev": 2, "macro_f1#m#dev": 3}, "micro_f1#m#dev"),
        ("accuracy", {"loss#dev": 1, "acc#dev": 2}, "acc#dev"),
        ("dev_acc", {"acc#train": 1, "acc#dev": 2}, "acc#train"),
        ("loss", {"loss_sum#m#dev": 1, "loss#m#dev": 2}, "loss#m#dev"),
        ("f1", {"f1_of_each": [1, 2], "macro_f1": 2}, "macro_f1"),
    ],
)
def test_a_fuzzy_monitor_takes_the_key_with_the_longest_common_part(name: str, results: Any, key: str) -> None:
    """MO2: the exact key first; at a tie the first one."""
    monitor = Monitor(name, fuzzy=True)
    said = said_by(lambda: monitor.value(results))
    assert monitor.key == key
    exact = name == key.split("#")[0]
    assert said == ([] if exact else [f"monitor {name!r} isn't among the results: {key!r} is taken for it"])


def test_a_fuzzy_monitor_keeps_to_the_key_it_took_and_says_when_it_must_change_it() -> None:
    """MO2."""
    monitor = Monitor("f1", fuzzy=True)
    first = {"loss": 1, "micro_f1": 2}
    assert len(said_by(lambda: monitor.value(first))) == 1
    assert said_by(lambda: [monitor.value(first), monitor.value({"a_f1": 9, **first})]) == []
    assert monitor.value({"a_f1": 9, **first}) == 2
    changed = "monitor 'f1' was read from 'micro_f1' so far, and is read from 'macro_f1' now"
    assert said_by(lambda: monitor.value({"loss": 1, "macro_f1": 3})) == [changed]
    assert said_by(lambda: monitor.value({"loss": 1, "macro_f1": 3})) == []


def test_a_strict_monitor_says_too_when_its_key_changes() -> None:
    """MO2."""
    monitor = Monitor("loss")
    assert said_by(lambda: monitor.value({"loss#dev": 1})) == []
    changed = "monitor 'loss' was read from 'loss#dev' so far, and is read from 'loss#test' now"
    assert said_by(lambda: monitor.value({"loss#test": 1})) == [changed]


@pytest.mark.parametrize("results", [{}, {"xyz": 1}, {"q_f1": [1]}])
def test_a_fuzzy_monitor_with_nothing_in_common_is_refused(results: Any) -> None:
    """MO2."""
    with pytest.raises(CallerError, match="monitor 'f1' isn't among the results"):
        Monitor("f1", fuzzy=True).value(results)


def test_a_callback_takes_a_fuzzy_monitor() -> None:
    """MO2, C6: opt-in."""
    stopping = EarlyStopping(Monitor("the score", fuzzy=True), patience=1)
    trainer = validated([3, 2, 1], callbacks=stopping)
    said = said_by(lambda: trainer.run())
    assert trainer.trainer_state.validations == 2
    assert said == ["monitor 'the score' isn't among the results: 'score' is taken for it"]


def plateau(**settings: Any) -> tuple[Run, LRSchedule]:
    """A run whose learning rate is halved when its validation's value gets no smaller, as it never does here."""
    given: dict[str, Any] = {"n_epochs": 3, "metrics": {"ones": Ones()}, "validate_dataloaders": DataLoader(Indexed(2))}
    watched = settings.pop("watched", {})
    held: list[LRSchedule] = []

    def callbacks(run: Run) -> LRSchedule:
        scheduler = schedules.ReduceLROnPlateau(run.optimizer, patience=0, factor=0.5)
        held.append(LRSchedule(scheduler, "plateau", **watched))
        return held[0]

    run = Run(callbacks=callbacks, **{**given, **settings})
    return run, held[0]


class Ones:
    def reset(self) -> None: ...

    def update(self, loss: Any) -> None: ...

    def compute(self) -> float:
        return 1.0


def test_a_schedule_on_a_plateau_takes_the_trainer_s_monitor_and_saves_its_key() -> None:
    """MO1, MO8, T18."""
    for settings in (
        {"monitor": "ones"},
        {"watched": {"monitor": "ones"}},
        {"watched": {"monitor": lambda results: results["ones"]}},
        {"watched": {"monitor": Monitor("one", fuzzy=True)}},
    ):
        run, schedule = plateau(**settings)
        said_by(run.run)
        assert run.optimizer.param_groups[0]["lr"] == 0.0025
        named = callable(settings.get("watched", {}).get("monitor"))  # type: ignore[attr-defined]
        assert schedule.state_dict()["monitor"] == {"key": None if named else "ones", "best": None}


def test_a_schedule_on_a_plateau_without_a_monitor_is_refused_and_a_wrong_one_at_the_sanity_check() -> None:
    """MO5, MO6."""
    with pytest.raises(CallerError, match=r"LRSchedule\(step_on='plateau'\) needs a monitor: give it one, or Trainer"):
        plateau()
    run, _ = plateau(monitor="two")
    with pytest.raises(CallerError, match="monitor 'two' isn't among the results"):
        run.run()
    assert run.trainer.trainer_state.global_forward_batches == 0


# -- memory ------------------------------------------------------------------------------------------------


def test_the_key_a_monitor_took_and_its_best_are_saved_and_taken_back() -> None:
    """MO8."""
    monitor, other = Monitor("f1", fuzzy=True), Monitor("f1", fuzzy=True)
    said_by(lambda: monitor.value({"micro_f1": 2}))
    monitor.improves(2.0)
    assert monitor.state_dict() == {"key": "micro_f1", "best": 2.0}
    other.load_state_dict(monitor.state_dict())
    assert said_by(lambda: other.value({"a_f1": 1, "micro_f1": 3})) == []
    assert (other.key, other.best) == ("micro_f1", 2.0)


def test_a_callback_s_key_survives_a_resume(run_dir: Path) -> None:
    """MO8: what was taken before the interruption is taken after it, without another word."""

    def build() -> tuple[Any, EarlyStopping]:
        stopping = EarlyStopping(Monitor("the n", fuzzy=True), patience=9)
        trainer = stub(
            callbacks=stopping, metrics={"m": Sum()}, validate_dataloaders=[1], run_dir=run_dir, snapshot_every=1
        )
        trainer.on(Events.on_train_epoch_end(once=1), lambda trainer: trainer.stop("here"))
        return trainer, stopping

    trainer, stopping = build()
    assert len(said_by(lambda: trainer.run())) == 1
    held = stopping.state_dict()
    assert (held["key"], held["best"]) == ("n#m", 1.0)
    trainer, stopping = build()
    heard: list[Any] = []
    trainer.on(Events.on_after_resume, lambda trainer, report: heard.append(stopping.state_dict()))
    assert said_by(lambda: trainer.run(resume_from="auto", num_eval_sanity_batch=0)) == []
    assert heard == [held]
    assert stopping.state_dict()["wait"] == 1


def test_a_monitor_says_what_it_was_built_with() -> None:
    plain = {"monitor": "x", "larger_better": True, "min_delta": 0.0}
    assert Monitor("x").built_with() == plain
    assert Monitor("x", False, fuzzy=True).built_with() == {**plain, "larger_better": False, "fuzzy": True}
    assert Monitor(len).built_with()["monitor"] == Monitor(len).label == "len"
