"""What a fingerprint costs: bytes per second of a tensor, and microseconds of a step.

The first table hashes tensors of several sizes, against a copy of the same bytes and against blake2b of them. The
second trains two MLPs with Adam, batch 16, without fingerprints, with one every 100 updates and with one at each,
interleaved in one process; the difference to the run without any is taken within each round. One thread; medians.

    python benchmarks/fingerprints.py --rounds 40
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import itertools
import random
import statistics
import tempfile
import time
from collections.abc import Callable

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tachograph.drivers import fingerprints
from tachograph.engine import Fingerprints, Trainer

SIZES = {"4 B": 1, "4 KB": 1 << 10, "1 MB": 1 << 18, "16 MB": 1 << 22, "256 MB": 1 << 26}
WIDTHS = {"32-64-2": (32, 64, 2), "512-1024-1024-512": (512, 1024, 1024, 512)}
BATCH = 16
SETTINGS = {"n_epochs": 1, "snapshot_every": None, "progress_bar": None}


def seconds_of(act: Callable[[], object], rounds: int) -> float:
    """Return the median time of a call."""
    taken = []
    for _ in range(rounds):
        began = time.perf_counter()
        act()
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def rates(rounds: int) -> None:
    """Print what a tensor's fingerprint takes."""
    print(f"{'one tensor':12s} {'fingerprint':>12s} {'GB/s':>8s} {'a copy':>10s} {'blake2b':>10s}   GB/s")
    for name, numbers in SIZES.items():
        tensor = torch.randn(numbers)
        size, raw, place = 4 * numbers, tensor.numpy().data, torch.empty_like(tensor)
        n = max(3, rounds if numbers > 1 << 20 else 20 * rounds)
        own = seconds_of(lambda t=tensor: fingerprints.of_trees({"": t}), n)
        copied = seconds_of(lambda p=place, t=tensor: p.copy_(t), n)
        hashed = seconds_of(lambda r=raw: hashlib.blake2b(r).digest(), n)
        told = (size / each / 1e9 for each in (own, copied, hashed))
        print(f"{name:12s} {own * 1e6:9.1f} µs {next(told):8.2f} {next(told):10.2f} {next(told):10.2f}")


class Model(nn.Module):
    def __init__(self, widths: tuple[int, ...]) -> None:
        super().__init__()
        layers = [nn.Linear(a, b) for a, b in itertools.pairwise(widths)]
        self.net = nn.Sequential(*(part for layer in layers for part in (layer, nn.ReLU())))

    def train_step(self, batch: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        return {"loss": (self.net(batch[0]) - batch[1]).pow(2).mean()}


def epoch(widths: tuple[int, ...], steps: int, every: int | None) -> float:
    """Train an epoch, with a journal; return the seconds from its beginning to its end."""
    torch.manual_seed(0)
    model, n = Model(widths), BATCH * steps
    data = TensorDataset(torch.randn(n, widths[0]), torch.randn(n, widths[-1]))
    callbacks = [] if every is None else [Fingerprints(every)]
    optimizer, loader = torch.optim.Adam(model.parameters()), DataLoader(data, BATCH, shuffle=True)
    with tempfile.TemporaryDirectory() as folder:
        return timed(
            Trainer(model, "torch", loader, optimizer, callbacks=callbacks, run_dir=f"{folder}/run", **SETTINGS)
        )


def timed(trainer: Trainer) -> float:
    """Run a trainer; return the processor's seconds of its epoch, which other work on the machine leaves alone."""
    times: list[float] = []
    trainer.on("on_train_epoch_begin", lambda trainer: times.append(time.thread_time()))
    trainer.on("on_train_epoch_end", lambda trainer: times.append(time.thread_time()))
    trainer.run()
    return times[1] - times[0]


def steps(rounds: int, n: int) -> None:
    """Print what fingerprints add to a step."""
    print(f"{'a model':20s} {'without':>10s} {'every 100':>10s} {'every one':>10s}   µs a step; the last two above it")
    for name, widths in WIDTHS.items():
        taken: dict[int | None, list[float]] = {None: [], 100: [], 1: []}
        for _ in range(rounds + 1):
            for every in random.sample(list(taken), 3):
                gc.collect()
                taken[every].append(epoch(widths, n, every) / n * 1e6)
        bare = taken[None][1:]  # the first round warms up
        above = [statistics.median(a - b for a, b in zip(taken[e][1:], bare, strict=True)) for e in (100, 1)]
        print(f"{name:20s} {statistics.median(bare):10.1f} {above[0]:10.1f} {above[1]:10.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20, help="rounds of each (20)")
    parser.add_argument("--steps", type=int, default=200, help="steps of a round (200)")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rates(options.rounds)
    steps(options.rounds, options.steps)


if __name__ == "__main__":
    main()
