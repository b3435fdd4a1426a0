"""The bases of callbacks with a monitor, `ExecuteOnBetter`, and the thresholds of `EarlyStopping`."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import pytest

from tachograph.engine import (
    EarlyStopCallback,
    EarlyStopping,
    ExecuteOnBetter,
    ExecuteOnceBetterMonitor,
    HasMonitorCallback,
    Monitor,
    ResultsMonitor,
    Trainer,
)
from tachograph.states.errors import CallerError
from tests.test_journal_support import in_child
from tests.toys import stub, validated

NAN, INF = float("nan"), float("inf")
SCORES = [1.0, 4.0, 2.0, 6.0, 3.0, 5.0, 7.0]

# -- the bases ---------------------------------------------------------------------------------------------


def test_a_results_monitor_looks_at_one_value_and_remembers_the_best() -> None:
    """K13, MO4."""
    monitor = ResultsMonitor("acc", larger_better=False)
    assert (monitor.monitor_name, monitor.real_monitor, monitor.monitor_value) == ("acc", None, None)
    assert monitor.is_better_results({"acc#dev": 3.0, "loss": 9.0})
    assert (monitor.real_monitor, monitor.monitor_value, monitor.larger_better) == ("acc#dev", 3.0, False)
    assert [monitor.is_better_monitor_value(value) for value in (3.0, NAN, None, 4.0, 2.0)] == [0, 0, 0, 0, 1]
    assert monitor.is_better_results({"acc#dev": 1.0}, keep_if_better=False)
    assert monitor.monitor_value == 2.0
    again = ResultsMonitor("acc", larger_better=False)
    again.load_monitor_state(monitor.monitor_state())
    assert (again.real_monitor, again.monitor_value) == ("acc#dev", 2.0)
    again.set_monitor("loss")
    assert (again.monitor_value, again.larger_better, again.monitor_state()) == (None, True, {})
    nobody = ResultsMonitor()
    assert nobody.get_monitor_value({"acc": 1.0}) is None
    assert not nobody.is_better_results({"acc": 1.0})


class Bests(HasMonitorCallback):
    """A callback of a user's own: notes when it was the best."""

    def __init__(self, *given: Any, **about: Any) -> None:
        super().__init__(*given, **about)
        self.at: list[int] = []

    def on_validate_end(self, trainer: Any, results: dict[str, Any]) -> None:
        if self.is_better_results(results):
            self.at.append(trainer.global_forward_batches)

    def state_dict(self) -> dict[str, Any]:
        held = super().state_dict()
        return {**held, "at": list(self.at)} if held else {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.at = list(state["at"])


def test_a_callback_of_one_s_own_has_a_monitor_by_its_base(run_dir: Path) -> None:
    """K13, MO1, MO5, MO6."""
    callback = Bests()
    trainer = validated([3.0, 2.0, 5.0, 1.0], callbacks=callback, monitor="score", larger_better=False)
    begins: list[Any] = []
    trainer.on("on_train_begin", lambda t: begins.append((callback.real_monitor, callback.monitor_value)))
    trainer.run()
    assert begins == [("score", None)]
    assert callback.at == [1, 2, 4]
    assert trainer.listeners.built_with() == {"Bests": {"monitor": "score", "larger_better": False, "min_delta": 0.0}}
    with pytest.raises(CallerError, match=r"Bests needs a monitor: give it one, or Trainer\(monitor=...\)"):
        validated([1.0], callbacks=Bests())
    with pytest.raises(CallerError, match="Bests looks at validations, and this trainer has none"):
        stub(callbacks=Bests("score"))
    stub(callbacks=Bests(must_have_monitor=False)).run()


@pytest.mark.parametrize("make", [Bests, EarlyStopping, lambda name: ExecuteOnBetter(name, execute_fn=lambda: None)])
def test_a_wrong_monitor_is_refused_at_the_sanity_check(make: Any) -> None:
    """MO5, K13, K5, C4: before the first batch, with the key that was meant; a right one is no reason for a word."""
    trainer = validated([1.0, 2.0], callbacks=make("scor"))
    with pytest.raises(CallerError, match=r"monitor 'scor' isn't among the results\. Did you mean 'score'"):
        trainer.run()
    assert trainer.trainer_state.global_forward_batches == 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        validated([1.0, 2.0], callbacks=make("score")).run()


@pytest.mark.parametrize("k", range(1, 7))
def test_the_best_and_its_key_are_known_after_a_kill(tmp_path: Path, k: int) -> None:
    """K13, MO8, R61: and the list that a subclass adds to it."""

    def build(run_dir: Path) -> tuple[Trainer, Bests]:
        callback = Bests(Monitor("scor", fuzzy=True))
        return validated(SCORES, callbacks=callback, run_dir=run_dir), callback

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the monitor is fuzzy
        trainer, straight = build(tmp_path / "straight")
        trainer.run()

        def work() -> None:
            job, _ = build(tmp_path / "run")
            job.on("on_train_epoch_end", lambda t: os.kill(os.getpid(), 9) if t.cur_epoch_idx == k else None)
            job.run()

        os.waitpid(in_child(work), 0)
        again, callback = build(tmp_path / "run")
        again.run(resume_from="auto")
    assert callback.state_dict() == straight.state_dict() == {"key": "score", "best": 7.0, "at": [1, 2, 4, 7]}


def test_two_of_one_class_have_each_their_own_memory(run_dir: Path) -> None:
    """R42: five snapshots, and each gets back its own latest; one key each."""

    def pair() -> list[Bests]:
        return [Bests("score"), Bests("score", larger_better=False)]

    first = pair()
    validated(SCORES, callbacks=first, run_dir=run_dir, n_epochs=5).run()
    second = pair()
    trainer = validated(SCORES, callbacks=second, run_dir=run_dir)
    held: list[Any] = []
    trainer.on("on_after_resume", lambda t, report: held.extend(c.state_dict() for c in second))
    trainer.run(resume_from="auto")
    assert held == [c.state_dict() for c in first]
    assert sorted(trainer.listeners.state_dict(trainer)["callbacks"]) == ["Bests", "Bests#2"]


# -- ExecuteOnBetter ---------------------------------------------------------------------------------------


def test_a_function_is_called_whenever_it_is_better_than_ever() -> None:
    """K13."""
    called: list[Any] = []
    plain = ExecuteOnceBetterMonitor("score", True, lambda: called.append("better"))
    told = ExecuteOnBetter("score", False, lambda trainer: called.append(trainer.global_forward_batches))
    validated([2.0, 3.0, 1.0, 3.0, NAN, 4.0], callbacks=[plain, told]).run()
    assert called == ["better", 1, "better", 3, "better"]
    assert ExecuteOnceBetterMonitor is ExecuteOnBetter
    for wrong in (None, 3, lambda trainer, results: None):
        with pytest.raises(CallerError, match=r"execute_fn must be a function f\(\) or f\(trainer\)"):
            ExecuteOnBetter("score", True, wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("k", range(1, 7))
def test_a_resumed_run_calls_it_where_the_straight_one_would(tmp_path: Path, k: int) -> None:
    """K13."""
    calls: list[int] = []

    def build(n_epochs: int) -> Trainer:
        callback = ExecuteOnBetter("score", True, lambda trainer: calls.append(trainer.global_forward_batches))
        return validated(SCORES, callbacks=callback, run_dir=tmp_path / "run", n_epochs=n_epochs)

    build(k).run()
    build(7).run(resume_from="auto")
    assert calls == [1, 2, 4, 7]


# -- EarlyStopping -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("scores", "about", "epoch", "said"),
    [
        ([1, 2, 6, 7, 8], {"stopping_threshold": 5}, 3, "score is 6.0, better than stopping_threshold=5.0"),
        ([1, 2, 5, 7, 8], {"stopping_threshold": 5}, 4, "score is 7.0, better than stopping_threshold=5.0"),
        ([5, 3, 1], {"stopping_threshold": 2, "larger_better": False}, 3, "score is 1.0, better than"),
        ([5, 3, 1, 4], {"divergence_threshold": 2}, 3, "score is 1.0, worse than divergence_threshold=2.0"),
        ([1, 3, 2, 9, 4], {"divergence_threshold": 8, "larger_better": False}, 4, "score is 9.0, worse than"),
        ([1, 2, 3], {"stopping_threshold": 9, "divergence_threshold": 0}, 3, ""),
    ],
)
def test_it_stops_at_once_where_it_is_good_enough_or_hopeless(
    scores: list[float], about: dict[str, Any], epoch: int, said: str
) -> None:
    """K5, C4."""
    end = validated([float(s) for s in scores], callbacks=EarlyStopCallback("score", **about)).run()
    assert end.validations == epoch
    assert said in end.stop_asked
    assert bool(said) == end.stop_asked.startswith("EarlyStopping: ")
    assert EarlyStopCallback is EarlyStopping


@pytest.mark.parametrize(
    ("before", "after", "epochs"),
    [
        ({"stopping_threshold": 5}, {"stopping_threshold": 5}, 4),
        ({"stopping_threshold": 5}, {"stopping_threshold": 6.5}, 7),
        ({"stopping_threshold": 5}, {}, 7),
        ({"divergence_threshold": 1.5}, {"divergence_threshold": 1.5}, 1),
        ({"divergence_threshold": 1.5}, {"divergence_threshold": 0.5}, 7),
    ],
)
def test_a_run_that_a_threshold_stopped_stays_stopped_unless_it_is_borne_now(
    run_dir: Path, before: dict[str, Any], after: dict[str, Any], epochs: int
) -> None:
    """R13, K5: by every resume, in a process of its own."""
    first = validated(SCORES, callbacks=EarlyStopping("score", **before), run_dir=run_dir)
    assert first.run().state == "done"
    for _ in range(2):
        again = validated(SCORES, callbacks=EarlyStopping("score", **after), run_dir=run_dir)
        assert again.run(resume_from="auto").validations == epochs


def test_a_second_run_has_full_patience_and_a_new_trainer_s_is_fresh(run_dir: Path) -> None:
    """R61, K5: the state of one run doesn't leak into another's."""
    stopping = EarlyStopping("score", patience=2)
    trainer = validated([5.0, 4.0, 3.0, 2.0, 1.0, 0.0, 0.0], callbacks=stopping)
    assert trainer.run().validations == 3
    assert trainer.run().validations == 5
    assert trainer.run().validations == 7
    fresh = validated([5.0, 4.0, 3.0, 2.0], callbacks=EarlyStopping("score", patience=2))
    assert fresh.run().validations == 3


def test_it_can_be_added_to_a_run_that_had_none(run_dir: Path) -> None:
    """R61: no memory is no fault."""
    validated(SCORES, run_dir=run_dir, n_epochs=2).run()
    again = validated(SCORES, callbacks=EarlyStopping("score", patience=1), run_dir=run_dir)
    assert again.run(resume_from="auto").validations == 5


@pytest.mark.parametrize("name", ["stopping_threshold", "divergence_threshold"])
@pytest.mark.parametrize("value", ["5", NAN, True])
def test_a_threshold_that_is_no_number_is_refused(name: str, value: Any) -> None:
    with pytest.raises(CallerError, match=f"{name} must be a number or None, not"):
        EarlyStopping("score", **{name: value})
