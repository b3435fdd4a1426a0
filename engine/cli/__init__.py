"""The command `tachograph`: reads runs in a terminal or in a pipe, and answers at once.

A command is one file in `commands/` plus its line in `COMMANDS`. The file has `add_arguments(parser)` and
`run(arguments)`, which returns the exit status; it reads through the public names of the floors it stands on, and
imports no torch, unless it runs a trainer. Only the command that was asked for is imported, and it imports what is
slow, rich above all, when it needs it.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

COMMANDS = {
    "diff": "find the first transition at which two runs part, and say why",
    "fork": "go on from any transition of a run with a change, as a run of its own",
    "export": "write a run in another format: a trace, a table, a database, event files",
    "graph": "print the machine of a training run as Mermaid text or as a table",
    "note": "write a note at a transition of a run, list the notes, or withdraw one",
    "pack": "put what a run did around a transition into one file, for a report of a bug",
    "replay": "drive listeners from a run's journal, or go through it transition by transition",
    "report": "write one page about a run, or about several side by side, to look at in a browser",
    "shell": "open Python where a trainer stands exactly before a transition of a run",
    "show": "show what a run went through: as a whole, record by record, or live",
    "snapshots": "list, verify or prune the snapshots of a run",
    "unpack": "make a run directory of a file that pack wrote",
    "verify": "execute a part of a run again and compare it with what was recorded",
    "watch": "follow a run while it goes on: its machine, progress, curves, ranks",
}
"""name, which is its module's as well -> what the command does."""


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line and exit with its status.

    0: done. 1: nothing was found. 2: the input can't be used, and one sentence on stderr says why. 130: interrupted.

    Args:
        argv: the arguments without the program's name; None takes those of the process.
    """
    from .app import run

    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # what was recorded may not fit the terminal's encoding
    sys.exit(run(sys.argv[1:] if argv is None else argv))


__all__ = ["COMMANDS", "main"]
