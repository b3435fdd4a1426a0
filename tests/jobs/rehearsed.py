"""A script as users write it: a function that builds the trainer. Commands are given the path of this file."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tachograph.engine import Trainer


class Net(nn.Sequential):
    def train_step(self, batch: Any) -> dict[str, torch.Tensor]:
        return {"loss": nn.functional.mse_loss(self(batch[0]), batch[1])}


def build(run_dir: Any = None, lr: float = 0.1, **settings: Any) -> Trainer:
    torch.manual_seed(0)
    model = Net(nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 1))
    data = TensorDataset(torch.randn(20, 4), torch.randn(20, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    settings = {"n_epochs": 2, "seed": 3, "progress_bar": None, "snapshot_every": 4, "run_dir": run_dir, **settings}
    return Trainer(model, "torch", DataLoader(data, 4, shuffle=True), optimizer, **settings)


def faster() -> Trainer:
    return build(lr=0.2)


def noisy() -> Trainer:
    """Its seventh step is another one each time, as an operation that isn't deterministic makes it."""
    trainer = build()

    def disturb(trainer: Trainer, optimizers: Any) -> None:
        if trainer.global_forward_batches == 6:
            with torch.no_grad():
                trainer.model[0].weight += float.fromhex(f"0x1.{os.urandom(4).hex()}p-4")

    trainer.on("on_before_optimizer_step", disturb)
    return trainer


def moved() -> Trainer:
    """Its seventh step is another one, and always the same."""
    trainer = build()

    def disturb(trainer: Trainer, optimizers: Any) -> None:
        if trainer.global_forward_batches == 6:
            with torch.no_grad():
                trainer.model[0].weight *= 2

    trainer.on("on_before_optimizer_step", disturb)
    return trainer


def struck() -> Trainer:
    trainer = build()
    trainer.on("on_before_optimizer_step", lambda trainer, optimizers: {}["key"])
    return trainer


def failing() -> Trainer:
    raise ValueError("no data here")


def wrong() -> int:
    return 3


def freeze(trainer: Trainer) -> None:
    """A change for a fork."""
    trainer.model[0].weight.requires_grad_(False)


number = 3
