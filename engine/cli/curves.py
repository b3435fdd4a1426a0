"""Curves in plain characters, of a series that may be endless: it is thinned as it grows, so memory stays the same."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import attrs

_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
"""Of a braille character, by row and column."""
_WIDE = 100.0
"""Largest over smallest value from which a curve is drawn on a logarithmic scale."""


@attrs.define
class Span:
    """A few neighbouring values of a series, as one.

    Attributes:
        first, last: where they lie.
        total: their sum.
        n: how many there are.
    """

    first: int
    last: int
    total: float
    n: int

    @property
    def mean(self) -> float:
        return self.total / self.n


class Curve:
    """A series of values, of which at most `most` spans are kept; when they are full, neighbours become one.

    Args:
        most: spans, even.

    Attributes:
        value: the last one, finite or not; None before the first.
        low, high: the least and the greatest of the finite values.
        not_finite: how many were NaN or infinite.
        first_not_finite: where the first of these was; None without one.
    """

    def __init__(self, most: int = 512) -> None:
        self.value: float | None = None
        self.low, self.high = math.inf, -math.inf
        self.not_finite = 0
        self.first_not_finite: int | None = None
        self._most = most
        self._each = 1
        self._spans: list[Span] = []

    def add(self, at: int, value: float) -> None:
        """Add a value behind the last one."""
        self.value = value
        if not math.isfinite(value):
            self.not_finite += 1
            self.first_not_finite = at if self.first_not_finite is None else self.first_not_finite
            return
        self.low, self.high = min(self.low, value), max(self.high, value)
        spans = self._spans
        if spans and spans[-1].n < self._each:
            last = spans[-1]
            last.last, last.total, last.n = at, last.total + value, last.n + 1
            return
        if len(spans) >= self._most:
            self._spans = spans = [_joined(a, b) for a, b in zip(spans[::2], spans[1::2], strict=True)]
            self._each *= 2
        spans.append(Span(at, at, value, 1))

    def cut(self, at: int) -> None:
        """Forget what lies behind a point: a run went on from there. Spans that reach over it are shortened."""
        while self._spans and self._spans[-1].first > at:
            self._spans.pop()
        if self._spans:
            self._spans[-1].last = min(self._spans[-1].last, at)
        if self.first_not_finite is not None and self.first_not_finite > at:
            self.not_finite, self.first_not_finite = 0, None

    def __len__(self) -> int:
        return len(self._spans)

    def columns(self, n: int) -> list[float | None]:
        """Return the means in `n` equal parts of the way from the first value to the last; None where there is none."""
        if not self._spans:
            return [None] * n
        first, last = self._spans[0].first, self._spans[-1].last
        n_spans, width = len(self._spans), max(last - first, 1)
        totals, counts = [0.0] * n, [0] * n
        for span in self._spans:
            at = min(int((((span.first + span.last) / 2) - first) / width * n), n - 1) if n_spans > 1 else 0
            totals[at] += span.total
            counts[at] += span.n
        return [total / count if count else None for total, count in zip(totals, counts, strict=True)]


def _joined(a: Span, b: Span) -> Span:
    return Span(a.first, b.last, a.total + b.total, a.n + b.n)


# -- drawing -----------------------------------------------------------------------------------------------


def draw(values: Sequence[float | None], rows: int, *, plain: bool) -> tuple[list[str], float, float]:
    """Draw values, one for each column of dots.

    Args:
        values: from left to right; gaps are bridged. Two for each character, or one with `plain`.
        rows: characters high.
        plain: ASCII only, with one dot a character; else braille, with two columns and four rows of them.

    Returns:
        (lines, the value at the bottom, that at the top).
    """
    held = [value for value in values if value is not None]
    if not held:
        return [""] * rows, 0.0, 0.0
    low, high = min(held), max(held)
    levels = rows if plain else rows * 4
    heights = list(_heights(values, low, high, levels))
    return (_in_ascii if plain else _in_braille)(heights, rows), low, high


def is_logarithmic(low: float, high: float) -> bool:
    """Say whether values between these are drawn on a logarithmic scale."""
    return low > 0 and high / low > _WIDE


def _heights(values: Sequence[float | None], low: float, high: float, levels: int) -> Iterator[int | None]:
    scale = math.log if is_logarithmic(low, high) else float
    bottom, top = scale(low), scale(high)
    for value in values:
        if value is None:
            yield None
        elif top == bottom:
            yield levels // 2
        else:
            yield min(int((scale(value) - bottom) / (top - bottom) * levels), levels - 1)


def _strokes(heights: Sequence[int | None]) -> Iterator[tuple[int, int, int]]:
    """Yield (column, lowest level, highest level) of a line through all heights."""
    before: tuple[int, int] | None = None
    for column, height in enumerate(heights):
        if height is None:
            continue
        if before is None:
            yield column, height, height
        else:
            start, level = before
            for between in range(start + 1, column):
                at = round(level + (height - level) * (between - start) / (column - start))
                yield between, at, at
            last = level if column == start + 1 else height
            low, high = sorted((last, height))
            yield column, (low + 1 if last < height and low < high else low), (high - 1 if last > height else high)
        before = column, height


def _in_braille(heights: Sequence[int | None], rows: int) -> list[str]:
    cells = [[0] * -(-len(heights) // 2) for _ in range(rows)]
    for column, low, high in _strokes(heights):
        for level in range(min(low, high), max(low, high) + 1):
            from_top = rows * 4 - 1 - level
            cells[from_top // 4][column // 2] |= _DOTS[from_top % 4][column % 2]
    return ["".join(chr(0x2800 + cell) for cell in row) for row in cells]


def _in_ascii(heights: Sequence[int | None], rows: int) -> list[str]:
    cells = [[" "] * len(heights) for _ in range(rows)]
    for column, low, high in _strokes(heights):
        for level in range(min(low, high), max(low, high) + 1):
            cells[rows - 1 - level][column] = ":"
        height = heights[column]
        cells[rows - 1 - (low if height is None else height)][column] = "*"
    return ["".join(row).rstrip() for row in cells]


__all__ = ["Curve", "Span", "draw", "is_logarithmic"]
