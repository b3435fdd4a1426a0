"""`tachograph show`: what a run went through, as a whole, record by record, or live."""

from __future__ import annotations

import argparse
import contextlib
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeGuard

from tachograph.engine import recording
from tachograph.states import CallerError, TachographError

from .screen import Screen
from .timeline import print_header, print_report

if TYPE_CHECKING:
    from tachograph.engine.journal import Journal, Record, SideRecord

_ROWS = 20
_QUIET = ("opened", "sealed", "closed")
"""Headers and footers of files, which are told of elsewhere; a header would match the name of every event."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what the command takes."""
    add = parser.add_argument
    add("run", metavar="RUN", type=Path, help="the run directory")
    one = parser.add_mutually_exclusive_group()
    one.add_argument("--at", metavar="SEQ", type=int, help="print one transition whole")
    one.add_argument("--grep", metavar="TEXT", type=_pattern, help="print the records whose line in the file matches")
    one.add_argument("--follow", "-f", action="store_true", help="print each new transition until the run ends")
    add("--json", action="store_true", help="print JSON: one object, for --grep and --follow one a line")
    add("--all", action="store_true", help="all incarnations, not only the live history")
    add("--check", action="store_true", help="read the snapshots whole and check their digests, not only their sizes")
    add(
        "--rows",
        metavar="N",
        type=_count,
        help="rows of each table, the first and the last; 0: all (20; with --json all)",
    )
    add("--rank", metavar="N", type=_count, default=0, help="whose journal to read (0)")
    add("--salvage", action="store_true", help="pass over what is damaged in the journal")


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text!r} isn't a regular expression ({error})") from error


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} isn't a number >= 0")
    return int(text)


def run(arguments: argparse.Namespace) -> int:
    """Print what was asked for."""
    if arguments.follow and (arguments.all or arguments.salvage):
        option = "--all" if arguments.all else "--salvage"
        raise CallerError(f"--follow shows what is being written, and {option} is about what was: give one")
    about = recording.load(arguments.run)
    screen = Screen()
    with _naming_the_way(arguments.run):
        if arguments.at is not None:
            return _print_at(arguments, screen)
        if arguments.grep is not None:
            return _print_matching(arguments, screen)
        if arguments.follow:
            return _follow(arguments, screen)
        return _print_whole(arguments, about, screen)


def _print_whole(arguments: argparse.Namespace, about: dict[str, Any], screen: Screen) -> int:
    if not arguments.json:
        print_header(arguments.run, about, screen)
        sys.stdout.flush()  # what comes next may take a while: the journal is read, and rich imported
    from tachograph.engine.journal import rank_directory

    from .report import gather

    most = (None if arguments.json else _ROWS) if arguments.rows is None else arguments.rows or None
    begun = rank_directory(arguments.run, 0).parent.is_dir()  # else its process died before it wrote a line
    journal = _open(arguments, every_life=True) if begun else None
    report = gather(arguments.run, about, journal, everything=arguments.all, most=most, check=arguments.check)
    if arguments.json:
        screen.json(report.as_data(), indent=2)
    else:
        print_report(report, screen, everything=arguments.all)
    return 0


def _open(arguments: argparse.Namespace, *, every_life: bool) -> Journal:
    from tachograph.engine.journal import Journal

    history: Literal["all", "live"] = "all" if every_life else "live"
    return Journal(arguments.run, rank=arguments.rank, history=history, salvage=arguments.salvage)


@contextlib.contextmanager
def _naming_the_way(run_dir: Path) -> Iterator[None]:
    """Say of a damaged journal how the command line reads it nevertheless."""
    try:
        yield
    except TachographError as error:
        from tachograph.engine.journal import JournalCorrupt, JournalError

        if not isinstance(error, JournalCorrupt):
            raise
        way = f"`tachograph show {run_dir} --salvage` reads what can be read, and changes nothing"
        raise JournalError(f"{error.file} is damaged at byte {error.offset:,}: {error.reason}. {way}") from error


def _print_at(arguments: argparse.Namespace, screen: Screen) -> int:
    from .records import as_data, print_page

    journal, seq = _open(arguments, every_life=arguments.all), arguments.at
    found = [record for record in journal if record.seq == seq] if arguments.all else []
    for number, record in enumerate(found or [journal.seek(seq)]):
        if arguments.json:
            screen.json(as_data(record), indent=None if arguments.all else 2)
            continue
        if number:
            screen.line()
        print_page(record, None if arguments.all else _before(journal, seq), screen)
    return 0


def _before(journal: Journal, seq: int) -> Record | None:
    from tachograph.engine.journal import JournalError

    try:
        return journal.seek(seq - 1)
    except JournalError:
        return None


def _print_matching(arguments: argparse.Namespace, screen: Screen) -> int:
    journal = _open(arguments, every_life=arguments.all)
    search, put, found = arguments.grep.search, _printer(screen, arguments.json), False
    for item in journal.everything():
        if search(item.line.decode("utf-8", "replace")) and not _is_quiet(item):
            found = True
            put(item)
    for damage in journal.damage:
        print(f"passed over at byte {damage.offset:,} of {damage.file}: {damage.reason}", file=sys.stderr)
    if not found:
        print(f"no record matches {arguments.grep.pattern!r}", file=sys.stderr)
    return 0 if found else 1


def _printer(screen: Screen, as_json: bool) -> Callable[[Record | SideRecord], None]:
    from .records import as_data, as_line

    if as_json:
        return lambda item: screen.json(as_data(item))
    return lambda item: screen.line(as_line(item, screen))


def _is_quiet(item: Record | SideRecord) -> TypeGuard[SideRecord]:
    return getattr(item, "kind", None) in _QUIET


def _follow(arguments: argparse.Namespace, screen: Screen) -> int:
    """Print the last transition and each new one, until the run is closed, or its process is gone."""
    from .alive import Watch

    journal = _open(arguments, every_life=False)
    last, put = journal.last, _printer(screen, arguments.json)
    seq = 0 if last is None else last.seq
    watch = Watch(arguments.run, arguments.rank)
    with contextlib.suppress(KeyboardInterrupt):
        for item in journal.follow(stop=watch.process_is_gone, after=max(seq - 1, 0), sides=True):
            seq = item.seq
            if not _is_quiet(item):
                put(item)
                sys.stdout.flush()
            elif item.kind == "closed" and item.incarnation == journal.incarnations[-1].number:
                return 0
        print(f"the run was killed after transition {seq:,}: its process is gone", file=sys.stderr)
    return 0
