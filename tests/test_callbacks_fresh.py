"""A callback that is given to another trainer begins anew: nothing of the run before it is left in it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import tachograph.engine.callbacks as ready
from tachograph.engine import (
    EMA,
    Callback,
    Checkpoint,
    CSVLogger,
    EarlyStopping,
    ExecuteOnBetter,
    Fingerprints,
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
    Warmup,
)
from tachograph.engine.callbacks import SnapshotPolicy
from tachograph.states.errors import CallerError
from tests.toys import Run, equal

MADE: dict[str, Callable[[Path], Callback]] = {
    "Checkpoint": lambda at: Checkpoint(every_n_batches=3, last=True, topk=2, keep_last=2, on_exceptions=LookupError),
    "CSVLogger": lambda at: CSVLogger(),
    "EMA": lambda at: EMA(0.9, warmup=10),
    "EarlyStopping": lambda at: EarlyStopping(patience=4),
    "ExecuteOnBetter": lambda at: ExecuteOnBetter(execute_fn=lambda trainer: trainer.say("better")),
    "Fingerprints": lambda at: Fingerprints(2),
    "GradClip": lambda at: GradClip(0.5, log=True),
    "GradNormMonitor": lambda at: GradNormMonitor(),
    "LRMonitor": lambda at: LRMonitor(),
    "LoadBestModel": lambda at: LoadBestModel(),
    "LoadBestModel in files": lambda at: LoadBestModel(save_folder=at / "best"),
    "MemoryMonitor": lambda at: MemoryMonitor(every=3),
    "ModelSummary": lambda at: ModelSummary(),
    "MoreEvaluate": lambda at: MoreEvaluate(
        {"test": samples()},
        {"error": Told(0.0, 0.0)},
        watch_monitor="error",
        topk=1,
        topk_monitor="error",
        topk_larger_better=False,
    ),
    "NanGuard": lambda at: NanGuard("continue"),
    "NanGuard that skips": lambda at: NanGuard("skip"),
    "Profiler": lambda at: Profiler((1, 1, 2, 1), activities=["cpu"]),
    "Progress": lambda at: Progress("plain", 2, file=at / "progress.txt"),
    "SnapshotPolicy": lambda at: SnapshotPolicy(4),
    "SpikeGuard": lambda at: SpikeGuard("warn", window=2, threshold=0.1, patience=9),
    "TensorBoardLogger": lambda at: TensorBoardLogger(),
    "ThroughputMonitor": lambda at: ThroughputMonitor(every=3),
    "TimeLimit": lambda at: TimeLimit("2h"),
    "Timer": lambda at: Timer(),
    "Warmup": lambda at: Warmup(0.5),
}
"""A ready-made callback each, with settings that make it remember something. `LRSchedule` belongs to one optimizer."""

_BASES = {"Callback", "Logger", "HasMonitorCallback"}
_THEIRS = {"Kept"}  # what it saves is the user's, and so is what becomes of it between two trainers
_SERVED = {"MLflowLogger", "WandbLogger"}  # their memory is that of `Logger`


class Told:
    """A metric that says a number, and each time a smaller one."""

    def __init__(self, value: float, less: float = 1.0) -> None:
        self.value, self.less = value, less

    def reset(self) -> None:
        pass

    def update(self, loss: Any) -> None:
        pass

    def compute(self) -> float:
        self.value -= self.less
        return self.value


def samples() -> list[Any]:
    return [next(iter(Run(run_dir=None, noise=False).loader))]


class Noted:
    """A run, and what was said and logged in it."""

    def __init__(self, callback: Callback, run_dir: Path, best: float, **settings: Any) -> None:
        self.run = Run(
            callbacks=lambda run: callback,
            run_dir=run_dir,
            metrics={"error": Told(best)},
            validate_dataloaders={"dev": samples()},
            validate_every=3,
            larger_better=False,
            monitor="error",
            accumulation_steps=2,
            **settings,
        )
        self.callback, self.said = callback, list[str]()
        self.built = self.held()
        self.run.trainer.on("on_notice", lambda trainer, text: self.said.append(without_times(text)))
        self.run.trainer.on("on_log", lambda trainer, values: self.said.append(f"{sorted(values)}"))

    def held(self) -> str:
        """What the callback has to be saved, and what it shows."""
        shown = {name: value for name, value in public(self.callback) if plain(value)}
        text = f"{self.callback.on_save_checkpoint(self.run.trainer)} {shown}"
        return text.replace(str(self.run.trainer.run_dir), "")

    def saves(self) -> list[str]:
        place = self.run.trainer.run_dir
        assert place is not None
        return sorted(
            f"{p.relative_to(place)}" for kind in ("checkpoints*", "profiles") for p in place.glob(f"{kind}/*")
        )


def public(callback: Callback) -> Iterator[tuple[str, Any]]:
    names = {*vars(callback), *(n for n, v in inspect.getmembers(type(callback), lambda v: isinstance(v, property)))}
    for name in sorted(names):
        if not name.startswith("_"):
            yield name, getattr(callback, name)


def plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(map(plain, value))
    return value is None or isinstance(value, (bool, int, float, str, Path, dict, torch.Tensor))


def without_times(text: str) -> str:
    return re.sub(r"\d+\.\d+s", "", text) if text.startswith("time of") else text


def test_every_ready_made_callback_is_here() -> None:
    names = {name for name in ready.__all__ if isinstance(getattr(ready, name), type)}
    callbacks = {getattr(ready, name).__name__ for name in names if issubclass(getattr(ready, name), Callback)}
    progress = {kind.__name__ for kind in map(ready.__getattr__, ready.HOMES["progress"]) if kind is not Progress}
    assert callbacks - progress - _BASES - _SERVED - _THEIRS - {"LRSchedule"} == {name.split()[0] for name in MADE}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", MADE)
def test_what_a_callback_knew_of_one_trainer_it_does_not_know_of_the_next(tmp_path: Path, name: str) -> None:
    """C1, R42: though the first run had better results, and ended with an error in the midst of a window."""
    used = MADE[name](tmp_path)

    def spoiled(outputs: dict[str, Any]) -> dict[str, Any]:
        factor = {6: 1e3, 8: float("nan")}.get(first.run.trainer.global_forward_batches, 1.0)
        return {"loss": outputs["loss"] * factor}

    first = Noted(used, tmp_path / "first", -1000.0, output_mapping=spoiled)

    def strike(trainer: Any) -> None:
        if trainer.global_forward_batches == 8:
            raise LookupError

    first.run.trainer.on("on_after_backward", strike)
    with pytest.raises(LookupError):
        first.run.run()
    second = Noted(used, tmp_path / "second", 0.0)
    straight = Noted(MADE[name](tmp_path), tmp_path / "straight", 0.0)
    assert second.built == straight.built
    for noted in (second, straight):
        noted.end = noted.run.run()  # type: ignore[attr-defined]
    assert second.end == straight.end  # type: ignore[attr-defined]
    assert equal(second.run.weights, straight.run.weights)
    assert second.run.chain == straight.run.chain
    assert second.said == straight.said
    assert second.saves() == straight.saves()
    if name != "Timer":
        assert re.sub(r"best-\w+/|\d{8}T\S*/", "", second.held()) == re.sub(
            r"best-\w+/|\d{8}T\S*/", "", straight.held()
        )


def test_each_trainer_s_saves_are_its_own_where_neither_has_a_run_directory(tmp_path: Path) -> None:
    """K1, R42: nobody's saves are replaced."""
    checkpoint = Checkpoint(tmp_path, last=True)
    for init in (1, 2):
        Run(callbacks=lambda run: checkpoint, init=init).run()
    saves = [torch.load(path, weights_only=True) for path in tmp_path.glob("*/model-last/model.pt")]
    assert len(saves) == 2
    assert not equal([*saves[0].values()], [*saves[1].values()])


def test_a_schedule_belongs_to_one_trainer_s_optimizer() -> None:
    """R42: it is refused to another."""
    schedules: list[LRSchedule] = []

    def make(run: Run) -> LRSchedule:
        schedules.append(LRSchedule(torch.optim.lr_scheduler.StepLR(run.optimizer, 3)))
        return schedules[0]

    Run(callbacks=make)
    with pytest.raises(CallerError, match="the scheduler's optimizer isn't one of the trainer's optimizers"):
        Run(callbacks=make)
