"""A script as a newcomer writes it survives `kill -9` in a loop: it ends with the bits of a run that wasn't killed."""

from __future__ import annotations

import contextlib
import os
import random
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tachograph.engine import Journal, diff
from tests.jobs.forks import ROOT, Forks

SCRIPT = ROOT / "tests" / "jobs" / "newcomer.py"
KILLS = 20
FRESH = 5  # every fifth is an interpreter of its own, killed somewhere in its start; the others are forked
PATIENCE = 60.0  # seconds; a worker that lost its parent looks for it every five


def started(run_dir: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(SCRIPT), str(run_dir)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )


def ended(process: subprocess.Popen[str]) -> str:
    said, _ = process.communicate()
    assert process.returncode == 0
    return said.splitlines()[-1]


def until(happened: Callable[[], Any], died: Callable[[], Any] = bool) -> None:
    """Look every few milliseconds until something has happened; it can't any more once `died` says so."""
    deadline = time.monotonic() + PATIENCE
    while not happened():
        assert not died() or happened(), "it died before it happened"
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.002)


def gone(pid: int) -> bool:
    """Say whether a process has ended and been waited for."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def lines(run_dir: Path, life: int) -> int:
    """Count the lines that a life of the run has written into the journal."""
    return sum(path.read_bytes().count(b"\n") for path in run_dir.glob(f"journal/rank-0/*.i{life}.jsonl"))


def lives(run_dir: Path) -> int:
    """Count the lives that came as far as the journal."""
    return len({path.name.split(".")[1] for path in run_dir.glob("journal/rank-0/*.jsonl")})


def is_alive(group: int) -> bool:
    """Say whether a process of a group is alive; one that only nobody has waited for isn't."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, 0)
        stats = [_read(path).rpartition(")")[2].split() for path in Path("/proc").glob("[0-9]*/stat")]
        return not stats or any(stat and stat[2] == str(group) and stat[0] != "Z" for stat in stats)
    return False


def _read(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text()
    return ""


class Killer:
    """Starts the script and kills it, at moments that a seed decides on.

    Args:
        run_dir: of the run.
        seed: of the moments.
        start: how many seconds an interpreter takes until the run begins.
        end: the number of the run's last transition.
    """

    def __init__(self, run_dir: Path, seed: int, start: float, end: int) -> None:
        self.run_dir = run_dir
        self.groups: list[int] = []
        self._rng = random.Random(seed)
        self._start = start
        self._end = end

    def kill_an_interpreter(self) -> None:
        """Kill it while it imports or begins, and with its first few records at the latest."""
        life, few = lives(self.run_dir), self._rng.randint(0, 10)
        end = time.monotonic() + self._rng.uniform(0, 1.2 * self._start)
        process = started(self.run_dir)
        until(lambda: time.monotonic() > end or lines(self.run_dir, life) > few)
        self._kill(process.pid)
        process.communicate()
        assert process.returncode == -signal.SIGKILL

    def kill_a_fork(self, forks: Forks, left: int) -> None:
        """Kill it when its journal has so many lines more, or at the first snapshot after that."""
        life = lives(self.run_dir)
        done = Journal(self.run_dir).last if life else None
        ahead = self._end - (done.seq if done else 0)
        number = self._rng.randint(0, int(1.5 * ahead / (left + 1)))
        pid = forks.start(script=str(SCRIPT), arguments=[str(self.run_dir)])
        until(lambda: lines(self.run_dir, life) > number, lambda: gone(pid))
        if left > 2 and self._rng.random() < 0.3:
            before = set(self.run_dir.glob("snapshots/*"))
            until(lambda: set(self.run_dir.glob("snapshots/*")) != before, lambda: gone(pid))
        else:
            time.sleep(self._rng.uniform(0, 0.02))
        self._kill(pid)
        assert forks.wait() == -signal.SIGKILL

    def _kill(self, pid: int) -> None:
        """Kill the process alone, as somebody does by hand, or its workers with it, as a job's end does."""
        self.groups.append(pid)
        self._rng.choice([os.kill, os.killpg])(pid, signal.SIGKILL)


def test_killed_at_twenty_random_moments_it_ends_with_the_bits_of_the_straight_run(
    tmp_path: Path, proven: Callable[[int], None]
) -> None:
    """R03 R05 R26: shuffled, augmented in two workers by three generators, with dropout; nothing but `run_dir` said."""
    seed = int(os.environ.get("NEWCOMER_SEED") or secrets.randbelow(10**6))
    print(f"NEWCOMER_SEED={seed}")  # seen if it fails
    began = time.monotonic()
    process = started(tmp_path / "straight")
    until((tmp_path / "straight" / "run.json").exists, lambda: process.poll() is not None)
    start = time.monotonic() - began
    straight = ended(process)

    run_dir = tmp_path / "run"
    killer = Killer(run_dir, seed, start, Journal(tmp_path / "straight").last.seq)  # type: ignore[union-attr]
    forks = Forks("tests.jobs.forks")
    for n in range(KILLS):
        if n % FRESH == 0:
            killer.kill_an_interpreter()
        else:
            killer.kill_a_fork(forks, KILLS - n)
    forks.close()

    assert ended(started(run_dir)) == straight
    assert diff(tmp_path / "straight", run_dir) is None
    journal = Journal(run_dir)
    journal.verify_chain()
    assert not list(journal.sides("diverged"))
    assert all(matched.data["matched"] == matched.data["of"] for matched in journal.sides("matched"))
    for group in killer.groups:
        until(lambda group=group: not is_alive(group))  # type: ignore[misc]
    proven(KILLS)


KILLED_BY_ITS_WORKER = """
import os, signal, sys, time, torch
from torch.utils.data import DataLoader, TensorDataset
from tachograph.engine import Trainer

class Net(torch.nn.Linear):
    def train_step(self, batch):
        return {"loss": self(batch[0]).sum()}

TRAINING = os.getpid()

def lose_the_parent(worker):
    if worker == 0:
        os.kill(TRAINING, signal.SIGKILL)
    while os.getppid() == TRAINING:
        time.sleep(0.01)

model = Net(1, 1)
loader = DataLoader(TensorDataset(torch.ones(8, 1)), num_workers=2, worker_init_fn=lose_the_parent)
Trainer(model, "torch", loader, torch.optim.SGD(model.parameters(), lr=0.1), run_dir=sys.argv[1]).run()
"""


def test_workers_that_are_still_starting_when_their_process_is_killed_end_too(tmp_path: Path) -> None:
    """torch's workers watch the parent that they have once they have started, whoever it is by then."""
    job = tmp_path / "job.py"
    job.write_text(KILLED_BY_ITS_WORKER)
    forks = Forks("tests.jobs.forks")
    group = forks.start(script=str(job), arguments=[str(tmp_path / "run")])
    assert forks.wait() == -signal.SIGKILL
    forks.close()
    until(lambda: not is_alive(group))


def test_a_group_is_alive_as_long_as_one_of_it_is() -> None:
    process = subprocess.Popen(["sleep", "100"], start_new_session=True)
    assert is_alive(process.pid)
    process.kill()
    until(lambda: not is_alive(process.pid))
    process.wait()
    assert not is_alive(process.pid)
