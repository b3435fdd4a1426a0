"""What two runs that should be equal differ in, and how that is said."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING

import attrs

from .. import recording
from ..diff import diff
from .runs import Lived

if TYPE_CHECKING:
    from tachograph.drivers.comparing import Unequal

_TIMES = ("extra/own/since_validation",)
"""Entries of a snapshot that tell how much time has passed."""
_GENERATORS = "generators/"
_SHOWN = 6


@attrs.frozen
class Parting:
    """How two runs part.

    Attributes:
        seq: the first transition that differs; None where only the ends do.
        said: what differs first, in a sentence.
        causes: what explains it, a sentence each; the earliest cause first.
        tries: what to do about it.
        runs: the two run directories.
    """

    seq: int | None
    said: str
    causes: list[str]
    tries: list[str]
    runs: tuple[Path, Path]


def parting(a: Lived, b: Lived, ignore: Sequence[str] = ()) -> Parting | None:
    """Hold two runs against each other: their records, then what their last snapshots hold.

    Args:
        a: one.
        b: the other, which began by itself as well.
        ignore: patterns of entries of a snapshot that may differ.

    Returns:
        None if they are equal.
    """
    found = _of_records(a, b)
    unseeded = {e.name for e in _unequal(a, b, 1, ignore) if e.name.startswith(_GENERATORS)}
    ends = [entry for entry in _unequal(a, b, None, ignore) if entry.name not in unseeded]
    if found is None and not ends:
        return None
    seq, field, said, told = (None, "", f"the ends differ in {ends[0]}", "") if found is None else found
    causes, tries = _causes(a, b, seq, ignore)
    causes += [told] if told else []
    if found is None and len(ends) > 1:
        causes.append(f"and in {_listed(ends[1:])}")
    if not tries:
        tries.append(_try_of(field))
    return Parting(seq, said, causes, tries, (a.run_dir, b.run_dir))


def _of_records(a: Lived, b: Lived) -> tuple[int, str, str, str] | None:
    """Find the first transition that differs: its number, the field, a sentence, and what that says of the cause."""
    found = diff(a.run_dir, b.run_dir)
    if found is not None:
        where = f"transition {found.seq} differs: {found.field} is {found.a!r} and {found.b!r}"
        return found.seq, found.field, where, found.cause
    one, other = a.journal.last, b.journal.last
    if one is None or other is None or (one.seq, one.dest, one.chain) == (other.seq, other.dest, other.chain):
        return None
    where = f"the one ends after transition {one.seq} in '{one.dest}', the other after {other.seq} in '{other.dest}'"
    return min(one.seq, other.seq), "state.state", where, ""


def _causes(a: Lived, b: Lived, seq: int | None, ignore: Sequence[str]) -> tuple[list[str], list[str]]:
    """Look for the earliest cause: the seed, what was built, what the batches held."""
    settings = [recording.load(run.run_dir)["settings"] for run in (a, b)]
    causes, tries = [], []
    if settings[0].get("seed") != settings[1].get("seed"):
        causes.append("the trainer has no seed of its own: each run took another one")
        tries.append("give Trainer(seed=...)")
    changed = recording.differences(*settings)
    told = [f"{name} was {old} and {new}" for name, (old, new) in changed.items() if not name.startswith("seed")]
    if told:
        causes.append(f"the two trainers were built with other settings: {'; '.join(told[:_SHOWN])}")
    built = _unequal(a, b, 1, ignore)
    drawn = [entry for entry in built if not entry.name.startswith(_GENERATORS)]
    if drawn:
        causes.append(f"before the first step these differ already: {_listed(drawn)}")
        tries.append("seed in build() before anything is drawn: torch.manual_seed(...), before the model is made")
    elif built and not causes:
        causes.append(f"before the first step the generators differ already: {_listed(built)}")
        tries.append("give Trainer(seed=...), which seeds all of them")
    other = [n for n in sorted(a.batches) if n in b.batches and a.batches[n] != b.batches[n]]
    if other and (seq is None or other[0] <= seq) and not tries:
        causes.append(f"the batch fetched in transition {other[0]} holds other values")
        tries.append(
            "look at the dataset, the sampler and the collate function: what they draw must come from torch's, numpy's "
            "or Python's own generators, or from a generator that is seeded by the sample's index"
        )
    return causes, tries


def _try_of(field: str) -> str:
    last = field.split(".")[-1]
    if last == "ids":
        return "look at the sampler: seed what it draws from, or give the DataLoader shuffle=True and none of its own"
    if last == "rng":
        return "look for what draws more or less often than before: an order of a set, a thread, a cache, the time"
    if last in ("loss", "late", "chain", ""):
        return (
            "batches and generators agree, so look at the model and its kernels: Trainer(deterministic=True) refuses "
            "operations that aren't, and a value that survives from an earlier run (a module's global) does the same"
        )
    return "look at the callbacks: what decides there must follow from the run alone, and not from time or memory"


def _unequal(a: Lived, b: Lived, seq: int | None, ignore: Sequence[str]) -> list[Unequal]:
    """List what the snapshots of a transition differ in; None: the last ones.

    That the runs have other names and places is no difference.
    """
    from tachograph.drivers.comparing import Unequal, unequal

    one, other = a.snapshot(seq), b.snapshot(seq)
    if one is None or other is None:
        return [] if one is other else [Unequal("snapshot", "only one of the runs has it")]
    return [entry for entry in unequal(one, other) if not _may_differ(entry.name, entry.said, a, b, ignore)]


def _may_differ(name: str, said: str, a: Lived, b: Lived, ignore: Sequence[str]) -> bool:
    if any(fnmatch(name, pattern) for pattern in (*_TIMES, *ignore)):
        return True
    names = [(str(run.run_dir), str(recording.load(run.run_dir)["run"])) for run in (a, b)]
    return any(mine in said and theirs in said for mine, theirs in zip(*names, strict=True))


def _listed(entries: Sequence[Unequal]) -> str:
    more = f"; and {len(entries) - _SHOWN} more" if len(entries) > _SHOWN else ""
    return "; ".join(map(str, entries[:_SHOWN])) + more


def paragraphs(head: str, found: Parting) -> str:
    """Write a failure: what happened, why, what to try, where to look."""

    def lines() -> Iterator[str]:
        yield head
        yield from (f"  {cause}" for cause in found.causes)
        yield from (f"  Try: {way}" for way in found.tries)
        yield f"  The runs are kept: tachograph diff {found.runs[0]} {found.runs[1]}"

    return "\n".join(lines())
