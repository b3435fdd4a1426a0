"""`tachograph replay`: drives listeners from a run's journal, or goes through it transition by transition."""

from __future__ import annotations

import argparse
import contextlib
import re
import shutil
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tachograph.engine import recording
from tachograph.states import CallerError

from ..damaged import naming_the_way
from ..options import number
from ..screen import Screen

if TYPE_CHECKING:
    from tachograph.engine.callbacks.callback import Callback
    from tachograph.engine.journal import Record
    from tachograph.engine.replay import Replay

_LOGGERS = {"csv": "CSVLogger", "tensorboard": "TensorBoardLogger"}
_KEYS = "n: next, b: back, j SEQ: jump, r [SEQ|TEXT]: run on, s: state and data, q: quit"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what the command takes."""
    add = parser.add_argument
    add("run", metavar="RUN", type=Path, help="the run directory")
    add(
        "--to",
        nargs=2,
        metavar=("KIND", "FOLDER"),
        action="append",
        default=[],
        help="write the curves as a logger does: csv or tensorboard, and a folder that is new",
    )
    add(
        "--with",
        dest="listeners",
        metavar="MODULE:NAME",
        action="append",
        default=[],
        help="drive a callback of yours: a Callback class, or a function that returns one",
    )
    add("--from", dest="start", metavar="SEQ", type=number(), help="begin with this transition")
    add("--until", metavar="SEQ|TEXT", help="end after this transition, or after the first whose record matches TEXT")
    add("--step", action="store_true", help=f"go by hand ({_KEYS})")
    add("--machine", metavar="MODULE:NAME", help="a function that returns the run's machine, if it isn't the usual one")
    add("--rank", metavar="N", type=number(), help="whose journal (the lowest)")
    add("--salvage", action="store_true", help="pass over what is damaged in the journal")


def run(arguments: argparse.Namespace) -> int:
    """Replay the run."""
    recording.load(arguments.run)
    _check_kinds(arguments)
    way = f"`tachograph replay {arguments.run} --salvage` passes over what is damaged"
    with warnings.catch_warnings(), naming_the_way(way), _none_half_done(arguments):
        warnings.simplefilter("ignore")  # what was left out is said at the end
        dry = _replay(arguments)
        if arguments.start:
            _begin_at(dry, arguments.start)
        if arguments.step:
            with dry:
                return _Prompt(dry).run()
        stop, met = _stop(arguments.until)
        dry.run(stop)
    _report(dry)
    if arguments.until is not None and not met(dry.record):
        print(f"{arguments.until!r} wasn't met: the journal was heard to its end", file=sys.stderr)
        return 1
    return 0


@contextlib.contextmanager
def _none_half_done(arguments: argparse.Namespace) -> Iterator[None]:
    """Remove the folders that this replay began, if it doesn't come to its end."""
    new = [Path(folder) for _, folder in arguments.to if not Path(folder).exists()]
    try:
        yield
    except BaseException:
        for folder in new:
            shutil.rmtree(folder, ignore_errors=True)
        raise


def _check_kinds(arguments: argparse.Namespace) -> None:
    for kind, _ in arguments.to:
        if kind not in _LOGGERS:
            raise CallerError(f"--to takes {' or '.join(_LOGGERS)} and a folder, not {kind!r}")
    if arguments.step and arguments.until is not None:
        raise CallerError("--until is for a replay that runs by itself: with --step, type r SEQ or r TEXT")
    if not (arguments.to or arguments.listeners or arguments.step):
        raise CallerError("nothing would hear the replay: give --to, --with or --step")


def _replay(arguments: argparse.Namespace) -> Replay:
    from tachograph.engine import callbacks
    from tachograph.engine.journal.segments import ranks_of
    from tachograph.engine.replay import Replay

    machine = None if arguments.machine is None else _called(arguments.machine, "--machine")
    rank = ranks_of(arguments.run)[0] if arguments.rank is None else arguments.rank
    dry = Replay(arguments.run, machine, rank=rank, salvage=arguments.salvage)
    for kind, folder in arguments.to:
        dry.add_callback(getattr(callbacks, _LOGGERS[kind])(folder=Path(folder)))
    for text in arguments.listeners:
        dry.add_callback(_called(text, "--with"))
    return dry


def _called(text: str, option: str) -> Any:
    """Find what a text names, and call it."""
    from tachograph.engine.building import builder_of
    from tachograph.engine.callbacks.callback import Callback
    from tachograph.states import Machine

    wanted: type[Callback | Machine] = Machine if option == "--machine" else Callback
    make = builder_of(text, option)
    try:
        made = make()
    except Exception as error:
        raise CallerError(f"{option} {text}: it failed with {type(error).__name__}: {error}") from error
    if not isinstance(made, wanted):
        raise CallerError(f"{option} {text}: it made {type(made).__name__}, not a {wanted.__name__}")
    return made


def _begin_at(dry: Replay, seq: int) -> None:
    """Stand before a transition."""
    dry.jump(seq)
    dry.back()


def _stop(until: str | None) -> tuple[Any, Callable[[Record | None], bool]]:
    """Return what `Replay.run` is to stop at, and what says whether it was met."""
    if until is None:
        return None, lambda record: True
    if until.isdecimal():
        seq = int(until)
        return seq, lambda record: record is not None and record.seq >= seq
    search = _pattern(until).search

    def matches(record: Record | None) -> bool:
        return record is not None and search(record.line.decode("utf-8", "replace")) is not None

    return matches, matches


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise CallerError(f"{text!r} isn't a number, nor a regular expression ({error})") from error


def _report(dry: Replay) -> None:
    last = "" if dry.record is None else f", up to {dry.record.seq:,}"
    print(f"{dry.heard:,} transitions were heard{last}")
    for skipped in dry.skipped:
        print(f"left out: {skipped}")
    for wish in dry.wishes[:1]:
        reason = f": {wish.reason}" if wish.reason else ""
        print(f"after {wish.seq:,} a listener asked for {wish.what}{reason}")
    for damage in dry.journal.damage:
        print(f"passed over at byte {damage.offset:,} of {damage.file}: {damage.reason}", file=sys.stderr)


class _Prompt:
    """Goes through a journal as a person types."""

    def __init__(self, dry: Replay) -> None:
        self._dry = dry
        self._screen = Screen()
        self._acts: dict[str, Callable[[str], None]] = {
            "n": lambda _: self._show(dry.step(), "the end of the journal"),
            "": lambda _: self._show(dry.step(), "the end of the journal"),
            "b": lambda _: self._show(dry.back(), "before the first transition"),
            "j": self._jump,
            "r": self._run_on,
            "s": self._page,
        }

    def run(self) -> int:
        self._screen.line(_KEYS)
        while (line := self._ask()) is not None:
            key, _, rest = line.strip().partition(" ")
            if key == "q":
                break
            act = self._acts.get(key)
            try:
                self._screen.line(f"{key!r} is none of: {_KEYS}") if act is None else act(rest.strip())
            except CallerError as error:
                self._screen.line(str(error))
        if self._dry.listeners.subscriptions or self._dry.skipped:
            _report(self._dry)
        return 0

    def _ask(self) -> str | None:
        sys.stdout.write("> ")
        sys.stdout.flush()
        line = sys.stdin.readline()
        if not sys.stdin.isatty() or not line:
            sys.stdout.write("\n")
        return line or None

    def _show(self, record: Record | None, else_: str) -> None:
        from ..records import as_line

        self._screen.line(else_ if record is None else as_line(record, self._screen))

    def _jump(self, text: str) -> None:
        from tachograph.engine.journal import JournalError

        if not text.isdecimal():
            raise CallerError("j takes the number of a transition: j 120")
        try:
            self._show(self._dry.jump(int(text)), "before the first transition")
        except JournalError as error:
            self._screen.line(str(error))

    def _run_on(self, text: str) -> None:
        stop, _ = _stop(text or None)
        self._dry.run(stop)
        self._show(self._dry.record, "the journal is empty")

    def _page(self, _: str) -> None:
        from ..records import print_page

        if self._dry.record is None:
            self._screen.line("before the first transition")
        else:
            print_page(self._dry.record, None, self._screen)
