"""Fresh processes at the price of a fork: a server imports torch once, and forks a process for each job it is given.

A fork costs 50 ms where a new interpreter with torch costs seconds, and none of the forked processes has run anything
before. As a program, its jobs are scripts: `{"script": path, "arguments": [...]}`.
"""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).parents[2]


class Forks:
    """A server, seen from outside.

    Args:
        module: run with `-m`; it calls `serve`.
    """

    def __init__(self, module: str) -> None:
        command = [sys.executable, "-m", module]
        self._server = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=None, text=True
        )

    def start(self, **job: Any) -> int:
        """Start a process for a job, and return its number; it leads a process group of its own."""
        assert self._server.stdin is not None
        self._server.stdin.write(json.dumps(job) + "\n")
        self._server.stdin.flush()
        return self._answer()

    def wait(self) -> int:
        """Wait for the process that was started, and return its exit status; negative: the signal that killed it."""
        return self._answer()

    def run(self, **job: Any) -> int:
        """Run a job in a process of its own, and return its exit status."""
        self.start(**job)
        return self.wait()

    def close(self) -> None:
        """End the server."""
        self._server.communicate(timeout=30)

    def _answer(self) -> int:
        assert self._server.stdout is not None
        return int(self._server.stdout.readline())


def serve(work: Callable[[dict[str, Any]], None]) -> None:
    """Do the jobs of standard input, one a line, each in a process of its own; what they print goes nowhere."""
    torch.set_num_threads(1)
    torch.optim.SGD([torch.zeros(1)])  # torch imports half of itself with the first optimizer
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            os._exit(_done(work, json.loads(line)))
        print(pid, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


def _done(work: Callable[[dict[str, Any]], None], job: dict[str, Any]) -> int:
    try:
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        work(job)
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stderr.flush()
    return 0


def script(job: dict[str, Any]) -> None:
    """Run a script as Python does."""
    sys.argv = [job["script"], *job["arguments"]]
    sys.path[0] = str(Path(job["script"]).parent)
    runpy.run_path(job["script"], run_name="__main__")


if __name__ == "__main__":
    serve(script)
