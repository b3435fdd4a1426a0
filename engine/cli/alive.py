"""Whether a run is being written now; asked without its lock, since a reader may never get into a writer's way."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterable
from pathlib import Path

from tachograph.engine.journal import Record, rank_directory


def writer_of(run_dir: Path, rank: int) -> tuple[int, str]:
    """Return (process, machine) of who wrote a journal last; (0, "") where that isn't known."""
    try:
        note = json.loads((rank_directory(run_dir, rank) / "lock").read_bytes())
        return int(note["pid"]), str(note["host"])
    except (OSError, ValueError, KeyError, TypeError):
        return 0, ""


def is_alive(run_dir: Path, rank: int = 0) -> bool | None:
    """Say whether the process that wrote a journal last is there; None where that can't be known from here.

    It's only meaningful for an incarnation that wasn't closed: the note about the process stays when it ends.
    """
    pid, host = writer_of(run_dir, rank)
    if host != socket.gethostname():
        return None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # it is there, and another user's
    return True


def ending(last: Record | None, closed: bool, alive: bool | None) -> tuple[str, str]:
    """Say how a life of a run ended, and the detail of it: a reason, a kind of error, a state.

    Args:
        last: its last transition.
        closed: it ended by itself.
        alive: whether its process is there; None where that isn't known.
    """
    if last is not None and last.event == "Failed":
        return "failed", str(last.data.get("kind"))
    if last is not None and last.event == "Stopped":
        return "stopped", str(last.data.get("reason"))
    if closed:
        return "closed", "" if last is None else last.dest
    return {True: "running", False: "killed", None: "unknown"}[alive], ""


class Watch:
    """Notices that a run's processes have gone without closing their journals.

    Args:
        run_dir: the run directory.
        ranks: whose journals.

    Attributes:
        open: those that aren't closed. The caller takes out what it has seen closed.
    """

    def __init__(self, run_dir: Path, ranks: Iterable[int]) -> None:
        self.open = set(ranks)
        self._run_dir = run_dir
        self._gone = False

    def processes_are_gone(self) -> bool:
        """Whether all are gone, and were when this was asked last: what they wrote at the end has been read since."""
        before, self._gone = self._gone, all(is_alive(self._run_dir, rank) is False for rank in self.open)
        return before and self._gone
