"""A short training whose progress is shown, for the terminals and pipes that tests look at.

    python -m tests.jobs.progress_job MODE RUN_DIR [SETTINGS]

SETTINGS is a JSON object of `main`'s arguments. The clock that progress reads goes on by a tenth of a second at each
look, so what is drawn and what stands there is the same in every run.
"""

from __future__ import annotations

import itertools
import json
import signal
import sys
import time
from pathlib import Path
from typing import Any

from tachograph.drivers import StubDriver
from tachograph.engine import Events, Progress, Trainer
from tachograph.engine.world import World


class MeanLoss:
    """The mean of the losses."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.losses: list[float] = []

    def update(self, loss: Any) -> None:
        self.losses.append(float(loss))

    def compute(self) -> dict[str, float]:
        return {"mean": sum(self.losses) / len(self.losses), "_n": len(self.losses)}


def hold(folder: Path) -> None:
    """Say that the place is reached, and wait there."""
    (folder / "here").touch()
    while not (folder / "go").exists():
        time.sleep(0.01)


def end_by(trainer: Any, end: str) -> None:
    """End the run in one of the ways that runs end in."""
    if end == "stop":
        trainer.stop("enough")
    elif end == "error":
        raise ValueError("no good")
    elif end == "SIGKILL":
        while not any(trainer.run_dir.glob("snapshots/0*/COMMIT")):
            time.sleep(0.01)
        signal.raise_signal(signal.SIGKILL)
    elif end != "done":
        signal.raise_signal(signal.Signals[end])


def without_torch(shown: Progress, **settings: Any) -> Trainer:
    """A trainer that is there at once."""
    driver = StubDriver(lambda batch, n: (batch + 1) / 10)
    about = {"metrics": {"loss": MeanLoss()}, "validate_dataloaders": {"dev": [{"loss": 1}] * 3}}
    return Trainer(None, driver, list(range(12)), None, callbacks=[shown], **about, **settings)


def with_workers(shown: Progress, workers: int, **settings: Any) -> Trainer:
    """A trainer whose loader has workers, which are forked under what is shown."""
    from torch.utils.data import DataLoader

    from tests.toys import Indexed, Run

    about = {"metrics": {"loss": MeanLoss()}, "validate_dataloaders": {"dev": DataLoader(Indexed(6), batch_size=2)}}
    loader = {"num_workers": workers}
    return Run(n=24, loader=loader, callbacks=lambda run: [shown], **about, **settings).trainer


def main(
    mode: str, run_dir: str, end: str = "done", at: int = 18, workers: int = 0, held: str = "", every: Any = None
) -> None:
    """Train for three epochs of twelve batches.

    Args:
        mode: of the progress.
        run_dir: the run directory; it goes on if there is a run.
        end: "done", "stop", "error", or a signal's name.
        at: the batch that it is held at, and ended at.
        workers: of the loader; none: without torch.
        held: a folder: there it says that it is held, and waits to be told to go on.
        every: of the progress.
    """
    ticks = itertools.count()
    shown = Progress(mode, every, monitor="mean", larger_better=False)
    about = {"run_dir": run_dir, "n_epochs": 3, "snapshot_every": 15}
    trainer = with_workers(shown, workers, **about) if workers else without_torch(shown, **about)
    trainer.world = World(timer=lambda: next(ticks) / 10)

    def reached(trainer: Any) -> None:
        if held:
            hold(Path(held))
        end_by(trainer, end)

    trainer.on(Events.on_train_batch_end(filter_fn=lambda f, t: t.global_forward_batches == at), reached)
    trainer.run(resume_from="auto")
    print("the program goes on")


if __name__ == "__main__":
    main(*sys.argv[1:3], **json.loads(sys.argv[3] if len(sys.argv) > 3 else "{}"))
