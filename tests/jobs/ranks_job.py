"""Training in several ranks, with what differs between them: dropout, noise in the data, micro-batches."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader

from tachograph.engine import LRSchedule, Trainer
from tests.jobs.exact_job import Heard, Net, NoisyLoss, Points, after_everyone, outcome
from tests.jobs.ranks import serve_ranks


class HeadFirst(Net):
    """The model, whose gradients come in another order than its parameters stand in: DDP arranges them anew."""

    def __init__(self, overflows: bool) -> None:
        super().__init__(overflows)
        self.body = self._modules.pop("body")  # type: ignore[assignment]


class MeanLoss(NoisyLoss):
    """A metric that is joined over ranks."""

    def gather_with(self, gather: Any, distributed: bool) -> None:
        self.gather = gather if distributed else lambda value: [value]

    def compute(self) -> float:
        every = [loss for losses in self.gather(self.losses) for loss in losses]
        return sum(every) / len(every)


def build(job: dict[str, Any]) -> Trainer:
    torch.manual_seed(7)
    model = HeadFirst(job.get("precision") == "fp16")
    torch.manual_seed(1000 + job["rank"] + job.get("foreign", 0))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.05, total_steps=60)
    points, workers = Points(job.get("n", 28), 1), job.get("workers", 0)
    loader = DataLoader(points, batch_size=job.get("batch", 2), shuffle=True, num_workers=workers)
    heard: list[Any] = [Heard()] if job.get("heard", True) else []
    return Trainer(
        model,
        job.get("driver", "torch_ddp"),
        [] if job.get("empty") else loader,
        [optimizer],
        n_epochs=job.get("n_epochs", 2),
        validate_dataloaders=DataLoader(Points(6, 2), batch_size=4),
        metrics={"loss": MeanLoss()},
        validate_every=(5, -1),
        accumulation_steps=job.get("accumulation", 1),
        precision=job.get("precision"),
        use_dist_sampler=False if job.get("own") else None,
        torch_kwargs={"gradscaler_kwargs": {"init_scale": 64.0, "growth_interval": 2}},
        callbacks=[LRSchedule(schedule, "update"), *heard],
        run_dir=job["run_dir"],
        seed=11,
        snapshot_every=job.get("snapshot_every", 4),
        progress_bar=None,
    )


def train(job: dict[str, Any]) -> None:
    """Run the job once: die at `kill_at` on the ranks `killed`, leave the outcome in the folder `out`."""
    trainer = build(job)
    killed = job.get("killed", list(range(job["world"])))

    def after(trainer: Any) -> None:
        if trainer.trainer_state.seq == job.get("kill_at") and job["rank"] in killed:
            os.kill(os.getpid(), signal.SIGKILL)

    after_everyone(trainer, after)
    trainer.run(resume_from="auto")
    if "out" in job:
        result = outcome(trainer)
        torch.save(result, Path(job["out"]) / f"rank-{job['rank']}.pt")


if __name__ == "__main__":
    serve_ranks(train)
