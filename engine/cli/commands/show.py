"""`tachograph show`: what a run went through, as a whole, record by record, or live."""

from __future__ import annotations

import argparse
import contextlib
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeGuard

from tachograph.engine import recording
from tachograph.states import CallerError

from ..damaged import naming_the_way
from ..options import number, rank_or_all
from ..screen import Screen
from ..timeline import print_header, print_report

if TYPE_CHECKING:
    from tachograph.engine.journal import Journal, Record, SideRecord
    from tachograph.engine.samples import Samples

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
    add("--samples", action="store_true", help="with --at: the ids of the samples in the batch (this imports torch)")
    add("--trainer", metavar="MODULE:FUNCTION", help="with --samples: builds the trainer whose loader is asked")
    add("--json", action="store_true", help="print JSON: one object, for --grep and --follow one a line")
    add("--all", action="store_true", help="all incarnations, not only the live history")
    add("--check", action="store_true", help="read the snapshots whole and check their digests, not only their sizes")
    add(
        "--rows",
        metavar="N",
        type=number(),
        help="rows of each table, the first and the last; 0: all (20; with --json all)",
    )
    add(
        "--rank",
        metavar="N",
        type=rank_or_all,
        help="the journal of this rank only; all: the records of all ranks, merged",
    )
    add("--salvage", action="store_true", help="pass over what is damaged in the journal")


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise argparse.ArgumentTypeError(f"{text!r} isn't a regular expression ({error})") from error


def run(arguments: argparse.Namespace) -> int:
    """Print what was asked for."""
    if arguments.follow and (arguments.all or arguments.salvage):
        option = "--all" if arguments.all else "--salvage"
        raise CallerError(f"--follow shows what is being written, and {option} is about what was: give one")
    _check_samples(arguments)
    about = recording.load(arguments.run)
    screen = Screen()
    with naming_the_way(f"`tachograph show {arguments.run} --salvage` reads what can be read, and changes nothing"):
        if arguments.at is not None:
            return _print_at(arguments, screen)
        if arguments.follow:
            return _follow(arguments, screen)
        if arguments.grep is not None or arguments.rank == "all":
            return _print_matching(arguments, screen)
        return _print_whole(arguments, about, screen)


def _check_samples(arguments: argparse.Namespace) -> None:
    if arguments.trainer and not arguments.samples:
        raise CallerError("--trainer is asked for samples only: give --samples as well")
    if arguments.samples and (arguments.at is None or arguments.all or arguments.rank == "all"):
        raise CallerError("--samples are those of one batch: give --at SEQ, and not --all nor --rank all")


def _print_whole(arguments: argparse.Namespace, about: dict[str, Any], screen: Screen) -> int:
    if not arguments.json:
        print_header(arguments.run, about, screen)
        sys.stdout.flush()  # what comes next may take a while: the journal is read, and rich imported
    from tachograph.engine.journal import rank_directory

    from ..overview import gather

    most = (None if arguments.json else _ROWS) if arguments.rows is None else arguments.rows or None
    begun = rank_directory(arguments.run, 0).parent.is_dir()  # else its process died before it wrote a line
    journal = _open(arguments, every_life=True) if begun else None
    asked = {"everything": arguments.all, "most": most, "check": arguments.check}
    ranks = _abreast(arguments, about) if begun and arguments.rank is None else None
    report = gather(arguments.run, about, journal, **asked, ranks=ranks)
    if arguments.json:
        screen.json(report.as_data(), indent=2)
    else:
        print_report(report, screen, everything=arguments.all)
    return 0


def _abreast(arguments: argparse.Namespace, about: dict[str, Any]) -> dict[str, Any] | None:
    """Compare the ranks of a run that has several."""
    from tachograph.engine.journal.segments import ranks_of

    told = about.get("world")
    world = told if isinstance(told, int) else 1
    if max(world, len(ranks_of(arguments.run))) == 1:
        return None
    from .. import ranks

    return ranks.gather(arguments.run, world, arguments.salvage)


def _open(arguments: argparse.Namespace, *, every_life: bool) -> Journal:
    from tachograph.engine.journal import Journal
    from tachograph.engine.journal.segments import ranks_of

    history: Literal["all", "live"] = "all" if every_life else "live"
    rank = ranks_of(arguments.run)[0] if arguments.rank is None else arguments.rank
    return Journal(arguments.run, rank=rank, history=history, salvage=arguments.salvage)


def _print_at(arguments: argparse.Namespace, screen: Screen) -> int:
    import attrs

    from tachograph.engine.journal import read_notes

    from .. import noted
    from ..records import as_data, print_notes, print_page, print_samples

    journal, seq = _open(arguments, every_life=arguments.all), arguments.at
    several = arguments.all or arguments.rank == "all"
    batch = _samples(arguments) if arguments.samples else None
    notes = read_notes(arguments.run).at(seq)
    found = [record for record in journal if record.seq == seq] if several else []
    for nth, record in enumerate(found or [journal.seek(seq)]):
        if arguments.json:
            extra: dict[str, Any] = {"notes": [noted.as_data(note) for note in notes]} if notes else {}
            extra |= {"samples": attrs.asdict(batch)} if batch is not None else {}
            screen.json({**as_data(record), **extra}, indent=None if several else 2)
            continue
        if nth:
            screen.line()
        print_page(record, None if arguments.all else _before(journal, record), screen)
    if not arguments.json:
        print_notes(notes, screen)
        if batch is not None:
            print_samples(batch, screen)
    return 0


def _samples(arguments: argparse.Namespace) -> Samples:
    from tachograph.engine.building import trainer_of
    from tachograph.engine.samples import find_samples

    trainer = None if arguments.trainer is None else trainer_of(arguments.trainer)
    return find_samples(arguments.run, arguments.at, rank=arguments.rank, trainer=trainer)


def _before(journal: Journal, record: Record) -> Record | None:
    from tachograph.engine.journal import Journal, JournalError

    try:
        return Journal(journal.run_dir, rank=record.rank).seek(record.seq - 1)
    except JournalError:
        return None


def _print_matching(arguments: argparse.Namespace, screen: Screen) -> int:
    journal = _open(arguments, every_life=arguments.all)
    search = None if arguments.grep is None else arguments.grep.search
    put, found = _printer(screen, arguments), False
    for item in journal.everything():
        if not _is_quiet(item) and (search is None or search(item.line.decode("utf-8", "replace"))):
            found = True
            put(item)
    for damage in journal.damage:
        print(f"passed over at byte {damage.offset:,} of {damage.file}: {damage.reason}", file=sys.stderr)
    if not found:
        text = "there is no record" if search is None else f"no record matches {arguments.grep.pattern!r}"
        print(text, file=sys.stderr)
    return 0 if found else 1


def _printer(screen: Screen, arguments: argparse.Namespace) -> Callable[[Record | SideRecord], None]:
    from ..records import as_data, as_line

    if arguments.json:
        return lambda item: screen.json(as_data(item))
    return lambda item: screen.line(as_line(item, screen, whose=arguments.rank == "all"))


def _is_quiet(item: Record | SideRecord) -> TypeGuard[SideRecord]:
    return getattr(item, "kind", None) in _QUIET


def _follow(arguments: argparse.Namespace, screen: Screen) -> int:
    """Print the last transition and each new one, until the run is closed, or its processes are gone."""
    from ..alive import Watch

    journal = _open(arguments, every_life=False)
    put, reached = _printer(screen, arguments), _reached(journal)
    watch = Watch(arguments.run, reached)
    after = max(min(reached.values(), default=0) - 1, 0)
    with contextlib.suppress(KeyboardInterrupt):
        for item in journal.follow(stop=watch.processes_are_gone, after=after, sides=True):
            if item.rank not in reached:
                watch.open.add(item.rank)  # a rank that came later
            reached[item.rank] = item.seq
            if not _is_quiet(item):
                put(item)
                sys.stdout.flush()
            elif item.kind == "closed" and item.incarnation == journal.incarnations[-1].number:
                watch.open.discard(item.rank)
                if not watch.open:
                    return 0
        _say_killed(arguments, {rank: reached[rank] for rank in watch.open})
    return 0


def _reached(journal: Journal) -> dict[int, int]:
    """Return the last live transition of each rank that has a part in the run."""
    from tachograph.engine.journal import Journal

    from ..ranks import taking_part

    held = {rank: Journal(journal.run_dir, rank=rank) for rank in journal.ranks}
    part = taking_part({rank: journal.incarnations for rank, journal in held.items()})
    return {rank: 0 if (last := held[rank].last) is None else last.seq for rank in part}


def _say_killed(arguments: argparse.Namespace, reached: dict[int, int]) -> None:
    for rank, seq in sorted(reached.items()):
        whose = f"rank {rank} of " if arguments.rank == "all" else ""
        print(f"{whose}the run was killed after transition {seq:,}: its process is gone", file=sys.stderr)
