"""A replay: how many records a second, what listeners add, how much memory, how long a look-up takes.

The run is one of the stub driver's. Every figure of a replay stands beside that of a bare iteration over the same
journal in the same round; medians over the rounds are shown. Seconds are those of the processor, so that what else the
machine does counts less. Memory is measured in a process of its own.

    python benchmarks/replay.py --transitions 1000000 --rounds 3
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tachograph.engine import Journal, Trainer, replay
from tachograph.engine.exports import export

if __package__:
    from .growth import BATCHES, Forgetful, resident
else:
    from growth import BATCHES, Forgetful, resident


def train(run_dir: Path, transitions: int) -> int:
    """Make the run; return how many transitions it has."""
    trainer = Trainer(
        None,
        Forgetful(),
        list(range(BATCHES)),
        None,
        n_epochs=max(transitions // (2 * BATCHES), 1),
        run_dir=run_dir,
        snapshot_every=None,
        progress_bar=None,
    )
    return int(trainer.run().seq)


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
    "a bare iteration": bare,
    "nobody listens": unheard,
    "the state at each epoch's end": epochs,
    "the loss of each batch": losses,
    "the event of each step": events,
    "the state after each step": states,
}


def seconds(act: Callable[..., Any], *given: Any) -> float:
    began = time.process_time()
    act(*given)
    return time.process_time() - began


def speeds(run_dir: Path, transitions: int, rounds: int) -> None:
    spent: dict[str, list[float]] = {name: [] for name in REPLAYS}
    for _ in range(rounds):
        for name, act in REPLAYS.items():
            spent[name].append(seconds(act, run_dir))
    for name, held in spent.items():
        ratio = statistics.median(a / b for a, b in zip(held, spent["a bare iteration"], strict=True))
        print(f"{name}: {transitions / statistics.median(held):,.0f} records a second, {ratio:.2f} times the bare one")


def look_ups(run_dir: Path, transitions: int) -> None:
    dry = replay(run_dir)
    for name, low in (("a compressed file", 2), ("the file in use", transitions - 200)):
        took = [seconds(dry.jump, low + 7 * n) for n in range(20)]
        back = [seconds(dry.back) for _ in range(20)]
        print(f"in {name}: a jump {statistics.median(took) * 1e3:.2f} ms, back {statistics.median(back) * 1e3:.2f} ms")


def exports(run_dir: Path, transitions: int, folder: Path) -> None:
    for name in ("trace", "csv", "parquet", "sqlite", "tensorboard"):
        spent = seconds(export, run_dir, name, folder / name)
        print(f"export to {name}: {transitions / spent:,.0f} records a second")


def memory(run_dir: Path) -> None:
    """Print what a replay of this run adds to the process, in MB, at its peak."""
    peak = before = resident()

    def look(run: Any) -> None:
        nonlocal peak
        if run.record.seq % 1000 == 0:
            peak = max(peak, resident())

    replay(run_dir).on("fetch", look).run()
    print(f"{max(peak, resident()) - before:.1f}")


def added(run_dir: Path) -> str:
    command = [sys.executable, __file__, "--memory", str(run_dir)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--transitions", type=int, default=1_000_000, help="about so many (1000000)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds (3)")
    parser.add_argument("--exports", action="store_true", help="measure exports as well")
    parser.add_argument("--memory", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.memory is not None:
        return memory(arguments.memory)
    with tempfile.TemporaryDirectory() as folder:
        short, long = Path(folder) / "short", Path(folder) / "long"
        train(short, 10_000)
        transitions = train(long, arguments.transitions)
        print(f"{transitions:,} transitions")
        speeds(long, transitions, arguments.rounds)
        look_ups(long, transitions)
        print(f"memory that a replay adds: {added(short)} MB for 10,000 transitions, {added(long)} MB for all")
        if arguments.exports:
            exports(long, transitions, Path(folder))
    return None


if __name__ == "__main__":
    main()
