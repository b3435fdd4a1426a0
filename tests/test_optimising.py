"""Every callback that optimises or measures, all at once: killed anywhere, the run ends with the same bits."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from tachograph.engine import Journal
from tests.jobs.exact_job import differences
from tests.jobs.forks import Forks

Run = Callable[..., int]
POLICIES = (1, 4, "epoch", None)


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    forks = Forks("tests.jobs.optimising_job")
    yield forks.run
    forks.close()


@pytest.fixture(scope="module")
def straight(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("straight")
    assert run(run_dir=str(folder / "run"), snapshot_every="epoch", out=str(folder / "out")) == 0
    return folder


def left_by(folder: Path) -> dict[str, Any]:
    held = [torch.load(folder / name, weights_only=True) for name in ("out", "out.ema")]
    return {**held[0], "ema": dict(held[1])}


def test_the_straight_run_has_spikes_overflows_and_evaluations_inside_epochs(straight: Path) -> None:
    left, steps = left_by(straight), [r for r in Journal(straight / "run") if r.event == "Stepped"]
    states = left["listeners"]["callbacks"]
    assert states["SpikeGuard"]["count"] >= 1
    assert 2 <= sum(r.data["skipped"] for r in steps) < len(steps) / 4
    assert states["EMA"]["count"] > 5
    assert left["state"]["validations"] > 6
    logged = [text for _, *texts in left["user"]["logged"] for text in texts]
    assert {text.split()[0] for text in logged} == {"grad_norm", "norm", "lr/0", "lr/1"}
    assert "grad_norm nan" in logged
    assert any(differences(left["ema"][name], left["model"][name]) for name in ("head.weight", "body.1.running_mean"))


def test_killed_anywhere_everything_at_once_ends_with_the_bits_of_the_straight_run(
    run: Run, straight: Path, tmp_path: Path, proven: Callable[[int], None]
) -> None:
    """K7, K8, C4, R10, R33, B13: weights, average, rates, scale, statistics, what was logged, and the chain."""
    expected, journal = left_by(straight), Journal(straight / "run")
    entered = [r.seq for r in journal if r.dest == "validate"]
    points = [1, *range(5, expected["state"]["seq"] - 1, 16), *entered[:3]]
    kill_and_resume_at(points, run, tmp_path, expected, journal)
    proven(len(points))


@pytest.mark.sweep
def test_killed_after_every_transition_everything_at_once_ends_with_the_bits_of_the_straight_run(
    run: Run, straight: Path, tmp_path: Path, proven: Callable[[int], None]
) -> None:
    """K7, K8, C4, R10, R33, B13."""
    expected, journal = left_by(straight), Journal(straight / "run")
    points = range(1, expected["state"]["seq"])
    kill_and_resume_at(points, run, tmp_path, expected, journal)
    proven(len(points))


def kill_and_resume_at(points: Sequence[int], run: Run, tmp_path: Path, expected: dict[str, Any], journal: Any) -> None:
    for n, seq in enumerate(points):
        folder = tmp_path / str(seq)
        folder.mkdir()
        job = {"run_dir": str(folder / "run"), "snapshot_every": POLICIES[n % len(POLICIES)]}
        assert run(**job, kill_at=seq) == -signal.SIGKILL
        assert run(**job, out=str(folder / "out"), foreign=seq) == 0
        assert not differences(expected, left_by(folder)), seq
        again = Journal(folder / "run")
        assert again.chain == journal.chain
        assert not list(again.sides("diverged"))
        shutil.rmtree(folder)
