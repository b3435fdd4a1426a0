"""`tachograph fork`: goes on from any transition of a run with a change, as a run of its own."""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING

from tachograph.engine import recording
from tachograph.states import CallerError

from ..options import number
from ..screen import Screen
from ..trainers import add_trainer, built, check_seq, in_a_sentence

if TYPE_CHECKING:
    from tachograph.engine import Trainer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what the command takes."""
    add = parser.add_argument
    add("run", metavar="RUN", type=Path, help="the run directory; nothing is written to it")
    add("--at", metavar="SEQ", type=int, required=True, help="the first transition that is done anew")
    add_trainer(parser)
    add("-o", "--output", metavar="DIR", type=Path, required=True, help="the new run's directory")
    add("--lr", metavar="RATE", type=_rate, help="another learning rate from there on; a schedule goes on from it")
    add("--skip-batch", action="store_true", help="pass over the batch in hand: the transition must leave step")
    add(
        "--change",
        metavar="MODULE:FUNCTION",
        help="called with the trainer when it stands there: it may change anything, the data too",
    )
    add("--n-epochs", metavar="N", type=number(1), help="the new run's limit in epochs, those before the fork included")
    add("--n-batches", metavar="N", type=number(1), help="likewise in batches")


def _rate(text: str) -> float:
    try:
        rate = float(text)
    except ValueError:
        rate = math.nan
    if not (math.isfinite(rate) and rate >= 0):
        raise argparse.ArgumentTypeError(f"{text!r} is no learning rate")
    return rate


def run(arguments: argparse.Namespace) -> int:
    """Fork, and train to the new run's end."""
    recording.load(arguments.run)
    if recording.holds_a_run(arguments.output):
        raise CallerError(f"{arguments.output} holds a run already: give another -o")
    check_seq(arguments.run, arguments.at, "seq")
    from tachograph.engine import Journal
    from tachograph.engine.building import builder_of

    source = Journal(arguments.run).seek(arguments.at).source
    if arguments.skip_batch and source != "step":
        raise CallerError(f"there is no batch in hand: transition {arguments.at} leaves {source}, and not step")

    change = None if arguments.change is None else builder_of(arguments.change, "--change")
    trainer = built(arguments, shown=True)
    assert trainer.driver is not None
    try:
        with in_a_sentence(f"executing {arguments.run} again up to transition {arguments.at}"):
            trainer.rewind(arguments.run, seq=arguments.at)
        with in_a_sentence("the change"):
            _change(trainer, arguments)
            if change is not None:
                change(trainer)
        trainer.run_dir = arguments.output
        with in_a_sentence(f"training in {arguments.output}"):
            state = trainer.run(**trainer._rehearsal.run_arguments)
    finally:
        trainer.driver.close()
    told = f"{arguments.output} went on from transition {arguments.at - 1:,} of {arguments.run}, and ended in "
    Screen().line(
        f"{told}{state.state} after {state.seq:,}. Compare: tachograph diff {arguments.run} {arguments.output}"
    )
    return 0


def _change(trainer: Trainer, arguments: argparse.Namespace) -> None:
    if arguments.lr is not None:
        trainer.set_learning_rate(arguments.lr)
    if arguments.skip_batch:
        trainer.skip_batch()
    if arguments.n_epochs is not None:
        trainer.n_batches, trainer.n_epochs = None, arguments.n_epochs
    if arguments.n_batches is not None:
        trainer.n_batches = arguments.n_batches
