"""Reading the same few batches in every epoch: the first ones of the first, kept in memory.

They are a function of the seed and the data, so a resume reads them anew, and a snapshot holds none of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tachograph.drivers import storage
from tachograph.drivers.driver import NO_BATCH
from tachograph.drivers.errors import RestoreFault
from tachograph.drivers.ranks import ALONE, Ranks

from .choosing import source_of
from .source import Tell, warned

Kept = tuple[Any, "list[Any] | None", "int | None"]
"""A batch, its ids, and the samples of its step."""


class KeptSource:
    """Reads the first batches of a loader's first epoch once, and hands out copies of them in every epoch.

    Args:
        dataloader: anything that `source_of` takes.
        seed: of the run.
        n: how many batches; -1: all of the epoch.
        tell: takes sentences for the user.
        ranks: those that train together; each of them keeps its own part.
        share: the user's `use_dist_sampler`.

    Attributes:
        ids: the sample ids of the batch returned last; None where they aren't known.
        samples: in the last step's batches of all ranks together; None in one process.
        most: batches to use of an epoch; -1 uses all that are kept.
    """

    def __init__(
        self,
        dataloader: Any,
        seed: int,
        n: int,
        tell: Tell = warned,
        ranks: Ranks = ALONE,
        share: bool | None = None,
    ) -> None:
        self.ids: list[Any] | None = None
        self.samples: int | None = None
        self.most = -1
        self._made_of = (seed, n)
        self._loader = dataloader
        self._source = source_of(dataloader, seed, n, tell, ranks, share)
        self._n = n
        self._tell = tell
        self._kept: list[Kept] | None = None
        self._at = 0

    def is_of(self, dataloader: Any, seed: int, n: int) -> bool:
        """Say whether it was made with these arguments, so that what it keeps is what they ask for."""
        return self._loader is dataloader and self._made_of == (seed, n)

    def _filled(self) -> list[Kept]:
        if self._kept is None:
            held: list[Kept] = []
            try:
                self._source.open(0, 0, 0)
                while (batch := self._source.next()) is not NO_BATCH:
                    held.append((batch, self._source.ids, self._source.samples))
            except BaseException:
                self.ids = self._source.ids
                raise
            finally:
                self._source.close()
            self._kept = held
            if len(held) < self._n:
                self._tell(f"overfit_batches={self._n}, but the training loader makes {len(held)}: all are used")
        return self._kept

    def batches(self) -> Iterator[Any]:
        """Yield a copy of each batch that is kept."""
        for batch, _, _ in self._filled():
            yield _copy(batch)

    def length(self) -> int | None:
        length = self._source.length() if self._kept is None else len(self._kept)
        return length if length is None or self.most < 0 else min(length, self.most)

    def open(self, epoch: int, done: int, samples: int | None = None) -> int | None:
        kept = len(self._filled())
        self._at = done
        return kept if self.most < 0 else min(kept, self.most)

    def next(self) -> Any:
        self.ids = None
        kept = self._filled()
        if self._at >= (len(kept) if self.most < 0 else min(len(kept), self.most)):
            return NO_BATCH
        batch, self.ids, self.samples = kept[self._at]
        self._at += 1
        return _copy(batch)

    def state(self, again: bool = False) -> Any:
        return None

    def check(self, held: Any) -> None:
        if held is not None:
            raise RestoreFault("the snapshot holds a state of the loader, and with overfit_batches there is none")

    def load(self, held: Any) -> None:
        """There's nothing to take."""

    def close(self) -> None:
        self._source.close()


def _copy(batch: Any) -> Any:
    """Copy a batch's tensors: a step may change what it is given, and the next epoch begins with what was read."""
    return storage.mapped(batch, lambda t: t.clone())
