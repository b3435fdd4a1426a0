"""The versions of Python that are named, and where a machine has them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

NAMED = ("3.10", "3.11", "3.12", "3.13")


def _candidates(version: str) -> Iterator[str]:
    if version == f"{sys.version_info.major}.{sys.version_info.minor}":
        yield sys.executable
    yield from filter(None, [shutil.which(f"python{version}")])
    for kept in (Path.home() / ".pyenv" / "versions", Path.home() / ".local" / "share" / "uv" / "python"):
        yield from map(str, sorted(kept.glob(f"*{version}.*/bin/python3")))


@cache
def found(version: str) -> str | None:
    """Where a Python of a version is; None if there is none. What is on PATH may be a shim that starts nothing."""
    code = "import sys, ssl, zlib; print('%d.%d' % sys.version_info[:2])"
    for path in _candidates(version):
        asked = subprocess.run([path, "-I", "-c", code], capture_output=True, text=True, check=False)
        if asked.stdout.strip() == version:
            return path
    return None
