"""For the tests of users: what pytest finds of this package by itself, once it is installed.

Two fixtures, which are the assertions of `tachograph.engine.testing` with their runs in the test's own `tmp_path`. It
imports nothing but pytest until a test asks for one of them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def assert_deterministic(tmp_path: Path) -> Callable[..., None]:
    """Assert that equal trainers make equal runs; see `tachograph.engine.testing.assert_deterministic`."""
    from .testing import assert_deterministic as assertion

    return functools.partial(assertion, folder=tmp_path)


@pytest.fixture
def assert_resumes_exactly(tmp_path: Path) -> Callable[..., Any]:
    """Assert that a cut run ends as the straight one; see `tachograph.engine.testing.assert_resumes_exactly`."""
    from .testing import assert_resumes_exactly as assertion

    return functools.partial(assertion, folder=tmp_path)
