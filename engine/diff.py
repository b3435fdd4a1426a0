"""Where two histories part: the first transition and field that differ."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import attrs

from tachograph.states import Event, TachographError, TrainerState
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


@attrs.frozen
class Divergence:
    """The first point where two histories differ.

    Attributes:
        seq: the transition.
        field: what differs, as a path: "event", "data.loss", "state.optimizer_steps".
        a: its value in the first history, or in the recorded one.
        b: its value in the second, or in the re-executed one.
        cause: what that says about the cause, in words; "" where it says nothing more.
    """

    seq: int
    field: str
    a: Any
    b: Any
    cause: str

    def __str__(self) -> str:
        cause = f" ({self.cause})" if self.cause else ""
        return f"transition {self.seq}: {self.field} is {self.a!r} in the one and {self.b!r} in the other{cause}"


class Diverged(TachographError):
    """A re-executed transition differs from the recorded one.

    Attributes:
        divergence: where, and in what.
    """

    def __init__(self, divergence: Divergence) -> None:
        self.divergence = divergence
        super().__init__(f"the re-executed run parts from the recorded one at {divergence}")


def diff(run_a: str | Path, run_b: str | Path) -> Divergence | None:
    """Find the first transition where two runs part; None if one is the beginning of the other or they are equal.

    The chains are compared by bisection: where they agree, everything before agrees as well.

    Args:
        run_a: a run directory.
        run_b: another.
    """
    a, b = Journal(run_a), Journal(run_b)
    low = max(_first(a), _first(b))
    high = min(a.last.seq if a.last else 0, b.last.seq if b.last else 0)
    if high >= low and (a.seek(high).dest in FINAL) != (b.seek(high).dest in FINAL):
        high -= 1  # one run ended here and the other went on: their limits differ, and limits aren't history
    if high < low or a.seek(high).chain == b.seek(high).chain:
        return None
    while low < high:
        middle = (low + high) // 2
        if a.seek(middle).chain == b.seek(middle).chain:
            low = middle + 1
        else:
            high = middle
    one, other = a.seek(low), b.seek(low)
    field, before, now = _compared(_plain(one), _plain(other))
    return Divergence(low, field, before, now, _cause(field))


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
