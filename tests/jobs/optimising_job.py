"""A run with every callback that optimises or measures at once, as a program that is killed and started again.

As a program it is a server of forked processes; see `forks`.
"""

from __future__ import annotations

import os
import random
import signal
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader

from tachograph.engine import (
    EMA,
    Events,
    GradClip,
    GradNormMonitor,
    LRMonitor,
    MemoryMonitor,
    ModelSummary,
    NanGuard,
    SpikeGuard,
    ThroughputMonitor,
    TimeLimit,
    Timer,
    Trainer,
    Warmup,
)
from tests.jobs import forks
from tests.jobs.exact_job import NoisyLoss, Points, after_everyone, outcome

BATCHES = 14  # of an epoch
SPIKES = 5  # this sample makes a batch's loss a hundredfold
OVERFLOWS = 21  # and this one makes it overflow


class Net(nn.Module):
    """A classifier with a normalisation and dropout, whose loss misbehaves for two samples."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.4))
        self.head = nn.Linear(8, 2)

    def forward(self, x: torch.Tensor, y: torch.Tensor, id: torch.Tensor) -> dict[str, torch.Tensor]:
        loss = nn.functional.cross_entropy(self.head(self.body(x)), y)
        if self.training and SPIKES in id.tolist():
            loss = loss * 100
        if self.training and OVERFLOWS in id.tolist():
            loss = loss + (self.head.weight * torch.inf).sum() * 0
        return {"loss": loss}


def build(run_dir: Any, snapshot_every: Any, foreign: int = 0) -> Trainer:
    """Build everything anew; `foreign` is what the process drew before."""
    torch.manual_seed(7)
    model = Net()
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(7 + foreign)
    body = torch.optim.Adam(model.body.parameters(), lr=0.02)
    head = torch.optim.SGD(model.head.parameters(), lr=0.05, momentum=0.9)
    trainer = Trainer(
        model,
        "torch",
        DataLoader(Points(2 * BATCHES, 1), batch_size=2, shuffle=True),
        [body, head],
        n_epochs=3,
        validate_dataloaders=DataLoader(Points(6, 2), batch_size=4),
        metrics={"loss": NoisyLoss()},
        validate_every=(5, -1),
        accumulation_steps=2,
        precision="fp16",
        torch_kwargs={"gradscaler_kwargs": {"init_scale": 64.0, "growth_interval": 2}},
        callbacks=[
            ModelSummary(),
            SpikeGuard(window=4, threshold=20.0),
            NanGuard("skip"),
            Warmup(0.2, "cosine"),
            GradNormMonitor(2, name="norm"),
            GradClip(0.5, log=True),
            EMA(0.8, warmup=4, update_every=2, start_at=1, buffers="average"),
            LRMonitor(),
            ThroughputMonitor(3),
            MemoryMonitor(3),
            Timer(4),
            TimeLimit("2h"),
        ],
        run_dir=run_dir,
        seed=11,
        snapshot_every=snapshot_every,
        progress_bar=None,
    )
    trainer.state["logged"] = []

    def keep(trainer: Any, values: dict[str, float]) -> None:
        same = [f"{k} {v!r}" for k, v in values.items() if not k.startswith(("throughput/", "memory/"))]
        trainer.state["logged"].append([trainer.trainer_state.seq, *same])  # as text, where NaN equals NaN

    trainer.on(Events.on_log, keep)
    return trainer


def run(job: dict[str, Any]) -> None:
    """Run the job once.

    `kill_at`: die by SIGKILL when everyone has heard this transition. `out`: where the outcome goes, and beside it, as
    `out.ema`, the averaged model.
    """
    trainer = build(job["run_dir"], job["snapshot_every"], job.get("foreign", 0))

    def after(trainer: Any) -> None:
        if trainer.trainer_state.seq == job.get("kill_at"):
            os.kill(os.getpid(), signal.SIGKILL)

    after_everyone(trainer, after)
    trainer.run(resume_from="auto")
    if "out" in job:
        torch.save(outcome(trainer), job["out"])
        trainer.listeners.callbacks["EMA"].save_model(job["out"] + ".ema")  # type: ignore[attr-defined]


if __name__ == "__main__":
    forks.serve(run)
