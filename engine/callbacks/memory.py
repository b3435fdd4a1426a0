"""`MemoryMonitor`: hands the use of memory to the loggers."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from tachograph.engine import arguments

from .callback import Callback

_MIB = 1 << 20
_STATM = Path("/proc/self/statm")


class MemoryMonitor(Callback):
    """Logs the memory in use, in MiB, every n batches.

    "memory/process" is what the process holds of the machine's memory (its peak, where the system tells only that);
    on an accelerator there are "memory/allocated", "memory/reserved" and "memory/peak" too, as torch counts them. The
    device isn't waited for. Of many ranks the loggers have rank 0's.

    Args:
        every: batches of the run between two values, >= 1.

    Raises:
        CallerError: it is none.
    """

    replays = False

    def __init__(self, every: int = 100) -> None:
        self._every = arguments.count(every, "every")

    def on_train_batch_end(self, trainer: Any) -> None:
        if trainer.trainer_state.global_forward_batches % self._every or not trainer.listeners.inside.get("on_log"):
            return
        used = {"process": process_bytes(), **trainer.driver.memory()}
        trainer.log({f"memory/{name}": held / _MIB for name, held in used.items()})


def process_bytes() -> int:
    """Return how many bytes of the machine's memory this process holds; its peak where the system tells only that."""
    try:
        pages = int(_STATM.read_bytes().split()[1])
    except (OSError, ValueError, IndexError):
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
    return pages * os.sysconf("SC_PAGE_SIZE")
