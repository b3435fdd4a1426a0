"""Nothing of a step outlives it: neither its batch, nor its outputs, nor its loss with the graph behind it.

The collector of cycles is off, so that what hangs in a cycle counts as alive; except after an error.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from tachograph.engine import (
    EMA,
    Callback,
    EarlyStopping,
    Events,
    GradClip,
    GradNormMonitor,
    LRMonitor,
    NanGuard,
    SpikeGuard,
    Timer,
    Trainer,
)
from tests.toys import Mean

N = 8


class Watched(nn.Linear):
    """A model that keeps weak references to all that goes through it, and to nothing else."""

    def __init__(self) -> None:
        super().__init__(4, 1)
        self.seen: list[weakref.ref[torch.Tensor]] = []
        self.fail_at = 0
        self.steps = 0

    def train_step(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        self.steps += 1
        predicted = self(x)
        outputs = {"loss": predicted.pow(2).mean(), "predicted": predicted}
        self.watch({"x": x}, outputs)
        if self.steps == self.fail_at:
            raise OSError("the cable was pulled")
        return outputs

    def validate_step(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        outputs = {"loss": self(x).pow(2).mean()}
        self.watch({"x": x}, outputs)
        return outputs

    def watch(self, *held: dict[str, torch.Tensor]) -> None:
        self.seen += [weakref.ref(tensor) for of in held for tensor in of.values()]

    def alive(self) -> int:
        return sum(ref() is not None for ref in self.seen)


class Nosy(Callback):
    """Hears everything, and is handed what there is."""

    def on_train_batch_begin(self, trainer: Any, batch: Any, indices: Any) -> None:
        batch["x"]

    def on_before_backward(self, trainer: Any, outputs: Any) -> None:
        outputs["loss"]

    def on_after_backward(self, trainer: Any) -> None:
        pass


@contextmanager
def uncollected() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def job(run_dir: Path | None = None, workers: int = 0, **settings: Any) -> tuple[Trainer, Watched]:
    torch.manual_seed(0)
    model = Watched()
    data: Any = [{"x": torch.randn(4)} for _ in range(N)]
    loader = DataLoader(data, batch_size=2, num_workers=workers)
    if settings.pop("validated", False):
        settings |= {"validate_dataloaders": DataLoader(data, batch_size=2), "validate_every": 2}
        settings["metrics"] = {"loss": Mean()}
    settings = {"n_epochs": 2, "progress_bar": None, **settings}
    driver, optimizer = settings.pop("driver", "torch"), torch.optim.SGD(model.parameters(), 0.01)
    return Trainer(model, driver, loader, optimizer, run_dir=run_dir, **settings), model


def own_step(trainer: Any, batch: Any) -> None:
    outputs = trainer.train_step(batch)
    trainer.backward(outputs)
    trainer.step()
    trainer.zero_grad()


def callbacks() -> list[Any]:
    guards = [NanGuard(), SpikeGuard(), GradClip(1.0), GradNormMonitor(), LRMonitor(), EMA(), Timer()]
    return [*guards, EarlyStopping("loss", larger_better=False, patience=100), Nosy()]


@pytest.mark.parametrize("journal", [True, False])
@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(dict, id="plain"),
        pytest.param(lambda: {"accumulation_steps": 3}, id="accumulated"),
        pytest.param(lambda: {"validated": True}, id="validated"),
        pytest.param(lambda: {"validated": True, "callbacks": callbacks()}, id="callbacks"),
        pytest.param(lambda: {"batch_step_fn": own_step}, id="a step of its own"),
        pytest.param(lambda: {"output_mapping": lambda outputs: {"loss": outputs["loss"]}}, id="mapped"),
        pytest.param(lambda: {"precision": "bf16"}, id="bf16"),
        pytest.param(lambda: {"snapshot_every": 1}, id="a snapshot each batch"),
        pytest.param(lambda: {"workers": 1, "n_epochs": 1}, id="a worker"),
        pytest.param(lambda: {"progress_bar": "raw"}, id="progress"),
    ],
)
def test_when_the_next_batch_is_fetched_nothing_is_left_of_the_one_before(
    run_dir: Path, settings: Callable[[], dict[str, Any]], journal: bool
) -> None:
    """N10."""
    trainer, model = job(run_dir if journal else None, **settings())
    left: list[int] = []
    trainer.on(Events.on_train_batch_begin, lambda trainer, batch, indices: left.append(model.alive()))
    trainer.on(Events.on_train_batch_end, lambda trainer: left.append(model.alive()))
    with uncollected():
        trainer.run()
        left.append(model.alive())
    assert len(model.seen) >= 3 * N // 2
    assert left == [0] * len(left)


@pytest.mark.parametrize("windows", [1, 2])
def test_of_a_model_that_exchanges_gradients_nothing_is_left_either(run_dir: Path, windows: int) -> None:
    """N10: in a group of one process."""
    meeting = f"file://{run_dir.with_name('meeting')}"
    torch.distributed.init_process_group("gloo", init_method=meeting, rank=0, world_size=1)
    try:
        trainer, model = job(run_dir, driver="torch_ddp", accumulation_steps=windows)
        left: list[int] = []
        trainer.on(Events.on_train_batch_begin, lambda trainer, batch, indices: left.append(model.alive()))
        with uncollected():
            trainer.run()
    finally:
        torch.distributed.destroy_process_group()
    assert len(model.seen) == 3 * N
    assert left == [0] * len(left)


def test_listeners_and_filters_that_heard_a_batch_keep_nothing_of_it(run_dir: Path) -> None:
    """N10: for every moment of a step, thinned or not."""
    trainer, model = job(run_dir)
    left: list[int] = []
    for moment in (Events.on_train_batch_begin, Events.on_before_backward, Events.on_after_backward):
        trainer.on(moment, lambda trainer, *given: None)
        trainer.on(moment(every=2), lambda trainer, *given: None)
    trainer.on("step", lambda trainer: None)
    trainer.on("Stepped", lambda trainer, event: None)
    trainer.on("step -> fetch", lambda trainer: left.append(model.alive()))
    with uncollected():
        trainer.run()
    assert left
    assert left == [0] * len(left)


@pytest.mark.filterwarnings("ignore:.* was taken when an error had struck")
def test_what_an_error_kept_of_its_step_is_gone_when_the_trainer_trains_again(run_dir: Path) -> None:
    """N10: `trainer.exception` has a traceback, and that the step's tensors, for a debugger; the next run lets go."""
    trainer, model = job(run_dir)
    model.fail_at = 3
    with pytest.raises(OSError, match="the cable was pulled"):
        trainer.run()
    left: list[int] = []

    def look(trainer: Any, batch: Any, indices: Any) -> None:
        gc.collect()  # the frames of a traceback hold the error that holds it
        left.append(model.alive())

    trainer.on(Events.on_train_batch_begin, look)
    trainer.run(resume_from=run_dir)
    assert left
    assert left == [0] * len(left)


def test_a_trainer_that_failed_and_is_forgotten_leaves_nothing(run_dir: Path) -> None:
    """N10: an error that was handled, memory running out say, stands in nobody's way."""
    trainer, model = job(run_dir)
    model.fail_at = 3
    try:
        trainer.run()
    except OSError:
        trainer.exception = None
    del trainer
    gc.collect()
    assert model.alive() == 0
