"""`tachograph verify`: executes a part of a run again and compares it with what was recorded."""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tachograph.engine import recording
from tachograph.states import CallerError

from ..options import number
from ..screen import Screen, exact, printable
from ..trainers import add_trainer, built, check_seq, in_a_sentence

if TYPE_CHECKING:
    from tachograph.engine.rehearsal import Verification


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what the command takes."""
    add = parser.add_argument
    add("run", metavar="RUN", type=Path, help="the run directory; nothing is written to it")
    add_trainer(parser)
    add("--start", metavar="SEQ", type=int, help="the first transition of interest; else the first one there is")
    add("--stop", metavar="SEQ", type=int, help="the last one; else the run's last")
    several = parser.add_mutually_exclusive_group()
    several.add_argument(
        "--sample",
        metavar="P%",
        type=_share,
        help="at least this share of the run, here and there: whole parts between snapshots",
    )
    several.add_argument(
        "--repeat", metavar="N", type=number(2), help="N times, to tell what kind of fault it is; N >= 2"
    )
    add("--seed", metavar="N", type=int, help="of what --sample draws; else another one at each call")
    add("--json", action="store_true", help="print JSON")


def _share(text: str) -> float:
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = 0.0
    if not 0.0 < share <= 1.0:
        raise argparse.ArgumentTypeError(f"{text!r} is no share: 1%, or 0.01")
    return share


def run(arguments: argparse.Namespace) -> int:
    """Verify; 0: all matches, 1: something differs."""
    if arguments.sample is not None and (arguments.start is not None or arguments.stop is not None):
        raise CallerError("--sample looks here and there in the whole run: leave --start and --stop out")
    recording.load(arguments.run)  # a mistyped path is said before anything is imported
    for name in ("start", "stop"):
        check_seq(arguments.run, getattr(arguments, name), name)
    screen = Screen()
    if arguments.repeat is not None:
        return _repeat(arguments, screen)
    with in_a_sentence(f"executing {arguments.run} again"):
        done = _done(arguments)
    if arguments.json:
        screen.json({"matches": done[-1].divergence is None, "parts": [_plain(part) for part in done]}, indent=2)
    else:
        for part in done:
            _print(part, screen)
    return int(done[-1].divergence is not None)


def _done(arguments: argparse.Namespace) -> Sequence[Verification]:
    from tachograph.engine.rehearsal import patrol, verify

    trainer = built(arguments)
    if arguments.sample is None:
        return [verify(trainer, arguments.run, arguments.start, arguments.stop)]
    return list(patrol(trainer, arguments.run, arguments.sample, random.Random(arguments.seed)))


def _repeat(arguments: argparse.Namespace, screen: Screen) -> int:
    from tachograph.engine.rehearsal import repeated

    with in_a_sentence(f"executing {arguments.run} again"):
        part = arguments.run, arguments.start, arguments.stop
        verdict = repeated(lambda: built(arguments), *part, arguments.repeat)
    if arguments.json:
        parts = [_plain(part) for part in verdict.verifications]
        told = {"matches": verdict.kind == "matches", "kind": verdict.kind, "text": verdict.text, "parts": parts}
        screen.json(told, indent=2)
    else:
        for verification in verdict.verifications:
            _print(verification, screen, hint=False)
        screen.line(f"\n{verdict.kind}: {verdict.text}")
    return int(verdict.kind != "matches")


def _print(verification: Verification, screen: Screen, *, hint: bool = True) -> None:
    found = verification.divergence
    if found is None:
        screen.line(str(verification))
        return
    screen.line(f"{verification.count}; then they part at transition {found.seq:,}  {found.field}, in {found.state}")
    rows = [("recorded", exact(found.recorded)), ("found", exact(found.found)), ("cause", printable(found.cause))]
    screen.pairs([*rows, *([("next", found.hint)] if hint else [])])


def _plain(verification: Verification) -> dict[str, Any]:
    import attrs

    return attrs.asdict(verification)
