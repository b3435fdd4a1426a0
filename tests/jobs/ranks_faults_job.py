"""Training in several ranks, one of which fails, or is told to end, in a chosen place."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import torch

from tachograph.drivers import processes
from tachograph.engine import Events, Trainer
from tests.jobs.exact_job import after_everyone, outcome
from tests.jobs.ranks import serve_ranks
from tests.jobs.ranks_job import build


class Planted(Exception):
    """What was planted."""


def _raise(*_: Any, **__: Any) -> Any:
    raise Planted("it was planted")


def _raise_later(fn: Any, calls: int) -> Any:
    """Return a function that does what another does, but fails at its n-th call."""
    done = 0

    def called(*args: Any, **kwargs: Any) -> Any:
        nonlocal done
        done += 1
        return _raise() if done == calls else fn(*args, **kwargs)

    return called


def plant(trainer: Trainer, where: str) -> None:
    """Have something fail."""
    driver: Any = trainer.driver
    assert trainer.evaluator is not None
    if where == "fetch":
        driver.next_batch = _raise_later(driver.next_batch, 4)
    elif where == "step":
        driver.model.forward = _raise_later(driver.model.forward, 5)
        driver._train_fn = lambda batch: driver.model.forward(**batch)
    elif where == "validate":
        trainer.evaluator._updates = {"loss": _raise}
    elif where == "listener":
        trainer.on("on_train_batch_end", _raise_later(lambda trainer: None, 4))
    elif where == "capture":
        driver.capture = _raise
    elif where == "save":
        driver.save = _raise
    elif where == "journal":
        trainer.on("step", lambda trainer: os.close(trainer._recorder._writer._output._fd))  # type: ignore[union-attr]
    elif where == "beginning":
        driver.setup = _raise
    elif where == "exit":
        trainer.on("on_train_batch_end", lambda trainer: os._exit(7))
    elif where == "kill":
        trainer.on("on_train_batch_end", lambda trainer: os.kill(os.getpid(), signal.SIGKILL))


def fail(job: dict[str, Any]) -> None:
    """Run a job in which the rank `on` fails at `where`; another may be `asleep` at that time."""
    if job.get("own_group"):
        torch.distributed.init_process_group("gloo")
    if job["where"] == "construction":
        job |= {"own": True, "empty": job["rank"] == job["on"]}
    trainer = build(job)
    ranks: Any = trainer.ranks
    ranks.limit = job.get("limit", 20)
    if job["rank"] == job["on"]:
        plant(trainer, job["where"])
    elif job.get("asleep"):
        trainer.on("fetch", lambda trainer: time.sleep(1000 * (trainer.trainer_state.global_forward_batches == 4)))
    if job.get("barrier"):
        trainer.on("on_exception", lambda trainer, error: trainer.ranks.barrier())
    trainer.on("on_exception", lambda trainer, error: print(f"heard {type(error).__name__}", flush=True))
    try:
        trainer.run()
    finally:
        if job.get("own_group"):
            print("a group is there" if torch.distributed.is_initialized() else "no group is there", flush=True)


def wait(job: dict[str, Any]) -> None:
    """Run a job in which rank 1 comes late."""
    processes.PATIENCE = 0.5
    trainer = build(job)
    if job["rank"] == 1:
        trainer.on(Events.on_train_batch_end(once=2), lambda trainer: time.sleep(2.5))
    trainer.run()


def ask(job: dict[str, Any]) -> None:
    """Run a job in which the ranks `on` ask for something at their n-th batch: `what`, after `seconds` of waiting."""
    trainer = build(job)
    ranks: Any = trainer.ranks
    ranks.lag = job.get("lag", 0)
    heard: list[Any] = []

    def act(trainer: Any) -> None:
        if trainer.trainer_state.global_forward_batches != job.get("at", 3) or job["rank"] not in job["on"]:
            return
        what = job["what"]
        if what == "stop":
            trainer.stop(f"rank {job['rank']} has had enough")
        elif what == "end_epoch":
            trainer.end_epoch(f"rank {job['rank']} has had enough of it")
        elif what == "snapshot":
            trainer.request_snapshot()
        elif what in ("SIGTERM", "SIGUSR1", "SIGINT"):
            number = getattr(signal, what)
            delay = job.get("apart", 0) * job["on"].index(job["rank"])
            threading.Timer(delay, os.kill, (os.getpid(), number)).start() if delay else os.kill(os.getpid(), number)

    trainer.on("on_train_batch_end", act)
    trainer.on("on_after_snapshot", lambda trainer, path: heard.append([path.name, trainer.trainer_state.seq]))
    after_everyone(trainer, lambda trainer: time.sleep(job.get("slowly", 0)))
    if "max_time" in job and job["rank"] in job["on"]:
        trainer._limits.max_time = job["max_time"]
    try:
        trainer.run(resume_from="auto", catch_KeyboardInterrupt=job.get("catch"))
    finally:
        state = trainer.trainer_state.to_dict()
        report = {"state": state, "snapshots": heard}
        (Path(job["out"]) / f"rank-{job['rank']}.json").write_text(json.dumps(report))
        if trainer.exception is None:
            torch.save(outcome(trainer), Path(job["out"]) / f"rank-{job['rank']}.pt")


def work(job: dict[str, Any]) -> None:
    {"fail": fail, "ask": ask, "wait": wait}[job["work"]](job)


if __name__ == "__main__":
    serve_ranks(work)
