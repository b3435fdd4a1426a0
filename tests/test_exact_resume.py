"""Killed after any transition, a run ends with the bits of one that was never interrupted.

Real processes, really killed. `make test` takes a sample of the points, `make test-all` takes all of them.
"""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch

from tachograph.engine import Journal, diff
from tests.jobs.exact_job import EVERY, Configuration, covering, differences
from tests.jobs.forks import Forks

Run = Callable[..., int]
Proven = Callable[[int], None]
SAMPLE = 9  # every ninth transition in `make test`: all kinds of states are among them (a test says so)
POLICIES = (1, 4, "epoch", None)
TRAINED = covering(EVERY)


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    forks = Forks("tests.jobs.exact_job")
    yield forks.run
    forks.close()


@pytest.fixture(scope="module")
def straight(run: Run, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("straight")
    return went_straight(run, folder)


def went_straight(run: Run, folder: Path, **job: Any) -> dict[str, Any]:
    assert run(run_dir=str(folder / "run"), snapshot_every="epoch", out=str(folder / "out"), **job) == 0
    return {**torch.load(folder / "out", weights_only=True), "run_dir": folder / "run"}


def expect_equal(straight: dict[str, Any], out: Path) -> None:
    resumed = torch.load(out, weights_only=True)
    assert not differences({k: v for k, v in straight.items() if k != "run_dir"}, resumed)


def kill_and_resume(run: Run, straight: dict[str, Any], folder: Path, seq: int, policy: Any, **job: Any) -> None:
    run_dir = folder / f"run-{seq}"
    job = {"run_dir": str(run_dir), "snapshot_every": policy, **job}
    assert run(**job, kill_at=seq) == -signal.SIGKILL
    assert Journal(run_dir).last.seq == seq
    assert run(**job, out=str(folder / "out"), foreign=seq) == 0
    expect_equal(straight, folder / "out")
    assert diff(straight["run_dir"], run_dir) is None
    journal = Journal(run_dir)
    journal.verify_chain()
    assert not list(journal.sides("diverged"))
    for matched in journal.sides("matched"):
        assert matched.data["matched"] == matched.data["of"]
    shutil.rmtree(run_dir)


def test_the_straight_run_has_everything_that_can_go_wrong(straight: dict[str, Any]) -> None:
    records = list(Journal(straight["run_dir"]))
    ways = {(r.source, r.event, r.dest) for r in records}
    assert ("init", "Started", "sanity_check") in ways
    assert ("fetch", "Exhausted", "validate") in ways
    assert ("validate", "Validated", "epoch_end") in ways
    assert ("step", "Stepped", "validate") in ways
    assert any(r.state.accumulated == 2 for r in records)
    assert "EarlyStopping" in records[-1].state.stop_asked
    assert all(straight["user"]["calls"].values())


def test_a_sample_of_the_transitions_holds_every_kind_of_state(straight: dict[str, Any]) -> None:
    sampled = {r.dest for r in Journal(straight["run_dir"]) if r.seq % SAMPLE == 1 or r.seq <= 3}
    assert {"sanity_check", "epoch_begin", "fetch", "step", "validate"} <= sampled


def sample(seq: int) -> bool:
    return seq <= 3 or seq % SAMPLE == 1


def test_killed_after_a_sample_of_transitions_it_ends_with_the_same_bits(
    run: Run, straight: dict[str, Any], tmp_path: Path, proven: Proven
) -> None:
    """R01 R02 R04 R05 R07 R10 R13 R22 R29 R41 R57 B10 B11 B12 B14 B15 B16 SV9."""
    last = straight["state"]["seq"]
    points = [seq for seq in range(1, last) if sample(seq)] + [last - 1, last - 2]
    for n, seq in enumerate(points):
        kill_and_resume(run, straight, tmp_path, seq, POLICIES[n % len(POLICIES)])
    proven(len(points))


@pytest.mark.sweep
@pytest.mark.parametrize("policy", POLICIES)
def test_killed_after_every_transition_it_ends_with_the_same_bits(
    run: Run, straight: dict[str, Any], tmp_path: Path, proven: Proven, policy: Any
) -> None:
    for seq in range(1, straight["state"]["seq"]):
        kill_and_resume(run, straight, tmp_path, seq, policy)
    proven(straight["state"]["seq"] - 1)


@pytest.mark.parametrize("configuration", TRAINED, ids=[configuration.id for configuration in TRAINED])
def test_killed_however_it_trains_it_ends_with_the_same_bits(
    run: Run, tmp_path: Path, proven: Proven, configuration: Configuration
) -> None:
    """Two kills each; `test_exact_grid.py` has all the points."""
    job = {"configuration": attrs.asdict(configuration)}
    straight = went_straight(run, tmp_path, **job)
    first = 4 + TRAINED.index(configuration)
    for seq, policy in ((first, 1), (first + 20, "epoch")):
        kill_and_resume(run, straight, tmp_path, seq, policy, **job)
    proven(2)


def test_one_process_per_transition_for_a_whole_epoch_ends_with_the_same_bits(
    run: Run, straight: dict[str, Any], tmp_path: Path, proven: Proven
) -> None:
    """R26: a chain of resumes; each process goes on for one published snapshot and is killed."""
    job = {"run_dir": str(tmp_path / "run"), "snapshot_every": None}
    epoch = next(r.seq for r in Journal(straight["run_dir"]) if r.event == "EpochEnded")
    processes = 0
    while not (tmp_path / "run").exists() or Journal(tmp_path / "run").last.seq < epoch:
        assert run(**job, one_more=True) == -signal.SIGKILL
        processes += 1
    assert processes >= epoch // 3
    assert run(**job, out=str(tmp_path / "out")) == 0
    expect_equal(straight, tmp_path / "out")
    assert diff(straight["run_dir"], tmp_path / "run") is None
    proven(1)
