"""What every test gets: one torch thread, so that sums are added in one order, and a place for its run.

And a count of the points at which a resume was shown to be exact, which the summary says.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import settings

from tests.terminals import tmux as tmux  # the fixture, for every test that looks at a terminal

torch.set_num_threads(1)
settings.register_profile("patient", deadline=None)  # a busy machine is no fault
settings.load_profile("patient")

PROVEN = pytest.StashKey[int]()


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run directory that isn't there yet."""
    return tmp_path / "run"


@pytest.fixture
def proven(request: pytest.FixtureRequest) -> Callable[[int], None]:
    """Count points at which a run was interrupted and ended with the bits of one that wasn't."""
    return lambda points: _count(request.config, points)


def _count(config: pytest.Config, points: int) -> None:
    config.stash[PROVEN] = config.stash.get(PROVEN, 0) + points


def pytest_sessionfinish(session: pytest.Session) -> None:
    """In a worker of a parallel run, send the count home."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["proven"] = session.config.stash.get(PROVEN, 0)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: Any) -> None:
    """Take over a worker's count."""
    _count(node.config, getattr(node, "workeroutput", {}).get("proven", 0))


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Say how many points were proven."""
    points = config.stash.get(PROVEN, 0)
    if points:
        terminalreporter.write_line(f"exact resume: {points:,} points proven")
