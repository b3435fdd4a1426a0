"""Several ranks at the price of as many forks: a server imports torch once, and forks the processes of each job.

Every rank is a process of its own with the environment of a launch. Nobody but the ranks themselves ends them.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import torch
import torch.nn.parallel.distributed  # here, and not in every rank

ROOT = Path(__file__).parents[2]


@attrs.frozen
class Ended:
    """How a rank ended.

    Attributes:
        status: its exit status; negative: the signal that killed it.
        err: what it wrote to standard error.
        out: what it wrote to standard output.
    """

    status: int
    err: str
    out: str


class RankForks:
    """A server, seen from outside.

    Args:
        module: run with `-m`; it calls `serve_ranks`.
    """

    def __init__(self, module: str) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._jobs = 0
        self._server = subprocess.Popen(
            [sys.executable, "-m", module], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def start(self, world: int, seconds: float = 90, **job: Any) -> list[int]:
        """Start the ranks of a job, and return their processes' numbers.

        Args:
            world: how many.
            seconds: after which those that still run are killed, which `wait` shows as -9.
            job: what each of them is told; and its `rank`.
        """
        self._jobs += 1
        where = Path(self._folder.name) / str(self._jobs)
        where.mkdir()
        told = {**job, "world": world, "seconds": seconds, "outputs": str(where)}
        assert self._server.stdin is not None
        self._server.stdin.write(json.dumps(told) + "\n")
        self._server.stdin.flush()
        self._where = where
        return self._answer()

    def wait(self) -> list[Ended]:
        """Wait for the ranks that were started, and return how each of them ended."""
        statuses = self._answer()
        read = [
            [(self._where / f"{rank}.{kind}").read_text() for kind in ("err", "out")] for rank in range(len(statuses))
        ]
        return [Ended(status, *texts) for status, texts in zip(statuses, read, strict=True)]

    def _text(self, rank: int, kind: str) -> str:
        return (self._where / f"{rank}.{kind}").read_text()

    def run(self, world: int, seconds: float = 90, **job: Any) -> list[Ended]:
        """Run a job, and return how each of its ranks ended."""
        self.start(world, seconds, **job)
        return self.wait()

    def close(self) -> None:
        """End the server."""
        self._server.communicate(timeout=60)
        self._folder.cleanup()

    def _answer(self) -> list[int]:
        assert self._server.stdout is not None
        return list(json.loads(self._server.stdout.readline()))


def serve_ranks(work: Callable[[dict[str, Any]], None]) -> None:
    """Do the jobs of standard input, one a line, each in as many processes as it says."""
    torch.set_num_threads(1)
    torch.optim.SGD([torch.zeros(1)])  # torch imports half of itself with the first optimizer

    for line in sys.stdin:
        job = json.loads(line)
        port = _free_port()
        pids = [_forked(work, {**job, "rank": rank}, port) for rank in range(job["world"])]
        print(json.dumps(pids), flush=True)
        print(json.dumps(_statuses(pids, job["seconds"])), flush=True)


def _statuses(pids: list[int], seconds: float) -> list[int]:
    end, found = time.monotonic() + seconds, dict.fromkeys(pids, None)
    while None in found.values():
        for pid in [pid for pid, status in found.items() if status is None]:
            gone, status = os.waitpid(pid, os.WNOHANG)
            if gone:
                found[pid] = os.waitstatus_to_exitcode(status)  # type: ignore[assignment]
            elif time.monotonic() > end:
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)
    return [int(found[pid]) for pid in pids]  # type: ignore[arg-type]


def _forked(work: Callable[[dict[str, Any]], None], job: dict[str, Any], port: int) -> int:
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        status = _done(work, job, port)
    finally:
        os._exit(status)


def _done(work: Callable[[dict[str, Any]], None], job: dict[str, Any], port: int) -> int:
    rank = str(job["rank"])
    os.environ |= {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": str(job["world"])}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    for number, kind in ((1, "out"), (2, "err")):
        os.dup2(os.open(Path(job["outputs"]) / f"{rank}.{kind}", os.O_WRONLY | os.O_CREAT), number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    try:
        work(job)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type] # as a script ends
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


def _free_port() -> int:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])
