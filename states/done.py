"""*done*: the run is over, by its limits or because it was asked to stop. Nothing leaves it."""

from __future__ import annotations

import attrs

from .event import Event


@attrs.frozen(kw_only=True)
class Stopped(Event):
    """A limit or a listener ended the run before its last epoch was through.

    Attributes:
        reason: who asked, and why.
    """

    reason: str = ""
