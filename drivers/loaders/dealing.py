"""Dealing out an epoch's order over ranks, so that together they go through it as one process would.

Batches that torch makes of a sampler's samples are cut from one of all ranks: `world_size * batch_size` samples in a
row, of which each rank has its part in a row, and the last, shorter one is split as evenly as can be. Whatever makes
its batches in a way of its own is left to it, and ranks take turns over what it makes. Places count over all ranks, so
a position in the order holds for any number of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice
from typing import Any

import attrs
from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, SequentialSampler

from tachograph.drivers.lengths import length_of
from tachograph.drivers.ranks import Ranks
from tachograph.states.errors import CallerError

from .content import content_hash
from .order import Opened, Order, ids_in, of_torch
from .source import Tell


@attrs.frozen
class Part:
    """What a rank has of a step of all ranks.

    Attributes:
        entry: its sample ids, or what the sampler yielded.
        place: of the first of them in the epoch's order.
        samples: how many all ranks have together.
    """

    entry: Any
    place: int
    samples: int


class Dealt:
    """The orders of a sampler, dealt out over ranks; `Order` is the same for one process.

    Args:
        sampler: a batch sampler, or a sampler of entries for a loader with `batch_size=None`. torch's
            `DistributedSampler` in it stands for the order of which it is one rank's share.
        seed: of the order.
        single: the loader has `batch_size=None`.
        ranks: over which it's dealt out.
        tell: takes sentences for the user.
    """

    def __init__(self, sampler: Any, seed: int, single: bool, ranks: Ranks, tell: Tell) -> None:
        self._even = _evens(of_torch(sampler))
        sampler = whole(of_torch(sampler))
        self._single = single
        self._ranks = ranks
        self._tell = tell
        self._world = ranks.world_size
        self._size = 0  # samples in a step, where torch makes the batches
        self._drops = False
        if type(sampler) is BatchSampler:
            self._size, self._drops = self._world * sampler.batch_size, sampler.drop_last
            sampler = BatchSampler(sampler.sampler, self._size, drop_last=False)
        self._order = Order(sampler, seed, single)

    @property
    def _decides(self) -> Any:
        sampler = self._order.sampler
        return sampler.sampler if self._size else sampler

    def length(self) -> int | None:
        """Return how many steps an epoch has that is gone through from its beginning; None if that isn't known."""
        return self._length(0, 0, length_of(self._order.sampler))

    def open(self, epoch: int, done: int, samples: int | None = None, told: bool = False) -> Opened:
        """Stand behind what was consumed of an epoch, as `Order.open` does.

        Args:
            epoch: its number.
            done: steps taken.
            samples: samples consumed, over all ranks: they decide on the position, `done` on the length.
            told: the sampler was just given a state.

        Returns:
            The same as `Order.open`, but the entries are `Part`s, and the length is in steps.

        Raises:
            CallerError: the ranks' samplers give different orders.
        """
        passed = done if self._size else done * self._world
        opened = self._order.open(epoch, passed, samples, told)
        length = self._length(done, opened.place, None if opened.length is None else opened.length - passed)
        entries = compared(opened.entries, self._decides, self._ranks)
        parts = self._cut if self._size else self._in_turn
        return Opened(parts(entries, opened.place, epoch), opened.place, length)

    def _length(self, done: int, place: int, left: int | None) -> int | None:
        """Steps of an epoch, of which some are taken and `left` entries of the order are left."""
        if not self._size:
            return None if left is None else done + left // self._world
        n = length_of(self._decides)
        if n is None:
            return None
        full, rest = divmod(max(n - place, 0), self._size)
        return done + full + (rest >= self._world and not self._drops)

    # -- the parts -----------------------------------------------------------------------------------------

    def _cut(self, batches: Iterator[Any], place: int, epoch: int) -> Iterator[Part]:
        """Give each rank its part of the samples of each batch of all ranks."""
        rank, world, size = self._ranks.rank, self._world, self._size
        for ids in batches:
            n = len(ids)
            if n < size:
                n = self._used(n, epoch)
                if not n:
                    return
            each, more = divmod(n, world)
            first = rank * each + min(rank, more)
            yield Part(ids[first : first + each + (rank < more)], place + first, n)
            place += n

    def _used(self, n: int, epoch: int) -> int:
        """How many samples are used of a last batch that isn't full."""
        if self._drops or n < self._world:
            why = "drop_last=True" if self._drops else f"there are {self._world} ranks"
            self._left_over(n, epoch, why)
            return 0
        over = n % self._world if self._even else 0
        if over:
            self._left_over(over, epoch, "drop_last=True of its DistributedSampler")
        return n - over

    def _left_over(self, n: int, epoch: int, why: str) -> None:
        if self._ranks.first:
            last = "the last sample" if n == 1 else f"the last {n} samples"
            verb = "isn't" if n == 1 else "aren't"
            self._tell(f"{last} of epoch {epoch} of the training loader {verb} used: {why}")

    def _in_turn(self, entries: Iterator[Any], place: int, epoch: int) -> Iterator[Part]:
        """Give each rank every `world_size`-th entry."""
        rank, world = self._ranks.rank, self._world
        while len(held := list(islice(entries, world))) == world:
            sizes = [len(ids_in(entry, self._single)) for entry in held]
            yield Part(held[rank], place + sum(sizes[:rank]), sum(sizes))
            place += sum(sizes)
        if held and self._ranks.first:
            self._tell(left_over(len(held), world, epoch))


def left_over(n: int, world: int, epoch: int) -> str:
    """Say that the last batches of an epoch aren't enough for all ranks."""
    last, verb = ("the last batch", "isn't") if n == 1 else (f"the last {n} batches", "aren't")
    return f"{last} of epoch {epoch} of the training loader {verb} used: {world} ranks take turns"


def compared(entries: Iterator[Any], sampler: Any, ranks: Ranks) -> Iterator[Any]:
    """Hold the beginning and the length of an order against those of the other ranks; return the order.

    Raises:
        CallerError: they differ: the sampler knows of ranks, or the ranks' data isn't the same.
    """
    first = list(islice(entries, 1))
    seen = ranks.gather((content_hash(first), length_of(sampler)))
    if any(other != seen[0] for other in seen):
        lengths = [length for _, length in seen]
        differs = "order" if len(set(lengths)) == 1 else f"number of samples {lengths}"
        raise CallerError(
            f"the {type(sampler).__name__} has another {differs} on each rank, so it can't be dealt out over them: if "
            "each rank's loader makes what that rank is to read, say use_dist_sampler=False; else give all ranks the "
            "same data, and let what is drawn for its order be drawn alike"
        )
    return chain(first, entries)


# -- samplers that are one rank's share --------------------------------------------------------------------


def whole(sampler: Any) -> Any:
    """Return the sampler of all samples in the place of torch's `DistributedSampler`; any other one as it is."""
    if type(sampler) is DistributedSampler:
        data: Any = sampler.dataset
        return RandomSampler(data) if sampler.shuffle else SequentialSampler(data)
    if type(sampler) is BatchSampler:
        inner: Any = sampler.sampler
        if type(inner) is DistributedSampler:
            return BatchSampler(whole(inner), sampler.batch_size, sampler.drop_last)
    return sampler


def _evens(sampler: Any) -> bool:
    """Say whether a sampler is torch's `DistributedSampler` that leaves out samples so that ranks have equally many."""
    inner = getattr(sampler, "sampler", None) if type(sampler) is BatchSampler else sampler
    return type(inner) is DistributedSampler and inner.drop_last


__all__ = ["Dealt", "Part", "compared", "left_over", "whole"]
