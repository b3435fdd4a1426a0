"""Trainings that the contract of drivers is held against. As a program: a server that runs it in several ranks."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from tachograph.drivers import Driver, StubDriver, choose_driver
from tachograph.drivers.contract import DriverContract
from tachograph.engine.contract import RunContract
from tests.jobs.ranks import serve_ranks

SAMPLES = 17  # the last batch is smaller than the others
OVERFLOWS = 4  # the sample whose loss is infinite under fp16


class Points(Dataset[dict[str, torch.Tensor]]):
    """Samples that know their index, each read with noise from every generator."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        noise = torch.rand(4) + random.random() + float(np.random.rand())
        x = torch.linspace(-1, 1, 4) * (index + 1) / SAMPLES + 0.1 * noise
        return {"id": torch.tensor(index), "x": x.float()}


class Net(nn.Module):
    """Draws from every generator while it trains, and keeps running means."""

    def __init__(self, overflows: bool) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.body = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.4))
        self.head = nn.Linear(6, 1)
        self.overflows = overflows

    def forward(self, x: torch.Tensor, id: torch.Tensor) -> dict[str, torch.Tensor]:
        if self.training:
            x = x + 0.01 * random.random() + 0.01 * float(np.random.rand())
        y = self.head(self.body(x)).squeeze(-1).float()
        loss = (y - x.sum(-1)).pow(2).mean()
        if self.overflows and self.training and OVERFLOWS in id.tolist():
            loss = loss * float("inf")
        return {"loss": loss, "y": y}


NUMBERS = [3, 1, 4, 2, 5]


class StubSubject:
    """Whole numbers, without torch."""

    kind: type[StubDriver] = StubDriver

    def make(self) -> tuple[Driver, Any, Any]:
        return self.kind(skip=[1]), list(NUMBERS), None

    def ids_in(self, batch: Any) -> list[Any] | None:
        return [NUMBERS.index(batch)]

    def metrics(self) -> dict[str, Any]:
        return {"value": "value"}


class TorchSubject:
    """A model with everything that a snapshot may lose.

    Attributes:
        name: of the driver.
        kind: its class, if it isn't chosen by its name.
        options: what its constructor takes.
    """

    name = "torch"
    kind: Callable[..., Driver] | None = None
    options: dict[str, Any] = {}

    def make(self) -> tuple[Driver, Any, Any]:
        model = Net(self.options.get("precision") == "fp16")
        kind = self.kind or partial(choose_driver, self.name)
        driver = kind(model, "cpu", **self.options)
        adam = torch.optim.Adam(model.body.parameters(), lr=0.02)
        sgd = torch.optim.SGD(model.head.parameters(), lr=0.05, momentum=0.9)
        return driver, DataLoader(Points(), batch_size=3, shuffle=True), [adam, sgd]

    def evaluation_loader(self) -> Any:
        return DataLoader(Points(), batch_size=4)

    def ids_in(self, batch: Any) -> list[Any] | None:
        return batch["id"].tolist()  # type: ignore[no-any-return]


FP16 = {"precision": "fp16", "scaler_options": {"init_scale": 1024.0, "growth_interval": 3}}

LATE = {"measure_lag": 3}


class DDPSubject(TorchSubject):
    name = "torch_ddp"


class DDPHalfSubject(DDPSubject):
    options = FP16


class FSDPSubject(TorchSubject):
    name = "torch_fsdp"


class FSDPHalfSubject(FSDPSubject):
    options = FP16


RANKS: dict[str, type] = {
    "ddp": DDPSubject,
    "ddp fp16": DDPHalfSubject,
    "fsdp": FSDPSubject,
    "fsdp fp16": FSDPHalfSubject,
}


def work(job: dict[str, Any]) -> None:
    """Hold a driver against the contract in one of several ranks, and print what failed."""
    subject: Any = type("Subject", (RANKS[job["subject"]], DriverContract, RunContract), {})
    for name, error in subject().failures().items():
        print(f"{name}: {type(error).__name__}: {error}")


if __name__ == "__main__":
    serve_ranks(work)
