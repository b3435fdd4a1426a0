"""Training whose number of ranks and batch size change: it notes which samples it saw, and can be killed."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader

from tachograph.drivers import generators
from tachograph.engine import Trainer
from tests.jobs.exact_job import after_everyone
from tests.jobs.ranks import serve_ranks


class Numbers(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Samples that know their ids."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        return {"x": torch.tensor([float(i), 1.0]), "id": torch.tensor(i)}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(2, 1)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": (self.body(x) ** 2).mean()}


def train(job: dict[str, Any]) -> None:
    """Run it; with `kill_after`, die when so many samples are consumed and the snapshot is there."""
    rank, folder = job["rank"], Path(job["folder"])
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(3)
    model = Net()
    loader = DataLoader(Numbers(64), batch_size=job["batch"], shuffle=True)
    driver = "torch_ddp" if job["world"] > 1 else "torch"
    trainer = Trainer(
        model,
        driver,
        loader,
        torch.optim.SGD(model.parameters(), lr=1e-5),
        n_epochs=2,
        accumulation_steps=job.get("accumulation", 1),
        use_dist_sampler=False if job.get("own") else None,
        run_dir=folder / "run",
        seed=5,
        snapshot_every=job.get("snapshot_every", 1),
        progress_bar=None,
    )
    ids: list[list[int]] = []
    trainer.on("on_train_batch_begin", lambda trainer, batch, indices: ids.append(batch["id"].tolist()))
    seen: dict[str, Any] = {}

    def look(trainer: Any) -> None:
        state = trainer.trainer_state
        if state.samples == job.get("kill_after") and state.state == "fetch":
            (folder / "consumed.json").write_text(json.dumps(state.samples))
            torch.save(
                {n: p.grad for n, p in model.named_parameters() if p.grad is not None}, folder / f"gradients-{rank}.pt"
            )
            _draw(folder / f"drawn-{rank}.pt")
            seen["wait"] = state.seq

    def die(trainer: Any, path: Path) -> None:
        if int(path.name) == seen.get("wait"):
            (folder / f"ids-{rank}.json").write_text(json.dumps(ids))
            trainer.ranks.barrier()
            os.kill(os.getpid(), signal.SIGKILL)

    after_everyone(trainer, look)
    if "kill_after" in job:
        trainer.on("on_after_snapshot", die)
        after_everyone(trainer, lambda trainer: time.sleep(0.05 if "wait" in seen else 0))
    if job.get("look"):
        trainer.on("on_after_resume", lambda trainer, report: _look(trainer, folder, rank))
    trainer.run(resume_from="auto")
    (folder / f"ids-{rank}.json").write_text(json.dumps(ids))


def _look(trainer: Any, folder: Path, rank: int) -> None:
    model = trainer.driver.model
    torch.save({n: p.grad for n, p in model.named_parameters() if p.grad is not None}, folder / f"gradients-{rank}.pt")

    def drawn(trainer: Any, batch: Any, indices: Any) -> None:
        if not (folder / f"drawn-{rank}.new").exists():
            (folder / f"drawn-{rank}.new").touch()
            _draw(folder / f"drawn-{rank}.pt")

    trainer.on("on_train_batch_begin", drawn)


def _draw(path: Path) -> None:
    with generators.forked():
        torch.save(torch.rand(5), path)


if __name__ == "__main__":
    serve_ranks(train)
