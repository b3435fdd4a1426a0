"""Several ranks with one model: gradients, options, wrappers, and runs that go on. Real processes over gloo."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.jobs.ddp_checks import CHECKS
from tests.jobs.ranks import RankForks


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    """Run all checks in one launch; return for each rank what went wrong with each of them."""
    out, forks = tmp_path_factory.mktemp("checks"), RankForks("tests.jobs.ddp_checks")
    ended = forks.run(2, 120, out=str(out))
    forks.close()
    assert [rank.status for rank in ended] == [0, 0], "\n".join(rank.err for rank in ended)
    return [json.loads((Path(out) / f"rank-{rank}.json").read_text()) for rank in (0, 1)]


@pytest.mark.parametrize("name", CHECKS)
def test_in_two_ranks(checked: list[dict[str, str]], name: str) -> None:
    """B9. D3. D5. D6. D9. R08. R30. T1."""
    for rank in checked:
        assert rank.get(name, "it didn't come to it") == ""
