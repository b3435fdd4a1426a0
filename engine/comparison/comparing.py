"""Two runs held against each other: where they part, what is known about it, and what isn't.

The chains tell the first transition that was recorded otherwise. Fingerprints and snapshots may show that the bits had
parted before that: a weight that is flipped in one step is seen in the loss of the next.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import attrs

from tachograph.states import CallerError

from ..journal import Journal, Record
from . import fingerprinted
from .causes import COMPUTED, ORDER, Known, explained, kind_of
from .divergence import Divergence, leaf_of
from .evidence import Side, about_of, differences, in_force, known_of, reason_of
from .fingerprinted import Bits
from .parting import Common, common, differing, first_of

Outcome = Literal["equal", "beginning", "parted", "apart"]
Rank = int | Literal["all"]


@attrs.frozen(kw_only=True)
class Comparison:
    """What was found when two runs were compared.

    Attributes:
        outcome: "equal"; "beginning": the one is the beginning of the other; "parted"; "apart": they have no transition
            in common that could be compared.
        divergence: where they part, the first one of all ranks that were compared; None where they don't.
        records: what both recorded there.
        known: what else is known of the two; None where they are apart. Where they don't part, its events are those
            that they end with.
        fingerprints: the parts whose fingerprints differ there, with both.
        first: the first transition that was compared.
        last: the last one that could be: where one run ended and the other went on, they aren't held to differ.
        ends: the last transition of each.
        agree: what was compared and agrees up to there, in words.
        snapshots: the last transition at which both runs' snapshots agree, the first at which they don't, 0 where there
            is none; and the names of what differs there.
        unknown: what isn't known and would tell more, a sentence each.
    """

    outcome: Outcome
    divergence: Divergence | None = None
    records: tuple[Record, Record] | None = None
    known: Known | None = None
    fingerprints: Mapping[str, tuple[str, str]] = attrs.field(factory=dict)
    first: int = 1
    last: int = 0
    ends: tuple[int, int] = (0, 0)
    agree: Sequence[str] = ()
    snapshots: tuple[int, int, Sequence[str]] = (0, 0, ())
    unknown: Sequence[str] = ()


@attrs.frozen
class _Rank:
    """What the comparison of one rank's journals gave."""

    a: Journal
    b: Journal
    common: Common
    steps: Bits = attrs.field(factory=Bits)
    snapshots: Bits = attrs.field(factory=Bits)
    divergence: Divergence | None = None


def compare(run_a: str | Path, run_b: str | Path, *, rank: Rank = "all") -> Comparison:
    """Compare two runs, and tell all that is found; the arguments and what is raised are those of `diff`."""
    whole = Journal(run_a, rank="all"), Journal(run_b, rank="all")
    ranks = [n for n in whole[0].ranks if n in whole[1].ranks] if rank == "all" else [rank]
    if not ranks:
        raise CallerError(f"{run_a} and {run_b} have no rank in common: {whole[0].ranks} and {whole[1].ranks}")
    found = [_compared(Journal(run_a, rank=n), Journal(run_b, rank=n), whole) for n in ranks]
    parted = [one for one in found if one.divergence is not None]
    if not parted:
        return _not_parted(found, str(run_a), str(run_b))
    return _parted(min(parted, key=_place), str(run_a), str(run_b))


def _place(found: _Rank) -> tuple[int, int]:
    assert found.divergence is not None
    return found.divergence.seq, found.divergence.rank


# -- one rank ----------------------------------------------------------------------------------------------


def _compared(a: Journal, b: Journal, whole: tuple[Journal, Journal]) -> _Rank:
    """Compare one rank of two runs; `whole` tells how many ranks the runs have."""
    shared = common(a, b)
    if shared.high < shared.low:
        return _Rank(a, b, shared)
    start = shared.high if shared.parted is None else shared.parted
    worlds = whole[0].world_at(start), whole[1].world_at(start)
    if worlds[0] != worlds[1]:
        return _Rank(a, b, shared, divergence=_by_states(a, b, shared, worlds))
    recorded = None if shared.parted is None else _by_records(a, b, shared, shared.parted)
    if shared.parted is not None and recorded is None:
        return _Rank(a, b, shared)  # one of them doesn't know what came before, but its chain does
    stop = shared.high if recorded is None else recorded.seq
    steps = fingerprinted.of_steps(a, b, stop)
    first = a.ranks[0] == whole[0].ranks[0]
    snapshots = fingerprinted.of_snapshots(a, b, stop - (recorded is not None), _seeded(a, b)) if first else Bits()
    told = [one for one in (recorded, *_by_bits(steps, snapshots, shared.low, a.ranks[0])) if one is not None]
    divergence = min(told, key=lambda one: (one.seq, _order(one.field)), default=None)
    if divergence is not None:
        divergence = attrs.evolve(divergence, state=a.seek(divergence.seq).source)
    return _Rank(a, b, shared, steps, snapshots, divergence)


def _by_states(a: Journal, b: Journal, shared: Common, worlds: tuple[int, int]) -> Divergence | None:
    if shared.parted is None:
        return None
    why = f"the runs have {worlds[0]} and {worlds[1]} ranks here, so only their states are compared"
    for one, _, leaf in differing(a, b, shared.parted, shared.high, data=False):
        return Divergence(one.seq, *leaf, why, a.ranks[0], one.source)
    return None


def _by_records(a: Journal, b: Journal, shared: Common, start: int) -> Divergence | None:
    """Name what differs in the records where the chains part, or in later ones."""
    one, other = a.seek(start), b.seek(start)
    leaf = leaf_of(one, other, data=True)
    if leaf is not None:
        return Divergence(start, *leaf, "", a.ranks[0])
    for found, _, leaf in differing(a, b, start, shared.high, data=True):
        return Divergence(found.seq, *leaf, "", a.ranks[0])
    if first_of(a) != first_of(b):
        return None
    return Divergence(start, "chain", one.chain, other.chain, "", a.ranks[0])


def _by_bits(steps: Bits, snapshots: Bits, low: int, rank: int) -> list[Divergence]:
    found = []
    for name, bits in (("fingerprint", steps), ("snapshot", snapshots)):
        if bits.differ >= low:  # two forks of one point may begin with other bits
            part, values = next(iter(bits.values.items()))
            found.append(Divergence(bits.differ, f"{name}.{part}", *values, "", rank))
    return found


def _order(field: str) -> int:
    kind = kind_of(field)
    return ORDER.index(kind) if kind in ORDER else len(ORDER)


def _seeded(a: Journal, b: Journal) -> bool:
    """Say whether both runs were given seeds: else Python's and numpy's generators begin anywhere."""
    return all(about_of(journal.run_dir).get("settings", {}).get("seed_given") for journal in (a, b))


# -- what is told ------------------------------------------------------------------------------------------


def _not_parted(found: list[_Rank], run_a: str, run_b: str) -> Comparison:
    apart = all(one.common.high < one.common.low for one in found)
    first = found[0]
    ends = _ends(first)
    outcome: Outcome = "apart" if apart else "equal" if ends[0] == ends[1] and _same_end(first) else "beginning"
    told = Comparison(outcome=outcome, first=first.common.low, last=first.common.high, ends=ends)
    if apart:
        return told
    sides = [Side.of(name, journal, first.common.high) for name, journal in ((run_a, first.a), (run_b, first.b))]
    settings, code, environment = differences(
        *(in_force(side.about, side.journal, first.common.high) for side in sides)
    )
    lasts = [record for record in (first.a.last, first.b.last) if record is not None]
    known = Known(
        names=(run_a, run_b),
        settings=settings,
        code=code,
        environment=environment,
        events=tuple(record.event for record in lasts),  # type: ignore[arg-type]
        reasons=tuple(reason_of(record) for record in lasts),  # type: ignore[arg-type]
    )
    return attrs.evolve(told, known=known, agree=_agreeing(known, sides, first))


def _same_end(found: _Rank) -> bool:
    return found.a.chain == found.b.chain or found.common.parted is not None


def _ends(found: _Rank) -> tuple[int, int]:
    lasts = found.a.last, found.b.last
    return tuple(0 if last is None else last.seq for last in lasts)  # type: ignore[return-value]


def _parted(found: _Rank, run_a: str, run_b: str) -> Comparison:
    divergence = found.divergence
    assert divergence is not None
    seq, kind = divergence.seq, kind_of(divergence.field)
    a, b = Side.of(run_a, found.a, seq), Side.of(run_b, found.b, seq)
    bits = _agreement(found)
    known = known_of(divergence, a, b, bits)
    snapshots = _around(found, seq)
    if snapshots[1] == seq or found.snapshots.differ == seq:
        known = attrs.evolve(known, tensors=snapshots[2])
    if kind in COMPUTED and bits.agree and "parameters" not in known.before:
        known = attrs.evolve(known, since=bits.agree)
    told = explained(divergence, known)
    told = attrs.evolve(told, cause=divergence.cause or told.cause)
    return Comparison(
        outcome="parted",
        divergence=told,
        records=(a.record, b.record),
        known=known,
        fingerprints=found.steps.values if found.steps.differ == seq else {},
        first=found.common.low,
        last=found.common.high,
        ends=_ends(found),
        agree=_agreeing(known, [a, b], found),
        snapshots=snapshots,
        unknown=_unknown(kind, found, known, a, b),
    )


def _agreement(found: _Rank) -> Bits:
    """Return what the fingerprints of steps tell, with the snapshots' word where it is the later or the only one."""
    steps, snapshots = found.steps, found.snapshots
    if snapshots.agree > steps.agree:
        steps = attrs.evolve(steps, agree=snapshots.agree, parts=snapshots.parts)
    if snapshots.differ and not steps.differ:
        differ = dict.fromkeys(fingerprinted.parts_of(snapshots.values), ("", ""))
        steps = attrs.evolve(steps, differ=snapshots.differ, values=differ, same=fingerprinted.parts_of(snapshots.same))
    return steps


def _around(found: _Rank, seq: int) -> tuple[int, int, Sequence[str]]:
    held = found.snapshots
    if held.differ:
        return held.agree, held.differ, list(held.values)
    later, names = fingerprinted.after(found.a, found.b, seq)
    return held.agree, later, names


def _agreeing(known: Known, sides: Sequence[Side], found: _Rank) -> list[str]:
    """Name what was compared and agrees up to the parting, or to the end."""
    told = []
    for name, differ in (("settings", known.settings), ("code", known.code), ("environment", known.environment)):
        if not differ and all(side.about.get(name) for side in sides) and (name != "code" or _same_files(sides)):
            told.append(name)
    held: set[str] = set(known.agree)
    for record in sides[0].lately():
        held |= {name for name in ("ids", "rng", "loss") if record.data.get(name)}
        if {"ids", "rng", "loss"} <= held:
            break
    told += [word for name, word in (("ids", "samples"), ("rng", "generators"), ("loss", "losses")) if name in held]
    told += ["weights"] if _agreement(found).agree else []
    return told


def _same_files(sides: Sequence[Side]) -> bool:
    """Say whether the two told of the same files: else what both have may agree, and the script be another one."""
    return len({frozenset(side.about["code"]) for side in sides}) == 1


def _unknown(kind: str, found: _Rank, known: Known, a: Side, b: Side) -> list[str]:
    told = []
    lacking = [side.name for side, have in zip((a, b), found.steps.have, strict=True) if not have]
    certain = known.settings or (known.resume is not None and known.resume.unrestored)
    if lacking and kind in COMPUTED | {"counters"} and not certain:
        who = f"{lacking[0]} has no fingerprints" if len(lacking) == 1 else "neither run has fingerprints"
        again = "run again with callbacks=[Fingerprints(every=1)]"
        told.append(f"{who} of steps up to there, so when batches, gradients and weights parted isn't known: {again}")
    if not lacking and not (found.steps.agree or found.steps.differ):
        told.append("the fingerprints of the two runs have no update in common: give both the same `every`")
    if not all(side.about for side in (a, b)):
        told.append("a run.json is missing, so settings and environment aren't compared")
    if kind == "rng" and not (a.record.data.get("rng") and b.record.data.get("rng")):
        told.append("one of the runs didn't look at its generators")
    return told


__all__ = ["Comparison", "Outcome", "compare"]
