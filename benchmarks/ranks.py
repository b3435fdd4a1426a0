"""What a step of several processes costs above a bare loop with `DistributedDataParallel`, and what a vote does.

The small work (a 32-64-2 MLP with Adam, batch 16 for each rank, one thread), over gloo on this machine, of 1 to 4
ranks. The ranks run every contender once in each round, in the same random order, and the difference to the bare loop
of the same round is taken; medians over the rounds. What is above the bare loop is time of the first rank's processor,
all its threads together: the clock of a rank runs while it waits for the others. A vote is what the ranks take between
epochs, and after a step before which one of them has asked for something; each waits for all others in it.

Where there are more ranks than cores they wait for a core, and then by the clock a step takes longer the more of them
there are.

    python benchmarks/ranks.py --rounds 40 --worlds 2
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import shutil
import socket
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing
from figures import Figure, curve, finish, number, parser
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler
from work import BATCH, QUIET, model, samples

from tachograph.drivers.ddp import TorchDDPDriver
from tachograph.engine import Trainer

VOTES = 500

Seen = dict[str, list[float]]  # contender, or "contender, cpu" -> µs a step, for each round


Spent = tuple[float, float]  # seconds of the clock, and of this process's processor


def now() -> Spent:
    return time.perf_counter(), time.process_time()


def between(began: Spent, ended: Spent) -> Spent:
    return ended[0] - began[0], ended[1] - began[1]


class Work:
    """The same work, shared by the ranks."""

    def __init__(self, steps: int, world: int) -> None:
        self.data = TensorDataset(*samples(BATCH * steps * world))

    def new(self) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        net = model()
        return net, torch.optim.Adam(net.parameters())

    def bare(self) -> Spent:
        net, optimizer = self.new()
        wrapped = DistributedDataParallel(_Losses(net))
        loader = DataLoader(self.data, batch_size=BATCH, sampler=DistributedSampler(self.data))
        began = now()
        for batch in loader:
            wrapped(batch).backward()
            optimizer.step()
            optimizer.zero_grad()
        return between(began, now())

    def ours(self, run_dir: Path | None) -> Spent:
        net, optimizer = self.new()
        loader = DataLoader(self.data, batch_size=BATCH, shuffle=True)
        trainer = Trainer(net, "torch_ddp", loader, optimizer, n_epochs=1, run_dir=run_dir, **QUIET)
        times: list[Spent] = []
        trainer.on("on_train_epoch_begin", lambda trainer: times.append(now()))
        trainer.on("on_train_epoch_end", lambda trainer: times.append(now()))
        trainer.run()
        return between(*times)


class _Losses(torch.nn.Module):
    def __init__(self, net: torch.nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, batch: list[torch.Tensor]) -> torch.Tensor:
        return self.net.train_step(batch)["loss"]


def vote() -> float:
    """Return the seconds of one vote, between ranks that are there."""
    ranks = TorchDDPDriver(torch.nn.Linear(1, 1), "cpu").ranks
    ranks.barrier()
    began = time.perf_counter()
    for _ in range(VOTES):
        ranks.vote(0)
    return (time.perf_counter() - began) / VOTES


def rank_of(rank: int, world: int, port: int, rounds: int, steps: int, folder: str) -> None:
    """Measure, in one of the ranks; the first one writes down what it saw."""
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    work, run_dir = Work(steps, world), Path(folder) / "run"

    def journal_on() -> Spent:
        if rank == 0:
            shutil.rmtree(run_dir, ignore_errors=True)
        dist.barrier()
        return work.ours(run_dir)

    contenders: dict[str, Callable[[], Spent]] = {
        "bare": work.bare,
        "off": lambda: work.ours(None),
        "on": journal_on,
    }
    order = random.Random(0)
    seen: dict[str, list[float]] = {f"{name}{clock}": [] for name in contenders for clock in ("", ", cpu")}
    for count in range(rounds + 1):
        for name in order.sample(list(contenders), len(contenders)):
            gc.collect()
            dist.barrier()
            took = contenders[name]()
            if count:  # the first round warms up
                for clock, spent in zip(("", ", cpu"), took, strict=True):
                    seen[f"{name}{clock}"].append(spent / steps * 1e6)
    seen["vote"] = [vote() * 1e6 if world > 1 else 0.0]
    if rank == 0:
        (Path(folder) / "seen").write_text(json.dumps(seen))
    dist.barrier()
    dist.destroy_process_group()


def seen_by(world: int, rounds: int, steps: int) -> Seen:
    """Start so many ranks; return what the first one saw, with the µs of a vote."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(rank_of, (world, port, rounds, steps, folder), nprocs=world)
        seen: Seen = json.loads((Path(folder) / "seen").read_text())
    return seen


def told(seen: dict[int, Seen]) -> Iterator[Figure]:
    """Tell of each number of ranks."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    note = f"{cores} cores"

    def points(of: Callable[[Seen], float]) -> dict[float, float]:
        return {world: of(held) for world, held in seen.items()}

    def above(name: str, clock: str = ", cpu") -> Callable[[Seen], float]:
        def told(held: Seen) -> float:
            pairs = zip(held[f"{name}{clock}"], held[f"bare{clock}"], strict=True)
            return statistics.median(a - b for a, b in pairs)

        return told

    yield from curve("a bare step", points(lambda held: statistics.median(held["bare"])), "µs", "ranks", note)
    own = points(lambda held: statistics.median(held["bare, cpu"]))
    yield from curve("a bare step's processor time", own, "µs", "ranks", "of the first rank")
    for name in ("off", "on"):
        title = f"journal {name}, above the bare loop"
        clock = "; ".join(f"{world}: {number(above(name, '')(held))}" for world, held in seen.items())
        yield from curve(title, points(above(name)), "µs", "ranks", f"processor time; by the clock {clock}")
    votes = {world: held["vote"][0] for world, held in seen.items() if world > 1}
    yield from curve("a vote", votes, "µs", "ranks", f"mean of {VOTES}, by the clock")


def measure(options: argparse.Namespace) -> list[Figure]:
    worlds = [int(part) for part in options.worlds.split(",")]
    if options.quick:
        worlds, options.rounds, options.steps = [2], 1, 10
    return list(told({world: seen_by(world, options.rounds, options.steps) for world in worlds}))


def main() -> None:
    options: Any = parser(__doc__)
    options.add_argument("--rounds", type=int, default=12, help="rounds; each contender runs once in each (12)")
    options.add_argument("--steps", type=int, default=60, help="steps a run (60)")
    options.add_argument("--worlds", default="1,2,3,4", help="numbers of ranks (1,2,3,4)")
    finish(measure, options.parse_args())


if __name__ == "__main__":
    main()
