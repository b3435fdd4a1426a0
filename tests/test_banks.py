"""Copies of the generators that data draws from: made of their memory, or by the libraries, with one outcome."""

from __future__ import annotations

import io
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from tachograph.drivers import banks, generators
from tachograph.drivers.banks import ALL, NUMPY, PYTHON, TORCH, Bank, MemoryBank
from tachograph.drivers.loaders import source_of
from tests.test_augmentation import all_sources, read, standing

DRAWS: dict[str, tuple[int, Callable[[], object]]] = {
    "torch": (TORCH, lambda: torch.rand(1)),
    "torch's normals": (TORCH, lambda: torch.randn(1)),
    "many of torch's normals": (TORCH, lambda: torch.randn(1000)),
    "double normals": (TORCH, lambda: torch.randn(1, dtype=torch.float64)),
    "a permutation": (TORCH, lambda: torch.randperm(1000)),
    "python": (PYTHON, random.random),
    "python's normals": (PYTHON, lambda: random.gauss(0, 1)),
    "python's bits": (PYTHON, lambda: random.getrandbits(20000)),
    "numpy": (NUMPY, np.random.rand),
    "numpy's normals": (NUMPY, np.random.standard_normal),
    "many of numpy": (NUMPY, lambda: np.random.rand(1000)),
    "numpy's integers": (NUMPY, lambda: np.random.randint(10)),
}


@pytest.fixture(autouse=True)
def _put_back() -> Iterator[None]:
    with generators.forked(5):
        yield


@pytest.fixture(params=["in memory", "through the libraries"])
def bank(request: pytest.FixtureRequest) -> Bank:
    found = banks.bank() if request.param == "in memory" else Bank()
    assert type(found) is (MemoryBank if request.param == "in memory" else Bank)
    return found


def test_this_interpreter_s_and_these_libraries_layouts_are_known() -> None:
    """Otherwise copies are slower, not wrong."""
    assert type(banks.bank()) is MemoryBank
    assert banks.bank() is banks.bank()


@pytest.mark.parametrize("name", DRAWS)
def test_every_draw_is_told_and_named_and_can_be_taken_back(bank: Bank, name: str) -> None:
    """Also one that gives away a normal that was kept, and moves nothing else."""
    which, draw = DRAWS[name]
    for _ in range(5):
        before = standing()
        held, mark = bank.copy(), bank.mark()
        assert bank.moved(held) == frozenset()
        draw()
        assert bank.moved(held) == {which}
        assert bank.mark() != mark
        bank.put(held)
        assert bank.moved(held) == frozenset()
        assert bank.mark() == mark
        assert standing() == before
        draw()


def test_a_seed_is_each_generator_s_own(bank: Bank) -> None:
    """torch and numpy are the same kind of generator: from one seed they would draw alike."""
    bank.seed(ALL, 0x0123456789ABCDEF)
    first = standing()
    words = torch.randint(0, 1 << 31, (8,)).tolist(), np.random.randint(0, 1 << 31, 8).tolist()
    assert not set(words[0]) & set(words[1])
    for which in (TORCH, PYTHON, NUMPY):
        bank.seed(ALL, 77)
        held = bank.copy()
        bank.seed(frozenset((which,)), 0x0123456789ABCDEF)
        assert bank.moved(held) == {which}
    bank.seed(ALL, 0x0123456789ABCDEF)
    assert standing() == first


def test_both_ways_say_the_same_of_one_another() -> None:
    memory, asked = banks.bank(), Bank()
    for name in DRAWS:
        held, truth = memory.copy(), asked.copy()
        DRAWS[name][1]()
        assert memory.moved(held) == asked.moved(truth)
        memory.put(held)
        assert asked.copy() == truth


def test_another_bit_generator_of_numpy_is_no_longer_read_in_memory() -> None:
    """A bank is asked for anew in every epoch."""
    before = np.random.get_bit_generator()  # type: ignore[attr-defined]
    held = banks.bank()
    try:
        np.random.set_bit_generator(np.random.PCG64(3))  # type: ignore[attr-defined]
        other = banks.bank()
        assert type(other) is Bank
        state = other.copy()
        first = np.random.rand(3).tolist()
        assert other.moved(state) == {NUMPY}
        other.put(state)
        assert np.random.rand(3).tolist() == first
        file = io.BytesIO()
        torch.save(generators.capture(), file)
        following = np.random.rand(3).tolist()
        file.seek(0)
        generators.restore(torch.load(file, weights_only=True))
        assert np.random.rand(3).tolist() == following
    finally:
        np.random.set_bit_generator(before)  # type: ignore[attr-defined]
    assert held.is_current()


def test_data_is_read_alike_where_memory_can_t_be_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    def draws() -> list[Any]:
        return read(source_of(DataLoader(all_sources(), batch_size=3, shuffle=True), 5, -1), 0, 1)

    in_memory = draws()
    monkeypatch.setattr(banks, "_bank", Bank())
    before = standing()
    assert draws() == in_memory
    assert standing() == before


def test_a_layout_that_is_not_what_it_was_taken_for_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is found is tried before it is used, and a wrong place shows there."""
    monkeypatch.setattr(banks, "_bank", None)
    monkeypatch.setattr(banks, "_TORCH_WORDS", 28)
    assert type(banks.bank()) is Bank
    monkeypatch.undo()
    monkeypatch.setattr(banks, "_bank", None)
    monkeypatch.setattr(banks, "_stands_trial", lambda found: False)
    assert type(banks.bank()) is Bank
