"""The option of commands that run a trainer: which function builds it."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tachograph.states import CallerError, TachographError

if TYPE_CHECKING:
    from tachograph.engine import Trainer


def add_trainer(parser: argparse.ArgumentParser) -> None:
    """Add the option `--trainer`."""
    parser.add_argument(
        "--trainer",
        metavar="MODULE:FUNCTION",
        required=True,
        help="builds the run's trainer: module:function, or path/to/script.py:function; called without arguments",
    )


def built(arguments: argparse.Namespace, *, shown: bool = False) -> Trainer:
    """Build the trainer that was asked for; what it has to say goes to stderr.

    Args:
        arguments: those of the command.
        shown: training goes on, so that a progress display stays, and says what there is to say.

    Raises:
        CallerError: it can't be built; the message says why.
    """
    from tachograph.engine import Events, Progress
    from tachograph.engine.building import trainer_of

    trainer = trainer_of(arguments.trainer)
    displays = [callback for callback in trainer.listeners.callbacks.values() if isinstance(callback, Progress)]
    for callback in () if shown else displays:
        trainer.listeners.remove_callback(callback)
    if not (shown and displays):
        trainer.on(Events.on_notice, say)
    return trainer


def check_seq(run_dir: Path, seq: int | None, name: str) -> None:
    """Refuse a transition that a run hasn't got, before the trainer is built.

    Raises:
        CallerError: it names the range.
    """
    if seq is None:
        return
    from tachograph.engine import Journal

    journal = Journal(run_dir)
    first, last = journal.beginning.seq + 1, 0 if journal.last is None else journal.last.seq
    if not first <= seq <= last:
        raise CallerError(f"{name}={seq}: {run_dir} has the transitions {first} to {last}")


def say(trainer: Any, text: str) -> None:
    """Print a sentence of a trainer's."""
    print(text, file=sys.stderr, flush=True)


@contextlib.contextmanager
def in_a_sentence(what: str) -> Iterator[None]:
    """Say an error of the user's own code as one of the input, with the place in that code.

    Raises:
        CallerError: it.
    """
    try:
        yield
    except (TachographError, OSError):
        raise
    except Exception as error:
        notes = "; ".join(getattr(error, "__notes__", ()))
        where = f" ({notes})" if notes else ""
        raise CallerError(f"{what} failed with {type(error).__name__}: {error}{where}") from error
