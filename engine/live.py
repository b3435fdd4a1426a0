"""A live line of rich's, made so that a run doesn't notice it: no thread, no capture of stdout, no draw."""

from __future__ import annotations

import random
from typing import Any


def console_of(file: Any, **options: Any) -> Any:
    """Return a console of rich's that writes to a file.

    Importing rich draws from Python's generator, and when that happens is the clock's affair: so it is put back.
    """
    before = random.getstate()
    from rich.console import Console
    from rich.live import Live  # noqa: F401 - its import belongs between these two lines as well

    random.setstate(before)
    return Console(file=file, **options)


def start_live(console: Any) -> Any:
    """Return a live line that has begun, for a console of `console_of`."""
    from rich.live import Live

    live = Live("", console=console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False, transient=True)
    live.start()
    return live


__all__ = ["console_of", "start_live"]
