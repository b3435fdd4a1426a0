"""All ranks take the same edge, whoever asks for it: a stop, an epoch's end, a snapshot, a signal, a time limit."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tachograph.engine import Journal
from tests.jobs.exact_job import differences
from tests.jobs.ranks import Ended, RankForks


@pytest.fixture(scope="module")
def forks() -> Iterator[RankForks]:
    forks = RankForks("tests.jobs.ranks_faults_job")
    yield forks
    forks.close()


def ask(
    forks: RankForks, folder: Path, statuses: int = 0, world: int = 2, **job: Any
) -> tuple[list[dict[str, Any]], list[Ended]]:
    """Run a job; return what each rank reports, and how it ended."""
    out = folder / "out"
    out.mkdir(parents=True, exist_ok=True)
    ended = forks.run(world, 60, work="ask", run_dir=str(folder / "run"), out=str(out), **job)
    assert [rank.status for rank in ended] == [statuses] * world, "\n".join(rank.err for rank in ended)
    return [json.loads((out / f"rank-{rank}.json").read_text()) for rank in range(world)], ended


def steps(run_dir: Path, rank: int) -> list[tuple[int, str, str, str, Any]]:
    """Return what must be equal on all ranks of the whole history."""
    return [(r.seq, r.source, r.event, r.dest, r.state.to_dict()) for r in Journal(run_dir, rank=rank)]


def expect_together(folder: Path, reports: list[dict[str, Any]]) -> dict[str, Any]:
    """Expect every rank to have gone the same way; return where it ended."""
    assert reports[0]["state"] == reports[1]["state"]
    assert steps(folder / "run", 0) == steps(folder / "run", 1)
    return dict(reports[0]["state"])


@pytest.mark.parametrize("on", [[0], [1], [0, 1]], ids=str)
def test_a_stop_that_one_rank_asks_for_stops_all_after_the_same_step(
    forks: RankForks, tmp_path: Path, on: list[int]
) -> None:
    """R30. After the next step, and without a collective in the others; the lower rank's reason is kept."""
    state = expect_together(tmp_path, ask(forks, tmp_path, what="stop", on=on)[0])
    assert state["global_forward_batches"] == 4
    last = Journal(tmp_path / "run").last
    assert last.event == "Stopped"
    assert last.data["reason"] == f"rank {on[0]} has had enough"


def test_ballots_that_are_counted_later_stop_all_at_one_transition_too(forks: RankForks, tmp_path: Path) -> None:
    """R30. As on an accelerator, where no host waits for another; the request outlives a snapshot on its way."""
    reports, _ = ask(forks, tmp_path, what="stop", on=[1], lag=3, snapshot_every=1)
    state = expect_together(tmp_path, reports)
    assert state["global_forward_batches"] == 5  # of the three ballots between, one was cast at the validation
    snapshot = torch.load(tmp_path / "run" / "snapshots" / "000000000011" / "rank-1.pt", weights_only=True)
    assert snapshot["extra"]["own"]["asked"] == [["stop_asked", "rank 1 has had enough"]]


def test_an_epoch_that_one_rank_asks_to_end_ends_on_all(forks: RankForks, tmp_path: Path) -> None:
    state = expect_together(tmp_path, ask(forks, tmp_path, what="end_epoch", on=[1])[0])
    cut = [r for r in Journal(tmp_path / "run") if r.event == "Exhausted"]
    assert [r.data.get("cut", "") for r in cut] == ["rank 1 has had enough of it", ""]
    assert state["state"] == "done"
    assert state["global_forward_batches"] == 4 + 7


def test_a_snapshot_that_one_rank_asks_for_is_taken_of_all(forks: RankForks, tmp_path: Path) -> None:
    reports, _ = ask(forks, tmp_path, what="snapshot", on=[1], snapshot_every=None)
    expect_together(tmp_path, reports)
    taken = {path.name for path in (tmp_path / "run" / "snapshots").iterdir()}
    assert len(taken) == 2  # it, and that of the end
    assert reports[0]["snapshots"] == reports[1]["snapshots"]  # and heard of after the same transition
    for name in taken:
        assert {"rank-0.pt", "rank-1.pt"} <= {path.name for path in (tmp_path / "run" / "snapshots" / name).iterdir()}


@pytest.mark.parametrize("on", [[0], [1], [0, 1]], ids=str)
@pytest.mark.parametrize("accumulation", [1, 3])
def test_a_signal_at_any_rank_ends_all_after_the_same_transition(
    forks: RankForks, tmp_path: Path, on: list[int], accumulation: int
) -> None:
    """R30. C6: and the resumed run ends with the bits of one that got no signal."""
    job = {"accumulation": accumulation, "snapshot_every": None}
    out = tmp_path / "straight"
    ask(forks, out, what="", on=[], **job)
    way = {"what": "SIGTERM", "on": on, "apart": 0.05, "slowly": 0.03}
    reports, _ = ask(forks, tmp_path / "cut", 128 + signal.SIGTERM, **way, **job)
    state = expect_together(tmp_path / "cut", reports)
    assert state["state"] == "done"
    assert 3 <= state["global_forward_batches"] < 14
    assert len(list((tmp_path / "cut" / "run" / "snapshots").iterdir())) == 1
    ask(forks, tmp_path / "cut", what="", on=[], **job)
    for rank in (0, 1):
        straight, resumed = (
            torch.load(folder / "out" / f"rank-{rank}.pt", weights_only=True) for folder in (out, tmp_path / "cut")
        )
        assert not differences(straight, resumed)


def test_ctrl_c_at_one_rank_ends_all_whatever_is_to_be_caught(forks: RankForks, tmp_path: Path) -> None:
    """A2.R1. R30."""
    reports, ended = ask(forks, tmp_path, 1, what="SIGINT", on=[1], catch=True)
    expect_together(tmp_path, reports)
    for rank in ended:
        assert "KeyboardInterrupt" in rank.err
        assert "catch_KeyboardInterrupt has no effect in several processes" in rank.err
    assert reports[0]["snapshots"] == reports[1]["snapshots"]


def test_a_time_limit_that_is_over_on_one_rank_ends_all(forks: RankForks, tmp_path: Path) -> None:
    reports, _ = ask(forks, tmp_path, what="", on=[1], max_time=1.0, slowly=0.1)
    state = expect_together(tmp_path, reports)
    assert 0 < state["global_forward_batches"] < 14
    assert "max_time" in Journal(tmp_path / "run").last.data["reason"]
