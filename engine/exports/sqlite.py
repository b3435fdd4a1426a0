"""SQLite: a database with the tables `transitions`, `sides`, `notes` and `run`.

What every run has is a column. Events' data and states are columns of JSON, which SQLite reads by itself
(`json_extract(data, '$.loss')`), with NaN and infinities as "nan", "inf" and "-inf", as in the journal.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

from tachograph.engine.journal import Record, SideRecord
from tachograph.engine.journal.codec import plain, to_json

from .source import Source, state_of

_SCHEMA = """
CREATE TABLE run (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE notes (seq INTEGER NOT NULL, text TEXT NOT NULL, time REAL NOT NULL);
CREATE TABLE transitions (
    rank INTEGER NOT NULL, incarnation INTEGER NOT NULL, seq INTEGER NOT NULL,
    "from" TEXT NOT NULL, event TEXT NOT NULL, "to" TEXT NOT NULL,
    time REAL NOT NULL, chain TEXT NOT NULL,
    epoch INTEGER, batch INTEGER, loss REAL,
    data TEXT NOT NULL, state TEXT NOT NULL
);
CREATE TABLE sides (
    rank INTEGER NOT NULL, incarnation INTEGER NOT NULL, seq INTEGER NOT NULL,
    kind TEXT NOT NULL, time REAL NOT NULL, data TEXT NOT NULL
);
"""
_INDICES = """
CREATE INDEX transitions_by_seq ON transitions (seq, rank, incarnation);
CREATE INDEX transitions_by_event ON transitions (event, seq);
CREATE INDEX sides_by_kind ON sides (kind, seq);
"""
_TRANSITION = f"INSERT INTO transitions VALUES ({', '.join('?' * 13)})"
_SIDE = f"INSERT INTO sides VALUES ({', '.join('?' * 6)})"
_AT_ONCE = 512  # rows


def write(source: Source, path: Path) -> int:
    """Write the file; return how many transitions it holds."""
    count = 0
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("PRAGMA journal_mode = OFF")  # a file that isn't whole is thrown away
        db.execute("PRAGMA synchronous = OFF")
        db.execute("BEGIN")
        for statement in filter(str.strip, _SCHEMA.split(";")):
            db.execute(statement)
        about = ((name, _json(value)) for name, value in source.about.items())
        db.executemany("INSERT INTO run VALUES (?, ?)", about)
        db.executemany("INSERT INTO notes VALUES (?, ?, ?)", ((n.seq, n.text, n.time) for n in source.notes))
        items = source.items()
        while some := list(islice(items, _AT_ONCE)):
            rows = [_transition(item) for item in some if isinstance(item, Record)]
            db.executemany(_TRANSITION, rows)
            db.executemany(_SIDE, [_side(item) for item in some if isinstance(item, SideRecord)])
            count += len(rows)
        for statement in filter(str.strip, _INDICES.split(";")):
            db.execute(statement)
        db.execute("COMMIT")
    return count


def _transition(record: Record) -> tuple[Any, ...]:
    data, state = record.data, state_of(record)
    loss = data.get("loss")
    return (
        *(record.rank, record.incarnation, record.seq, record.source, record.event, record.dest),
        *(record.meta["time"], record.chain, state.get("cur_epoch_idx"), state.get("global_forward_batches")),
        *(loss if isinstance(loss, (int, float)) else None, _json(data), _json(state)),
    )


def _side(side: SideRecord) -> tuple[Any, ...]:
    return side.rank, side.incarnation, side.seq, side.kind, side.meta["time"], _json(side.data)


def _json(value: Any) -> str:
    return to_json(plain(value)).decode()


__all__ = ["write"]
