"""The fingerprints that a run took of its updates, packed for the page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .boxes import Box

PARTS = ("batch", "gradients", "parameters", "buffers", "optimizers", "scaler")
"""In causal order: each follows from those before."""
MOST = 20_000


class Prints:
    """Gathers fingerprints as they come; where there are many, every other one is let go, again and again.

    Attributes:
        count: how many there were.
    """

    def __init__(self) -> None:
        self.count = 0
        self._every = 1
        self._held: list[Mapping[str, Any]] = []

    def __len__(self) -> int:
        return len(self._held)

    def add(self, taken: Mapping[str, Any]) -> None:
        """Add what a fingerprint's record says."""
        if self.count % self._every == 0:
            self._held.append(taken)
        self.count += 1
        if len(self._held) > MOST:
            self._held = self._held[::2]
            self._every *= 2

    def packed(self) -> str:
        """Return them as a box: the transitions, and the digits of each part, "" where it has none."""
        box = Box()
        at = box.add_integers([int(taken["at"]) for taken in self._held])
        columns = {part: box.add_texts(str(taken.get(part) or "") for taken in self._held) for part in PARTS}
        return box.packed({"at": at, "parts": columns})
