"""`tachograph pack`: a part of a run in one file, for a report of a bug."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tachograph.states import CallerError

from ..screen import Screen, printable, size

if TYPE_CHECKING:
    from tachograph.engine.bundle import Contents, Packed


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what the command takes."""
    add = parser.add_argument
    add("run", metavar="RUN", type=Path, help="the run directory")
    add("--around", metavar="SEQ", type=int, required=True, help="the transition in question")
    add("-o", "--output", metavar="FILE", type=Path, help="the file (RUN-SEQ.tachograph.zip)")
    add("--before", metavar="N", type=int, default=100, help="transitions before it (100)")
    add("--after", metavar="N", type=int, default=20, help="transitions after it (20)")
    add(
        "--without-snapshot", action="store_true", help="leave out the weights: the file is small, and can only be read"
    )
    add("--batches", action="store_true", help="put the data of the batches in, not only the ids; needs --trainer")
    add("--trainer", metavar="MODULE:FUNCTION", help="the function that builds the run's trainer, for --batches")
    add("--list", action="store_true", help="say what would be in the file, and write nothing")
    add("--keep-secrets", action="store_true", help="mask nothing")


def run(arguments: argparse.Namespace) -> int:
    """List what goes into the file, and write it."""
    from tachograph.engine.bundle import gather, listed, write

    if arguments.batches != (arguments.trainer is not None):
        lacking = "--trainer module:function" if arguments.batches else "--batches"
        raise CallerError(f"--batches and --trainer belong together: {lacking} is missing")
    how: dict[str, Any] = {"before": arguments.before, "after": arguments.after}
    how |= {"snapshot": not arguments.without_snapshot, "keep_secrets": arguments.keep_secrets}
    contents = gather(arguments.run, arguments.around, **how)
    screen = Screen()
    _print_choice(contents, screen)
    _print(listed(contents, arguments.output), screen, arguments.batches)
    if arguments.list:
        return 0
    trainer = None
    if arguments.batches:
        from tachograph.engine.building import trainer_of

        trainer = trainer_of(arguments.trainer)
    packed = write(contents, arguments.output, trainer)
    screen.line(f"{packed.path}, {size(packed.size)}: `tachograph unpack {packed.path}` makes a run directory of it")
    return 0


def _print_choice(contents: Contents, screen: Screen) -> None:
    around = f"around {contents.around:,}: transitions {contents.first:,} to {contents.last:,}"
    screen.line(around if contents.snapshot else f"{around}, and no snapshot")
    sys.stdout.flush()  # sample ids take a while: torch is imported


def _print(packed: Packed, screen: Screen, batches: bool) -> None:
    width = max(map(len, packed.files))
    for name, amount in packed.files.items():
        screen.line(f"  {printable(name):<{width}}  {size(amount):>8}")
    if batches:
        screen.line(f"  {'batches/':<{width}}  {'':>8}  as the trainer's loader makes them")
    for place in packed.masked:
        screen.line(f"  masked: {printable(place)}")
    if packed.unknown:
        screen.line(f"  no sample ids: {printable(packed.unknown)}")
    if packed.snapshot:
        screen.line("  the snapshot holds the weights, trainer.state and what callbacks remember, as they are")
