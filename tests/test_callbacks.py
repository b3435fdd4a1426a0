"""The built-in callbacks: each one's job, its memory over a resume, and what it refuses."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler as schedules
from torch.utils.data import DataLoader

from tachograph.engine import Callback, EarlyStopping, Events, Journal, LRSchedule, SnapshotPolicy, Trainer
from tachograph.engine.callbacks.monitor import Monitor
from tachograph.engine.world import World
from tachograph.states import Stepped
from tachograph.states.errors import CallerError
from tests.toys import Counts, Indexed, Run, equal, sides, stub, validated

NAN = float("nan")

# -- what a monitor is -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "results", "value"),
    [
        ("loss", {"loss": 1, "acc": 2}, 1.0),
        ("acc#m#dev", {"acc#m#dev": 3}, 3.0),
        ("loss", {"loss#dev": 1, "acc": 2}, 1.0),
        ("acc#m", {"acc#m#dev": 5, "f#m#dev": 2}, 5.0),
        (lambda results: results["a"] + results["b"], {"a": 1, "b": 2}, 3.0),
        (lambda results: None, {"a": 1}, None),
    ],
)
def test_a_monitor_is_a_key_its_first_parts_or_a_function(name: Any, results: Any, value: Any) -> None:
    """MO1, MO2, MO3."""
    assert Monitor(name).value(results) == value


@pytest.mark.parametrize(
    ("name", "results", "said"),
    [
        ("los", {"loss": 1, "acc": 2}, "monitor 'los' isn't among the results. Did you mean 'loss'?"),
        ("loss", {"loss#dev": 1, "loss#test": 2}, "monitor 'loss' fits loss#dev, loss#test"),
        ("loss", {}, "monitor 'loss' isn't among the results"),
        ("dev", {"loss#dev": 1}, "monitor 'dev' isn't among the results"),
    ],
)
def test_a_monitor_is_strict_and_names_what_there_is(name: str, results: Any, said: str) -> None:
    """MO2, C6: nothing is guessed."""
    with pytest.raises(CallerError) as caught:
        Monitor(name).value(results)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("larger", "delta", "values", "better"),
    [
        (True, 0.0, [1, 2, 2, NAN, 3, float("inf")], [1, 1, 0, 0, 1, 1]),
        (False, 0.0, [1, 2, 0.5, 0.5, NAN, -1], [1, 0, 1, 0, 0, 1]),
        (True, 0.5, [1, 1.5, 1.6, 1.9, 2.2], [1, 0, 1, 0, 1]),
        (False, 0.5, [NAN, -1, -1.4, -1.6], [0, 1, 0, 1]),
    ],
)
def test_better_is_strictly_better_and_nan_never_is(larger: bool, delta: float, values: Any, better: list[int]) -> None:
    """MO4."""
    monitor = Monitor("x", larger, delta)
    assert [monitor.improves(value) for value in values] == [bool(b) for b in better]


def test_a_monitor_that_cannot_be_one_is_refused() -> None:
    with pytest.raises(CallerError, match="monitor must be a key of the results or a function, not 3"):
        Monitor(3)  # type: ignore[arg-type]
    with pytest.raises(CallerError, match="min_delta must be a number >= 0, not -1"):
        Monitor("x", min_delta=-1)


# -- EarlyStopping -----------------------------------------------------------------------------------------

SCORES = [1.0, 2.0, 3.0, 4.0, 9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0]


def stopping(scores: Any = SCORES, patience: int = 3, **settings: Any) -> Trainer:
    callback = {"monitor": "score", "patience": patience, **settings.pop("stopping", {})}
    return validated(scores, callbacks=EarlyStopping(**callback), **settings)


def test_a_run_stops_after_so_many_validations_without_an_improvement(run_dir: Path) -> None:
    """R13, K5, B32: best at epoch 5, patience 3: after epoch 8; a stop, no exception."""
    trainer = stopping(run_dir=run_dir)
    heard: list[str] = []
    trainer.on(Events.on_exception, lambda t, exception: heard.append("exception"))
    end = trainer.run(num_eval_sanity_batch=0)
    assert (end.state, end.validations, heard) == ("done", 8, [])
    assert end.stop_asked == "EarlyStopping: 3 validations without improvement on 9.0"


@pytest.mark.parametrize("k", range(1, 8))
def test_the_stop_comes_at_the_same_epoch_wherever_the_run_was_interrupted(tmp_path: Path, k: int) -> None:
    """R13."""
    straight = stopping(run_dir=tmp_path / "straight")
    straight.run()
    run_dir = tmp_path / "run"
    stopping(run_dir=run_dir, n_epochs=k).run()
    again = stopping(run_dir=run_dir)
    end = again.run(resume_from="auto")
    assert end == straight.trainer_state
    assert (end.validations, len(again.driver.seen)) == (8, 8 - k)
    assert again.journal.chain == straight.journal.chain  # type: ignore[union-attr]


def test_a_run_that_was_interrupted_after_every_evaluation_stops_at_the_same_epoch(run_dir: Path) -> None:
    """R13: a chain of resumes."""
    for epoch in range(1, 13):
        end = stopping(run_dir=run_dir, n_epochs=epoch).run(resume_from="auto")
    assert end.validations == 8


def test_a_stopped_run_stays_stopped_when_it_is_resumed(run_dir: Path) -> None:
    """R13: 0 steps, however often; and with more patience from outside nothing changes."""
    stopping(run_dir=run_dir).run()
    for _ in range(2):
        again = stopping(run_dir=run_dir, n_epochs=50)
        end = again.run(resume_from="auto")
        assert (end.state, end.validations, again.driver.seen) == ("done", 8, [])


@pytest.mark.parametrize(("patience", "stops_after"), [(1, 8), (3, 8), (4, 9), (5, 10), (20, 12)])
def test_a_stopped_run_goes_on_where_it_is_resumed_with_more_patience_than_it_took(
    run_dir: Path, patience: int, stops_after: int
) -> None:
    """R13, R40: the new patience decides, and what was borne already counts."""
    stopping(run_dir=run_dir).run(num_eval_sanity_batch=0)
    end = stopping(run_dir=run_dir, patience=patience).run(resume_from="auto", num_eval_sanity_batch=0)
    assert end.validations == stops_after


@pytest.mark.parametrize("patience", [1, 2, 3, 5])
def test_patience_that_is_another_at_a_resume_decides_from_there_on(run_dir: Path, patience: int) -> None:
    """R40."""
    stopping(run_dir=run_dir, patience=9, n_epochs=7).run(num_eval_sanity_batch=0)
    end = stopping(run_dir=run_dir, patience=patience).run(resume_from="auto", num_eval_sanity_batch=0)
    assert end.validations == max(8, 5 + patience)


@pytest.mark.parametrize("check_finite", [True, False])
def test_a_run_that_stopped_for_a_value_that_is_no_number_goes_on_if_that_is_borne_now(
    run_dir: Path, check_finite: bool
) -> None:
    scores = [1.0, NAN, 2.0, 3.0]
    assert stopping(scores, run_dir=run_dir).run(num_eval_sanity_batch=0).validations == 2
    again = stopping(scores, patience=50, run_dir=run_dir, stopping={"check_finite": check_finite})
    assert again.run(resume_from="auto", num_eval_sanity_batch=0).validations == (2 if check_finite else 4)


def test_a_second_run_in_the_same_trainer_has_full_patience() -> None:
    """R61: it forgets what ended it, not the best value."""
    trainer = stopping()
    assert trainer.run().validations == 8
    assert trainer.run().validations == 11
    assert trainer.run().validations == 12


@pytest.mark.parametrize(
    ("scores", "settings", "epoch"),
    [
        ([3, 2, 1, 2, 3, 4], {"larger_better": False, "patience": 2}, 5),
        ([1, 1.2, 1.4, 1.6, 1.8], {"min_delta": 0.5, "patience": 2}, 3),
        ([1, 2, NAN, 3], {}, 3),
        ([1, 2, float("inf"), 3], {}, 3),
        ([1, NAN, NAN, NAN, 0], {"check_finite": False, "patience": 3}, 4),
        ([1, 1, 1, 1], {"patience": 1}, 2),
        ([1, 2, 3, 4], {"patience": 1}, 4),
        ([1, 0, 2, 1, 3, 2, 2, 2], {"patience": 2}, 7),
        ([5, 4, 3, 2, 1], {"monitor": lambda results: -results["score"], "patience": 1}, 5),
        ([5, 4, 3, 2, 1], {"monitor": lambda results: None, "patience": 1}, 5),
    ],
)
def test_early_stopping_heeds_its_settings(scores: Any, settings: Any, epoch: int) -> None:
    """K5, MO3, MO4, C4."""
    assert stopping(scores, stopping=settings).run(num_eval_sanity_batch=0).validations == epoch


def test_a_stop_for_a_value_that_is_no_number_names_it() -> None:
    assert stopping([1, NAN]).run().stop_asked == "EarlyStopping: score is nan"


def test_a_callback_without_a_monitor_takes_the_trainer_s() -> None:
    """T18, MO1, MO5."""
    trainer = validated([3, 2, 1, 2, 3, 4], callbacks=EarlyStopping(patience=2), monitor="score", larger_better=False)
    assert trainer.run().validations == 5
    trainer = validated(
        [3, 2, 1, 2, 3, 4],
        callbacks=EarlyStopping(patience=2, larger_better=True),
        monitor="score",
        larger_better=False,
    )
    assert trainer.run().validations == 3
    with pytest.raises(CallerError, match=r"EarlyStopping needs a monitor: give it one, or Trainer\(monitor=...\)"):
        validated([1], callbacks=EarlyStopping())


def test_a_monitor_that_is_not_among_the_results_ends_the_run_at_its_first_validation() -> None:
    with pytest.raises(CallerError, match=r"monitor 'scores' isn't among the results. Did you mean 'score'"):
        stopping(stopping={"monitor": "scores"}).run()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"patience": 0}, "patience must be an integer >= 1, not 0"),
        ({"patience": 1.5}, "patience must be an integer >= 1, not 1.5"),
        ({"patience": True}, "patience must be an integer >= 1, not True"),
        ({"min_delta": -0.1}, "min_delta must be a number >= 0, not -0.1"),
        ({"monitor": 3}, "monitor must be a key of the results or a function, not 3"),
    ],
)
def test_early_stopping_refuses_what_it_cannot_use(settings: Any, said: str) -> None:
    with pytest.raises(CallerError, match=said):
        EarlyStopping(**{"monitor": "x", **settings})


# -- LRSchedule --------------------------------------------------------------------------------------------

Make = Callable[[torch.optim.Optimizer], Any]


def twenty(optimizer: Any) -> Any:
    return schedules.OneCycleLR(optimizer, max_lr=0.5, total_steps=20)


def warmup_then_cosine(optimizer: Any) -> Any:
    warm = schedules.LinearLR(optimizer, 0.1, 1.0, total_iters=4)
    return schedules.SequentialLR(optimizer, [warm, schedules.CosineAnnealingLR(optimizer, 10)], [4])


def constant_then_steps(optimizer: Any) -> Any:
    constant = schedules.ConstantLR(optimizer, 0.5, total_iters=3)
    return schedules.SequentialLR(optimizer, [constant, schedules.MultiStepLR(optimizer, [2, 4, 4], 0.5)], [4])


SCHEDULES: dict[str, Make] = {
    "step": lambda o: schedules.StepLR(o, 3, 0.5),
    "multistep": lambda o: schedules.MultiStepLR(o, [2, 5, 5, 9], 0.5),
    "cosine": lambda o: schedules.CosineAnnealingLR(o, 7),
    "restarts": lambda o: schedules.CosineAnnealingWarmRestarts(o, 4, 2),
    "onecycle": twenty,
    "lambda": lambda o: schedules.LambdaLR(o, lambda n: 1 / (n + 1)),
    "exponential": lambda o: schedules.ExponentialLR(o, 0.9),
    "sequential": warmup_then_cosine,
    "sequential of steps": constant_then_steps,
    "chained": lambda o: schedules.ChainedScheduler([schedules.ExponentialLR(o, 0.9), schedules.ConstantLR(o, 0.1, 3)]),
}


def scheduled(make: Make, step_on: str = "update", **settings: Any) -> tuple[Run, list[float]]:
    """A run of four batches an epoch, and the learning rate of each of its updates."""
    rates: list[float] = []
    about = settings.pop("schedule", {})

    def callbacks(run: Run) -> Any:
        run.schedule = make(run.optimizer)  # type: ignore[attr-defined]
        return LRSchedule(run.schedule, step_on, **about)  # type: ignore[attr-defined]

    settings = {"n": 8, "batch_size": 2, "n_epochs": 3, "snapshot_every": None, **settings}
    run = Run(callbacks=callbacks, optimizer=lambda p: torch.optim.SGD(p, lr=0.4, momentum=0.9), **settings)
    run.trainer.on(
        Events.on_before_optimizer_step, lambda t, optimizers: rates.append(optimizers[0].param_groups[0]["lr"])
    )
    return run, rates


def by_hand(make: Make, n: int, per: int = 1) -> list[float]:
    """The learning rates of n updates in a loop written by hand, with a step of the schedule every `per` updates."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.4, momentum=0.9)
    schedule, rates = make(optimizer), []
    for i in range(n):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        if (i + 1) % per == 0:
            schedule.step()
    return rates


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("step_on", ["update", "batch", "epoch"])
def test_a_schedule_steps_once_an_update_or_once_an_epoch(name: str, step_on: str) -> None:
    """K6, C4."""
    run, rates = scheduled(SCHEDULES[name], step_on)
    run.run()
    assert rates == by_hand(SCHEDULES[name], 12, 4 if step_on == "epoch" else 1)


def test_a_multistep_schedule_by_epochs_has_the_textbook_s_rates() -> None:
    """R10."""
    run, rates = scheduled(lambda o: schedules.MultiStepLR(o, [4], 0.1), "epoch", n=2, n_epochs=6)
    run.run()
    assert rates == pytest.approx([0.4] * 4 + [0.04] * 2)


@pytest.mark.parametrize("step_on", ["update", "epoch"])
@pytest.mark.parametrize("name", SCHEDULES)
def test_the_rates_go_on_as_in_the_straight_run_after_a_resume_at_every_batch(
    tmp_path: Path, name: str, step_on: str
) -> None:
    """R10, R27, B11: rates, weights and chain; and what the schedule says is what the optimizer has."""
    straight, expected = scheduled(SCHEDULES[name], step_on, run_dir=tmp_path / "straight")
    straight.run()
    for k in (1, 3, 4, 5, 8, 11):
        run_dir = tmp_path / str(k)
        first, before = scheduled(SCHEDULES[name], step_on, run_dir=run_dir, n_batches=k)
        first.run()
        again, after = scheduled(SCHEDULES[name], step_on, run_dir=run_dir)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            again.run(resume_from="auto")
        assert before + after == expected
        groups = [group["lr"] for group in again.optimizer.param_groups]
        assert groups == again.schedule.get_last_lr()  # type: ignore[attr-defined]
        assert equal(again.weights, straight.weights)
        assert again.chain == straight.chain


@pytest.mark.parametrize("step_on", ["update", "epoch"])
def test_the_rates_go_on_as_in_the_straight_run_in_a_second_run_of_the_same_trainer(step_on: str) -> None:
    """R10, R61: at an epoch's end and inside one."""
    make = SCHEDULES["step" if step_on == "update" else "exponential"]
    straight, expected = scheduled(make, step_on)
    straight.run()
    run, rates = scheduled(make, step_on, n_epochs=1)
    run.run()
    run.trainer.n_epochs = 2
    run.trainer.on(Events.on_train_batch_end(once=2), lambda trainer: trainer.stop())
    run.run()
    run.trainer.n_epochs = 3
    run.run()
    assert rates == expected
    assert equal(run.weights, straight.weights)


def test_a_schedule_follows_updates_and_not_batches() -> None:
    """K6: the reference trainer's stepped at every batch."""
    run, rates = scheduled(SCHEDULES["exponential"], accumulation_steps=3, n_epochs=2)
    run.run()
    assert rates == by_hand(SCHEDULES["exponential"], 4)


def plateau(optimizer: Any) -> Any:
    return schedules.ReduceLROnPlateau(optimizer, patience=1, factor=0.5)


@pytest.mark.parametrize("k", [None, 1, 4, 7, 12, 19])
def test_a_schedule_on_a_plateau_steps_with_the_monitored_value(tmp_path: Path, k: int | None) -> None:
    """C4, R10: its own count of bad validations goes on over a resume."""
    losses = [5.0, 4.0, 4.5, 4.6, 4.7, 3.0, 3.5]
    settings: dict[str, Any] = {
        "n_epochs": 7,
        "schedule": {"monitor": "loss"},
        "validate_dataloaders": DataLoader(Indexed(2), batch_size=2),
        "run_dir": tmp_path / "run",
    }

    class Given:
        trainer: Any

        def reset(self) -> None: ...

        def update(self, loss: Any) -> None: ...

        def compute(self) -> float:
            return losses[min(self.trainer.trainer_state.validations, 6)]

    found: list[float] = []
    for limit in [-1] if k is None else [k, -1]:
        metric = Given()
        run, rates = scheduled(plateau, "plateau", metrics={"loss": metric}, n_batches=limit, **dict(settings))
        metric.trainer = run.trainer
        run.run(resume_from="auto")
        found += rates
    assert found == [0.4] * 16 + [0.2] * 12


class Blows(nn.Module):
    """Overflows in fp16 in the batches it is told."""

    def __init__(self, at: tuple[int, ...]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(4, 1)
        self.at = at

    def forward(self, x: torch.Tensor, id: torch.Tensor) -> dict[str, torch.Tensor]:
        loss = self.layer(x).float().pow(2).mean()
        return {"loss": loss * 1e38 if int(id[0]) in self.at else loss}


def blowing(run_dir: Path, at: tuple[int, ...] = (2, 5), **settings: Any) -> tuple[Trainer, dict[str, list[Any]]]:
    model = Blows(at)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.4)
    schedule = schedules.ExponentialLR(optimizer, 0.5)
    kwargs = {"gradscaler_kwargs": {"init_scale": 256.0, "growth_interval": 3}}
    settings = {
        "n_epochs": 1,
        "precision": "fp16",
        "torch_kwargs": kwargs,
        "seed": 1,
        "snapshot_every": None,
        **settings,
    }
    loader = DataLoader(Indexed(8), batch_size=1)
    callbacks = LRSchedule(schedule)
    trainer = Trainer(
        model, "torch", loader, optimizer, callbacks=callbacks, run_dir=run_dir, progress_bar=None, **settings
    )
    heard: dict[str, list[Any]] = {"lr": [], "skipped": [], "scale": []}

    def after_step(trainer: Any, event: Stepped) -> None:
        heard["lr"].append(optimizer.param_groups[0]["lr"])
        heard["skipped"].append(event.skipped)
        heard["scale"].append(trainer.driver.precision.scaler.get_scale())

    trainer.on(Stepped, after_step)
    return trainer, heard


def test_a_skipped_update_moves_neither_the_schedule_nor_the_count_of_updates(tmp_path: Path) -> None:
    """R33, T17: fp16 with its scaler, on the CPU too."""
    trainer, heard = blowing(tmp_path / "run")
    told: list[int] = []
    trainer.on(Events.on_skipped_optimizer_step, lambda t, optimizers: told.append(t.global_forward_batches))
    end = trainer.run()
    assert heard["skipped"] == [n in (2, 5) for n in range(8)]
    assert heard["lr"] == [0.2, 0.1, 0.1, 0.05, 0.025, 0.025, 0.0125, 0.00625]
    assert heard["scale"] == [256.0, 256.0, 128.0, 128.0, 128.0, 64.0, 64.0, 64.0]
    assert (end.global_forward_batches, end.optimizer_steps) == (8, 6)
    assert told == [2, 5]


def test_an_update_that_is_skipped_at_the_end_of_an_epoch_of_unknown_length_is_not_counted(run_dir: Path) -> None:
    """R33, R53: the window is closed there all the same."""

    class Unknown:
        def __iter__(self) -> Any:
            return iter(DataLoader(Indexed(3), batch_size=1))

    model = Blows((2,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.4)
    schedule = LRSchedule(schedules.ExponentialLR(optimizer, 0.5))
    settings = {"n_epochs": 2, "accumulation_steps": 2, "precision": "fp16", "run_dir": run_dir, "progress_bar": None}
    end = Trainer(model, "torch", Unknown(), optimizer, callbacks=schedule, **settings).run()
    assert (end.global_forward_batches, end.optimizer_steps, end.accumulated) == (6, 2, 0)
    assert optimizer.param_groups[0]["lr"] == 0.1
    ends = [r for r in Journal(run_dir) if r.event == "Exhausted"]
    assert [(r.data["flushed"], r.data["skipped"], r.state.accumulated) for r in ends] == [(True, True, 0)] * 2


@pytest.mark.parametrize("k", range(1, 8))
def test_the_scaler_s_scale_and_tracker_go_on_over_a_resume(tmp_path: Path, k: int) -> None:
    """R33, R54, R68, B13, SV7: as many updates are skipped, and the rates are the same."""
    straight, expected = blowing(tmp_path / "straight")
    straight.run()
    first, before = blowing(tmp_path / "run", n_epochs=None, n_batches=k)
    first.run()
    again, after = blowing(tmp_path / "run")
    again.driver.precision.scaler.scale(torch.ones(1))  # type: ignore[union-attr]
    again.run(resume_from="auto")
    assert {name: before[name] + after[name] for name in expected} == expected
    states = [t.driver.precision.scaler.state_dict() for t in (again, straight)]  # type: ignore[union-attr]
    assert states[0] == states[1]
    assert Journal(tmp_path / "run").chain == Journal(tmp_path / "straight").chain


def test_the_scale_moves_once_a_window_however_many_optimizers_there_are(tmp_path: Path) -> None:
    """B19."""
    model = Blows(())
    optimizers = [torch.optim.SGD([p], lr=0.1) for p in model.parameters()]
    kwargs = {"gradscaler_kwargs": {"init_scale": 256.0, "growth_interval": 1}}
    settings = {"torch_kwargs": kwargs, "precision": "fp16", "n_epochs": 1, "run_dir": None, "progress_bar": None}
    loader = DataLoader(Indexed(4), batch_size=1)
    trainer = Trainer(model, "torch", loader, optimizers, accumulation_steps=2, **settings)
    trainer.run()
    assert trainer.driver.precision.scaler.get_scale() == 1024.0  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((3,), r"scheduler must have step\(\), which int lacks"),
        (("schedule", "step"), "step_on must be one of update, batch, epoch, plateau, not 'step'"),
    ],
)
def test_a_schedule_refuses_what_it_cannot_use(arguments: Any, said: str) -> None:
    schedule = schedules.StepLR(torch.optim.SGD([nn.Parameter(torch.ones(1))]), 1)
    given = [schedule if a == "schedule" else a for a in arguments]
    with pytest.raises(CallerError, match=said):
        LRSchedule(*given)


def test_a_schedule_of_somebody_else_s_optimizer_is_refused() -> None:
    """R27."""
    other = torch.optim.SGD([nn.Parameter(torch.ones(1))])
    with pytest.raises(CallerError, match="the scheduler's optimizer isn't one of the trainer's optimizers"):
        Run(callbacks=lambda run: LRSchedule(schedules.StepLR(other, 1)))


# -- SnapshotPolicy --------------------------------------------------------------------------------------------


def saved(run_dir: Path, **settings: Any) -> list[int]:
    """After which transitions of a run of two epochs of three batches a snapshot was taken."""
    stub([1, 2, 3], run_dir=run_dir, **settings).run()
    return [record["at"] for record in sides(run_dir, "saved")]


LAST = 18  # the point before the last transition, from where the run can be extended
EPOCH_ENDS, BATCH_ENDS = [10], [4, 6, 8, 13, 15, 17]


@pytest.mark.parametrize(
    ("every", "at"),
    [
        ("epoch", [*EPOCH_ENDS]),
        (1, BATCH_ENDS),
        (2, BATCH_ENDS[1::2]),
        (4, [BATCH_ENDS[3]]),
        (None, []),
        ("0.0000001s", BATCH_ENDS),
        ("1h", []),
        (" 2 min ", []),
    ],
)
def test_snapshots_are_taken_by_the_policy_and_before_the_end(run_dir: Path, every: Any, at: list[int]) -> None:
    """K1, C4."""
    assert saved(run_dir, snapshot_every=every) == [*at, LAST]


def test_a_snapshot_by_time_is_due_when_the_world_says_so(run_dir: Path) -> None:
    """C4: counted from the run's beginning; time passes between two batches, and is then spent."""
    now = [0.0]
    trainer = stub([1, 2, 3], run_dir=run_dir, snapshot_every="10s")
    trainer.world = World(timer=lambda: now[0])
    now[0] = 1000.0  # it took long to get here
    trainer.on(Events.on_fetch_data_begin, lambda t: now.__setitem__(0, now[0] + 4.0))
    trainer.run()
    assert [record["at"] for record in sides(run_dir, "saved")] == [8, 15, LAST]


def test_a_checkpoint_of_the_user_s_asks_beside_the_trainer_s(run_dir: Path) -> None:
    """C4: two policies, and one snapshot where they agree."""
    assert saved(run_dir, callbacks=[SnapshotPolicy(4), SnapshotPolicy("epoch")]) == [*EPOCH_ENDS, BATCH_ENDS[3], LAST]


def test_nothing_is_saved_at_the_first_state_and_nothing_without_a_driver_or_a_place(tmp_path: Path) -> None:
    trainer = stub([1], run_dir=tmp_path / "run", n_epochs=0)
    trainer.request_snapshot()
    trainer.run()
    assert sides(tmp_path / "run", "saved") == []


def test_two_requests_for_one_transition_are_one_snapshot(run_dir: Path) -> None:
    trainer = stub([1, 2, 3], n_epochs=1, run_dir=run_dir, snapshot_every=None)
    for _ in range(3):
        trainer.on(Events.on_train_batch_end(once=2), lambda t: t.request_snapshot())
    trainer.run()
    assert [record["at"] for record in sides(run_dir, "saved")] == [6, 9]


# -- memory ------------------------------------------------------------------------------------------------


class Named(Counts):
    @property
    def callback_name(self) -> str:
        return "mine"


def test_two_callbacks_of_one_class_have_a_memory_each(run_dir: Path) -> None:
    """R42, SV2: after five snapshots there are as many entries as callbacks, and each gets its own latest value."""
    stub([1] * 5, n_epochs=1, run_dir=run_dir, snapshot_every=1, callbacks=[Counts(), Counts(100)]).run()
    one, other = Counts(), Counts()
    again = stub([1] * 5, n_epochs=2, run_dir=run_dir, callbacks=[one, other])
    states: list[Any] = []
    again.on(Events.on_after_resume, lambda t, report: states.append((one.n, other.n)))
    again.run(resume_from="auto")
    assert states == [(5, 105)]
    assert (one.n, other.n) == (10, 110)
    held = again.listeners.state_dict(again)["callbacks"]
    assert held == {"Counts": {"n": 10}, "Counts#2": {"n": 110}}


def test_two_callbacks_that_give_themselves_one_name_are_refused() -> None:
    """R42."""
    with pytest.raises(CallerError, match="two callbacks are named 'mine': their states would overwrite each other"):
        stub(callbacks=[Named(), Named()])
    trainer = stub(callbacks=[Named(), Counts()])
    assert list(trainer.listeners.callbacks) == ["mine", "Counts"]


def test_a_callback_may_keep_its_memory_by_the_reference_trainer_s_methods(run_dir: Path) -> None:
    """E15, E16: the second is called with what the first returned, and not where nothing was saved."""

    class Old(Callback):
        def __init__(self, state: dict[str, Any]) -> None:
            self.state, self.loaded = state, []

        def on_save_checkpoint(self, trainer: Any) -> dict[str, Any]:
            return {**self.state, "batch": trainer.global_forward_batches} if self.state else {}

        def on_load_checkpoint(self, trainer: Any, states: dict[str, Any]) -> None:
            self.loaded.append(states)

    first = [Old({"x": 1}), Old({})]
    stub([1], n_epochs=1, run_dir=run_dir, callbacks=first).run()
    again = [Old({"x": 2}), Old({})]
    stub([1], n_epochs=2, run_dir=run_dir, callbacks=again).run(resume_from="auto")
    assert [callback.loaded for callback in again] == [[{"x": 1, "batch": 1}], []]


def test_a_callback_s_tensors_are_kept_bit_for_bit(tmp_path: Path) -> None:
    """R19: and everything loads without unpickling anything."""

    class Averages(Callback):
        """The mean of the weights so far."""

        def __init__(self) -> None:
            self.mean: dict[str, torch.Tensor] = {}
            self.n = 0

        def on_train_batch_end(self, trainer: Any) -> None:
            self.n += 1
            for name, p in trainer.driver.model.named_parameters():
                before = self.mean.get(name, torch.zeros_like(p))
                self.mean[name] = before + (p.detach() - before) / self.n

        def state_dict(self) -> dict[str, Any]:
            return {"mean": self.mean, "n": self.n}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.mean, self.n = state["mean"], state["n"]

    runs = {}
    for name, limits in (("straight", [-1]), ("run", [3, -1])):
        for limit in limits:
            run = Run(run_dir=tmp_path / name, callbacks=lambda run: Averages(), n_batches=limit)
            run.run(resume_from="auto")
        runs[name] = run.trainer.listeners.callbacks["Averages"]
    assert runs["run"].n == runs["straight"].n == 12  # type: ignore[attr-defined]
    assert equal(*([*callback.mean.values()] for callback in runs.values()))  # type: ignore[attr-defined]
    for path in (tmp_path / "run").rglob("*.pt"):
        torch.load(path, weights_only=True)
