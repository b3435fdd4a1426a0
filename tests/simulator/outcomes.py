"""What a life may end with, by what befell it. Anything else is a failure.

- Nothing, a damaged or lost file of a snapshot, an older snapshot to go on from: its work done.
- A snapshot to go on from that power has cut off from the journal: `SnapshotFault`.
- A kill, a power cut: nothing is asked of it, only of what it leaves.
- A full or a broken disk: `JournalWriteError`, `SnapshotWriteFault`, or `CallerError` if the run directory can't be
  made. Its work done, where what failed was only to tidy up, or where a snapshot's error is to be a warning.
- A garbled write: `SnapshotWriteFault`, since what is written is read back; or its work done, likewise.
- A file that can't be read: its work done, from another snapshot; `SnapshotWriteFault` if it was being read back.
- Ctrl-C inside an operation: `KeyboardInterrupt`.
- A signal: `SystemExit(128 + n)`, and `KeyboardInterrupt` for SIGINT, even if the run was done.
- An error in model, data, metric or listener: this very error.
- An error while a snapshot is written: `SnapshotWriteFault` caused by it; its work done, if it is to be a warning.
- A bit of the journal: `JournalCorrupt` or `JournalFormat`, and nothing was changed. A bit of the durable mark: the
  same, or its work done, where the bit means nothing.
"""

from __future__ import annotations

import signal
from typing import Any

from tachograph.engine.journal import JournalCorrupt, JournalFormat, JournalWriteError
from tachograph.engine.snapshots import SnapshotFault, SnapshotWriteFault
from tachograph.states import CallerError

from .checks import Broken, check
from .disk import Strike
from .plan import Event


def refused(error: BaseException | None) -> bool:
    """Say whether a damaged journal was refused."""
    return isinstance(error, JournalCorrupt | JournalFormat)


def check_outcome(
    error: BaseException | None, state: Any, struck: list[tuple[Event, str]], fired: list[Strike], on_fault: str
) -> None:
    """Hold what a life ended with against what befell it.

    Args:
        error: what it raised.
        state: where it stands.
        struck: what struck the process, with the place.
        fired: what struck its disk.
        on_fault: "raise" or "warn": what becomes of a snapshot that can't be written.

    Raises:
        Broken: it may not end so.
    """
    faults = {strike.kind for strike in fired}
    if error is None:
        heard = [where for _, where in struck if on_fault == "raise" or ", save," not in where]
        check(not heard and "ctrl-c" not in faults, f"it returned in spite of {heard or 'Ctrl-C'}")
        check(state.state == "done", f"it returned, and stands in '{state.state}'")
        return
    allowed = [_is_a_disks(error) and bool(faults & {"full", "broken", "unreadable", "garbled"})]
    allowed.append(isinstance(error, SnapshotFault) and "can't be gone on from" in str(error))
    allowed.append("ctrl-c" in faults and isinstance(error, KeyboardInterrupt))
    for event, _ in struck:
        allowed.append(error is event.error)
        allowed.append(isinstance(error, SnapshotWriteFault) and error.__cause__ is event.error)
        allowed.append(event.kind == "signal" and _is_a_signals(error, event.signal))
    if not any(allowed):
        raise Broken(f"it ended with {error!r}") from error


def _is_a_disks(error: BaseException) -> bool:
    if isinstance(error, CallerError):
        return "can't be written" in str(error)
    return isinstance(error, JournalWriteError | SnapshotWriteFault)


def _is_a_signals(error: BaseException, number: int) -> bool:
    if number == signal.SIGINT:
        return isinstance(error, KeyboardInterrupt)
    return isinstance(error, SystemExit) and error.code == 128 + number
