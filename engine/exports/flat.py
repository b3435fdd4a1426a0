"""A transition as a flat row: one value for each column, "data.loss", "state.cur_epoch_idx", "data.lr.0"."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tachograph.engine.journal import Record
from tachograph.engine.journal.codec import plain, to_json

from .source import state_of

_COLUMNS = 16  # a longer list is one column of JSON
_SCALARS = (bool, int, float, str, type(None))


def row_of(record: Record) -> dict[str, Any]:
    """Return a transition's row: numbers, texts and None by the names of their columns.

    A dict has a column for each key, a short list of numbers or texts one for each place; any other list is JSON text.
    """
    row: dict[str, Any] = {
        "seq": record.seq,
        "rank": record.rank,
        "incarnation": record.incarnation,
        "from": record.source,
        "event": record.event,
        "to": record.dest,
        "time": record.meta["time"],
        "chain": record.chain,
    }
    state = state_of(record)
    del state["state"], state["seq"]
    for prefix, fields in (("data.", record.data), ("state.", state)):
        for name, value in fields.items():
            if value.__class__ is dict or value.__class__ is list:
                row.update(_leaves(prefix + name, value))
            else:
                row[prefix + name] = value
    return row


def _leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, held in value.items():
            yield from _leaves(f"{name}.{key}", held)
    elif not isinstance(value, list):
        yield name, value
    elif len(value) <= _COLUMNS and all(isinstance(held, _SCALARS) for held in value):
        yield from ((f"{name}.{i}", held) for i, held in enumerate(value))
    else:
        yield name, to_json(plain(value)).decode()


class Columns:
    """The columns of a table, found by reading its rows once.

    Attributes:
        kinds: column -> the types of its values, None apart.
        least, most: column -> the smallest and the largest of its whole numbers.
        rows: how many were read.
    """

    def __init__(self) -> None:
        self.kinds: dict[str, set[type]] = {}
        self.least: dict[str, int] = {}
        self.most: dict[str, int] = {}
        self.rows = 0

    def see(self, row: dict[str, Any]) -> None:
        """Read a row."""
        self.rows += 1
        kinds = self.kinds
        for name, value in row.items():
            seen = kinds.get(name)
            if seen is None:
                seen = kinds[name] = set()
            kind = value.__class__
            if value is not None:
                seen.add(kind)
            if kind is int:
                if value > self.most.get(name, 0):
                    self.most[name] = value
                elif value < self.least.get(name, 0):
                    self.least[name] = value

    def names(self) -> list[str]:
        """Return the columns' names: where a record stands first, then its data, then its state, as they came up."""
        order = {"data": 1, "state": 2}
        return sorted(self.kinds, key=lambda name: order.get(name.partition(".")[0], 0) if "." in name else 0)


__all__ = ["Columns", "row_of"]
