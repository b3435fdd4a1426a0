"""Killed after any transition, several ranks end with the bits of ranks that were never interrupted.

Real processes over gloo, really killed: all of them, or one, whose loss ends the others.
"""

from __future__ import annotations

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


@pytest.mark.parametrize("job", WAYS, ids=str)
def test_ranks_that_were_killed_end_with_the_same_bits(
    forks: RankForks, tmp_path: Path, proven: Proven, job: dict[str, Any]
) -> None:
    """C6. R46."""
    straight = run(forks, tmp_path / "straight", **job)
    last = straight[0]["state"]["seq"]
    assert not differences(*(parameters(each) for each in straight))
    assert not differences(straight[0]["state"], straight[1]["state"])
    assert differences(straight[0]["generators"], straight[1]["generators"])
    points = [3, 8, 13, last - 2]
    for seq in points:
        folder = tmp_path / f"killed-{seq}"
        killed = forks.run(2, run_dir=str(folder / "run"), kill_at=seq, **job)
        assert [rank.status for rank in killed] == [-signal.SIGKILL] * 2, "\n".join(rank.err for rank in killed)
        resumed = run(forks, folder, foreign=seq, **job)
        for before, after in zip(straight, resumed, strict=True):
            assert not differences(before, after)
        for rank in (0, 1):
            kinds = [side.kind for side in Journal(folder / "run", rank=rank).sides()]
            assert "diverged" not in kinds
    proven(len(points))
