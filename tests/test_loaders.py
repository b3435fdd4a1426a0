"""Where batches come from: the order of an epoch, any position in it, and what `DataLoader` would have made."""

from __future__ import annotations

import collections
import random
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    IterableDataset,
    RandomSampler,
    Sampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
    default_collate,
    get_worker_info,
)

from tachograph.drivers import NO_BATCH, generators
from tachograph.drivers.collating import quick, quick_collate
from tachograph.drivers.loaders import ClonedSource, DirectSource, ReplayedSource, hash_ids, source_of
from tachograph.engine import Events, Journal, Trainer
from tachograph.states.errors import CallerError
from tests.toys import Indexed, equal

# -- collating ---------------------------------------------------------------------------------------------


def same(a: Any, b: Any) -> bool:
    """Whether two batches are of one structure, with equal bits."""
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return type(a) is type(b) and list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


Point = collections.namedtuple("Point", "x y")
t = torch.tensor


@pytest.mark.parametrize(
    "samples",
    [
        [t([1.0, 2.0]), t([3.0, 4.0])],
        [t(1), t(2), t(3)],
        [(t([1.0]), t(1)), (t([2.0]), t(2))],
        [[t([1.0]), t(1)], [t([2.0]), t(2)]],
        [(t([1.0]),)],
        [{"x": t([1.0]), "y": t(1)}, {"x": t([2.0]), "y": t(2)}],
        [{"x": t([1.0]), "y": 1}, {"x": t([2.0]), "y": 2}],
        [1, 2, 3],
        [1.5, 2.5],
        [True, False],
        ["a", "b"],
        [b"a", b"b"],
        [(t([1.0]), 1, "a"), (t([2.0]), 2, "b")],
        [{"a": {"b": (t([1]), [t([2.0])])}}, {"a": {"b": (t([3]), [t([4.0])])}}],
        [Point(t([1]), 2), Point(t([3]), 4)],
        [np.array([1, 2]), np.array([3, 4])],
        [(np.float32(1), t([1])), (np.float32(2), t([2]))],
        [collections.OrderedDict(x=t([1])), collections.OrderedDict(x=t([2]))],
        [{"x": t([1]), "y": t([2])}, {"y": t([4]), "x": t([3])}],
        [(), ()],
        [{}, {}],
    ],
)
def test_a_batch_is_what_default_collate_makes(samples: list[Any]) -> None:
    assert same(quick_collate(samples), default_collate(samples))


@pytest.mark.parametrize(
    "samples",
    [
        [t([1]), t([1, 2])],
        [(t([1]), t([1])), (t([1]),)],
        [[t([1])], [t([1]), t([2])]],
        [{"x": t([1])}, {"y": t([1])}],
        [(t([1]), t([1])), (t([2]), t([1, 2]))],
        [t([1]), 3],
        [t([1]), None],
        [None, None],
        [object(), object()],
        [(t([1]), None), (t([1]), None)],
        [],
    ],
)
def test_what_default_collate_refuses_is_refused_as_it_would(samples: list[Any]) -> None:
    with pytest.raises(Exception) as expected:
        default_collate(samples)
    with pytest.raises(type(expected.value)) as caught:
        quick_collate(samples)
    assert str(caught.value) == str(expected.value)


leaves = st.one_of(
    st.integers(-5, 5).map(lambda n: t([n, n + 1])),
    st.floats(-5, 5, width=32).map(lambda x: t(x)),
    st.integers(-5, 5),
    st.floats(-5, 5),
    st.sampled_from(["a", "b"]),
)
structures = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, min_size=1, max_size=3).map(tuple) | st.dictionaries(st.sampled_from("xyz"), inner, min_size=1)
    ),
    max_leaves=6,
)


@given(structures, st.integers(1, 3))
def test_any_structure_is_collated_as_default_collate_does(sample: Any, n: int) -> None:
    assert same(quick_collate([sample] * n), default_collate([sample] * n))


def test_a_collate_function_of_the_user_s_is_left_alone() -> None:
    assert quick(default_collate) is quick_collate
    assert quick(len) is len


# -- the order of an epoch ---------------------------------------------------------------------------------


class Shuffled(Sampler[int]):
    """A user's sampler, which draws from a global generator."""

    def __init__(self, n: int, source: str = "torch") -> None:
        self.n, self.source = n, source

    def __len__(self) -> int:
        return self.n

    def __iter__(self) -> Iterator[int]:
        order = list(range(self.n))
        if self.source == "python":
            random.shuffle(order)
        elif self.source == "numpy":
            np.random.shuffle(order)
        else:
            order = torch.randperm(self.n).tolist()
        for i in order:
            yield i
            torch.rand(1)  # and goes on drawing while it is read


class Buckets(Sampler[list[int]]):
    """A user's batch sampler: batches of growing size."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return 4

    def __iter__(self) -> Iterator[list[int]]:
        order, at = torch.randperm(self.n).tolist(), 0
        for size in (1, 2, 3, self.n - 6):
            yield order[at : at + size]
            at += size


DATA = Indexed(20)
LOADERS: dict[str, dict[str, Any]] = {
    "in order": {"batch_size": 3},
    "shuffled": {"batch_size": 3, "shuffle": True},
    "drop last": {"batch_size": 3, "shuffle": True, "drop_last": True},
    "single samples": {"batch_size": None, "shuffle": True},
    "weighted": {"batch_size": 3, "sampler": WeightedRandomSampler([1.0] * 10 + [5.0] * 10, 14)},
    "subset": {"batch_size": 3, "sampler": SubsetRandomSampler([3, 5, 7, 11, 13, 17, 19])},
    "with replacement": {"batch_size": 4, "sampler": RandomSampler(DATA, replacement=True, num_samples=18)},
    "own sampler": {"batch_size": 3, "sampler": Shuffled(20)},
    "own sampler of python": {"batch_size": 3, "sampler": Shuffled(20, "python")},
    "own sampler of numpy": {"batch_size": 3, "sampler": Shuffled(20, "numpy")},
    "own batch sampler": {"batch_sampler": Buckets(20)},
    "torch's batch sampler": {"batch_sampler": BatchSampler(Shuffled(20), 4, True)},
    "a list": {"batch_size": 2, "sampler": [4, 4, 1, 0, 19]},
    "batches in a list": {"batch_sampler": [[1, 2], [3], [0, 19, 5]]},
    "tuples": {"batch_sampler": [(1, 2), (3,)]},
}


def loader(name: str, **settings: Any) -> DataLoader[Any]:
    return DataLoader(Indexed(20), **LOADERS[name], **settings)


def read(source: Any, epoch: int, done: int = 0) -> list[tuple[Any, Any]]:
    """All (ids, batch) pairs from a position on."""
    source.open(epoch, done)
    pairs = []
    while (batch := source.next()) is not NO_BATCH:
        pairs.append((source.ids, batch))
    return pairs


def ids_of(pairs: list[tuple[Any, Any]]) -> list[Any]:
    return [ids for ids, _ in pairs]


@pytest.mark.parametrize("name", LOADERS)
def test_an_order_is_a_pure_function_of_seed_and_epoch_and_any_position_of_it_can_be_entered(name: str) -> None:
    """R01, R02: whatever the global generators stand at; and nothing before a position is loaded."""
    source = source_of(loader(name), 5, -1)
    assert type(source) is DirectSource
    epochs = [read(source, epoch) for epoch in range(3)]
    for epoch, pairs in enumerate(epochs):
        assert all(
            batch["id"].tolist() == (ids if isinstance(batch["id"].tolist(), list) else ids[0]) for ids, batch in pairs
        )
        for done in range(len(pairs) + 1):
            torch.rand(done), random.random(), np.random.rand()
            again = loader(name)
            rest = read(source_of(again, 5, -1), epoch, done)
            assert ids_of(rest) == ids_of(pairs[done:])
            assert sorted(again.dataset.reads) == sorted(i for ids in ids_of(rest) for i in ids)  # type: ignore[attr-defined]
    fixed = ("in order", "a list", "batches in a list", "tuples")
    assert (ids_of(epochs[0]) == ids_of(epochs[1])) == (name in fixed)
    assert (ids_of(read(source_of(loader(name), 6, -1), 0)) == ids_of(epochs[0])) == (name in fixed)


@pytest.mark.parametrize("name", LOADERS)
def test_reading_moves_no_generator_and_changes_no_object_of_the_user_s(name: str) -> None:
    """R29: `iter(DataLoader)` alone would draw from the global generator."""
    one = loader(name)
    kept = {k: v for k, v in vars(one).items() if k != "dataset"}
    generator = getattr(one.sampler, "generator", "none")
    before = generators.capture()
    read(source_of(one, 5, -1), 1)
    after = generators.capture()
    assert same(before["python"], after["python"])
    assert same(before["numpy"], after["numpy"])
    assert torch.equal(before["torch"], after["torch"])
    assert {k: v for k, v in vars(one).items() if k != "dataset"} == kept
    assert getattr(one.sampler, "generator", "none") is generator


def test_a_shuffled_epoch_has_the_order_of_torch_s_sampler_with_a_generator_of_its_own() -> None:
    data = Indexed(20)
    for epoch in range(3):
        own = torch.Generator()
        own.manual_seed(generators.derive(5, "order", epoch))
        expected = list(DataLoader(data, batch_size=3, sampler=RandomSampler(data, generator=own)))
        found = [batch for _, batch in read(source_of(DataLoader(data, batch_size=3, shuffle=True), 5, -1), epoch)]
        assert same(found, expected)


@pytest.mark.parametrize(
    "data",
    [
        TensorDataset(torch.arange(12.0), torch.arange(12)),
        TensorDataset(torch.arange(24.0).view(12, 2)),
        [(t([float(i)]), i) for i in range(12)],
        list(range(12)),
        type("Many", (Indexed,), {"__getitems__": lambda self, ids: [self[i] for i in reversed(ids)]})(12),
    ],
)
@pytest.mark.parametrize("settings", [{}, {"collate_fn": list}, {"batch_size": None}])
def test_batches_are_those_of_the_data_loader(data: Any, settings: Any) -> None:
    made = {"batch_size": 5, **settings}
    expected = list(DataLoader(data, **made))
    found = [batch for _, batch in read(source_of(DataLoader(data, **made), 5, -1), 0)]
    assert same(found, expected)


def test_a_long_order_of_a_user_s_sampler_is_asked_in_parts_and_is_one_order_all_the_same() -> None:
    """The sampler draws while it is read, and so does training."""
    n = 700
    straight = ids_of(read(source_of(DataLoader(Indexed(n), batch_size=1, sampler=Shuffled(n)), 5, -1), 0))
    source = source_of(DataLoader(Indexed(n), batch_size=1, sampler=Shuffled(n)), 5, -1)
    source.open(0, 0)
    found, drawn = [], []
    while source.next() is not NO_BATCH:
        found.append(source.ids)
        drawn.append(torch.rand(1).item())
    assert found == straight
    assert sorted(i for (i,) in found) == list(range(n))
    assert len(set(drawn)) > n // 2
    torch.manual_seed(0)
    alone = [torch.rand(1).item() for _ in range(300)]
    torch.manual_seed(0)
    source.open(1, 0)
    assert [source.next() is not NO_BATCH and torch.rand(1).item() for _ in range(300)] == alone


@pytest.mark.parametrize(("most", "n"), [(-1, 7), (1, 1), (4, 4), (9, 7)])
def test_an_epoch_may_be_cut_short_and_a_position_counts_from_its_beginning(most: int, n: int) -> None:
    """B17: the rest of a cut epoch is the rest."""
    whole = ids_of(read(source_of(loader("shuffled"), 5, -1), 0))
    for make in (DirectSource, ClonedSource):
        for done in range(n + 1):
            source = make(loader("shuffled"), 5, most)
            assert source.open(0, done) == n
            assert ids_of(read(source, 0, done)) == whole[done:n]


def test_sample_ids_of_any_kind_are_hashed_in_their_order() -> None:
    assert hash_ids([1, 2]) != hash_ids([2, 1])
    assert hash_ids([1, 2]) == hash_ids([np.int64(1), t(2)])
    assert hash_ids(None) == 0
    assert len({hash_ids(ids) for ids in ([], ["a"], ["b"], [("a", 1)], [1 << 70], [1.5])}) == 6


def test_a_dataset_may_be_indexed_by_anything() -> None:
    class Words(dict[str, torch.Tensor]):
        pass

    words = Words(a=t([1.0]), b=t([2.0]), c=t([3.0]))
    source = source_of(DataLoader(words, batch_size=2, sampler=["c", "a", "b"]), 5, -1)  # type: ignore[arg-type]
    assert [(ids, batch.tolist()) for ids, batch in read(source, 0)] == [(["c", "a"], [[3.0], [1.0]]), (["b"], [[2.0]])]


# -- workers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("name", ["shuffled", "single samples", "own sampler", "own batch sampler", "drop last"])
def test_workers_make_the_same_batches_in_the_same_order_from_any_position(name: str, persistent: bool) -> None:
    """R01, R09, B8: positions count what was consumed, not what was prefetched; each epoch after one is whole."""
    source = source_of(loader(name, num_workers=2, persistent_workers=persistent, prefetch_factor=3), 5, -1)
    assert type(source) is ClonedSource
    direct = DirectSource(loader(name), 5, -1)
    for epoch, done in ((0, 2), (1, 0), (2, 0), (0, 3), (1, 1)):
        expected = read(direct, epoch, done)
        found = read(source, epoch, done)
        assert ids_of(found) == ids_of(expected)
        assert same([batch for _, batch in found], [batch for _, batch in expected])
    source.close()


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize(("workers", "persistent"), [(0, False), *((w, p) for w in (1, 2, 3) for p in (False, True))])
def test_the_epochs_after_a_resumed_one_are_whole_whatever_the_workers(workers: int, persistent: bool) -> None:
    """R09, R04: 64 batches an epoch, 3 left of the resumed one: 3, 64, 64, and the samples of the straight run."""
    settings: dict[str, Any] = {"num_workers": workers, "persistent_workers": persistent}
    data = DataLoader(Ids(64), batch_size=1, shuffle=True, **settings)
    straight = source_of(DataLoader(Ids(64), batch_size=1, shuffle=True), 5, -1)
    whole = [ids_of(read(straight, epoch)) for epoch in range(3)]
    source = source_of(data, 5, -1)
    found = [ids_of(read(source, 0, 61)), ids_of(read(source, 1)), ids_of(read(source, 2))]
    assert [len(epoch) for epoch in found] == [3, 64, 64]
    assert found == [whole[0][61:], *whole[1:]]
    source.close()


def test_an_epoch_that_was_left_in_its_middle_does_not_disturb_the_next_one() -> None:
    """R31, R48: prefetched batches of an epoch that was left are gone."""
    source = ClonedSource(loader("shuffled", num_workers=2, persistent_workers=True), 5, -1)
    whole = ids_of(read(DirectSource(loader("shuffled"), 5, -1), 0))
    for done in (3, 0, 5, 1):
        source.open(0, done)
        source.next()
        assert source.ids == whole[done]
    source.close()
    assert ids_of(read(source, 0, 5)) == whole[5:]
    source.close()


class OwnLoader(DataLoader[Any]):
    """A loader of a user's own class, which adds to every batch."""

    iterated = 0

    def __iter__(self) -> Any:
        type(self).iterated += 1
        for batch in super().__iter__():
            yield {**batch, "added": True}


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_of_a_user_s_own_class_is_read_through_its_own_iterator_once_an_epoch(workers: int) -> None:
    """R48."""
    OwnLoader.iterated = 0
    source = source_of(OwnLoader(Indexed(8), batch_size=2, shuffle=True, num_workers=workers), 5, -1)
    epochs = [read(source, 0), read(source, 1), read(source, 2, 3)]
    assert OwnLoader.iterated == 3
    assert [len(pairs) for pairs in epochs] == [4, 4, 1]
    assert all(batch["added"] and batch["id"].tolist() == ids for pairs in epochs for ids, batch in pairs)
    source.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_asking_for_a_length_changes_nothing(workers: int) -> None:
    """R35."""
    one = loader("shuffled", num_workers=workers)
    source = source_of(one, 5, -1)
    expected = ids_of(read(source, 0, 2))
    len(one), len(one.sampler), source.open(0, 2)
    assert ids_of(read(source, 0, 2)) == expected
    source.close()


# -- errors ------------------------------------------------------------------------------------------------


class Stops(Indexed):
    def __getitem__(self, index: int) -> Any:
        if index == 4:
            raise StopIteration("mine")
        return super().__getitem__(index)


def collate_that_stops(samples: Any) -> Any:
    if int(samples[0]["id"]) == 4:
        raise StopIteration("mine")
    return default_collate(samples)


@pytest.mark.parametrize("where", ["dataset", "collate", "dataset with __getitems__"])
@pytest.mark.parametrize("make", [DirectSource, ClonedSource])
def test_a_stop_iteration_of_the_data_is_no_end_of_the_epoch(where: str, make: Any) -> None:
    """B23."""
    data: Any = Indexed(8) if where == "collate" else Stops(8)
    if "many" in where:
        data = type("Many", (Stops,), {"__getitems__": lambda self, ids: [self[i] for i in ids]})(8)
    collate = {"collate_fn": collate_that_stops} if where == "collate" else {}
    source = make(DataLoader(data, batch_size=2, **collate), 5, -1)
    source.open(0, 0)
    assert [source.next()["id"].tolist() for _ in range(2)] == [[0, 1], [2, 3]]
    with pytest.raises(RuntimeError, match=r"the dataset or collate_fn raised StopIteration for samples \[4, 5\]"):
        source.next()


@pytest.mark.parametrize("workers", [0, 2])
def test_an_error_of_the_dataset_is_raised_as_it_is(workers: int) -> None:
    class Broken(Indexed):
        def __getitem__(self, index: int) -> Any:
            if index == 4:
                raise LookupError("sample 4")
            return super().__getitem__(index)

    source = source_of(DataLoader(Broken(8), batch_size=2, num_workers=workers), 5, -1)
    source.open(0, 0)
    with pytest.raises(LookupError, match="sample 4"):
        [source.next() for _ in range(4)]
    source.close()


# -- what has no index -------------------------------------------------------------------------------------


class Stream(IterableDataset[Any]):
    """Numbers, split between workers."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __iter__(self) -> Iterator[int]:
        info = get_worker_info()
        first, step = (0, 1) if info is None else (info.id, info.num_workers)
        return iter(range(first, self.n, step))


@pytest.mark.parametrize("workers", [0, 2])
def test_an_iterable_dataset_is_read_up_to_a_position_with_one_warning(workers: int) -> None:
    """R58."""
    source = source_of(DataLoader(Stream(10), batch_size=2, num_workers=workers), 5, -1)
    assert type(source) is ReplayedSource
    whole = [batch.tolist() for _, batch in read(source, 0)]
    assert sorted(i for batch in whole for i in batch) == list(range(10))
    for done in range(1, len(whole) + 1):
        with pytest.warns(
            UserWarning, match=f"has no index, so {done} batches of epoch 0 are read again and dropped"
        ) as said:
            rest = read(source, 0, done)
        assert len(said) == 1
        assert [batch.tolist() for _, batch in rest] == whole[done:]
        assert ids_of(rest) == [None] * len(rest)
    source.close()


class Anew:
    """A loader of a user's own: batches, from the beginning each time."""

    def __init__(self, batches: list[Any]) -> None:
        self.batches = batches

    def __len__(self) -> int:
        return len(self.batches)

    def __iter__(self) -> Iterator[Any]:
        yield from self.batches


def test_any_iterable_that_begins_anew_may_be_a_loader() -> None:
    batches = [{"x": n} for n in range(4)]
    source = source_of(Anew(batches), 5, 3)
    assert source.open(0, 0) == 3
    assert [batch for _, batch in read(source, 0)] == batches[:3]
    with pytest.warns(UserWarning, match="a Anew, has no index, so 2 batches of epoch 1 are read again"):
        assert [batch for _, batch in read(source, 1, 2)] == batches[2:3]


@pytest.mark.parametrize("kind", [list, tuple])
def test_a_list_of_batches_is_entered_at_any_position(kind: Any) -> None:
    """R43: it has an index, so nothing is read again."""
    batches = [{"x": n} for n in range(4)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for most in (-1, 3, 9):
            source = source_of(kind(batches), 5, most)
            length = 4 if most < 0 else min(most, 4)
            for done in range(length + 1):
                assert source.open(1, done) == length
                assert [batch for _, batch in read(source, 1, done)] == batches[done:length]


def test_reading_up_to_a_position_draws_nothing_twice() -> None:
    class Drawing:
        def __iter__(self) -> Iterator[float]:
            for _ in range(5):
                yield torch.rand(1).item()

    with generators.forked(3):
        source = source_of(Drawing(), 5, -1)
        straight = [batch for _, batch in read(source, 0)]
    with generators.forked(3):
        source = source_of(Drawing(), 5, -1)
        source.open(0, 0)
        first = [source.next() for _ in range(2)]
        state = generators.capture()
    with generators.forked(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        generators.restore(state)
        rest = [batch for _, batch in read(source_of(Drawing(), 5, -1), 0, 2)]
    assert first + rest == straight


# -- a resume ----------------------------------------------------------------------------------------------


class Seen(nn.Module):
    """Keeps the ids of all samples it was trained on."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(1))
        self.ids: list[int] = []

    def forward(self, batch: Any) -> Any:
        self.ids += batch.reshape(-1).tolist()
        return {"loss": (self.w * batch.float().mean()).sum()}


class Ids(Dataset[Any]):
    def __init__(self, n: int) -> None:
        self.n = n
        self.reads = 0

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> Any:
        self.reads += 1
        return t(index)


def seeing(run_dir: Path | None, n: int = 64, batch: int = 4, **settings: Any) -> tuple[Trainer, Seen, DataLoader[Any]]:
    model = Seen()
    train = DataLoader(Ids(n), batch_size=batch, shuffle=True, **settings.pop("loader", {}))
    settings = {"n_epochs": 3, "seed": 3, "run_dir": run_dir, "snapshot_every": None, "progress_bar": None, **settings}
    return Trainer(model, "torch", train, torch.optim.SGD(model.parameters(), lr=0.01), **settings), model, train


def stopped_and_resumed(run_dir: Path, k: int, **settings: Any) -> tuple[list[int], list[int], Trainer]:
    first, before, _ = seeing(run_dir, n_batches=k, **settings)
    first.run()
    again, after, _ = seeing(run_dir, **settings)
    again.run(resume_from=run_dir)
    return before.ids, after.ids, again


@pytest.mark.parametrize(
    ("batch", "every"),
    [(4, 5), (1, 29), pytest.param(4, 1, marks=pytest.mark.sweep), pytest.param(1, 1, marks=pytest.mark.sweep)],
)
def test_a_resumed_run_sees_the_samples_of_the_straight_run_wherever_it_was_stopped(
    tmp_path: Path, batch: int, every: int
) -> None:
    """R01, R02, R04, SW2, B10: three epochs of 64 samples; each epoch holds each sample once."""
    straight, model, _ = seeing(tmp_path / "straight", batch=batch)
    straight.run()
    epochs = [model.ids[64 * e : 64 * e + 64] for e in range(3)]
    assert all(sorted(epoch) == list(range(64)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    for k in range(1, 3 * 64 // batch, every):
        before, after, again = stopped_and_resumed(tmp_path / str(k), k, batch=batch)
        assert before + after == model.ids
        assert len(before) == k * batch
        assert again.journal.chain == straight.journal.chain  # type: ignore[union-attr]


def test_the_epochs_after_a_resumed_one_are_whole(tmp_path: Path) -> None:
    """R04: 10 batches an epoch, 4 done before the stop: 6, 10, 10."""
    settings = {"n": 10, "batch": 1}
    first, _, _ = seeing(tmp_path, n_batches=4, **settings)
    first.run()
    again, _, _ = seeing(tmp_path, **settings)
    lengths: list[int] = []
    again.on(Events.on_train_batch_end, lambda t: lengths.append(t.cur_epoch_idx))
    again.run(resume_from="auto")
    assert [lengths.count(e) for e in range(3)] == [6, 10, 10]


@pytest.mark.parametrize("persistent", [False, True])
def test_a_resumed_run_with_workers_sees_the_samples_of_the_straight_run(tmp_path: Path, persistent: bool) -> None:
    """R01, R09, R31, B8."""
    settings = {
        "n": 12,
        "batch": 2,
        "loader": {"num_workers": 2, "persistent_workers": persistent, "prefetch_factor": 4},
    }
    straight, model, _ = seeing(tmp_path / "straight", **{**settings, "loader": {}})
    straight.run()
    for k in (1, 5, 6, 9):
        before, after, again = stopped_and_resumed(
            tmp_path / str(k), k, **{**settings, "loader": dict(settings["loader"])}
        )  # type: ignore[arg-type]
        assert before + after == model.ids
        assert again.journal.chain == straight.journal.chain  # type: ignore[union-attr]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_resume_loads_nothing_that_was_consumed_before(tmp_path: Path, workers: int) -> None:
    """R43, R14: the reads before the first resumed batch don't depend on the position."""
    settings = {"n": 2000, "batch": 2, "n_epochs": 1}
    first, _, _ = seeing(tmp_path, n_batches=900, **settings)
    first.run()
    again, model, train = seeing(tmp_path, loader={"num_workers": workers}, **settings)
    reads: list[int] = []
    dataset: Any = train.dataset
    again.on(Events.on_train_batch_begin, lambda t, batch, indices: reads.append(dataset.reads))
    again.on(Events.on_train_batch_end, lambda t: t.stop("seen enough"))
    again.run(resume_from="auto")
    assert reads == ([2] if workers == 0 else [0])
    assert len(model.ids) == 2


class Noisy(Ids):
    """Samples with noise from the generators of whoever loads them."""

    def __getitem__(self, index: int) -> Any:
        return t(index) + torch.rand(1)


@pytest.mark.parametrize("workers", [0, 2])
def test_random_augmentation_in_a_dataset_goes_on_as_in_the_straight_run(tmp_path: Path, workers: int) -> None:
    """R05, DESIGN 7: also where workers draw it."""

    def noisy(run_dir: Path, k: int) -> tuple[list[float], str]:
        model = Seen()
        train = DataLoader(Noisy(12), batch_size=2, num_workers=workers)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        trainer = Trainer(
            model, "torch", train, optimizer, n_epochs=2, n_batches=k, seed=3, run_dir=run_dir, snapshot_every=None,
            progress_bar=None,
        )  # fmt: skip
        trainer.run(resume_from="auto")
        return model.ids, Journal(run_dir).chain

    straight, chain = noisy(tmp_path / "straight", -1)
    for k in (1, 5, 8):
        before, _ = noisy(tmp_path / str(k), k)
        after, resumed = noisy(tmp_path / str(k), -1)
        assert before + after == straight
        assert resumed == chain


def test_another_data_set_is_refused(tmp_path: Path) -> None:
    """R51: a position in another order would repeat samples and miss others."""
    settings = {"n": 24, "batch": 4, "n_epochs": 1}
    first, _, _ = seeing(tmp_path, n_batches=3, **settings)  # type: ignore[arg-type]
    first.run()
    again, after, _ = seeing(tmp_path, **{**settings, "n": 25})  # type: ignore[arg-type]
    was, now = "Ids of 24 samples by RandomSampler", "Ids of 25 samples by RandomSampler"
    with pytest.raises(CallerError, match=f"this run's data is {was}, this trainer's {now}"):
        again.run(resume_from="auto")
    assert after.ids == []


def test_two_runs_over_data_that_draws_are_equal_to_the_last_bit() -> None:
    losses = []
    for _ in range(2):
        model = Seen()
        train = DataLoader(Noisy(8), batch_size=2, num_workers=2, shuffle=True)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        Trainer(model, "torch", train, optimizer, n_epochs=2, seed=3, run_dir=None, progress_bar=None).run()
        losses.append((model.ids, [p.detach().clone() for p in model.parameters()]))
    assert losses[0][0] == losses[1][0]
    assert equal(losses[0][1], losses[1][1])
