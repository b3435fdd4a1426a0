"""`tachograph export`: writes a run in another format."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tachograph.engine.exports import FORMATS, export

from ..options import rank_or_all


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what the command takes."""
    add = parser.add_argument
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    width = max(map(len, FORMATS))
    parser.epilog = "\n".join(["formats:", *(f"  {name:<{width}}  {what}" for name, what in FORMATS.items())])
    add("run", metavar="RUN", type=Path, help="the run directory")
    add("--to", metavar="FORMAT", required=True, help=f"one of {', '.join(FORMATS)}")
    add("-o", "--output", metavar="PATH", type=Path, required=True, help="the file, or for tensorboard the folder")
    add("--rank", metavar="N", type=rank_or_all, default="all", help="of this rank only (all)")
    add("--all", action="store_true", help="all incarnations, not only the live history")
    add("--salvage", action="store_true", help="pass over what is damaged in the journal")
    add("--force", action="store_true", help="replace what an export has written there before")


def run(arguments: argparse.Namespace) -> int:
    """Write it, and say what was written."""
    done = export(
        arguments.run,
        arguments.to,
        arguments.output,
        rank=arguments.rank,
        every_life=arguments.all,
        salvage=arguments.salvage,
        force=arguments.force,
    )
    for damage in done.damage:
        print(f"passed over at byte {damage.offset:,} of {damage.file}: {damage.reason}", file=sys.stderr)
    print(f"{done.transitions:,} transitions as {arguments.to} in {done.path}")
    return 0
