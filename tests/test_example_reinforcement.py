"""examples/reinforcement.py: a machine of one's own, whose environment goes on where a kill has struck."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tachograph.engine import Engine
from tachograph.engine.testing import assert_resumes_exactly

pytest.importorskip("gymnasium", reason="the pole is gymnasium's: pip install gymnasium")
from examples.reinforcement import MACHINE, Pole, build


def short(run_dir: Path | None = None) -> Engine:
    """Four rounds of 50 steps: several episodes end in them, and most rounds end within one."""
    return build(run_dir, limit=4, steps=50)


def test_cut_after_any_transition_it_ends_with_the_same_bits() -> None:
    """R57: in *learn* what was collected is in hand; in *collect* an episode is under way."""
    cuts = assert_resumes_exactly(short, steps=None, at="all")
    assert [cut.seq for cut in cuts] == list(range(1, 8))


def test_killed_in_either_state_it_ends_with_the_same_bits() -> None:
    """R26."""
    assert len(assert_resumes_exactly(short, steps=None, at=(3, 6), kill=True)) == 2


def test_the_environment_goes_on_within_an_episode_and_with_its_generator() -> None:
    pole, other = Pole(), Pole()
    pole.reset(seed=1)
    for n in range(13):
        pole.play(n % 2)
    other.load_state_dict(pole.state_dict())
    ended = 0
    for n in range(100):
        (after, fell, stood), again = pole.play(n % 3 % 2), other.play(n % 3 % 2)
        assert torch.equal(after, again[0])
        assert (fell, stood) == again[1:]
        ended += fell
    assert ended > 1


def test_collect_and_learn_take_turns_and_every_step_is_counted(tmp_path: Path) -> None:
    heard: list[str] = []
    engine = short(tmp_path / "run")
    for way in ("collect -> learn", "learn -> collect", "learn -> done"):
        engine.on(way, lambda engine, way=way: heard.append(way))
    end = engine.run()
    assert heard == ["collect -> learn", "learn -> collect"] * 3 + ["collect -> learn", "learn -> done"]
    lengths = [n for record in engine.journal if record.event == "Collected" for n in record.data["lengths"]]
    [kept] = engine.listeners.callbacks["Kept"].things.values()
    assert sum(lengths) + kept.stood == 4 * 50
    assert (end.rounds, end.recent) == (4, tuple(lengths))
    assert engine.batch is None
    assert MACHINE.legal("learn") == ["Learned", "Stopped", "Failed"]


def test_the_pole_stands_longer_and_longer(tmp_path: Path) -> None:
    engine = build(tmp_path / "run", limit=25)
    stood: list[Any] = []
    engine.on("collect -> learn", lambda engine: stood.append(engine.trainer_state.recent))
    engine.run()
    assert sum(stood[-1]) > 5 * sum(stood[0])
    assert sum(stood[-1]) / 20 > 100
