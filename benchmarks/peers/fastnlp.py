"""fastNLP 1.0: its `Trainer` without a progress bar."""

from __future__ import annotations

from typing import Any

from fastNLP import Callback, Trainer
from torch.optim import Optimizer

from .work import Work

PACKAGES = ("fastnlp",)


class Quiet(Callback):
    def on_train_batch_end(self, trainer: Any) -> None:
        pass


LISTENER = Quiet.on_train_batch_end


def trainer(work: Work, listeners: int) -> Optimizer:
    model, optimizer, loader = work.new()
    made = Trainer(
        model,
        loader,
        optimizer,
        driver="torch",
        device="cpu",
        n_epochs=1,
        progress_bar=None,
        callbacks=[Quiet() for _ in range(listeners)] or None,
    )
    made.run()
    return optimizer


CONTENDERS = {"fastNLP": trainer}
