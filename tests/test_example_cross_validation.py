"""examples/cross_validation.py: an outer run whose folds are runs; killed within a fold, it goes on within it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from tachograph.engine import Engine, Journal, Trainer, diff
from tachograph.engine.testing import assert_resumes_exactly

pytest.importorskip("sklearn", reason="the digits are scikit-learn's")
from examples import cross_validation
from examples.cross_validation import build, parts

FOLDS = 3


def short(run_dir: Path | None = None) -> Engine:
    """Three folds of two epochs of 38 batches."""
    return build(run_dir, folds=FOLDS, n_epochs=2)


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir: Path = tmp_path_factory.mktemp("straight") / "run"
    short(run_dir).run()
    return run_dir


def expect_the_straight_run(run_dir: Path, straight: Path) -> None:
    """Hold the outer run and each fold's against those that nothing happened to."""
    assert diff(straight, run_dir) is None
    assert Journal(run_dir).chain == Journal(straight).chain
    for fold in range(FOLDS):
        then, now = straight / f"fold-{fold}", run_dir / f"fold-{fold}"
        assert Journal(now).chain == Journal(then).chain
        assert not list(Journal(now).sides("diverged"))
        weights, others = (torch.load(last(place), weights_only=True) for place in (then, now))
        assert all(torch.equal(weights[name], others[name]) for name in weights)


def last(run_dir: Path) -> Path:
    return max(run_dir.glob("snapshots/*")) / "model.pt"


def trained(run_dir: Path) -> list[int]:
    """How many batches each fold was trained on, those that were done twice counted twice."""
    counts = []
    for fold in range(FOLDS):
        files = (run_dir / f"fold-{fold}" / "journal" / "rank-0").glob("*.jsonl")
        counts.append(sum(file.read_text().count('"event":"Stepped"') for file in files))
    return counts


def go_on(run_dir: str, fold: int = -1, batch: int = 0, number: int = 0) -> None:
    """Run, or go on, and be struck by a signal when a fold has done a batch; its snapshots are whole by then."""
    fresh = cross_validation.build_fold

    def struck(*args: Any, **settings: Any) -> Trainer:
        trainer = fresh(*args, **settings)

        def strike(trainer: Trainer) -> None:
            if trainer.global_forward_batches == batch:
                while len(list(trainer.run_dir.glob("snapshots/*/COMMIT"))) < trainer.cur_epoch_idx:
                    time.sleep(0.01)
                os.kill(os.getpid(), number)

        if args[0] == fold:
            trainer.on("on_train_batch_end", strike)
        return trainer

    cross_validation.build_fold = struck
    short(Path(run_dir)).run(resume_from="auto")


def in_a_process(*arguments: Any) -> int:
    """Call `go_on` in a process of its own; return its status."""
    code = f"from tests.test_example_cross_validation import go_on; go_on{tuple(map(_plain, arguments))}"
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return subprocess.run([sys.executable, "-c", code], env=environ, timeout=300, check=False).returncode


def _plain(argument: Any) -> Any:
    return str(argument) if isinstance(argument, Path) else int(argument)


def test_cut_after_any_transition_it_ends_with_the_same_bits() -> None:
    """R57: without a driver an outer run has no snapshots; what was recorded is done once more, and held against it."""
    cuts = assert_resumes_exactly(short, steps=None, at="all")
    assert [cut.seq for cut in cuts] == list(range(1, 3 * FOLDS))


def test_a_fold_that_is_done_is_trained_on_nothing(straight: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    shutil.copytree(straight, run_dir)
    short(run_dir).run(resume_from="auto")
    expect_the_straight_run(run_dir, straight)
    assert trained(run_dir) == trained(straight)


@pytest.mark.parametrize(("fold", "batch"), [(0, 20), (2, 61)])
def test_killed_within_a_fold_it_goes_on_within_it_and_leaves_those_before_alone(
    straight: Path, tmp_path: Path, fold: int, batch: int
) -> None:
    """R26: what a fold was trained on since its last epoch's snapshot is done once more, and nothing else."""
    run_dir = tmp_path / "run"
    assert in_a_process(run_dir, fold, batch, signal.SIGKILL) == -signal.SIGKILL
    assert in_a_process(run_dir) == 0
    expect_the_straight_run(run_dir, straight)
    twice = [now - then for now, then in zip(trained(run_dir), trained(straight), strict=True)]
    assert twice == [batch % 38 if n == fold else 0 for n in range(FOLDS)]


def test_a_signal_stops_the_fold_in_work_and_the_outer_run_and_both_go_on(straight: Path, tmp_path: Path) -> None:
    """R11: status 143, and nothing is done twice."""
    run_dir = tmp_path / "run"
    assert in_a_process(run_dir, 1, 50, signal.SIGTERM) == 128 + signal.SIGTERM
    outer, inner = Journal(run_dir).last, Journal(run_dir / "fold-1").last
    assert (outer.source, outer.event, outer.data) == ("train_fold", "Stopped", {"reason": "SIGTERM"})
    assert (inner.event, inner.state.global_forward_batches) == ("Stopped", 50)
    assert in_a_process(run_dir) == 0
    expect_the_straight_run(run_dir, straight)
    assert trained(run_dir) == trained(straight)


def test_the_folds_share_no_sample_and_leave_none_out() -> None:
    held_out = [part.indices for _, part in (parts(fold, 5) for fold in range(5))]
    assert sorted(sample for part in held_out for sample in part) == list(range(1797))
    for fold, part in enumerate(held_out):
        assert not set(parts(fold, 5)[0].indices) & set(part)


def test_each_fold_is_begun_trained_and_scored_and_the_scores_are_those_of_its_run(straight: Path) -> None:
    journal = Journal(straight)
    assert [record.source for record in journal] == ["fold_begin", "train_fold", "score"] * FOLDS
    for fold, record in enumerate(record for record in journal if record.event == "FoldTrained"):
        assert record.data["chain"] == Journal(straight / f"fold-{fold}").chain
    scores = journal.last.state["scores"]
    results = [Journal(straight / f"fold-{fold}").last.state.results for fold in range(FOLDS)]
    assert scores == [result["acc#accuracy"] for result in results]
    assert min(scores) > 0.8  # whoever guesses has 0.1
