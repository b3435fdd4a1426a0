"""Ranks without processes: threads that take turns, and what they read of a loader."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import IterableDataset, get_worker_info

from tachograph.drivers import NO_BATCH
from tachograph.drivers.loaders import source_of
from tachograph.drivers.ranks import ALONE, Ranks

SECONDS = 60.0


class Threads:
    """Ranks that are threads of this process: what one gives lies in a list until all have come.

    One of them runs at a time, so that the generators of the process are those of one rank until it waits.
    """

    def __init__(self, n: int) -> None:
        self.barrier = threading.Barrier(n)
        self.running = threading.Lock()
        self.given: list[Any] = [None] * n
        self.collectives = 0

    def gathered(self, rank: int, value: Any) -> list[Any]:
        self.given[rank] = value
        self._wait()
        held = list(self.given)
        self._wait()
        self.collectives += rank == 0
        return held

    def _wait(self) -> None:
        self.running.release()
        try:
            self.barrier.wait(SECONDS)
        finally:
            self.running.acquire()


class Rank(Ranks):
    def __init__(self, among: Threads, rank: int, n: int) -> None:
        self.among, self.rank, self.world_size = among, rank, n

    def gather(self, value: Any) -> list[Any]:
        return self.among.gathered(self.rank, value)

    def sums(self, numbers: list[int]) -> list[int]:
        return [sum(each) for each in zip(*self.among.gathered(self.rank, numbers), strict=True)]


def together(n: int, work: Callable[[Ranks], Any], threads: Threads | None = None) -> list[Any]:
    """Do some work on every rank; return what they made, or raise what the first that failed raised."""
    among = threads or Threads(n)
    made: list[Any] = [None] * n
    errors: list[BaseException] = []

    def do(rank: int) -> None:
        with among.running:
            try:
                made[rank] = work(Rank(among, rank, n) if n > 1 else ALONE)
            except threading.BrokenBarrierError:
                pass
            except BaseException as error:
                errors.append(error)
                among.barrier.abort()

    running = [threading.Thread(target=do, args=(rank,)) for rank in range(n)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    if errors:
        raise errors[0]
    return made


class Read:
    """What one rank read of an epoch: ids, batches, samples over all ranks, and the length that was said."""

    def __init__(self, source: Any, epoch: int, done: int, samples: int | None, most: int = -1) -> None:
        self.length = source.open(epoch, done, samples)
        self.ids: list[Any] = []
        self.batches: list[Any] = []
        self.samples: list[Any] = []
        while len(self.ids) != most and (batch := source.next()) is not NO_BATCH:
            self.ids.append(source.ids)
            self.batches.append(batch)
            self.samples.append(source.samples)


def read(
    n: int,
    loader: Callable[[int], Any],
    epoch: int = 0,
    done: int = 0,
    samples: int | None = 0,
    share: bool | None = None,
    told: list[str] | None = None,
    most: int = -1,
    limit: int = -1,
) -> list[Read]:
    """Read an epoch on every rank."""

    def work(ranks: Ranks) -> Read:
        source = source_of(loader(ranks.rank), 5, limit, (told if told is not None else []).append, ranks, share)
        try:
            return Read(source, epoch, done, samples, most)
        finally:
            source.close()

    return together(n, work)


def step_by_step(found: list[Read]) -> list[list[Any]]:
    """The ids of each step, those of the ranks one behind the other."""
    return [list(itertools.chain(*step)) for step in zip(*(each.ids for each in found), strict=True)]


def in_order(found: list[Read]) -> list[Any]:
    return list(itertools.chain(*step_by_step(found)))


class Stream(IterableDataset[Any]):
    """Ids from 0, shared between workers; between ranks too, if it's told of them."""

    def __init__(self, n: int, rank: int = 0, ranks: int = 1, fails_at: int = -1) -> None:
        self.n, self.rank, self.ranks, self.fails_at = n, rank, ranks, fails_at

    def __iter__(self) -> Iterator[Any]:
        info = get_worker_info()
        workers, worker = (1, 0) if info is None else (info.num_workers, info.id)
        for i in range(self.rank + self.ranks * worker, self.n, self.ranks * workers):
            if i == self.fails_at:
                raise ValueError(f"broken at {i}")
            yield torch.tensor([i, self.rank if self.ranks == 1 else 0])
