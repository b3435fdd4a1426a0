"""Data dealt out over ranks: together they read what one process would, and a position holds for any number of them."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    Sampler,
    WeightedRandomSampler,
    get_worker_info,
)
from torchdata.stateful_dataloader import StatefulDataLoader

from tachograph.drivers import NO_BATCH, RestoreFault
from tachograph.drivers.loaders import EvaluationSource, settings_of, source_of
from tachograph.drivers.loaders.content import content_hash
from tachograph.drivers.loaders.kept import KeptSource
from tachograph.drivers.ranks import ALONE, Ranks
from tachograph.drivers.samplers import BucketedBatchSampler, RandomBatchSampler, RandomSampler
from tachograph.states.errors import CallerError
from tests import test_loader_stateful as stateful
from tests.test_augmentation import all_sources
from tests.test_loader_stateful import saved
from tests.test_loaders import Buckets, Shuffled
from tests.toys import Indexed

pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")

SECONDS = 60.0


class Threads:
    """Ranks that are threads of this process: what one gives lies in a list until all have come.

    One of them runs at a time, so that the generators of the process are those of one rank until it waits.
    """

    def __init__(self, n: int) -> None:
        self.barrier = threading.Barrier(n)
        self.running = threading.Lock()
        self.given: list[Any] = [None] * n
        self.told: list[str] = []
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


DATA = Indexed(41)
DEALT: dict[str, Callable[[], dict[str, Any]]] = {
    "in order": lambda: {"batch_size": 3},
    "shuffled": lambda: {"batch_size": 3, "shuffle": True},
    "drop last": lambda: {"batch_size": 3, "shuffle": True, "drop_last": True},
    "weighted": lambda: {"batch_size": 3, "sampler": WeightedRandomSampler([1.0] * 20 + [5.0] * 21, 34)},
    "own sampler": lambda: {"batch_size": 3, "sampler": Shuffled(41)},
    "our sampler": lambda: {"batch_size": 3, "sampler": RandomSampler(41, seed=2)},
    "shared by torch": lambda: {"batch_size": 3, "sampler": DistributedSampler(DATA, 2, 0, shuffle=True)},
    "a list": lambda: {"batch_size": 2, "sampler": [*range(40, 10, -1)]},
}
IN_TURN: dict[str, Callable[[], dict[str, Any]]] = {
    "single samples": lambda: {"batch_size": None, "shuffle": True},
    "own batch sampler": lambda: {"batch_sampler": Buckets(41)},
    "our batch sampler": lambda: {"batch_sampler": RandomBatchSampler(41, 3, seed=2)},
    "our buckets": lambda: {"batch_sampler": BucketedBatchSampler(41, list(range(41)), 3, seed=2)},
    "batches in a list": lambda: {"batch_sampler": [[1, 2], [3], [0, 19, 5], [7], [9, 11], [20, 21, 22], [4]]},
}


@pytest.mark.parametrize("n", [2, 3, 4])
@pytest.mark.parametrize("name", DEALT)
def test_the_parts_of_all_ranks_make_the_order_of_one_process(name: str, n: int) -> None:
    """SA1. A step of all ranks is a batch of one process that is as large: R58 of data with an index."""

    def loader(rank: int) -> Any:
        return DataLoader(Indexed(41), **DEALT[name]())

    for epoch in (0, 3):
        plain = {**DEALT[name](), "drop_last": False}
        if name == "shared by torch":
            plain = {"batch_size": 3, "shuffle": True}
        plain["batch_size"] *= n
        (one,) = read(1, lambda rank, plain=plain: DataLoader(Indexed(41), **plain), epoch)
        found = read(n, loader, epoch)
        steps = step_by_step(found)
        full = [ids for ids in one.ids if len(ids) == plain["batch_size"]]
        assert steps[: len(full)] == full
        if name == "drop last":
            assert len(steps) == len(full)
        elif len(one.ids) > len(full):
            assert steps[len(full) :] == one.ids[len(full) :] or len(one.ids[-1]) < n
        for each in found:
            assert each.length == len(steps)
            assert each.samples == [len(ids) for ids in steps]
            for ids, batch in zip(each.ids, each.batches, strict=True):
                assert batch["id"].tolist() == ids
        for step in zip(*(each.ids for each in found), strict=True):
            sizes = [len(ids) for ids in step]
            assert sizes == sorted(sizes, reverse=True)
            assert max(sizes) - min(sizes) <= 1


@pytest.mark.parametrize("n", [2, 3])
@pytest.mark.parametrize("name", IN_TURN)
def test_ranks_take_turns_over_batches_that_are_made_by_others(name: str, n: int) -> None:
    def loader(rank: int) -> Any:
        return DataLoader(Indexed(41), **IN_TURN[name]())

    (one,) = read(1, loader)
    told: list[str] = []
    found = read(n, loader, told=told)
    steps = len(one.ids) // n
    left = len(one.ids) % n
    for rank, each in enumerate(found):
        assert each.ids == one.ids[rank : steps * n : n]
        assert each.length == steps
        assert each.samples == [sum(map(len, one.ids[i * n : i * n + n])) for i in range(steps)]
    said = [f"the last {left} {'batch' if left == 1 else 'batches'} of epoch 0 of the training loader aren't used"]
    assert [text.split(":")[0] for text in told] == (said if left else [])
    at = sum(map(len, one.ids[:n]))
    (rest,) = read(1, loader, done=1, samples=at)
    assert rest.ids == one.ids[n:]
    for samples in (at, None):
        again = read(n, loader, done=1, samples=samples)
        assert [each.ids for each in again] == [each.ids[1:] for each in found]
        assert [each.length for each in again] == [steps] * n


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.sweep)])
def test_a_position_holds_for_any_number_of_ranks_and_any_batch_size(workers: int) -> None:
    """R51: 64 samples, 4 ranks with batches of 2, stopped after 3 steps: the other 40 follow once each, in order."""

    def loader(size: int) -> Callable[[int], Any]:
        return lambda rank: DataLoader(Indexed(64), batch_size=size, shuffle=True, num_workers=workers)

    (one,) = read(1, loader(64))
    first = read(4, loader(2), most=3)
    assert in_order(first) == one.ids[0][:24]
    assert [each.samples for each in first] == [[8, 8, 8]] * 4
    for n, size in itertools.product((1, 2, 4), (1, 2, 4)):
        found = read(n, loader(size), done=3, samples=24)
        assert in_order(found) == one.ids[0][24:]
        assert [each.length for each in found] == [3 + -(-40 // (n * size))] * n


@settings(max_examples=60, deadline=None)
@given(
    total=st.integers(1, 40), n=st.integers(1, 4), size=st.integers(1, 5), drop=st.booleans(), place=st.integers(0, 40)
)
def test_from_any_position_each_sample_comes_once_and_the_length_is_that_of_the_steps(
    total: int, n: int, size: int, drop: bool, place: int
) -> None:
    """R51, R58."""
    whole = DataLoader(Indexed(total), batch_size=total, shuffle=True)
    order, place = Read(source_of(whole, 5, -1), 0, 0, 0).ids[0], min(place, total)
    usable = total // (n * size) * n * size if drop else total - (total % (n * size) if total % (n * size) < n else 0)
    told: list[str] = []

    def loader(rank: int) -> Any:
        return DataLoader(Indexed(total), batch_size=size, shuffle=True, drop_last=drop)

    if n > 1 and not usable:
        with pytest.raises(CallerError, match=f"train_dataloader is empty over {n} ranks"):
            read(n, loader)
        return
    found = read(n, loader, done=2, samples=place, told=told)
    left = order[place:]
    full, rest = divmod(len(left), n * size)
    used = full * n * size + (0 if drop or rest < n else rest)
    assert in_order(found) == left[:used]
    assert {each.length for each in found} == {2 + len(step_by_step(found))}
    if n > 1:
        unused = len(left) - used
        assert len(told) == (unused > 0)
        assert not unused or f"the last {unused} sample" in told[0]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_sample_s_augmentation_does_not_depend_on_the_number_of_ranks(workers: int) -> None:
    """R51, R26."""

    def loader(rank: int) -> Any:
        return DataLoader(all_sources(), batch_size=2, shuffle=True, num_workers=workers)

    def samples(found: list[Read]) -> list[Any]:
        batches = [batch for step in zip(*(each.batches for each in found), strict=True) for batch in step]
        return [repr(sample) for batch in batches for sample in zip(*batch, strict=True)]

    one, two = (samples(read_apart(n, loader)) for n in (1, 2))
    assert one[: len(two)] == two
    assert len(two) >= len(one) - 1
    assert samples(read_apart(2, loader, done=1, place=4)) == one[4 : len(two)]


class Keeping(DataLoader[Any]):
    """A user's own kind of loader, with a state."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        pass


@pytest.mark.parametrize("kind", [DataLoader, Keeping])
@pytest.mark.parametrize("batches", [None, [[1, 2], [0, 5, 3], [4], [6]]])
def test_nor_does_it_where_ranks_take_turns_or_the_loader_keeps_its_place(kind: Any, batches: Any) -> None:
    """R51, R26."""

    def loader(rank: int) -> Any:
        data = all_sources()
        return kind(data, batch_size=2, shuffle=True) if batches is None else kind(data, batch_sampler=batches)

    def samples(found: list[Read]) -> list[str]:
        parts = [batch for step in zip(*(each.batches for each in found), strict=True) for batch in step]
        return [repr(sample) for batch in parts for sample in zip(*batch, strict=True)]

    one, two = (samples(read_apart(n, loader)) for n in (1, 2))
    assert len(two) >= 6
    assert one[: len(two)] == two


def read_apart(n: int, loader: Callable[[int], Any], done: int = 0, place: int = 0) -> list[Read]:
    """Read an epoch on one rank after the other: threads would share the global generators that the data draws from.

    Where all of the order is dealt out, ranks agree on nothing but that they have the same one.
    """

    class Apart(Ranks):
        def __init__(self, rank: int) -> None:
            self.rank, self.world_size = rank, n

        def gather(self, value: Any) -> list[Any]:
            return [value] * n

    found = []
    for rank in range(n):
        source = source_of(loader(rank), 5, -1, ranks=Apart(rank))
        found.append(Read(source, 0, done, place))
        source.close()
    return found


# -- what is left over -------------------------------------------------------------------------------------


def test_what_can_t_be_dealt_out_is_told_once_an_epoch() -> None:
    """R08: 13 samples for 4 ranks with batches of 1: 1 is left over; with batches of 2 and `drop_last`, 5 are."""
    told: list[str] = []
    found = read(4, lambda rank: DataLoader(Indexed(13), batch_size=1), told=told)
    assert told == ["the last 1 sample of epoch 0 of the training loader aren't used: there are 4 ranks"]
    assert in_order(found) == list(range(12))
    told.clear()
    found = read(4, lambda rank: DataLoader(Indexed(13), batch_size=2, drop_last=True), epoch=3, told=told)
    assert told == ["the last 5 samples of epoch 3 of the training loader aren't used: drop_last=True"]
    assert in_order(found) == list(range(8))


def test_an_epoch_that_is_cut_short_leaves_nothing_over() -> None:
    told: list[str] = []
    found = read(2, lambda rank: DataLoader(Indexed(13), batch_size=2), told=told, limit=2)
    assert [each.length for each in found] == [2, 2]
    assert in_order(found) == list(range(8))
    assert not told


@pytest.mark.parametrize("drop", [False, True])
def test_a_distributed_sampler_stands_for_the_order_it_is_a_share_of(drop: bool) -> None:
    """R15, D7: nothing is repeated; its own `drop_last` makes the ranks' last batches equally large."""

    def loader(rank: int) -> Any:
        data = Indexed(15)
        return DataLoader(data, batch_size=3, sampler=DistributedSampler(data, 2, rank, shuffle=False, drop_last=drop))

    told: list[str] = []
    found = read(2, loader, told=told)
    assert in_order(found) == list(range(14 if drop else 15))
    assert [each.length for each in found] == [3, 3]
    assert len(told) == drop
    kept = read(2, loader, share=False)
    assert [list(itertools.chain(*each.ids)) for each in kept] == [
        list(DistributedSampler(Indexed(15), 2, rank, shuffle=False, drop_last=drop)) for rank in (0, 1)
    ]


# -- who shares --------------------------------------------------------------------------------------------


def test_a_sampler_that_the_user_has_shared_is_left_to_the_user() -> None:
    """SA1."""

    def loader(rank: int) -> Any:
        return DataLoader(Indexed(12), batch_size=2, sampler=RandomSampler(12, seed=1).set_distributed(2, rank))

    found = read(2, loader)
    assert [each.ids for each in found] == [read_apart_of_one(loader(rank)) for rank in (0, 1)]
    assert [each.samples for each in found] == [[4, 4, 4]] * 2
    with pytest.raises(CallerError, match=r"rank 0 of 2 by set_distributed, and this is rank \d of 3"):
        read(3, lambda rank: loader(0))


def read_apart_of_one(loader: Any) -> list[Any]:
    return Read(source_of(loader, 5, -1), 0, 0, 0).ids


def test_a_sampler_with_another_order_on_each_rank_is_refused() -> None:
    class KnowsRanks(Sampler[int]):
        def __init__(self, rank: int) -> None:
            self.rank = rank

        def __len__(self) -> int:
            return 6

        def __iter__(self) -> Iterator[int]:
            return iter(range(self.rank, 12, 2))

    def loader(rank: int) -> Any:
        return DataLoader(Indexed(12), batch_size=2, sampler=KnowsRanks(rank))

    with pytest.raises(CallerError, match="the KnowsRanks has another order on each rank"):
        read(2, loader)
    found = read(2, loader, share=False)
    assert sorted(i for each in found for ids in each.ids for i in ids) == list(range(12))
    with pytest.raises(CallerError, match=r"another number of samples \[8, 9\] on each rank"):
        read(2, lambda rank: DataLoader(Indexed(8 + rank), batch_size=2))


def test_more_ranks_than_samples_are_refused() -> None:
    """R62."""
    with pytest.raises(CallerError, match="train_dataloader is empty over 4 ranks"):
        read(4, lambda rank: DataLoader(Indexed(3), batch_size=2))


# -- ranks that read their own -----------------------------------------------------------------------------


@pytest.mark.parametrize("make", [list, DataLoader, Indexed])
def test_ranks_with_unequally_many_batches_end_together(make: Any) -> None:
    """R08: 5 and 7 batches: both end after 5, and the two that aren't used are told."""
    told: list[str] = []

    def loader(rank: int) -> Any:
        n = 7 if rank else 5
        if make is list:
            return [torch.tensor([i, rank]) for i in range(n)]
        if make is DataLoader:
            return DataLoader(Stream(n, rank), batch_size=1)
        return DataLoader(Indexed(n), batch_size=1)

    for epoch in range(2):
        told.clear()
        found = read(2, loader, epoch, share=False, told=told)
        assert [len(each.batches) for each in found] == [5, 5]
        assert [each.length for each in found] == [None if make is DataLoader else 5] * 2
        unused = "1 batch" if make is DataLoader else "2 batches"  # a stream isn't read to count what is left
        assert told == [
            f"epoch {epoch} ends after 5 steps, since a rank has no batch left: {unused} of the other ranks aren't used"
        ]
        rest = read(2, loader, epoch, done=3, samples=6, share=False)
        assert [each.ids for each in rest] == [each.ids[3:] for each in found]
        assert [content_hash(each.batches) for each in rest] == [content_hash(each.batches[3:]) for each in found]


def test_what_ranks_of_their_own_draw_is_not_the_same() -> None:
    """R46."""
    found = read(2, lambda rank: DataLoader(Noisy(6), batch_size=2), share=False)
    assert content_hash(found[0].batches) != content_hash(found[1].batches)


class Noisy(Dataset[Any]):
    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> Any:
        return torch.rand(1)


@pytest.mark.parametrize("share", [False, None])
@pytest.mark.parametrize("lists", [False, True])
def test_one_empty_rank_is_named(share: bool | None, lists: bool) -> None:
    """R62."""

    def loader(rank: int) -> Any:
        return [torch.tensor([i]) for i in range(3 * (1 - rank))] if lists else DataLoader(Stream(3 * (1 - rank)))

    with pytest.raises(CallerError, match="train_dataloader is empty on rank 1, and not on the others"):
        read(2, loader, share=share)


def test_where_all_ranks_are_empty_there_is_no_batch() -> None:
    """R62."""
    assert [each.batches for each in read(2, lambda rank: DataLoader(Stream(0)))] == [[], []]


def test_an_error_of_one_rank_s_loader_is_raised_there() -> None:
    """R17."""

    def loader(rank: int) -> Any:
        return DataLoader(Stream(6, fails_at=2 if rank else -1), batch_size=1)

    with pytest.raises(ValueError, match="broken at 2"):
        read(2, loader, share=True)


# -- streams -----------------------------------------------------------------------------------------------


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


def numbers(found: list[Read]) -> list[int]:
    return [int(row[0]) for each in found for batch in each.batches for row in batch]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("shares", [False, True])
@pytest.mark.parametrize("state", [False, True])
def test_a_stream_is_read_once_by_all_ranks_together(workers: int, shares: bool, state: bool) -> None:
    """R58: 100 ids, 2 ranks: the union is complete, no id comes twice; a stream that ignores ranks is reported."""

    def loader(rank: int) -> Any:
        kind: Any = StatefulDataLoader if state else DataLoader
        return kind(Stream(100, *((rank, 2) if shares else (0, 1))), batch_size=5, num_workers=workers)

    told: list[str] = []
    found = read(2, loader, told=told)
    assert sorted(numbers(found)) == list(range(100))
    assert [each.samples for each in found] == [[10] * 10] * 2
    assert [text for text in told if "every rank reads all of the training data, a Stream," in text] == told
    assert len(told) == (not shares)


def test_a_stream_that_does_not_come_out_even_leaves_its_last_round_out() -> None:
    """R58."""
    told: list[str] = []
    found = read(3, lambda rank: DataLoader(Stream(20), batch_size=2), told=told, share=True)
    assert sorted(numbers(found)) == list(range(18))
    assert told == ["the last 1 batch of epoch 0 of the training loader aren't used: 3 ranks take turns"]


STREAMS: dict[str, Callable[[int], Any]] = {
    "a stream": lambda rank: DataLoader(Stream(60), batch_size=2),
    "a stream with a state": lambda rank: StatefulDataLoader(Stream(60), batch_size=2),
    "a stream that shares": lambda rank: DataLoader(Stream(60, rank, 2), batch_size=2),
    "a stream that shares, with a state": lambda rank: StatefulDataLoader(Stream(60, rank, 2), batch_size=2),
    "a stream that draws": lambda rank: DataLoader(Drawn(60), batch_size=2),
    "a list": lambda rank: [torch.full((2, 2), i) for i in range(30)],
    "a list of its own": lambda rank: [torch.full((2, 2), 2 * i + rank) for i in range(15)],
}


class Drawn(Stream):
    def __iter__(self) -> Iterator[Any]:
        for row in super().__iter__():
            yield row + 100 * torch.randint(50, (2,))


@pytest.mark.parametrize("name", STREAMS)
def test_a_resume_in_mid_epoch_keeps_to_who_shares(name: str) -> None:
    """R58, R01: the next batches are those of the straight run, on every rank, and so is the next epoch."""

    def straight(ranks: Ranks) -> list[str]:
        source = source_of(STREAMS[name](ranks.rank), 5, -1, [].append, ranks)
        return [content_hash(batch) for epoch in range(2) for batch in Read(source, epoch, 0, 0).batches]

    told: list[str] = []

    def resumed(ranks: Ranks, k: int) -> list[str]:
        source = source_of(STREAMS[name](ranks.rank), 5, -1, [].append, ranks)
        before = [content_hash(batch) for batch in Read(source, 0, 0, 0, most=k).batches]
        again = source_of(STREAMS[name](ranks.rank), 5, -1, told.append, ranks)
        held = source.state()
        again.check(held)
        again.load(held)
        rest = Read(again, 0, k, 4 * k)
        assert len(rest.batches) == 15 - k
        return before + [content_hash(batch) for batch in rest.batches + Read(again, 1, 0, 0).batches]

    whole = together(2, straight)
    assert [len(hashes) for hashes in whole] == [30, 30]
    assert not set(whole[0][:15]) & set(whole[1][:15])
    for k in (1, 7, 15):
        assert together(2, lambda ranks, k=k: resumed(ranks, k)) == whole
    assert not any("every rank reads all" in text for text in told)


def test_a_state_of_one_process_is_refused_by_many() -> None:
    one = source_of(DataLoader(Stream(6)), 5, -1)
    two = source_of(DataLoader(Stream(6)), 5, -1, ranks=Rank(Threads(2), 0, 2))
    with pytest.raises(RestoreFault, match="doesn't say how the training loader was shared between ranks"):
        two.check(one.state())


def test_lengths_are_known_before_the_first_epoch_where_nobody_has_to_read_for_them() -> None:
    """R53."""

    def lengths(ranks: Ranks) -> list[int | None]:
        loaders = [
            DataLoader(Indexed(20), batch_size=3),
            [torch.tensor([i]) for i in range(7)],
            DataLoader(Stream(20), batch_size=3),
        ]
        return [source_of(loader, 5, -1, [].append, ranks).length() for loader in loaders]

    assert together(2, lengths) == [[4, 3, None]] * 2
    assert together(1, lengths) == [[7, 7, None]]


# -- the settings of a run ---------------------------------------------------------------------------------


def test_the_settings_of_data_that_is_dealt_out_do_not_depend_on_the_ranks() -> None:
    """R51."""
    two = Rank(Threads(2), 0, 2)
    data = Indexed(20)
    plain = DataLoader(data, batch_size=3, shuffle=True)
    by_torch = DataLoader(data, batch_size=3, sampler=DistributedSampler(data, 2, 0))
    assert settings_of(plain, -1) == settings_of(plain, -1, two) == settings_of(by_torch, -1, two, True)
    buckets = DataLoader(data, batch_sampler=Buckets(20))
    assert settings_of(buckets, -1) == settings_of(buckets, -1, two)


def test_what_can_t_change_its_number_of_ranks_says_so() -> None:
    """R51: the setting is fixed, so such a resume is refused by name."""
    two = Rank(Threads(2), 0, 2)
    own = DataLoader(Indexed(20), batch_size=3)
    said = "Indexed of 20 samples in batches of 3 by SequentialSampler, shared by itself over 2 ranks"
    assert settings_of(own, -1, two, False) == {"data": said, "batch_size": None}
    for loader in (DataLoader(Stream(6)), [1, 2], StatefulDataLoader(Stream(6))):
        assert settings_of(loader, -1, two)["data"].endswith(", shared as its first batch tells over 2 ranks")
        assert settings_of(loader, -1, two, True)["data"].endswith(", shared over 2 ranks")
        assert "rank" not in settings_of(loader, -1)["data"]
    kept = DataLoader(stateful.Remembering(), batch_size=3)
    assert settings_of(kept, -1, two) == {
        "data": "Remembering of 10 samples by SequentialSampler, shared over 2 ranks",
        "batch_size": 3,
    }


# -- evaluation --------------------------------------------------------------------------------------------


def scored(n: int, loader: Callable[[], Any], share: bool | None = None, passes: int = 1) -> list[list[Any]]:
    def work(ranks: Ranks) -> list[Any]:
        source = EvaluationSource(loader(), ranks, share)
        for _ in range(passes):
            found = [(source.ids, batch) for batch in source.batches()]
        rounds = source.rounds()
        assert rounds is None or 0 <= rounds - len(found) <= 1
        return found

    return together(n, work)


@pytest.mark.parametrize("total", [1, 3, 5, 21])
@pytest.mark.parametrize("shuffled", [False, True])
def test_every_sample_is_scored_once(total: int, shuffled: bool) -> None:
    """R15."""
    for n, size, by_torch in itertools.product((1, 2, 3, 4), (1, 4), (False, True)):
        if n == 1 and by_torch:
            continue

        def loader(n: int = n, size: int = size, by_torch: bool = by_torch) -> Any:
            data = Indexed(total)
            sampler = DistributedSampler(data, n, 0, shuffle=shuffled) if by_torch else None
            return DataLoader(data, batch_size=size, sampler=sampler, shuffle=None if by_torch else shuffled)

        found = scored(n, loader, passes=2)
        ids = [i for each in found for held, _ in each for i in held]
        assert sorted(ids) == list(range(total))
        for rank, each in enumerate(found):
            assert [batch["id"].tolist() for _, batch in each] == [held for held, _ in each]
            assert len(each) == len(range(rank, -(-total // size), n))
            if not shuffled:
                assert [held[0] for held, _ in each] == list(range(rank * size, total, n * size))


def test_data_of_other_ranks_is_not_loaded_for_an_evaluation() -> None:
    """R15."""
    data = [Indexed(21), Indexed(21)]

    def work(ranks: Ranks) -> None:
        list(EvaluationSource(DataLoader(data[ranks.rank], batch_size=4), ranks).batches())

    together(2, work)
    assert data[0].reads == [i for i in range(21) if i // 4 % 2 == 0]
    assert data[1].reads == [i for i in range(21) if i // 4 % 2 == 1]


@pytest.mark.parametrize("share", [None, True])
@pytest.mark.parametrize("state", [False, True])
def test_a_stream_is_scored_once(share: bool | None, state: bool) -> None:
    """R15, R58."""
    kind: Any = StatefulDataLoader if state else DataLoader
    found = scored(3, lambda: kind(Stream(20), batch_size=2), share, passes=2)
    ids = [int(row[0]) for each in found for _, batch in each for row in batch]
    assert sorted(ids) == list(range(20))
    assert [len(each) for each in found] == [4, 3, 3]


def test_a_stream_that_shares_itself_is_scored_as_it_does() -> None:
    def work(ranks: Ranks) -> list[int]:
        source = EvaluationSource(DataLoader(Stream(21, ranks.rank, 2), batch_size=2), ranks)
        return [int(row[0]) for _ in range(2) for batch in source.batches() for row in batch]

    assert sorted(itertools.chain(*together(2, work))) == sorted([*range(21)] * 2)


def test_what_is_the_user_s_own_business_is_scored_as_it_is() -> None:
    found = scored(2, lambda: DataLoader(Indexed(5), batch_size=2), share=False)
    assert [[ids for ids, _ in each] for each in found] == [[[0, 1], [2, 3], [4]]] * 2


def test_a_rank_that_is_alone_for_a_while_scores_all() -> None:
    ranks = Rank(Threads(2), 1, 2)
    source = EvaluationSource(DataLoader(Indexed(5), batch_size=2), ranks)
    ranks.world_size = 1
    list(source.batches())
    assert source.rounds() == 3


# -- batches that are kept ---------------------------------------------------------------------------------


def test_each_rank_keeps_its_own_part_of_the_first_batches() -> None:
    def work(ranks: Ranks) -> list[Any]:
        source = KeptSource(DataLoader(Indexed(40), batch_size=2, shuffle=True), 5, 3, [].append, ranks)
        assert source.length() == 3
        epochs = [Read(source, epoch, 0, 0) for epoch in range(2)]
        assert [each.length for each in epochs] == [3, 3]
        assert epochs[0].ids == epochs[1].ids
        assert epochs[0].samples == [4, 4, 4]
        return epochs[0].ids

    (one,) = read(1, lambda rank: DataLoader(Indexed(40), batch_size=40, shuffle=True))
    first, second = together(2, work)
    assert [i for step in zip(first, second, strict=True) for ids in step for i in ids] == one.ids[0][:12]


# -- what batches hold -------------------------------------------------------------------------------------


class Holding:
    def __init__(self, held: Any) -> None:
        self.held = held


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (torch.tensor([1, 2]), torch.tensor([2, 1])),
        (torch.tensor([1]), torch.tensor([1.0])),
        (torch.zeros(2, 3), torch.zeros(3, 2)),
        ({"x": torch.zeros(1)}, {"y": torch.zeros(1)}),
        ([1, "1"], ["1", 1]),
        ([[1], 2], [[1, 2]]),
        (Holding(torch.arange(5000)), Holding(torch.arange(5000) + (torch.arange(5000) == 2500))),
        ({1, 2}, {1, 3}),
        (None, 0),
    ],
)
def test_batches_are_told_apart_by_what_they_hold(a: Any, b: Any) -> None:
    assert content_hash(a) != content_hash(b)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.arange(6).reshape(2, 3).t(),
        lambda: {"x": [torch.ones(2), "a", 1.5, None], "y": (torch.ones(1, dtype=torch.bfloat16),)},
        lambda: Holding(Holding([torch.ones(3), object()])),
        lambda: torch.eye(3).to_sparse(),
        lambda: {"a", "b", "c"},
        lambda: torch.ones(2, requires_grad=True),
    ],
)
def test_equal_batches_have_equal_hashes(make: Callable[[], Any]) -> None:
    assert content_hash(make()) == content_hash(make())


# -- loaders and data with a state -------------------------------------------------------------------------


def check_every_position(make: Callable[[int], Any], share: bool | None, stops: Any = None, n: int = 2) -> list[Any]:
    """Save after any number of steps, go on in fresh objects, in this epoch and the next; return what was read."""

    def source(ranks: Ranks) -> Any:
        return source_of(make(ranks.rank), 5, -1, [].append, ranks, share)

    def batches(read_from: Any, epoch: int, done: int = 0, most: int = -1) -> list[str]:
        return [content_hash(batch) for batch in Read(read_from, epoch, done, None, most).batches]

    def straight(ranks: Ranks) -> list[list[str]]:
        one = source(ranks)
        held = [batches(one, epoch) for epoch in range(3)]
        one.close()
        return held

    def resumed(ranks: Ranks, epoch: int, k: int) -> list[list[str]]:
        first = source(ranks)
        for before in range(epoch):
            batches(first, before)
        batches(first, epoch, 0, k)
        state = saved(first)
        first.close()
        again = source(ranks)
        again.check(state)
        again.load(state)
        held = [batches(again, epoch, k), batches(again, epoch + 1)]
        again.close()
        return held

    whole = together(n, straight)
    for epoch in range(2):
        for k in range(len(whole[0][epoch]) + 1) if stops is None else stops:
            found = together(n, lambda ranks, epoch=epoch, k=k: resumed(ranks, epoch, k))
            assert found == [[each[epoch][k:], each[epoch + 1]] for each in whole], (epoch, k)
    return whole


@pytest.mark.filterwarnings("ignore:.*read again")
@pytest.mark.parametrize("share", [None, True, False])
@pytest.mark.parametrize("loader", stateful.HERE)
@pytest.mark.parametrize("stream", [stateful.Stream, stateful.Once, stateful.ItsOwn])
def test_a_stream_with_a_state_goes_on_over_ranks_from_any_position(stream: Any, loader: str, share: Any) -> None:
    """R31, R58."""
    whole = check_every_position(lambda rank: stateful.HERE[loader](stream()), share)
    together_read = {text for each in whole for text in each[0]}
    assert len(together_read) == len(whole[0][0]) * (1 if share is False else 2)


@pytest.mark.sweep
@pytest.mark.filterwarnings("ignore:.*read again")
@pytest.mark.parametrize("share", [None, False])
@pytest.mark.parametrize("settings", stateful.THERE)
def test_a_stream_with_a_state_in_workers_goes_on_over_ranks_from_any_position(settings: str, share: Any) -> None:
    """R31, R58."""
    check_every_position(lambda rank: StatefulDataLoader(stateful.Stream(), **stateful.THERE[settings]), share)


@pytest.mark.filterwarnings("ignore:.*read again")
@pytest.mark.parametrize("loader", stateful.HERE)
def test_streams_of_unequal_length_go_on_from_any_position(loader: str) -> None:
    """R08, R31."""
    whole = check_every_position(lambda rank: stateful.HERE[loader](stateful.Stateless(10 + 7 * rank)), False)
    assert [len(epoch) for each in whole for epoch in each] == [len(whole[0][0])] * 6


@pytest.mark.parametrize("share", [None, False])
@pytest.mark.parametrize("name", stateful.INDEXED)
def test_data_or_a_loader_with_a_state_and_an_index_goes_on_over_ranks_from_any_position(name: str, share: Any) -> None:
    """R31, R35."""
    check_every_position(lambda rank: stateful.INDEXED[name](), share)


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.sweep)])
@pytest.mark.parametrize("name", stateful.INDEXED)
def test_a_loader_with_a_state_is_dealt_out_whole(name: str, workers: int) -> None:
    """R58."""
    found = read(2, lambda rank: stateful.INDEXED[name](num_workers=workers), samples=None)
    assert sorted(in_order(found)) == list(range(10))
    assert {each.length for each in found} == {len(step_by_step(found))}
    assert [each.samples for each in found] == [list(map(len, step_by_step(found)))] * 2


class ByItself(DataLoader[Any]):
    """Iterates without asking its sampler."""

    def __iter__(self) -> Iterator[Any]:
        return iter([torch.tensor([i]) for i in range(4)])


class Through(DataLoader[Any]):
    """Iterates as torch does, and leaves its last batch out on one rank."""

    short = False

    def __iter__(self) -> Iterator[Any]:
        return itertools.islice(super().__iter__(), 2 if self.short else None)


def test_a_loader_that_iterates_by_itself_can_t_be_dealt_out() -> None:
    with pytest.raises(CallerError, match="iterator of ByItself doesn't ask its sampler for samples"):
        read(2, lambda rank: ByItself(Indexed(8), batch_size=2))
    found = read(2, lambda rank: ByItself(Indexed(8), batch_size=2), share=False)
    assert [len(each.batches) for each in found] == [4, 4]


def test_a_loader_with_an_iterator_of_its_own_ends_with_the_others() -> None:
    """R08."""

    def loader(rank: int) -> Any:
        made = Through(Indexed(12), batch_size=2)
        made.short = rank == 1
        return made

    told: list[str] = []
    found = read(2, loader, told=told)
    assert in_order(found) == list(range(8))
    assert [each.samples for each in found] == [[4, 4]] * 2
    assert told == [
        "epoch 0 ends after 2 steps, since a rank has no batch left: 1 batch of the other ranks aren't used"
    ]
    one = source_of(Through(Indexed(12), batch_size=2), 5, -1)
    one.check(together(2, lambda ranks: source_of(loader(0), 5, -1, [].append, ranks).state())[0])


def test_a_sampler_that_was_shared_by_the_user_goes_on_from_any_position() -> None:
    """SA1, R01."""

    def loader(rank: int) -> Any:
        data = Indexed(20, noise=True)
        return DataLoader(data, batch_size=3, sampler=RandomSampler(20, seed=1).set_distributed(2, rank))

    def in_batches(rank: int) -> Any:
        return DataLoader(Indexed(20), batch_sampler=RandomBatchSampler(20, 3, seed=1).set_distributed(2, rank))

    check_every_position(loader, None)
    check_every_position(in_batches, None)


class OfItsOwn(DistributedSampler[Any]):
    """A user's own kind of it."""


class Backwards(BatchSampler):
    """A user's own kind of batch sampler."""

    def __iter__(self) -> Iterator[Any]:
        return (batch[::-1] for batch in super().__iter__())


def test_shares_that_can_t_be_replaced_are_left_to_their_samplers() -> None:
    """R15."""

    def loader(rank: int, kind: str) -> Any:
        data = Indexed(12)
        if kind == "sampler":
            return DataLoader(data, batch_size=2, sampler=OfItsOwn(data, 2, rank, shuffle=False))
        return DataLoader(data, batch_sampler=Backwards(DistributedSampler(data, 2, rank, shuffle=False), 2, False))

    for kind in ("sampler", "batches"):
        found = read(2, lambda rank, kind=kind: loader(rank, kind))
        assert sorted(in_order(found)) == list(range(12))
        assert settings_of(loader(0, kind), -1, Rank(Threads(2), 0, 2))["data"].endswith(
            "shared by itself over 2 ranks"
        )
