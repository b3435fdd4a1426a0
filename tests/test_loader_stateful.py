"""Loaders and datasets that have a state: it travels in the snapshot, and says where their data goes on."""

from __future__ import annotations

import io
import itertools
import random
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info
from torchdata.stateful_dataloader import StatefulDataLoader

from tachograph.drivers import NO_BATCH, RestoreFault
from tachograph.drivers.loaders import source_of
from tachograph.engine import Journal, Trainer
from tachograph.states.errors import CallerError
from tests.test_augmentation import standing
from tests.test_resume import doctored
from tests.toys import stop_at

pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated", "ignore:This DataLoader will create")

# -- kinds of streams --------------------------------------------------------------------------------------


def share() -> tuple[int, int]:
    """Which part of a stream is this process's."""
    info = get_worker_info()
    return (0, 1) if info is None else (info.id, info.num_workers)


def item(number: int) -> torch.Tensor:
    """A sample with noise from three generators, and their normals."""
    noise = [torch.rand(1).item(), random.random(), float(np.random.rand()), random.gauss(0, 1)]
    return torch.tensor([float(number), *noise], dtype=torch.float64)


class Stream(IterableDataset[Any]):
    """Ends an epoch by going back to its beginning."""

    def __init__(self, n: int = 10) -> None:
        self.n, self.i = n, 0

    def __iter__(self) -> Iterator[Any]:
        first, step = share()
        while self.i * step + first < self.n:
            self.i += 1
            yield item((self.i - 1) * step + first)
        self.i = 0

    def state_dict(self) -> dict[str, Any]:
        return {"i": self.i}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.i = state["i"]


class Once(Stream):
    """Uses what it was loaded with in its next iteration, and stays at the end when it's over."""

    start = 0

    def __iter__(self) -> Iterator[Any]:
        first, step = share()
        self.i, self.start = self.start, 0
        while self.i * step + first < self.n:
            self.i += 1
            yield item((self.i - 1) * step + first)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.start = state["i"]


class Counting(Stream):
    """Counts its epochs, and shuffles by them."""

    epoch = 0

    def __iter__(self) -> Iterator[Any]:
        order = np.random.default_rng(self.epoch).permutation(self.n)
        first, step = share()
        while self.i * step + first < self.n:
            self.i += 1
            yield item(order[(self.i - 1) * step + first])
        self.i, self.epoch = 0, self.epoch + 1

    def state_dict(self) -> dict[str, Any]:
        return {"i": self.i, "epoch": np.int64(self.epoch)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.i, self.epoch = state["i"], int(state["epoch"])


class Items:
    """An iterator with a state."""

    def __init__(self, n: int) -> None:
        self.n, self.i = n, 0
        self.first, self.step = share()

    def __iter__(self) -> Any:
        return self

    def __next__(self) -> Any:
        number = self.i * self.step + self.first
        if number >= self.n:
            raise StopIteration
        self.i += 1
        return item(number)

    def state_dict(self) -> dict[str, Any]:
        return {"i": self.i, "arrays": np.arange(3)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        assert state["arrays"].tolist() == [0, 1, 2]
        self.i = state["i"]


class OfItems(IterableDataset[Any]):
    """A dataset without a state, whose iterator has one."""

    def __init__(self, n: int = 10) -> None:
        self.n = n

    def __iter__(self) -> Any:
        return Items(self.n)


class ItsOwn(Items, IterableDataset[Any]):
    """A dataset that is its own iterator, and begins anew unless it was loaded just before."""

    loaded = False

    def __init__(self, n: int = 10) -> None:
        Items.__init__(self, n)

    def __iter__(self) -> Any:
        self.first, self.step = share()
        self.i, self.loaded = self.i if self.loaded else 0, False
        return self

    def load_state_dict(self, state: dict[str, Any]) -> None:
        Items.load_state_dict(self, state)
        self.loaded = True


class Shuffling(Once):
    """Shuffles by a global generator as it begins."""

    def __iter__(self) -> Iterator[Any]:
        order = torch.randperm(self.n).tolist()
        first, step = share()
        self.i, self.start = self.start, 0
        while self.i * step + first < self.n:
            self.i += 1
            yield torch.tensor([order[(self.i - 1) * step + first]])


class Stateless(IterableDataset[Any]):
    """Yields from a buffer that it draws from at random."""

    def __init__(self, n: int = 10) -> None:
        self.n = n

    def __iter__(self) -> Iterator[Any]:
        first, step = share()
        buffer: list[int] = []
        for number in range(first, self.n, step):
            buffer.append(number)
            if len(buffer) > 2:
                yield item(buffer.pop(random.randrange(3)))
        yield from map(item, buffer)


class OwnLoader:
    """A loader of a user's own, not of torch, with a state and noise."""

    def __init__(self, n: int = 5) -> None:
        self.n, self.at, self.begun = n, 0, 0

    def __iter__(self) -> Iterator[Any]:
        self.begun += 1
        while self.at < self.n:
            self.at += 1
            yield item(self.at - 1)
        self.at = 0

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


# -- positions ---------------------------------------------------------------------------------------------


def read(source: Any, epoch: int, done: int = 0, most: int = 99) -> list[Any]:
    source.open(epoch, done)
    held: list[Any] = []
    while len(held) < most and (batch := source.next()) is not NO_BATCH:
        held.append(batch.tolist())
    return held


def saved(source: Any, again: bool = False) -> Any:
    """A source's state, as it comes out of a snapshot."""
    file = io.BytesIO()
    torch.save(source.state(again), file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def entered(make: Callable[[], Any], state: Any) -> Any:
    source = source_of(make(), 5, -1)
    source.check(state)
    source.load(state)
    return source


def check_every_position(make: Callable[[], Any], epochs: int = 2, stops: Any = None) -> list[str]:
    """Save after any number of batches, go on in fresh objects, in this epoch and the next; return what was told."""
    source = source_of(make(), 5, -1)
    whole = [read(source, epoch) for epoch in range(epochs + 1)]
    source.close()
    assert whole[0] != whole[1]
    told: list[str] = []
    for epoch in range(epochs):
        for k in range(len(whole[epoch]) + 1) if stops is None else stops:
            source = source_of(make(), 5, -1)
            for before in range(epoch):
                read(source, before)
            read(source, epoch, 0, k)
            state = saved(source)
            source.close()
            source = entered(make, state)
            with warnings.catch_warnings(record=True) as said:
                warnings.simplefilter("always")
                rest, following = read(source, epoch, k), read(source, epoch + 1)
            source.close()
            assert rest == whole[epoch][k:], (epoch, k)
            assert following == whole[epoch + 1], (epoch, k)
            told += [str(one.message) for one in said if "read again" in str(one.message)]
    return told


STREAMS = [Stream, Once, Counting, OfItems, ItsOwn, Shuffling]
HERE = {
    "DataLoader": lambda data: DataLoader(data, batch_size=3),
    "StatefulDataLoader": lambda data: StatefulDataLoader(data, batch_size=3),
    "StatefulDataLoader, single": lambda data: StatefulDataLoader(data, batch_size=None),
}
THERE = {
    "workers": {"batch_size": 2, "num_workers": 2},
    "persistent workers": {"batch_size": 2, "num_workers": 2, "persistent_workers": True},
    "state now and then": {"batch_size": 3, "num_workers": 2, "snapshot_every_n_steps": 3},
}


BUT = {
    (OfItems, "DataLoader"),  # torch's own loader has no way to an iterator's state
    (Shuffling, "StatefulDataLoader, single"),  # the first item's draws can't be told from those before it
}


@pytest.mark.parametrize(("stream", "loader"), [(s, name) for s in STREAMS for name in HERE if (s, name) not in BUT])
def test_a_stream_with_a_state_goes_on_from_any_position(stream: Any, loader: str) -> None:
    """R31, R35: after 0 batches, in every epoch, at its end; with noise from every generator."""
    assert check_every_position(lambda: HERE[loader](stream())) == []


sweep = pytest.mark.sweep


@pytest.mark.parametrize(
    ("stream", "settings", "stops"),
    [
        (Stream, "workers", (1, 5)),
        (Once, "persistent workers", (0, 3, 5, 6)),
        (Counting, "persistent workers", (4,)),
        (OfItems, "state now and then", (2, 4)),
        (ItsOwn, "persistent workers", (5,)),
        (Shuffling, "workers", (3, 4)),
        *(pytest.param(stream, settings, None, marks=sweep) for stream in STREAMS for settings in THERE),
    ],
)
def test_a_stream_with_a_state_in_workers_goes_on_from_any_position(stream: Any, settings: str, stops: Any) -> None:
    """R09, R31: a loaded position is used once, also by workers that live on."""
    assert check_every_position(lambda: StatefulDataLoader(stream(), **THERE[settings]), epochs=1, stops=stops) == []


def test_a_state_is_whole_soon_after_a_resume_whatever_the_number_of_workers() -> None:
    """R31: workers 4: resume, take the state after 0 to 5 batches, resume from each."""

    def make() -> Any:
        return StatefulDataLoader(Stream(16), batch_size=1, num_workers=4)

    source = source_of(make(), 5, -1)
    whole = read(source, 0)
    source.close()
    source = source_of(make(), 5, -1)
    read(source, 0, 0, 2)
    state = saved(source)
    source.close()
    for k in range(6):
        source = entered(make, state)
        assert read(source, 0, 2, k) == whole[2 : 2 + k]
        later = saved(source)
        source.close()
        source = entered(make, later)
        assert read(source, 0, 2 + k) == whole[2 + k :]
        source.close()


def test_any_loader_with_a_state_is_read_through_it() -> None:
    assert check_every_position(OwnLoader) == []


DRAWING: list[Callable[[], Any]] = [
    OwnLoader,
    lambda: DataLoader(Stateless(), batch_size=3),
    lambda: DataLoader(Stream(), batch_size=3),
    lambda: StatefulDataLoader(Stream(), batch_size=3),
    lambda: StatefulDataLoader(ItsOwn(), batch_size=2, num_workers=2),
    lambda: DataLoader(Stateless(), batch_size=2, num_workers=2),
]


@pytest.mark.parametrize("make", DRAWING)
def test_no_two_items_of_any_epoch_or_worker_draw_the_same(make: Any) -> None:
    source = source_of(make(), 5, -1)
    drawn = np.concatenate([np.reshape(batch, (-1, 5)) for epoch in range(2) for batch in read(source, epoch)])
    source.close()
    assert len(np.unique(drawn[:, 1:])) == len(drawn) * 4


@pytest.mark.parametrize("make", DRAWING)
def test_training_s_generators_are_left_where_they_are(make: Any) -> None:
    """R29: wherever a loader without an index draws."""
    source = source_of(make(), 5, -1)
    torch.randn(1), random.gauss(0, 1)
    before = standing()
    source.open(0, 0)
    while source.next() is not NO_BATCH:
        assert standing() == before
    source.close()
    assert standing() == before


def test_a_state_is_asked_for_when_it_is_saved_and_not_for_every_batch() -> None:
    class Asked(OwnLoader):
        asked = 0

        def state_dict(self) -> dict[str, Any]:
            self.asked += 1
            return super().state_dict()

    loader = Asked(50)
    read(source_of(loader, 5, -1), 0)
    assert loader.asked == 1  # once, to see that it can be saved


@pytest.mark.parametrize(
    "make",
    [
        lambda: StatefulDataLoader(Stateless(), batch_size=3),
        lambda: DataLoader(Stateless(), batch_size=3),
        lambda: StatefulDataLoader(Stateless(), batch_size=2, num_workers=2, persistent_workers=True),
        lambda: DataLoader(Stream(), batch_size=2, num_workers=2, persistent_workers=True),
    ],
)
def test_a_stream_whose_position_nobody_knows_is_read_again_exactly_and_that_is_told(make: Any) -> None:
    """It draws its order and its samples: what is drawn is a function of (seed, epoch, item) here too."""
    told = check_every_position(make, epochs=1)
    source = source_of(make(), 5, -1)
    assert len(told) == len(read(source, 0))
    source.close()
    assert all("with state_dict() and load_state_dict()" in text or "StatefulDataLoader" in text for text in told)


def test_one_iteration_an_epoch_fresh_or_resumed() -> None:
    """R48."""
    source = source_of(loader := OwnLoader(), 5, -1)
    for epoch in range(3):
        read(source, epoch)
    assert loader.begun == 3
    read(source, 3, 0, 2)
    assert loader.begun == 4
    again = OwnLoader()
    source = entered(lambda: again, saved(source))
    read(source, 3, 2)
    assert again.begun == 1
    read(source, 4)
    assert again.begun == 2


# -- with an index -----------------------------------------------------------------------------------------


class Remembering(Dataset[Any]):
    """Samples with noise, that depend on how many were read before."""

    def __init__(self, n: int = 10) -> None:
        self.n, self.count = n, 0

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> Any:
        self.count += 1
        return torch.cat([torch.tensor([float(self.count)], dtype=torch.float64), item(index)])

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = state["count"]


class Skipping(DataLoader[Any]):
    """Goes on by itself, over what it reads and drops; draws."""

    at = start = 0

    def __iter__(self) -> Iterator[Any]:
        self.at, self.start = self.start, 0
        for batch in itertools.islice(super().__iter__(), self.at, None):
            self.at += 1
            yield batch + torch.rand(1)

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.start = state["at"]


class Numbering(DataLoader[Any]):
    """Has a state that says nothing of a position."""

    number = 0

    def __iter__(self) -> Iterator[Any]:
        for batch in super().__iter__():
            self.number += 1
            yield batch + self.number

    def state_dict(self) -> dict[str, Any]:
        return {"number": self.number}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.number = state["number"]


class Noisy(Remembering):
    """Samples with noise, without a state."""

    state_dict = load_state_dict = None  # type: ignore[assignment]

    def __getitem__(self, index: int) -> Any:
        return item(index)


INDEXED: dict[str, Callable[..., Any]] = {
    "a dataset with a state": lambda **more: DataLoader(Remembering(), batch_size=3, shuffle=True, **more),
    "the same, torchdata's": lambda **more: StatefulDataLoader(Remembering(), batch_size=3, shuffle=True, **more),
    "a loader that skips": lambda **more: Skipping(Noisy(), batch_size=3, shuffle=True, **more),
    "a loader that counts": lambda **more: Numbering(Noisy(), batch_size=2, shuffle=True, **more),
}
WITH_WORKERS = [
    *((name, {"num_workers": 2}, (2,)) for name in list(INDEXED)[1:]),
    ("the same, torchdata's", {"num_workers": 2, "persistent_workers": True}, (1, 4)),
]


@pytest.mark.parametrize(
    ("name", "more", "stops"),
    [
        *((name, {}, None) for name in INDEXED),
        *WITH_WORKERS,
        *(pytest.param(name, more, None, marks=sweep) for name, more, _ in WITH_WORKERS),
    ],
)
def test_a_state_of_data_or_a_loader_that_have_an_index_goes_on_from_any_position(
    name: str, more: dict[str, Any], stops: Any
) -> None:
    """R31, R35: in the training process, or in each worker where the loader can ask for it."""
    assert check_every_position(lambda: INDEXED[name](**more), epochs=1 if more else 2, stops=stops) == []


def test_their_samples_are_known_and_each_is_seen_once() -> None:
    for name, workers in itertools.product(list(INDEXED)[1:], (0, 2)):
        source = source_of(INDEXED[name](num_workers=workers), 5, -1)
        for epoch in range(2):
            source.open(epoch, 0, 0)
            ids: list[int] = []
            while source.next() is not NO_BATCH:
                assert source.ids is not None
                ids += source.ids
            assert sorted(ids) == list(range(10))
        source.close()


def test_a_state_that_stays_in_workers_is_told_of() -> None:
    told: list[str] = []
    source = source_of(DataLoader(Remembering(), batch_size=3, num_workers=2), 5, -1, told.append)
    source.open(0, 0, 0)
    assert told == []
    source.open(0, 1, 3)
    source.open(0, 2, 6)
    (text,) = told
    assert "a Remembering, has a state, but in worker processes only torchdata's StatefulDataLoader can ask" in text
    with pytest.raises(RestoreFault, match="the snapshot has a state of the dataset"):
        source.check(source_of(DataLoader(Remembering(), batch_size=3), 5, -1).state())


# -- states that can't be used -----------------------------------------------------------------------------


def test_a_state_that_does_not_fit_is_refused_before_the_first_fetch() -> None:
    """R35."""
    source = source_of(StatefulDataLoader(Stream(), batch_size=2), 5, -1)
    read(source, 0, 0, 3)
    other = entered(lambda: StatefulDataLoader(Stream(), batch_size=2, num_workers=1), saved(source))
    with pytest.raises(RestoreFault, match="the state of the training loader, a StatefulDataLoader, can't be applied"):
        other.open(0, 3)

    class Picky(OwnLoader):
        def load_state_dict(self, state: dict[str, Any]) -> None:
            raise KeyError("cursor")

    source = source_of(OwnLoader(), 5, -1)
    read(source, 0, 0, 2)
    with pytest.raises(RestoreFault, match=r"a Picky, can't be applied \(KeyError: 'cursor'\)"):
        entered(Picky, saved(source)).open(0, 2)


def test_a_state_for_another_kind_of_loader_is_refused() -> None:
    """R35: and nothing has been changed then."""
    stateful, listed, indexed = (source_of(loader, 5, -1) for loader in (OwnLoader(), [1, 2], DataLoader(range(4))))
    with pytest.raises(RestoreFault, match="the snapshot holds no state of the training loader, a OwnLoader, which"):
        stateful.check(None)
    with pytest.raises(RestoreFault, match="this one is a list of batches"):
        listed.check(stateful.state())
    with pytest.raises(RestoreFault, match="of a loader of another kind than this DataLoader"):
        indexed.check(stateful.state())
    with pytest.raises(RestoreFault, match="which this Stateless can't take"):
        source_of(Stateless(), 5, -1).check(stateful.state())
    with pytest.raises(RestoreFault, match="there is no state of the training loader, a OwnLoader, for batch 2"):
        stateful.open(0, 2)


def test_a_state_that_no_snapshot_can_hold_is_refused_after_the_first_batch_with_the_path_to_it() -> None:
    class Odd(OwnLoader):
        def state_dict(self) -> dict[str, Any]:
            return {"shards": [{"open": object()}]}

    source = source_of(Odd(), 5, -1)
    source.open(0, 0)
    with pytest.raises(
        CallerError, match=r"state_dict\(\) of the training loader, a Odd,\['shards'\]\[0\]\['open'\] is a object"
    ):
        source.next()


def test_states_hold_arrays_numbers_and_generators() -> None:
    class Rich(OwnLoader):
        def __init__(self) -> None:
            super().__init__()
            self.held = {
                "array": np.arange(6, dtype=np.uint16).reshape(2, 3),
                "number": np.float32(0.1),
                "torch": torch.Generator().manual_seed(3),
                "python": random.Random(3),
                "numpy": np.random.default_rng(3),
                "legacy": np.random.RandomState(3),
                "tuple": (1, "a", None, 1 << 80, float("nan")),
                "tensor": torch.arange(3.0),
            }

        def state_dict(self) -> dict[str, Any]:
            return {**super().state_dict(), **self.held}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            super().load_state_dict(state)
            self.held = state

    first, again = Rich(), Rich()
    source = source_of(first, 5, -1)
    read(source, 0, 0, 2)
    for generator in (first.held["python"].random, first.held["numpy"].random, first.held["legacy"].random):
        generator()
    entered(lambda: again, saved(source)).open(0, 2)
    for name, own in first.held.items():
        other = again.held[name]
        assert type(own) is type(other)
        if name == "torch":
            assert torch.equal(own.get_state(), other.get_state())
        elif hasattr(own, "random"):
            assert own.random() == other.random()
        elif isinstance(own, (np.ndarray, torch.Tensor)):
            assert own.tolist() == other.tolist()
            assert own.dtype == other.dtype
        else:
            assert repr(own) == repr(other)


# -- whole runs --------------------------------------------------------------------------------------------


class Odd:
    """A batch that no snapshot can hold."""

    def __init__(self, samples: Any) -> None:
        self.samples = torch.stack(samples)

    def to(self, device: Any) -> Odd:
        return self


class Summing(nn.Module):
    """Keeps what it was trained on."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(1))
        self.dropout = nn.Dropout(0.5)
        self.seen: list[Any] = []

    def train_step(self, batch: Any) -> Any:
        batch = batch.samples if isinstance(batch, Odd) else batch
        self.seen.append(batch.tolist())
        return {"loss": (self.w * self.dropout(batch.float())).mean()}


RUNS: dict[str, Callable[[], Any]] = {
    "torchdata's, a stream": lambda: StatefulDataLoader(Counting(), batch_size=4),
    "torchdata's, a stream in workers": lambda: StatefulDataLoader(Stream(), batch_size=4, num_workers=2),
    "torch's, a stream": lambda: DataLoader(Once(), batch_size=4),
    "one's own": OwnLoader,
    "torchdata's, a stream of odd batches": lambda: StatefulDataLoader(Stream(), batch_size=4, collate_fn=Odd),
    "torch's, a stream of odd batches": lambda: DataLoader(Once(), batch_size=4, collate_fn=Odd),
    "an index and a state": lambda: DataLoader(Remembering(), batch_size=4, shuffle=True),
    "an index and a state, odd batches": lambda: DataLoader(Remembering(), batch_size=4, shuffle=True, collate_fn=Odd),
    "an index, a loader that skips": lambda: Skipping(Noisy(), batch_size=4, shuffle=True),
}


def trained(make: Callable[[], Any], run_dir: Path, stop: Any = None, **settings: Any) -> tuple[list[Any], str]:
    torch.manual_seed(0)
    model = Summing()
    settings = {"n_epochs": 2, "seed": 3, "snapshot_every": None, "progress_bar": None, **settings}
    trainer = Trainer(model, "torch", make(), torch.optim.Adam(model.parameters()), run_dir=run_dir, **settings)
    if stop is not None:
        stop(trainer)
    trainer.run(resume_from="auto")
    return model.seen, Journal(run_dir).chain


@pytest.mark.filterwarnings("error:.* read again and dropped")
@pytest.mark.parametrize("name", RUNS)
def test_a_run_over_a_loader_with_a_state_goes_on_from_every_batch(tmp_path: Path, name: str) -> None:
    """R05, R22, R26, R35: before a fetch, and with a batch in hand; the last one in two stops."""
    whole, chain = trained(RUNS[name], tmp_path / "straight")
    n = len(whole)
    some = range(1, n) if "workers" not in name else (2, 3)
    for k in some:
        before, _ = trained(RUNS[name], tmp_path / f"{k}", n_batches=k)
        after, resumed = trained(RUNS[name], tmp_path / f"{k}")
        assert (before + after, resumed) == (whole, chain)
        before, _ = trained(RUNS[name], tmp_path / f"{k} in hand", stop_at("fetch -> step", k + 1))
        between, _ = trained(RUNS[name], tmp_path / f"{k} in hand", stop_at("fetch -> step", 1))
        after, resumed = trained(RUNS[name], tmp_path / f"{k} in hand")
        assert (before + between + after, resumed) == (whole, chain)


CUT: dict[str, Callable[[], Any]] = {
    "torchdata's, a stream": lambda: StatefulDataLoader(Stream(24), batch_size=4),
    "torchdata's, a stream that counts its epochs": lambda: StatefulDataLoader(Counting(24), batch_size=4),
    "torchdata's, a stream in workers": lambda: StatefulDataLoader(Stream(24), batch_size=4, num_workers=2),
    "torch's, a stream": lambda: DataLoader(Stream(24), batch_size=4),
    "one's own": lambda: OwnLoader(24),
}


@pytest.mark.parametrize("name", CUT)
@pytest.mark.parametrize("stop", ["step -> fetch", "fetch -> epoch_end", "epoch_end -> epoch_begin"])
def test_after_an_epoch_that_was_cut_short_the_next_one_begins_where_it_does_in_a_straight_run(
    tmp_path: Path, name: str, stop: str
) -> None:
    """R21, R35: torchdata forgets a stream in workers where it was cut; a resume just there begins as it does."""
    make = CUT[name]
    settings = {"limit_train_batches": 2, "n_epochs": 3}
    whole, chain = trained(make, tmp_path / "straight", **settings)
    assert len(whole) == 6
    count = 4 if stop == "step -> fetch" else 2
    before, _ = trained(make, tmp_path / "run", stop_at(stop, count), **settings)
    after, resumed = trained(make, tmp_path / "run", **settings)
    assert (before + after, resumed) == (whole, chain)


def test_a_run_goes_on_in_the_same_object_with_its_loader_where_it_was(tmp_path: Path) -> None:
    whole, _ = trained(RUNS["one's own"], tmp_path / "straight")
    for name in ("one's own", "torchdata's, a stream"):
        whole, chain = trained(RUNS[name], tmp_path / name / "straight")
        model = Summing()
        torch.manual_seed(0)
        trainer = Trainer(
            model, "torch", RUNS[name](), torch.optim.Adam(model.parameters()), n_epochs=2, seed=3,
            run_dir=tmp_path / name / "run", snapshot_every=None, progress_bar=None, n_batches=2,
        )  # fmt: skip
        trainer.run()
        trainer.n_batches = None
        trainer.n_epochs = 2
        trainer.run()
        assert model.seen == whole
        assert Journal(tmp_path / name / "run").chain == chain


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda held: held.update(loader=None),
            "the snapshot holds no state of the training loader, a OwnLoader, which",
        ),
        (lambda held: held.pop("loader"), "the snapshot lacks the entry 'loader'"),
    ],
)
def test_a_snapshot_that_lacks_the_loader_s_state_is_refused_by_its_name(
    tmp_path: Path, change: Callable[[Any], Any], said: str
) -> None:
    """R35."""
    trained(OwnLoader, tmp_path, n_batches=2)
    doctored(tmp_path, change)
    with pytest.raises(RestoreFault, match=said):
        trained(OwnLoader, tmp_path)


def test_a_length_that_is_asked_for_changes_nothing(tmp_path: Path) -> None:
    """R35: asked for in a user's setup, before the state is read."""

    class Sized(Counting):
        def __len__(self) -> int:
            return self.n

    def make() -> Any:
        loader = StatefulDataLoader(Sized(), batch_size=4)
        assert len(loader) == 3
        return loader

    whole, chain = trained(make, tmp_path / "straight")
    before, _ = trained(make, tmp_path / "run", n_batches=4)
    after, resumed = trained(make, tmp_path / "run")
    assert (before + after, resumed) == (whole, chain)


class Lengths(Stream):
    """Yields 5, 3 and 7 items in its epochs, and says that it has 4, or nothing."""

    def __init__(self, says: bool, state: bool) -> None:
        super().__init__()
        self.epoch = 0
        if not state:
            self.load_state_dict = None  # type: ignore[assignment]
        self.says = says

    def set_epoch(self, epoch: int) -> None:
        self.n = (5, 3, 7)[epoch % 3]

    def __len__(self) -> int:
        if not self.says:
            raise TypeError
        return 4


@pytest.mark.filterwarnings("ignore:Length of IterableDataset", "ignore:.* read again and dropped")
@pytest.mark.parametrize("state", [False, True])
@pytest.mark.parametrize("says", [False, True])
def test_epochs_of_any_length_said_wrongly_or_not_at_all_are_counted_by_what_there_was(
    tmp_path: Path, says: bool, state: bool
) -> None:
    """R53: (epoch, batch, step) after each of 15 steps, in a run that was stopped and in one that wasn't."""

    def run(run_dir: Path, k: int = -1) -> list[tuple[int, int, int]]:
        torch.manual_seed(0)
        model = Summing()
        train = DataLoader(Lengths(says, state), batch_size=1)
        trainer = Trainer(
            model, "torch", train, torch.optim.Adam(model.parameters()), n_epochs=3, n_batches=k, seed=3,
            run_dir=run_dir, snapshot_every=None, progress_bar=None,
        )  # fmt: skip
        triples: list[tuple[int, int, int]] = []

        def note(trainer: Any) -> None:
            triples.append((trainer.cur_epoch_idx, trainer.batch_idx_in_epoch, trainer.global_forward_batches))

        trainer.on("on_train_batch_end", note)
        trainer.run(resume_from="auto")
        return triples

    straight = run(tmp_path / "straight")
    assert straight == [
        (e, b + 1, s + 1) for s, (e, b) in enumerate((e, b) for e in range(3) for b in range((5, 3, 7)[e]))
    ]
    for k in range(1, 15, 1 if state else 3):
        assert run(tmp_path / str(k), k) + run(tmp_path / str(k)) == straight
        assert Journal(tmp_path / str(k)).chain == Journal(tmp_path / "straight").chain


@pytest.mark.parametrize("workers", [0, 1])
def test_a_stream_that_knows_its_place_goes_on_with_batches_of_another_size(tmp_path: Path, workers: int) -> None:
    """R51: the next item follows, and the epoch is as long as what was done and is left."""

    class Sized(Stream):
        def __len__(self) -> int:
            return self.n

    def run(size: int, run_dir: Path, k: int = -1) -> tuple[list[Any], Any]:
        torch.manual_seed(0)
        model = Summing()
        train = StatefulDataLoader(Sized(), batch_size=size, num_workers=workers)
        trainer = Trainer(
            model, "torch", train, torch.optim.Adam(model.parameters()), n_epochs=2, n_batches=k, seed=3,
            run_dir=run_dir, snapshot_every=None, progress_bar=None,
        )  # fmt: skip
        lengths: list[Any] = []
        trainer.on("on_train_batch_end", lambda trainer: lengths.append(trainer.num_batches_per_epoch))
        trainer.run(resume_from="auto")
        return [sample for batch in model.seen for sample in batch], lengths

    whole, _ = run(4, tmp_path / "straight")
    before, first = run(4, tmp_path / "run", 1)
    after, second = run(2, tmp_path / "run")
    assert before + after == whole
    assert first + second == [3] + [4] * 3 + [5] * 5
