"""What two runs recorded of the bits themselves, held against each other: fingerprints of steps, and of snapshots."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs

from ..journal import Journal
from ..journal.facts import last_facts_of
from ..snapshots import Snapshot, SnapshotFault, catalogue, digest_of_bytes, place_in
from .causes import PARTS

FILE = "fingerprints.json"
_NEAR = 1 << 16
"""Transitions that are searched for a fingerprint at first: in runs that have none, all would be searched in vain."""


@attrs.frozen
class Bits:
    """Where the bits of two runs are known to agree, and to differ.

    Attributes:
        agree: the last transition after which they agree; 0 where none is known.
        parts: what agrees there.
        differ: the first transition after which they don't; 0 where none is known.
        values: of what differs there, name -> (first, second); causes first.
        same: what agrees there nevertheless.
        have: whether the one and the other run recorded any.
    """

    agree: int = 0
    parts: tuple[str, ...] = ()
    differ: int = 0
    values: Mapping[str, tuple[Any, Any]] = attrs.field(factory=dict)
    same: tuple[str, ...] = ()
    have: tuple[bool, bool] = (False, False)


def of_steps(a: Journal, b: Journal, stop: int) -> Bits:
    """Compare the fingerprints of steps that both runs recorded, up to a transition.

    What was changed stays so, hence they are gone through from the last one back to one that agrees. A batch that is
    another one and changes no bit of what is made of it may so be passed over.
    """
    found = _of_steps(a, b, stop, _NEAR)
    return _of_steps(a, b, stop, None) if found.differ and not found.agree else found


def _of_steps(a: Journal, b: Journal, stop: int, within: int | None) -> Bits:
    sides = [last_facts_of(journal, "fingerprint", stop, within) for journal in (a, b)]
    ones, others = (({"at": fact.seq, **fact.data} for fact in side) for side in sides)
    one, other = next(ones, None), next(others, None)
    found = Bits(have=(one is not None, other is not None))
    while one is not None and other is not None:
        if one["at"] == other["at"]:
            values, same = _held_against(one, other)
            if not values and not _of_a_batch(one):
                return attrs.evolve(found, agree=one["at"], parts=same)
            if values:
                found = attrs.evolve(found, differ=one["at"], values=values, same=same)
            one, other = next(ones, None), next(others, None)
        elif one["at"] > other["at"]:
            one = next(ones, None)
        else:
            other = next(others, None)
    return found


def _of_a_batch(told: Mapping[str, Any]) -> bool:
    """Say whether it is of a micro-batch that closed no window: no update had been made of it."""
    return all(told.get(name) is None for name in PARTS if name != "batch")


def _held_against(
    one: Mapping[str, Any], other: Mapping[str, Any]
) -> tuple[dict[str, tuple[Any, Any]], tuple[str, ...]]:
    known = [name for name in PARTS if one.get(name) is not None and other.get(name) is not None]
    values = {name: (one[name], other[name]) for name in known if one[name] != other[name]}
    return values, tuple(name for name in known if name not in values)


def of_snapshots(a: Journal, b: Journal, stop: int, generators: bool) -> Bits:
    """Compare what the snapshots that both runs have at the same transition tell of every tensor.

    Args:
        a: a run's journal.
        b: another's.
        stop: the last transition at which they can be compared.
        generators: all generators were seeded by the runs, so that they can be compared; else torch's only.

    Returns:
        The names are those of the file, with what they are of: "model.0.weight", "optimizers.0.exp_avg.0.weight".
    """
    held = [_snapshots_of(journal) for journal in (a, b)]
    found = Bits(have=(bool(held[0]), bool(held[1])))
    for seq in sorted((seq for seq in held[0].keys() & held[1].keys() if seq <= stop), reverse=True):
        pairs = [_told_by(side[seq]) for side in held]
        if None in pairs:
            continue
        one, other = (dict(_leaves(told or {}, generators)) for told in pairs)
        values = {name: (one[name], other[name]) for name in one if name in other and one[name] != other[name]}
        same = tuple(name for name in one if name in other and name not in values)
        if not values:
            return attrs.evolve(found, agree=seq, parts=parts_of(same))
        found = attrs.evolve(found, differ=seq, values=values, same=same)
    return found


def parts_of(names: Iterable[str]) -> tuple[str, ...]:
    """Return the parts of a fingerprint that names of a snapshot's tensors stand for.

    An optimizer that keeps nothing of its parameters isn't among them: it can't tell one update from another.
    """
    sections = {"model": "parameters", "gradients": "gradients", "scaler": "scaler"}
    found = {sections.get(name.partition(".")[0], "") for name in names}
    found |= {"optimizers" for name in names if name.startswith("optimizers.") and name.count(".") > 2}
    return tuple(part for part in PARTS if part in found)


def after(a: Journal, b: Journal, seq: int) -> tuple[int, list[str]]:
    """Return the first transition from `seq` on at which snapshots of both runs tell, and the tensors that differ."""
    held = [_snapshots_of(journal) for journal in (a, b)]
    for later in sorted(n for n in held[0].keys() & held[1].keys() if n >= seq):
        pairs = [_told_by(side[later]) for side in held]
        if None not in pairs:
            one, other = (dict(_leaves(told or {}, False)) for told in pairs)
            return later, [name for name in one if name in other and one[name] != other[name]]
    return 0, []


def _snapshots_of(journal: Journal) -> dict[int, Snapshot]:
    """Return the snapshots on a run's live history that tell of their tensors, by their transition."""
    try:
        place = place_in(journal)
        listed = catalogue(journal.run_dir)[0]
    except OSError:
        return {}
    return {s.seq: s for s in listed if FILE in s.files and s.exact and place(s) is not None}


def _told_by(snapshot: Snapshot) -> dict[str, Any] | None:
    """Read the file; None where it isn't what was written, which `tachograph snapshots verify` says."""
    path = Path(snapshot.path) / FILE
    try:
        raw = path.read_bytes()
        told = json.loads(raw)
    except (OSError, ValueError, SnapshotFault):
        return None
    whole = digest_of_bytes(raw) == snapshot.files[FILE][1] and isinstance(told, dict) and told.get("format") == 1
    return told if whole else None


def _leaves(told: Mapping[str, Any], generators: bool) -> Iterator[tuple[str, Any]]:
    """Yield what is equal in equal runs, causes first; listeners may hold times, and loaders what they read ahead."""
    for kind, number in (told.get("generators") or {}).items():
        if kind == "torch" or generators:
            yield f"generators.{kind}", number
    for section in ("gradients", "model", "optimizers"):
        for name, number in (told.get(section) or {}).items():
            yield f"{section}.{name}", number
    if told.get("scaler") is not None:
        yield "scaler", told["scaler"]


__all__ = ["Bits", "after", "of_snapshots", "of_steps", "parts_of"]
