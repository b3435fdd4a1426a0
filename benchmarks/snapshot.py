"""What a snapshot costs the run, at 10 MB, 100 MB and 1 GB of weights and Adam's moments.

In the middle of a run, each round does all of these with the same state, in random order:

    the copy alone, each tensor into memory that is at hand; one thread
    torch.save into a new file, and the same with the file on the disk at its end
    torch.distributed.checkpoint.async_save, until it returns: as it comes, and with a stager that is kept
    ours, until the run goes on; and the same without the memory of an earlier snapshot, as the first one is
    the whole snapshot: copied, written, synced, hashed, read back, renamed; another thread does all but the copy

A stall is divided by what the others took in its round, and medians over the rounds are shown. Then the run's own clock
is read: what it loses in all by a snapshot, its steps being slower while another thread writes, and by a `torch.save`
in the same place. One thread trains.

    python benchmarks/snapshot.py --megabytes 10 100 1000
"""

from __future__ import annotations

import argparse
import gc
import itertools
import os
import random
import shutil
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from figures import Figure, finish, parser, quartiles
from torch import nn
from torch.distributed.checkpoint import async_save
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

from tachograph.engine import Trainer

LAYERS = 12
OURS, COPY, SAVE, SYNCED, WHOLE = "ours", "the copy alone", "torch.save", "torch.save, fsync", "the whole snapshot"
FIRST, DCP, KEPT = "ours, the first", "DCP async_save", "DCP async_save, stager kept"
NOTHING, SLOWER, WORKED = "nothing", "slower", "worked"
NAMES = {OURS: "a snapshot", SAVE: "torch.save"}


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
        settings: dict[str, Any] = {"run_dir": folder / "run", "snapshot_every": None, "keep_snapshots": 1}
        self.trainer = Trainer(
            self.model, "torch", batches, self.optimizer, n_epochs=10**6, progress_bar=None, **settings
        )
        self.published = 0.0
        self.places: list[torch.Tensor] = []
        self.stager = DefaultStager(StagingOptions(False, False, False, False))

    def state(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def tensors(self) -> list[torch.Tensor]:
        moments = [t for s in self.optimizer.state.values() for t in s.values() if isinstance(t, torch.Tensor)]
        return [*self.model.state_dict().values(), *moments]

    def copy(self) -> float:
        """The floor: every tensor of the state is copied once."""
        held = self.tensors()
        if not self.places:
            self.places = [torch.empty_like(t) for t in held]
        began = time.perf_counter()
        for place, tensor in zip(self.places, held, strict=True):
            place.copy_(tensor.detach())
        return time.perf_counter() - began

    def save(self) -> float:
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

    def dcp(self, stager: DefaultStager | None = None) -> float:
        """What a loop waits for DCP; then, outside of what is measured, for its end."""
        path = self.folder / "dcp"
        shutil.rmtree(path, ignore_errors=True)
        began = time.perf_counter()
        saving: Any = async_save(self.state(), checkpoint_id=path, async_stager=stager, no_dist=True)
        stalled = time.perf_counter() - began
        saving.result()
        return stalled

    def kept(self) -> float:
        return self.dcp(self.stager)

    def stall(self) -> float:
        """What the run waits for a snapshot; then, outside of what is measured, for its end."""
        began = time.perf_counter()
        self.trainer._snapshot()
        stalled = time.perf_counter() - began
        self.wait()
        self.published = time.perf_counter() - began
        return stalled

    def wait(self) -> None:
        self.trainer._recorder.snapshots.wait()  # type: ignore[union-attr]

    def writing(self) -> bool:
        task = self.trainer._recorder.snapshots._task  # type: ignore[union-attr]
        return task is not None and task.is_alive()

    def first(self) -> float:
        self.trainer.driver._staging = None  # type: ignore[union-attr]
        return self.stall()


def stalls(work: Work, rounds: int, seconds: dict[str, list[float]]) -> Iterator[None]:
    """Do each once a round; the run makes a step wherever this yields."""
    contenders: dict[str, Callable[[], float]] = {
        COPY: work.copy,
        SAVE: work.save,
        SYNCED: work.synced,
        DCP: work.dcp,
        KEPT: work.kept,
        OURS: work.stall,
        FIRST: work.first,
    }
    for warm in (False, *[True] * rounds):
        for name in random.sample(list(contenders), len(contenders)):
            gc.collect()
            spent = contenders[name]()
            if warm:
                seconds.setdefault(name, []).append(spent)
                if name == OURS:
                    seconds.setdefault(WHOLE, []).append(work.published)
            yield  # another snapshot of the same transition wouldn't be taken


def losses(work: Work, rounds: int, lost: dict[str, list[float]]) -> Iterator[None]:
    """Hold stretches of the run against each other: with nothing in them, with a snapshot, with a `torch.save`."""
    steps = 0
    work.trainer._snapshot()
    while work.writing():
        yield
        steps += 1
    acts: dict[str, Callable[[], object]] = {NOTHING: lambda: None, OURS: work.trainer._snapshot, SAVE: work.save}
    for _ in range(rounds):
        spent: dict[str, float] = {}
        worked: dict[str, float] = {}
        for name in random.sample(list(acts), len(acts)):
            gc.collect()
            began, cpu = time.perf_counter(), time.thread_time()
            acts[name]()
            for _ in range(steps + 2):
                yield
            spent[name], worked[name] = time.perf_counter() - began, time.thread_time() - cpu
            work.wait()
        lost.setdefault(OURS, []).append(spent[OURS] - spent[NOTHING])
        lost.setdefault(SAVE, []).append(spent[SAVE] - spent[NOTHING])
        lost.setdefault(SLOWER, []).append(spent[OURS] / spent[NOTHING] - 1)
        lost.setdefault(WORKED, []).append(worked[OURS] / worked[NOTHING] - 1)


def measure(options: argparse.Namespace) -> list[Figure]:
    warnings.filterwarnings("ignore", category=FutureWarning)
    warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")
    torch.set_num_threads(1)
    sizes = options.megabytes or ([10] if options.quick else [10, 100, 1000])
    return [figure for size in sizes for figure in of_size(size, options)]


def of_size(megabytes: int, options: argparse.Namespace) -> list[Figure]:
    rounds = options.rounds or (2 if options.quick else max(3, min(40, 1500 // megabytes)))
    seconds: dict[str, list[float]] = {}
    lost: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        work = Work(Path(folder), megabytes)
        plan = itertools.chain(stalls(work, rounds, seconds), losses(work, rounds, lost))

        def after(trainer: Trainer) -> None:
            if next(plan, plan) is plan:
                trainer.stop("measured")

        work.trainer.on("step -> fetch", after)
        work.trainer.run()
    return [*_of_stalls(megabytes, seconds), *_of_losses(megabytes, lost)]


def _of_stalls(megabytes: int, seconds: dict[str, list[float]]) -> Iterator[Figure]:
    """The stall in shares of what the others took in its round, then what each took."""
    size = f"{megabytes:,} MB"
    asked = {SAVE: 0.15}
    for other in (SAVE, SYNCED, DCP, KEPT, COPY, FIRST, WHOLE):
        share = statistics.median(a / b for a, b in zip(seconds[OURS], seconds[other], strict=True))
        fastest = f"{min(seconds[OURS]) / min(seconds[other]):.2f} by the fastest rounds"
        yield Figure(f"{size}: the stall, of {other}", share, "", asked.get(other), note=fastest)
    for name, held in seconds.items():
        note = f"fastest {min(held) * 1e3:.1f}, median of {len(held)}"
        yield Figure(f"{size}: {name}", statistics.median(held) * 1e3, "ms", note=note)


def _of_losses(megabytes: int, lost: dict[str, list[float]]) -> Iterator[Figure]:
    size = f"{megabytes:,} MB"
    for name in (OURS, SAVE):
        low, middle, high = (value * 1e3 for value in quartiles(lost[name]))
        note = f"a run's clock; quartiles {low:.1f} and {high:.1f}"
        yield Figure(f"{size}: a run loses by {NAMES[name]}", middle, "ms", note=note)
    slower, worked = (statistics.median(lost[name]) * 100 for name in (SLOWER, WORKED))
    note = f"{worked:.0f} % of the training thread's processor time; the stall is among them"
    yield Figure(f"{size}: steps beside the writing are slower by", slower, "%", note=note)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--rounds", type=int, help="rounds; each is done once in each (40, 15, 3 by size)")
    options.add_argument("--megabytes", type=int, nargs="+", help="of tensors (10 100 1000; --quick: 10)")
    finish(measure, options.parse_args())


if __name__ == "__main__":
    main()
