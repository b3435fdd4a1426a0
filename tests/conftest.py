"""What every test gets: one torch thread, so that sums are added in one order, and a place for its run."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("patient", deadline=None)  # a busy machine is no fault
settings.load_profile("patient")


@pytest.fixture
def run_dir(tmp_path: Path) -> Path:
    """A run directory that isn't there yet."""
    return tmp_path / "run"
