"""Seeds for what data draws, by where it stands: an epoch's draws are a function of (seed, epoch, place).

The place is the position in the epoch's order, and not the index, which a sampler with replacement hands out twice.
Nothing here depends on the process that reads, so the draws are the same for any number of workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from . import banks, generators

T = TypeVar("T")

_MASK = (1 << 64) - 1


def seeds(seed: int, purpose: str, epoch: int, *parts: object) -> Callable[[int], int]:
    """Return `f(place)`, the 64-bit seed of a place in an epoch.

    Args:
        seed: of the run.
        purpose: what is seeded; two purposes never share their seeds.
        epoch: its number.
        parts: what else they depend on.
    """
    base = generators.derive(seed, purpose, epoch, *parts)

    def of(place: int) -> int:  # the finalizer of SplitMix64 (Steele, Lea and Flood, 2014)
        x = (base + place * 0x9E3779B97F4A7C15) & _MASK
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB & _MASK
        return x ^ (x >> 31)

    return of


@contextmanager
def seeded(number: int) -> Iterator[None]:
    """Run the body under the three generators seeded anew, and put back what they were."""
    with kept():
        banks.bank().seed(banks.ALL, number)
        yield


@contextmanager
def kept() -> Iterator[None]:
    """Run the body, and put back what the three generators were."""
    bank = banks.bank()
    before = bank.copy()
    try:
        yield
    finally:
        bank.put(before)


class Turns:
    """Seeds for what is read one after the other and can't be read twice: a stream's items, a loader's batches.

    Every turn finds each generator in a state that is a function of (seed, epoch, turn), if it was drawn from before,
    and of (seed, epoch) if it wasn't. The first turn of an iteration is special, since a generator function does there
    what comes before its loop: whatever was drawn in first turns only stays a function of (seed, epoch), so that an
    order shuffled there is the same when the iteration is begun anew in its middle.

    Args:
        of: the seed of a turn.

    Attributes:
        done: turns taken.
        alike: the first turn is one like any other, since no generator function is read.
    """

    def __init__(self, of: Callable[[int], int]) -> None:
        self._of = of
        self.alike = False
        self.done = self._began_at = 0
        self._first: frozenset[int] = frozenset()
        self._drawn: frozenset[int] = frozenset()

    def begin(self, begin: Callable[[], T]) -> T:
        """Call what begins an iteration, under seeds of its own."""
        banks.bank().seed(banks.ALL, self._of(-1))
        self._began_at = self.done
        return begin()

    def take(self, turn: Callable[[], T]) -> T:
        """Call what reads the next one. The generators are left where it left them; see `kept`."""
        bank, first = banks.bank(), self.done == self._began_at
        if first and self.done == 1:
            self._drawn |= self._first  # nobody can tell yet: it's taken for an item's
        seeded = self._drawn if first and not self.alike else self._drawn | self._first
        bank.seed(seeded, self._of(self.done))
        bank.seed(banks.ALL - seeded, self._of(-2))
        before = bank.copy()
        made = turn()
        moved = bank.moved(before)
        if first and self.done == 0:
            self._first |= moved
        else:
            self._drawn |= moved - self._first if first else moved
        self.done += 1
        return made

    def state(self) -> list[Any]:
        """Return what `load` takes, as plain data."""
        return [self.done, sorted(self._first), sorted(self._drawn)]

    def load(self, state: list[Any]) -> None:
        """Go on where `state` was taken; before `begin`, or after it and before the first turn."""
        self.done, first, drawn = state
        self._began_at = self.done
        self._first, self._drawn = frozenset(first), frozenset(drawn)
