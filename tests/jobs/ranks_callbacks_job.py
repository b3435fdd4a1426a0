"""What listens and writes, in several ranks: small trainings, one after the other; each rank reports what it saw."""

from __future__ import annotations

import json
import os
import signal
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from tachograph.engine import (
    EMA,
    Callback,
    Checkpoint,
    CSVLogger,
    EarlyStopping,
    ExecuteOnBetter,
    GradClip,
    GradNormMonitor,
    LoadBestModel,
    LRMonitor,
    LRSchedule,
    MemoryMonitor,
    ModelSummary,
    MoreEvaluate,
    NanGuard,
    Profiler,
    Progress,
    SpikeGuard,
    TensorBoardLogger,
    ThroughputMonitor,
    TimeLimit,
    Timer,
    Trainer,
    Warmup,
)
from tachograph.states.errors import CallerError
from tests.jobs.exact_job import after_everyone
from tests.jobs.ranks import serve_ranks

Report = dict[str, Any]


class Numbers(Dataset[dict[str, torch.Tensor]]):
    def __init__(self, n: int) -> None:
        self.x = torch.randn(n, 4, generator=torch.Generator().manual_seed(n))

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        return {"x": self.x[i], "y": self.x[i].sum()}


class Net(nn.Module):
    """Its loss can be spoiled on one rank, with its gradients (`factor`) or without (`term`)."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
        self.factor, self.term = 1.0, 0.0

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        loss = nn.functional.mse_loss(self.body(x)[:, 0], y)
        return {"loss": loss * self.factor + self.term} if self.training else {"loss": loss}


class Heard(Callback):
    """Keeps what was logged and said, and the losses of this rank, update by update."""

    def __init__(self) -> None:
        self.logged: list[Any] = []
        self.said: list[str] = []
        self.losses: list[float] = []

    def on_log(self, trainer: Any, values: dict[str, Any]) -> None:
        self.logged.append({name: float(value) for name, value in values.items()})

    def on_notice(self, trainer: Any, text: str) -> None:
        self.said.append(text)

    def on_train_batch_end(self, trainer: Any) -> None:
        self.losses.append(trainer.last_loss)


class Clock:
    """Stands still, until it is set forward."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def trainer_of(job: Report, name: str, callbacks: Any = (), **more: Any) -> Trainer:
    """Build a trainer of 4 batches an epoch and rank; its run is in the folder `name`."""
    torch.manual_seed(3)
    model = Net()
    optimizer = more.pop("optimizer", torch.optim.SGD)(model.parameters(), lr=0.01)
    made = callbacks(optimizer) if callable(callbacks) else callbacks
    settings: Report = {"n_epochs": 2, "run_dir": Path(job["folder"]) / name, "seed": 5, "progress_bar": None, **more}
    return Trainer(
        model,
        job.get("driver", "torch_ddp"),
        DataLoader(Numbers(job.get("samples", 8 * job["world"])), batch_size=2, shuffle=True),
        [optimizer],
        validate_dataloaders=DataLoader(Numbers(6), batch_size=2),
        metrics={"loss": "loss"},
        monitor="loss",
        larger_better=False,
        callbacks=list(made),
        **settings,
    )


def spoil(trainer: Trainer, rank: int, batch: int, **how: float) -> None:
    """Spoil the loss of one batch on one rank."""

    def begin(trainer: Any, given: Any, indices: Any) -> None:
        here = trainer.ranks.rank == rank and trainer.trainer_state.global_forward_batches == batch
        for name, usual in {"factor": 1.0, "term": 0.0}.items():
            setattr(trainer.model, name, how.get(name, usual) if here else usual)

    trainer.on("on_train_batch_begin", begin)


def set_forward(trainer: Trainer, rank: int, batch: int) -> None:
    """Have the clock of one rank go an hour forward when a batch is done, before anybody else hears of it."""
    clock = Clock()
    trainer.world = attrs.evolve(trainer.world, timer=clock)

    def move(trainer: Any) -> None:
        if trainer.ranks.rank == rank and trainer.trainer_state.global_forward_batches == batch:
            clock.now += 3600.0

    trainer.on("on_train_batch_end", move, priority=9)


def digest(weights: Any) -> str:
    """Tell weights from others, bit for bit."""
    held = weights.state_dict() if isinstance(weights, nn.Module) else weights
    whole = {name: getattr(t, "full_tensor", lambda t=t: t)() for name, t in held.items()}
    return str([(name, tensor.tolist()) for name, tensor in whole.items()])


def listed(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def raised(act: Callable[[], Any]) -> str:
    try:
        act()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


# -- the parts ---------------------------------------------------------------------------------------------


def logs(job: Report) -> Report:
    """Everything that shows or logs, and who touches which files."""
    folder, rank = Path(job["folder"]) / "logs", job["rank"]
    touched: set[str] = set()

    def hook(event: str, given: tuple[Any, ...]) -> None:
        writing = event == "open" and isinstance(given[1], str) and set(given[1]) & set("wax+")
        if writing or event in ("os.mkdir", "os.rename", "os.remove") or (event == "open" and given[1] is None):
            path = str(given[0])
            if path.startswith(str(folder)) and (writing or event != "open" or given[2] & 3):
                touched.add(path.removeprefix(f"{folder}/"))

    sys.addaudithook(hook)
    heard = Heard()
    loggers: list[Any] = [CSVLogger(), TensorBoardLogger()]
    shown = Progress("plain", print_every=1, file=folder.with_name(f"progress-{rank}"))
    callbacks = [*loggers, shown, heard, Timer(0), ModelSummary(), MemoryMonitor(4), ThroughputMonitor(4)]
    trainer = trainer_of(job, "logs", callbacks)
    trainer.run()
    said = [text.split(":")[0] for text in heard.said if "time of" in text or "in all" in text]
    written = [logger.state_dict()["written"] for logger in loggers]
    rates = [values for values in heard.logged if "throughput/samples" in values]
    samples = [round(values["throughput/samples"] / values["throughput/batches"], 6) for values in rates]
    about = {"touched": sorted(touched), "losses": heard.losses, "said": said, "mode": shown.mode}
    return {**about, "written": written, "samples": samples}


def saves(job: Report) -> Report:
    """Models by epochs, by batches, the last, the best: as the average has them; by a function of one's own."""
    folder, calls = Path(job["folder"]), {"save": 0, "load": 0}
    checkpoint = Checkpoint(every_n_epochs=1, every_n_batches=3, last=True, topk=2, keep_last=2)
    trainer = trainer_of(job, "saves", [EMA(0.5), checkpoint], validate_every=2)
    trainer.run()

    def save_fn(path: Path) -> None:
        calls["save"] += 1
        trainer.ranks.barrier()  # nobody else comes here
        trainer.driver.save_model(path / "own.pt")  # type: ignore[union-attr]

    def load_fn(path: Path) -> None:
        calls["load"] += 1
        trainer.driver.load_model(path / "own.pt")  # type: ignore[union-attr]

    trainer.save_model(folder / "own", model_save_fn=save_fn)
    held = digest(trainer.model)
    with torch.no_grad():
        trainer.model.body[0].weight.zero_()
    trainer.load_model(folder / "own", model_load_fn=load_fn)
    loaded = digest(trainer.model)
    trainer.save_model(folder / "plain" / "weights.pt")
    there = (folder / "plain" / "weights.pt").is_file()
    lost = raised(lambda: trainer.load_model(folder / ("plain" if trainer.ranks.first else "nowhere")))
    top = checkpoint._top
    state = {"queue": top.queue.state_dict(), "regular": checkpoint._regular, "best": top.monitor_value}
    return {**state, "calls": calls, "loaded": loaded, "there": there, "weights": held, "lost": lost}


def trainers(job: Report) -> Report:
    """Whole trainers: by `Checkpoint`, by hand in the midst of a run and after it; gone on from, with the same bits."""
    folder = Path(job["folder"])
    straight = trainer_of(job, "straight", n_epochs=3)
    straight.run()
    trainer = trainer_of(job, "trainers", [Checkpoint(last=True, save_object="trainer")])

    refused: list[str] = []

    def note(path: Path) -> None:
        (path / "note").write_text("by hand")

    def ask(trainer: Any) -> None:
        if trainer.trainer_state.global_forward_batches == 6:
            refused.append(raised(lambda: trainer.save(folder / "midst", model_save_fn=note)))
            if refused[0]:
                trainer.save(folder / "midst")

    trainer.on("on_train_batch_end", ask)
    trainer.run()
    trainer.save(folder / "after")
    ended = {}
    [last] = (folder / "trainers" / "checkpoints").iterdir()
    for name, source in {"midst": folder / "midst", "after": folder / "after", "last": last}.items():
        loads: list[Path] = []
        again = trainer_of(job, f"from-{name}", n_epochs=3)
        again.load(source, model_load_fn=loads.append)
        again.run()
        ended[name] = digest(again.model) == digest(straight.model) and len(loads) == 1
    fault = raised(lambda: trainer.save(folder / "trainers" / "snapshots" / "mine"))
    if not trainer.ranks.first:

        def full(capture: Any, directory: Path) -> Any:
            raise OSError(28, "no space here")

        trainer.driver.save = full  # type: ignore[union-attr, method-assign]
    lost = raised(lambda: trainer.save(folder / "after"))
    return {"ended": ended, "fault": fault, "lost": lost, "refused": refused}


def best(job: Report) -> Report:
    """The best weights, in memory and in a folder."""
    found: Report = {}
    for name, folder in {"memory": None, "folder": Path(job["folder"]) / "best"}.items():
        values = iter([3.0, 1.0, 2.0, 4.0])
        kept: list[str] = []

        def keep(trainer: Any, results: Any, kept: list[str] = kept) -> None:
            kept.append(digest(trainer.model))

        callback = LoadBestModel(lambda results, values=values: next(values), False, save_folder=folder)
        trainer = trainer_of(job, f"best-{name}", [callback], validate_every=2, snapshot_every=2)
        trainer.on("on_validate_end", keep)
        trainer.run(num_eval_sanity_batch=0)
        ended = digest(trainer.model)
        trainer.n_epochs = 3
        callback.set_monitor(lambda results: 0.0, False)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            trainer.run(num_eval_sanity_batch=0)  # it goes on from the weights that were trained
        found[name] = {"ended": ended, "kept": kept, "at": callback.best_at, "went_on": digest(trainer.model)}
    return found


def decisions(job: Report) -> Report:
    """What decides by results."""
    counts = {"better": 0}

    def better() -> None:
        counts["better"] += 1

    more = MoreEvaluate(
        DataLoader(Numbers(5), batch_size=2), {"l": "loss"}, evaluate_every=3, topk=1, topk_monitor="l",
        topk_larger_better=False, folder=Path(job["folder"]) / "more",
    )  # fmt: skip
    values = iter([1.0, 2.0, 2.0, 0.5, 3.0, 3.0, 3.0])

    def callbacks(optimizer: Any) -> Any:
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5)
        early = EarlyStopping(lambda results: next(values), larger_better=False, patience=3)
        return [LRSchedule(plateau, "plateau"), early, ExecuteOnBetter(execute_fn=better), more]

    trainer = trainer_of(job, "decisions", callbacks, n_epochs=9, validate_every=2)
    state = trainer.run(num_eval_sanity_batch=0)
    lrs = trainer.driver.learning_rates()  # type: ignore[union-attr]
    top = more._top.queue.state_dict()
    return {**counts, "state": state.to_dict(), "lrs": lrs, "more": [more.count, more.results, top]}


def guards(job: Report) -> Report:
    """A loss on rank 1 alone is no number, or far too large."""
    found: Report = {}
    spike = {"factor": 1e4}
    cases: dict[str, tuple[Any, Report]] = {
        "nan": (NanGuard("skip"), {"factor": float("nan")}),
        "loss": (NanGuard("skip"), {"term": float("inf")}),  # whose gradients are in order
        "stop": (NanGuard("stop"), {"term": float("nan")}),
        "continue": (NanGuard("continue"), {"term": float("inf")}),
        "spike": (SpikeGuard("skip", window=4), spike),
        "spikes": (SpikeGuard("warn", window=4, patience=1), spike),
    }
    for name, (guard, how) in cases.items():
        heard = Heard()
        trainer = trainer_of(job, f"guard-{name}", [guard, heard], snapshot_every=None)
        spoil(trainer, rank=1, batch=6, **how)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            state = trainer.run()
        skipped = [r.seq for r in trainer.journal if r.event == "Stepped" and r.data["skipped"]]  # type: ignore[union-attr]
        found[name] = {
            "count": guard.count,
            "skipped": skipped,
            "state": state.to_dict(),
            "weights": digest(dict(trainer.model.named_parameters())),
            "notes": [text for text in heard.said if "SpikeGuard" in text],
            "told": len(told),
        }
    return found


def clocks(job: Report) -> Report:
    """The clock of one rank alone goes forward."""
    found: Report = {}
    data, folder = DataLoader(Numbers(5), batch_size=2), Path(job["folder"])
    cases: dict[str, tuple[int, Any, Report]] = {
        "limit": (1, TimeLimit("10min"), {}),
        "max_time": (1, Callback(), {"max_time": "10min"}),
        "first": (0, Callback(), {"snapshot_every": "10min"}),
        "second": (1, Callback(), {"snapshot_every": "10min"}),
        "checkpoint": (1, Checkpoint(every="10min"), {}),
        "more": (1, MoreEvaluate(data, {"l": "loss"}, evaluate_every="10min"), {}),
        "asked": (1, MoreEvaluate(data, {"l": "loss"}, evaluate_every=lambda trainer: _third_of_rank_1(trainer)), {}),
    }
    for name, (rank, callback, more) in cases.items():
        trainer = trainer_of(job, f"clock-{name}", [callback], **{"snapshot_every": None, **more})
        set_forward(trainer, rank, 3)
        snapshots: list[str] = []
        trainer.on("on_after_snapshot", lambda trainer, path, held=snapshots: held.append(path.name))
        state = trainer.run()
        saved = folder / f"clock-{name}" / "checkpoints"
        found[name] = {
            "state": state.to_dict(),
            "snapshots": snapshots,
            "saved": sorted(path.name for path in saved.iterdir()) if saved.exists() else [],
            "count": getattr(callback, "count", None),
        }
    return found


def _third_of_rank_1(trainer: Any) -> bool:
    return bool(trainer.ranks.rank == 1 and trainer.trainer_state.global_forward_batches == 3)


def equals(job: Report) -> Report:
    """What is computed on every rank, and must be the same."""
    heard, average = Heard(), EMA(0.5, buffers="average")
    callbacks = [GradNormMonitor(name="raw"), GradClip(0.1, log=True), LRMonitor(), Warmup(0.5), average, heard]
    trainer = trainer_of(job, "equals", callbacks)
    results: list[Any] = []
    trainer.on("on_validate_end", lambda trainer, found: results.append(found))
    trainer.run()
    with average.applied():
        averaged = digest(trainer.model)
    results.append(trainer.validate())
    with torch.no_grad():
        next(trainer.model.buffers()).add_(trainer.ranks.rank)  # others were put there on a rank: rank 0 says which
    results.append(trainer.validate())
    return {"logged": heard.logged, "results": results, "average": averaged}


def profiles(job: Report) -> Report:
    profiler = Profiler((0, 0, 2, 1), activities=["cpu"])
    trainer_of(job, "profiles", [profiler], n_epochs=1).run()
    return {"traces": [path.name for path in profiler.traces], "there": all(p.is_file() for p in profiler.traces)}


def alone(job: Report) -> Report:
    """One rank alone saves and loads; the other doesn't come."""
    trainer = trainer_of(job, "alone", n_epochs=1)
    trainer.run()
    folder, found = Path(job["folder"]), []
    for rank in (0, 1):
        if trainer.ranks.rank == rank:
            with trainer.ranks.alone():
                trainer.save_model(folder / f"by-{rank}.pt")
                trainer.load_model(folder / f"by-{rank}.pt")
                trainer.save(folder / f"trainer-by-{rank}")
                found.append(listed(folder / f"trainer-by-{rank}"))
    trainer.ranks.barrier()
    return {"found": found, "there": [(folder / f"by-{rank}.pt").is_file() for rank in (0, 1)]}


def refusals(job: Report) -> Report:
    """What can't be is refused on all ranks alike, by whichever rank it is found."""
    folder = Path(job["folder"])
    (folder / "file").write_text("")
    found = {
        "folder": raised(lambda: trainer_of(job, "refused", [Checkpoint(folder / "file", last=True)])),
        "log": raised(lambda: trainer_of(job, "refused", [CSVLogger(folder=folder / "file")])),
        "find_lr": raised(lambda: trainer_of(job, "refused").find_lr()),
        "find_batch_size": raised(lambda: trainer_of(job, "refused").find_batch_size()),
    }
    return {**found, "is_caller_error": all(text.startswith(CallerError.__name__) for text in found.values())}


def borne(job: Report) -> Report:
    """A save that can't be written, where the run goes on."""

    def save_fn(path: Path) -> None:
        if path.name.startswith(".") and "batch_6" in path.name:
            raise OSError(28, "no space here")

    checkpoint = Checkpoint(topk=2, model_save_fn=save_fn)
    trainer = trainer_of(job, "borne", [checkpoint], validate_every=2, on_snapshot_fault="warn")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        state = trainer.run()
    texts = [str(each.message) for each in told if "no space here" in str(each.message)]
    return {"queue": checkpoint._top.queue.state_dict(), "told": len(texts), "state": state.state}


class Own(Callback):
    """Remembers its rank, and of which it took the memory."""

    def __init__(self, rank: int) -> None:
        self.rank, self.was = rank, None

    def state_dict(self) -> dict[str, Any]:
        return {"rank": self.rank}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.was = state["rank"]


def memories(job: Report) -> Report:
    own = Own(job["rank"])
    state = trainer_of(job, "memories", [own], n_epochs=job["n_epochs"]).run(resume_from="auto")
    return {"was": own.was, "epochs": state.cur_epoch_idx}


def survives(job: Report) -> Report:
    """Saves, logs and best weights of a run that is killed at `kill_at`, and then goes on."""
    folder = Path(job["folder"])
    checkpoint = Checkpoint(every_n_batches=2, last=True, topk=2, keep_last=2)
    best = LoadBestModel(save_folder=folder / "best", delete_after_train=False)
    callbacks = [checkpoint, best, CSVLogger(), EMA(0.5)]
    trainer = trainer_of(job, "run", callbacks, validate_every=2, snapshot_every=3)

    def die(trainer: Any) -> None:
        if trainer.trainer_state.seq == job.get("kill_at"):
            os.kill(os.getpid(), signal.SIGKILL)

    after_everyone(trainer, die)
    trainer.run(resume_from="auto")
    top = checkpoint._top
    state = {"queue": top.queue.state_dict(), "regular": checkpoint._regular, "best": top.monitor_value}
    [bests] = (folder / "best").iterdir()
    saved = folder / "run" / "checkpoints"
    return {
        **state,
        "at": best.best_at,
        "weights": digest(trainer.model),
        "saved": {name: digest(torch.load(saved / name)) for name in listed(saved) if name.endswith(".pt")},
        "bests": sorted(path.name for path in bests.iterdir()),
        "log": (folder / "run" / "logs" / "csv" / "metrics.csv").read_text(),
    }


# -- what ends the run -------------------------------------------------------------------------------------


def fails(job: Report) -> Report:
    """A loss of rank 1 is no number; all listeners hear of it, and one waits for the other ranks."""
    folder, heard = Path(job["folder"]), []
    saved = [
        Checkpoint(on_exceptions=Exception),
        Checkpoint(folder / "no", on_exceptions=Exception, save_object="trainer"),
    ]
    trainer = trainer_of(job, "fails", [NanGuard("raise"), CSVLogger(), *saved])
    spoil(trainer, rank=1, batch=2, factor=float("nan"))

    def hear(trainer: Any, exception: BaseException) -> None:
        trainer.ranks.barrier()
        heard.append(type(exception).__name__)
        heard.extend(trainer.ranks.gather("here"))

    trainer.on("on_exception", hear)
    error = raised(trainer.run)
    return {"error": error, "heard": heard, "state": trainer.trainer_state.state}


def cannot_save(job: Report) -> Report:
    """Rank 0 can't write a save, and no policy bears it."""

    def save_fn(path: Path) -> None:
        raise OSError(28, "no space here")

    trainer = trainer_of(job, "cannot", [Checkpoint(every_n_batches=3, model_save_fn=save_fn)])
    return {"error": raised(trainer.run), "done": trainer.trainer_state.global_forward_batches}


PARTS: dict[str, Callable[[Report], Report]] = {
    part.__name__: part
    for part in (
        *(logs, saves, trainers, best, decisions, guards, clocks, equals, profiles),
        *(alone, refusals, borne, memories, survives, fails, cannot_save),
    )
}


def work(job: Report) -> None:
    """Go through the job's parts; leave the report of each in the folder."""
    for name in job["parts"]:
        report = PARTS[name](job)
        (Path(job["folder"]) / f"report-{name}-{job['rank']}.json").write_text(json.dumps(report))


if __name__ == "__main__":
    serve_ranks(work)
