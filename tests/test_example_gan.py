"""examples/gan.py: two states that take turns, a machine of its own; exact after a kill; forgeries get better."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
import torch

from tachograph.engine import Engine
from tachograph.engine.testing import assert_resumes_exactly

pytest.importorskip("sklearn", reason="the digits are scikit-learn's")
from examples.gan import TURNS, build, digits, frechet


def short(run_dir: Path | None = None) -> Engine:
    """Two rounds: ten lessons of the judge, two of the forger."""
    return build(run_dir, lessons=2 * TURNS)


def test_cut_after_any_transition_it_ends_with_the_same_bits() -> None:
    assert len(assert_resumes_exactly(short, None, at="all")) == 2 * (TURNS + 1) - 1


def test_killed_before_the_forgers_turn_and_after_it_it_ends_with_the_same_bits() -> None:
    before, after = assert_resumes_exactly(short, None, at=(5, 6), kill=True)
    assert "in state 'generate'" in before.where
    assert "after Forged" in after.where


def test_the_forger_has_its_turn_after_every_fifth_lesson_of_the_judge(tmp_path: Path) -> None:
    engine = build(tmp_path, lessons=5 * TURNS)
    end = engine.run()
    assert engine.journal is not None
    turns = [record.event for record in engine.journal]
    assert turns == ([*["Judged"] * TURNS, "Forged"]) * 5
    assert (end.state, end.lessons, end.seq) == ("done", 25, 30)


def test_one_learns_only_in_its_own_state() -> None:
    """Neither network moves while the other one learns."""
    engine = short()
    players = engine.driver.model
    weights = {"judge": [], "forger": []}

    def look(engine: Engine) -> None:
        for name, seen in weights.items():
            seen.append(torch.cat([p.detach().flatten().clone() for p in getattr(players, name).parameters()]))

    for transition in ("discriminate -> generate", "discriminate -> discriminate", "generate -> discriminate"):
        engine.on(transition, look)
    engine.run()
    moved = {name: [not torch.equal(a, b) for a, b in pairwise(seen)] for name, seen in weights.items()}
    assert moved["forger"] == [n == TURNS - 1 for n in range(2 * TURNS)]
    assert moved["judge"] == [n != TURNS - 1 for n in range(2 * TURNS)]


def test_the_forgeries_come_near_to_real_digits() -> None:
    engine, (_, unseen) = build(lessons=1500), digits()
    distances = []
    for run in (lambda: None, engine.run):
        run()
        distances.append(frechet(engine.driver.model.forge(2000).detach(), unseen))
    assert distances[1] < 0.2 * distances[0]
