"""The user's own code as it was when a run began: a digest of each module, so that a change of one can be named.

What counts is what the process has loaded and what lies below the folder of the script or the current one; not the
standard library, nor what is installed, nor this package.
"""

from __future__ import annotations

import functools
import hashlib
import os
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

MOST = 500
"""Modules that are looked at."""
LARGEST = 1 << 20
"""Bytes of a module that is looked at."""
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


def digests() -> dict[str, str]:
    """Return 16 hex digits of each loaded module of the user's, by its path from the folder it was found below.

    A file that can't be read is left out.
    """
    found: dict[str, str] = {}
    for name, path in sorted(_files()):
        digest = _digest_of(path)
        if digest:
            found[name] = digest
        if len(found) == MOST:
            break
    return found


def changed(before: dict[str, str], now: dict[str, str]) -> dict[str, tuple[str, str]]:
    """Return path -> (old, new) of the modules that both know and that differ; what is loaded may vary."""
    return {name: (before[name], digest) for name, digest in now.items() if before.get(name, digest) != digest}


def _files() -> Iterator[tuple[str, str]]:
    """Yield the user's loaded files, each with its path from the script's folder, or else from the current one."""
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    folders = [os.path.dirname(os.path.abspath(script))] if script else []
    roots = [os.path.join(folder, "") for folder in dict.fromkeys([*folders, os.getcwd()])]
    seen, others = set(), _others()
    for module in list(sys.modules.values()):
        path = getattr(module, "__file__", None)
        if not isinstance(path, str) or path in seen or not path.endswith(".py"):
            continue
        seen.add(path)
        whole = path if os.path.isabs(path) else os.path.abspath(path)
        root = next((root for root in roots if whole.startswith(root)), None)
        if root is not None and not whole.startswith(others) and not any(part in whole for part in _INSTALLED):
            yield Path(whole[len(root) :]).as_posix(), whole


@functools.cache
def _others() -> tuple[str, ...]:
    """Return where no code of the user's is: the standard library, and the three floors of this package."""
    ours = {Path(__file__).parent.parent, Path(__file__).resolve().parent.parent}
    floors = [str(folder / floor) for folder in sorted(ours) for floor in ("engine", "drivers", "states")]
    library = [sysconfig.get_paths()[key] for key in ("stdlib", "platstdlib", "purelib", "platlib")]
    return tuple(os.path.join(folder, "") for folder in dict.fromkeys([*floors, *library]))


def _digest_of(path: str) -> str:
    """Return the digest of a file; "" if it is too large, or can't be read."""
    try:
        about = os.stat(path)
        return _of_bytes(path, about.st_mtime_ns, about.st_size) if about.st_size <= LARGEST else ""
    except OSError:
        return ""


@functools.lru_cache(4 * MOST)
def _of_bytes(path: str, changed_at: int, size: int) -> str:
    return hashlib.blake2b(Path(path).read_bytes(), digest_size=8).hexdigest()


__all__ = ["changed", "digests"]
