"""How often a step reads a tensor's value, which on an accelerator waits for all that was asked of it before.

Every way is counted that torch has: an operator that brings a value to the host, seen where operators are dispatched,
and the methods that read memory without one. The driver measures as it does on an accelerator, losses arriving some
steps later. Whole numbers aren't counted: those are the states of generators and the seeds of loaders, which lie on
the host, and are looked at around a validation. What isn't the engine's work is plain: the optimizer is SGD, since
Adam reads its own counter of steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader

from tachograph.drivers.single import TorchDriver
from tachograph.engine import (
    EMA,
    Events,
    GradClip,
    LRMonitor,
    LRSchedule,
    NanGuard,
    ThroughputMonitor,
    Timer,
    Trainer,
    Warmup,
)
from tests.toys import Mean

BATCHES = 6
METHODS = ("item", "tolist", "cpu", "numpy", "__float__", "__int__", "__bool__", "__index__", "__array__")
OPERATORS = ("_local_scalar_dense", "item", "is_nonzero", "equal", "nonzero", "allclose")


class Counted(TorchDispatchMode):
    """Notes what brings a value to the host."""

    def __init__(self) -> None:
        super().__init__()
        self.reads: list[str] = []

    def note(self, name: str, tensor: torch.Tensor) -> None:
        if tensor.dtype not in (torch.int64, torch.uint8):
            self.reads.append(name)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.removeprefix("aten::")
        if name in OPERATORS:
            self.note(name, args[0])
        return func(*args, **(kwargs or {}))


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Count the reads of the body; one that goes through a method and an operator counts twice."""
    with monkeypatch.context() as patch, Counted() as counting:
        for name in METHODS:
            original = getattr(torch.Tensor, name)

            def noting(self: Any, *args: Any, _name: str = name, _original: Any = original, **kwargs: Any) -> Any:
                counting.note(_name, self)
                return _original(self, *args, **kwargs)

            patch.setattr(torch.Tensor, name, noting)
        yield counting.reads


class Batches:
    """A metric that counts batches, and looks at none."""

    def __init__(self) -> None:
        self.reset()

    def update(self, loss: torch.Tensor) -> None:
        self.seen += 1

    def compute(self) -> int:
        return self.seen

    def reset(self) -> None:
        self.seen = 0


class Model(nn.Linear):
    def train_step(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": self(x).pow(2).mean()}

    validate_step = train_step


def job(run_dir: Path | None, lag: int = 8, **settings: Any) -> Trainer:
    torch.manual_seed(0)
    model = Model(4, 1)
    data: Any = [{"x": torch.randn(4)} for _ in range(2 * BATCHES)]
    if settings.pop("validated", False):
        settings |= {"validate_dataloaders": DataLoader(data, batch_size=2), "validate_every": 3}
    driver = TorchDriver(model, "cpu", measure_lag=lag, precision=settings.pop("precision", None))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    if "schedule" in settings:
        settings["callbacks"] = [settings.pop("schedule")(optimizer)]
    settings = {"n_epochs": 1, "snapshot_every": None, "progress_bar": None, **settings}
    return Trainer(None, driver, DataLoader(data, batch_size=2), optimizer, run_dir=run_dir, **settings)


def steps_read(trainer: Trainer, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """What each step after the first reads, fetch and commit and all."""
    found: list[list[str]] = []
    with counted(monkeypatch) as reads:

        def cut(trainer: Any) -> None:
            found.append([*reads])
            reads.clear()

        trainer.on(Events.on_train_batch_end, cut, priority=-100)
        trainer.run()
    assert len(found) == BATCHES
    return found[1:]


def test_each_way_to_read_a_tensor_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """N11: what the other tests rest on."""
    one = torch.ones(1)
    ways: list[Callable[[], object]] = [
        lambda: one.item(),
        lambda: one.tolist(),
        lambda: one.cpu(),
        lambda: one.numpy(),
        lambda: float(one),
        lambda: int(one),
        lambda: bool(one),
        lambda: repr(one),
        lambda: torch.equal(one, one),
        lambda: one.nonzero(),
        lambda: one.is_nonzero(),
    ]
    for way in ways:
        with counted(monkeypatch) as reads:
            way()
        assert reads


@pytest.mark.parametrize("journal", [True, False])
@pytest.mark.parametrize(
    "settings",
    [
        pytest.param(dict, id="plain"),
        pytest.param(lambda: {"accumulation_steps": 4}, id="accumulated"),
        pytest.param(lambda: {"precision": "bf16"}, id="bf16"),
        pytest.param(lambda: {"callbacks": [GradClip(1.0)]}, id="clipped by norm"),
        pytest.param(lambda: {"callbacks": [GradClip(1.0, "value")]}, id="clipped by value"),
        pytest.param(lambda: {"callbacks": [EMA()]}, id="averaged"),
        pytest.param(lambda: {"callbacks": [LRMonitor(), Timer(), ThroughputMonitor(2)]}, id="watched"),
        pytest.param(
            lambda: {"schedule": lambda optimizer: LRSchedule(torch.optim.lr_scheduler.StepLR(optimizer, 1))},
            id="scheduled",
        ),
        pytest.param(lambda: {"callbacks": [Warmup(0.5)]}, id="warmed up"),
    ],
)
def test_a_step_reads_nothing(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, settings: Callable[[], dict[str, Any]], journal: bool
) -> None:
    """R50, N11: with the journal on and off."""
    trainer = job(run_dir if journal else None, **settings())
    assert steps_read(trainer, monkeypatch) == [[]] * (BATCHES - 1)


def test_a_listener_that_asks_for_a_value_reads_one(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """N11: and a step without it none."""
    trainer = job(run_dir)
    trainer.on(Events.on_before_backward(every=2), lambda trainer, outputs: outputs["loss"].item())
    read = steps_read(trainer, monkeypatch)
    assert [reads.count("item") for reads in read] == [1, 0, 1, 0, 1]


def test_what_a_step_logs_is_read_only_where_somebody_listens(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """N11."""

    def logging(trainer: Any, outputs: Any) -> None:
        trainer.log(scale=outputs["loss"] * 2)

    unheard = job(run_dir)
    unheard.on(Events.on_before_backward, logging)
    assert steps_read(unheard, monkeypatch) == [[]] * (BATCHES - 1)
    heard = job(run_dir.with_name("heard"))
    heard.on(Events.on_before_backward, logging)
    heard.on("on_log", lambda trainer, values: None)
    assert all(reads.count("item") == 1 for reads in steps_read(heard, monkeypatch))


def test_a_guard_reads_once_a_step_at_most(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """N11: whether a loss is finite isn't known without asking."""
    read = steps_read(job(run_dir, callbacks=[NanGuard()]), monkeypatch)
    assert all(sum(name in ("__bool__", "item") for name in reads) <= 2 for reads in read)


def test_a_validation_reads_nothing_but_what_its_metrics_ask_for(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """N11."""
    plain = steps_read(job(run_dir, validated=True, metrics={"batches": Batches()}), monkeypatch)
    asked = steps_read(job(run_dir.with_name("asked"), validated=True, metrics={"loss": Mean()}), monkeypatch)
    assert plain == [[]] * (BATCHES - 1)
    assert any(asked)
