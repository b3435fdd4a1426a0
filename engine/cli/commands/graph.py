"""`tachograph graph`: the machine of a training run, as a drawing or as a table."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from tachograph.states import CallerError, Row, training_machine, training_rows
from tachograph.states.table import ANY


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what the command takes."""
    parser.add_argument("run", metavar="RUN", nargs="?", type=Path, help="a run directory: draw the machine it ran on")
    parser.add_argument("--table", action="store_true", help="print the transition table as Markdown instead")


def run(arguments: argparse.Namespace) -> int:
    """Print the machine."""
    if arguments.run is not None:
        _check(arguments.run)
    print(markdown(training_rows()) if arguments.table else training_machine().mermaid(), end="")
    return 0


def _check(run_dir: Path) -> None:
    """Refuse a run of another machine: this version knows its digest only, not its rows."""
    from tachograph.engine import recording

    settings: Any = recording.load(run_dir).get("settings")
    found = settings.get("machine") if isinstance(settings, dict) else None
    mine = training_machine().digest
    if found != mine:
        raise CallerError(
            f"{run_dir} ran on the machine {found}, this version's training machine is {mine}: the two tables differ, "
            "and only the program that built the other one can draw it, with machine.mermaid()"
        )


def markdown(rows: list[Row]) -> str:
    """Write a table's rows as Markdown."""
    guarded = {(row.source, row.event) for row in rows if row.guard is not None}
    lines = ["| source | event | guard | dest |", "|---|---|---|---|"]
    for row in rows:
        source = "any that isn't final" if row.source == ANY else row.source
        guard = row.label or ("else" if (row.source, row.event) in guarded else "")
        lines.append(f"| {source} | {row.event.__name__} | {f'{guard} ' if guard else ''}| {row.dest} |")
    return "\n".join(lines) + "\n"
