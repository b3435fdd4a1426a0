"""Accumulation windows: what they divide by, which micro-batches are in them, and a stop inside one."""

from __future__ import annotations

import math
import tempfile
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tachograph.drivers import StubDriver
from tachograph.engine import Events, Journal, Trainer
from tachograph.engine.snapshots import catalogue
from tests.toys import Run, equal, stub


class Line(nn.Module):
    """loss = w * x, so that the gradient of a window is the mean of its x."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(1, dtype=torch.float64))

    def forward(self, batch: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": (self.w * batch).mean()}


class Unknown:
    """A loader that doesn't know its length."""

    def __init__(self, batches: list[Any]) -> None:
        self.batches = batches

    def __iter__(self) -> Any:
        return iter(self.batches)


def lined(
    batches: list[torch.Tensor], k: int, tail: str, known: bool = True, **about: Any
) -> tuple[Trainer, list[float], list[float]]:
    """A trainer, the gradient of each update, and the loss of each batch."""
    model = Line()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    trainer = Trainer(
        model,
        "torch",
        batches if known else Unknown(batches),
        optimizer,
        accumulation_steps=k,
        accumulation_tail=tail,
        **{"run_dir": None, "progress_bar": None, "n_epochs": 1, **about},
    )
    gradients: list[float] = []
    losses: list[float] = []
    trainer.on(Events.on_before_optimizer_step, lambda t, optimizers: gradients.append(float(model.w.grad)))  # type: ignore[arg-type]
    trainer.on("Stepped", lambda t, event: losses.append(event.loss))
    return trainer, gradients, losses


def means(numbers: list[float], k: int) -> list[float]:
    return [math.fsum(numbers[i : i + k]) / len(numbers[i : i + k]) for i in range(0, len(numbers), k)]


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("k", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("n", range(1, 10))
def test_a_window_s_gradient_is_the_mean_over_what_is_in_it_and_losses_are_undivided(
    n: int, k: int, known: bool
) -> None:
    """R06: B mod k = 0 .. k-1 and k > B; the loader may know its length or not."""
    numbers = [2.0 ** (i % 5) for i in range(n)]
    trainer, gradients, losses = lined([torch.tensor([x]) for x in numbers], k, "flush", known)
    trainer.run()
    assert gradients == pytest.approx(means(numbers, k), rel=1e-12)
    assert losses == numbers


def test_the_three_gradients_of_five_items_in_windows_of_two() -> None:
    """R06: the naive divisor makes 2.5 of the last; every micro-batch counts alike, however many samples it holds."""
    batches = [torch.tensor([float(n)]) for n in (1, 2, 3, 4, 5)]
    trainer, gradients, _ = lined(batches, 2, "flush")
    trainer.run()
    assert gradients == [1.5, 3.5, 5.0]
    trainer, gradients, _ = lined([torch.tensor([1.0, 3.0]), torch.tensor([6.0])], 2, "flush")
    trainer.run()
    assert gradients == [4.0]


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("length", [1, 3, 4, 5])
@pytest.mark.parametrize("k", [2, 4, 8])
def test_a_window_that_is_carried_over_or_dropped_divides_by_a_full_one(length: int, k: int, known: bool) -> None:
    """R23, R06: carried over, it is filled by the next epoch; and every micro-batch is in one update at most."""
    numbers = [1.0, 2.0, 4.0, 8.0, 16.0][:length]
    flat = numbers * 4
    trainer, gradients, _ = lined([torch.tensor([x]) for x in numbers], k, "carry", known, n_epochs=4)
    trainer.run()
    assert gradients == means(flat[: len(flat) // k * k], k)
    trainer, gradients, _ = lined([torch.tensor([x]) for x in numbers], k, "drop", known, n_epochs=4)
    trainer.run()
    assert gradients == means(numbers[: length // k * k], k) * 4


# -- stop and resume inside a window -----------------------------------------------------------------------


def two(model: Any) -> list[Any]:
    return [torch.optim.SGD(model.hidden.parameters(), lr=0.1), torch.optim.Adam(model.out.parameters(), lr=0.01)]


def windowed(run_dir: Path | None, tail: str, precision: str, many: bool, known: bool, **about: Any) -> Run:
    """Ten micro-batches an epoch in windows of four, with dropout and augmentation."""
    run = Run(n=20, run_dir=None)
    optimizers: Any = two(run.model) if many else run.optimizer
    loader: Any = run.loader if known else Unknown([run.data[i] for i in range(10)])
    if not known:
        loader = Unknown([{key: value[None] for key, value in run.data[i].items()} for i in range(10)])
    run.trainer = Trainer(
        run.model,
        "torch",
        loader,
        optimizers,
        n_epochs=1,
        accumulation_steps=4,
        accumulation_tail=tail,
        precision=precision,
        seed=7,
        run_dir=run_dir,
        snapshot_every=None,
        progress_bar=None,
        **about,
    )
    return run


CASES = [
    *((tail, "fp32", False, known) for tail in ("flush", "carry", "drop") for known in (True, False)),
    ("flush", "bf16", False, True),
    ("flush", "fp16", True, True),
    ("carry", "fp16", False, True),
    ("flush", "fp32", True, True),
]


@pytest.mark.parametrize(("tail", "precision", "many", "known"), CASES)
def test_stopped_after_each_of_ten_micro_batches_the_weights_are_the_straight_run_s(
    tmp_path: Path, tail: str, precision: str, many: bool, known: bool
) -> None:
    """R41, B15: and the final snapshot says ceil(10 / 4) updates, or floor where the tail isn't flushed."""
    straight = windowed(tmp_path / "straight", tail, precision, many, known)
    end = straight.run()
    assert end.optimizer_steps == (3 if tail == "flush" else 2)
    for stop in range(1, 11):
        run_dir = tmp_path / str(stop)
        first = windowed(run_dir, tail, precision, many, known)
        first.trainer.on(Events.on_train_batch_end, lambda t, stop=stop: t.global_forward_batches == stop and t.stop())
        first.run()
        again = windowed(run_dir, tail, precision, many, known)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*has no index")
            assert again.run(resume_from="auto") == end
        assert equal(again.weights, straight.weights)
        assert again.chain == straight.chain
        last = catalogue(run_dir)[0][-1].about()["state"]
        assert (last["optimizer_steps"], last["global_forward_batches"]) == (end.optimizer_steps, 10)


@settings(max_examples=15, deadline=None)
@given(
    length=st.integers(1, 6),
    k=st.integers(1, 5),
    tail=st.sampled_from(["flush", "carry", "drop"]),
    known=st.booleans(),
    stops=st.lists(st.integers(1, 17), max_size=4),
    skip=st.sets(st.integers(0, 5), max_size=2),
)
def test_whatever_the_windows_a_chain_of_stops_gives_the_same_partition(
    length: int, k: int, tail: str, known: bool, stops: list[int], skip: set[int]
) -> None:
    """R23, R41: each micro-batch in one update, the same ones; skipped updates stay skipped and uncounted."""

    def build(run_dir: Path) -> tuple[Trainer, list[Any]]:
        driver = StubDriver(known_length=known, skip=sorted(skip))
        trainer = stub(
            list(range(length)),
            driver,
            n_epochs=3,
            accumulation_steps=k,
            accumulation_tail=tail,
            run_dir=run_dir,
            snapshot_every=None,
        )
        used: list[Any] = []
        trainer.state["window"] = []
        trainer.on(
            Events.on_after_backward,
            lambda t: t.state.update(window=[*t.state["window"], [t.cur_epoch_idx, t.batch_idx_in_epoch]]),
        )

        def close(trainer: Any, optimizers: Any) -> None:
            used.append((trainer.state["window"], trainer.step_skipped))

        trainer.on(Events.on_after_optimizer_step, close)
        trainer.on(Events.on_after_zero_grad, lambda t, optimizers: t.state.update(window=[]))
        return trainer, used

    with tempfile.TemporaryDirectory() as folder:
        straight, expected = build(Path(folder) / "straight")
        end = straight.run()
        found: list[Any] = []
        for stop in [*sorted(stops), None]:
            trainer, used = build(Path(folder) / "run")
            trainer.on(Events.on_train_batch_end, lambda t, stop=stop: t.global_forward_batches == stop and t.stop())
            trainer.run(resume_from="auto")
            found += used
        assert found == expected
        assert trainer.trainer_state == end
        assert trainer.driver.weight == straight.driver.weight  # type: ignore[union-attr]
        assert end.optimizer_steps == sum(not skipped for _, skipped in expected)
        assert trainer.journal.chain == straight.journal.chain  # type: ignore[union-attr]
        flat = [tuple(entry) for window, _ in expected for entry in window]
        whole = [(e, b) for e in range(3) for b in range(length)]
        kept = {"flush": whole, "carry": whole[: len(whole) // k * k]}.get(tail)
        assert flat == (kept if kept is not None else [(e, b) for e, b in whole if b < length // k * k])


def test_what_a_stop_inside_a_window_saves_is_told_by_the_counters(run_dir: Path) -> None:
    """R41."""
    trainer = stub(list(range(10)), n_epochs=1, accumulation_steps=4, run_dir=run_dir, snapshot_every=None)
    trainer.on(Events.on_train_batch_end, lambda t: t.global_forward_batches == 6 and t.stop())
    trainer.run()
    state = catalogue(run_dir)[0][-1].about()["state"]
    assert (state["accumulated"], state["optimizer_steps"], state["batch_idx_in_epoch"]) == (2, 1, 6)
    again = stub(list(range(10)), n_epochs=1, accumulation_steps=4, run_dir=run_dir)
    again.run(resume_from="auto")
    closed = [r.state.global_forward_batches for r in Journal(run_dir) if r.event == "Stepped" and r.data["closed"]]
    assert closed == [4, 8, 10]
