"""A run without torch that goes on for a while: each step waits, until a file tells it to hurry.

Arguments: the run directory, the seconds of a step, epochs, and what the run does in the middle: "", "fail" or "die".
"""

from __future__ import annotations

import math
import os
import sys
import time
from pathlib import Path
from typing import Any

from tachograph.drivers import StubDriver
from tachograph.engine import Trainer


def main(run_dir: str, seconds: str, epochs: str, then: str = "") -> None:
    steps = [0]

    def on_step(driver: Any) -> None:
        steps[0] += 1
        if not Path(run_dir, "hurry").exists():
            time.sleep(float(seconds))
        if steps[0] == 15 and then == "fail":
            raise ValueError("the loss exploded")
        if steps[0] == 15 and then == "die":
            os._exit(9)

    batches = [1 + 5 * math.exp(-i / 5) for i in range(20)]
    settings = {"n_epochs": int(epochs), "snapshot_every": 10, "progress_bar": None, "run_dir": run_dir}
    trainer = Trainer(None, StubDriver(on={"train_step": on_step}), batches, None, **settings)
    trainer.run(resume_from="auto")


if __name__ == "__main__":
    main(*sys.argv[1:])
