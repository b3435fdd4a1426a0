"""Whether a run is being written now; asked without its lock, since a reader may never get into a writer's way."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

from tachograph.engine.journal import rank_directory


def is_alive(run_dir: Path, rank: int = 0) -> bool | None:
    """Say whether the process that wrote a journal last is there; None where that can't be known from here.

    It's only meaningful for an incarnation that wasn't closed: the note about the process stays when it ends.
    """
    try:
        note = json.loads((rank_directory(run_dir, rank) / "lock").read_bytes())
        pid, host = int(note["pid"]), note["host"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    if host != socket.gethostname():
        return None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # it is there, and another user's
    return True


class Watch:
    """Notices that a run's process has gone without closing its journal.

    Args:
        run_dir: the run directory.
        rank: whose journal.
    """

    def __init__(self, run_dir: Path, rank: int) -> None:
        self._where = run_dir, rank
        self._gone = False

    def process_is_gone(self) -> bool:
        """Whether it is gone, and was when this was asked last: what it wrote at the end has been read since."""
        before, self._gone = self._gone, is_alive(*self._where) is False
        return before and self._gone
