"""examples/distillation.py: a state between two batches, exact after a kill; a teacher that is worth its time."""

from __future__ import annotations

from pathlib import Path

import pytest

from tachograph.engine import Trainer
from tachograph.engine.testing import assert_resumes_exactly

pytest.importorskip("sklearn", reason="the digits are scikit-learn's")
from examples.distillation import build


def short(run_dir: Path | None = None) -> Trainer:
    """Two epochs of six batches."""
    return build(run_dir, n_epochs=2, validate_every="1 epoch", progress_bar=None)


def test_cut_after_any_transition_it_ends_with_the_same_bits() -> None:
    assert_resumes_exactly(short, None, at="all")


def test_killed_before_a_lesson_and_after_one_it_ends_with_the_same_bits() -> None:
    before, after = assert_resumes_exactly(short, None, at=(12, 27), kill=True)
    assert "in state 'distill'" in before.where
    assert "after Distilled" in after.where


def test_the_teacher_is_asked_after_every_second_batch_and_the_student_comes_nearer(tmp_path: Path) -> None:
    trainer = build(tmp_path, n_epochs=60, progress_bar=None)
    end = trainer.run()
    lessons = [record for record in trainer.journal if record.event == "Distilled"]
    assert [lesson.state.global_forward_batches for lesson in lessons] == list(
        range(2, end.global_forward_batches + 1, 2)
    )
    assert {(lesson.source, lesson.dest) for lesson in lessons} == {("distill", "fetch")}
    assert lessons[-1].data["distance"] < 0.3 * lessons[0].data["distance"]


def test_a_student_with_a_teacher_reads_more_than_one_without() -> None:
    taught, alone = (build(n_epochs=100, alone=alone, progress_bar=None).run() for alone in (False, True))
    assert taught.results["acc#accuracy"] > 0.85
    assert taught.results["acc#accuracy"] > alone.results["acc#accuracy"] + 0.1
