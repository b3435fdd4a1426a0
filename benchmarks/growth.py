"""A long run: memory, bytes a record, and how fast its journal is read back.

A million transitions of the stub driver, which does next to nothing, so that all that could grow is the engine's.

    python benchmarks/growth.py --transitions 1000000
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

from tachograph.drivers import StubDriver
from tachograph.engine import Journal, Trainer

BATCHES = 1000  # an epoch


class Forgetful(StubDriver):
    """The stub without its notes for tests, which would grow."""

    def _called(self, name: str) -> None:
        pass

    def train_step(self, batch: int) -> dict[str, float]:
        outputs = super().train_step(batch)
        self.seen.clear()
        return outputs


def resident() -> float:
    """Return this process's resident memory in MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--transitions", type=int, default=1_000_000, help="about so many (1000000)")
    transitions = parser.parse_args().transitions
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(
            None,
            Forgetful(),
            list(range(BATCHES)),
            None,
            n_epochs=max(transitions // (2 * BATCHES), 2),
            run_dir=Path(folder) / "run",
            snapshot_every=None,
            progress_bar=None,
        )
        memory: list[float] = []
        trainer.on("on_train_epoch_end", lambda trainer: memory.append(resident()))
        began = time.perf_counter()
        state = trainer.run()
        spent = time.perf_counter() - began
        print(f"{state.seq:,} transitions, {spent / state.seq * 1e6:.1f} µs each with the stub's own work")
        tenth = memory[len(memory) // 10]
        print(f"memory after a tenth {tenth:.1f} MB, at the end {memory[-1]:.1f} MB")
        began = time.perf_counter()
        sizes = [len(record.line) + 1 for record in Journal(Path(folder) / "run")]
        spent = time.perf_counter() - began
        print(
            f"{sum(sizes) / len(sizes):.0f} bytes a record, {len(sizes) / spent:,.0f} records a second read and checked"
        )


if __name__ == "__main__":
    main()
