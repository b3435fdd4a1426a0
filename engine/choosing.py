"""Choosing the snapshot that a run of many ranks goes on from: the newest that all of them can use."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import attrs

from tachograph.drivers.ranks import Ranks

from .journal import Files, Journal, recover
from .journal.recovery import Recovery
from .journal.segments import ranks_of
from .snapshots import Snapshot, candidates, catalogue, clean

Place = Callable[[Snapshot], int | None]
Lacking = Callable[[Snapshot], str]


def recovered(run_dir: Path, ranks: Ranks, disk: Files) -> tuple[Recovery, list[str]]:
    """Have every rank recover its own journal, and rank 0 clear away what was never finished.

    Returns:
        What was found in this rank's journal, and the names of torn snapshots.
    """
    found = recover(run_dir, ranks.rank, files=disk)
    torn = clean(run_dir, disk) if ranks.first else []
    ranks.barrier()  # nobody reads before all is in order
    return found, torn


def journal_of(run_dir: Path, ranks: Ranks) -> Journal:
    """Return a rank's journal; rank 0's where the run hadn't got this rank."""
    if ranks.rank in ranks_of(run_dir):
        journal = Journal(run_dir, rank=ranks.rank)
        if ranks.first or journal.incarnations:
            return journal
    return Journal(run_dir)


def of_rank(snapshot: Snapshot, ranks: Ranks) -> Snapshot | None:
    """Return a snapshot as a rank's journal knows it; None where it was taken without this rank."""
    chains = snapshot.chains or [snapshot.chain]
    return attrs.evolve(snapshot, chain=chains[ranks.rank]) if ranks.rank < len(chains) else None


def newest_for_all(
    ranks: Ranks, run_dir: Path, run: str, place: Place, disk: Files, lacking: Lacking
) -> tuple[Snapshot | None, list[str]]:
    """Find the newest snapshot that every rank can go on from; see `snapshots.newest`.

    Rank 0 lists them and reads all their files; each rank holds them against its own journal.
    """
    found, faults = ranks.share(catalogue(run_dir, disk))
    ordered, skipped = candidates(found, faults, run)
    for snapshot in ordered:
        mine, fault = _here(snapshot, ranks, place, disk, lacking)
        told = ranks.gather(fault)
        if not any(told):
            return mine, skipped
        rank = next(number for number, text in enumerate(told) if text)
        if told[rank] != _ELSEWHERE:
            skipped.append(f"{snapshot.path.name} was passed over: {told[rank]}{f' (rank {rank})' if rank else ''}")
    return None, skipped


_ELSEWHERE = "it isn't on the history that goes on"


def _here(snapshot: Snapshot, ranks: Ranks, place: Place, disk: Files, lacking: Lacking) -> tuple[Snapshot, str]:
    """Return a snapshot as this rank knows it, and what speaks against it here."""
    mine = of_rank(snapshot, ranks)
    if mine is None:
        return attrs.evolve(snapshot, chain=NEW), ""
    where = place(mine)
    if where is None:
        return mine, _ELSEWHERE
    mine = attrs.evolve(mine, incarnation=where)
    return mine, (mine.fault(disk) if ranks.first else "") or lacking(mine)


NEW = "0" * 16
"""The chain of a rank whose journal begins here."""

__all__ = ["NEW", "journal_of", "newest_for_all", "of_rank", "recovered"]
