"""`Divergence`, the point where two histories part, and how two accounts of a transition are compared."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import attrs

from tachograph.states import Event, TachographError, TrainerState
from tachograph.states.trainer_state import LIMITS

from ..journal import Record
from .causes import ORDER, kind_of

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


def leaf_of(one: Record, other: Record, *, data: bool) -> Leaf | None:
    """Name the first field in which two records of a transition differ; None if none does.

    Args:
        one: a record.
        other: another run's, or another rank's, of the same number.
        data: hold the event's fields against each other too, not only the states.
    """
    if _bytes(one, data) == _bytes(other, data):
        return None
    a, b = _plain(one), _plain(other)
    if not data:
        del a["data"], b["data"]
    return None if same(a, b) else _compared(a, b)


def _bytes(record: Record, data: bool) -> tuple[object, ...]:
    told = record.source, record.event, record.dest, bytes(record.raw_state)
    return (*told, bytes(record.raw_data)) if data else told


def parting_at(records: Iterable[Record]) -> Divergence | None:
    """Hold the records that the ranks have of one transition against the lowest rank's."""
    first: Record | None = None
    for record in records:
        if record.event == "Failed":
            continue
        if first is None:
            first = record
            continue
        leaf = leaf_of(first, record, data=False)
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
    if isinstance(a, dict) and isinstance(b, dict):
        for key in sorted({**a, **b}, key=_place) if path == "data" else {**a, **b}:
            if not same(a.get(key), b.get(key)):
                return _compared(a.get(key), b.get(key), f"{path}.{key}" if path else key)
    return path or "chain", a, b


def _place(name: str) -> int:
    """Return where a field of an event stands in the causal order; one that isn't in it comes first."""
    kind = kind_of(f"data.{name}")
    return ORDER.index(kind) if kind in ORDER else -1


def same(a: Any, b: Any) -> bool:
    """Say whether two recorded values are the same, bit for bit: NaN equals NaN, and 0.0 isn't -0.0."""
    if isinstance(a, float) and isinstance(b, float):
        return (a == b and math.copysign(1, a) == math.copysign(1, b)) or (a != a and b != b)
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return bool(a == b)
