"""`Turns`: how ranks go through an evaluation side by side, though some have fewer batches than others.

In each turn a rank has a batch, or waits for those that have one. So what all ranks must do equally often, as asking
whether a signal has come, they do once a turn.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from tachograph.drivers import NO_BATCH
from tachograph.drivers.ranks import Ranks
from tachograph.drivers.share import Share


class Turns:
    """The turns of a pass over one loader.

    Where nobody knows how many there are, the ranks agree before each one on whether any of them has a batch.

    Args:
        ranks: who evaluate together.
        share: what this rank reads.
        most: batches to use, over all ranks; -1: all.

    Attributes:
        length: batches that all ranks will use together; None where that isn't known.
        taken: turns that were begun.
    """

    def __init__(self, ranks: Ranks, share: Share, most: int) -> None:
        self._ranks = ranks
        self._rank, self._world = (ranks.rank, ranks.world_size) if share.is_apart() else (0, 1)
        self._most = most
        self.length = share.length if most < 0 else most if share.length is None else min(share.length, most)
        self._rounds = None if ranks.world_size == 1 else share.rounds
        if self._rounds is not None and most >= 0:
            self._rounds = min(self._rounds, -(-most // self._world))
        self.taken = 0
        self._mine = 0

    def of(self, batches: Iterator[Any]) -> Iterator[Any]:
        """Yield this rank's batch of each turn, or `NO_BATCH`."""
        mine = batches if self._most < 0 else islice(batches, len(range(self._rank, self._most, self._world)))
        if 0 <= self._most <= self._rank:
            next(batches, NO_BATCH)  # the ranks compare what they read as they begin to read: none may stay away
        while self._goes_on((batch := next(mine, NO_BATCH)) is not NO_BATCH):
            self.taken += 1
            yield batch
            self._mine += batch is not NO_BATCH

    def _goes_on(self, here: bool) -> bool:
        if self._rounds is None:
            return bool(self._ranks.agree(here))
        return here or self.taken < self._rounds

    @property
    def of_all(self) -> bool:
        """Whether all ranks take this turn; no more if this one's loader has more batches than it had said."""
        return self._rounds is None or self.taken <= self._rounds

    @property
    def at(self) -> int:
        """The number of the batch in work among those of all ranks, from 0."""
        return self._mine * self._world + self._rank

    @property
    def done(self) -> int:
        """How many batches all ranks have done after this turn."""
        done = self.taken * self._world
        return done if self.length is None else min(done, self.length)


__all__ = ["Turns"]
