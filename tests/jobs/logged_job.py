"""A run without torch that keeps a log, and may be killed at any place. As a program: a server of it (see `forks`)."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tachograph.drivers import StubDriver
from tachograph.engine import CSVLogger, Logger, MLflowLogger, TensorBoardLogger, Trainer, WandbLogger
from tests.jobs import forks

BACKENDS = ("csv", "tensorboard", "wandb", "mlflow")


class Mean:
    """A metric."""

    def __init__(self) -> None:
        self.reset()

    def update(self, value: int, weight: int) -> None:
        self.total += value + weight % 100

    def compute(self) -> float:
        return self.total / 7

    def reset(self) -> None:
        self.total = 0


def logger_of(backend: str, run_dir: Any = None, **settings: Any) -> Logger:
    """A logger that needs no network."""
    if backend == "csv":
        return CSVLogger(**settings)
    if backend == "tensorboard":
        return TensorBoardLogger(**settings)
    if backend == "wandb":
        return WandbLogger(mode="offline", **settings)
    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
    return MLflowLogger(tracking_uri=store_of(run_dir), **settings)


def store_of(run_dir: Any) -> str:
    """Name a store for a run; a database takes seconds to be made."""
    return (Path(run_dir).resolve() / "mlruns").as_uri()


def build(run_dir: Any, loggers: Any, **settings: Any) -> Trainer:
    """Build the run: 5 batches an epoch, windows of 2, validations after every third batch and each epoch."""
    settings = {
        "n_epochs": 3,
        "accumulation_steps": 2,
        "validate_every": (3, -1),
        "snapshot_every": 4,
        "seed": 3,
        "progress_bar": None,
        "monitor": "mean",
        **settings,
    }
    batches = settings.pop("batches", [3, 1, 4, 1, 5])
    driver = settings.pop("driver", None) or StubDriver()
    settings |= {"metrics": {"mean": Mean()}, "validate_dataloaders": [5, 6], "callbacks": loggers}
    trainer = Trainer(None, driver, batches, None, run_dir=run_dir, **settings)
    trainer.on("on_before_backward", lambda t, outputs: t.log(inside=outputs["loss"] * 2))
    trainer.on("on_train_epoch_end", lambda t: t.log({"at an epoch's end": t.trainer_state.cur_epoch_idx}))
    return trainer


def kill(*_: Any) -> None:
    """Die at once."""
    os.kill(os.getpid(), signal.SIGKILL)


def at(number: int, act: Callable[..., Any] = kill) -> Callable[..., None]:
    """Do something at the call with this number, from 1."""
    left = [number]

    def called(*args: Any) -> None:
        left[0] -= 1
        if left[0] == 0:
            act(*args)

    return called


def killed_after(trainer: Trainer, seq: int, priority: int, published: int | None) -> None:
    """Have the process killed when a transition has been heard, or before it is, and a snapshot is there."""

    def look(trainer: Any) -> None:
        if trainer.trainer_state.seq == seq:
            while published is not None and not (trainer.run_dir / "snapshots" / f"{published:012d}").exists():
                time.sleep(0.001)
            kill()

    for target in trainer.machine.names:
        trainer.on(target, look, priority=priority)


def work(job: dict[str, Any]) -> None:
    """Run it.

    Args:
        job: `run_dir`, `backend`; `kill`: after which transition, `early`: before anybody hears it; `published`: the
            snapshot that is waited for then; `write`: at which
            call of the logger's `write`; `resume`: where from; `logger` and `trainer`: settings.
    """
    logger = logger_of(job["backend"], job["run_dir"], folder=job.get("folder"), **job.get("logger", {}))
    trainer = build(Path(job["run_dir"]), logger, **job.get("trainer", {}))
    if "kill" in job:
        killed_after(trainer, job["kill"], 9 if job.get("early") else -9, job.get("published"))
    if "write" in job:
        write, count = logger.write, at(job["write"])
        logger.write = lambda *row: (write(*row), count()) if job.get("early") is None else (count(), write(*row))  # type: ignore[method-assign,assignment]
    trainer.run(resume_from=job.get("resume", "auto"), num_eval_sanity_batch=1)


if __name__ == "__main__":
    forks.serve(work)
