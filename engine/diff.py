"""Where two histories part, of two runs or of the ranks of one: the first transition and field that differ, and why."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Literal

from .comparison import Comparison, compare
from .comparison.divergence import Diverged, Divergence, first_difference, leaf_of, parting_at
from .journal import Journal


def diff(run_a: str | Path, run_b: str | Path, *, rank: int | Literal["all"] = "all") -> Divergence | None:
    """Find the first transition where two runs part; None if one is the beginning of the other or they are equal.

    The chains are compared by bisection: where they agree, everything before agrees as well. Fingerprints, of steps and
    of snapshots, may tell that weights had parted before that; then that is the point. Where the runs have different
    numbers of ranks, samples and losses of a rank can't agree, so only the states are compared there.

    Args:
        run_a: a run directory.
        run_b: another.
        rank: whose journals to compare; "all" compares rank by rank those that both runs have, and returns the first
            difference over all, the lowest rank's of equal ones.

    Raises:
        JournalError: one isn't a run directory, or has no such rank.
    """
    return compare(run_a, run_b, rank=rank).divergence


def ranks_part(run_dir: str | Path) -> Divergence | None:
    """Find the first transition where the ranks of a run part; None if none do.

    States, events and their order are the same on all ranks. What a rank's event brings (losses, samples, generators)
    is its own, and how a rank failed is as well.

    Args:
        run_dir: a run directory.

    Returns:
        The field as a path that begins with the rank's directory, "rank-2.state.samples"; `a` is its value on the
        lowest rank, `b` on the rank that parts from it, which is `rank`.

    Raises:
        JournalCorrupt: the journal of a rank is damaged.
    """
    for _, records in itertools.groupby(Journal(run_dir, rank="all"), key=lambda record: record.seq):
        found = parting_at(records)
        if found is not None:
            return found
    return None


__all__ = [
    "Comparison",
    "Diverged",
    "Divergence",
    "compare",
    "diff",
    "first_difference",
    "leaf_of",
    "parting_at",
    "ranks_part",
]
