"""A run of some ranks goes on with another number of them, or with another batch size: nothing is lost or repeated."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tachograph.engine import Journal
from tests.jobs.ranks import RankForks


@pytest.fixture(scope="module")
def forks() -> Iterator[RankForks]:
    forks = RankForks("tests.jobs.ranks_elastic_job")
    yield forks
    forks.close()


def run(forks: RankForks, folder: Path, world: int, status: int = 0, **job: Any) -> list[list[list[int]]]:
    """Run the job; return per rank the ids of each of its batches."""
    ended = forks.run(world, 60, folder=str(folder), **job)
    assert [rank.status for rank in ended] == [status] * world, "\n".join(rank.err for rank in ended)
    return [json.loads((folder / f"ids-{rank}.json").read_text()) for rank in range(world)]


def in_order(ranks: list[list[list[int]]]) -> list[int]:
    """Return the ids of all ranks in the global order: step by step, rank by rank."""
    return [i for step in zip(*ranks, strict=True) for batch in step for i in batch]


FEW = [(2, 4, 1, 2), (2, 2, 2, 4), (1, 4, 2, 1)]
EVERY = [(4, 2, world, batch) for world in (1, 2, 4) for batch in (1, 2, 4)]


@pytest.mark.parametrize(
    ("before", "size", "after", "size_after"),
    [*FEW, *(pytest.param(*way, marks=pytest.mark.sweep) for way in EVERY)],
)
def test_the_samples_that_are_left_come_once_each_in_the_same_order(
    forks: RankForks, tmp_path: Path, before: int, size: int, after: int, size_after: int
) -> None:
    """R51. C6. SA5."""
    straight = in_order(run(forks, tmp_path / "straight", 1, batch=8))
    done = 24
    folder = tmp_path / "run"
    run(forks, folder, before, -signal.SIGKILL, batch=size, kill_after=done)
    consumed = json.loads((folder / "consumed.json").read_text())
    assert consumed == done
    ids = in_order(run(forks, folder, after, batch=size_after))
    assert ids == straight[done:]
    assert sorted(straight[:64]) == list(range(64))
    last = Journal(folder / "run").last
    assert last.state.samples == 128
    resumed = next(side for side in Journal(folder / "run").sides("resumed"))
    changed = resumed.data["changed"]
    assert changed.get("world") == ([before, after] if before != after else None)
    for rank in range(after):  # the states are those of all ranks, also where a rank's journal begins in the middle
        assert Journal(folder / "run", rank=rank).last.state == last.state


def test_an_open_window_is_carried_over(forks: RankForks, tmp_path: Path) -> None:
    """C6. C7. The gradients of an accumulation window are the sum of what all ranks had made of it."""
    folder = tmp_path / "run"
    run(forks, folder, 2, -signal.SIGKILL, batch=4, kill_after=24, accumulation=2, snapshot_every=1)
    held = [torch.load(folder / f"gradients-{rank}.pt", weights_only=True) for rank in (0, 1)]
    run(forks, folder, 1, batch=8, accumulation=2, look=True)
    found = torch.load(folder / "gradients-0.pt", weights_only=True)
    assert held[0].keys() == found.keys()
    for name, grad in found.items():
        assert torch.equal(grad, (held[0][name] + held[1][name]) / 2)


def test_generators_of_ranks_that_stay_are_their_own_and_new_ranks_draw_otherwise(
    forks: RankForks, tmp_path: Path
) -> None:
    """R46."""
    folder = tmp_path / "run"
    run(forks, folder, 2, -signal.SIGKILL, batch=4, kill_after=24, snapshot_every=1)
    saved = [torch.load(folder / f"drawn-{rank}.pt", weights_only=True) for rank in (0, 1)]
    run(forks, folder, 3, batch=4, look=True)
    drawn = [torch.load(folder / f"drawn-{rank}.pt", weights_only=True) for rank in (0, 1, 2)]
    assert torch.equal(drawn[0], saved[0])
    assert torch.equal(drawn[1], saved[1])
    assert not torch.equal(drawn[2], saved[0])
    assert not torch.equal(drawn[2], saved[1])


def test_what_cant_change_its_number_of_ranks_is_refused_by_name(forks: RankForks, tmp_path: Path) -> None:
    """R51. R40."""
    folder = tmp_path / "run"
    run(forks, folder, 2, -signal.SIGKILL, batch=4, kill_after=24, own=True)
    ended = forks.run(1, 60, folder=str(folder), batch=4, own=True)
    assert ended[0].status == 1
    assert "SettingsChanged" in ended[0].err
    assert "data is fixed for a run" in ended[0].err
    assert "2 ranks" in ended[0].err
