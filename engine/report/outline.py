"""The outline of a run: of every transition which row of the table it took and when, and the curves."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterator
from typing import Any

from tachograph.engine.journal import Record

from .boxes import Box

_NO_CURVE = frozenset({"ids", "rng", "samples", "late", "dropped"})
"""Fields that make no curve: hashes and counts, and losses that arrived late, which belong to their own steps."""
_QUIET = frozenset({"Started", "SanityChecked", "EpochBegan", "Fetched", "EpochEnded", "Stopped", "Failed"})
"""Events of training that bring nothing for a curve."""
MOST_CURVES = 120
_MOST_IN_A_LIST = 16
Key = tuple[str, str, int]
"""(event, field, place in a list or -1)."""


class Curve:
    """Values at transitions.

    Attributes:
        seqs: the transitions.
        values: one for each.
    """

    def __init__(self) -> None:
        self.seqs = array("q")
        self.values = array("d")

    def add(self, seq: int, value: float) -> None:
        """Add a value."""
        self.seqs.append(seq)
        self.values.append(value)

    def in_order(self) -> None:
        """Sort the values by their transitions; one that arrived late comes after later ones."""
        if any(a > b for a, b in zip(self.seqs, self.seqs[1:], strict=False)):
            pairs = sorted(zip(self.seqs, self.values, strict=True), key=lambda pair: pair[0])
            self.seqs, self.values = array("q", [s for s, _ in pairs]), array("d", [v for _, v in pairs])


class Outline:
    """Gathers the outline, record by record.

    Attributes:
        rows: the (source, event, dest) there are, in the order they first came.
        lives: [place of the first record, incarnation, state's class, fields that records of it leave out].
        curves_left_out: more than `MOST_CURVES` there were.
    """

    def __init__(self) -> None:
        self.rows: dict[tuple[str, str, str], int] = {}
        self.lives: list[list[Any]] = []
        self.curves_left_out = 0
        self._curves: dict[Key, Curve] = {}
        self._header: Any = None
        self._seqs = array("q")
        self._took = array("q")
        self._times = array("q")

    def __len__(self) -> int:
        return len(self._seqs)

    def add(self, record: Record) -> None:
        """Add the next record."""
        if record.header is not self._header:
            self._live(record)
        self._seqs.append(record.seq)
        self._took.append(self.rows.setdefault((record.source, record.event, record.dest), len(self.rows)))
        self._times.append(round(record.meta["time"] * 1e6))
        if record.event not in _QUIET:
            self._draw(record)

    def _live(self, record: Record) -> None:
        header = self._header = record.header
        life = [header.incarnation, header.state, header.defaults]
        if not self.lives or self.lives[-1][1:] != life:
            self.lives.append([len(self), *life])

    def _draw(self, record: Record) -> None:
        data = record.data
        for seq, loss in _late(data.get("late")):
            self._point(("Stepped", "loss", -1), seq, loss)
        for key, value in _numbers(record.event, data):
            self._point(key, record.seq, value)

    def _point(self, key: Key, seq: int, value: float) -> None:
        curve = self._curves.get(key)
        if curve is None:
            if len(self._curves) == MOST_CURVES:
                self.curves_left_out += 1
                return
            curve = self._curves[key] = Curve()
        curve.add(seq, value)

    def packed(self) -> tuple[str, str]:
        """Return two boxes: all transitions, and the curves."""
        box = Box()
        places = {"seq": box.add_integers(self._seqs.tolist()), "time": box.add_integers(self._times.tolist())}
        small = len(self.rows) <= 256
        places["took"] = box.add_bytes(bytes(self._took.tolist())) if small else box.add_integers(self._took.tolist())
        return box.packed(places), self._packed_curves()

    def _packed_curves(self) -> str:
        box, told = Box(), []
        for key, panel, name in self._named():
            curve = self._curves[key]
            curve.in_order()
            columns = [box.add_integers(curve.seqs.tolist()), box.add_floats(curve.values)]
            told.append({"panel": panel, "name": name, "event": key[0], "columns": columns})
        return box.packed(told)

    def _named(self) -> Iterator[tuple[Key, str, str]]:
        """Name the curves: a field that two events have by the event as well, a list of one like a number."""
        events: dict[str, set[str]] = {}
        places: dict[tuple[str, str], int] = {}
        for event, field, place in self._curves:
            places[event, field] = max(places.get((event, field), -1), place)
            events.setdefault(field, set()).add(event)
        for key in self._curves:
            event, field, place = key
            panel = f"{event}.{field}" if len(events.get(field, ())) > 1 else field
            yield key, panel, f"{panel}[{place}]" if places[event, field] > 0 else panel


def _late(told: Any) -> Iterator[tuple[int, float]]:
    """Yield the losses that arrived late, each with the transition it belongs to: of one pair, or of a list of them."""
    held = told if isinstance(told, list) else []
    for pair in held if held and isinstance(held[0], list) else [held]:
        if isinstance(pair, list) and len(pair) == 2 and isinstance(pair[0], int) and _is_number(pair[1]):
            yield pair[0], float(pair[1])


def _numbers(event: str, data: dict[str, Any]) -> Iterator[tuple[Key, float]]:
    """Yield the numbers in an event's data: fields, those of dicts by their own names, those in short lists."""
    for name, value in data.items():
        if name in _NO_CURVE or name.startswith("_"):
            continue
        if isinstance(value, dict):
            yield from _numbers(event, value)
        elif isinstance(value, list):
            for place, part in enumerate(value[:_MOST_IN_A_LIST]):
                if _is_number(part):
                    yield (event, name, place), float(part)
        elif _is_number(value):
            yield (event, name, -1), float(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and _fits(value)


def _fits(value: float) -> bool:
    return isinstance(value, float) or math.log2(abs(value) or 1) < 1023
