"""`World`: what a run needs of the machine it runs on: its disk, its clock, and work beside the run.

The engine, the journal and the snapshots reach these through here only. A simulation gives an engine another world, in
which disks fail, power goes and time passes as it likes: `engine.world = World(files=...)`, before `run()`.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import attrs

from .journal import SEAL_RECORDS, Background, Files


@attrs.frozen(kw_only=True)
class World:
    """A disk, two clocks, and threads.

    Attributes:
        files: the disk.
        clock: the time of day, in seconds since 1970.
        timer: seconds since any fixed moment; it never goes back.
        background: does work beside the run.
        segment: how many records a file of the journal holds before the next one is begun.
    """

    files: Files = attrs.field(factory=Files)
    clock: Callable[[], float] = time.time
    timer: Callable[[], float] = time.monotonic
    background: Background = attrs.field(factory=Background)
    segment: int = SEAL_RECORDS


__all__ = ["World"]
