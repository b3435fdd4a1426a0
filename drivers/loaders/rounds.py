"""Sharing what has no index: ranks take turns over batches that all of them read, unless each rank reads its own.

Nobody can tell from a stream whether it knows of ranks. So the first batch of a run is compared: where all ranks were
given the same, the stream doesn't, and it's shared here. What it draws is the same on all ranks in both cases: a stream
that shuffles before it shares must do so alike.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tachograph.drivers.driver import NO_BATCH
from tachograph.drivers.ranks import Ranks

from .content import content_hash
from .dealing import left_over
from .source import Tell


class Rounds:
    """Takes one rank's batches.

    Args:
        ranks: who take turns.
        in_turn: see below.
        tell: takes sentences for the user.
        name: what sentences call the data; None: nothing is told of it, since each rank has it in memory.

    Attributes:
        in_turn: True: all ranks read the same, and each keeps its own batch of every round; False: what a rank reads is
            its own; None: the next batch will tell.
        epoch: its number.
    """

    def __init__(self, ranks: Ranks, in_turn: bool | None, tell: Tell, name: str | None) -> None:
        self.in_turn = in_turn
        self.epoch = 0
        self._ranks = ranks
        self._tell = tell
        self._name = name

    def take(self, read: Callable[[], Any]) -> Any:
        """Return this rank's batch of the next step, or `NO_BATCH`.

        Args:
            read: returns the next batch of what this rank reads, or `NO_BATCH`.
        """
        first = read()
        if self.in_turn is None:
            self.decide(first)
        return self._of_round(first, read) if self.in_turn else first

    def decide(self, first: Any) -> None:
        """Compare the first batch of all ranks; if one of them has none, it's left open.

        Args:
            first: this rank's, or `NO_BATCH`.
        """
        seen = self._ranks.gather(None if first is NO_BATCH else content_hash(first))
        if None in seen:
            return
        self.in_turn = len(set(seen)) == 1
        if self.in_turn and self._name and self._ranks.first:
            self._tell(
                f"every rank reads all of {self._name} and uses one batch of {self._ranks.world_size}, since it was "
                "given the same first batch as the others. To read less, share it in its __iter__, by "
                "torch.distributed.get_rank() and get_world_size(); use_dist_sampler=True says that this is meant"
            )

    def _of_round(self, first: Any, read: Callable[[], Any]) -> Any:
        rank, mine, batch = self._ranks.rank, first, first
        for k in range(self._ranks.world_size):
            if k:
                batch = read()
            if batch is NO_BATCH:
                if k and self._ranks.first:
                    self._tell(left_over(k, self._ranks.world_size, self.epoch))
                return NO_BATCH
            if k == rank:
                mine = batch
        return mine

    @property
    def width(self) -> int:
        """How many of the batches that a rank reads make a step."""
        return self._ranks.world_size if self.in_turn else 1

    def steps(self, batches: int | None) -> int | None:
        """Return how many steps there are where a rank reads so many batches; None if that isn't known."""
        if batches is None or self.in_turn is None:
            return None
        return batches // self.width


__all__ = ["Rounds"]
