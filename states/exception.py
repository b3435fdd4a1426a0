"""*exception*: an error ended the run. Nothing leaves it; a resume starts again from a snapshot."""

from __future__ import annotations

import attrs

from .event import Event


@attrs.frozen(kw_only=True)
class Failed(Event):
    """An error ended the run; it is raised to the caller as well.

    Attributes:
        error: the error's message.
        kind: the name of its class.
        ids: the sample ids of the batch in hand, or of the one that couldn't be made, as text; "" where there was none,
            or they aren't known.
    """

    error: str = ""
    kind: str = ""
    ids: str = ""
