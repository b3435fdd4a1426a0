"""A training run with everything that must survive a crash, in every configuration. As a program: a server of it."""

from __future__ import annotations

import itertools
import os
import random
import signal
from typing import Any

import attrs
import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from tachograph.drivers import generators
from tachograph.engine import Callback, EarlyStopping, Events, LRSchedule, Trainer
from tachograph.engine.events import MOMENTS
from tests.jobs import forks

BATCHES = 7  # per epoch, of two samples: two windows of 3 and one of 1
OVERFLOWS = 3  # the sample whose loss is infinite under fp16

AXES: dict[str, tuple[Any, ...]] = {
    "workers": (0, 2),
    "window": ("1", "3 flush", "3 carry", "3 drop"),
    "precision": ("fp32", "bf16", "fp16"),
    "schedule": ("update", "epoch", "plateau"),
    "optimizers": (1, 2),
}


@attrs.frozen(kw_only=True)
class Configuration:
    """One way to train.

    Attributes:
        workers: that read the training data.
        window: micro-batches in an accumulation window, and what becomes of one that is open at an epoch's end.
        precision: under fp16 one batch of each epoch has an infinite loss, so that its window's update is skipped.
        schedule: when the learning rates move.
        optimizers: one for the whole model, or one for each half of it.
    """

    workers: int = 0
    window: str = "3 flush"
    precision: str = "fp32"
    schedule: str = "update"
    optimizers: int = 1

    @property
    def id(self) -> str:
        """Its name in a test's id."""
        return "-".join(str(value).replace(" ", "") for value in attrs.astuple(self))


EVERY = [Configuration(**dict(zip(AXES, values, strict=True))) for values in itertools.product(*AXES.values())]


def covering(configurations: list[Configuration]) -> list[Configuration]:
    """Choose configurations so that any two values of any two axes meet in one of them."""

    def pairs(configuration: Configuration) -> set[Any]:
        return set(itertools.combinations(attrs.asdict(configuration).items(), 2))

    chosen: list[Configuration] = []
    left = set().union(*map(pairs, configurations))
    while left:
        chosen.append(max(configurations, key=lambda c: len(pairs(c) & left)))
        left -= pairs(chosen[-1])
    return chosen


# -- the run -----------------------------------------------------------------------------------------------


class Points(Dataset[dict[str, torch.Tensor]]):
    """Samples of two classes, each read with noise from torch, numpy and Python."""

    def __init__(self, n: int, seed: int) -> None:
        made = torch.Generator().manual_seed(seed)
        self.x = torch.randn(n, 6, generator=made)
        self.y = (self.x.sum(1) > 0).long()

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        noise = torch.randn(6) + float(np.random.standard_normal()) + random.random()
        return {"x": self.x[i] + 0.1 * noise, "y": self.y[i], "id": torch.tensor(i)}


class Net(nn.Module):
    """A classifier that draws from every generator while it trains."""

    def __init__(self, overflows: bool) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.4))
        self.head = nn.Linear(8, 2)
        self.overflows = overflows

    def forward(self, x: torch.Tensor, y: torch.Tensor, id: torch.Tensor) -> dict[str, torch.Tensor]:
        if self.training:
            x = x + 0.01 * np.random.standard_normal() + 0.01 * random.random()
        loss = nn.functional.cross_entropy(self.head(self.body(x)), y)
        if self.overflows and self.training and OVERFLOWS in id.tolist():
            loss = loss * float("inf")
        return {"loss": loss}


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
        return {"heard": "\n".join(self.heard)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.heard = state["heard"].splitlines()


def _hear(name: str) -> Any:
    def hear(self: Heard, trainer: Any, *args: Any) -> None:
        s = trainer.trainer_state
        self.heard.append(f"{name} {s.seq} {s.state} {s.global_forward_batches} {s.optimizer_steps} {s.accumulated}")

    return hear


ABOUT_THIS_PROCESS = (
    *("on_after_trainer_initialized", "on_after_snapshot", "on_snapshot_fault"),
    *("on_after_resume", "on_notice"),
)
for _name in MOMENTS:
    if _name not in ABOUT_THIS_PROCESS:
        setattr(Heard, _name, _hear(_name))


def _optimizers(model: Net, number: int) -> list[torch.optim.Optimizer]:
    if number == 1:
        return [torch.optim.Adam(model.parameters(), lr=0.02)]
    body = torch.optim.Adam(model.body.parameters(), lr=0.02)
    return [body, torch.optim.SGD(model.head.parameters(), lr=0.05, momentum=0.9)]


def _schedule(optimizer: torch.optim.Optimizer, step_on: str) -> LRSchedule:
    kinds = torch.optim.lr_scheduler
    if step_on == "update":
        return LRSchedule(kinds.OneCycleLR(optimizer, max_lr=0.05, total_steps=40), "update")
    if step_on == "epoch":
        return LRSchedule(kinds.StepLR(optimizer, 1, gamma=0.5), "epoch")
    return LRSchedule(kinds.ReduceLROnPlateau(optimizer, patience=0, factor=0.5), "plateau", monitor="loss")


def build(
    run_dir: Any, snapshot_every: Any, configuration: Configuration, *, n_epochs: int = 2, foreign: int = 0
) -> Trainer:
    """Build everything anew.

    Args:
        run_dir: where the run is, or will be.
        snapshot_every: when a snapshot is taken.
        configuration: how it trains.
        n_epochs: how long.
        foreign: what the process drew before is nobody's business; with another number it drew something else.
    """
    torch.manual_seed(7)
    size, _, tail = configuration.window.partition(" ")
    model = Net(configuration.precision == "fp16")
    for seed in (random.seed, np.random.seed, torch.manual_seed):
        seed(7 + foreign)
    optimizers = _optimizers(model, configuration.optimizers)
    schedules = [_schedule(optimizer, configuration.schedule) for optimizer in optimizers]
    trainer = Trainer(
        model,
        "torch",
        DataLoader(Points(2 * BATCHES, 1), batch_size=2, shuffle=True, num_workers=configuration.workers),
        optimizers,
        n_epochs=n_epochs,
        validate_dataloaders=DataLoader(Points(6, 2), batch_size=4, shuffle=True),
        metrics={"loss": NoisyLoss()},
        validate_every=(5, -1),
        accumulation_steps=int(size),
        accumulation_tail=tail or "flush",
        precision=configuration.precision,
        torch_kwargs={"gradscaler_kwargs": {"init_scale": 64.0, "growth_interval": 2}},
        callbacks=[*schedules, EarlyStopping("loss", larger_better=False, patience=4), Heard()],
        run_dir=run_dir,
        seed=11,
        snapshot_every=snapshot_every,
        progress_bar=None,
    )
    trainer.state["calls"] = {"every": [], "once": [], "fn": []}

    def note(name: str) -> Any:
        return lambda trainer: trainer.state["calls"][name].append(trainer.trainer_state.seq)

    trainer.on(Events.on_train_batch_end(every=3), note("every"))
    trainer.on(Events.on_train_batch_end(once=[5, 12]), note("once"))
    trainer.on(Events.on_train_batch_end(filter_fn=lambda f, t: f.num_called % 4 == f.num_executed % 3), note("fn"))
    return trainer


def after_everyone(trainer: Trainer, fn: Any) -> None:
    """Call a function when everyone else has heard a transition, whichever it is."""
    for name in trainer.machine.names:
        if name != "init":
            trainer.on(name, fn, priority=-1)


def outcome(trainer: Trainer) -> dict[str, Any]:
    """Return all that a run leaves behind."""
    driver: Any = trainer.driver
    model = driver.model
    scaler = driver.precision.scaler
    return {
        "model": model.state_dict(),
        "modes": {name: module.training for name, module in model.named_modules()},
        "gradients": {name: p.grad for name, p in model.named_parameters() if p.grad is not None},
        "optimizers": [optimizer.state_dict() for optimizer in driver.optimizers],
        "scaler": None if scaler is None else scaler.state_dict(),
        "generators": generators.capture(),
        "listeners": trainer.listeners.state_dict(trainer),
        "user": dict(trainer.state),
        "chain": None if trainer.journal is None else trainer.journal.chain,
        "state": trainer.trainer_state.to_dict(),
    }


def differences(a: Any, b: Any, path: str = "") -> list[str]:
    """Name every leaf that isn't bit-equal."""
    if isinstance(a, torch.Tensor):
        return [] if torch.equal(a, b) and a.dtype == b.dtype else [path]
    if isinstance(a, dict):
        if a.keys() != b.keys():
            return [f"{path}: {sorted(map(str, a.keys() ^ b.keys()))}"]
        return [d for k in a for d in differences(a[k], b[k], f"{path}/{k}")]
    if isinstance(a, (list, tuple)):
        if len(a) != len(b):
            return [f"{path}: {len(a)} entries, {len(b)}"]
        return [d for i, (x, y) in enumerate(zip(a, b, strict=True)) for d in differences(x, y, f"{path}/{i}")]
    return [] if a == b else [f"{path}: {a!r}, {b!r}"]


# -- in processes ------------------------------------------------------------------------------------------


def run(job: dict[str, Any]) -> None:
    """Run the job once.

    `configuration`: how it trains. `kill_at`: die by SIGKILL when everyone has heard this transition. `one_more`: ask
    for a snapshot after each transition, and die when the first is published. `out`: where the outcome goes.
    """
    configuration = Configuration(**job.get("configuration", {}))
    trainer = build(job["run_dir"], job["snapshot_every"], configuration, n_epochs=3, foreign=job.get("foreign", 0))

    def die(*_: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def after(trainer: Any) -> None:
        if trainer.trainer_state.seq == job.get("kill_at"):
            die()
        if job.get("one_more"):
            trainer.request_snapshot()

    after_everyone(trainer, after)
    if job.get("one_more"):
        trainer.on("on_after_snapshot", lambda trainer, path: die())
    trainer.run(resume_from="auto")
    if "out" in job:
        torch.save(outcome(trainer), job["out"])


if __name__ == "__main__":
    forks.serve(run)
