"""pytorch-ignite: the trainer that it makes itself, and its `Engine` around a step written by hand.

The trainer's `output_transform` isn't the default, which reads the loss on the host in every step.
"""

from __future__ import annotations

from typing import Any

from ignite.engine import Engine, Events, create_supervised_trainer
from torch.optim import Optimizer

from .work import Work

PACKAGES = ("pytorch-ignite",)


def nothing(engine: Engine) -> None:
    pass


LISTENER = nothing


def supervised(work: Work, listeners: int) -> Optimizer:
    model, optimizer, loader = work.new()
    trainer = create_supervised_trainer(model, optimizer, model.loss, output_transform=lambda x, y, y_pred, loss: loss)
    return _run(trainer, work, listeners, loader, optimizer)


def engine(work: Work, listeners: int) -> Optimizer:
    model, optimizer, loader = work.new()

    def step(engine: Engine, batch: Any) -> Any:
        loss = model.train_step(batch)["loss"]
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return _run(Engine(step), work, listeners, loader, optimizer)


def _run(engine: Engine, work: Work, listeners: int, loader: Any, optimizer: Optimizer) -> Optimizer:
    for _ in range(listeners):
        engine.add_event_handler(Events.ITERATION_COMPLETED, nothing)
    engine.run(loader, max_epochs=1)
    return optimizer


CONTENDERS = {"ignite": supervised, "ignite, Engine": engine}
