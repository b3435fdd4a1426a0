"""Parquet: a row for each transition, a typed column for each field, written in row groups.

The journal is read twice: once for the columns and their types, and once for the rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from tachograph.engine.journal.codec import plain, to_json
from tachograph.states.errors import CallerError

from .flat import Columns, row_of
from .source import Source

_GROUP = 16_384  # rows that are held in memory


def write(source: Source, path: Path) -> int:
    """Write the file; return how many transitions it holds.

    Raises:
        CallerError: pyarrow isn't installed.
    """
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise CallerError(
            "the format 'parquet' needs pyarrow, which isn't installed: pip install 'tachograph[parquet]'"
        ) from error
    columns = Columns()
    for record in source.records():
        columns.see(row_of(record))
    types = {name: _type_of(columns, name) for name in columns.names()}
    schema = pyarrow.schema([(name, getattr(pyarrow, kind)()) for name, (kind, _) in types.items()])
    with pyarrow.parquet.ParquetWriter(path, schema, compression="zstd") as out:
        rows = (row_of(record) for record in islice(source.records(), columns.rows))
        for group in _groups(rows):
            held = {name: [make(row.get(name)) for row in group] for name, (_, make) in types.items()}
            out.write_table(pyarrow.table(held, schema=schema))
    return columns.rows


def _groups(rows: Iterator[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    while group := list(islice(rows, _GROUP)):
        yield group


def _type_of(columns: Columns, name: str) -> tuple[str, Callable[[Any], Any]]:
    """Return the type that holds all values of a column, text where no other does, and what makes a value one of it."""
    kinds = columns.kinds[name]
    if kinds <= {bool} and kinds:
        return "bool_", _same
    if kinds == {int} and columns.least.get(name, 0) >= -(1 << 63):
        if columns.most.get(name, 0) < 1 << 63:
            return "int64", _same
        if columns.least.get(name, 0) >= 0 and columns.most[name] < 1 << 64:
            return "uint64", _same
    if kinds and kinds <= {int, float}:
        return "float64", _as_float
    return "string", _same if kinds <= {str} else _as_text


def _same(value: Any) -> Any:
    return value


def _as_float(value: Any) -> float | None:
    return None if value is None else float(value)


def _as_text(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else to_json(plain(value)).decode()


__all__ = ["write"]
