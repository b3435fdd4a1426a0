"""A journal of a million transitions: read, replayed, compared, searched, and how much memory that takes.

The run is one of the stub driver's, and made once. It is read as it lies there, most of it compressed, and again when
nothing of it is. Every figure of a replay stands beside that of a bare iteration in the same round. Two runs are
compared that are equal, and two that part late. Memory is measured in processes of their own. Medians over the rounds
are shown. Budgets are those of the clock; notes tell the processor's time, which other work disturbs less.

    python benchmarks/reading.py --transitions 1000000 --rounds 3
"""

from __future__ import annotations

import argparse
import gzip
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
from figures import Figure, finish, parser
from work import Forgetful, resident, stub_run

from tachograph.engine import Journal, diff, replay
from tachograph.engine.exports import export

RATE = 300_000  # records a second


def bare(run_dir: Path) -> None:
    for _ in Journal(run_dir):
        pass


def unheard(run_dir: Path) -> None:
    replay(run_dir).run()


def epochs(run_dir: Path) -> None:
    replay(run_dir).on("EpochEnded", lambda run: run.trainer_state).run()


def losses(run_dir: Path) -> None:
    replay(run_dir).on("on_train_batch_end", lambda run: run.last_loss).run()


def events(run_dir: Path) -> None:
    replay(run_dir).on("Stepped", lambda run, event: event.loss).run()


def states(run_dir: Path) -> None:
    replay(run_dir).on("fetch", lambda run: run.trainer_state.samples).run()


REPLAYS: dict[str, Callable[[Path], None]] = {
    "nobody listens": unheard,
    "the state at each epoch's end": epochs,
    "the loss of each batch": losses,
    "the event of each step": events,
    "the state after each step": states,
}


@attrs.frozen
class Spent:
    """Seconds, on the clock and of the processor."""

    clock: float
    cpu: float


def spent(act: Callable[..., Any], *given: Any) -> Spent:
    clock, cpu = time.perf_counter(), time.process_time()
    act(*given)
    return Spent(time.perf_counter() - clock, time.process_time() - cpu)


def median(held: list[Spent]) -> Spent:
    return Spent(statistics.median(s.clock for s in held), statistics.median(s.cpu for s in held))


def reading(run: Path, plain: Path, length: int, rounds: int) -> Iterator[Figure]:
    """How fast records come, bare and in replays."""
    acts: dict[str, tuple[Callable[[Path], None], Path]] = {"compressed": (bare, run), "plain": (bare, plain)}
    acts |= {name: (act, run) for name, act in REPLAYS.items()}
    held: dict[str, list[Spent]] = {name: [] for name in acts}
    for _ in range(rounds):
        for name, (act, folder) in acts.items():
            held[name].append(spent(act, folder))
    for name, told in (("compressed", ", most of them compressed"), ("plain", "")):
        took = median(held[name])
        note = f"every checksum checked; {length / took.cpu:,.0f} a second of the processor"
        yield Figure(f"records read{told}", length / took.clock, "records/s", RATE, "more", note)
    for name in REPLAYS:
        ratio = statistics.median(a.cpu / b.cpu for a, b in zip(held[name], held["compressed"], strict=True))
        note = f"{ratio:.2f} times the processor's time of a bare iteration"
        yield Figure(f"a replay, {name}", length / median(held[name]).clock, "records/s", note=note)


def look_ups(run: Path, length: int) -> Iterator[Figure]:
    dry = replay(run)
    for name, low in (("a compressed file", 2), ("the file in use", max(length - 400, 3))):
        first, *jumps = (spent(dry.jump, low + 7 * n).clock for n in range(21))
        backs = [spent(dry.back).clock for _ in range(20)]
        note = f"a step back {statistics.median(backs) * 1e3:.2f} ms, the first jump {first * 1e3:.0f} ms"
        yield Figure(f"a jump within {name}", statistics.median(jumps) * 1e3, "ms", note=note)


def train(run_dir: Path, transitions: int, other: int = -1) -> int:
    """Make the run; the `other`-th batch, from 0, has another loss."""
    counted = iter(range(sys.maxsize))
    return stub_run(run_dir, transitions, Forgetful(lambda batch, n: 1.0 / (1 + batch) + (next(counted) == other)))


def comparing(run: Path, folder: Path, transitions: int, rounds: int) -> Iterator[Figure]:
    """Two runs: a copy, and one with another loss at one step after four fifths."""
    equal, parted = folder / "equal", folder / "parted"
    shutil.copytree(run, equal)
    train(parted, transitions, other=transitions * 2 // 5)
    first = spent(diff, run, equal).clock
    assert diff(run, equal) is None
    found = diff(run, parted)
    assert found is not None
    assert found.seq > transitions * 0.7
    for name, path, asked in (("that are equal", equal, 1.0), ("that part after four fifths", parted, None)):
        took = median([spent(diff, run, path) for _ in range(rounds)])
        note = f"{took.cpu:.2f} s of the processor" + (f"; the first time {first:.2f} s" if asked else "")
        yield Figure(f"diff of runs {name}", took.clock, "s", asked, note=note)


def exporting(run: Path, folder: Path, length: int) -> Iterator[Figure]:
    for name in ("trace", "csv", "parquet", "sqlite", "tensorboard"):
        took = spent(export, run, name, folder / name)
        yield Figure(f"export to {name}", length / took.clock, "records/s", note=f"{took.cpu:.1f} s of the processor")


def added(reader: str, run_dir: Path) -> float:
    """Return what reading a run adds to a process, in MB, at its peak."""
    command = [sys.executable, __file__, "--memory", reader, str(run_dir)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def memory(reader: str, run_dir: Path) -> None:
    before = peak = resident()

    def look(run: Any) -> None:
        nonlocal peak
        if run.seq % 1000 == 0:
            peak = max(peak, resident())

    if reader == "a replay":
        replay(run_dir).on("fetch", lambda run: look(run.record)).run()
    else:
        for record in Journal(run_dir):
            look(record)
    print(f"{max(peak, resident()) - before:.2f}")


def measure(options: argparse.Namespace) -> list[Figure]:
    transitions, rounds = (20_000, 1) if options.quick else (options.transitions, options.rounds)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run, plain, short = folder / "run", folder / "plain", folder / "short"
        length = train(run, transitions)
        train(short, transitions // 100)
        shutil.copytree(run, plain)
        unpack(plain)
        figures = [
            *reading(run, plain, length, rounds),
            *look_ups(run, length),
            *comparing(run, folder, transitions, rounds),
        ]
        for reader in ("an iteration", "a replay"):
            note = f"at its peak; of a hundredth as many {added(reader, short):.1f}"
            figures.append(Figure(f"memory that {reader} adds", added(reader, run), "MB", note=note))
        if options.exports:
            figures += exporting(run, folder, length)
    return figures


def unpack(run_dir: Path) -> None:
    """Make a journal one of which nothing is compressed."""
    for path in (run_dir / "journal/rank-0").glob("*.gz"):
        with gzip.open(path) as packed, open(path.with_suffix(""), "wb") as file:
            shutil.copyfileobj(packed, file)
        path.unlink()


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--transitions", type=int, default=1_000_000, help="about so many (1000000)")
    options.add_argument("--rounds", type=int, default=3, help="rounds (3)")
    options.add_argument("--exports", action="store_true", help="measure exports as well")
    options.add_argument("--memory", nargs=2, help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.memory:
        memory(given.memory[0], Path(given.memory[1]))
    else:
        finish(measure, given)


if __name__ == "__main__":
    main()
