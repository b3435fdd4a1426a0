"""`tachograph shell`: opens Python where a trainer stands exactly before a transition of a run."""

from __future__ import annotations

import argparse
import code
import contextlib
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tachograph.engine import recording

from ..trainers import add_trainer, built, check_seq, in_a_sentence

if TYPE_CHECKING:
    from tachograph.engine import Trainer

_HELP = """\
trainer  stands there: trainer.advance() commits the transition in memory, trainer.rewind(run, seq=...) stands elsewhere
model    its model          optimizers  a list of them
batch    in hand: out = trainer.train_step(batch); trainer.backward(out); trainer.step(); trainer.zero_grad()
state    where the run is   record      what it had recorded of the transition to come
journal  all of its records"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what the command takes."""
    add = parser.add_argument
    add("run", metavar="RUN", type=Path, help="the run directory; nothing is written to it")
    add("--at", metavar="SEQ", type=int, required=True, help="the transition that would come next")
    add_trainer(parser)
    add("-c", metavar="CODE", dest="code", help="run this Python code there, instead of asking for some")


def run(arguments: argparse.Namespace) -> int:
    """Open the shell, or run the code; 1: the code raised something."""
    recording.load(arguments.run)
    check_seq(arguments.run, arguments.at, "seq")
    trainer = built(arguments)
    assert trainer.driver is not None
    try:
        with in_a_sentence(f"executing {arguments.run} again up to transition {arguments.at}"):
            trainer.rewind(arguments.run, seq=arguments.at)
        return _entered(arguments, _names(trainer, arguments))
    finally:
        trainer.driver.close()


def _names(trainer: Trainer, arguments: argparse.Namespace) -> dict[str, Any]:
    from tachograph.engine import Journal

    journal = Journal(arguments.run)
    return {
        "__name__": "__main__",
        "trainer": trainer,
        "model": trainer.model,
        "optimizers": trainer.driver.optimizers,  # type: ignore[union-attr]
        "batch": trainer.batch,
        "state": trainer.trainer_state,
        "record": journal.seek(arguments.at),
        "journal": journal,
        "run": arguments.run,
        **({"torch": sys.modules["torch"]} if "torch" in sys.modules else {}),
    }


def _entered(arguments: argparse.Namespace, names: dict[str, Any]) -> int:
    if arguments.code is not None:
        return _ran(arguments.code, names)
    state = names["state"]
    banner = (
        f"Before transition {arguments.at:,} of {arguments.run}: in {state.state}, epoch {state.cur_epoch_idx}, "
        f"batch {state.batch_idx_in_epoch}; recorded: {names['record']}\n{_HELP}"
    )
    with contextlib.suppress(ImportError):
        import readline
        import rlcompleter

        readline.set_completer(rlcompleter.Completer(names).complete)
        readline.parse_and_bind("tab: complete")
    code.interact(banner=banner, local=names, exitmsg="")
    return 0


def _ran(source: str, names: dict[str, Any]) -> int:
    try:
        exec(compile(source, "-c", "exec"), names)
    except Exception:
        traceback.print_exc()
        return 1
    return 0
