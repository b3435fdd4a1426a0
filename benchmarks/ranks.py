"""What a training step of two processes costs above a bare loop with `DistributedDataParallel`, and what a ballot does.

The work of `overhead.py` (a 32-64-2 MLP with Adam, batch 16 for each rank, one thread), over gloo on this machine. Both
ranks run every contender once in each round, in the same random order, and the difference to the bare loop of the same
round is taken. A ballot is counted between epochs, and after a step that one of the ranks has asked for it at.

    python benchmarks/ranks.py --rounds 40
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import shutil
import socket
import statistics
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing
from overhead import Plain, Work
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from tachograph.drivers.ddp import TorchDDPDriver
from tachograph.engine import Trainer

WORLD = 2
BALLOTS = 2000


class SharedWork(Work):
    """The same work, shared by two ranks."""

    def bare(self) -> float:
        model, optimizer, _ = self.new()
        wrapped = DistributedDataParallel(_Losses(model))
        loader = DataLoader(self.data, batch_size=16, sampler=DistributedSampler(self.data))
        began = time.perf_counter()
        for batch in loader:
            wrapped(batch).backward()
            optimizer.step()
            optimizer.zero_grad()
        return time.perf_counter() - began

    def ours(self, run_dir: Path | None) -> float:
        model, optimizer, loader = self.new()
        options = {"n_epochs": 1, "run_dir": run_dir, "snapshot_every": None, "progress_bar": None}
        trainer = Trainer(model, "torch_ddp", loader, optimizer, **options)
        times: list[float] = []
        trainer.on("on_train_epoch_begin", lambda trainer: times.append(time.perf_counter()))
        trainer.on("on_train_epoch_end", lambda trainer: times.append(time.perf_counter()))
        trainer.run()
        return times[1] - times[0]


class _Losses(torch.nn.Module):
    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: list[torch.Tensor]) -> torch.Tensor:
        return self.model.train_step(batch)["loss"]


def ballot() -> float:
    """Return the seconds of one ballot, between ranks that are there."""
    ranks = TorchDDPDriver(torch.nn.Linear(1, 1), "cpu").ranks
    ranks.barrier()
    began = time.perf_counter()
    for _ in range(BALLOTS):
        ranks.vote(0)
    return (time.perf_counter() - began) / BALLOTS


def rank_of(rank: int, port: int, rounds: int, steps: int, folder: str) -> None:
    """Measure, in one of the ranks."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(WORLD)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    work, run_dir = SharedWork(steps * WORLD, Plain), Path(folder) / "run"

    def journal_on() -> float:
        if rank == 0:
            shutil.rmtree(run_dir, ignore_errors=True)
        dist.barrier()
        return work.ours(run_dir)

    contenders = {"bare loop": work.bare, "journal off": lambda: work.ours(None), "journal on": journal_on}
    order = random.Random(0)
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for number in range(rounds + 1):
        for name in order.sample(list(contenders), len(contenders)):
            gc.collect()
            dist.barrier()
            took = contenders[name]()
            if number:  # the first round warms up
                seconds[name].append(took)
    cast = ballot()
    if rank == 0:
        report(seconds, steps, cast)
    dist.barrier()


def report(seconds: dict[str, list[float]], steps: int, cast: float) -> None:
    """Print the table."""
    micro = {name: [s / steps * 1e6 for s in held] for name, held in seconds.items()}
    bare = micro["bare loop"]
    print(f"{'':14s} {'median':>9s} {'fastest':>9s} {'above bare':>11s}   µs a step of {WORLD} ranks")
    for name, held in micro.items():
        above = statistics.median(a - b for a, b in zip(held, bare, strict=True))
        print(f"{name:14s} {statistics.median(held):9.1f} {min(held):9.1f} {above:11.1f}")
    print(f"a ballot: {cast * 1e6:.1f} µs, {cast * 1e6 / statistics.median(bare):.2f} of a bare step")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40, help="rounds; each contender runs once in each (40)")
    parser.add_argument("--steps", type=int, default=100, help="steps a run (100)")
    options = parser.parse_args()
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        arguments = (port, options.rounds, options.steps, folder)
        torch.multiprocessing.spawn(rank_of, arguments, nprocs=WORLD)


if __name__ == "__main__":
    main()
