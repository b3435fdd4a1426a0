"""`tachograph unpack`: a run directory of what `tachograph pack` wrote."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..screen import Screen, printable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what the command takes."""
    parser.add_argument("file", metavar="FILE", type=Path, help="what `tachograph pack` wrote")
    parser.add_argument("-o", "--output", metavar="DIR", type=Path, help="the run directory to make (FILE's name)")


def run(arguments: argparse.Namespace) -> int:
    """Check the file, and write what is in it."""
    from tachograph.engine.bundle import unpack

    found = unpack(arguments.file, arguments.output)
    told, screen = found.manifest, Screen()
    ranks = told["ranks"].values()
    first, last = min(rank["first"] for rank in ranks), max(rank["last"] for rank in ranks)
    where = f"transitions {first:,} to {last:,} of {printable(str(told['name']))}, around {told['around']:,}"
    screen.line(f"{found.run_dir}: {where}; every digest and the chain are right")
    for place in told["masked"]:
        screen.line(f"  masked: {printable(str(place))}")
    way = f"tachograph show {found.run_dir} --at {told['around']}"
    if told["snapshot"]:
        way += f"; tachograph verify {found.run_dir} --trainer module:function"
    screen.line(f"  next: {way}")
    return 0
