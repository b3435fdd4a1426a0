"""Loggers: each value once, at its step, whatever became of the run; and training doesn't notice."""

from __future__ import annotations

import csv
import functools
import importlib.util
import json
import math
import os
import random
import resource
import struct
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tachograph.drivers import NO_BATCH, StubDriver
from tachograph.drivers.measuring import Losses
from tachograph.engine import CSVLogger, Journal, Logger, Monitor, NanGuard, TensorBoardLogger, replay
from tachograph.states.errors import CallerError
from tests.jobs.forks import Forks
from tests.jobs.logged_job import BACKENDS, build, logger_of, store_of
from tests.jobs.logged_job import at as at_call
from tests.toys import Run, Sum, equal, sides, stub

Values = list[tuple[int, str, Any]]

MODULES = {"csv": "csv", "tensorboard": "tensorboard", "wandb": "wandb", "mlflow": "mlflow"}


def backends(*names: str) -> Any:
    """Parametrize by backend; one whose library isn't installed says so."""
    return pytest.mark.parametrize(
        "backend",
        [
            pytest.param(
                name,
                marks=pytest.mark.skipif(
                    importlib.util.find_spec(MODULES[name]) is None, reason=f"{MODULES[name]} isn't installed"
                ),
            )
            for name in names or BACKENDS
        ],
    )


# -- what is in a log --------------------------------------------------------------------------------------


def in_csv(folder: Path) -> Values:
    with (folder / "metrics.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return [
        (int(row["step"]), name, value if name == "exception" else float(value))
        for row in rows
        for name, value in row.items()
        if name != "step" and value
    ]


def in_tensorboard(folder: Path) -> Values:
    """What TensorBoard shows, which is what its older reader reads too."""
    from tensorboard.backend.event_processing import event_accumulator, plugin_event_accumulator
    from tensorboard.util.tensor_util import make_ndarray

    held = plugin_event_accumulator.EventAccumulator(str(folder), size_guidance={"tensors": 0})
    held.Reload()
    values = [(e.step, tag, make_ndarray(e.tensor_proto)) for tag in held.Tags()["tensors"] for e in held.Tensors(tag)]
    texts = [(step, tag, value.item().decode()) for step, tag, value in values if value.dtype == object]
    scalars = [(step, tag, value.item()) for step, tag, value in values if value.dtype != object]
    older = event_accumulator.EventAccumulator(str(folder), size_guidance={"scalars": 0})
    older.Reload()
    also = [(e.step, tag, e.value) for tag in older.Tags()["scalars"] for e in older.Scalars(tag)]
    assert sorted(map(repr, also)) == sorted(map(repr, scalars))
    return scalars + [each for each in texts if each[1] != "settings"]


def in_wandb(folder: Path) -> Values:
    values: Values = []
    for path in sorted(folder.glob("wandb/offline-run-*/run-*.wandb")):
        for record in wandb_records(path.read_bytes()):
            items = {".".join(i.nested_key) or i.key: json.loads(i.value_json) for i in record.history.item}
            step = items.pop("step", None)
            values += [(step, name, value) for name, value in items.items() if not name.startswith("_")]
    return values


def wandb_records(data: bytes) -> Iterator[Any]:
    """Read an offline run's file: blocks of records, as LevelDB has them, behind a header of seven bytes."""
    from wandb.proto import wandb_internal_pb2

    at, parts = 7, b""
    while at + 7 <= len(data):
        if (room := 32768 - at % 32768) < 7:
            at += room
            continue
        size, kind = struct.unpack("<HB", data[at + 4 : at + 7])
        parts += data[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in (1, 4):  # a whole one, or the last part of one
            record = wandb_internal_pb2.Record()
            record.ParseFromString(parts)
            parts = b""
            yield record


def in_mlflow(folder: Path) -> Values:
    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
    from mlflow import MlflowClient

    memory = json.loads((folder / "log.json").read_text())
    client = MlflowClient(store_of(folder.parents[1]))
    held = client.get_run(memory["run_id"]).data
    return [(m.step, name, m.value) for name in held.metrics for m in client.get_metric_history(memory["run_id"], name)]


IN = {"csv": in_csv, "tensorboard": in_tensorboard, "wandb": in_wandb, "mlflow": in_mlflow}


def log_of(run_dir: Path, backend: str) -> Values:
    return IN[backend](run_dir / "logs" / backend)


def once(values: Values) -> dict[tuple[int, str], Any]:
    """The value of each step and name, of which there is one."""
    held = {(step, name): value for step, name, value in values}
    twice = (
        sorted(key for key in held if sum((s, n) == key for s, n, _ in values) > 1) if len(held) < len(values) else []
    )
    assert not twice
    return held


def steps_of(values: Values, name: str = "train/loss") -> list[int]:
    return [step for step, held, _ in values if held == name]


# -- a run that is killed ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    server = Forks("tests.jobs.logged_job")
    yield server
    server.close()


LONG = {
    "batches": list(range(1, 21)),
    "n_epochs": 11,
    "accumulation_steps": 1,
    "snapshot_every": 100,
    "validate_every": 50,
}


@backends()
def test_a_run_that_crashed_at_212_and_was_resumed_from_200_has_each_step_once(
    tmp_path: Path, forks: Forks, backend: str
) -> None:
    """R56, K12, C4: SIGKILL after the 212th update, the last snapshot at 200, on to 220."""
    assert forks.run(run_dir=str(tmp_path / "straight"), backend=backend, trainer=LONG) == 0
    run_dir = tmp_path / "run"
    at = {r.state.optimizer_steps: r.seq for r in Journal(tmp_path / "straight") if r.event == "Stepped"}
    job = {"run_dir": str(run_dir), "backend": backend, "trainer": LONG}
    assert forks.run(kill=at[212], published=at[200], **job) == -9
    assert forks.run(**job) == 0
    assert [side["at"] for side in sides(run_dir, "resumed")] == [at[200]]
    assert steps_of(log_of(run_dir, backend)) == list(range(1, 221))
    assert once(log_of(run_dir, backend)) == once(log_of(tmp_path / "straight", backend))


def seqs(run_dir: Path) -> int:
    last = Journal(run_dir).last
    assert last is not None
    return last.seq


@pytest.mark.parametrize(
    ("backend", "early"),
    [("csv", False), ("csv", True), ("tensorboard", False)],
    ids=["csv, after it is logged", "csv, before it is logged", "tensorboard"],
)
def test_a_run_killed_after_any_transition_has_the_log_of_the_straight_run(
    tmp_path: Path, forks: Forks, proven: Callable[[int], None], backend: str, early: bool
) -> None:
    """R56, K12, C4: SIGKILL after each transition; values logged inside a step and between two, validations, means."""
    how = {"log_every": 2}
    build(tmp_path / "straight", logger_of(backend, **how), n_epochs=2).run(num_eval_sanity_batch=1)
    straight = log_of(tmp_path / "straight", backend)
    bytes_of = (tmp_path / "straight" / "logs" / "csv" / "metrics.csv").read_bytes() if backend == "csv" else b""
    end = seqs(tmp_path / "straight")
    for at in range(1, end + 1):
        run_dir = tmp_path / f"run-{at}"
        job = {"run_dir": str(run_dir), "backend": backend, "logger": how, "trainer": {"n_epochs": 2}}
        assert forks.run(kill=at, early=early, **job) == -9
        build(run_dir, logger_of(backend, **how), n_epochs=2).run(resume_from="auto", num_eval_sanity_batch=1)
        assert once(log_of(run_dir, backend)) == once(straight)
        if backend == "csv":
            assert (run_dir / "logs" / "csv" / "metrics.csv").read_bytes() == bytes_of
    proven(end)


@pytest.mark.parametrize("write", [1, 4, 7])
@pytest.mark.parametrize("early", [None, True], ids=["after the write", "before the write"])
@backends()
def test_a_run_killed_at_a_write_of_its_logger_has_each_value_once(
    tmp_path: Path, forks: Forks, backend: str, early: Any, write: int
) -> None:
    """R56, C4: also when the log had gone on before there was a snapshot; and killed twice."""
    assert forks.run(run_dir=str(tmp_path / "straight"), backend=backend) == 0
    job = {"run_dir": str(tmp_path / "run"), "backend": backend}
    assert forks.run(write=write, early=early, **job) == -9
    forks.run(write=2, **job)
    assert forks.run(**job) == 0
    assert once(log_of(tmp_path / "run", backend)) == once(log_of(tmp_path / "straight", backend))


@backends()
def test_a_run_that_crashed_before_its_first_snapshot_starts_its_log_over(
    tmp_path: Path, forks: Forks, backend: str
) -> None:
    """R56: nothing of the first attempt is left twice."""
    never = {"trainer": {"snapshot_every": None}, "backend": backend}
    assert forks.run(run_dir=str(tmp_path / "straight"), **never) == 0
    assert forks.run(run_dir=str(tmp_path / "run"), kill=20, **never) == -9
    assert not list((tmp_path / "run").glob("snapshots/*"))
    assert forks.run(run_dir=str(tmp_path / "run"), **never) == 0
    assert once(log_of(tmp_path / "run", backend)) == once(log_of(tmp_path / "straight", backend))


@backends()
def test_a_run_that_is_extended_has_the_log_of_a_long_one(tmp_path: Path, forks: Forks, backend: str) -> None:
    """R56, C4: by a resume with a larger limit, and by a second run() of the same object."""
    for name, limits in (("straight", [3]), ("resumed", [1, 2, 3])):
        for limit in limits:
            assert forks.run(run_dir=str(tmp_path / name), backend=backend, trainer={"n_epochs": limit}) == 0
    trainer = build(tmp_path / "same", logger_of(backend, tmp_path / "same"), n_epochs=1)
    trainer.run(num_eval_sanity_batch=1)
    for trainer.n_epochs in (2, 3):
        trainer.run(num_eval_sanity_batch=1)
    straight = once(log_of(tmp_path / "straight", backend))
    assert once(log_of(tmp_path / "resumed", backend)) == straight
    assert once(log_of(tmp_path / "same", backend)) == straight


@pytest.mark.parametrize("batches", range(1, 15))
@backends("csv", "tensorboard")
def test_a_run_that_is_stopped_anywhere_and_goes_on_has_the_log_of_the_straight_run(
    tmp_path: Path, backend: str, batches: int
) -> None:
    """R56: a stop in the middle of a window, before a validation, at an epoch's end; by resume and a second run()."""
    build(tmp_path / "straight", logger_of(backend, log_every=2)).run()
    straight = once(log_of(tmp_path / "straight", backend))
    build(tmp_path / "resumed", logger_of(backend, log_every=2), n_batches=batches, n_epochs=None).run()
    build(tmp_path / "resumed", logger_of(backend, log_every=2), n_batches=15, n_epochs=None).run(resume_from="auto")
    assert once(log_of(tmp_path / "resumed", backend)) == straight
    trainer = build(tmp_path / "same", logger_of(backend, log_every=2), n_batches=batches, n_epochs=None)
    trainer.run()
    trainer.n_batches = 15
    trainer.run()
    assert once(log_of(tmp_path / "same", backend)) == straight


@pytest.mark.parametrize("at", [1, 2, 3, 4])
def test_a_run_that_is_interrupted_within_a_validation_logs_it_once_it_goes_on(tmp_path: Path, at: int) -> None:
    """R56: what was logged of a validation that was given up is forgotten with it."""

    def run(name: str, interrupted: bool = False, **how: Any) -> Lines:
        logger = Lines([])
        trainer = build(tmp_path / name, [CSVLogger(), logger], validate_every=3)
        trainer.on("on_validate_batch_end", lambda t: t.log(inside_validation=t.global_forward_batches))
        if interrupted:
            trainer.on("on_validate_batch_end", at_call(at, lambda t: t.interrupt(15)))
        trainer.run(num_eval_sanity_batch=0, **how)
        return logger

    run("straight")
    with pytest.raises(SystemExit):
        run("run", interrupted=True)
    assert run("run", resume_from="auto").lines[-1] == "close finished"
    straight, again = (tmp_path / name / "logs" / "csv" / "metrics.csv" for name in ("straight", "run"))
    assert again.read_bytes() == straight.read_bytes()


@backends()
def test_a_fork_has_a_log_of_its_own_and_leaves_its_parents_alone(tmp_path: Path, backend: str) -> None:
    """R56: the steps after the point that it goes on from, each once."""
    build(tmp_path / "parent", logger_of(backend, tmp_path / "parent")).run()
    before = once(log_of(tmp_path / "parent", backend))
    first = min((tmp_path / "parent" / "snapshots").iterdir())
    fork = build(tmp_path / "fork", logger_of(backend, tmp_path / "fork"))
    fork.run(resume_from=first)
    assert once(log_of(tmp_path / "parent", backend)) == before
    held = once(log_of(tmp_path / "fork", backend))
    assert 0 < len(held) < len(before)
    assert held.items() <= before.items()


@backends()
def test_a_run_that_goes_on_from_an_older_snapshot_has_each_value_once(
    tmp_path: Path, forks: Forks, backend: str
) -> None:
    """R56: what came after it is done, and logged, again."""
    job = {"run_dir": str(tmp_path / "run"), "backend": backend}
    assert forks.run(**job) == 0
    straight = once(log_of(tmp_path / "run", backend))
    snapshots = sorted((tmp_path / "run" / "snapshots").iterdir())
    assert forks.run(resume=str(snapshots[0]), **job) == 0
    assert once(log_of(tmp_path / "run", backend)) == straight


@backends("csv", "tensorboard")
def test_what_an_older_life_had_logged_is_superseded_by_what_a_changed_one_does(tmp_path: Path, backend: str) -> None:
    """R56: resumed from an older snapshot with other settings; the log shows what is live."""
    build(tmp_path / "run", logger_of(backend)).run()
    first = min((tmp_path / "run" / "snapshots").iterdir())
    changed = build(tmp_path / "run", logger_of(backend), driver=StubDriver(loss=lambda batch, n: 1000.0 + n))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that its history is another one
        changed.run(resume_from=first)
    losses = {step: value for (step, name), value in once(log_of(tmp_path / "run", backend)).items() if name == LOSS}
    assert [value >= 1000 for _, value in sorted(losses.items())] == [False] * 2 + [True] * 7


def test_a_line_that_was_torn_is_written_again(tmp_path: Path) -> None:
    """R56: the file ends in the middle of a line, and of a letter."""
    build(tmp_path / "straight", CSVLogger()).run()
    trainer = build(tmp_path / "run", CSVLogger(), n_epochs=2)
    trainer.run()
    path = tmp_path / "run" / "logs" / "csv" / "metrics.csv"
    with path.open("ab") as file:
        file.write('99,"an ö'.encode()[:-1])
    build(tmp_path / "run", CSVLogger()).run(resume_from="auto")
    assert path.read_bytes() == (tmp_path / "straight" / "logs" / "csv" / "metrics.csv").read_bytes()


# -- what is logged ----------------------------------------------------------------------------------------

LOSS = "train/loss"


def logged(
    *callbacks: Any, log: dict[str, Any] | None = None, folder: Path, **settings: Any
) -> dict[str, dict[int, Any]]:
    """The values that a run logs, by name and step."""
    stub(callbacks=[CSVLogger(folder=folder, **(log or {})), *callbacks], **settings).run()
    held: dict[str, dict[int, Any]] = {}
    for (step, name), value in once(in_csv(folder)).items():
        held.setdefault(name, {})[step] = value
    return held


def scripted(*losses: float) -> StubDriver:
    return StubDriver(loss=lambda batch, n: losses[n])


def test_a_loss_is_the_mean_over_its_window_and_over_log_every_updates(tmp_path: Path) -> None:
    """K12: loss x accumulation; a window that an epoch's end closes has its own mean."""
    driver = functools.partial(scripted, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
    settings = {"batches": [1, 2, 3], "accumulation_steps": 2}
    held = logged(folder=tmp_path / "1", driver=driver(), **settings)
    assert held[LOSS] == {1: 1.5, 2: 4.0, 3: 12.0, 4: 32.0}
    assert held["train/lr"] == dict.fromkeys([1, 2, 3, 4], 0.1)
    assert held["epoch"] == {1: 0, 2: 0, 3: 1, 4: 1}
    held = logged(folder=tmp_path / "3", driver=driver(), log={"log_every": 3}, **settings)
    assert (held[LOSS], held["train/lr"]) == ({3: (1 + 2 + 4 + 8 + 16) / 5}, {3: 0.1})
    held = logged(folder=tmp_path / "batch", driver=driver(), log={"step_on": "batch"}, **settings)
    assert held[LOSS] == {1: 1, 2: 2, 3: 4, 4: 8, 5: 16, 6: 32}
    unknown = StubDriver(loss=lambda batch, n: 2.0**n, known_length=False)
    assert logged(folder=tmp_path / "unknown", driver=unknown, **settings)[LOSS] == {1: 1.5, 2: 4.0, 3: 12.0, 4: 32.0}
    none = logged(folder=tmp_path / "none", driver=driver(), log={"log_loss_every": 0}, metrics={"m": Zero()},
                  validate_dataloaders=[1], **settings)  # fmt: skip
    assert none == {"epoch": {2: 0, 4: 1}, "validate/m": {2: 0.0, 4: 0.0}}


class Zero:
    """A metric."""

    def update(self) -> None:
        pass

    def compute(self) -> float:
        return 0.0

    def reset(self) -> None:
        pass


@backends()
def test_nan_and_infinities_are_logged_as_they_are(tmp_path: Path, backend: str) -> None:
    """R45: no mean of earlier losses in their place."""
    losses = [1.0, math.nan, math.inf, -math.inf, 5.0, 6.0]
    logger = logger_of(backend, tmp_path / "run")
    trainer = stub(driver=scripted(*losses), callbacks=logger, run_dir=tmp_path / "run")
    trainer.on("on_before_backward", lambda t, outputs: t.log(twice=2 * outputs["loss"]))
    trainer.run()
    held = once(log_of(tmp_path / "run", backend))
    for step, loss in enumerate(losses, 1):
        assert repr(float(held[step, LOSS])) == repr(loss)
        assert repr(float(held[step, "twice"])) == repr(2 * loss)


def test_the_loss_of_a_window_whose_update_was_skipped_is_logged_beside_the_updates(tmp_path: Path) -> None:
    """R45: it has no update of its own, so it stands at the one that was still to come, under its own name."""
    driver = scripted(1.0, 2.0, math.nan, 8.0, 16.0, math.nan)
    held = logged(NanGuard("skip"), folder=tmp_path, driver=driver)
    assert held[LOSS] == {1: 1.0, 2: 2.0, 3: 8.0, 4: 16.0}
    assert {step: str(value) for step, value in held["train/loss_skipped"].items()} == {3: "nan", 5: "nan"}


def test_a_value_stands_at_the_update_in_work_or_at_the_last_one(tmp_path: Path) -> None:
    """K12, C4: what is logged inside a step, at its end, between two batches of a window, and after the run."""
    logger = CSVLogger(folder=tmp_path / "log")
    trainer = stub([1, 2, 3], n_epochs=1, accumulation_steps=2, callbacks=logger)
    trainer.on("on_train_begin", lambda t: t.log(begin=1))
    trainer.on("on_before_backward", lambda t, outputs: t.log(inside=t.global_forward_batches + 1))
    trainer.on("on_train_batch_end", lambda t: t.log({"batch end": t.global_forward_batches}))
    trainer.on("on_train_epoch_end", lambda t: t.log({"epoch end": 1}))
    trainer.on("on_train_end", lambda t: t.log(end=1))
    trainer.run()
    trainer.log(after=1)
    held = once(in_csv(tmp_path / "log"))
    assert [key[0] for key in held if key[1] == "begin"] == [0]
    assert {step: value for (step, name), value in held.items() if name == "inside"} == {1: 2, 2: 3}
    assert {step: value for (step, name), value in held.items() if name == "batch end"} == {1: 2, 2: 3}
    assert [key[0] for key in held if key[1] in ("epoch end", "end", "after")] == [2, 2, 2]
    with pytest.raises(CallerError, match="'step' is the name of the log's own axis"):
        trainer.log(step=3)


def test_results_and_the_best_of_the_monitored_one_are_logged_and_those_of_the_sanity_check_not(tmp_path: Path) -> None:
    """K12: metrics per evaluation, best metric by monitor and larger_better; the trainer's monitor by default."""
    from tests.toys import validated

    for name, log, settings, best in (
        ("smaller", {"monitor": "score", "larger_better": False}, {}, [3, 1, 1, 1]),
        ("larger", {"monitor": "score"}, {}, [3, 3, 5, 5]),
        ("trainer's", {}, {"monitor": "score", "larger_better": False}, [3, 1, 1, 1]),
        ("none", {}, {}, []),
    ):
        logger = CSVLogger(folder=tmp_path / name, **log)  # type: ignore[arg-type]
        validated([3.0, 1.0, 5.0, math.nan], callbacks=logger, **settings).run()
        held = once(in_csv(tmp_path / name))
        scores = [str(value) for (_, key), value in held.items() if key == "validate/score"]
        assert scores == ["3.0", "1.0", "5.0", "nan"]
        assert [value for (_, key), value in held.items() if key == "best/score"] == best


def fails_in_epoch(number: int) -> Callable[[Any], None]:
    def fail(trainer: Any) -> None:
        if trainer.cur_epoch_idx == number:
            raise LookupError("no such\nthing")

    return fail


@backends()
def test_the_error_that_ended_a_run_is_logged_until_the_run_goes_on(tmp_path: Path, backend: str) -> None:
    """K12: kind and message, unless log_exception=False."""
    build(tmp_path / "straight", logger_of(backend, tmp_path / "straight")).run()
    for name, how in (("said", {}), ("not", {"log_exception": False})):
        trainer = build(tmp_path / name, logger_of(backend, tmp_path / name, **how))
        trainer.on("on_train_epoch_begin", fails_in_epoch(1))
        with pytest.raises(LookupError):
            trainer.run()
        said = exception_of(tmp_path / name, backend)
        assert said == ("LookupError: no such thing" if name == "said" else None)
    build(tmp_path / "said", logger_of(backend, tmp_path / "said")).run(resume_from="auto")
    if backend != "wandb":  # it takes nothing back
        assert exception_of(tmp_path / "said", backend) is None
        assert once(log_of(tmp_path / "said", backend)) == once(log_of(tmp_path / "straight", backend))


def exception_of(run_dir: Path, backend: str) -> Any:
    if backend == "mlflow":
        from mlflow import MlflowClient

        memory = json.loads((run_dir / "logs" / "mlflow" / "log.json").read_text())
        return MlflowClient(store_of(run_dir)).get_run(memory["run_id"]).data.tags.get("exception")
    return next((value for (_, name), value in once(log_of(run_dir, backend)).items() if name == "exception"), None)


class LateDriver(StubDriver):
    """Hands out each loss so many steps later, as an accelerator's driver does."""

    def __init__(self, lag: int) -> None:
        super().__init__()
        self._losses = Losses(lag)

    def measure(self, loss: Any, seq: int) -> tuple[float | None, Sequence[Any]]:
        return None, self._losses.put(loss, seq)

    def measured_late(self) -> list[list[Any]]:
        return self._losses.rest()

    def capture(self, extra: Mapping[str, Any], batch: Any = NO_BATCH) -> Any:
        return super().capture({**extra, "losses": self._losses.state()}, batch)

    def restore(self, held: Any, *, training: bool = True) -> Any:
        self._losses.load(held["extra"]["losses"])
        return super().restore(held, training=training)


@pytest.mark.parametrize("accumulation_steps", [1, 3])
@pytest.mark.parametrize("log_every", [1, 2])
def test_losses_that_arrive_late_are_logged_at_the_step_they_belong_to(
    tmp_path: Path, accumulation_steps: int, log_every: int
) -> None:
    """K12: as on an accelerator; the log is that of losses at hand, also over a stop and a resume at any batch."""

    def run(name: str, driver: StubDriver, batches: int, **how: Any) -> dict[tuple[int, str], Any]:
        logger = CSVLogger(log_every=log_every)
        limits = {"n_batches": batches, "n_epochs": None, "accumulation_steps": accumulation_steps}
        build(tmp_path / name, logger, driver=driver, **limits).run(**how)
        return once(log_of(tmp_path / name, "csv"))

    straight = run("straight", StubDriver(), 15)
    assert run("late", LateDriver(3), 15) == straight
    for batches in range(1, 15):
        run(f"run-{batches}", LateDriver(3), batches)
        assert run(f"run-{batches}", LateDriver(3), 15, resume_from="auto") == straight


# -- training doesn't notice -------------------------------------------------------------------------------


@backends()
def test_training_is_no_bit_another_with_a_logger(tmp_path: Path, backend: str) -> None:
    """K12, C4: the same weights, generators and chain; dropout, augmentation and shuffling draw from all of them."""
    plain = Run(run_dir=tmp_path / "plain")
    plain.run()
    generators = plain.generators
    logger = logger_of(backend, tmp_path / "run")
    logged = Run(run_dir=tmp_path / "run", callbacks=lambda run: logger)
    logged.trainer.on("on_before_backward", lambda t, outputs: t.log(loss=outputs["loss"]))
    threads = threading.active_count()
    logged.run()
    assert logged.chain == plain.chain
    assert equal(logged.weights, plain.weights)
    assert logged.generators == generators
    assert len(steps_of(log_of(tmp_path / "run", backend))) == logged.trainer.trainer_state.optimizer_steps
    if backend in ("csv", "tensorboard"):
        assert threading.active_count() == threads


class Drawing(Logger):
    """Draws from all generators when it begins and ends, as a library may that makes up names."""

    def open(self, folder: Path, memory: dict[str, Any]) -> None:
        random.random(), np.random.rand(), torch.rand(1)

    def close(self) -> None:
        self.open(Path(), {})


def test_what_a_logger_draws_from_the_generators_when_it_begins_is_no_affair_of_the_run(tmp_path: Path) -> None:
    """C4: also when a resumed run begins."""

    def ends(name: str, *callbacks: Logger, **settings: Any) -> tuple[Any, ...]:
        run = Run(run_dir=tmp_path / name, callbacks=lambda run: callbacks, **settings)
        run.run(resume_from="auto")
        return run.chain, run.generators

    plain = ends("plain")
    assert ends("logged", Drawing()) == plain
    ends("again", Drawing(), n_epochs=1)
    assert ends("again", Drawing()) == plain


@pytest.mark.parametrize("backend", ["csv", "tensorboard"])
def test_a_logger_and_workers_that_are_forked_are_no_matter_to_each_other(tmp_path: Path, backend: str) -> None:
    """C4."""
    for workers in (0, 2):
        loader = {"num_workers": workers}
        Run(run_dir=tmp_path / str(workers), loader=loader, callbacks=lambda run: logger_of(backend)).run()
    assert once(log_of(tmp_path / "0", backend)) == once(log_of(tmp_path / "2", backend))


def test_a_run_goes_on_with_a_logger_that_it_had_not_and_the_log_begins_there(run_dir: Path) -> None:
    """C4: loggers can be added to an older run."""
    build(run_dir, [], n_epochs=1).run()
    build(run_dir, CSVLogger()).run(resume_from="auto")
    assert steps_of(log_of(run_dir, "csv")) == [4, 5, 6, 7, 8, 9]


# -- ranks, extras, faults ---------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["csv", "tensorboard"])
def test_a_process_of_a_launch_that_trains_for_itself_logs_for_itself(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, backend: str
) -> None:
    """K12, C4: what counts is the rank in the training, whatever the environment says of the launch."""
    monkeypatch.setenv("RANK", "1")
    build(run_dir, logger_of(backend, run_dir), n_epochs=1).run()
    assert steps_of(log_of(run_dir, backend)) == [1, 2, 3]


@pytest.mark.parametrize("backend", ["tensorboard", "wandb", "mlflow"])
def test_a_library_that_is_missing_is_named_with_what_to_type(monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
    """C4: optional extras."""
    monkeypatch.setitem(sys.modules, MODULES[backend], None)
    with pytest.raises(CallerError, match=rf"isn't installed: pip install 'tachograph\[{backend}\]'"):
        logger_of(backend, "run")


def test_mlflow_keeps_a_database_in_the_run_directory_by_default(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C4."""
    pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    from mlflow import MlflowClient

    from tachograph.engine import MLflowLogger

    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    for epochs in (1, 2):
        logger = MLflowLogger(experiment="numbers", name="first")
        build(run_dir, logger, n_epochs=epochs).run(resume_from="auto")
    client = MlflowClient(f"sqlite:///{run_dir}/logs/mlflow/mlflow.db")
    run = client.get_run(logger.run_id)
    assert (run.info.run_name, run.info.status) == ("first", "FINISHED")
    assert run.data.params["accumulation_steps"] == "2"
    assert [m.step for m in client.get_metric_history(logger.run_id, LOSS)] == [1, 2, 3, 4, 5, 6]
    assert sorted(run.data.metrics) == [
        "at an epoch_s end",
        "best/mean",
        "epoch",
        "inside",
        LOSS,
        "train/lr",
        "validate/mean",
    ]


def test_tensorboard_shows_the_settings(run_dir: Path) -> None:
    """C4: hyperparameters once, also when the run went on."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for epochs in (1, 2):
        build(run_dir, TensorBoardLogger(), n_epochs=epochs).run(resume_from="auto")
    held = EventAccumulator(str(run_dir / "logs" / "tensorboard"))
    held.Reload()
    (settings,) = held.Tensors("settings")
    assert "| accumulation_steps | 2 |" in settings.tensor_proto.string_val[0].decode()


def test_what_can_not_be_is_refused(tmp_path: Path) -> None:
    for bad in ({"log_every": -1}, {"log_every": True}, {"step_on": "epoch"}, {"on_fault": "ignore"}, {"monitor": 3}):
        with pytest.raises(CallerError, match=f"^{next(iter(bad))} must be"):
            CSVLogger(**bad)  # type: ignore[arg-type]
    with pytest.raises(CallerError, match="CSVLogger needs a folder, since this trainer has no run_dir"):
        stub(callbacks=CSVLogger())
    stub(callbacks=CSVLogger(folder=tmp_path / "log")).run()
    before = (tmp_path / "log" / "metrics.csv").read_bytes()
    with pytest.raises(CallerError, match="log holds the log of another run: give the logger another folder"):
        stub(callbacks=CSVLogger(folder=tmp_path / "log")).run()
    assert (tmp_path / "log" / "metrics.csv").read_bytes() == before
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "metrics.csv").write_text("step,mine\n1,2\n")
    with pytest.raises(
        CallerError, match="mine isn't empty, and holds no log of this run: give the logger another folder"
    ):
        stub(callbacks=CSVLogger(folder=tmp_path / "mine")).run()
    assert (tmp_path / "mine" / "metrics.csv").read_text() == "step,mine\n1,2\n"
    with pytest.raises(CallerError, match="two CSVLoggers write to"):
        build(tmp_path / "two", [CSVLogger(), CSVLogger()])
    build(tmp_path / "run", CSVLogger(), n_epochs=1).run()
    with pytest.raises(CallerError, match="this run's log counts steps on 'update', so CSVLogger can't go on"):
        build(tmp_path / "run", CSVLogger(step_on="batch")).run(resume_from="auto")
    with pytest.raises(CallerError, match="holds this run's log already"):
        replay(tmp_path / "run").add_callback(CSVLogger()).run()


def test_a_refusal_is_told_once(tmp_path: Path) -> None:
    """C4: a logger whose own error ended the run isn't asked to write that error down."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(CallerError, match="mine isn't empty, and holds no log of this run") as refused:
        stub(callbacks=CSVLogger(folder=tmp_path / "mine")).run()
    assert not [note for note in getattr(refused.value, "__notes__", ()) if "while ending" in note]
    assert not getattr(refused.value, "later", ())


@pytest.mark.parametrize("below", ["", "log"])
def test_a_folder_that_nothing_can_be_written_into_is_refused_when_the_trainer_is_built(
    tmp_path: Path, below: str
) -> None:
    """C4: or, with on_fault="warn", tried again and again."""
    (tmp_path / "file").write_text("mine")
    folder = tmp_path / "file" / below
    why = f"{tmp_path}/file is a file" if below else "it is a file"
    with pytest.raises(CallerError) as refused:
        stub(callbacks=CSVLogger(folder=folder)).run()
    assert str(refused.value) == f"CSVLogger can't write into {folder}: {why}. Give another folder"
    assert not getattr(refused.value, "later", ())
    with pytest.warns(UserWarning, match="CSVLogger: .*, and tried again later"):
        stub(callbacks=CSVLogger(folder=folder, on_fault="warn")).run()


@pytest.mark.parametrize("own", [False, True])
def test_a_monitor_that_is_not_among_the_results_is_refused_at_the_sanity_check(run_dir: Path, own: bool) -> None:
    """MO6: the trainer's too, before the first batch and not at the first validation."""
    trainer = stub(
        metrics={"n": Sum()},
        validate_dataloaders=[1],
        callbacks=CSVLogger("accuracy" if own else None),
        monitor="sum" if own else "accuracy",
        run_dir=run_dir,
    )
    with pytest.raises(CallerError, match=r"monitor 'accuracy' isn't among the results. .*sanity check's results"):
        trainer.run()
    assert trainer.global_forward_batches == 0


def test_a_monitor_with_settings_of_its_own_is_taken_from_the_trainer_as_it_is(run_dir: Path) -> None:
    """MO1, MO4: it is a specification, and nobody's memory."""
    stub(
        metrics={"n": Sum()},
        validate_dataloaders=[1],
        callbacks=CSVLogger(),
        monitor=Monitor("sum", larger_better=False),
        run_dir=run_dir,
    ).run()
    assert "best/sum" in (run_dir / "logs" / "csv" / "metrics.csv").read_text()


@pytest.fixture
def small_disk() -> Iterator[Callable[[int], None]]:
    """Let files grow to so many bytes only; -1: as they like."""
    held = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size if size >= 0 else held[0], held[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, held)


def test_a_logger_that_can_not_write_ends_the_run(tmp_path: Path, small_disk: Callable[[int], None]) -> None:
    """C4: as any listener's error; the file ends with a whole line."""
    trainer = stub(range(1, 50), callbacks=CSVLogger(folder=tmp_path))
    trainer.on("on_train_batch_end", at_batch(20, lambda: small_disk(300)))
    with pytest.raises(OSError, match="File too large"):
        trainer.run()
    assert trainer.trainer_state.state == "exception"
    assert (tmp_path / "metrics.csv").read_text().endswith("\n")


def at_batch(number: int, act: Callable[[], Any]) -> Callable[[Any], None]:
    return lambda trainer: act() if trainer.global_forward_batches == number else None


def test_or_it_warns_and_what_it_had_to_say_is_written_when_the_disk_takes_it_again(
    tmp_path: Path, small_disk: Callable[[int], None]
) -> None:
    """C4."""
    stub(range(1, 50), callbacks=CSVLogger(folder=tmp_path / "straight")).run()
    trainer = stub(range(1, 50), callbacks=CSVLogger(folder=tmp_path / "run", on_fault="warn"))
    trainer.on("on_train_batch_end", at_batch(20, lambda: small_disk(300)))
    trainer.on("on_train_batch_end", at_batch(40, lambda: small_disk(-1)))
    with pytest.warns(UserWarning, match="CSVLogger: OSError: .*File too large") as warned:
        trainer.run()
    assert len(warned) == 1
    assert (tmp_path / "run" / "metrics.csv").read_bytes() == (tmp_path / "straight" / "metrics.csv").read_bytes()


def test_a_run_goes_on_although_the_server_of_its_logger_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """C4: on_fault="warn"."""
    pytest.importorskip("mlflow")
    from tachograph.engine import MLflowLogger

    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    plain, logged = build(tmp_path / "plain", []), MLflowLogger(tracking_uri="http://127.0.0.1:9", on_fault="warn")
    plain.run()
    trainer = build(tmp_path / "run", logged)
    with pytest.warns(UserWarning, match="MLflowLogger: .*, and tried again later") as warned:
        trainer.run()
    assert [str(w.message) for w in warned][1:] == [
        "MLflowLogger couldn't write 9 steps; a run that goes on tries again"
    ]
    assert trainer.journal.chain == plain.journal.chain  # type: ignore[union-attr]


# -- replay ------------------------------------------------------------------------------------------------


def test_a_replay_fills_in_the_log_of_a_run_that_had_none(tmp_path: Path) -> None:
    """C4: all that the journal has: losses, rates, results; not what trainer.log was given."""
    build(tmp_path / "run", CSVLogger()).run()
    live = once(log_of(tmp_path / "run", "csv"))
    replay(tmp_path / "run").add_callback(CSVLogger(monitor="mean", folder=tmp_path / "again")).run()
    again = once(in_csv(tmp_path / "again"))
    assert again == {key: value for key, value in live.items() if key[1] not in ("inside", "at an epoch's end")}
    build(tmp_path / "older", []).run()
    replay(tmp_path / "older").add_callback(CSVLogger(monitor="mean")).run()
    assert once(log_of(tmp_path / "older", "csv")) == again
    replay(tmp_path / "run").add_callback(CSVLogger(folder=tmp_path / "part")).run(stop=20)
    assert 0 < len(once(in_csv(tmp_path / "part"))) < len(again)


# -- a logger of one's own ---------------------------------------------------------------------------------


class Lines(Logger):
    """Logs to lines that the test keeps."""

    kind = "lines"

    def __init__(self, lines: list[Any], **named: Any) -> None:
        super().__init__(**named)
        self.lines = lines

    def open(self, folder: Path, memory: dict[str, Any]) -> None:
        memory["opened"] = memory.get("opened", 0) + 1
        self.lines.append(f"open {memory['opened']}")

    def purge(self, after: int) -> None:
        self.lines.append(f"purge {after}")

    def write(self, step: int, values: dict[str, Any]) -> None:
        self.lines.append(step)

    def close(self) -> None:
        self.lines.append(f"close {self.status}")


def test_a_logger_of_ones_own_is_told_rows_in_their_order_and_from_where_on_they_come_again(run_dir: Path) -> None:
    """R56, C4."""
    lines: list[Any] = []
    build(run_dir, Lines(lines), n_batches=4, n_epochs=None).run()
    build(run_dir, Lines(lines), n_batches=8, n_epochs=None).run(resume_from="auto")
    assert lines == [
        *("open 1", "purge -1", 1, 2, "close finished"),
        *("open 2", "purge 1", 2, 3, 4, 5, "close finished"),
    ]
