"""torchtnt: its `AutoUnit`, and a `TrainUnit` whose step is written by hand."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.optim import Adam, Optimizer
from torchtnt.framework.auto_unit import AutoUnit
from torchtnt.framework.callback import Callback
from torchtnt.framework.train import train
from torchtnt.framework.unit import TrainUnit

from .work import Work

PACKAGES = ("torchtnt",)


class Quiet(Callback):
    def on_train_step_end(self, state: Any, unit: Any) -> None:
        pass


LISTENER = Quiet.on_train_step_end


class Auto(AutoUnit):
    def compute_loss(self, state: Any, data: Any) -> tuple[Tensor, Any]:
        x, y = data
        outputs = self.module(x)
        return self.module.loss(outputs, y), outputs

    def configure_optimizers_and_lr_scheduler(self, module: Any) -> tuple[Optimizer, None]:
        return Adam(module.parameters()), None


class ByHand(TrainUnit):
    def __init__(self, model: Any, optimizer: Optimizer) -> None:
        super().__init__()
        self.model, self.optimizer = model, optimizer

    def train_step(self, state: Any, data: Any) -> None:
        loss = self.model.train_step(data)["loss"]
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def auto(work: Work, listeners: int) -> Optimizer:
    model, _, loader = work.new()
    unit = Auto(module=model)
    _train(unit, loader, listeners)
    return unit.optimizer


def by_hand(work: Work, listeners: int) -> Optimizer:
    model, optimizer, loader = work.new()
    _train(ByHand(model, optimizer), loader, listeners)
    return optimizer


def _train(unit: TrainUnit, loader: Any, listeners: int) -> None:
    train(unit, loader, max_epochs=1, callbacks=[Quiet() for _ in range(listeners)])


CONTENDERS = {"torchtnt, AutoUnit": auto, "torchtnt, TrainUnit": by_hand}
