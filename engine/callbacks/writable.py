"""Whether a folder can be written to: asked when there is somebody to answer, and not by the first save."""

from __future__ import annotations

import errno
import os
import uuid
from contextlib import suppress
from pathlib import Path

from tachograph.states.errors import CallerError

_LASTING = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.ENOTDIR)
"""Refusals that time doesn't heal; a full disk may be emptied."""


def check_writable(folder: Path, who: str) -> None:
    """Refuse a folder that nothing can be written into; whether it is there already or not.

    A folder of a passing name is made where it lies, or is to lie, and removed at once.

    Args:
        folder: where somebody is going to write.
        who: somebody.

    Raises:
        CallerError: it, or what it lies in, is a file, or the system refuses.
    """
    why = _why_not(folder)
    if why:
        raise CallerError(f"{who} can't write into {folder}: {why}. Give another folder")


def check_early(folder: Path | None, who: str) -> None:
    """Refuse it when a trainer is built, if it was given and is there, or what it lies in is; see `check_writable`."""
    if folder is not None and (os.path.lexists(folder) or os.path.isdir(folder.parent)):
        check_writable(folder, who)


def _why_not(folder: Path) -> str:
    """Say why nothing can be written into a folder; "" if it can."""
    there = folder
    for path in (*reversed(folder.parents), folder):
        try:
            os.lstat(path)
        except PermissionError:
            return f"{path.parent} may not be looked into (no permission)"
        except (FileNotFoundError, NotADirectoryError):
            break
        there = path
    it = "it" if there == folder else str(there)
    if not os.path.isdir(there):
        return f"{it} is a file" if os.path.exists(there) else f"{it} is a link to nothing"
    probe = there / f".tachograph-{uuid.uuid4().hex[:12]}"
    try:
        os.mkdir(probe)
    except OSError as error:
        lasting = error.errno in _LASTING
        return "" if not lasting else _in_words(error, it)
    with suppress(OSError):
        os.rmdir(probe)
    return ""


def _in_words(error: OSError, it: str) -> str:
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"{it} may not be written to (no permission)"
    return f"{it} is on a file system that takes no files ({error.strerror})"


__all__ = ["check_early", "check_writable"]
