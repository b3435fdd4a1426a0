"""skorch: a `NeuralNet` without validation, and without the callbacks that it has by default.

Its training loop reads the loss on the host in every step, which can't be turned off.
"""

from __future__ import annotations

from skorch import NeuralNet
from skorch.callbacks import Callback
from torch import nn
from torch.optim import Adam, Optimizer

from .work import BATCH, Model, Work

PACKAGES = ("skorch",)


class Quiet(Callback):
    def on_batch_end(self, net: NeuralNet, batch: object = None, training: bool = False, **kwargs: object) -> None:
        pass


LISTENER = Quiet.on_batch_end


def net(work: Work, listeners: int) -> Optimizer:
    trained = NeuralNet(
        Model,
        nn.CrossEntropyLoss,
        optimizer=Adam,
        lr=1e-3,
        max_epochs=1,
        batch_size=BATCH,
        iterator_train__shuffle=True,
        train_split=None,
        callbacks=[(f"quiet_{i}", Quiet()) for i in range(listeners)],
        callbacks__epoch_timer=None,
        callbacks__train_loss=None,
        callbacks__valid_loss=None,
        callbacks__print_log=None,
        verbose=0,
    )
    trained.fit(work.data, y=None)
    return trained.optimizer_


CONTENDERS = {"skorch": net}
