"""Where the chains of two journals part: found by bisection, since where they agree, all before agrees as well."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

import attrs

from tachograph.states.table import FINAL

from ..journal import Journal, Record
from ..journal.facts import points_of, start_of
from .divergence import Leaf, leaf_of


@attrs.frozen
class Common:
    """What two journals have in common.

    Attributes:
        low: the first transition that both have.
        high: the last one that can be compared; less than `low` where there is none.
        parted: the first one whose chains differ; None if none do.
    """

    low: int
    high: int
    parted: int | None


def common(a: Journal, b: Journal) -> Common:
    """Compare the chains of two journals.

    Raises:
        JournalCorrupt: one is damaged where it was looked at.
    """
    low, high = max(first_of(a), first_of(b)), _last(a, b)
    if high < low or a.seek(high).chain == b.seek(high).chain:
        return Common(low, high, None)
    return Common(low, high, _bisected(a, b, *_narrowed(a, b, low, high)))


def first_of(journal: Journal) -> int:
    """Return the number of the first transition that a journal's live history can hold."""
    return start_of(journal).seq + 1


def differing(a: Journal, b: Journal, start: int, stop: int, *, data: bool) -> Iterator[tuple[Record, Record, Leaf]]:
    """Yield the pairs of records in which something differs, with the first field that does.

    Args:
        a: a journal.
        b: another.
        start: the first transition.
        stop: the last one.
        data: hold the events' fields against each other too, not only the states.
    """
    pairs: Iterable[tuple[Record, Record]] = zip(a.since(start), b.since(start), strict=False)
    for one, other in itertools.takewhile(lambda pair: pair[0].seq <= stop, pairs):
        leaf = leaf_of(one, other, data=data)
        if leaf is not None:
            yield one, other, leaf


def _last(a: Journal, b: Journal) -> int:
    high = min(journal.last.seq if journal.last else 0 for journal in (a, b))
    if high >= max(first_of(a), first_of(b)) and (a.seek(high).dest in FINAL) != (b.seek(high).dest in FINAL):
        high -= 1  # one run ended here and the other went on: their limits differ, and limits aren't history
    return high


def _narrowed(a: Journal, b: Journal, low: int, high: int) -> tuple[int, int]:
    """Bisect by what the headers say of the chain: nothing is read, or decompressed, for that."""
    known = points_of(a), points_of(b)
    points = sorted(seq for seq in known[0].keys() & known[1].keys() if low <= seq < high)
    for seq in points:
        if known[0][seq] != known[1][seq]:
            return low, seq
        low = seq + 1
    return low, high


def _bisected(a: Journal, b: Journal, low: int, high: int) -> int:
    """Return the first transition from `low` on whose chains differ; those of `high` do."""
    while low < high:
        middle = (low + high) // 2
        if a.seek(middle).chain == b.seek(middle).chain:
            low = middle + 1
        else:
            high = middle
    return low
