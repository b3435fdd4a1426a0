"""Data dealt out over ranks: together they read what one process would, and a position holds for any number of them."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import (
    DataLoader,
    DistributedSampler,
    Sampler,
    WeightedRandomSampler,
)
from torchdata.stateful_dataloader import StatefulDataLoader

from tachograph.drivers.loaders import EvaluationSource, settings_of, source_of
from tachograph.drivers.loaders.kept import KeptSource
from tachograph.drivers.ranks import Ranks
from tachograph.drivers.samplers import BucketedBatchSampler, RandomBatchSampler, RandomSampler
from tachograph.states.errors import CallerError
from tests import test_loader_stateful as stateful
from tests.rank_threads import Rank, Read, Stream, Threads, in_order, read, step_by_step, together
from tests.test_augmentation import all_sources
from tests.test_loaders import Buckets, Shuffled
from tests.toys import Indexed

pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")

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
    """SW4, SA1: a step of all ranks is a batch of one process that is as large."""

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
    """SW5."""

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
    last, verb = ("the last batch", "isn't") if left == 1 else (f"the last {left} batches", "aren't")
    said = [f"{last} of epoch 0 of the training loader {verb} used"]
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
        last = "the last sample " if unused == 1 else f"the last {unused} samples "
        assert not unused or told[0].startswith(last)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_sample_s_augmentation_does_not_depend_on_the_number_of_ranks(workers: int) -> None:
    """R51. R26. D12: nor does a worker's, which has no generators of a rank."""

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
    assert told == ["the last sample of epoch 0 of the training loader isn't used: there are 4 ranks"]
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
    """R15, SW4: nothing is repeated; its own `drop_last` makes the ranks' last batches equally large."""

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
    """SA1, SW5."""

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
    """SW4."""

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
    held = settings_of(own, -1, two, False)
    assert (held["data"], held["batch_size"]) == (said, None)
    for loader in (DataLoader(Stream(6)), [1, 2], StatefulDataLoader(Stream(6))):
        assert settings_of(loader, -1, two)["data"].endswith(", shared as its first batch tells over 2 ranks")
        assert settings_of(loader, -1, two, True)["data"].endswith(", shared over 2 ranks")
        assert "rank" not in settings_of(loader, -1)["data"]
    kept = DataLoader(stateful.Remembering(), batch_size=3)
    held = settings_of(kept, -1, two)
    assert held["data"] == "Remembering of 10 samples by SequentialSampler, shared over 2 ranks"
    assert held["batch_size"] == 3


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
    """R15, SW6."""
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


def test_ranks_whose_data_has_an_index_agree_once_an_epoch() -> None:
    """No step waits for another rank because of its batches."""
    threads = Threads(2)

    def work(ranks: Ranks) -> None:
        source = source_of(DataLoader(Indexed(64), batch_size=2, shuffle=True), 5, -1, ranks=ranks)
        for epoch in range(3):
            Read(source, epoch, 0, 0)

    together(2, work, threads)
    assert threads.collectives == 3
