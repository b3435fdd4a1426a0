"""How soon a run goes on: from `run(resume_from=)`, and from the start of its process, to the first batch.

A run of 6,250 batches of 16 samples is ended at several places of its epoch, with a small model and with 100 MB of
weights and Adam's moments, with no worker and with two. A new process goes on with it; another one does what scripts do
without an engine: it loads a file of `torch.save` and passes over batches until it is where it was. Reads of the
dataset, which costs next to nothing here, are counted in all processes when the first batch comes; those of a batch
that a worker was asked for only then are left out. Shown are the reads of the worst place, and medians of the seconds.

    python benchmarks/resume.py --rounds 2
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
from figures import Figure, finish, parser

SAMPLES = 100_000
BATCH = 16
PREFETCH = 2
PLACES = (0.02, 0.5, 0.98)  # of the epoch
FEATURES = 32
SIZES = {"small": 32, "100 MB": 2870}  # the width of the second of two layers


@attrs.frozen
class Job:
    """What a process does.

    Attributes:
        what: "train", "resume", or "skip", which is what a script does without an engine.
        folder: of the run.
        width: of the model.
        workers: of the loader.
        place: the batch at which it was ended.
        began: when the process was started.
    """

    what: str
    folder: str
    width: int
    workers: int
    place: int
    began: float


# -- in a process of its own -------------------------------------------------------------------------------


def work(job: Job) -> dict[str, float]:
    """Do a job; return seconds and reads."""
    import torch
    from torch import nn
    from torch.utils.data import DataLoader, Dataset

    torch.set_num_threads(1)
    reads = torch.zeros(SAMPLES, dtype=torch.int32).share_memory_()

    class Counted(Dataset[Any]):
        def __len__(self) -> int:
            return SAMPLES

        def __getitem__(self, index: int) -> Any:
            reads[index] += 1
            return torch.full((FEATURES,), float(index % 7)), index

    class Model(nn.Sequential):
        def train_step(self, batch: Any) -> dict[str, torch.Tensor]:
            return {"loss": self(batch[0]).pow(2).mean()}

    torch.manual_seed(0)
    model = Model(nn.Linear(FEATURES, job.width), nn.Linear(job.width, job.width))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-6)
    given = {"num_workers": job.workers, "prefetch_factor": PREFETCH if job.workers else None}
    loader = DataLoader(Counted(), batch_size=BATCH, shuffle=True, **given)
    run = {"train": _train, "resume": _resume, "skip": _skip}[job.what]
    return run(job, model, optimizer, loader, reads)


def _step(trainer: Any, batch: Any) -> None:
    """Train with the first batch only, so that the optimizer has its moments and the place is soon reached."""
    if trainer.trainer_state.global_forward_batches == 0:
        trainer.backward(trainer.train_step(batch))
        trainer.step()
        trainer.zero_grad()


def _trainer(job: Job, model: Any, optimizer: Any, loader: Any) -> Any:
    from tachograph.engine import Trainer

    settings: dict[str, Any] = {"run_dir": Path(job.folder) / "run", "snapshot_every": None, "progress_bar": None}
    return Trainer(model, "torch", loader, optimizer, n_epochs=1, batch_step_fn=_step, seed=1, **settings)


def _train(job: Job, model: Any, optimizer: Any, loader: Any, reads: Any) -> dict[str, float]:
    import torch

    trainer = _trainer(job, model, optimizer, loader)
    trainer.on("on_train_batch_end", lambda t: t.global_forward_batches == job.place and t.stop("here"))
    trainer.run()
    held = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "batches": job.place}
    torch.save(held, Path(job.folder) / "plain.pt")
    return {}


class _Enough(Exception):
    """All that is measured was seen."""


def _resume(job: Job, model: Any, optimizer: Any, loader: Any, reads: Any) -> dict[str, float]:
    trainer = _trainer(job, model, optimizer, loader)
    found: dict[str, float] = {}
    batches: list[list[int]] = []
    early = max(job.workers, 1) * (PREFETCH if job.workers else 1)  # batches that may be asked for before the first

    def first(trainer: Any, batch: Any, indices: Any) -> None:
        if not batches:
            now = time.perf_counter()
            found.update(run=now - began, process=time.time() - job.began)
            at_first.update(reads.nonzero().flatten().tolist())
        batches.append(batch[1].tolist())
        if len(batches) > early:
            found["reads"] = len(at_first - set(batches[early]))
            raise _Enough

    at_first: set[int] = set()
    trainer.on("on_train_batch_begin", first)
    began = time.perf_counter()
    try:
        trainer.run(resume_from="auto")
    except _Enough:
        return found
    raise AssertionError("the run ended before enough of it was seen")


def _skip(job: Job, model: Any, optimizer: Any, loader: Any, reads: Any) -> dict[str, float]:
    import torch

    began = time.perf_counter()
    held = torch.load(Path(job.folder) / "plain.pt", weights_only=True)
    model.load_state_dict(held["model"])
    optimizer.load_state_dict(held["optimizer"])
    for n, _ in enumerate(loader):
        if n == held["batches"]:
            break
    now = time.perf_counter()
    return {"run": now - began, "process": time.time() - job.began, "reads": int(reads.count_nonzero())}


# -- in this one -------------------------------------------------------------------------------------------


def done(job: Job) -> dict[str, float]:
    """Do a job in a process of its own."""
    told = json.dumps(attrs.asdict(attrs.evolve(job, began=time.time())))
    command = [sys.executable, __file__, "--job", told]
    made = subprocess.run(command, check=True, capture_output=True, text=True)
    result: dict[str, float] = json.loads(made.stdout.splitlines()[-1])
    return result


def measure(options: argparse.Namespace) -> list[Figure]:
    rounds = 1 if options.quick else options.rounds
    return [
        figure
        for size, width in SIZES.items()
        for workers in (0, 2)
        if not options.quick or (size == "small" and workers)
        for figure in _of(size, width, workers, rounds, PLACES[1:2] if options.quick else PLACES)
    ]


def _of(size: str, width: int, workers: int, rounds: int, places: tuple[float, ...]) -> Iterator[Figure]:
    seen: dict[str, list[dict[str, float]]] = {"resume": [], "skip": []}
    for place in (round(SAMPLES // BATCH * share) for share in places):
        with tempfile.TemporaryDirectory() as folder:
            job = Job("train", folder, width, 0, place, 0.0)
            done(job)
            for what in [*seen] * rounds:
                seen[what].append(done(attrs.evolve(job, what=what, workers=workers)))
    case = f"{size}, {workers} workers" if workers else f"{size}, no workers"
    reads = {what: max(one["reads"] for one in held) for what, held in seen.items()}
    asked = max(workers, 1) * (PREFETCH if workers else 1) * BATCH
    note = f"of {SAMPLES:,} samples; {reads['skip']:,.0f} by a loop that passes over batches"
    yield Figure(f"{case}: reads before the first batch", reads["resume"], "", asked, note=note)
    for what, told in (("resume", "to the first batch"), ("skip", "to it by a loop that passes over batches")):
        took, process = (statistics.median(one[key] for one in seen[what]) for key in ("run", "process"))
        note = f"{process:.1f} s from the start of the process, which imports torch"
        yield Figure(f"{case}: {told}", took, "s", note=note)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--rounds", type=int, default=1, help="times that each is done at each place (1)")
    options.add_argument("--job", help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.job:
        print(json.dumps(work(Job(**json.loads(given.job)))))
    else:
        finish(measure, given)


if __name__ == "__main__":
    main()
