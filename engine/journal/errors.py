"""The journal's errors: what is wrong with a file, who holds it, or why it can't be written."""

from __future__ import annotations

import errno as codes
import os
from pathlib import Path

from tachograph.states import TachographError

SALVAGE = "`Journal(run_dir, salvage=True)` reads what can be read, and changes nothing."


class JournalError(TachographError):
    """A journal can't be used as asked; the root of the journal's errors."""


class JournalCorrupt(JournalError):
    """A journal's file is damaged in a way that no crash explains; nothing was changed.

    Attributes:
        file: the damaged file.
        offset: where the damage begins, in bytes of the file's uncompressed text.
        reason: what was found there.
    """

    def __init__(self, file: Path, offset: int, reason: str) -> None:
        self.file = file
        self.offset = offset
        self.reason = reason
        super().__init__(f"{file} is damaged at byte {offset}: {reason}. {SALVAGE}")


class JournalFormat(JournalError):
    """A file isn't a journal's, or a newer version of Tachograph wrote it."""


class JournalBusy(JournalError):
    """Another writer, in this process or in another, holds the journal.

    Attributes:
        pid: its process; None where it left no readable note.
        host: its machine; "" likewise.
    """

    def __init__(self, directory: Path, pid: int | None, host: str, since: str) -> None:
        self.pid = pid
        self.host = host
        who = "another process" if pid is None else f"process {pid} on {host}"
        when = f" since {since}" if since else ""
        super().__init__(
            f"{directory} is being written by {who}{when}; a journal has one writer at a time. "
            "Wait for it or stop it, or give this run another run_dir."
        )


class JournalWriteError(JournalError):
    """A write or a sync of the journal failed. It is never retried: the writer refuses whatever comes after.

    Attributes:
        path: the file.
        reason: what the system said.
        errno: its number; None where the reason isn't the system's.
    """

    def __init__(self, path: Path, reason: str, errno: int | None = None) -> None:
        self.path = path
        self.reason = reason
        self.errno = errno
        code = f" ({codes.errorcode[errno]})" if errno is not None and errno in codes.errorcode else ""
        super().__init__(
            f"can't write {path}: {reason}{code}. The run stops here, and what was committed stays; "
            "mend the cause, then resume the run."
        )

    @classmethod
    def of(cls, path: Path, error: OSError) -> JournalWriteError:
        """Wrap what the system raised for `path`."""
        reason = os.strerror(error.errno) if error.errno else str(error)
        return cls(path, reason, error.errno)
