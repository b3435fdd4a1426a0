"""The three generators that data sets draw from (torch's on the CPU, Python's, numpy's), copied and put back cheaply.

Whoever reads data asks for them before and after every batch, so a copy must cost no more than its bytes. All three are
Mersenne twisters of 624 words, and `MemoryBank` copies these where they lie. Where they lie is found out, then tried
against the libraries' own functions; where a trial fails, `Bank` does the same through those functions, only slower.
"""

from __future__ import annotations

import ctypes
import itertools
import pickle
import random
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from . import generators

TORCH, PYTHON, NUMPY = range(3)
ALL = frozenset((TORCH, PYTHON, NUMPY))
_STATE = 4 * 624  # bytes of a twister's words
_HEAD = 32  # bytes of them that tell a twist or a reseeding


class Bank:
    """The three generators, by number: `TORCH`, `PYTHON`, `NUMPY`."""

    def copy(self) -> Any:
        """Return the whole states; a later copy is equal to it if and only if nothing was drawn or set in between."""
        numpy = pickle.dumps(np.random.get_state(legacy=False))
        return torch.default_generator.get_state().numpy().tobytes(), random.getstate(), numpy

    def mark(self) -> Any:
        """Return a value that is another one after every draw, reseeding or setting; cheaper than a copy."""
        return self.copy()

    def put(self, state: Any) -> None:
        """Put back what `copy` returned."""
        raw, python, numpy = state
        torch.default_generator.set_state(torch.frombuffer(bytearray(raw), dtype=torch.uint8))
        random.setstate(python)
        np.random.set_state(pickle.loads(numpy))

    def moved(self, state: Any) -> frozenset[int]:
        """Name the generators that aren't where `state` has them."""
        return frozenset(i for i, (now, then) in enumerate(zip(self.copy(), state, strict=True)) if now != then)

    def seed(self, which: Any, number: int) -> None:
        """Seed some of the generators.

        Args:
            which: their numbers.
            number: 64 bits. torch takes its lower half and numpy its upper one, since they'd draw alike from one seed.
        """
        if TORCH in which:
            torch.default_generator.manual_seed(number)
        if PYTHON in which:
            random.seed(number)
        if NUMPY in which:
            np.random.seed(number >> 32)

    def is_current(self) -> bool:
        """Say whether the libraries still use the generators that this bank was made for."""
        return True


class MemoryBank(Bank):
    """The same, with copies made of the generators' memory.

    Args:
        torch_at: where torch keeps seed, position, words and cached normals.
        python_at: where Python keeps position and words; its cached normal is an attribute.
        numpy_at: where numpy keeps words and position.
        gauss_at: where numpy keeps its cached normal.
        owners: the objects that memory belongs to.
    """

    def __init__(self, torch_at: int, python_at: int, numpy_at: int, gauss_at: int, owners: Any) -> None:
        places = ((torch_at, _TORCH_SIZE), (python_at, 4 + _STATE), (numpy_at, _STATE + 4), (gauss_at, 16))
        self._owners = owners
        self._source: Any = owners[-1]
        self._views = [_view(address, size) for address, size in places]
        self._ends = list(itertools.accumulate(size for _, size in places))
        tell_tale = (
            _view(torch_at, _TORCH_WORDS + _HEAD),
            _view(torch_at + _TORCH_WORDS + _STATE, _TORCH_SIZE - _TORCH_WORDS - _STATE),
            _view(python_at, 4 + _HEAD),
            _view(numpy_at + _STATE - _HEAD, _HEAD + 4),
            _view(gauss_at, 16),
        )
        join, source = b"".join, self._source
        self.mark = lambda: (join(tell_tale), source.gauss_next)  # type: ignore[method-assign]

    def copy(self) -> Any:
        return b"".join(self._views), self._source.gauss_next

    def put(self, state: Any) -> None:
        raw, gauss = state
        held, start = memoryview(raw), 0
        for view, end in zip(self._views, self._ends, strict=True):
            view[:] = held[start:end]
            start = end
        self._source.gauss_next = gauss

    def moved(self, state: Any) -> frozenset[int]:
        (raw, gauss), (then, gauss_then) = self.copy(), state
        a, b = self._ends[:2]
        moved = set()
        if raw[:a] != then[:a]:
            moved.add(TORCH)
        if raw[a:b] != then[a:b] or gauss != gauss_then:
            moved.add(PYTHON)
        if raw[b:] != then[b:]:
            moved.add(NUMPY)
        return frozenset(moved)

    def is_current(self) -> bool:
        return self._owners[1] is np.random.get_bit_generator()  # type: ignore[attr-defined,no-any-return]


_bank: Bank | None = None


def bank() -> Bank:
    """Return this process's bank; the one there was, as long as the libraries use the same generators."""
    global _bank
    if _bank is None or not _bank.is_current():
        _bank = _in_memory() or Bank()
    return _bank


# -- finding the memory ------------------------------------------------------------------------------------

_TORCH_WORDS = 20  # before the words: seed (8 bytes), words left (4), seeded (4), next word (4)
_TORCH_SIZE = _TORCH_WORDS + _STATE + 28  # behind them: 4 of padding, a float and its flag (8), a double and its (16)


def _view(address: int, size: int) -> memoryview:
    return memoryview((ctypes.c_char * size).from_address(address)).cast("B")


def _in_memory() -> Bank | None:
    with generators.forked():
        try:
            found = _found()
        except Exception:  # another release's layout or names: nothing has been written
            return None
        return found if found is not None and _stands_trial(found) else None


def _found() -> MemoryBank | None:
    """Find the memory by values that the libraries say are there; only reads."""
    source: Any = random._inst  # type: ignore[attr-defined]
    python_at = id(source) + object.__basicsize__
    words = random.getstate()[1]
    fits = source.__sizeof__() >= object.__basicsize__ + 4 + _STATE
    if not fits or ctypes.string_at(python_at, 4 + _STATE) != struct.pack("=625I", words[-1], *words[:-1]):
        return None
    held, legacy = np.random.get_bit_generator(), np.random.mtrand._rand  # type: ignore[attr-defined]
    numpy_at = held.ctypes.state_address
    np.random.set_state(("MT19937", np.arange(1, 625, dtype=np.uint32), 5, 1, _MAGIC))
    if ctypes.string_at(numpy_at, _STATE + 4) != struct.pack("=625I", *range(1, 625), 5):
        return None
    object_bytes = ctypes.string_at(id(legacy), type(legacy).__basicsize__)
    gauss_at = id(legacy) + object_bytes.index(struct.pack("=d", _MAGIC)) - 8
    if object_bytes[gauss_at - id(legacy)] != 1:
        return None
    torch_at = _torch_at()
    return None if torch_at is None else MemoryBank(torch_at, python_at, numpy_at, gauss_at, (legacy, held, source))


_MAGIC = 0.12345678912345678


def _torch_at() -> int | None:
    generator: Any = torch.default_generator
    address = generator._cdata
    generator.manual_seed(123456789)
    torch.randn(1)  # leaves a normal behind
    state = generator.get_state().numpy()
    words = state[24 : 24 + 8 * 624].view(np.uint64).astype("=u4").tobytes()
    at = ctypes.string_at(address, _STATE).find(words[:_HEAD])  # the object is larger than its words
    if at < _TORCH_WORDS or ctypes.string_at(address + at, _STATE) != words:
        return None
    seed, left, _, following = struct.unpack("=QiII", ctypes.string_at(address + at - _TORCH_WORDS, _TORCH_WORDS))
    told = struct.unpack("=Qi", state[:12].tobytes()), int(state[16:24].view(np.uint64)[0])
    normal, flag = struct.unpack("=d?", ctypes.string_at(address + at + _STATE + 12, 9))
    cached = struct.unpack("=d", state[24 + 8 * 624 + 8 : 24 + 8 * 624 + 16].tobytes())[0]
    known = ((seed, left), following) == told and flag and normal == cached
    return address + at - _TORCH_WORDS if known else None


def _stands_trial(found: Bank) -> bool:
    """Whether copies tell every draw, and what was put back is what the libraries say was there."""
    asked = Bank()
    draws: tuple[Callable[[], object], ...] = (
        lambda: (torch.randn(1), torch.rand(700), torch.empty(1).log_normal_()),
        lambda: ([random.random() for _ in range(700)], random.gauss(0, 1)),
        lambda: (np.random.rand(700), np.random.standard_normal()),
    )
    for turn in range(4):
        asked.seed(ALL, 0x123456789ABCDEF + turn)
        for draw in draws[: turn + 1]:
            draw()
        truth, held = asked.copy(), found.copy()
        if found.moved(held) or found.copy() != held:
            return False
        for i, draw in enumerate(draws):
            mark = found.mark()
            draw()
            if i not in found.moved(held) or found.mark() == mark:
                return False
        found.put(held)
        if asked.copy() != truth or found.moved(held):
            return False
    return True
