"""`Display`: what all displays have in common. Each is told the same numbers, and only renders them."""

from __future__ import annotations

from .status import Said, Status
from .stream import Stream
from .wording import Words


class Display:
    """Shows a run.

    Args:
        stream: where to write.
        words: how numbers are written.

    Attributes:
        name: what its mode is called.
        live: it has a line that is drawn again and again.
        every: seconds between two batches that are shown, where nothing else was asked for.
    """

    name = "none"
    live = False
    every = 30.0

    def __init__(self, stream: Stream, words: Words) -> None:
        self.stream = stream
        self.words = words

    def update(self, status: Status) -> None:
        """Draw the live line."""

    def say(self, said: Said) -> None:
        """Tell an event, to stay."""
        text = self.words.sentence(said)
        if text:
            self.print(text)

    def print(self, text: str) -> None:
        """Write a line that stays."""
        self.stream.line(text)

    def close(self) -> None:
        """Take the live line away; it comes back with the next update."""
