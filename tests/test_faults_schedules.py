"""Learning-rate schedules: the rate of every update is the straight run's, wherever a snapshot was taken."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler as schedules

from tachograph.engine import Events, LRSchedule, Trainer
from tachograph.engine.snapshots import catalogue

BATCHES = 2  # of an epoch


class Line(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(1))

    def forward(self, batch: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": (self.w * batch - 1).pow(2).mean()}


class Up:
    """A metric that is the better the longer the run has been going on, for a while."""

    def __init__(self) -> None:
        self.trainer: Any = None

    def reset(self) -> None: ...

    def update(self, loss: Any) -> None: ...

    def compute(self) -> float:
        return [5.0, 4.0, 4.0, 4.5, 3.0, 3.0, 3.5, 4.0][min(self.trainer.trainer_state.validations, 7)]


Make = Callable[[torch.optim.Optimizer], Any]


def warm(optimizer: Any) -> Any:
    up = schedules.LinearLR(optimizer, 0.1, 1.0, total_iters=3)
    return schedules.SequentialLR(optimizer, [up, schedules.CosineAnnealingLR(optimizer, 6)], [3])


MAKES: dict[str, Make] = {
    "multistep": lambda o: schedules.MultiStepLR(o, [2, 4], 0.1),
    "cosine": lambda o: schedules.CosineAnnealingLR(o, 5),
    "sequential": warm,
    "onecycle": lambda o: schedules.OneCycleLR(o, 0.5, total_steps=20),
    "lambda": lambda o: schedules.LambdaLR(o, lambda n: 1 / (n + 1)),
    "restarts": lambda o: schedules.CosineAnnealingWarmRestarts(o, 2, 2),
    "chained": lambda o: schedules.ChainedScheduler([schedules.ExponentialLR(o, 0.9), schedules.ConstantLR(o, 0.1, 3)]),
    "plateau": partial(schedules.ReduceLROnPlateau, patience=0, factor=0.5),
}


def build(
    run_dir: Path | None, make: Make, step_on: str, every: int = 1, lr: float = 0.1, n_epochs: int = 3, save: Any = ()
) -> tuple[Trainer, Any, list[float]]:
    """A trainer, its scheduler, and the learning rate of each of its updates."""
    model = Line()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    schedule, metric = make(optimizer), Up()
    trainer = Trainer(
        model,
        "torch",
        [torch.tensor([float(n)]) / 10 for n in range(BATCHES)],
        optimizer,
        n_epochs=n_epochs,
        callbacks=LRSchedule(schedule, step_on, monitor="up" if step_on == "plateau" else None),
        metrics={"up": metric},
        validate_dataloaders=[torch.ones(1)],
        validate_every=-every,
        seed=1,
        run_dir=run_dir,
        snapshot_every=None,
        progress_bar=None,
    )
    metric.trainer = trainer
    rates: list[float] = []
    trainer.on(Events.on_before_optimizer_step, lambda t, optimizers: rates.append(optimizers[0].param_groups[0]["lr"]))
    for target in save:
        trainer.on(target, lambda trainer: trainer.request_snapshot())
    return trainer, schedule, rates


def expect_the_rates_from_every_snapshot(run_dir: Path, make: Make, step_on: str, every: int, **about: Any) -> int:
    """Run it with a snapshot after each transition, resume from each in fresh objects; return how many there were."""
    bare = build(None, make, step_on, every, **about)[0]
    states = [name for name in bare.machine.names if name not in bare.machine.final]
    straight, _, expected = build(run_dir, make, step_on, every, save=states, **about)
    end = straight.run(num_eval_sanity_batch=1)
    taken = catalogue(run_dir)[0]
    for snapshot in taken[:: 1 if every == 1 else 3]:
        done = snapshot.about()["state"]["optimizer_steps"]
        again, schedule, rates = build(None, make, step_on, every, **about)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.filterwarnings("ignore", ".*has no index")
            assert again.run(resume_from=snapshot.path, num_eval_sanity_batch=1) == end
        assert rates == expected[done:], snapshot.about()["state"]["state"]
        optimizer = again.driver.optimizers[0]  # type: ignore[union-attr]
        assert schedule.optimizer is optimizer
        assert schedule.get_last_lr() == [group["lr"] for group in optimizer.param_groups]
        assert torch.equal(again.driver.model.w, straight.driver.model.w)  # type: ignore[union-attr]
    return len(taken)


@pytest.mark.parametrize("every", [1, 2])
@pytest.mark.parametrize("step_on", ["update", "epoch"])
@pytest.mark.parametrize("name", [name for name in MAKES if name != "plateau"])
def test_saved_after_any_transition_the_rates_and_the_schedule_go_on(
    run_dir: Path, name: str, step_on: str, every: int
) -> None:
    """R10, R27: `get_last_lr()` and the optimizer's groups agree, and it holds the very optimizer in use."""
    assert expect_the_rates_from_every_snapshot(run_dir, MAKES[name], step_on, every) > 15


@pytest.mark.parametrize("every", [1, 2])
def test_saved_after_any_transition_a_schedule_on_a_plateau_goes_on(run_dir: Path, every: int) -> None:
    """R10, R27: with validations every one and every two epochs."""
    assert expect_the_rates_from_every_snapshot(run_dir, MAKES["plateau"], "plateau", every, n_epochs=6) > 25


def test_the_textbook_s_list_of_rates_is_the_list_from_any_snapshot(run_dir: Path) -> None:
    """R10: 100, 100, 100, 100, 10, 10 by epochs; saving before the step of the schedule gave 100 five times."""
    make = lambda o: schedules.MultiStepLR(o, [4], 0.1)  # noqa: E731
    trainer, _, rates = build(None, make, "epoch", lr=100.0, n_epochs=6)
    trainer.run()
    assert rates[::BATCHES] == [100.0, 100.0, 100.0, 100.0, 10.0, 10.0]
    expect_the_rates_from_every_snapshot(run_dir, make, "epoch", 2, lr=100.0, n_epochs=6)


@pytest.mark.parametrize("moment", [m.name for m in Events if m.name not in ("on_save_model", "on_load_model")])
@pytest.mark.parametrize("step_on", ["update", "epoch"])
def test_saved_from_any_moment_that_a_callback_hears_the_rates_go_on(run_dir: Path, moment: str, step_on: str) -> None:
    """R10: before the schedule's own step and after it, whoever was registered first."""
    make = MAKES["multistep"]
    trainer, _, expected = build(run_dir, make, step_on)
    trainer.on(moment, lambda trainer, *args: trainer.request_snapshot(), priority=9)
    trainer.on(moment, lambda trainer, *args: trainer.request_snapshot(), priority=-9)
    end = trainer.run()
    for snapshot in catalogue(run_dir)[0][::4]:
        again, schedule, rates = build(None, make, step_on)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*has no index")
            assert again.run(resume_from=snapshot.path) == end
        assert rates == expected[snapshot.about()["state"]["optimizer_steps"] :]
        assert schedule.last_epoch == (3 if step_on == "epoch" else 3 * BATCHES)


def test_two_schedules_on_two_optimizers_keep_apart(run_dir: Path) -> None:
    """R27, R42."""

    def two(run_dir: Path | None, n_batches: int = -1) -> tuple[Trainer, list[list[float]]]:
        model = nn.Linear(1, 1)
        optimizers = [torch.optim.SGD([p], lr=lr) for p, lr in zip(model.parameters(), (0.1, 0.2), strict=True)]
        held = [LRSchedule(schedules.ExponentialLR(o, g)) for o, g in zip(optimizers, (0.5, 0.9), strict=True)]
        model.train_step = lambda batch: {"loss": model(batch).mean()}  # type: ignore[assignment]
        data = [torch.ones(1, 1)] * 3
        about = {"n_epochs": 2, "n_batches": n_batches, "run_dir": run_dir, "progress_bar": None, "seed": 1}
        trainer = Trainer(model, "torch", data, optimizers, callbacks=held, **about)
        rates: list[list[float]] = []
        trainer.on("Stepped", lambda t, event: rates.append(list(event.lr)))
        return trainer, rates

    straight, expected = two(None)
    straight.run()
    for k in range(1, 6):
        place = run_dir / str(k)
        first, before = two(place, k)
        first.run()
        again, after = two(place)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*has no index")
            again.run(resume_from="auto")
        assert before + after == expected
