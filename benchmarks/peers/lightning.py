"""Lightning: `barebones=True`, its own switch for measuring what its trainer costs. Nothing is logged or saved."""

from __future__ import annotations

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor
from torch.optim import Adam, Optimizer

from .work import Model, Work

PACKAGES = ("lightning",)


class Quiet(Callback):
    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        pass


LISTENER = Quiet.on_train_batch_end


class Module(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.model = Model()

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.model.train_step(batch)["loss"]

    def configure_optimizers(self) -> Optimizer:
        return Adam(self.model.parameters())


def trainer(work: Work, listeners: int) -> Optimizer:
    made = Trainer(
        accelerator="cpu",
        devices=1,
        max_epochs=1,
        barebones=True,
        use_distributed_sampler=False,
        default_root_dir=work.folder,
        callbacks=[Quiet() for _ in range(listeners)],
    )
    made.fit(Module(), work.loader())
    return made.optimizers[0]


CONTENDERS = {"Lightning": trainer}
