"""Ranks whose batches nobody can count beforehand: before each step they agree on whether all of them have one."""

from __future__ import annotations

from typing import Any

from tachograph.drivers.calls import batch_size
from tachograph.drivers.driver import NO_BATCH
from tachograph.drivers.errors import RestoreFault
from tachograph.drivers.ranks import Ranks
from tachograph.states.errors import CallerError

from .rounds import Rounds
from .source import BatchSource, Tell

_KEYS = frozenset(("in_turn", "held"))


class AgreedSource:
    """One rank's reader among those of the other ranks: all of them leave an epoch at the same step.

    Args:
        source: this rank's reader.
        ranks: the others.
        tell: takes sentences for the user.
        rounds: how the reader shares its batches, which is part of the state; None: it's of no concern here.
        own: a position is a count of this rank's own batches.

    Attributes:
        ids: the sample ids of this rank's batch that was returned last; None where they aren't known.
        samples: in the last step's batches of all ranks together.
    """

    def __init__(self, source: BatchSource, ranks: Ranks, tell: Tell, rounds: Rounds | None, own: bool) -> None:
        self.ids: list[Any] | None = None
        self.samples: int | None = None
        self.source = source
        self._ranks = ranks
        self._tell = tell
        self._rounds = rounds
        self._own = own
        self._epoch = self._at = 0
        self._lengths: list[int | None] = []
        self._length: int | None = None

    def length(self) -> int | None:
        return _least(self._ranks.gather(self.source.length()))

    def open(self, epoch: int, done: int, samples: int | None = None) -> int | None:
        self._lengths = self._ranks.gather(self.source.open(epoch, done, None if self._own else samples))
        _check_empty([length == 0 for length in self._lengths])
        self._epoch, self._at, self._length = epoch, done, _least(self._lengths)
        return self._length

    def next(self) -> Any:
        if self._own and self._at == self._length:
            return self._ended(sum(self._lengths) - self._length * self._ranks.world_size)  # type: ignore[arg-type]
        try:
            batch = self.source.next()
        except BaseException:
            self.ids = self.source.ids
            raise
        here = batch is not NO_BATCH
        having, samples = self._ranks.sums([int(here), self._count(batch) if here else 0])
        if having < self._ranks.world_size:
            if having and not self._at:
                _check_empty(self._ranks.gather(not here))
            return self._ended(having)
        self._at += 1
        self.ids, self.samples = self.source.ids, samples
        return batch

    def _count(self, batch: Any) -> int:
        ids = self.source.ids
        return batch_size(batch) if ids is None else len(ids)

    def _ended(self, unused: int) -> Any:
        """End the epoch, of which some ranks may have batches left."""
        self.ids = self.samples = None
        if unused and self._ranks.first:
            batches = "1 batch" if unused == 1 else f"{unused} batches"
            self._tell(
                f"epoch {self._epoch} ends after {self._at} steps, since a rank has no batch left: {batches} of the "
                "other ranks aren't used"
            )
        return NO_BATCH

    # -- the state -----------------------------------------------------------------------------------------

    def state(self, again: bool = False) -> Any:
        held = self.source.state(again)
        return held if self._rounds is None else {"in_turn": self._rounds.in_turn, "held": held}

    def check(self, held: Any) -> None:
        if self._rounds is None:
            self.source.check(held)
            return
        if not isinstance(held, dict) or held.keys() != _KEYS:
            raise RestoreFault(
                "the snapshot doesn't say how the training loader was shared between ranks: go on with as many of them "
                "as before"
            )
        self.source.check(held["held"])

    def load(self, held: Any) -> None:
        if self._rounds is not None:
            self._rounds.in_turn, held = held["in_turn"], held["held"]
        self.source.load(held)

    def close(self) -> None:
        self.source.close()


def _check_empty(empty: list[bool]) -> None:
    """Refuse training data of which some ranks have nothing.

    Args:
        empty: for each rank, whether it has none.

    Raises:
        CallerError: that is so for some, and not for all.
    """
    if any(empty) and not all(empty):
        named = ", ".join(str(rank) for rank, none in enumerate(empty) if none)
        which = f"rank {named}" if sum(empty) == 1 else f"ranks {named}"
        raise CallerError(
            f"train_dataloader is empty on {which}, and not on the others: give every rank a batch at least, or the "
            "same data with use_dist_sampler=True, and it's dealt out"
        )


def _least(lengths: list[int | None]) -> int | None:
    known = [length for length in lengths if length is not None]
    return min(known) if len(known) == len(lengths) else None


__all__ = ["AgreedSource"]
