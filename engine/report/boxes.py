"""Boxes: columns of numbers as text that a page can hold, small and exact.

A box is a header and columns, compressed together, in base64. A column's numbers are split into their bytes, all first
bytes before all second ones, and integers are told as steps from one to the next: what hardly changes then costs next
to nothing. `decode.js` reads it.
"""

from __future__ import annotations

import base64
import json
import operator
import sys
import zlib
from array import array
from collections.abc import Iterable, Sequence
from typing import Any

_EXACT = 1 << 53
"""Integers up to here are exact in JavaScript's numbers."""
_INT64 = 1 << 63


class Box:
    """Columns that are packed together.

    A column is told of as [kind, count, bytes]. The kinds: "b" bytes; "d" integers as signed 64-bit steps; "f" 64-bit
    floats; "q" 64-bit integers that are too large for a step; "t" a JSON list of texts.
    """

    def __init__(self) -> None:
        self._columns: list[list[Any]] = []
        self._raw: list[bytes] = []

    def _add(self, kind: str, count: int, raw: bytes) -> int:
        self._columns.append([kind, count, len(raw)])
        self._raw.append(raw)
        return len(self._columns) - 1

    def add_bytes(self, values: bytes) -> int:
        """Add small numbers, 0 to 255; return the column's number, as all that add do."""
        return self._add("b", len(values), values)

    def add_integers(self, values: Sequence[int]) -> int:
        """Add integers of any size."""
        least, most = min(values, default=0), max(values, default=0)
        if least > -_EXACT and most < _EXACT:
            steps = array("q", map(operator.sub, values, [0, *values[:-1]]))
            return self._add("d", len(values), _by_byte(steps))
        if least >= -_INT64 and most < _INT64:
            return self._add("q", len(values), _by_byte(array("q", values)))
        return self.add_texts(map(str, values))

    def add_floats(self, values: Iterable[float]) -> int:
        """Add floats; every bit of them is kept."""
        held = values if isinstance(values, array) else array("d", values)
        return self._add("f", len(held), _by_byte(held))

    def add_texts(self, values: Iterable[str]) -> int:
        """Add texts."""
        held = list(values)
        return self._add("t", len(held), json.dumps(held, separators=(",", ":")).encode())

    def packed(self, told: Any = None) -> str:
        """Return the box as text.

        Args:
            told: plain data that goes with it.
        """
        header = json.dumps({"told": told, "columns": self._columns}, separators=(",", ":")).encode()
        body = b"".join([len(header).to_bytes(4, "little"), header, *self._raw])
        return base64.b64encode(zlib.compress(body, 6)).decode()


def _by_byte(values: array[Any]) -> bytes:
    """Split numbers of 8 bytes: the lowest byte of all of them, then the next one."""
    if sys.byteorder == "big":
        values = array(values.typecode, values)
        values.byteswap()
    raw = values.tobytes()
    return b"".join(raw[i::8] for i in range(8))
