"""Comma-separated values: a row for each transition, a column for each field.

The journal is read twice: once for the columns, which later records may add to, and once for the rows.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from .flat import Columns, row_of
from .source import Source


def write(source: Source, path: Path) -> int:
    """Write the file; return how many transitions it holds."""
    columns = Columns()
    for record in source.records():
        columns.see(row_of(record))
    names = columns.names()
    with path.open("x", encoding="utf-8", newline="") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(names)
        out.writerows(_cells(source, names, columns.rows))
    return columns.rows


def _cells(source: Source, names: list[str], rows: int) -> Iterator[list[str]]:
    for record in islice(source.records(), rows):  # a run that is going on may have become longer
        row = row_of(record)
        yield [_cell(row.get(name)) for name in names]


def _cell(value: Any) -> str:
    """Write a value so that it reads back as the same: a float at its shortest, NaN as nan; nothing for None."""
    if value is None:
        return ""
    if value.__class__ is bool:
        return "true" if value else "false"
    return repr(value) if value.__class__ is float else str(value)


__all__ = ["write"]
