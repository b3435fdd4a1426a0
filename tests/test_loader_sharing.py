"""Loaders that share their data between ranks by themselves, and those that must be asked: no batch is used twice."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, DistributedSampler, Sampler
from torchdata.stateful_dataloader import StatefulDataLoader

from tachograph.drivers import RestoreFault
from tachograph.drivers.loaders import settings_of, source_of
from tachograph.drivers.loaders.content import content_hash
from tachograph.drivers.ranks import Ranks
from tachograph.drivers.samplers import RandomBatchSampler, RandomSampler
from tachograph.states.errors import CallerError
from tests import test_loader_stateful as stateful
from tests.rank_threads import Rank, Read, Stream, Threads, in_order, read, step_by_step, together
from tests.test_loader_stateful import saved
from tests.toys import Indexed

pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")

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

    def loader(rank: int) -> Any:
        return DataLoader(Stream(6, fails_at=2 if rank else -1), batch_size=1)

    with pytest.raises(ValueError, match="broken at 2"):
        read(2, loader, share=True)


# -- streams -----------------------------------------------------------------------------------------------


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
    assert told == ["the last batch of epoch 0 of the training loader isn't used: 3 ranks take turns"]


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


class Unsized(Sampler[int]):
    """Says no length, and has another one on each rank."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.n))


def test_orders_that_say_no_length_end_together() -> None:
    """R08, R53."""
    told: list[str] = []
    found = read(2, lambda rank: DataLoader(Indexed(20), batch_size=2, sampler=Unsized(12 + 4 * rank)), told=told)
    assert in_order(found) == list(range(12))
    assert [each.length for each in found] == [None, None]
    assert len(told) == 1


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
    """SW5."""

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
