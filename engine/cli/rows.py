"""Rows of a table that may be long: the first and the last ones are kept, and how many there were."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

T = TypeVar("T")
U = TypeVar("U")


class Rows(Generic[T]):
    """The first and the last rows of a table that may be long.

    Args:
        most: how many are kept; None for all.

    Attributes:
        first: the first ones.
        last: the last ones.
        count: how many there were.
    """

    def __init__(self, most: int | None = None) -> None:
        head = 0 if most is None else most // 4
        self.first: list[T] = []
        self.last: deque[T] = deque(maxlen=None if most is None else most - head)
        self.count = 0
        self._head = head

    def add(self, row: T) -> None:
        """Add a row."""
        self.count += 1
        if len(self.first) < self._head:
            self.first.append(row)
        else:
            self.last.append(row)

    def map(self, f: Callable[[T], U]) -> Rows[U]:
        """Return the same rows, each as `f` gives it."""
        new: Rows[U] = Rows()
        new.first, new.last, new.count = [f(row) for row in self.first], deque(f(row) for row in self.last), self.count
        return new

    @property
    def omitted(self) -> int:
        """How many were let go, between the first and the last ones."""
        return self.count - len(self.first) - len(self.last)

    def __iter__(self) -> Iterator[T]:
        yield from self.first
        yield from self.last

    def __len__(self) -> int:
        return len(self.first) + len(self.last)
