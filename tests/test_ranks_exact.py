"""Killed after any transition, several ranks end with the bits of ranks that were never interrupted.

Real processes over gloo, really killed: all of them, or one, whose loss ends the others.
"""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tachograph.engine import Journal
from tests.jobs.exact_job import differences
from tests.jobs.ranks import RankForks

Proven = Callable[[int], None]


@pytest.fixture(scope="module")
def forks() -> Iterator[RankForks]:
    forks = RankForks("tests.jobs.ranks_job")
    yield forks
    forks.close()


def run(forks: RankForks, folder: Path, world: int = 2, **job: Any) -> list[Any]:
    """Run a job to its end; return each rank's outcome."""
    out = folder / "out"
    out.mkdir(parents=True, exist_ok=True)
    ended = forks.run(world, run_dir=str(folder / "run"), out=str(out), **job)
    assert [rank.status for rank in ended] == [0] * world, "\n".join(rank.err for rank in ended)
    return [torch.load(out / f"rank-{rank}.pt", weights_only=True) for rank in range(world)]


def parameters(outcome: dict[str, Any]) -> dict[str, Any]:
    """What the ranks train together; buffers are each rank's own until rank 0's are sent round."""
    return {name: held for name, held in outcome["model"].items() if "running" not in name}


WAYS = [
    {"workers": 0},
    {"workers": 2, "accumulation": 3},
    {"workers": 0, "accumulation": 2, "precision": "fp16"},
    {"workers": 0, "precision": "bf16"},
]


def expect_exact(
    forks: RankForks, folder: Path, proven: Proven, job: dict[str, Any], world: int, points: Callable[[int], list[int]]
) -> None:
    """Kill all ranks after each of some transitions, resume them, and compare all that they leave behind."""
    straight = run(forks, folder / "straight", world, **job)
    assert not differences(*(weights(straight[rank]["model"]) for rank in (0, -1)))
    assert not differences(straight[0]["state"], straight[-1]["state"])
    assert differences(straight[0]["generators"], straight[-1]["generators"])
    chosen = points(straight[0]["state"]["seq"])
    for seq in chosen:
        inside = folder / f"killed-{seq}"
        killed = forks.run(world, run_dir=str(inside / "run"), kill_at=seq, **job)
        assert [rank.status for rank in killed] == [-signal.SIGKILL] * world, "\n".join(rank.err for rank in killed)
        resumed = run(forks, inside, world, foreign=seq, **job)
        for rank, (before, after) in enumerate(zip(straight, resumed, strict=True)):
            assert not differences(before, after), f"rank {rank}, killed after {seq}"
            assert "diverged" not in [side.kind for side in Journal(inside / "run", rank=rank).sides()]
        shutil.rmtree(inside)
    proven(len(chosen))


def weights(model: dict[str, Any]) -> dict[str, Any]:
    """Leave out what each rank moves by itself."""
    return {name: held for name, held in model.items() if "running" not in name}


@pytest.mark.parametrize("job", WAYS, ids=str)
def test_ranks_that_were_killed_end_with_the_same_bits(
    forks: RankForks, tmp_path: Path, proven: Proven, job: dict[str, Any]
) -> None:
    """C6. R46."""
    expect_exact(forks, tmp_path, proven, job, 2, lambda last: [3, 8, 13, last - 2])


@pytest.mark.sweep
@pytest.mark.parametrize("snapshot_every", [1, "epoch"])
@pytest.mark.parametrize("job", WAYS, ids=str)
def test_two_ranks_that_were_killed_after_any_transition_end_with_the_same_bits(
    forks: RankForks, tmp_path: Path, proven: Proven, job: dict[str, Any], snapshot_every: Any
) -> None:
    """C6. R46."""
    job = {**job, "snapshot_every": snapshot_every}
    expect_exact(forks, tmp_path, proven, job, 2, lambda last: list(range(1, last, 3)))


@pytest.mark.sweep
@pytest.mark.parametrize("job", WAYS, ids=str)
def test_four_ranks_that_were_killed_end_with_the_same_bits(
    forks: RankForks, tmp_path: Path, proven: Proven, job: dict[str, Any]
) -> None:
    """C6. R46. The sums of more than two ranks depend on where in a bucket a gradient lies."""
    expect_exact(forks, tmp_path, proven, {**job, "n": 56}, 4, lambda last: list(range(2, last, 5)))
