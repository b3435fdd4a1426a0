"""`tachograph watch`: a run that goes on, seen from another terminal or another machine that shares the disk.

It reads the journal alone, as it is written, and never takes the run's lock. On a terminal a page is drawn in place;
anywhere else there is a line every few seconds, and one for whatever happens between.
"""

from __future__ import annotations

import argparse
import math
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tachograph.engine import recording
from tachograph.states import CallerError

from ..screen import Screen, ended

if TYPE_CHECKING:
    from tachograph.engine.journal import Journal

    from ..watched import Watched

_POLL = 0.1
"""Seconds between two looks for new records."""
_GRACE = 5.0
"""Seconds for which a run whose processes are gone is waited for: it may be resumed at once."""
_BATCH = 64
"""Records between two looks at the clock, while a long journal is caught up with."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what the command takes."""
    add = parser.add_argument
    add("run", metavar="RUN", type=Path, help="the run directory; it may not be there yet")
    add("--every", metavar="SECONDS", type=_seconds, help="how often (0.5 on a terminal; else 10)")
    add("--lines", action="store_true", help="print lines on a terminal too")
    add("--ascii", action="store_true", help="draw in ASCII")
    add("--stay", action="store_true", help="stay when the run has ended, until Ctrl-C: it may be resumed")


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.05 <= value <= 86400:
        raise argparse.ArgumentTypeError(f"{text!r} isn't a number of seconds from 0.05 to 86400")
    return value


def run(arguments: argparse.Namespace) -> int:
    """Follow the run to its end. Status 0: it ended or was stopped; 1: it failed or was killed."""
    screen = Screen()
    in_place = sys.stdout.isatty() and not arguments.lines and os.environ.get("TERM") not in (None, "", "dumb")
    about = _when_there(arguments.run)
    from ..watched import Watched

    watched = Watched(arguments.run, about)
    display: _Lines | _Page = _Page(watched, screen, arguments.ascii) if in_place else _Lines(watched)
    every = arguments.every or (0.5 if in_place else 10.0)
    with _ended_by_signals(), display:
        _Watching(arguments.run, watched, display, every, arguments.stay).follow()
    how, _ = _end_of(watched)
    return 1 if how in ("failed", "killed") else 0


def _when_there(run_dir: Path) -> dict[str, Any]:
    """Wait until a run has begun, and return its `run.json`."""
    from tachograph.engine.journal import rank_directory

    said = False
    while True:
        if (run_dir / "run.json").is_file() and rank_directory(run_dir, 0).parent.is_dir():
            about = recording.load(run_dir)
            if any(rank_directory(run_dir, 0).parent.iterdir()):
                return about
        elif run_dir.is_file() or (run_dir.is_dir() and next(run_dir.glob("*/run.json"), None)):
            recording.load(run_dir)
            raise CallerError(f"{run_dir} isn't a run directory")
        if not said:
            print(f"waiting for {run_dir}: no run has begun there yet (Ctrl-C ends this)", file=sys.stderr, flush=True)
            said = True
        time.sleep(_POLL)


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Have SIGTERM and SIGHUP end the command as Ctrl-C does, so that the terminal is given back."""

    def end(number: int, frame: Any) -> None:
        raise SystemExit(128 + number)

    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# -- following ---------------------------------------------------------------------------------------------


class _Watching:
    """Reads what is new, has it shown, and notices the end."""

    def __init__(self, run_dir: Path, watched: Watched, display: _Lines | _Page, every: float, stay: bool) -> None:
        from tachograph.engine.journal import Journal

        self._journal: Journal = Journal(run_dir, rank="all")
        self._watched, self._display, self._every, self._stay = watched, display, every, stay
        self._shown = -math.inf
        self._gone_since: float | None = None
        self._caught_up = False

    def follow(self) -> None:
        """Follow the run until it has ended; what is shown then is its end."""
        for count, item in enumerate(self._journal.follow(_POLL, self._is_over, sides=True)):
            self._watched.take(item)
            self._gone_since = None
            if not count % _BATCH:
                self._show_if_due(caught_up=False)
        self._display.end(_status(self._watched))

    def _is_over(self) -> bool:
        """Say whether the run has ended; asked whenever there is nothing new."""
        self._show_if_due(caught_up=True)
        if self._stay:
            return False
        watched = self._watched
        if watched.newest >= 0 and not watched.open:
            return True
        return self._is_gone(watched.open or self._journal.ranks)

    def _is_gone(self, ranks: list[int]) -> bool:
        from ..alive import is_alive

        if any(is_alive(self._watched.run_dir, rank) is not False for rank in ranks):
            self._gone_since = None
        elif self._gone_since is None:
            self._gone_since = time.monotonic()
        return self._gone_since is not None and time.monotonic() - self._gone_since > _GRACE

    def _show_if_due(self, caught_up: bool) -> None:
        now, self._caught_up = time.monotonic(), self._caught_up or caught_up
        if now - self._shown < self._every and not (caught_up and self._display.has_news()):
            return
        if caught_up or self._display.shows_the_way:
            self._shown = now
            self._display.show(_status(self._watched) if self._caught_up else "reading the journal")


def _end_of(watched: Watched) -> tuple[str, str]:
    """Say how the run goes, or ended: a rank that failed speaks for all."""
    ends = [watched.ending(rank) for rank in watched.part or [0]]
    for kind in ("failed", "running", "unknown", "killed"):
        found = next((end for end in ends if end[0] == kind), None)
        if found is not None:
            return found
    return ends[0]


def _status(watched: Watched) -> str:
    how, detail = _end_of(watched)
    return ended({"ended": how, "detail": detail})


# -- showing -----------------------------------------------------------------------------------------------


class _Lines:
    """Lines: where the run stands, every now and then, and what happened."""

    shows_the_way = False

    def __init__(self, watched: Watched) -> None:
        self._watched = watched
        self._began = time.time()
        self._seq = -1
        self._first = True

    def __enter__(self) -> _Lines:
        print(f"Run {self._watched.run_dir}", flush=True)  # what comes next may take a while: the journal is read
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        sys.stdout.flush()

    def has_news(self) -> bool:
        """Whether something happened that isn't said yet."""
        return self._first or any(when >= self._began for when, _ in self._watched.news)

    def show(self, status: str) -> None:
        """Print what is new, and where the run stands if it went on."""
        from ..watch_page import line

        watched, last = self._watched, self._watched.last
        for when, told in watched.news:
            if when >= self._began:
                print(told)
        watched.news.clear()
        seq = -1 if last is None else last.seq
        if seq != self._seq or self._first:
            print(line(watched, time.time()))
        self._seq, self._first = seq, False
        sys.stdout.flush()

    def end(self, status: str) -> None:
        """Print what is new, and how the run ended."""
        self.show(status)
        print(f"the run has ended: {status}", flush=True)


class _Page:
    """A page that is drawn in place, on the terminal's other screen; its last state stays on the first one."""

    shows_the_way = True

    def __init__(self, watched: Watched, screen: Screen, ascii: bool) -> None:
        unicode = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
        self._watched, self._decorated, self._plain = watched, screen.decorated, ascii or not unicode
        self._status = ""

    def __enter__(self) -> _Page:
        sys.stdout.write("\x1b[?1049h\x1b[?25l\x1b[2J")
        sys.stdout.flush()
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        sys.stdout.write("\x1b[?25h\x1b[?1049l")
        for line in self._lines(margin=2):
            sys.stdout.write(f"{line}\n")
        sys.stdout.flush()

    def has_news(self) -> bool:
        """Whether something has to be shown at once: nothing has, the next page tells it."""
        return False

    def show(self, status: str) -> None:
        """Draw the page anew, in the size that the terminal has now."""
        self._status = status
        lines = self._lines(margin=0)
        sys.stdout.write("\x1b[H" + "\x1b[K\r\n".join(lines) + "\x1b[K\x1b[J")
        sys.stdout.flush()

    def end(self, status: str) -> None:
        """Draw the page once more."""
        self.show(status)

    def _lines(self, margin: int) -> list[str]:
        from ..watch_page import Paper, page

        try:
            size = os.get_terminal_size(sys.stdout.fileno())  # COLUMNS, if it is set, knows of no resizing
        except (OSError, ValueError):
            size = shutil.get_terminal_size()
        height = max(size.lines - margin, 1)
        paper = Paper(width=size.columns, height=height, plain=self._plain, decorated=self._decorated)
        return page(self._watched, self._status, paper, time.time())


__all__ = ["add_arguments", "run"]
