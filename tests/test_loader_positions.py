"""Positions are counted in samples: with another batch size, a run goes on with the first sample it hasn't seen."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, RandomSampler, Sampler

from tachograph.drivers import NO_BATCH
from tachograph.drivers.loaders import ClonedSource, DirectSource, Order, source_of
from tachograph.engine import Events, Journal, Trainer
from tachograph.states.errors import CallerError
from tests.test_augmentation import all_sources
from tests.test_augmentation import read as read_with_draws
from tests.test_loaders import LOADERS, Buckets, Seen, Shuffled, ids_of, loader, read, seeing
from tests.toys import Indexed


def flat(pairs: list[tuple[Any, Any]]) -> list[Any]:
    return [i for ids in ids_of(pairs) for i in ids]


def rest(source: Any, epoch: int, done: int, samples: int) -> tuple[int | None, list[Any]]:
    """What `open` says of the epoch's length, and the ids of its batches from a position in samples on."""
    length = source.open(epoch, done, samples)
    held = []
    while source.next() is not NO_BATCH:
        held.append(source.ids)
    return length, held


@pytest.mark.parametrize("make", [DirectSource, ClonedSource])
@pytest.mark.parametrize("name", LOADERS)
def test_any_sample_of_an_order_may_be_the_next_one(name: str, make: Any) -> None:
    """R51: what follows is what was left, nothing of it twice; the epoch is as long as what was done and is left."""
    whole = loader(name)
    if name == "drop last":
        whole = DataLoader(Indexed(20), batch_size=3, shuffle=True)
    samples = flat(read(DirectSource(whole, 5, -1), 1))
    for place in range(0, len(samples) + 1, 1 if make is DirectSource else 4):
        for done in (place, 7):
            length, held = rest(make(loader(name), 5, -1), 1, done, place)
            ids = list(itertools.chain(*held))
            assert ids == samples[place : place + len(ids)]
            assert len(samples) - place - len(ids) < (4 if name in ("drop last", "torch's batch sampler") else 1)
            assert length == done + len(held)


@pytest.mark.parametrize("size", [1, 3, 4, 7, 50])
@pytest.mark.parametrize("drop", [False, True])
def test_behind_a_position_the_batches_are_of_the_new_size(size: int, drop: bool) -> None:
    data = Indexed(23)
    whole = flat(read(source_of(DataLoader(data, batch_size=5, shuffle=True), 5, -1), 2))
    for place in range(24):
        again = DataLoader(data, batch_size=size, shuffle=True, drop_last=drop)
        if drop and size > 23:
            continue
        length, held = rest(source_of(again, 5, -1), 2, 3, place)
        left = whole[place:]
        expected = [left[i : i + size] for i in range(0, len(left), size)]
        if drop and expected and len(expected[-1]) < size:
            expected.pop()
        assert held == expected
        assert length == 3 + len(expected)


@pytest.mark.parametrize("most", [1, 4, 6])
def test_a_cut_epoch_counts_its_batches_whatever_their_size(most: int) -> None:
    whole = flat(read(source_of(DataLoader(Indexed(23), batch_size=5, shuffle=True), 5, -1), 0))
    for size, done, place in itertools.product((2, 5), range(most + 1), (0, 4, 20, 23)):
        source = source_of(DataLoader(Indexed(23), batch_size=size, shuffle=True), 5, most)
        length, held = rest(source, 0, done, place)
        assert len(held) <= most - done
        ids = list(itertools.chain(*held))
        assert ids == whole[place : place + len(ids)]
        assert length == min(done + -(-(23 - place) // size), most)


def test_an_entry_that_was_consumed_in_part_is_served_as_a_short_batch() -> None:
    order = Order(Buckets(20), 5)
    whole = list(order.open(0, 0).entries)
    assert [len(entry) for entry in whole] == [1, 2, 3, 14]
    opened = order.open(0, 2, 4)
    assert (opened.place, opened.length) == (4, 4)
    assert list(opened.entries) == [whole[2][1:], whole[3]]


def test_lists_of_samples_that_a_dataset_is_asked_for_at_once_are_counted_sample_by_sample() -> None:
    """`batch_size=None` with a batch sampler as its sampler: each index is a list."""

    class Rows(Dataset[Any]):
        def __len__(self) -> int:
            return 10

        def __getitem__(self, index: Any) -> Any:
            return torch.as_tensor(index)

    def make(size: int) -> Any:
        data = Rows()
        return source_of(
            DataLoader(data, batch_size=None, sampler=BatchSampler(RandomSampler(data), size, False)), 5, -1
        )

    whole = flat(read(make(4), 0))
    assert sorted(whole) == list(range(10))
    for place in range(11):
        length, held = rest(make(3), 0, 2, place)
        assert list(itertools.chain(*held)) == whole[place:]
        assert length == 2 + -(-(10 - place) // 3)


class Endless(Sampler[int]):
    """Knows no length."""

    def __iter__(self) -> Iterator[int]:
        while True:
            yield from torch.randperm(6).tolist()


@pytest.mark.parametrize("single", [False, True])
def test_an_order_without_a_length_or_an_end_is_entered_anywhere(single: bool) -> None:
    """R53: an unknown length stays unknown."""

    def make() -> Any:
        settings: dict[str, Any] = {"batch_size": None} if single else {"batch_size": 4}
        return source_of(DataLoader(Indexed(6), sampler=Endless(), **settings), 5, -1)

    def first(source: Any, n: int) -> list[Any]:
        held: list[Any] = []
        while len(held) < n:
            source.next()
            held += source.ids
        return held[:n]

    source = make()
    assert source.open(0, 0, 0) is None
    whole = first(source, 40)
    for place in (1, 7, 30):
        source = make()
        assert source.open(0, 3, place) is None
        assert first(source, 10) == whole[place : place + 10]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_sample_s_augmentation_does_not_depend_on_the_batch_size(workers: int) -> None:
    def samples(size: int, place: int = 0) -> list[Any]:
        loader = DataLoader(all_sources(), batch_size=size, shuffle=True, num_workers=workers)
        source = source_of(loader, 5, -1)
        held = [
            sample
            for _, batch in read_with_draws(source, 0, 1 if place else 0, place)
            for sample in zip(*batch, strict=True)
        ]
        source.close()
        return held

    assert samples(3) == samples(4)
    assert samples(3, 5) == samples(4)[5:]


# -- whole runs --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("k", "now"), [(1, 1), (3, 2), (3, 3), (5, 8), (6, 64), (10, 5), (16, 2), (20, 8)])
def test_with_another_batch_size_the_next_unseen_sample_follows(tmp_path: Path, k: int, now: int) -> None:
    """R51: 64 samples in batches of 4; each epoch holds each sample once, in the straight run's order."""
    straight, model, _ = seeing(tmp_path / "straight", n_epochs=2)
    straight.run()
    first, before, _ = seeing(tmp_path / "run", n_epochs=2, n_batches=k)
    first.run()
    again, after, _ = seeing(tmp_path / "run", n_epochs=2, batch=now)
    state = again.run(resume_from="auto")
    assert before.ids + after.ids == model.ids
    assert len(before.ids) == 4 * k
    assert state.samples == 128
    (resumed,) = Journal(tmp_path / "run").sides("resumed")
    assert resumed.data["changed"].get("batch_size") == ([4, now] if now != 4 else None)
    assert not list(Journal(tmp_path / "run").sides("diverged"))


def test_the_lengths_that_a_changed_batch_size_brings_are_those_that_are_seen(tmp_path: Path) -> None:
    """R51, R53: 3 of 6 batches of 4 done, then batches of 5: 12 samples are left, in 3 more."""
    first, _, _ = seeing(tmp_path, n=24, n_epochs=3, n_batches=3)
    first.run()
    again, _, _ = seeing(tmp_path, n=24, n_epochs=3, batch=5)
    lengths: list[tuple[int, int | None, int | None]] = []
    again.on(
        Events.on_train_batch_end, lambda t: lengths.append((t.cur_epoch_idx, t.num_batches_per_epoch, t.total_batches))
    )
    state = again.run(resume_from="auto")
    assert lengths == [(0, 6, 16)] * 3 + [(1, 5, 16)] * 5 + [(2, 5, 16)] * 5
    assert state.global_forward_batches == 16


@pytest.mark.parametrize("workers", [0, 2])
def test_batch_sizes_may_change_at_every_resume(tmp_path: Path, workers: int) -> None:
    """R51, R26."""
    straight, model, _ = seeing(tmp_path / "straight", n_epochs=2)
    straight.run()
    seen: list[int] = []
    for size, k in ((4, 3), (7, 5), (2, 20), (3, -1)):
        part, after, _ = seeing(tmp_path / "run", n_epochs=2, batch=size, n_batches=k, loader={"num_workers": workers})
        part.run(resume_from="auto")
        seen += after.ids
    assert seen == model.ids


def test_a_batch_in_hand_counts_as_seen(tmp_path: Path) -> None:
    """R51, R07: a stop between a batch's fetch and its step."""
    straight, model, _ = seeing(tmp_path / "straight", n_epochs=1)
    straight.run()
    first, before, _ = seeing(tmp_path / "run", n_epochs=1)
    first.on("fetch -> step", lambda t: t.stop("here") if t.global_forward_batches == 3 else None)
    first.run()
    again, after, _ = seeing(tmp_path / "run", n_epochs=1, batch=5)
    again.run(resume_from="auto")
    assert before.ids + after.ids == model.ids


class Numbers(IterableDataset[Any]):
    def __init__(self, n: int) -> None:
        self.n = n

    def __iter__(self) -> Iterator[Any]:
        return iter(range(self.n))


def test_where_positions_are_in_batches_another_batch_size_is_refused(tmp_path: Path) -> None:
    """R51: a stream without a state is read again by batches; those of another size end elsewhere."""

    def run(size: int, k: int) -> None:
        model = Seen()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        train = DataLoader(Numbers(12), batch_size=size)
        Trainer(
            model, "torch", train, optimizer, n_batches=k, seed=3, run_dir=tmp_path, snapshot_every=None,
            progress_bar=None,
        ).run(resume_from="auto")  # fmt: skip

    run(2, 3)
    said = "data is Numbers in batches of 2 by .*, this trainer's Numbers in batches of 3 by"
    with pytest.raises(CallerError, match=said):
        run(3, 5)


def test_a_sampler_that_knows_its_position_is_asked_for_nothing_before_it() -> None:
    """The order of a custom sampler is asked again up to the position, and no sample is read for it."""
    data = Indexed(20)
    source = source_of(DataLoader(data, batch_size=3, sampler=Shuffled(20)), 5, -1)
    source.open(0, 4, 13)
    source.next()
    assert len(data.reads) == 3
