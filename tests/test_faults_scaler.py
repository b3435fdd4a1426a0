"""The gradient scaler: its scale, its tracker and what it skipped go on; whatever a driver owns is in the snapshot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler as schedules
from torch.utils.data import DataLoader

from tachograph.drivers import choose_driver
from tachograph.drivers.single import TorchDriver
from tachograph.engine import EarlyStopping, LRSchedule, Trainer
from tachograph.engine.snapshots import catalogue
from tachograph.states import Stepped
from tachograph.states.errors import CallerError
from tests.toys import Indexed, Run, equal, stub
from tests.windows import build, weights_of


class Blows(nn.Module):
    """Overflows in fp16 for the samples it is told."""

    def __init__(self, at: tuple[int, ...]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 1)
        self.at = at

    def forward(self, x: torch.Tensor, id: torch.Tensor) -> dict[str, torch.Tensor]:
        loss = self.two(self.one(x)).float().pow(2).mean()
        return {"loss": loss * 1e38 if int(id[0]) in self.at else loss}


SCALER = {"init_scale": 256.0, "growth_interval": 3}


def scaled(
    run_dir: Path | None, at: tuple[int, ...], k: int = 1, many: bool = False, tail: str = "flush", n: int = 8
) -> tuple[Trainer, list[Any]]:
    """A run in fp16, and after each step: its scale, its tracker, what was skipped, the rates and the counters."""
    model = Blows(at)
    parts = [model.one, model.two] if many else [model]
    optimizers = [torch.optim.SGD(part.parameters(), lr=0.4, momentum=0.9) for part in parts]
    trainer = Trainer(
        model,
        "torch",
        DataLoader(Indexed(n), batch_size=1),
        optimizers,
        n_epochs=2,
        callbacks=[LRSchedule(schedules.ExponentialLR(o, 0.5)) for o in optimizers],
        precision="fp16",
        accumulation_steps=k,
        accumulation_tail=tail,
        torch_kwargs={"gradscaler_kwargs": SCALER},
        seed=1,
        run_dir=run_dir,
        snapshot_every=None,
        progress_bar=None,
    )
    heard: list[Any] = []

    def note(trainer: Any, event: Any) -> None:
        scaler = trainer.driver.precision.scaler
        state = trainer.trainer_state
        heard.append((scaler.get_scale(), scaler._get_growth_tracker(), event.skipped, event.lr, state.optimizer_steps))

    trainer.on(Stepped, note)
    return trainer, heard


@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize(("k", "tail"), [(1, "flush"), (3, "flush"), (3, "carry"), (3, "drop")])
def test_stopped_after_any_batch_the_scaler_goes_on_as_in_the_straight_run(
    tmp_path: Path, k: int, tail: str, many: bool
) -> None:
    """R33, R41: infinities in the middle, at a window's end and in the epoch's last window; as many are skipped."""
    at = (2, 5, 7)
    straight, expected = scaled(None, at, k, many, tail)
    end = straight.run()
    assert any(skipped for _, _, skipped, _, _ in expected)
    for stop in range(1, 16, 1 if k == 1 and not many else 2):
        first, before = scaled(tmp_path / str(stop), at, k, many, tail)
        first.on(Stepped, lambda t, event, stop=stop: t.global_forward_batches == stop and t.stop())
        first.run()
        again, after = scaled(tmp_path / str(stop), at, k, many, tail)
        assert again.run(resume_from="auto") == end
        assert before + after == expected
        assert equal(*(list(t.driver.model.parameters()) for t in (again, straight)))  # type: ignore[union-attr]
        states = [t.driver.precision.scaler.state_dict() for t in (again, straight)]  # type: ignore[union-attr]
        assert states[0] == states[1]


def test_a_skipped_step_moves_the_micro_step_and_neither_the_update_nor_the_schedule(run_dir: Path) -> None:
    """R33: an infinity at step 5."""
    trainer, heard = scaled(run_dir, (5,))
    end = trainer.run()
    assert [skipped for _, _, skipped, _, _ in heard] == [n % 8 == 5 for n in range(16)]
    assert [steps for *_, steps in heard] == [n + 1 - (n >= 5) - (n >= 13) for n in range(16)]
    rates = [lr[0] for _, _, _, lr, _ in heard]
    assert rates[6] == rates[5]  # used by the update that was skipped, and by the next one
    assert len(set(rates)) == 14
    assert (end.optimizer_steps, end.global_forward_batches) == (14, 16)


@pytest.mark.parametrize("before", ["fresh", "scaled", "unscaled", "stepped", "overflowed"])
@pytest.mark.parametrize("saved", ["fresh", "scaled", "unscaled", "stepped", "overflowed"])
def test_what_was_saved_of_a_scaler_is_what_is_loaded_whatever_was_there(
    tmp_path: Path, saved: str, before: str
) -> None:
    """R54: load(save(x)) == x, before and after the first unscale, in an object that has already stepped too."""

    def driver_in(state: str) -> TorchDriver:
        model = Blows((1,))
        driver = choose_driver("torch", model, "cpu", precision="fp16", scaler_options=SCALER)
        assert isinstance(driver, TorchDriver)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        driver.set_optimizers(optimizer)
        driver.set_dataloader(DataLoader(Indexed(4), batch_size=1))
        driver.setup(1, False)
        scaler = driver.precision.scaler
        x = Indexed(4)[0]["x"][None]
        if state == "fresh":
            return driver
        sample = 1 if state == "overflowed" else 0
        driver.backward(driver.train_step({"x": x, "id": torch.tensor([sample])})["loss"], 1)
        if state == "unscaled":
            scaler.unscale_(optimizer)
        if state in ("stepped", "overflowed"):
            for _ in range(3 if state == "stepped" else 1):
                driver.optimizer_step()
        return driver

    one, other = driver_in(saved), driver_in(before)
    state = one.precision.scaler.state_dict()
    one.save(one.capture({}), tmp_path)
    _, held = other.read(tmp_path)
    other.restore(held)
    assert other.precision.scaler.state_dict() == state
    assert one.precision.scaler.state_dict() == state
    third = driver_in("fresh")
    other_dir = tmp_path / "again"
    other_dir.mkdir()
    other.save(other.capture({}), other_dir)
    third.restore(third.read(other_dir)[1])
    assert third.precision.scaler.state_dict() == state


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_everything_that_a_driver_owns_is_in_its_snapshots(run_dir: Path, precision: str) -> None:
    """R68: model, optimizer, schedule, scaler if there is one, generators, loader, callbacks, counters."""

    def callbacks(run: Run) -> list[Any]:
        return [LRSchedule(schedules.ExponentialLR(run.optimizer, 0.9)), EarlyStopping("loss")]

    class Loss:
        def reset(self) -> None: ...

        def update(self, loss: Any) -> None: ...

        def compute(self) -> float:
            return 1.0

    about = {"metrics": {"loss": Loss()}, "validate_dataloaders": DataLoader(Indexed(2), batch_size=2)}
    Run(run_dir=run_dir, n_epochs=1, precision=precision, callbacks=callbacks, **about).run()
    for snapshot in catalogue(run_dir)[0]:
        assert {"model.pt", "rank-0.pt", "state.json"} <= set(snapshot.files)
        held = torch.load(snapshot.path / "rank-0.pt", weights_only=True)
        needed = {"optimizers", "scaler", "built", "generators", "gradients", "losses", "loader", "batch", "extra"}
        assert needed <= set(held)
        assert (held["scaler"] is not None) == (precision == "fp16")
        assert set(held["extra"]["listeners"]["callbacks"]) >= {"LRSchedule", "EarlyStopping"}
        assert held["optimizers"][0]["state"]
        state = snapshot.about()["state"]
        assert {"global_forward_batches", "optimizer_steps", "samples", "place"} <= set(state)


def test_the_stub_owns_what_it_saves(run_dir: Path) -> None:
    """R68."""
    stub(run_dir=run_dir).run()
    held = json.loads((catalogue(run_dir)[0][0].path / "rank-0.json").read_text())
    assert {"weight", "gradient", "generator", "steps", "updates", "batch", "extra"} <= set(held)


@pytest.mark.parametrize("precision", ["fp8", "tf32", "16", "half", "amp"])
def test_a_precision_that_a_driver_does_not_know_is_refused(precision: str) -> None:
    """R68."""
    model = Blows(())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(CallerError, match=f"precision must be one of fp32, bf16, fp16, not '{precision}'"):
        Trainer(model, "torch", [1], optimizer, precision=precision, run_dir=None, progress_bar=None)


class Pair(nn.Module):
    """Two parameters, of which the gradient of one overflows at the samples it is told."""

    def __init__(self, at: tuple[int, ...]) -> None:
        super().__init__()
        self.calm, self.wild = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))
        self.at = at

    def forward(self, id: torch.Tensor) -> dict[str, torch.Tensor]:
        factor = 1e38 if int(id[0]) in self.at else 1.0
        return {"loss": (self.calm + self.wild * factor).sum()}


@pytest.mark.parametrize("wild_first", [True, False])
@pytest.mark.parametrize("looked_at", [True, False])
def test_of_several_optimizers_all_take_a_step_or_none_does(wild_first: bool, looked_at: bool) -> None:
    """R33: an infinity in the gradients of one skips the update of all; a listener sees them without the scale."""
    model = Pair((2,))
    parts = [model.wild, model.calm] if wild_first else [model.calm, model.wild]
    optimizers = [torch.optim.SGD([part], lr=0.1) for part in parts]
    trainer = Trainer(
        model,
        "torch",
        DataLoader(Indexed(4), batch_size=1),
        optimizers,
        n_epochs=1,
        callbacks=[LRSchedule(schedules.ExponentialLR(o, 0.5)) for o in optimizers],
        precision="fp16",
        torch_kwargs={"gradscaler_kwargs": {"init_scale": 16.0}},
        run_dir=None,
        progress_bar=None,
    )

    gradients: list[float] = []
    if looked_at:
        trainer.on("on_before_optimizer_step", lambda trainer, optimizers: gradients.append(float(model.calm.grad)))
    values: list[tuple[float, float]] = []
    trainer.on(Stepped, lambda t, event: values.append((float(model.calm.detach()), float(model.wild.detach()))))
    end = trainer.run()
    assert values[2] == values[1]
    assert len(set(values)) == 3
    assert end.optimizer_steps == 3
    assert gradients == ([1.0] * 4 if looked_at else [])
    assert [o.param_groups[0]["lr"] for o in optimizers] == [0.0125, 0.0125]
    assert trainer.driver.precision.scaler.get_scale() == 8.0  # type: ignore[union-attr]


def test_after_an_update_that_a_listener_left_out_gradients_are_unscaled_again() -> None:
    """R33: though they had been unscaled for the update that wasn't taken; and the scale doesn't move for it."""

    def run(precision: str) -> tuple[list[float], Any]:
        model = Pair(())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        about = {"n_epochs": 1, "run_dir": None, "progress_bar": None, "precision": precision}
        if precision == "fp16":
            about["torch_kwargs"] = {"gradscaler_kwargs": {"init_scale": 16.0, "growth_interval": 2}}
        trainer = Trainer(model, "torch", DataLoader(Indexed(6), batch_size=1), optimizer, **about)

        def leave_out(trainer: Any, optimizers: Any) -> None:
            assert float(model.calm.grad) == 1.0  # type: ignore[arg-type]
            if trainer.global_forward_batches in (0, 3):
                trainer.skip_update()

        trainer.on("on_before_optimizer_step", leave_out)
        values: list[float] = []
        trainer.on(Stepped, lambda t, event: values.append(float(model.calm.detach())))
        trainer.run()
        return values, trainer.driver.precision.scaler  # type: ignore[union-attr]

    values, scaler = run("fp16")
    assert values == run("fp32")[0]
    assert scaler.get_scale() == 16.0 * 2**2


@pytest.mark.parametrize("weight", [None, "samples"])
@pytest.mark.parametrize("many", [False, True])
def test_updates_that_were_left_out_and_those_that_overflowed_stay_apart_over_a_resume(
    tmp_path: Path, many: bool, weight: Any
) -> None:
    """R33, R41: an overflow halves the scale, a listener's skip doesn't; stopped anywhere, both are as they were."""

    def ready(name: str) -> tuple[Trainer, list[Any]]:
        trainer = build(
            "fp16",
            k=2,
            many=many,
            lengths=(3,) * 10,
            overflows=(4,),
            loss_weight=weight,
            run_dir=tmp_path / name,
            snapshot_every=None,
        )
        heard: list[Any] = []

        def leave_out(trainer: Any, optimizers: Any) -> None:
            if trainer.global_forward_batches in (3, 5, 11):  # the second has overflowed too
                trainer.skip_update()

        def note(trainer: Any, event: Any) -> None:
            scaler = trainer.driver.precision.scaler
            heard.append((event.skipped, scaler.get_scale(), scaler._get_growth_tracker()))

        trainer.on("on_before_optimizer_step", leave_out)
        trainer.on(Stepped, note)
        return trainer, heard

    straight, expected = ready("straight")
    end = straight.run()
    assert [n for n, (skipped, _, _) in enumerate(expected) if skipped] == [3, 5, 11, 15]
    assert [scale for _, scale, _ in expected[3:18:2]] == [64.0, 64.0, 64.0, 128.0, 128.0, 128.0, 64.0, 64.0]
    assert end.optimizer_steps == 6
    for stop in (3, 4, 5, 6, 11, 16):
        first, before = ready(str(stop))
        first.on(Stepped, lambda t, event, stop=stop: t.global_forward_batches == stop and t.stop())
        first.run()
        again, after = ready(str(stop))
        assert again.run(resume_from="auto") == end
        assert before + after == expected
        assert equal(weights_of(again), weights_of(straight))
