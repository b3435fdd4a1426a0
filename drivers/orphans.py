"""A process that was launched here doesn't outlive its launcher, however that one ended."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Mapping

from .launch_environment import OURS

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def end_with_launcher(environ: Mapping[str, str] = os.environ) -> None:
    """Have this process told SIGTERM if its launcher is killed: it takes its snapshot and ends.

    On Linux, which can do that. It's nothing to a process that another one than the launcher has started.
    """
    if sys.platform == "linux" and environ.get(OURS) == str(os.getppid()):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)


__all__ = ["end_with_launcher"]
