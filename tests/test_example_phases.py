"""examples/phases.py: what is frozen in a phase is frozen again after a kill, and decides on all that follows."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tachograph.engine import Engine
from tachograph.engine.testing import assert_resumes_exactly

pytest.importorskip("sklearn", reason="the digits are scikit-learn's")
from examples.phases import build


def short(run_dir: Path | None = None) -> Engine:
    """Two cycles of three and two steps."""
    return build(run_dir, cycles=2, pretrain=3, finetune=2)


def forgetful(run_dir: Path | None = None) -> Engine:
    """The same, without what is frozen in its snapshots."""
    engine = short(run_dir)
    engine.listeners.remove_callback(engine.listeners.callbacks["Kept"])
    return engine


CYCLE = ["pretrain"] * 3 + ["freeze"] + ["finetune"] * 2 + ["score"]
STATES = [*CYCLE, "thaw", *CYCLE]


def test_cut_after_any_transition_it_ends_with_the_same_bits() -> None:
    """R57."""
    cuts = assert_resumes_exactly(short, steps=None, at="all")
    assert [cut.seq for cut in cuts] == list(range(1, len(STATES)))


def test_killed_in_either_phase_it_ends_with_the_same_bits() -> None:
    """R26."""
    assert len(assert_resumes_exactly(short, steps=None, at=(5, 10), kill=True)) == 2


def test_without_what_is_frozen_in_its_snapshots_it_would_not() -> None:
    within_pretrain, within_finetune = 2, 5
    assert_resumes_exactly(forgetful, steps=None, at=within_pretrain)
    with pytest.raises(AssertionError, match="the straight one does"):
        assert_resumes_exactly(forgetful, steps=None, at=within_finetune)


def test_the_phases_take_turns_and_the_encoder_moves_in_one_of_them_only(tmp_path: Path) -> None:
    engine = short(tmp_path / "run")
    encoder, head = engine.driver.model["encoder"], engine.driver.model["head"]
    moved: dict[str, set[tuple[bool, bool]]] = {"pretrain": set(), "finetune": set()}
    before = [encoder[0].weight.clone(), head.weight.clone()]

    def compare(engine: Engine, phase: str) -> None:
        now = [encoder[0].weight.clone(), head.weight.clone()]
        moved[phase].add(tuple(not torch.equal(*pair) for pair in zip(before, now, strict=True)))
        before[:] = now

    for phase, after in (("pretrain", "freeze"), ("finetune", "score")):
        for dest in (phase, after):
            engine.on(f"{phase} -> {dest}", lambda engine, phase=phase: compare(engine, phase))
    end = engine.run()
    assert [record.source for record in engine.journal] == STATES
    assert moved == {"pretrain": {(True, False)}, "finetune": {(False, True)}}
    assert (end.cycle, end.seq) == (2, len(STATES))
    assert [record.data["frozen"] for record in engine.journal if record.event == "Turned"] == [True, False, True]


def test_an_encoder_that_has_learned_without_labels_makes_more_of_fifty(tmp_path: Path) -> None:
    learned, new = build(tmp_path / "learned", cycles=1), build(tmp_path / "new", cycles=1, pretrain=1)
    scores = []
    for engine in (learned, new):
        engine.run()
        [scored] = [record for record in engine.journal if record.event == "Scored"]
        scores.append(scored.data["accuracy"])
    assert scores[0] > scores[1] + 0.1
    assert scores[0] > 0.7
