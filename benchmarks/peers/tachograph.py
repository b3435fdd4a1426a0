"""Tachograph: its `Trainer` with the journal on, and without one. No snapshots, no progress bar."""

from __future__ import annotations

import itertools
from pathlib import Path

from torch.optim import Optimizer

from tachograph.engine import Trainer

from .work import Work

PACKAGES = ("attrs", "msgspec", "transitions")
MORE_LISTENERS = (100,)  # one is too cheap to be seen among ten
_number = itertools.count()


def nothing(trainer: Trainer) -> None:
    pass


LISTENER = nothing


def journal_off(work: Work, listeners: int) -> Optimizer:
    return _run(work, listeners, None)


def journal_on(work: Work, listeners: int) -> Optimizer:
    return _run(work, listeners, Path(work.folder) / f"run-{next(_number)}")


def _run(work: Work, listeners: int, run_dir: Path | None) -> Optimizer:
    model, optimizer, loader = work.new()
    trainer = Trainer(
        model, "torch", loader, optimizer, n_epochs=1, run_dir=run_dir, snapshot_every=None, progress_bar=None
    )
    for _ in range(listeners):
        trainer.on("on_train_batch_end", nothing)
    trainer.run()
    return optimizer


CONTENDERS = {"journal off": journal_off, "journal on": journal_on}
