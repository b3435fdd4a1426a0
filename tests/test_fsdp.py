"""A model in shares over several ranks: gradients, optimizers, precision, snapshots, exact resume, export.

Real processes over gloo on the CPU. What a snapshot's files hold is looked at in this process: it takes no ranks.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tachograph.drivers import RestoreFault, choose_driver, piece_files
from tachograph.drivers.pieces import Piece, Share, paths_in, put_in, taken_out
from tachograph.drivers.plain_models import read_model
from tachograph.drivers.units import units_of
from tachograph.engine import Journal
from tachograph.engine.snapshots import catalogue
from tachograph.states.errors import CallerError
from tests.jobs.exact_job import differences
from tests.jobs.fsdp_checks import CHECKS
from tests.jobs.fsdp_job import Block, Net
from tests.jobs.ranks import RankForks
from tests.test_cli_support import cli

LATER = ("entered", "seen")  # what differs in a resumed process


@pytest.fixture(scope="module")
def forks() -> Iterator[RankForks]:
    forks = RankForks("tests.jobs.fsdp_job")
    yield forks
    forks.close()


def run(forks: RankForks, folder: Path, world: int = 2, **job: Any) -> list[Any]:
    """Train to the end; return each rank's outcome."""
    out = folder / "out"
    out.mkdir(parents=True, exist_ok=True)
    ended = forks.run(world, do="train", run_dir=str(folder / "run"), out=str(out), **job)
    assert [rank.status for rank in ended] == [0] * world, "\n".join(rank.err for rank in ended)
    return [torch.load(out / f"rank-{rank}.pt", weights_only=True) for rank in range(world)]


def kill(forks: RankForks, folder: Path, seq: int, world: int = 2, **job: Any) -> None:
    killed = forks.run(world, do="train", run_dir=str(folder / "run"), kill_at=seq, **job)
    assert [rank.status for rank in killed] == [-signal.SIGKILL] * world, "\n".join(rank.err for rank in killed)


def expect_equal(straight: list[Any], resumed: list[Any]) -> None:
    for before, after in zip(straight, resumed, strict=True):
        held = [{key: value for key, value in one.items() if key not in LATER} for one in (before, after)]
        assert not differences(*held)


# -- what the driver does, check by check ------------------------------------------------------------------


def checked(forks: RankForks, folder: Path, world: int, names: list[str]) -> list[dict[str, str]]:
    """Run checks in one launch; return for each rank what went wrong with each of them."""
    out, work = folder / "out", folder / "work"
    for path in (out, work):
        path.mkdir(parents=True)
    ended = forks.run(world, do="check", checks=names, out=str(out), folder=str(work))
    assert [rank.status for rank in ended] == [0] * world, "\n".join(rank.err for rank in ended)
    return [json.loads((out / f"rank-{rank}.json").read_text()) for rank in range(world)]


@pytest.fixture(scope="module")
def two_ranks(forks: RankForks, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    return checked(forks, tmp_path_factory.mktemp("checks"), 2, CHECKS)


@pytest.mark.parametrize("name", CHECKS)
def test_in_two_ranks(two_ranks: list[dict[str, str]], name: str) -> None:
    """D13."""
    for rank in two_ranks:
        assert rank.get(name, "it didn't come to it") == ""


@pytest.mark.sweep
@pytest.mark.parametrize("name", CHECKS)
def test_in_four_ranks(forks: RankForks, tmp_path: Path, name: str) -> None:
    """D13."""
    assert checked(forks, tmp_path, 4, [name]) == [{name: ""}] * 4


# -- a run -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def straight(forks: RankForks, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[Path, list[Any]]]:
    done: dict[str, tuple[Path, list[Any]]] = {}

    def straight(**job: Any) -> tuple[Path, list[Any]]:
        key = str(job)
        if key not in done:
            folder = tmp_path_factory.mktemp("straight")
            done[key] = folder, run(forks, folder, **job)
        return done[key]

    return straight


WAYS: list[tuple[int, dict[str, Any]]] = [
    (16, {"accumulation": 3}),  # the snapshot before it is of an open window
    (16, {"precision": "fp16", "accumulation": 3, "workers": 2}),
]
MORE = [(seq, {"accumulation": n, "precision": p}) for n in (1, 2, 3) for p in (None, "bf16") for seq in (15, 25, 31)]
FOUR: list[tuple[int, dict[str, Any]]] = [
    (16, {"accumulation": 3, "world": 4, "n": 40, "norm": False}),
    (16, {"accumulation": 3, "world": 4, "n": 40, "norm": False, "mesh": (2, 2)}),
]


@pytest.mark.parametrize(
    ("seq", "job"), [*WAYS, *(pytest.param(*way, marks=pytest.mark.sweep) for way in (*MORE, *FOUR))], ids=str
)
def test_ranks_that_were_killed_end_with_the_same_bits(
    forks: RankForks, straight: Callable[..., Any], tmp_path: Path, seq: int, job: dict[str, Any]
) -> None:
    """D13. R46."""
    _, ended = straight(**job)
    assert not differences(ended[0]["weights"], ended[1]["weights"])
    kill(forks, tmp_path, seq, **job)
    resumed = run(forks, tmp_path, foreign=seq, **job)
    assert resumed[0]["entered"]
    expect_equal(ended, resumed)
    assert ended[0]["mesh"] == list(job.get("mesh", [len(ended)]))
    for rank in range(len(ended)):
        assert "diverged" not in [side.kind for side in Journal(tmp_path / "run", rank=rank).sides()]


@pytest.mark.parametrize(
    ("before", "after"),
    [(2, 1), *(pytest.param(*pair, marks=pytest.mark.sweep) for pair in ((2, 4), (4, 2), (1, 2), (4, 1)))],
)
def test_a_run_goes_on_with_another_number_of_ranks(
    forks: RankForks, straight: Callable[..., Any], tmp_path: Path, before: int, after: int
) -> None:
    """D13."""
    job = {"accumulation": 3, "n": 40, "norm": False}
    kill(forks, tmp_path, 16, before, **job)
    ended = run(forks, tmp_path, after, **job)
    saved = {s.seq: s.path for s in catalogue(tmp_path / "run")[0]}
    for rank in ended:
        assert rank["entered"]["seq"] > 0
        held = read_model(saved[rank["entered"]["seq"]] / "model.pt")
        assert not differences(rank["entered"]["weights"], held)
    assert ended[0]["state"]["samples"] == 80


def test_a_snapshot_gives_the_weights_of_a_plain_model(straight: Callable[..., Any], tmp_path: Path) -> None:
    folder, ended = straight(**WAYS[0][1])
    newest = catalogue(folder / "run")[0][-1]
    model = Net()
    model.load_state_dict(read_model(newest.path / "model.pt"))
    assert list(model.state_dict()) == list(Net().state_dict())
    assert not differences(dict(model.state_dict()), ended[0]["weights"])
    driver = choose_driver("torch", Net())
    driver.load_model(newest.path / "model.pt")
    assert not differences(driver.weights(), ended[0]["weights"])
    assert cli("snapshots", "export", str(folder / "run"), "-o", str(tmp_path / "model.pt")).status == 0
    assert not differences(dict(torch.load(tmp_path / "model.pt", weights_only=True)), ended[0]["weights"])


@pytest.mark.parametrize("kept", ["memory", pytest.param("file", marks=pytest.mark.sweep)])
def test_the_best_weights_are_written_whole_and_come_back(forks: RankForks, tmp_path: Path, kept: str) -> None:
    ended = run(forks, tmp_path, models=str(tmp_path / "models"), kept=kept)
    (best,) = (tmp_path / "models").rglob("*loss_*/model.pt")
    for rank in ended:
        assert not differences(dict(torch.load(best, weights_only=True)), rank["weights"])


def test_a_share_that_was_damaged_is_found(straight: Callable[..., Any], tmp_path: Path) -> None:
    folder, _ = straight(**WAYS[0][1])
    newest = catalogue(folder / "run")[0][-1]
    copied = tmp_path / "run" / "snapshots" / newest.path.name
    shutil.copytree(newest.path, copied)
    shares = copied / "__1_0.distcp"
    raw = bytearray(shares.read_bytes())
    raw[len(raw) // 2] ^= 1
    shares.write_bytes(raw)
    assert newest.fault() == ""
    assert "__1_0.distcp isn't what was written" in catalogue(tmp_path / "run")[0][-1].fault()


# -- the files of a snapshot -------------------------------------------------------------------------------

WHOLE = {"a": torch.randn(7, 3), "b/c": torch.arange(3.0), "d": torch.arange(20).reshape(2, 10).to(torch.bfloat16)}


def cut(share: Share) -> dict[str, Piece]:
    pieces = {path: Piece.empty(tuple(t.shape), t.dtype, 0, share) for path, t in WHOLE.items()}
    for path, piece in pieces.items():
        piece.values.copy_(WHOLE[path].narrow(0, piece.start if len(piece.values) else 0, len(piece.values)))
    return pieces


@pytest.mark.parametrize("before", [1, 2, 4, 8])
@pytest.mark.parametrize("after", [1, 2, 3, 4, 8])
def test_what_some_ranks_wrote_any_number_of_ranks_reads(tmp_path: Path, before: int, after: int) -> None:
    for rank in range(before):
        files = piece_files.write(cut(Share(rank, before)), tmp_path, rank)
        assert {name: (tmp_path / name).stat().st_size for name in files} == {n: size for n, (size, _) in files.items()}
    for rank in range(after):
        share = Share(rank, after)
        read, expected = piece_files.read(tmp_path, WHOLE, share, before), cut(share)
        for path in WHOLE:
            assert torch.equal(read[path].values, expected[path].values)


def test_of_several_copies_of_a_share_one_is_written(tmp_path: Path) -> None:
    for rank in range(4):
        piece_files.write(cut(Share(rank % 2, 2, first=rank < 2)), tmp_path, rank)
    sizes = [(tmp_path / f"__{rank}_0.distcp").stat().st_size for rank in range(4)]
    assert sizes[2:] == [0, 0]
    assert 0 not in sizes[:2]
    read = piece_files.read(tmp_path, WHOLE, Share(), 4)
    assert all(torch.equal(read[path].values, WHOLE[path]) for path in WHOLE)


def test_pieces_that_are_missing_are_named(tmp_path: Path) -> None:
    piece_files.write(cut(Share(0, 2)), tmp_path, 0)
    with pytest.raises(RestoreFault, match=r"no pieces-1\.pt: a rank's part of it is missing"):
        piece_files.read(tmp_path, WHOLE, Share(), 2)
    with pytest.raises(RestoreFault, match=r"holds 12 of the 21 values of 'a': pieces of it are missing"):
        piece_files.read(tmp_path, WHOLE, Share(), 1)
    with pytest.raises(RestoreFault, match="speaks of 'x', and no rank wrote a piece of it"):
        piece_files.read(tmp_path, ["x"], Share(), 1)


def test_a_disk_that_is_full_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, data: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("tachograph.drivers.hashing.os.write", full)
    with pytest.raises(OSError, match="No space left"):
        piece_files.write(cut(Share()), tmp_path, 0)


def test_pieces_are_taken_out_of_a_tree_and_put_in_again() -> None:
    pieces = cut(Share())
    tree = {"model": {"w": pieces["a"], "n": 3}, "more": [1, (pieces["d"], None)]}
    rest, found = taken_out(tree)
    assert sorted(paths_in(rest)) == sorted(found) == ["model/w", "more/1/0"]
    again = put_in(rest, {path: piece.values for path, piece in found.items()})
    assert not differences(again, {"model": {"w": WHOLE["a"], "n": 3}, "more": [1, (WHOLE["d"], None)]})


# -- units -------------------------------------------------------------------------------------------------


class Tied(nn.Module):
    """A block and its head share a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])
        self.head = nn.Linear(3, 3)
        self.head.weight = self.blocks[0].weight  # type: ignore[assignment]


def names(model: nn.Module, policy: Any = None) -> list[str]:
    named = {module: name for name, module in model.named_modules()}
    return [named[unit] for unit in units_of(model, policy)]


def test_units_are_the_blocks_unless_a_policy_says_otherwise() -> None:
    model = Net()
    assert names(model) == ["blocks.1", "blocks.0"]
    assert names(model, {nn.Linear}) == ["outer", "blocks.1.linear", "blocks.0.linear", "inner"]
    assert names(model, (Block, nn.BatchNorm1d)) == ["blocks.1", "blocks.0", "norm"]
    assert names(model, lambda module: isinstance(module, Block)) == ["blocks.1", "blocks.0"]
    large = nn.Sequential(nn.Linear(1000, 1000), nn.Linear(1000, 1))
    assert names(large) == ["0"]


def test_modules_that_share_a_parameter_are_never_parted() -> None:
    assert names(Tied()) == ["blocks.1"]
    with pytest.raises(CallerError, match=r"whose 'weight' is 'head\.weight' too: shared parameters"):
        units_of(Tied(), {nn.Linear})


def test_policies_that_choose_nothing_are_refused() -> None:
    with pytest.raises(CallerError, match=r"chooses no module of the model with parameters; it has BatchNorm1d, Block"):
        units_of(Net(), {nn.Conv2d})
    with pytest.raises(CallerError, match=r"wrap_policy must be module classes, or a function of a module, not 3"):
        units_of(Net(), 3)
