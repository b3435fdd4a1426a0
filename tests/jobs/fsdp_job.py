"""Training a model in shares over several ranks; and what a driver of them is held against, check by check."""

from __future__ import annotations

import json
import os
import signal
import traceback
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from tachograph.drivers import storage
from tachograph.drivers.fsdp import TorchFSDPDriver
from tachograph.drivers.spread import local
from tachograph.engine import EMA, Checkpoint, LoadBestModel, Trainer, saving
from tests.jobs.exact_job import Heard, Points, after_everyone, outcome
from tests.jobs.ranks import serve_ranks
from tests.jobs.ranks_job import MeanLoss

OVERFLOWS = 3  # the sample whose loss is infinite under fp16


class Block(nn.Module):
    """What is a unit by default."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.dropout(self.norm(torch.relu(self.linear(x)))) + x


class Net(nn.Module):
    """A classifier of blocks; no length of it can be divided evenly by 2 or 4."""

    def __init__(self, dropout: float = 0.3, overflows: bool = False, norm: bool = True) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 7)
        self.norm = nn.BatchNorm1d(7) if norm else nn.Identity()
        self.blocks = nn.ModuleList(Block(7, dropout) for _ in range(2))
        self.outer = nn.Linear(7, 3)
        self.overflows = overflows
        self.seen: list[int] = []

    def forward(self, x: torch.Tensor, y: torch.Tensor, id: torch.Tensor) -> dict[str, torch.Tensor]:
        if not self.training:
            self.seen += id.tolist()
        x = self.norm(self.inner(x))
        for block in self.blocks:
            x = block(x)
        loss = nn.functional.cross_entropy(self.outer(x), y)
        if self.overflows and self.training and OVERFLOWS in id.tolist():
            loss = loss * float("inf")
        return {"loss": loss + 0.0}


def net(**settings: Any) -> Net:
    """The same model on every rank and in every process."""
    torch.manual_seed(7)
    return Net(**settings)


def groups(model: nn.Module) -> list[dict[str, Any]]:
    """Two parameter groups, as of a script that decays weights and no biases."""
    decayed = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() <= 1]
    return [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0, "lr": 0.005}]


# -- training ----------------------------------------------------------------------------------------------


def build(job: dict[str, Any]) -> Trainer:
    model = net(overflows=job.get("precision") == "fp16", norm=job.get("norm", True))
    torch.manual_seed(1000 + job["rank"] + job.get("foreign", 0))
    return Trainer(
        model,
        job.get("driver", "torch_fsdp"),
        DataLoader(Points(job.get("n", 28), 1), batch_size=2, shuffle=True, num_workers=job.get("workers", 0)),
        torch.optim.AdamW(groups(model), lr=0.02),
        device="cpu",
        n_epochs=2,
        validate_dataloaders=DataLoader(Points(9, 2), batch_size=2),
        metrics={"loss": MeanLoss()},
        validate_every=(5, -1),
        accumulation_steps=job.get("accumulation", 1),
        precision=job.get("precision"),
        torch_kwargs={
            "gradscaler_kwargs": {"init_scale": 64.0, "growth_interval": 2},
            "fsdp_kwargs": {key: job[key] for key in ("mesh",) if key in job},
        },
        callbacks=[Heard(), EMA(decay=0.9), *_savers(job)],
        run_dir=job["run_dir"],
        seed=11,
        snapshot_every=4,
        progress_bar=None,
    )


def _savers(job: dict[str, Any]) -> list[Any]:
    """Callbacks that write models, and put the best one back at the end."""
    if "models" not in job:
        return []
    best = {"monitor": "loss", "larger_better": False}
    return [
        Checkpoint(job["models"], every_n_epochs=1, topk=1, **best),
        LoadBestModel(**best, save_folder=job["models"] + "/best") if job["kept"] == "file" else LoadBestModel(**best),
    ]


def train(job: dict[str, Any]) -> None:
    """Run the job once: die at `kill_at`, leave the outcome in the folder `out`."""
    trainer = build(job)

    def after(trainer: Any) -> None:
        if trainer.trainer_state.seq == job.get("kill_at"):
            saving.wait(trainer)
            _kill(trainer.driver.ranks.gather(os.getpid()), job["rank"])

    after_everyone(trainer, after)
    driver: Any = trainer.driver
    entered: dict[str, Any] = {}
    trainer.on("on_after_resume", lambda trainer, report: entered.update(weights=driver.weights(), seq=report.seq))
    trainer.run(resume_from="auto")
    if "out" in job:
        found = {**storage.mapped(outcome(trainer), lambda t: local(t).detach()), "weights": driver.weights()}
        found |= {"entered": entered, "seen": driver.model.seen, "mesh": list(driver._mesh.shape)}
        torch.save(found, Path(job["out"]) / f"rank-{job['rank']}.pt")


def _kill(pids: list[int], rank: int) -> None:
    """Kill every rank; the first one, which keeps what the others read, last."""
    for pid in reversed(pids) if rank == 0 else ():
        os.kill(pid, signal.SIGKILL)
    signal.pause()


def check(job: dict[str, Any]) -> None:
    """Run checks one after the other until one fails, and leave in the folder `out` what went wrong with each."""
    from tests.jobs import fsdp_checks

    torch.distributed.init_process_group("gloo")
    found: dict[str, str] = {}
    try:
        for name in job["checks"]:
            folder = Path(job["folder"]) / name
            folder.mkdir(exist_ok=True)
            getattr(fsdp_checks, name)(folder)
            found[name] = ""
        torch.distributed.barrier()
    except BaseException:
        found[name] = traceback.format_exc()  # the others learn of it when this process is gone
    (Path(job["out"]) / f"rank-{job['rank']}.json").write_text(json.dumps(found))


def driver_of(model: nn.Module, **options: Any) -> TorchFSDPDriver:
    """A driver that is set up, with an optimizer of two groups; nothing was trained yet."""
    driver = TorchFSDPDriver(model, "cpu", **options)
    driver.set_optimizers(torch.optim.AdamW(groups(model), lr=0.02))
    driver.set_dataloader(DataLoader(Points(8, 1), batch_size=2))
    driver.setup(3, True)
    return driver


if __name__ == "__main__":
    serve_ranks(lambda job: {"train": train, "check": check}[job["do"]](job))
