"""Reading what has neither an index nor a state: a position is reached by reading up to it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from torch.utils.data import DataLoader

from tachograph.drivers.driver import NO_BATCH
from tachograph.drivers.errors import RestoreFault

from .iterated import Iterated
from .rounds import Rounds
from .source import Tell, has_state, warned


class ReplayedSource(Iterated):
    """Reads iterable datasets and other iterables of batches from the beginning of an epoch, and drops what is done."""

    def __init__(
        self, dataloader: Any, seed: int, max_batches: int, tell: Tell = warned, rounds: Rounds | None = None
    ) -> None:
        super().__init__(dataloader, seed, max_batches, tell, rounds)
        self._done = 0

    def open(self, epoch: int, done: int, samples: int | None = None) -> int | None:
        self._stand(epoch, 0)
        self._done = done
        return self._known_length()

    def next(self) -> Any:
        if self._batches is None:
            self._iterate()
            if self._done:
                self._tell(self._sentence())
                self._pass_over(self._done)
        return NO_BATCH if self._at_limit() else self._take()

    def _sentence(self) -> str:
        loader = self._loader
        kind = type(loader).__name__
        again = f"{self._done} batches of epoch {self._epoch} are read again and dropped"
        if not isinstance(loader, DataLoader):
            return (
                f"the training loader, a {kind}, has no index, so {again}: a DataLoader over a map-style dataset goes "
                f"on at once, and so does a {kind} with state_dict() and load_state_dict()"
            )
        data = type(loader.dataset).__name__
        if has_state(loader.dataset):
            return (
                f"the training loader has no index, so {again}: {data} has a state, but in worker processes only "
                "torchdata's StatefulDataLoader can ask for it. Use that, or num_workers=0"
            )
        return (
            f"the training loader has no index, so {again}: a map-style dataset goes on at once, and so does a {data} "
            "with state_dict() and load_state_dict() in torchdata's StatefulDataLoader"
        )

    def state(self, again: bool = False) -> Any:
        return None

    def check(self, held: Any) -> None:
        if held is not None:
            raise RestoreFault(
                f"the snapshot holds a state of the loader, which this {type(self._loader).__name__} can't take: use "
                "the same loader and dataset as before"
            )

    def load(self, held: Any) -> None:
        """There's nothing to take."""

    def close(self) -> None:
        self._end_workers()


class ListSource:
    """Reads a list or tuple of batches.

    Args:
        batches: the list.
        seed: of the run.
        max_batches: batches to use of an epoch; -1 uses all.
        rounds: how ranks share the batches; None: all of them are this process's.
    """

    def __init__(self, batches: Any, seed: int, max_batches: int, rounds: Rounds | None = None) -> None:
        self.ids: list[Any] | None = None
        self.samples: int | None = None
        self._list = batches
        self._max = max_batches
        self._rounds = rounds
        self._batches: Iterator[Any] = iter(())

    def length(self) -> int | None:
        length: int | None = len(self._list)
        if self._rounds is not None:
            if self._rounds.in_turn is None:
                self._rounds.decide(self._list[0] if self._list else NO_BATCH)
            length = self._rounds.steps(length)
        return length if length is None or self._max < 0 else min(length, self._max)

    def open(self, epoch: int, done: int, samples: int | None = None) -> int | None:
        length, rounds = self.length(), self._rounds
        if rounds is None:
            self._batches = islice(self._list, done, length)
            return length
        rounds.epoch = epoch
        shared = self._shared(rounds, done)
        self._batches = shared if self._max < 0 else islice(shared, max(self._max - done, 0))
        return length

    def _shared(self, rounds: Rounds, done: int) -> Iterator[Any]:
        batches = islice(self._list, done * rounds.width, None)
        while (batch := rounds.take(lambda: next(batches, NO_BATCH))) is not NO_BATCH:
            yield batch

    def next(self) -> Any:
        return next(self._batches, NO_BATCH)

    def state(self, again: bool = False) -> Any:
        return None

    def check(self, held: Any) -> None:
        if held is not None:
            raise RestoreFault("the snapshot holds a state of the loader, and this one is a list of batches")

    def load(self, held: Any) -> None:
        """There's nothing to take."""

    def close(self) -> None:
        self._batches = iter(())
