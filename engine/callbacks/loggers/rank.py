"""Which process of a launch this one is, as far as a logger must know: only the first one writes."""

from __future__ import annotations

import os
from collections.abc import Mapping

from tachograph.states.errors import CallerError


def rank(environ: Mapping[str, str] = os.environ) -> int:
    """Return this process's number among those of the launch, from 0; 0 where there was no launch.

    Args:
        environ: holds it as RANK, as torchrun and its like set it.

    Raises:
        CallerError: RANK isn't a number.
    """
    said = environ.get("RANK", "").strip() or "0"
    if not said.isdecimal():
        raise CallerError(f"the environment says RANK={said!r}: it must be the number of the process, from 0")
    return int(said)
