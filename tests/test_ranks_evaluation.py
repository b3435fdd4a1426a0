"""Evaluations over ranks have the results of one process, on every rank, and training doesn't notice them."""

from __future__ import annotations

import math
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tachograph.drivers import NO_BATCH
from tachograph.drivers.ranks import Ranks
from tachograph.drivers.share import Share
from tachograph.engine import Journal
from tachograph.engine.snapshots import catalogue
from tachograph.engine.turns import Turns
from tests.jobs import ranks_evaluation_job as job
from tests.jobs.exact_job import differences
from tests.jobs.ranks import Ended, RankForks


@pytest.fixture(scope="module")
def forks() -> Iterator[RankForks]:
    forks = RankForks("tests.jobs.ranks_evaluation_job")
    yield forks
    forks.close()


def outcomes(forks: RankForks, folder: Path, world: int, work: str, **told: Any) -> list[Any]:
    """Do some work on ranks to its end; return what each of them made."""
    ended = forks.run(world, work=work, out=str(folder), **told)
    assert [rank.status for rank in ended] == [0] * world, said(ended)
    return [torch.load(folder / f"rank-{rank}.pt", weights_only=True) for rank in range(world)]


def said(ended: list[Ended]) -> str:
    return "\n".join(rank.err for rank in ended)


def equal(one: Any, other: Any) -> bool:
    """Whether results are equal, numbers to 1e-12."""
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-12, abs_tol=1e-12) or (one != one and other != other)
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(equal, one, other))
    return type(one) is type(other) and bool(one == other)


@pytest.fixture(scope="module")
def ways(forks: RankForks, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """Seven samples in every way, on two ranks and in one process."""
    return [*outcomes(forks, tmp_path_factory.mktemp("ways"), 2, "ways"), job.ways("torch")]


@pytest.fixture(scope="module", params=["torch_ddp", "torch_fsdp"])
def trained(forks: RankForks, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> list[Any]:
    """What training did on two ranks, evaluated in every way."""
    folder = tmp_path_factory.mktemp(request.param)
    return outcomes(forks, folder, 2, "in a trainer", seconds=40, driver=request.param)


@pytest.fixture(scope="module")
def straight(forks: RankForks, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """What a run leaves behind that nothing strikes."""
    folder = tmp_path_factory.mktemp("straight")
    return outcomes(forks, folder, 2, "struck", run_dir=str(folder / "run"))


@pytest.fixture(scope="module")
def one_process() -> dict[str, Any]:
    return job.matrix("torch")


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_each_sample_is_scored_once_whatever_the_number_of_ranks(
    forks: RankForks, tmp_path: Path, one_process: dict[str, Any], world: int
) -> None:
    """R15. M2. M3. B21. SA5. With metrics of every kind, and parts of the data; with fewer batches than ranks too."""
    for found in outcomes(forks, tmp_path, world, "matrix"):
        for n in job.SIZES:
            assert found[f"{n}"]["count#ids"] == n
            assert found[f"{n}"]["ids#ids"] == list(range(n))
        assert found.pop("syncs") == (4 if world > 1 else 0)  # once in each of the last evaluator's runs
        for what, results in found.items():
            expected = one_process[what]
            assert equal(results, expected), f"{what}: {results} instead of {expected}"


def test_data_that_comes_in_another_way_is_scored_once_too(ways: list[Any]) -> None:
    """R15. M3. SA5."""
    *ranks, alone = ways
    for found in ranks:
        for way in ("DistributedSampler", "own sampler", "stream that knows", "stream that doesn't", "workers"):
            results, told = found[way]
            assert results["ids#ids"] == list(range(7)), way
            assert results["tm"] == pytest.approx(alone[way][0]["tm"], rel=1e-6)  # of single precision
            assert results["mean"] == pytest.approx(alone[way][0]["mean"], rel=1e-12)
            assert not told
        assert found["each its own"] == alone["each its own"]


def test_with_a_metric_that_cannot_be_joined_every_rank_evaluates_all(ways: list[Any]) -> None:
    """M2. R15. What it means, and what would avoid it, is told once, by one rank."""
    first, second, alone = ways
    apart = [way for way in alone if way.startswith(("can't be joined", "holds"))]
    assert len(apart) == 4
    for way in apart:
        assert first[way][0] == second[way][0] == alone[way][0], way
        (told,) = first[way][1]
        assert "can't be joined over ranks, so that every rank evaluates all the data: metrics of torchmetrics" in told
        assert not second[way][1]


def test_results_are_those_of_rank_0_where_the_ranks_have_different_ones(ways: list[Any]) -> None:
    """D8."""
    first, second, alone = (found["own step"] for found in ways)
    assert first[0] == second[0] != alone[0]
    (told,) = first[1]
    assert told.startswith("the ranks computed different results of 'sum#own': those of rank 0 are taken on all")
    assert not second[1]


def test_a_model_that_is_shared_out_is_called_equally_often(forks: RankForks, tmp_path: Path) -> None:
    """D13. R15. Where a rank has fewer batches than another, or none at all."""
    alone = job.sharded("torch")
    for found in outcomes(forks, tmp_path, 2, "sharded"):
        for what, results in found.items():
            assert equal(results, alone[what]), f"{what}: {results} instead of {alone[what]}"


def test_an_evaluator_that_fails_on_one_rank_ends_on_all(forks: RankForks, tmp_path: Path) -> None:
    """R17. Without a trainer too."""
    first, second = forks.run(2, 30, work="failing", out=str(tmp_path))
    assert (first.status, second.status) == (1, 1)
    assert "RankFailed: rank 1 failed in an evaluation: ValueError: no score" in first.err
    assert "in batch 1 of the evaluation loader, which holds the samples [2, 3]" in second.err


def test_training_does_not_notice_how_it_is_evaluated(trained: list[Any]) -> None:
    """R29. Not on any rank, be it with buffers that each moves by itself, or in the midst of a window."""
    for found in trained:
        for name in job.EVALUATED:
            assert not differences(found[name]["trained"], found["never"]["trained"]), name
    first, second = trained
    assert differences(first["never"]["trained"]["model"], second["never"]["trained"]["model"])  # their buffers
    for name, validations in {"each epoch": 2, "each step": 12, "can't be joined": 12, "differs": 4}.items():
        assert len(first[name]["results"]) == validations
        assert first[name]["results"] == second[name]["results"]


def test_evaluations_by_hand_in_the_midst_of_a_run_have_the_results_of_all(trained: list[Any]) -> None:
    """R15."""
    first, second = (found["held by hand"] for found in trained)
    assert len(first) == len(second) == 4
    for (validated, alone, tested, predicted), other in zip(first, second, strict=True):
        assert other == [validated, None, tested, predicted]
        by_one = alone if isinstance(alone, str) else alone.keys()
        assert by_one in (
            {"loss"},
            "a model that is shared out is evaluated by all ranks, and not under rank_zero_call",
        )
        assert tested["count#n"] == 3
        assert predicted == 2


@pytest.mark.parametrize("at", [(1, 1), (1, 2), (0, 3)], ids=str)
def test_a_signal_to_one_rank_in_a_validation_ends_all_of_them_there(
    forks: RankForks, tmp_path: Path, proven: Callable[[int], None], straight: list[Any], at: tuple[int, int]
) -> None:
    """R30. D8."""
    told = {"work": "struck", "run_dir": str(tmp_path / "run"), "out": str(tmp_path)}
    ended = forks.run(2, at=at, how="signal", **told)
    assert [rank.status for rank in ended] == [128 + signal.SIGTERM] * 2, said(ended)
    held, broken = catalogue(tmp_path / "run")
    last = [Journal(tmp_path / "run", rank=rank).last for rank in (0, 1)]
    assert [(record.source, record.dest) for record in last if record is not None] == [("validate", "done")] * 2
    assert [snapshot.seq for snapshot in held] == [record.seq - 1 for record in last[:1] if record is not None]
    assert not broken
    for before, after in zip(straight, outcomes(forks, tmp_path, 2, "struck", run_dir=told["run_dir"]), strict=True):
        assert not differences(before, after)
    proven(1)


def test_an_error_in_the_validation_of_one_rank_ends_all_of_them(forks: RankForks, tmp_path: Path) -> None:
    """R17."""
    ended = forks.run(2, work="struck", run_dir=str(tmp_path / "run"), out=str(tmp_path), at=(1, 2), how="fails")
    assert [rank.status for rank in ended] == [1, 1], said(ended)
    assert "RankFailed: rank 1 failed in state 'validate'" in ended[0].err
    assert "ValueError: no score" in ended[0].err
    assert "in batch 3 of the evaluation loader, which holds the samples [6, 7]" in ended[0].err


class Second(Ranks):
    """The second of two ranks, the first of which is done at once."""

    rank, world_size = 1, 2

    def agree(self, bits: int) -> int:
        return bits


@pytest.mark.parametrize(("rounds", "asked"), [(1, [True, False, False]), (4, [True] * 4), (None, [True] * 3)])
def test_a_loader_that_has_another_length_than_it_says_is_read_to_its_end(rounds: Any, asked: list[bool]) -> None:
    """R15. And what all ranks must do equally often they do as often as was said."""
    share = Share(batches=lambda: (_ for _ in "abc"), length=None, rounds=rounds, is_apart=lambda: True)
    turns = Turns(Second(), share, -1)
    held = [(batch, turns.of_all) for batch in turns.of(share.batches())]
    assert [batch for batch, _ in held if batch is not NO_BATCH] == ["a", "b", "c"]
    assert [of_all for _, of_all in held] == asked
