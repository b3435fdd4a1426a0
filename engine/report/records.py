"""What a page holds of every record: its data, its state and its chain, so that each can be shown whole.

Records of one kind have the same fields. So a record is told as a template, which is its text without the fields'
values, and the values, which stand in columns. A few thousand records are packed as one box, and a page unpacks the
one it needs. `run.js` puts the text together again.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from tachograph.engine.journal import Record

from .boxes import Box

SIZE = 8192
"""Records in a box."""
CHAIN_EVERY = 64
"""Of a long run, every so many chains are kept: they are random, so nothing makes them small."""
LONG = 250_000
"""Transitions from which on a run is long."""
ROOM = 18 << 20
"""Bytes of all boxes of a run. Beyond it, boxes are left out."""
_LONGEST = 1 << 16  # of a record's text
_CUT = 4096  # characters kept of a text in a longer one
_EXACT_DIGITS = 15

_TEXT = rb'"[^"\\]*(?:\\.[^"\\]*)*"'
_VALUE = rb"-?\d[-+.\deE]*|\[-?\d[-+.\deE,]*\]|" + _TEXT
_FIELD = re.compile(rb"(%b)((?::(?:%b)(?=[,}]))|)" % (_TEXT, _VALUE))
"""Any text, and where it is the name of a number, of a list of numbers or of a text, a colon and that.

Texts are gone through from the first to the last, none is entered in its middle: they may hold whatever looks like a
field.
"""


class Records:
    """The records of one rank, packed as they come.

    Attributes:
        boxes: the packed ones, "" for one that was left out.
        left_out: how many were.
        cut: how many records had a text that was cut.
    """

    def __init__(self) -> None:
        self.boxes: list[str] = []
        self.left_out = 0
        self.cut = 0
        self._kept: set[int] = set()
        self._chains: list[list[int]] = []
        self._packing = _Packing()

    def add(self, record: Record, *, kept: bool = False) -> None:
        """Add the next record.

        Args:
            record: it.
            kept: its box is among the last to be left out.
        """
        raw = bytes(record.raw_data) + b"\n" + bytes(record.raw_state)
        if len(raw) > _LONGEST:
            raw, cut = _shortened(raw)
            self.cut += cut
        if kept:
            self._kept.add(len(self._chains))
        self._packing.add(raw, int(record.chain, 16))
        if len(self._packing) == SIZE:
            self._pack()

    def close(self, count: int) -> None:
        """Pack what is left, and leave out what there is no room for.

        Args:
            count: how many records there are.
        """
        if len(self._packing):
            self._pack()
        self.boxes = [_with_chains(box, chains, count) for box, chains in zip(self.boxes, self._chains, strict=True)]
        self._leave_out()

    def _pack(self) -> None:
        self._chains.append(self._packing.chains)
        self.boxes.append(self._packing.packed())
        self._packing = _Packing()

    def _leave_out(self) -> None:
        """Leave out every other box, of those that are left, until the others fit."""
        protected = self._kept | {0, len(self.boxes) - 1}
        step = 2
        while sum(map(len, self.boxes)) > ROOM and step <= 2 * len(self.boxes):
            for i in range(len(self.boxes)):
                if i % step and i not in protected:
                    self.boxes[i] = ""
            step *= 2
        self.left_out = self.boxes.count("")


def _with_chains(box: str, chains: Sequence[int], count: int) -> str:
    """Return a box, and behind it the one of its chains; of a long run those of every so many records."""
    held = Box()
    held.add_integers(_signed(chains if count < LONG else chains[::CHAIN_EVERY]))
    return f"{box} {held.packed()}"


def _signed(values: Sequence[int]) -> list[int]:
    return [value - (1 << 64) if value >= 1 << 63 else value for value in values]


class _Packing:
    """Records on their way into a box."""

    def __init__(self) -> None:
        self.chains: list[int] = []
        self._templates: dict[bytes, int] = {}
        self._order: list[int] = []
        self._rows: list[list[list[bytes]]] = []

    def __len__(self) -> int:
        return len(self._order)

    def add(self, raw: bytes, chain: int) -> None:
        parts = _FIELD.split(raw)
        key = b"\0".join([*parts[::3], *parts[1::3]])  # JSON has no such byte
        template = self._templates.get(key)
        if template is None:
            template = self._templates[key] = len(self._rows)
            self._rows.append([])
        self._rows[template].append(parts[2::3])
        self._order.append(template)
        self.chains.append(chain)

    def packed(self) -> str:
        """Pack them: which template each is of, and of each template the columns of its values."""
        box = Box()
        order = box.add_integers(self._order)
        templates = [_template(box, key, rows) for key, rows in zip(self._templates, self._rows, strict=True)]
        return box.packed({"order": order, "templates": templates})


def _template(box: Box, key: bytes, rows: Sequence[Sequence[bytes]]) -> tuple[list[str], list[int | list[int]]]:
    """Return a template's parts, and the columns of the values between them."""
    pieces = key.decode("utf-8", "replace").split("\0")
    middle = len(pieces) // 2 + 1
    parts, columns = [pieces[0]], []
    for name, after, texts in zip(pieces[middle:], pieces[1:middle], zip(*rows, strict=True), strict=True):
        if texts[0]:  # of one template, all rows have a value here or none has
            parts += [f"{parts.pop()}{name}:", after]
            columns.append(_add(box, [text[1:] for text in texts]))
        else:
            parts[-1] += name + after
    return parts, columns


def _add(box: Box, texts: Sequence[bytes]) -> int | list[int]:
    """Add a column; where there are lists in it, two: how long each is (-1: a number), and what is in them."""
    if any(text.startswith(b'"') for text in texts):
        return box.add_texts(text.decode("utf-8", "replace") for text in texts)
    if not any(text.startswith(b"[") for text in texts):
        return _add_numbers(box, texts)
    parts = [text.strip(b"[]").split(b",") for text in texts]
    lengths = [len(part) if text.startswith(b"[") else -1 for text, part in zip(texts, parts, strict=True)]
    return [box.add_integers(lengths), _add_numbers(box, [number for part in parts for number in part])]


def _add_numbers(box: Box, texts: Sequence[bytes]) -> int:
    try:
        return box.add_integers(list(map(int, texts)))
    except ValueError:
        pass
    if any(len(text) > _EXACT_DIGITS and text.lstrip(b"-").isdigit() for text in texts):
        return box.add_texts(text.decode() for text in texts)  # a float couldn't hold such an integer
    return box.add_floats(map(float, texts))


def _shortened(raw: bytes) -> tuple[bytes, bool]:
    """Cut the long texts in a record's data and state."""
    cut = False

    def within(value: Any) -> Any:
        nonlocal cut
        if isinstance(value, str) and len(value) > _CUT:
            cut = True
            return f"{value[:_CUT]} … ({len(value) - _CUT:,} more characters)"
        if isinstance(value, dict):
            return {key: within(part) for key, part in value.items()}
        return [within(part) for part in value] if isinstance(value, list) else value

    halves = [within(json.loads(half)) for half in raw.split(b"\n")]
    return b"\n".join(json.dumps(half, separators=(",", ":")).encode() for half in halves), cut
