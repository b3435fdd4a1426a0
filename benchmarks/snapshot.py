"""What a snapshot costs the run: the stall while it is copied, against synchronous saves of the same state.

The same state for all, about 20 MB: a model and the moments of its Adam. Every round does each once, in random order;
a stall is divided by what the others took in its round, and medians over the rounds are shown. The others are the
copy alone (each tensor into memory that is at hand), a plain `torch.save`, the same with the file on the disk at its
end, and the whole snapshot: written, synced, hashed, read back and renamed, which another thread does.

    python benchmarks/snapshot.py --rounds 60
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from tachograph.engine import Trainer

LAYERS = 12
WHOLE = "the whole snapshot"


class Model(nn.Sequential):
    """Twelve equal layers; with Adam's moments three times their size."""

    def __init__(self, width: int) -> None:
        super().__init__(*(nn.Linear(width, width) for _ in range(LAYERS)))

    def train_step(self, batch: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": self(batch).pow(2).mean()}


class Work:
    """A trainer that is in the middle of a run, and what is done with its state."""

    def __init__(self, folder: Path, megabytes: float) -> None:
        width = round((megabytes * 1e6 / 4 / 3 / LAYERS) ** 0.5)
        torch.manual_seed(0)
        self.model, self.folder = Model(width), folder
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-5)
        batches = [torch.randn(4, width) for _ in range(3)]
        settings = {"n_epochs": 10**6, "run_dir": folder / "run", "snapshot_every": None, "keep_snapshots": 1}
        self.trainer = Trainer(self.model, "torch", batches, self.optimizer, progress_bar=None, **settings)
        self.published = 0.0
        self.places: list[torch.Tensor] = []

    def state(self) -> dict[str, object]:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def copy(self) -> float:
        """The floor: every tensor of the state is copied once."""
        held = [*self.model.state_dict().values()]
        held += [t for s in self.optimizer.state.values() for t in s.values() if isinstance(t, torch.Tensor)]
        if not self.places:
            self.places = [torch.empty_like(t) for t in held]
        began = time.perf_counter()
        for place, tensor in zip(self.places, held, strict=True):
            place.copy_(tensor.detach())
        return time.perf_counter() - began

    def plain(self) -> float:
        """`torch.save` into a new file, as people do it."""
        path = self.folder / "plain.pt"
        path.unlink(missing_ok=True)
        began = time.perf_counter()
        torch.save(self.state(), path)
        return time.perf_counter() - began

    def synced(self) -> float:
        """The same, on the disk when it is done."""
        path = self.folder / "synced.pt"
        path.unlink(missing_ok=True)
        began = time.perf_counter()
        with open(path, "wb") as file:
            torch.save(self.state(), file)
            file.flush()
            os.fsync(file.fileno())
        return time.perf_counter() - began

    def stall(self) -> float:
        """What the run waits for a snapshot; then, outside of what is measured, for its end."""
        began = time.perf_counter()
        self.trainer._snapshot()
        stalled = time.perf_counter() - began
        self.trainer._recorder.snapshots.wait()  # type: ignore[union-attr]
        self.published = time.perf_counter() - began
        return stalled


def measure(work: Work, rounds: int) -> dict[str, list[float]]:
    """Return seconds per round for each."""
    contenders: dict[str, Callable[[], float]] = {
        "copy": work.copy,
        "torch.save": work.plain,
        "torch.save, fsync": work.synced,
        "stall of a snapshot": work.stall,
    }
    seconds: dict[str, list[float]] = {name: [] for name in [*contenders, WHOLE]}

    def after(trainer: Trainer) -> None:
        for name in random.sample(list(contenders), len(contenders)):
            gc.collect()
            seconds[name].append(contenders[name]())
        seconds[WHOLE].append(work.published)
        if len(seconds["torch.save"]) > rounds:
            trainer.stop("measured")

    work.trainer.on("step -> fetch", after)
    work.trainer.run()
    return {name: held[1:] for name, held in seconds.items()}  # the first round warmed up


def report(seconds: dict[str, list[float]], size: int) -> None:
    """Print the table; the stall in shares of each line, by medians of pairs and by the fastest rounds."""
    stall = seconds["stall of a snapshot"]
    head = f"{size / 1e6:.1f} MB of tensors; ms"
    print(f"{head:26s} {'median':>9s} {'fastest':>9s} {'the stall is':>14s} {'fastest':>9s}")
    for name, held in seconds.items():
        pairs = statistics.median(a / b for a, b in zip(stall, held, strict=True))
        fastest = min(stall) / min(held)
        print(f"{name:26s} {statistics.median(held) * 1e3:9.1f} {min(held) * 1e3:9.1f} {pairs:14.2f} {fastest:9.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40, help="rounds; each is done once in each (40)")
    parser.add_argument("--megabytes", type=float, default=20, help="of tensors (20)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        work = Work(Path(folder), options.megabytes)
        seconds = measure(work, options.rounds)
        moments = [t for s in work.optimizer.state.values() for t in s.values() if isinstance(t, torch.Tensor)]
        report(seconds, sum(t.numel() * t.element_size() for t in [*work.model.state_dict().values(), *moments]))


if __name__ == "__main__":
    main()
