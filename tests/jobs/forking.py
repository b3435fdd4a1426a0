"""Jobs in processes of their own, forked from a server that has imported what they need.

    python -m tests.jobs.forking MODULE

The server calls the module's `prepare`, if it has one. Then for each JSON line on standard input it forks a process,
which leads a group of its own and calls the module's `main`; its end is Python's own, with everything that belongs to
it. A fork costs 20 ms where a new interpreter costs 300 ms, or 3 s with torch.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import attrs

PATIENCE = 60
"""Seconds after which a job that doesn't end is taken to hang."""


@attrs.frozen
class Ended:
    """What a job left: its exit status (-n: killed by signal n), what it printed, and whether processes are left."""

    status: int | None
    out: str
    error: str
    left: bool


class Job:
    """A job in its process, with this end of its pipes.

    Attributes:
        pid: of its process, and of its group.
    """

    def __init__(self, server: Server, words: tuple[Any, ...], settings: dict[str, Any]) -> None:
        self._server = server
        self._at = Path(tempfile.mkdtemp(dir=server.directory))
        for name in ("in", "out"):
            os.mkfifo(self._at / name)
        self.pid = int(server.ask({"at": str(self._at), "words": [str(word) for word in words], "settings": settings}))
        self._in = os.open(self._at / "in", os.O_WRONLY)
        self._out = (self._at / "out").open(encoding="utf-8")

    def stands(self) -> Job:
        """Wait until it says that it has come to its place."""
        said = self._out.readline()
        assert said == "here\n", (said, self.ends())
        return self

    def strike(self, name: str, *, group: bool = False) -> Job:
        """Send it a signal, or to all processes of its group, as a terminal does.

        It has the signal when this returns: the kernel hands it over before anything that is read afterwards.
        """
        (os.killpg if group else os.kill)(self.pid, getattr(signal, name))
        return self

    def let_go(self) -> Job:
        """Tell it to go on."""
        os.write(self._in, b".")
        return self

    def ends(self) -> Ended:
        """Let it go on for good, wait for its end, and return what it left."""
        os.close(self._in)
        return self._ended()

    def falls(self) -> Ended:
        """Wait for its end, although it isn't told to go on."""
        ended = self._ended()
        os.close(self._in)
        return ended

    def _ended(self) -> Ended:
        try:
            status: int | None = int(self._server.answer())
        except TimeoutError:
            status = None
        left = self.kill()
        with self._out:
            ended = Ended(status, self._out.read(), (self._at / "error").read_text(), left)
        assert status is not None, f"it hangs: {ended}"
        return ended

    def kill(self) -> bool:
        """Kill what is left of it; return whether there was anything."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            return False
        return True


class Server:
    """The server's other end.

    Args:
        module: whose `main` is called.
        directory: where pipes and outputs are kept.
    """

    def __init__(self, module: str, directory: Path) -> None:
        self.directory = directory
        root = Path(__file__).parent.parent.parent
        words = [sys.executable, "-m", "tests.jobs.forking", module]
        self._process = subprocess.Popen(words, cwd=root, stdin=-1, stdout=-1, bufsize=0)

    def start(self, *words: Any, **settings: Any) -> Job:
        """Start a job: `main(*words, **settings)`, all words as text."""
        return Job(self, words, settings)

    def ask(self, job: dict[str, Any]) -> str:
        """Send a job; return the process's id."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(job).encode() + b"\n")
        return self.answer()

    def answer(self) -> str:
        """Return the server's next line."""
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], PATIENCE)[0]:
            raise TimeoutError
        return self._process.stdout.readline().decode()

    def close(self) -> None:
        """End it."""
        self._process.communicate()


def serve(module: str) -> None:
    """Be the server."""
    job_module = importlib.import_module(module)
    getattr(job_module, "prepare", int)()
    main = job_module.main
    for line in sys.stdin:
        job = json.loads(line)
        pid = os.fork()
        if pid == 0:
            _become(Path(job["at"]))
            main(*job["words"], **job["settings"])
            return  # errors, and this, end it as they end any script
        print(pid, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)


def _become(at: Path) -> None:
    os.setsid()
    error = os.open(at / "error", os.O_WRONLY | os.O_CREAT)
    for fd, found in ((0, os.open(at / "in", os.O_RDONLY)), (1, os.open(at / "out", os.O_WRONLY)), (2, error)):
        os.dup2(found, fd)
        os.close(found)


if __name__ == "__main__":
    serve(sys.argv[1])
