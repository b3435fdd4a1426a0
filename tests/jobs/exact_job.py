"""A training run with everything that must survive a crash, and a server that runs it in fresh processes.

As a program it imports torch once, then for each JSON line on its standard input forks a process that runs the job,
and answers with that process's exit status. A fork costs 50 ms where a new interpreter with torch costs 2 s; none of
the forked processes has run anything before.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import traceback
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from tachograph.drivers import generators
from tachograph.engine import Callback, EarlyStopping, Events, LRSchedule, Trainer
from tachograph.engine.events import MOMENTS

BATCHES = 11  # per epoch: three windows of 3 and one of 2


class Points(Dataset):
    def __init__(self, n: int, seed: int) -> None:
        made = torch.Generator().manual_seed(seed)
        self.x = torch.randn(n, 6, generator=made)
        self.y = (self.x.sum(1) > 0).long()

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        return {"x": self.x[i], "y": self.y[i]}


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Dropout(0.4), nn.Linear(12, 2))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        if self.training:
            x = x + 0.01 * np.random.standard_normal() + 0.01 * random.random()
        out = self.body(x)
        return {"loss": nn.functional.cross_entropy(out, y), "out": out}


class NoisyLoss:
    """A metric that draws from every generator: training must not notice."""

    def reset(self) -> None:
        self.losses: list[float] = []

    def update(self, loss: torch.Tensor) -> None:
        torch.rand(3)
        np.random.rand(2)
        random.random()
        self.losses.append(float(loss))

    def compute(self) -> float:
        return sum(self.losses) / len(self.losses)


class Heard(Callback):
    """Remembers every moment it heard, with the counters it saw."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def state_dict(self) -> dict[str, Any]:
        return {"heard": list(self.heard)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.heard = list(state["heard"])


def _hear(name: str) -> Any:
    def hear(self: Heard, trainer: Any, *args: Any) -> None:
        s = trainer.trainer_state
        self.heard.append(f"{name} {s.seq} {s.state} {s.global_forward_batches} {s.optimizer_steps} {s.accumulated}")

    return hear


for _name in MOMENTS:
    if _name not in ("on_after_trainer_initialized", "on_after_snapshot", "on_after_resume", "on_notice"):
        setattr(Heard, _name, _hear(_name))


def build(run_dir: str, snapshot_every: Any, n_epochs: int = 3) -> tuple[Trainer, dict[str, list[int]]]:
    torch.manual_seed(7)
    model = Net()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.05, total_steps=40)
    train = DataLoader(Points(2 * BATCHES, 1), batch_size=2, shuffle=True)
    trainer = Trainer(
        model,
        "torch",
        train,
        optimizer,
        n_epochs=n_epochs,
        validate_dataloaders=DataLoader(Points(12, 2), batch_size=5, shuffle=True),
        metrics={"loss": NoisyLoss()},
        validate_every=(4, -1),
        accumulation_steps=3,
        callbacks=[LRSchedule(schedule), EarlyStopping("loss", larger_better=False, patience=3), Heard()],
        run_dir=run_dir,
        seed=11,
        snapshot_every=snapshot_every,
        progress_bar=None,
    )
    calls: dict[str, list[int]] = {"every": [], "once": [], "fn": []}
    trainer.state["calls"] = calls

    def note(name: str) -> Any:
        return lambda trainer: trainer.state["calls"][name].append(trainer.trainer_state.seq)

    trainer.on(Events.on_train_batch_end(every=3), note("every"))
    trainer.on(Events.on_train_batch_end(once=[5, 17]), note("once"))
    trainer.on(Events.on_train_batch_end(filter_fn=lambda f, t: f.num_called % 4 == f.num_executed % 3), note("fn"))
    return trainer, calls


def outcome(trainer: Trainer) -> dict[str, Any]:
    assert trainer.driver is not None
    return {
        "model": trainer.driver.model.state_dict(),
        "optimizer": trainer.driver.optimizers[0].state_dict(),
        "generators": generators.capture(),
        "heard": next(c for c in trainer.listeners.callbacks.values() if isinstance(c, Heard)).heard,
        "callbacks": trainer.listeners.state_dict(trainer),
        "calls": trainer.state["calls"],
        "chain": trainer.journal.chain,
        "state": trainer.trainer_state.to_dict(),
    }


def run(job: dict[str, Any]) -> None:
    """Run the job once.

    `kill_at`: die by SIGKILL when everyone has heard this transition. `one_more`: ask for a snapshot after each
    transition, and die when the first is published. `out`: where the outcome goes.
    """
    torch.set_num_threads(1)
    if "foreign_seed" in job:  # what the process drew before is nobody's business
        random.seed(job["foreign_seed"])
        np.random.seed(job["foreign_seed"])
    trainer, _ = build(job["run_dir"], job["snapshot_every"])

    def die(*_: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def after(trainer: Any) -> None:
        if trainer.trainer_state.seq == job.get("kill_at"):
            die()
        if job.get("one_more"):
            trainer.request_snapshot()

    for name in trainer.machine.names:
        if name != "init":
            trainer.on(name, after, priority=-1)
    if job.get("one_more"):
        trainer.on("on_after_snapshot", lambda trainer, path: die())
    trainer.run(resume_from="auto")
    if "out" in job:
        torch.save(outcome(trainer), job["out"])


def serve() -> None:
    torch.set_num_threads(1)
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                run(json.loads(line))
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(status)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    serve()
