"""The generators' capture, forks, and the digest that is taken of them at every step."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import numpy as np
import pytest
import torch

from tachograph.drivers import generators

CPU = torch.device("cpu")
DRAWS: dict[str, Callable[[], object]] = {
    "torch": lambda: torch.rand(1),
    "python": random.random,
    "numpy": np.random.random,
}


@pytest.fixture(autouse=True)
def _seeded() -> None:
    generators.seed_all(5)


@pytest.mark.parametrize("name", DRAWS)
def test_every_single_draw_moves_the_digest(name: str) -> None:
    read, draw = generators.digest_reader(True, CPU), DRAWS[name]
    seen = [read()]
    for _ in range(1500):  # more than two blocks of the Mersenne twister
        draw()
        seen.append(read())
    assert all(a != b for a, b in itertools.pairwise(seen))


@pytest.mark.parametrize("name", DRAWS)
def test_memory_is_read_where_the_whole_state_says_it_is(name: str) -> None:
    """Either way the same bytes: a process that can't read them there has the same digests."""
    read = {"torch": generators._torch, "python": generators._python, "numpy": generators._numpy}[name]()
    assert "_fast" in read.__qualname__, "this interpreter's or library's layout isn't known: slower, not wrong"


def test_equal_seeds_give_equal_digests_and_other_seeds_others() -> None:
    read = generators.digest_reader(True, CPU)
    first = read()
    generators.seed_all(6)
    other = read()
    generators.seed_all(5)
    assert first == read() != other


def test_a_run_that_seeded_nothing_looks_at_torch_only() -> None:
    read = generators.digest_reader(False, CPU)
    before = read()
    random.random()
    np.random.random()
    assert read() == before
    torch.rand(1)
    assert read() != before


def test_the_digest_draws_nothing_itself() -> None:
    before = [draw() for draw in DRAWS.values()]
    generators.seed_all(5)
    generators.digest_reader(True, CPU)()
    assert before == [draw() for draw in DRAWS.values()]


def test_what_is_captured_comes_back_and_a_fork_leaves_no_trace() -> None:
    """R19 R29: the same next hundred numbers of each generator."""

    def hundred() -> list[object]:
        torch.randn(1)  # leaves a cached normal behind
        random.gauss(0, 1)
        np.random.standard_normal()
        return [[float(draw()) for _ in range(100)] for draw in DRAWS.values()]  # type: ignore[arg-type]

    held = generators.capture()
    expected = hundred()
    generators.restore(held)
    with generators.forked(99):
        hundred()
    with generators.forked():
        assert hundred() == expected
    assert hundred() == expected


def test_derived_seeds_differ_by_their_purpose() -> None:
    seeds = {generators.derive(1, purpose, epoch) for purpose in ("order", "workers") for epoch in range(100)}
    assert len(seeds) == 200
    assert all(0 <= seed < 1 << 63 for seed in seeds)
