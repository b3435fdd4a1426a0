"""`tachograph report`: one page about a run, or about several side by side, to look at in a browser."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tachograph.engine import recording
from tachograph.states import CallerError

from ..options import rank
from ..screen import Screen, printable, size


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what the command takes."""
    add = parser.add_argument
    add("runs", metavar="RUN", nargs="+", type=Path, help="run directories; each but the first is compared with it")
    add("-o", "--output", metavar="FILE", type=Path, default=Path("report.html"), help="the file (report.html)")
    add("--rank", metavar="N", type=rank, help="show the journal of this rank (the lowest)")
    add("--salvage", action="store_true", help="pass over what is damaged in a journal")


def run(arguments: argparse.Namespace) -> int:
    """Write the page."""
    for run_dir in arguments.runs:
        recording.load(run_dir)  # what is no run is said at once
    if not arguments.output.absolute().parent.is_dir():
        raise CallerError(f"there is no folder {arguments.output.parent} for the page")
    screen = Screen()
    screen.line(f"Reading {', '.join(printable(str(run_dir)) for run_dir in arguments.runs)}")
    sys.stdout.flush()  # a long journal takes a while
    from tachograph.engine.report import report

    written = report(arguments.runs, arguments.output, rank=arguments.rank, salvage=arguments.salvage)
    screen.line(f"{arguments.output} has {written.transitions:,} transitions in {size(written.size)}")
    if written.left_out:
        screen.line(f"{written.left_out:,} blocks of records had no room in it: the page says which transitions")
    for run_dir, found in zip(arguments.runs[1:], written.divergences, strict=True):
        if found is not None:
            screen.line(printable(f"{arguments.runs[0]} and {run_dir} part at {found}"))
            if found.hint:
                screen.line(f"  {printable(found.hint)}")
    return 0
