"""A simulation of runs that are killed, cut off from power, starved of disk, signalled and damaged.

It needs no torch, no threads and no clock: `StubDriver` trains whole numbers, `Disk` keeps what would be left after a
power cut, `Beside` does the background work at moments of its own choice. All that happens follows from one number, the
seed: `python -m tests.simulator --seed 17` tells the story of one run, `--runs 20000` looks for a seed that fails.

- `plan`: from a seed, what is trained and what befalls it;
- `disk`, `world`: the disk that fails, and the clock and the threads that aren't there;
- `trainee`: the trainer and its listeners;
- `fate`, `damage`: what strikes a process where it passes by, and its files between two lives;
- `outcomes`: what a life may end with, by what befell it;
- `lives`, `checks`: one run, life after life, and what must hold after each of them.
"""

from .checks import Broken
from .lives import simulate

__all__ = ["Broken", "simulate"]
