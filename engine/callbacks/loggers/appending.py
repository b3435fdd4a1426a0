"""Appending to a file so that what doesn't fit on the disk leaves nothing of itself behind."""

from __future__ import annotations

import os

from tachograph.engine.journal import Files, write_all

_FILES = Files()


def append(fd: int, data: bytes) -> None:
    """Hand `data` to the system, all of it or nothing.

    Args:
        fd: an open file, which nobody else writes to.
        data: what comes at its end.

    Raises:
        OSError: the system refused.
    """
    end = os.fstat(fd).st_size
    try:
        write_all(_FILES, fd, data)
    except OSError:
        os.ftruncate(fd, end)
        raise
