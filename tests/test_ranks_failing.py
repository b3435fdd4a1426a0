"""One rank fails, or is killed: all end, non-zero, soon, and say which one failed of what. No process is left."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.jobs.ranks import RankForks

SOON = 15  # seconds; the limit for those that don't end by themselves is another one


@pytest.fixture(scope="module")
def forks() -> Iterator[RankForks]:
    forks = RankForks("tests.jobs.ranks_faults_job")
    yield forks
    forks.close()


PLACES = ("beginning", "fetch", "step", "validate", "listener", "capture", "save", "journal")


@pytest.mark.parametrize("on", [0, 1])
@pytest.mark.parametrize("where", PLACES)
def test_a_rank_that_fails_ends_all_and_is_named(forks: RankForks, run_dir: Path, where: str, on: int) -> None:
    """R17. D8. B27: the listeners of every rank hear of it before anything ends."""
    began = time.monotonic()
    pids = forks.start(2, 60, work="fail", where=where, on=on, run_dir=str(run_dir))
    ended = forks.wait()
    assert time.monotonic() - began < SOON
    assert [rank.status for rank in ended] == [1, 1], [rank.err for rank in ended]
    told, other = ended[on], ended[1 - on]
    if where == "journal":
        assert "JournalWriteError" in told.err
        assert f"rank {on} failed" in other.err
    elif where == "save":  # nobody's snapshot is whole without that part
        assert "SnapshotWriteFault" in told.err
        assert "it was planted" in other.err
        assert f"rank {on}" in ended[0].err or on == 0
    else:
        assert "Planted: it was planted" in told.err
        assert f"rank {on} failed" in other.err
        assert "Planted: it was planted" in other.err
        assert "Traceback" in other.err.split("there it was")[1]
    if where not in ("beginning",):
        assert told.out.startswith("heard")
        assert other.out.startswith("heard")
    if where in ("fetch", "step", "validate", "listener"):
        state = {"listener": "fetch"}.get(where, where)
        assert f"in state '{'sanity_check' if where == 'validate' else state}'" in other.err
    expect_gone(pids)


@pytest.mark.parametrize("killed", [0, 1])
@pytest.mark.parametrize("where", ["kill", "exit"])
def test_a_rank_that_is_gone_without_a_word_ends_the_others(
    forks: RankForks, run_dir: Path, where: str, killed: int
) -> None:
    """R17."""
    began = time.monotonic()
    pids = forks.start(2, 60, work="fail", where=where, on=killed, run_dir=str(run_dir))
    ended = forks.wait()
    assert time.monotonic() - began < SOON
    assert ended[killed].status == (-signal.SIGKILL if where == "kill" else 7)
    assert ended[1 - killed].status == 1
    assert "another rank is gone" in ended[1 - killed].err
    assert ended[1 - killed].out == "heard RankFailed\n"
    expect_gone(pids)


@pytest.mark.parametrize("on", [0, 1])
def test_a_rank_whose_trainer_cannot_be_built_tells_the_others_why(forks: RankForks, run_dir: Path, on: int) -> None:
    """R17. R62: only one rank's loader is empty."""
    ended = forks.run(2, 60, work="fail", where="construction", on=on, run_dir=str(run_dir))
    assert [rank.status for rank in ended] == [1, 1]
    assert "train_dataloader is empty" in ended[on].err
    assert f"rank {on} failed in its script: CallerError: train_dataloader is empty" in ended[1 - on].err


@pytest.mark.parametrize("where", ["step", "listener"])
def test_a_group_of_the_users_is_there_still_when_a_rank_has_failed(
    forks: RankForks, run_dir: Path, where: str
) -> None:
    """R17. D5."""
    ended = forks.run(2, 60, work="fail", where=where, on=1, own_group=True, run_dir=str(run_dir))
    assert [rank.status for rank in ended] == [1, 1]
    assert ended[1].out == "heard Planted\na group is there\n"
    assert ended[0].out == "heard RankFailed\na group is there\n"
    assert "rank 1 failed" in ended[0].err


def test_a_rank_that_waits_long_for_the_others_says_so(forks: RankForks, run_dir: Path) -> None:
    ended = forks.run(2, 60, work="wait", run_dir=str(run_dir))
    assert [rank.status for rank in ended] == [0, 0]
    assert ended[0].err.count("rank 0 has waited") == 1
    assert "rank 1 has waited" not in ended[1].err


def test_a_rank_that_waits_elsewhere_is_ended_within_the_limit(forks: RankForks, run_dir: Path) -> None:
    """R17. B20."""
    began = time.monotonic()
    ended = forks.run(2, 60, work="fail", where="listener", on=0, asleep=True, limit=1, run_dir=str(run_dir), at=1)
    assert time.monotonic() - began < SOON
    assert [rank.status for rank in ended] == [1, 1]
    assert "rank 1 didn't end within 1 seconds after rank 0 failed" in ended[1].err
    assert "it was planted" in ended[1].err


def test_listeners_that_wait_for_other_ranks_when_one_has_failed_dont_wait_for_ever(
    forks: RankForks, run_dir: Path
) -> None:
    """B27. D10."""
    ended = forks.run(2, 60, work="fail", where="step", on=1, barrier=True, run_dir=str(run_dir))
    assert [rank.status for rank in ended] == [1, 1]
    assert [rank.out for rank in ended] == ["heard RankFailed\n", "heard Planted\n"]


def expect_gone(pids: list[int]) -> None:
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
