"""A short run without torch that gets a signal: in the state, or in the middle of the work, that its arguments name.

    python signal_job.py RUN_DIR SIGNAL WHERE [TIMES]

WHERE is a state's name (the signal comes while its entering is heard) or "in:" and a method of the driver.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from tachograph.drivers import StubDriver
from tachograph.engine import Trainer


class Sum:
    def __init__(self) -> None:
        self.reset()

    def update(self, value: int) -> None:
        self.total += value

    def compute(self) -> int:
        return self.total

    def reset(self) -> None:
        self.total = 0


def build(run_dir: str, driver: StubDriver) -> Trainer:
    return Trainer(
        None,
        driver,
        [3, 1, 4],
        None,
        n_epochs=3,
        accumulation_steps=2,
        metrics={"m": Sum()},
        validate_dataloaders=[5, 6],
        validate_every=2,
        run_dir=run_dir,
        seed=11,
        snapshot_every=None,
        progress_bar=None,
    )


def main(run_dir: str, name: str, where: str, times: str = "1") -> None:
    seen = []

    def strike(*_: Any) -> None:
        seen.append(where)
        if len(seen) == 2 or where in ("sanity_check", "done"):
            for _n in range(int(times)):
                os.kill(os.getpid(), getattr(signal, name))

    on = {where.removeprefix("in:"): strike} if where.startswith("in:") else {}
    trainer = build(run_dir, StubDriver(on=on))
    if not on:
        trainer.on(where, strike)
    trainer.run()
    print("the script goes on")


if __name__ == "__main__":
    main(*sys.argv[1:])
