"""A run in other formats: a file here for each, which writes what a `Source` gives. None of them needs torch.

A new format is one new file and its line in `FORMATS`. Its module has `write(source, path)`, and `FOLDER` if it writes
a folder.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any, Literal

import attrs

from tachograph.engine.journal import Damage, JournalCorrupt, JournalError
from tachograph.states.errors import CallerError, nearest

from .source import Source
from .whole import whole

FORMATS = {
    "csv": "a row for each transition, a column for each field",
    "parquet": "the same, typed (pip install 'tachograph[parquet]')",
    "sqlite": "a database with the tables transitions, sides, notes and run",
    "tensorboard": "a folder of event files (pip install 'tachograph[tensorboard]')",
    "trace": "what the run did when, for Perfetto or chrome://tracing; packed if the path ends with .gz",
}
"""name, which is its module's as well -> what it writes."""


@attrs.frozen
class Exported:
    """What was written.

    Attributes:
        path: where.
        transitions: how many.
        damage: what a salvage passed over.
    """

    path: Path
    transitions: int
    damage: list[Damage]


def export(
    run_dir: str | Path,
    format: str,
    path: str | Path,
    *,
    rank: int | Literal["all"] = "all",
    every_life: bool = False,
    salvage: bool = False,
    force: bool = False,
) -> Exported:
    """Write a run in another format: `export("runs/first", "trace", "first.json.gz")`.

    It reads the journal in a stream, and what it writes is there as a whole or not at all.

    Args:
        run_dir: a run directory.
        format: one of `FORMATS`.
        path: the file, or for "tensorboard" the folder, to write.
        rank: whose journal, or "all".
        every_life: all incarnations' records; else the live history.
        salvage: pass over damage in the journal.
        force: replace what is at `path`, if it is of that kind.

    Raises:
        CallerError: there is no such format, what it needs isn't installed, or `path` can't be written to.
        NotARun, JournalError: `run_dir` isn't a run directory, has no such rank, or its journal is damaged.
        OSError: the system refused.
    """
    if format not in FORMATS:
        raise CallerError(f"there is no format {format!r}. {nearest(format, FORMATS)}")
    writer: Any = import_module(f".{format}", __package__)
    source = Source(run_dir, rank=rank, every_life=every_life, salvage=salvage)
    with whole(Path(path), folder=getattr(writer, "FOLDER", False), force=force) as temporary:
        try:
            written = writer.write(source, temporary)
        except JournalCorrupt as error:
            way = "With salvage=True (--salvage) what can be read is exported"
            raise JournalError(f"{error.file} is damaged at byte {error.offset:,}: {error.reason}. {way}") from error
    return Exported(Path(path), written, source.damage)


__all__ = ["FORMATS", "Exported", "Source", "export"]
