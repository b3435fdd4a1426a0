"""Samplers of a user's own: whatever they keep from epoch to epoch is as it was where a run goes on."""

from __future__ import annotations

import collections
import io
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Sampler
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader import sampler as torchdata_samplers

from tachograph.drivers import RestoreFault
from tachograph.drivers.loaders import DirectSource, source_of
from tachograph.drivers.loaders.sampler_states import SamplerStates
from tests.test_loader_stateful import saved
from tests.test_loaders import ids_of, read, seeing
from tests.toys import Indexed

pytestmark = pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
N = 9


class Own(Sampler[Any]):
    """Single samples, in an order that `draw` makes anew in every epoch."""

    def __init__(self) -> None:
        self.epoch = 0
        self.torch = torch.Generator().manual_seed(4)
        self.python = random.Random(4)
        self.numpy = np.random.default_rng(4)
        self.legacy = np.random.RandomState(4)
        self.indices = list(range(N))
        self.classes = {"even": list(range(0, N, 2)), "odd": list(range(1, N, 2))}
        self.weights = torch.ones(N)
        self.unsaved = lambda: None

    def __len__(self) -> int:
        return N

    def __iter__(self) -> Iterator[Any]:
        self.epoch += 1
        yield from self.draw()

    def draw(self) -> list[int]:
        raise NotImplementedError


class ByEpoch(Own):
    def draw(self) -> list[int]:
        return np.random.default_rng(self.epoch).permutation(N).tolist()


class ByTorch(Own):
    def draw(self) -> list[int]:
        return torch.randperm(N, generator=self.torch).tolist()


class ByPython(Own):
    def draw(self) -> list[int]:
        return self.python.sample(range(N), N)


class ByNumpy(Own):
    def draw(self) -> list[int]:
        return self.numpy.permutation(N).tolist()


class ByLegacyNumpy(Own):
    def draw(self) -> list[int]:
        return self.legacy.permutation(N).tolist()


class InPlace(Own):
    """Shuffles its list again and again, by a global generator."""

    def draw(self) -> list[int]:
        random.shuffle(self.indices)
        return self.indices


class InPlaceByClass(Own):
    def draw(self) -> list[int]:
        for held in self.classes.values():
            np.random.shuffle(held)
        return [i for held in self.classes.values() for i in held]


class Weighing(Own):
    """What was drawn last epoch is less likely to come first in the next."""

    def draw(self) -> list[int]:
        order: list[int] = torch.argsort(torch.rand(N) * self.weights).tolist()
        self.weights[order[:3]] += 1.0
        return order


class WithState(Own):
    """Says itself what it keeps, and the numbers in it are numpy's."""

    def __init__(self) -> None:
        super().__init__()
        self.kept = [np.int64(3)]

    def draw(self) -> list[int]:
        self.kept = [self.kept[0] * 5 % 1009]
        return np.random.default_rng(self.kept[0]).permutation(N).tolist()

    def state_dict(self) -> dict[str, Any]:
        return {"kept": self.kept, "epoch": self.epoch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.kept, self.epoch = state["kept"], state["epoch"]


class WithPosition(Own):
    """Its state is a position too, and stays at an epoch's end until the next iteration begins."""

    def __init__(self) -> None:
        super().__init__()
        self.at = self.start = 0

    def __iter__(self) -> Iterator[Any]:
        start, self.start = self.start, 0
        if not start:
            self.epoch += 1
        self.at = start
        for i in np.random.default_rng(self.epoch).permutation(N).tolist()[start:]:
            self.at += 1
            yield i

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at, "epoch": self.epoch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.start, self.epoch = state["at"], state["epoch"]


class InContainers(Own):
    """Keeps its order in whatever there is."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = collections.deque(range(N), maxlen=N)
        self.by_kind = collections.defaultdict(list, {"even": [0, 2, 4, 6, 8], "odd": [1, 3, 5, 7]})
        self.seen: set[int] = set()
        self.pairs = {(0, 1): 2}  # can't be kept, and needn't be
        self.ordered = collections.OrderedDict(a=1)

    def draw(self) -> list[int]:
        self.queue.rotate(2)
        self.python.shuffle(self.by_kind["even"])
        self.seen.add(len(self.seen))
        self.ordered["a"] += 1
        order = [*(i for i in self.queue if i % 2), *self.by_kind["even"]]
        return order[::-1] if (len(self.seen) + self.ordered["a"]) % 3 else order


class InBatches(Own):
    """A batch sampler, with batches of any size."""

    def __len__(self) -> int:
        return 4

    def draw(self) -> Any:
        cuts = sorted(self.python.sample(range(1, N), 3))
        order = self.numpy.permutation(N).tolist()
        return [order[a:b] for a, b in zip([0, *cuts], [*cuts, N], strict=True)]


KINDS = [
    ByEpoch,
    ByTorch,
    ByPython,
    ByNumpy,
    ByLegacyNumpy,
    InPlace,
    InPlaceByClass,
    Weighing,
    WithState,
    WithPosition,
    InContainers,
    InBatches,
]


def over(kind: Any, wrapped: bool = False, workers: int = 0) -> DataLoader[Any]:
    sampler = kind()
    if kind is InBatches:
        return DataLoader(Indexed(N), batch_sampler=sampler, num_workers=workers)
    if wrapped:
        return DataLoader(Indexed(N), batch_sampler=Wrapping(sampler, 2, False), num_workers=workers)
    return DataLoader(Indexed(N), batch_size=2, sampler=sampler, num_workers=workers)


class Wrapping(BatchSampler):
    """A batch sampler of a user's own, around a sampler of a user's own."""

    def __iter__(self) -> Iterator[Any]:
        for batch in super().__iter__():
            yield batch[::-1]


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_sampler_that_changes_from_epoch_to_epoch_goes_on_as_it_would_have(kind: Any, wrapped: bool) -> None:
    """R01, R26: its order in epoch 2 is that of its third iteration, also in a process where it is its first."""
    source = source_of(over(kind, wrapped), 5, -1)
    whole = [ids_of(read(source, epoch)) for epoch in range(4)]
    assert all(sorted(i for ids in epoch for i in ids) == list(range(N)) for epoch in whole)
    assert len(set(map(str, whole))) == 4
    for epoch in range(3):
        source = source_of(over(kind, wrapped), 5, -1)
        for before in range(epoch):
            read(source, before)
        for done in range(len(whole[epoch]) + 1):
            source.open(epoch, done)
            resumed = source_of(over(kind, wrapped), 5, -1)
            state = saved(source)
            resumed.check(state)
            resumed.load(state)
            assert ids_of(read(resumed, epoch, done)) == whole[epoch][done:]
            assert ids_of(read(resumed, epoch + 1)) == whole[epoch + 1]
            source.load(source.state())  # as a second run of the same object does


def test_a_state_holds_what_changed_and_nothing_else() -> None:
    source = source_of(over(ByTorch), 5, -1)
    source.open(0, 0)
    nothing: dict[str, Any] = {"the sampler's sampler": {}}
    assert source.state() == {"samplers": {"epoch": 0, "begun": nothing, "now": nothing}}
    source.next()
    held = source.state()["samplers"]
    for when, epoch in (("begun", 0), ("now", 1)):
        assert held[when]["the sampler's sampler"].keys() == {"epoch", "torch"}
        assert held[when]["the sampler's sampler"]["epoch"] == epoch
    assert source_of(DataLoader(Indexed(4), shuffle=True), 5, -1).state() == {"samplers": None}


def test_a_sampler_that_holds_the_data_is_not_searched_for_it() -> None:
    class Holding(ByPython):
        def __init__(self) -> None:
            super().__init__()
            self.data = [torch.zeros(1000)] * 100_000
            self.later: list[Any] = []

        def draw(self) -> list[int]:
            self.data[0] = torch.ones(1)
            return super().draw()

    states = SamplerStates(Holding())
    states.begin(0)
    states.begin(1)
    assert states.state() == {"epoch": 1, "begun": {"the sampler": {}}, "now": {"the sampler": {}}}


def test_a_state_that_no_sampler_takes_is_refused() -> None:
    """R35."""
    source = source_of(over(ByTorch), 5, -1)
    read(source, 0)
    plain = source_of(DataLoader(Indexed(N), batch_size=2, shuffle=True), 5, -1)
    with pytest.raises(RestoreFault, match="the snapshot has a state of the sampler's sampler, which keeps none here"):
        plain.check(source.state())

    class Refusing(WithState):
        def load_state_dict(self, state: dict[str, Any]) -> None:
            raise ValueError("of another size")

    source = source_of(over(WithState), 5, -1)
    read(source, 0)
    again = source_of(over(Refusing), 5, -1)
    again.load(source.state())
    with pytest.raises(RestoreFault, match="a Refusing, can't be loaded: of another size"):
        again.open(0, 1)


@pytest.mark.parametrize("kind", [ByNumpy, InPlace, InBatches])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_over_such_a_sampler_goes_on_from_any_batch(tmp_path: Path, kind: Any, workers: int) -> None:
    """R01, R26, SW3: three epochs in a chain of four processes' worth of fresh objects."""

    def run(run_dir: Path, k: int) -> list[int]:
        trainer, model, _ = seeing(run_dir, n=N, batch=2, n_batches=k)
        trainer.train_dataloader = DataLoader(
            trainer.train_dataloader.dataset, num_workers=workers,
            **({"batch_sampler": kind()} if kind is InBatches else {"batch_size": 2, "sampler": kind()}),
        )  # fmt: skip
        trainer.driver.set_dataloader(trainer.train_dataloader)  # type: ignore[union-attr]
        trainer.run(resume_from="auto")
        return model.ids

    straight = run(tmp_path / "straight", -1)
    assert [i for k in (3, 5, 9, -1) for i in run(tmp_path / "run", k)] == straight


# -- torchdata's -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
def test_torchdata_s_loader_over_an_index_is_read_as_torch_s(workers: int) -> None:
    """The same orders, the same draws, O(1), whether its samplers are torch's or its own."""
    data = Indexed(N, noise=True)
    plain = source_of(DataLoader(data, batch_size=2, shuffle=True), 5, -1)
    batches = torchdata_samplers.BatchSampler(torchdata_samplers.RandomSampler(data), 2, False)
    for loader in (
        StatefulDataLoader(data, batch_size=2, shuffle=True, num_workers=workers),
        StatefulDataLoader(data, batch_sampler=batches, num_workers=workers),
    ):
        source = source_of(loader, 5, -1)
        if workers == 0:
            assert type(source) is DirectSource
        for epoch, done in ((0, 0), (1, 2)):
            expected, found = read(plain, epoch, done), read(source, epoch, done)
            assert ids_of(found) == ids_of(expected)
            assert [b["x"].tolist() for _, b in found] == [b["x"].tolist() for _, b in expected]
        source.close()


def test_states_are_plain_data_wherever_they_come_from() -> None:
    """What a snapshot holds is loaded with `weights_only=True`."""
    for kind in KINDS:
        source = source_of(over(kind), 5, -1)
        read(source, 0), read(source, 1)
        source.open(2, 0)
        file = io.BytesIO()
        torch.save(source.state(), file)
        file.seek(0)
        torch.load(file, weights_only=True)
