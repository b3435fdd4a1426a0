"""Composer: its `Trainer` without a progress bar and without loggers.

It imports torchvision, for images only. The release for this torch may be one for GPUs, whose operators a torch without
them can't load: the shapes of these operators, which is where the import fails, are left out.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

sys.modules["torchvision._meta_registrations"] = ModuleType("torchvision._meta_registrations")

from composer import Callback, ComposerModel, Trainer  # noqa: E402
from torch import Tensor  # noqa: E402
from torch.optim import Adam, Optimizer  # noqa: E402

from .work import Model, Work  # noqa: E402

PACKAGES = ("mosaicml", "torchvision")


class Quiet(Callback):
    def batch_end(self, state: Any, logger: Any) -> None:
        pass


LISTENER = Quiet.batch_end


class Composed(ComposerModel):
    def __init__(self) -> None:
        super().__init__()
        self.model = Model()

    def forward(self, batch: Any) -> Tensor:
        return self.model(batch[0])

    def loss(self, outputs: Tensor, batch: Any) -> Tensor:
        return self.model.loss(outputs, batch[1])


def trainer(work: Work, listeners: int) -> Optimizer:
    model = Composed()
    optimizer = Adam(model.parameters())
    made = Trainer(
        model=model,
        train_dataloader=work.loader(),
        optimizers=optimizer,
        max_duration="1ep",
        device="cpu",
        progress_bar=False,
        log_to_console=False,
        callbacks=[Quiet() for _ in range(listeners)],
    )
    made.fit()
    made.close()
    return optimizer


CONTENDERS = {"Composer": trainer}
