"""What a training step costs above a bare loop: ours with the journal on and off, and pytorch-ignite's.

All on the same work (a 32-64-2 MLP with Adam, batch 16, one thread, shuffled `DataLoader` over a plain map-style
dataset), interleaved in one process: each round runs every contender once, in random order, and its difference to the
bare loop of the same round is taken. Medians over the rounds are shown; single rounds scatter by more than the
differences.

    python benchmarks/overhead.py --rounds 200
"""

from __future__ import annotations

import argparse
import gc
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from tachograph.engine import Trainer

BATCH = 16


class Plain(Dataset):
    """A dataset as people write it: one sample at a time."""

    def __init__(self, x: torch.Tensor, y: torch.Tensor) -> None:
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.x[i], self.y[i]


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 2))
        self.loss = nn.CrossEntropyLoss()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)

    def train_step(self, batch: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        x, y = batch
        return {"loss": self.loss(self.net(x), y)}


class Work:
    """The same work for every contender."""

    def __init__(self, steps: int, dataset: type) -> None:
        made = torch.Generator().manual_seed(0)
        self.steps = steps
        self.data = dataset(
            torch.randn(BATCH * steps, 32, generator=made), torch.randint(0, 2, (BATCH * steps,), generator=made)
        )

    def new(self) -> tuple[Model, torch.optim.Optimizer, DataLoader]:
        torch.manual_seed(0)
        model = Model()
        return model, torch.optim.Adam(model.parameters()), DataLoader(self.data, batch_size=BATCH, shuffle=True)

    def bare(self) -> float:
        model, optimizer, loader = self.new()
        began = time.perf_counter()
        for batch in loader:
            loss = model.train_step(batch)["loss"]
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        return time.perf_counter() - began

    def ignite_supervised(self) -> float:
        """Ignite's own trainer: `create_supervised_trainer`, as its users start."""
        from ignite.engine import create_supervised_trainer

        model, optimizer, loader = self.new()
        trainer = create_supervised_trainer(model, optimizer, model.loss)
        began = time.perf_counter()
        trainer.run(loader, 1)
        return time.perf_counter() - began

    def ignite_engine(self) -> float:
        """Ignite's bare `Engine` around a step written by hand: no device, no mode, no loss read."""
        from ignite.engine import Engine

        model, optimizer, loader = self.new()

        def step(engine: Engine, batch: list[torch.Tensor]) -> torch.Tensor:
            loss = model.train_step(batch)["loss"]
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss

        engine = Engine(step)
        began = time.perf_counter()
        engine.run(loader, 1)
        return time.perf_counter() - began

    def ours(self, run_dir: Path | None) -> float:
        """An epoch of `Trainer`, from its loader's opening to its end."""
        model, optimizer, loader = self.new()
        trainer = Trainer(
            model, "torch", loader, optimizer, n_epochs=1, run_dir=run_dir, snapshot_every=None, progress_bar=None
        )
        times: list[float] = []
        trainer.on("on_train_epoch_begin", lambda trainer: times.append(time.perf_counter()))
        trainer.on("on_train_epoch_end", lambda trainer: times.append(time.perf_counter()))
        trainer.run()
        return times[1] - times[0]


def measure(work: Work, rounds: int, folder: Path) -> dict[str, list[float]]:
    """Return seconds per round for each contender."""

    def journal_on() -> float:
        shutil.rmtree(folder / "run", ignore_errors=True)
        return work.ours(folder / "run")

    contenders: dict[str, Callable[[], float]] = {
        "bare loop": work.bare,
        "ignite, supervised trainer": work.ignite_supervised,
        "ignite, bare Engine": work.ignite_engine,
        "tachograph, journal off": lambda: work.ours(None),
        "tachograph, journal on": journal_on,
    }
    for run in contenders.values():
        run()  # warm up
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name in random.sample(list(contenders), len(contenders)):
            gc.collect()
            seconds[name].append(contenders[name]())
    return seconds


def report(seconds: dict[str, list[float]], steps: int) -> None:
    """Print the table and the two budgets."""
    micro = {name: [s / steps * 1e6 for s in held] for name, held in seconds.items()}
    bare = micro["bare loop"]
    above = {name: statistics.median(a - b for a, b in zip(held, bare, strict=True)) for name, held in micro.items()}
    print(f"{'':28s} {'median':>9s} {'fastest':>9s} {'above bare':>11s}   µs a step")
    for name, held in micro.items():
        print(f"{name:28s} {statistics.median(held):9.1f} {min(held):9.1f} {above[name]:11.1f}")
    ignite = above["ignite, supervised trainer"]
    for name, share in (("tachograph, journal on", 1 / 2), ("tachograph, journal off", 1 / 5)):
        met = "met" if above[name] <= ignite * share else "missed"
        ratio = above[name] / ignite
        print(f"{name}: {above[name]:.1f} µs, {ratio:.2f} of ignite's {ignite:.1f}; budget {share:.2f}: {met}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=100, help="rounds; each contender runs once in each (100)")
    parser.add_argument("--steps", type=int, default=200, help="steps a run (200)")
    parser.add_argument("--tensors", action="store_true", help="a TensorDataset, which is gathered in one go")
    options = parser.parse_args()
    torch.set_num_threads(1)
    work = Work(options.steps, TensorDataset if options.tensors else Plain)
    with tempfile.TemporaryDirectory() as folder:
        report(measure(work, options.rounds, Path(folder)), options.steps)


if __name__ == "__main__":
    main()
