"""Where two histories part, of two runs or of the ranks of one: the first transition and field that differ."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

import attrs

from tachograph.states import CallerError, Event, TachographError, TrainerState
from tachograph.states.table import FINAL
from tachograph.states.trainer_state import LIMITS

from .journal import Journal, Record

_CAUSES = (
    # the earliest cause first: what is named here explains what comes after it
    ("ids", "the samples differ"),
    ("rng", "the random generators differ"),
    ("loss", "the loss differs though samples and generators agree: look at parameters, inputs and kernels"),
    ("lr", "the learning rates differ"),
)
Leaf = tuple[str, Any, Any]
"""A field that differs, as a path, and its values."""


@attrs.frozen
class Divergence:
    """The first point where two histories differ.

    Attributes:
        seq: the transition.
        field: what differs, as a path: "event", "data.loss", "state.optimizer_steps".
        a: its value in the first history, or in the recorded one.
        b: its value in the second, or in the re-executed one.
        cause: what that says about the cause, in words; "" where it says nothing more.
        rank: in whose journal.
        state: the state that the transition left.
        hint: a command to type next; "" where there is none.
    """

    seq: int
    field: str
    a: Any
    b: Any
    cause: str
    rank: int = 0
    state: str = ""
    hint: str = ""

    @property
    def recorded(self) -> Any:
        """`a`: what the run had recorded, where it was re-executed."""
        return self.a

    @property
    def found(self) -> Any:
        """`b`: what was found when it was re-executed."""
        return self.b

    def __str__(self) -> str:
        cause, whose = f" ({self.cause})" if self.cause else "", f" of rank {self.rank}" if self.rank else ""
        return f"transition {self.seq}{whose}: {self.field} is {self.a!r} in the one and {self.b!r} in the other{cause}"


class Diverged(TachographError):
    """A re-executed transition differs from the recorded one.

    Attributes:
        divergence: where, and in what.
    """

    def __init__(self, divergence: Divergence) -> None:
        self.divergence = divergence
        super().__init__(f"the re-executed run parts from the recorded one at {divergence}")


def diff(run_a: str | Path, run_b: str | Path, *, rank: int | Literal["all"] = "all") -> Divergence | None:
    """Find the first transition where two runs part; None if one is the beginning of the other or they are equal.

    The chains are compared by bisection: where they agree, everything before agrees as well. Where the runs have
    different numbers of ranks, samples and losses of a rank can't agree, so only the states are compared there.

    Args:
        run_a: a run directory.
        run_b: another.
        rank: whose journals to compare; "all" compares rank by rank those that both runs have, and returns the first
            difference over all, the lowest rank's of equal ones.

    Raises:
        JournalError: one isn't a run directory, or has no such rank.
    """
    whole = Journal(run_a, rank="all"), Journal(run_b, rank="all")
    ranks = [n for n in whole[0].ranks if n in whole[1].ranks] if rank == "all" else [rank]
    if not ranks:
        raise CallerError(f"{run_a} and {run_b} have no rank in common: {whole[0].ranks} and {whole[1].ranks}")
    found = [parting for n in ranks if (parting := _parting(Journal(run_a, rank=n), Journal(run_b, rank=n), whole))]
    return min(found, key=lambda parting: (parting.seq, parting.rank), default=None)


def _parting(a: Journal, b: Journal, whole: tuple[Journal, Journal]) -> Divergence | None:
    """Find where one rank of two runs parts; `whole` tells how many ranks the runs have."""
    first_a, first_b, rank = _first(a), _first(b), a.ranks[0]
    low, high = max(first_a, first_b), _last_common(a, b)
    if high < low or a.seek(high).chain == b.seek(high).chain:
        return None
    start = _bisected(a, b, low, high)
    worlds = whole[0].world_at(start), whole[1].world_at(start)
    pairs = itertools.takewhile(lambda pair: pair[0].seq <= high, zip(a.since(start), b.since(start), strict=False))
    if worlds[0] != worlds[1]:
        why = f"the runs have {worlds[0]} and {worlds[1]} ranks here, so only their states are compared"
        return next((Divergence(seq, *leaf, why, rank) for seq, leaf in _differing(pairs, data=False)), None)
    seq, leaf = next(_differing(pairs, data=True), (start, None))
    if leaf is not None:
        return Divergence(seq, *leaf, _cause(leaf[0]), rank)
    if first_a != first_b:
        return None  # one of them doesn't know what came before, but its chain does
    return Divergence(start, "chain", a.seek(start).chain, b.seek(start).chain, "", rank)


def _last_common(a: Journal, b: Journal) -> int:
    high = min(a.last.seq if a.last else 0, b.last.seq if b.last else 0)
    if high and high >= max(_first(a), _first(b)) and (a.seek(high).dest in FINAL) != (b.seek(high).dest in FINAL):
        high -= 1  # one run ended here and the other went on: their limits differ, and limits aren't history
    return high


def _bisected(a: Journal, b: Journal, low: int, high: int) -> int:
    while low < high:
        middle = (low + high) // 2
        if a.seek(middle).chain == b.seek(middle).chain:
            low = middle + 1
        else:
            high = middle
    return low


def _differing(pairs: Iterable[tuple[Record, Record]], *, data: bool) -> Iterator[tuple[int, Leaf]]:
    """Yield (seq, what differs first) of those pairs of records in which something does."""
    for one, other in pairs:
        leaf = _leaf(one, other, data=data)
        if leaf is not None:
            yield one.seq, leaf


def _leaf(one: Record, other: Record, *, data: bool) -> Leaf | None:
    if _bytes(one, data) == _bytes(other, data):
        return None
    a, b = _plain(one), _plain(other)
    if not data:
        del a["data"], b["data"]
    return None if _same(a, b) else _compared(a, b)


def _bytes(record: Record, data: bool) -> tuple[object, ...]:
    told = record.source, record.event, record.dest, bytes(record.raw_state)
    return (*told, bytes(record.raw_data)) if data else told


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


def parting_at(records: Iterable[Record]) -> Divergence | None:
    """Hold the records that the ranks have of one transition against the lowest rank's."""
    first: Record | None = None
    for record in records:
        if record.event == "Failed":
            continue
        if first is None:
            first = record
            continue
        leaf = _leaf(first, record, data=False)
        if leaf is not None:
            field, a, b = leaf
            why = f"the one is rank {first.rank}, the other rank {record.rank}"
            return Divergence(record.seq, f"rank-{record.rank}.{field}", a, b, why, record.rank)
    return None


def first_difference(recorded: Record, source: str, event: Event, state: Any) -> tuple[str, Any, Any]:
    """Name the first field in which a live transition differs from a recorded one: (field, recorded, live)."""
    fields: Any = attrs.fields(type(event))  # type: ignore[arg-type]
    data = {a.name: getattr(event, a.name) for a in fields}
    live = {"from": source, "event": type(event).__name__, "to": state.state, "data": data, "state": _state(state)}
    old = _plain(recorded)
    old["data"] = {**{k: v for k, v in data.items() if k not in old["data"]}, **old["data"]}
    return _compared(old, live)


def _cause(field: str) -> str:
    return next((cause for name, cause in _CAUSES if field.split(".")[-1].startswith(name)), "")


def _first(journal: Journal) -> int:
    first = next(iter(journal), None)
    return first.seq if first is not None else 1


def _plain(record: Record) -> dict[str, Any]:
    return {
        "from": record.source,
        "event": record.event,
        "to": record.dest,
        "data": dict(record.data),
        "state": _state(record.state),
    }


def _state(state: Any) -> dict[str, Any]:
    held = dict(state) if isinstance(state, dict) else attrs.asdict(state, recurse=False)
    limits = LIMITS if isinstance(state, TrainerState) else ()
    return {k: v for k, v in held.items() if k not in limits}


def _compared(a: Any, b: Any, path: str = "") -> tuple[str, Any, Any]:
    """Return the first leaf that differs, in causal order within an event's data; the whole if no leaf does."""
    order = {name: i for i, (name, _) in enumerate(_CAUSES)}
    if isinstance(a, dict) and isinstance(b, dict):
        for key in sorted({**a, **b}, key=lambda k: order.get(k, -1)) if path == "data" else {**a, **b}:
            if not _same(a.get(key), b.get(key)):
                return _compared(a.get(key), b.get(key), f"{path}.{key}" if path else key)
    return path or "chain", a, b


def _same(a: Any, b: Any) -> bool:
    if isinstance(a, float) and isinstance(b, float):
        return (a == b and math.copysign(1, a) == math.copysign(1, b)) or (a != a and b != b)
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(_same, a, b))
    return bool(a == b)
