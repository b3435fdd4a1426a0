"""Two long runs compared: equal ones, and ones that part late; and how fast a journal is read.

A million transitions of the stub driver; the second run is a copy, the third one has another loss at one step. Times
are those of a process that has imported everything, its CPU's as well, and of the whole command.

    python benchmarks/diff.py --transitions 1000000
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tachograph.drivers import StubDriver
from tachograph.engine import Journal, Trainer, diff

BATCHES = 1000  # an epoch
COMMAND = [sys.executable, "-c", "from tachograph.engine.cli import main; main()", "diff"]


class Forgetful(StubDriver):
    """The stub without its notes for tests, which would grow."""

    def _called(self, name: str) -> None:
        pass

    def train_step(self, batch: int) -> dict[str, float]:
        outputs = super().train_step(batch)
        self.seen.clear()
        return outputs


def train(run_dir: Path, transitions: int, other: int = -1) -> int:
    """Train; the `other`-th batch of the run, from 0, has another loss."""
    counted = iter(range(sys.maxsize))
    driver = Forgetful(lambda batch, n: 1.0 / (1 + batch) + (next(counted) == other))
    epochs = max(transitions // (2 * BATCHES), 2)
    settings: dict[str, Any] = {"run_dir": run_dir, "snapshot_every": None, "progress_bar": None}
    return Trainer(None, driver, list(range(BATCHES)), None, n_epochs=epochs, **settings).run().seq


def seconds(act: Callable[[], object], clock: Callable[[], float] = time.perf_counter, times: int = 3) -> float:
    """Return the least of some measurements."""

    def once() -> float:
        began = clock()
        act()
        return clock() - began

    return min(once() for _ in range(times))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--transitions", type=int, default=1_000_000, help="about so many (1000000)")
    transitions = parser.parse_args().transitions
    with tempfile.TemporaryDirectory() as folder:
        a, equal, parted = (Path(folder) / name for name in ("a", "equal", "parted"))
        train(a, transitions)
        shutil.copytree(a, equal)
        length = train(parted, transitions, other=transitions * 2 // 5)
        assert diff(a, equal) is None
        found = diff(a, parted)
        assert found is not None
        for name, other in (("equal", equal), (f"parted at {found.seq:,}", parted)):
            print(f"{length:,} transitions, {name}: {_told(a, other)}")
        print(f"{_rate(a, length)} read and checked")
        for path in (a / "journal/rank-0").glob("*.gz"):
            subprocess.run(["gunzip", str(path)], check=True)
        print(f"{_rate(a, length)} of segments that aren't compressed")


def _told(a: Path, b: Path) -> str:
    wall, cpu = (seconds(lambda: diff(a, b), clock) for clock in (time.perf_counter, time.process_time))
    command = seconds(lambda: subprocess.run([*COMMAND, a, b], stdout=subprocess.DEVNULL, check=False))
    return f"{wall:.2f} s, {cpu:.2f} s of the CPU; the command {command:.2f} s"


def _rate(run_dir: Path, length: int) -> str:
    wall, cpu = (
        seconds(lambda: sum(1 for _ in Journal(run_dir)), clock) for clock in (time.perf_counter, time.process_time)
    )
    return f"{length / wall:,.0f} records a second ({length / cpu:,.0f} a second of the CPU)"


if __name__ == "__main__":
    main()
