"""`tachograph graph`: the machine of a run, or that of every training run, as a drawing or as a table."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from tachograph.states import CallerError, training_machine
from tachograph.states.table import Plan


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what the command takes."""
    parser.add_argument("run", metavar="RUN", nargs="?", type=Path, help="a run directory: draw the machine it ran on")
    parser.add_argument("--table", action="store_true", help="print the transition table as Markdown instead")


def run(arguments: argparse.Namespace) -> int:
    """Print the machine."""
    plan = Plan.of(training_machine()) if arguments.run is None else _plan_of(arguments.run)
    print(plan.markdown() if arguments.table else plan.mermaid(), end="")
    return 0


def _plan_of(run_dir: Path) -> Plan:
    """Return the machine of a run, which its `run.json` tells since it was written by a version that told it."""
    from tachograph.engine import recording

    about: Any = recording.load(run_dir)
    plan = recording.plan_of(about)
    if plan is None:
        settings = about.get("settings")
        found = settings.get("machine") if isinstance(settings, dict) else None
        raise CallerError(
            f"{run_dir} ran on the machine {found}, this version's training machine is {training_machine().digest}: "
            "the two tables differ, and only the program that built the other one can draw it, with machine.mermaid()"
        )
    return plan
