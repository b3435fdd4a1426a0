"""`NanGuard`: what becomes of a batch whose loss is no number."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler as schedules
from torch.utils.data import DataLoader

from tachograph.drivers import StubDriver
from tachograph.engine import Events, Journal, LRSchedule, NanGuard, Trainer
from tachograph.states import Stepped
from tachograph.states.errors import CallerError
from tests.toys import Indexed, equal, stop_at, stub, transitions

NAN, INF = float("nan"), float("inf")
ARITHMETIC = ("nan loss", "inf loss", "nan gradient", "constant nan")


class Breaks(nn.Module):
    """Its loss or its gradient isn't finite for the samples it is told."""

    def __init__(self, at: tuple[int, ...], how: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(4, 1)
        self.at, self.how = at, how

    def forward(self, x: torch.Tensor, id: torch.Tensor) -> dict[str, torch.Tensor]:
        loss = self.layer(x).pow(2).mean()
        if int(id[0]) in self.at:
            loss = {
                "nan loss": lambda: loss * NAN,
                "inf loss": lambda: loss * INF,
                "nan gradient": lambda: loss + (self.layer.weight.sum() * 0).sqrt(),
                "constant nan": lambda: loss + NAN,
            }[self.how]()
        return {"loss": loss}


def breaking(
    policy: str | None,
    at: tuple[int, ...] = (3,),
    how: str = "nan loss",
    run_dir: Path | None = None,
    n: int = 8,
    **settings: Any,
) -> tuple[Trainer, list[list[torch.Tensor]], list[float]]:
    """A trainer, the weights after each batch and the learning rates."""
    model = Breaks(at, how)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    callbacks: list[Any] = [LRSchedule(schedules.ExponentialLR(optimizer, 0.5))]
    callbacks += [] if policy is None else [NanGuard(policy)]
    settings = {"n_epochs": 1, "seed": 1, **settings}
    trainer = Trainer(
        model,
        "torch",
        DataLoader(Indexed(n), batch_size=1),
        optimizer,
        callbacks=callbacks,
        run_dir=run_dir,
        progress_bar=None,
        **settings,
    )
    weights, rates = [[p.detach().clone() for p in model.parameters()]], []

    def note(trainer: Any, event: Any) -> None:
        weights.append([p.detach().clone() for p in model.parameters()])
        rates.append(optimizer.param_groups[0]["lr"])

    trainer.on(Stepped, note)
    return trainer, weights, rates


def guard_of(trainer: Trainer) -> NanGuard:
    guard = trainer.listeners.callbacks["NanGuard"]
    assert isinstance(guard, NanGuard)
    return guard


@pytest.mark.parametrize("how", ARITHMETIC)
def test_to_raise_is_to_name_the_batch_and_its_samples_before_it_has_done_anything(run_dir: Path, how: str) -> None:
    """R45: the run ends in the state exception, at that step."""
    trainer, weights, _ = breaking("raise", how=how, run_dir=run_dir)
    with pytest.raises(FloatingPointError) as caught:
        trainer.run()
    what = "the gradients aren't finite after" if how == "nan gradient" else "the loss of"
    assert str(caught.value).startswith(f"{what} batch 4 of the run (epoch 0, batch 3, samples [3])")
    assert equal(list(trainer.driver.model.parameters()), weights[3])  # type: ignore[union-attr]
    last = Journal(run_dir).last
    assert last is not None
    assert (last.dest, last.state.global_forward_batches, last.data["kind"]) == ("exception", 3, "NotFinite")


@pytest.mark.parametrize("how", ARITHMETIC)
def test_to_skip_is_to_leave_out_the_update_and_to_count_it(run_dir: Path, how: str) -> None:
    """R45: the record has the true value, the weights are unchanged by step 4, and the schedule doesn't move."""
    trainer, weights, rates = breaking("skip", how=how, run_dir=run_dir)
    heard: list[int] = []
    trainer.on("on_skipped_optimizer_step", lambda t, optimizers: heard.append(t.global_forward_batches))
    end = trainer.run()
    records = [r for r in Journal(run_dir) if r.event == "Stepped"]
    assert [r.data["skipped"] for r in records] == [n == 3 for n in range(8)]
    assert math.isfinite(records[3].data["loss"]) == (how == "nan gradient")
    assert equal(weights[4], weights[3])
    assert not any(equal(weights[n + 1], weights[n]) for n in range(8) if n != 3)
    assert all(torch.isfinite(w).all() for w in weights[-1])
    assert (end.optimizer_steps, end.global_forward_batches, guard_of(trainer).count, heard) == (7, 8, 1, [3])
    assert rates == [0.1 * 0.5 ** (n + 1 - (n >= 3)) for n in range(8)]


@pytest.mark.parametrize("bad", range(6))
@pytest.mark.parametrize("tail", ["flush", "carry", "drop"])
def test_the_whole_window_of_a_bad_batch_is_left_out(bad: int, tail: str) -> None:
    """R45, R06: and no other; one that is dropped counts nothing."""
    trainer, weights, _ = breaking("skip", (bad,), n=6, accumulation_steps=4, accumulation_tail=tail, n_epochs=2)
    windows = {
        "flush": [(0, 4), (4, 6), (6, 10), (10, 12)],
        "carry": [(0, 4), (4, 8), (8, 12)],
        "drop": [(0, 4), (6, 10)],
    }[tail]
    spoiled = [any(n % 6 == bad for n in range(first, last)) for first, last in windows]
    end = trainer.run()
    assert end.optimizer_steps == spoiled.count(False)
    assert guard_of(trainer).count == spoiled.count(True)
    assert all(torch.isfinite(w).all() for w in weights[-1])


@pytest.mark.parametrize("known", [True, False])
def test_a_window_that_is_closed_when_its_epoch_turns_out_to_be_over_is_guarded_too(known: bool) -> None:
    """R45, R53."""
    driver = StubDriver(loss=lambda batch, n: NAN if n == 4 else 1.0, known_length=known)
    trainer = stub([0, 1, 2, 3, 4], driver, n_epochs=2, accumulation_steps=3, callbacks=NanGuard("skip"))
    end = trainer.run()
    assert (end.optimizer_steps, guard_of(trainer).count) == (3, 1)


def test_to_stop_is_to_skip_and_to_stop_and_a_resumed_run_goes_on_behind_it(run_dir: Path) -> None:
    trainer, _, _ = breaking("stop", run_dir=run_dir)
    end = trainer.run()
    assert end.stop_asked == "NanGuard: the loss of batch 4 of the run (epoch 0, batch 3, samples [3]) is nan"
    assert (end.state, end.global_forward_batches, end.optimizer_steps) == ("done", 4, 3)
    again, after, _ = breaking("stop", run_dir=run_dir)
    assert again.run(resume_from="auto").global_forward_batches == 8
    straight, expected, _ = breaking("skip")
    straight.run()
    assert equal(after[-1], expected[-1])


def test_to_continue_is_to_count_and_to_warn_once(run_dir: Path) -> None:
    trainer, weights, _ = breaking("continue", (3, 5), run_dir=run_dir)
    with pytest.warns(UserWarning, match="the loss of batch 4 of the run .* is nan; the run goes on with it") as found:
        end = trainer.run()
    assert len([w for w in found if "goes on with it" in str(w.message)]) == 1
    assert (end.optimizer_steps, guard_of(trainer).count) == (8, 5)  # the weights are NaN from the fourth batch on
    assert torch.isnan(weights[-1][0]).all()


def test_a_run_without_bad_batches_is_what_it_would_be_without_a_guard(tmp_path: Path) -> None:
    plain, expected, _ = breaking(None, (), run_dir=tmp_path / "plain")
    plain.run()
    for policy in ("raise", "skip", "stop", "continue"):
        trainer, weights, _ = breaking(policy, (), run_dir=tmp_path / policy)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            trainer.run()
        assert equal(weights[-1], expected[-1])
        assert trainer.journal.chain == plain.journal.chain  # type: ignore[union-attr]


@pytest.mark.parametrize("stop", range(1, 8))
def test_what_the_guard_knows_goes_on_over_a_resume_inside_a_window_too(tmp_path: Path, stop: int) -> None:
    """R45, R41."""
    settings: dict[str, Any] = {"at": (1, 6), "accumulation_steps": 4}
    straight, expected, _ = breaking("skip", run_dir=tmp_path / "straight", **settings)
    straight.run()
    first, _, _ = breaking("skip", run_dir=tmp_path / "run", **settings)
    stop_at(Events.on_train_batch_end, stop)(first)
    first.run()
    again, weights, _ = breaking("skip", run_dir=tmp_path / "run", **settings)
    again.run(resume_from="auto")
    assert equal(weights[-1], expected[-1])
    assert guard_of(again).count == 2
    assert again.journal.chain == straight.journal.chain  # type: ignore[union-attr]


def test_a_guard_is_added_to_a_run_that_died_of_a_bad_batch(run_dir: Path) -> None:
    """R45: the cure for a run that failed."""
    trainer, _, _ = breaking("raise", run_dir=run_dir, snapshot_every=1)
    with pytest.raises(FloatingPointError):
        trainer.run()
    bare, _, _ = breaking(None, run_dir=run_dir.parent / "bare", snapshot_every=1, n_batches=2, n_epochs=None)
    bare.run()
    for place in (run_dir, run_dir.parent / "bare"):
        again, weights, _ = breaking("skip", run_dir=place)
        assert again.run(resume_from="auto").optimizer_steps == 7
        assert all(torch.isfinite(w).all() for w in weights[-1])


def test_a_gradient_scaler_sees_to_overflowing_gradients_itself(run_dir: Path) -> None:
    """R33: it must be shown them, or its scale would never come down."""

    class Overflows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 1)

        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"loss": self.layer(x).float().mean() * 1e30}

    model = Overflows()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-40)
    kwargs = {"gradscaler_kwargs": {"init_scale": 2.0**40}}
    settings = {"precision": "fp16", "torch_kwargs": kwargs, "n_epochs": 1, "run_dir": None, "progress_bar": None}
    guard = NanGuard("skip")
    trainer = Trainer(model, "torch", DataLoader(Indexed(8), 1), optimizer, callbacks=guard, **settings)
    end = trainer.run()
    scale = trainer.driver.precision.scaler.get_scale()  # type: ignore[union-attr]
    assert guard.count == 0
    assert end.optimizer_steps < 8
    assert scale < 2.0**40


def test_an_infinite_loss_of_the_stub_is_none_either() -> None:
    driver = StubDriver(loss=lambda batch, n: (1.0, INF, -INF, NAN, 2.0)[n])
    trainer = stub([1] * 5, driver, n_epochs=1, callbacks=NanGuard("skip"))
    assert trainer.run().optimizer_steps == 2
    assert guard_of(trainer).count == 3


def test_another_policy_is_refused() -> None:
    with pytest.raises(CallerError, match="policy must be one of raise, skip, stop, continue, not 'ignore'"):
        NanGuard("ignore")


def test_a_run_that_raised_is_gone_on_with_under_another_policy_and_says_so(run_dir: Path) -> None:
    """R40."""
    trainer, _, _ = breaking("raise", run_dir=run_dir)
    with pytest.raises(FloatingPointError):
        trainer.run()
    assert transitions(run_dir)[-1] == "step --Failed--> exception"
    again, _, _ = breaking("skip", run_dir=run_dir)
    said: list[str] = []
    again.on(Events.on_notice, lambda t, text: said.append(text))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*isn't exact")
        assert again.run(resume_from="auto").state == "done"
    assert "callbacks.NanGuard.policy changed from raise to skip" in said
