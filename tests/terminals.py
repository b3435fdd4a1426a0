"""A real terminal for tests: tmux, which draws what a program writes as a person's terminal does."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
ROWS = 200
"""High enough that nothing scrolls away, a traceback with long paths on 40 columns included."""


class Tmux:
    """A terminal that draws as a person's does."""

    def __init__(self, folder: Path) -> None:
        self._socket = folder / "tmux"

    def __call__(self, *arguments: str) -> str:
        command = ["tmux", "-S", str(self._socket), "-f", "/dev/null", *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout

    def start(self, columns: int, command: list[str], rows: int = ROWS) -> None:
        quoted = " ".join(f"'{part}'" for part in command)
        path = os.environ.get("PYTHONPATH", "")
        shell = f"trap : INT; cd '{ROOT}'; env -u CI PYTHONPATH='{path}' {quoted}; echo status $?; cat"
        self("new-session", "-d", "-x", str(columns), "-y", str(rows), shell)

    @property
    def screen(self) -> list[str]:
        return [line.rstrip() for line in self("capture-pane", "-p").split("\n") if line.rstrip()]

    def wait_for(self, found: Any) -> None:
        end = time.monotonic() + 30
        while not found():
            assert time.monotonic() < end, self.screen
            time.sleep(0.05)


@pytest.fixture
def tmux(tmp_path: Path) -> Iterator[Tmux]:
    if shutil.which("tmux") is None:
        pytest.skip("tmux isn't installed: no terminal to look at")
    terminal = Tmux(tmp_path)
    yield terminal
    with contextlib.suppress(subprocess.CalledProcessError):
        terminal("kill-server")
