"""Builders of trainers for the assertions of `tachograph.engine.testing`: sound ones, and ones with a planted fault."""

from __future__ import annotations

import os
import time
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from tachograph.engine import Callback, Trainer

CALLS = 0  # a module's global, which the faulty `globally` counts in


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.3), nn.Linear(4, 1))

    def train_step(self, batch: Any) -> dict[str, Any]:
        return {"loss": nn.functional.mse_loss(self.body(batch[0]), batch[1])}

    validate_step = train_step


class Mean:
    def reset(self) -> None:
        self.losses: list[float] = []

    def update(self, loss: torch.Tensor) -> None:
        self.losses.append(float(loss))

    def compute(self) -> float:
        return sum(self.losses) / len(self.losses)


def points(n: int) -> TensorDataset:
    made = torch.Generator().manual_seed(5)
    return TensorDataset(torch.randn(n, 4, generator=made), torch.randn(n, 1, generator=made))


def trainer(
    settings: dict[str, Any], *, net: Any = Net, data: Any = None, init_seed: int | None = 0, **more: Any
) -> Trainer:
    """Build one that validates within an epoch and at its end, and accumulates; an epoch has 8 batches."""
    if init_seed is not None:
        torch.manual_seed(init_seed)
    model = net()
    return Trainer(
        model,
        "torch",
        DataLoader(points(24) if data is None else data, 3, shuffle=True),
        torch.optim.Adam(model.parameters(), lr=0.05),
        validate_dataloaders=DataLoader(points(6), 3),
        metrics={"loss": Mean()},
        validate_every=(5, -1),
        **{"accumulation_steps": 3, "seed": 1, "progress_bar": None, "run_dir": None, **more, **settings},
    )


def sound(**settings: Any) -> Trainer:
    return trainer(settings)


def without_parameters() -> Trainer:
    return trainer({})


# -- planted faults ----------------------------------------------------------------------------------------


def unseeded_model(**settings: Any) -> Trainer:
    return trainer(settings, init_seed=None)


def unseeded_run(**settings: Any) -> Trainer:
    return trainer({**settings, "seed": None}, init_seed=None)


class Entropy(Dataset[Any]):
    """Draws from the system's entropy, which nobody can seed."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, i: int) -> Any:
        return torch.full((4,), float(i)) + os.urandom(1)[0], torch.ones(1)


def unseeded_data(**settings: Any) -> Trainer:
    return trainer(settings, data=Entropy())


class Aging(Dataset[Any]):
    """Gives other samples the more of them were read."""

    def __init__(self) -> None:
        self.read = 0

    def __len__(self) -> int:
        return 24

    def __getitem__(self, i: int) -> Any:
        self.read += 1
        return torch.full((4,), float(i)) + 0.01 * self.read, torch.ones(1)


def aging_data(**settings: Any) -> Trainer:
    return trainer(settings, data=Aging())


class Forgetful(Callback):
    """Lowers the learning rate by a count that it doesn't save."""

    def __init__(self) -> None:
        self.updates = 0

    def on_before_optimizer_step(self, trainer: Any, optimizers: Any) -> None:
        self.updates += 1
        for group in optimizers[0].param_groups:
            group["lr"] = 0.05 / (1 + self.updates)


def forgetful_callback(**settings: Any) -> Trainer:
    return trainer(settings, callbacks=Forgetful())


class Counting(Net):
    """Scales the loss by a count in a plain attribute."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def train_step(self, batch: Any) -> dict[str, Any]:
        self.calls += 1
        return {"loss": super().train_step(batch)["loss"] * (1 + 0.01 * self.calls)}


def counting_model(**settings: Any) -> Trainer:
    return trainer(settings, net=Counting)


class Rough(Net):
    """Stands for an operation whose last bits depend on when its threads arrive."""

    def train_step(self, batch: Any) -> dict[str, Any]:
        return {"loss": super().train_step(batch)["loss"] * (1 + 1e-6 * (time.perf_counter_ns() % 1000))}


def rough_model(**settings: Any) -> Trainer:
    return trainer(settings, net=Rough)


class Global(Net):
    """Scales the loss by a count that outlives the trainer in this process, and dies with it."""

    def train_step(self, batch: Any) -> dict[str, Any]:
        global CALLS
        CALLS += self.training
        return {"loss": super().train_step(batch)["loss"] * (1 + 0.01 * CALLS)}

    validate_step = Net.train_step


def globally(**settings: Any) -> Trainer:
    return trainer(settings, net=Global)


class Hashed(Net):
    """Scales the loss by what the process's hash seed decides."""

    def train_step(self, batch: Any) -> dict[str, Any]:
        return {"loss": super().train_step(batch)["loss"] * (1 + hash("a word") % 1000)}

    validate_step = Net.train_step


def hashed(**settings: Any) -> Trainer:
    return trainer(settings, net=Hashed)
