"""Windows over ranks that exchange their gradients, in real processes over gloo, held against one process by hand."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.jobs.ranks import RankForks
from tests.toys import equal
from tests.windows import Tagger, by_hand, loader_of

FULL = (5, 1, 4, 3, 2, 7, 3, 1, 6, 2)
"""Five micro-batches of two ranks: one sample each."""
HOLES = (5, 1, 4, 0, 0, 0, 0, 0, 6, 2)
"""A rank without any target in a batch that closes a window; then a window in which no rank has one."""


@pytest.fixture(scope="module")
def forks() -> Iterator[RankForks]:
    forks = RankForks("tests.jobs.accumulation_job")
    yield forks
    forks.close()


def run(
    forks: RankForks, where: Path, world: int, cases: dict[str, Any], driver: str = "torch_ddp"
) -> list[dict[str, Any]]:
    """What each rank found, by the names of the cases."""
    ended = forks.run(world, where=str(where), cases=cases, driver=driver)
    assert [rank.status for rank in ended] == [0] * world, "\n".join(rank.err for rank in ended)
    return [torch.load(where / f"{world}-{rank}.pt", weights_only=True) for rank in range(world)]


def farthest(a: Sequence[torch.Tensor], b: Sequence[torch.Tensor]) -> float:
    return max(float((x - y).abs().max()) for x, y in zip(a, b, strict=True))


def closeness(precision: str) -> float:
    return 1e-6 if precision == "fp32" else 4e-3


def case(
    precision: str, tail: str, weight: str | None = None, many: bool = False, overflows: Sequence[int] = (), **more: Any
) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a job builds, and what one process is told by hand: twice as many micro-batches."""
    lengths = HOLES if weight == "n_targets" else FULL
    about: dict[str, Any] = {"precision": precision, "many": many, "lengths": lengths, "overflows": overflows}
    return (
        {**about, "k": 2, "accumulation_tail": tail, "loss_weight": weight, **more},
        {**about, "k": 4, "tail": tail, "weighed": weight == "n_targets"},
    )


CASES = {
    "whole": case("fp32", "flush"),
    "dropped": case("fp32", "drop", None, True),
    "carried": case("fp32", "carry", "n_targets"),
    "weighed": case("fp32", "flush", "n_targets", True),
    "half": case("bf16", "flush", "n_targets"),
    "overflow here": case("fp16", "flush", None, True, (0,)),
    "overflow there": case("fp16", "carry", "n_targets", False, (5,)),
    "overflow in the tail": case("fp16", "flush", "samples", False, (8,)),
    "unknown end": case("fp32", "flush", None, known=False),
    "unknown end, overflow": case("fp16", "flush", "n_targets", True, (8,), known=False),
}


SHARDED = ("carried", "overflow there", "unknown end, overflow")
"""In these a rank has a batch without any target inside a window, too."""


def check(told: dict[str, Any], here: dict[str, Any], there: dict[str, Any]) -> None:
    """Hold what two ranks ended with against one process by hand."""
    weights, scaler, taken = by_hand(**told)
    assert equal(here["weights"], there["weights"]), told
    assert farthest(here["weights"], weights) < closeness(told["precision"]), told
    assert here["updates"] == there["updates"] == taken, told
    assert here["scaler"] == there["scaler"] == (scaler or None), told


def test_windows_of_two_ranks_end_as_those_of_one_process_and_exchange_once(forks: RankForks, tmp_path: Path) -> None:
    """B9, C7, R06, R23, R33, D3: in every precision; an overflow on one rank skips the update of both."""
    one, two = run(forks, tmp_path, 2, {name: given for name, (given, _) in CASES.items()})
    for name, (given, told) in CASES.items():
        here, there = one[name], two[name]
        check(told, here, there)
        assert all(map(torch.equal, here["update"], there["update"])) or given["overflows"], name
        assert not torch.equal(here["backward"][0], there["backward"][0]), name  # the window isn't closed
    assert torch.equal(one["whole"]["backward"][1], two["whole"]["backward"][1])


def test_windows_of_a_sharded_model_end_as_those_of_one_process(forks: RankForks, tmp_path: Path) -> None:
    """C7, D13, R06, R33: no rank passes over a batch whose forward and backward pass the others share."""
    one, two = run(forks, tmp_path, 2, {name: CASES[name][0] for name in SHARDED}, "torch_fsdp")
    for name in SHARDED:
        check(CASES[name][1], one[name], two[name])


@pytest.mark.sweep
def test_windows_of_four_ranks_end_as_those_of_one_process(forks: RankForks, tmp_path: Path) -> None:
    """B9, C7, R06, R33: three batches an epoch, in windows of one and of two."""
    lengths = (5, 1, 4, 0, 0, 0, 0, 0, 6, 2, 3, 0)
    cases = {
        f"{precision}, {k}, {tail}": (
            {
                "precision": precision,
                "k": k,
                "many": many,
                "accumulation_tail": tail,
                "lengths": lengths,
                "loss_weight": "n_targets",
                "overflows": (9,) if precision == "fp16" else (),
            },
            {
                "precision": precision,
                "k": 4 * k,
                "many": many,
                "tail": tail,
                "lengths": lengths,
                "weighed": True,
                "overflows": (9,) if precision == "fp16" else (),
            },
        )
        for precision in ("fp32", "bf16", "fp16")
        for k, tail, many in ((1, "flush", True), (2, "flush", False), (2, "carry", True))
    }
    ranks = run(forks, tmp_path, 4, {name: given for name, (given, _) in cases.items()})
    for name, (_, told) in cases.items():
        for rank in ranks:
            check(told, ranks[0][name], rank[name])


STOPS = (1, 2, 3, 5, 8)


def test_stopped_inside_a_window_ranks_go_on_with_its_bits(forks: RankForks, tmp_path: Path, proven: Any) -> None:
    """C7, R41, R33: weighed, with an overflow; what isn't exchanged yet is each rank's own."""
    about, _ = case("fp16", "flush", "n_targets", True, (5,))
    cases = {"straight": about}
    for stop in STOPS:
        here = {**about, "run_dir": f"{stop}", "snapshot_every": None}
        cases |= {f"{stop}": {**here, "stop": stop}, f"{stop} again": {**here, "resume": "auto"}}
    for rank in run(forks, tmp_path, 2, cases):
        for stop in STOPS:
            assert equal(rank[f"{stop} again"]["weights"], rank["straight"]["weights"])
            assert rank[f"{stop} again"]["scaler"] == rank["straight"]["scaler"]
    proven(len(STOPS))


@pytest.mark.parametrize(("before", "after"), [(2, 1), (1, 2)])
def test_another_number_of_ranks_goes_on_with_the_sum_of_a_weighed_window(
    forks: RankForks, tmp_path: Path, before: int, after: int
) -> None:
    """C7, R51: two samples and one, or one and two, are in one window: all of their targets count alike."""
    about = {"k": 2, "lengths": FULL, "loss_weight": "n_targets", "run_dir": "run", "snapshot_every": None}
    run(forks, tmp_path, before, {"first": {**about, "stop": 1}})
    for rank in run(forks, tmp_path, after, {"then": {**about, "resume": "auto", "stop": 2}}):
        torch.manual_seed(5)
        model = Tagger()
        model.train_step(**next(iter(loader_of(FULL, 3))))["loss"].backward()
        expected = next(model.parameters()).grad
        assert expected is not None
        assert farthest(rank["then"]["update"][:1], [expected]) < 1e-6
