"""What data draws at random: the same for any number of workers and from any position, and nothing of training's."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    DataLoader,
    Dataset,
    RandomSampler,
    Subset,
    default_collate,
    get_worker_info,
)

from tachograph.drivers import NO_BATCH, generators, seeding
from tachograph.drivers.loaders import ClonedSource, source_of
from tachograph.drivers.loaders.own_generators import seeding_of
from tests.toys import Run

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")
N = 10


def draw(source: str) -> float:
    """One number from a generator; the normals leave a second one behind."""
    return {
        "torch": lambda: torch.rand(1).item(),
        "numpy": lambda: float(np.random.rand()),
        "python": random.random,
        "torch's normals": lambda: torch.randn(1).item(),
        "numpy's normals": lambda: float(np.random.standard_normal()),
        "python's normals": lambda: random.gauss(0, 1),
        "nothing": lambda: 0.0,
    }[source]()


class Drawing(Dataset[Any]):
    """Samples that know their index, and numbers drawn when they were read.

    Args:
        sources: which generators are drawn from.
        now_and_then: draw for every third sample only.
    """

    def __init__(self, *sources: str, now_and_then: bool = False) -> None:
        self.sources, self.now_and_then = sources, now_and_then
        self.reads: list[int] = []

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> Any:
        self.reads.append(index)
        draws = not self.now_and_then or index % 3 == 2
        return [float(index), *(draw(source) if draws else 0.0 for source in self.sources)]


class DrawingMany(Drawing):
    """The same, many at once, with one more number for all of them."""

    def __getitems__(self, indices: Any) -> Any:
        shared = draw(self.sources[0])
        return [[*self[i], shared] for i in indices]


def masked(samples: Any) -> Any:
    """Collate, and draw as one that masks tokens at random."""
    return default_collate([[*sample, draw("torch"), draw("numpy"), draw("python")] for sample in samples])


def all_sources(now_and_then: bool = False) -> Drawing:
    return Drawing("torch", "numpy", "python", "torch's normals", "python's normals", now_and_then=now_and_then)


class OwnLoader(DataLoader[Any]):
    def __iter__(self) -> Any:
        for batch in super().__iter__():
            yield [*batch, draw("torch"), draw("python"), draw("numpy")]


LOADERS: dict[str, Any] = {
    "each generator": lambda **more: DataLoader(all_sources(), batch_size=3, shuffle=True, **more),
    "one of them": lambda **more: DataLoader(Drawing("numpy"), batch_size=3, shuffle=True, **more),
    "normals": lambda **more: DataLoader(
        Drawing("torch's normals", "numpy's normals", "python's normals"), batch_size=3, **more
    ),
    "now and then": lambda **more: DataLoader(all_sources(now_and_then=True), batch_size=1, **more),
    "many at once": lambda **more: DataLoader(DrawingMany("torch", "python"), batch_size=4, shuffle=True, **more),
    "a part": lambda **more: DataLoader(Subset(Drawing("torch"), [7, 3, 3, 1, 0]), batch_size=2, **more),
    "single samples": lambda **more: DataLoader(all_sources(), batch_size=None, shuffle=True, **more),
    "the same sample again": lambda **more: DataLoader(
        Drawing("torch"), batch_size=4, sampler=RandomSampler(range(N), replacement=True, num_samples=14), **more
    ),
    "in collating": lambda **more: DataLoader(Drawing("nothing"), batch_size=3, collate_fn=masked, **more),
    "there and in collating": lambda **more: DataLoader(all_sources(), batch_size=3, collate_fn=masked, **more),
    "in an iterator of one's own": lambda **more: OwnLoader(all_sources(), batch_size=3, shuffle=True, **more),
}


def plain(batch: Any) -> Any:
    if isinstance(batch, torch.Tensor):
        return batch.tolist()
    return [plain(part) for part in batch] if isinstance(batch, (list, tuple)) else batch


def read(source: Any, epoch: int, done: int = 0, samples: int | None = None) -> list[Any]:
    """All batches from a position on, with their ids."""
    source.open(epoch, done, samples)
    held = []
    while (batch := source.next()) is not NO_BATCH:
        held.append((source.ids, plain(batch)))
    return held


def standing() -> list[float]:
    """What the three generators would give next."""
    with generators.forked():
        return [draw(name) for name in ("torch", "numpy", "python", "torch's normals", "python's normals")]


@pytest.mark.parametrize("name", LOADERS)
def test_draws_are_a_function_of_seed_epoch_and_place_from_any_position(name: str) -> None:
    """R05: fresh objects, any global generators before; and the draws of two epochs differ, and those of two seeds."""
    whole = [read(source_of(LOADERS[name](), 5, -1), epoch) for epoch in range(2)]
    drawn = [[batch for _, batch in sorted(epoch, key=str)] for epoch in whole]
    assert drawn[0] != drawn[1]
    assert read(source_of(LOADERS[name](), 6, -1), 0) != whole[0]
    again = source_of(LOADERS[name](), 5, -1)
    for epoch, done in [(0, 0), (1, 1), (0, 2), (1, 3), (0, len(whole[0]) - 1), (1, len(whole[1]))]:
        random.seed(done), np.random.seed(done), torch.manual_seed(done)
        for source in (again, source_of(LOADERS[name](), 5, -1)):
            assert read(source, epoch, done) == whole[epoch][done:]


@pytest.mark.parametrize("name", LOADERS)
def test_reading_in_the_training_process_takes_nothing_from_training(name: str) -> None:
    """R29: nor from a normal that is kept for the next call."""
    source = source_of(LOADERS[name](), 5, -1)
    torch.randn(1), random.gauss(0, 1), np.random.standard_normal()
    seed, before = torch.initial_seed(), standing()
    source.open(0, 0)
    while source.next() is not NO_BATCH:
        assert standing() == before
    assert torch.initial_seed() == seed


SETTINGS: list[dict[str, Any]] = [
    {"num_workers": 2, "persistent_workers": True, "prefetch_factor": 4},
    {"num_workers": 1},
    {"num_workers": 3, "prefetch_factor": 1},
]


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        *((name, SETTINGS[i % 3]) for i, name in enumerate(LOADERS)),
        *(
            pytest.param(name, SETTINGS[(i + k) % 3], marks=pytest.mark.sweep)
            for k in (1, 2)
            for i, name in enumerate(LOADERS)
        ),
    ],
)
def test_workers_draw_what_the_training_process_draws(name: str, settings: dict[str, Any]) -> None:
    """R05, R09, R31, D12: epochs whole, entered in their middle, and left in their middle."""
    here, there = source_of(LOADERS[name](), 5, -1), source_of(LOADERS[name](**settings), 5, -1)
    assert type(there) is ClonedSource
    for epoch, done in ((0, 0), (1, 2), (1, 0), (2, 3)):
        assert read(there, epoch, done) == read(here, epoch, done)
    there.open(3, 1)
    there.next()
    assert read(there, 3, 2) == read(here, 3, 2)
    there.close()


@pytest.mark.parametrize("kind", [DrawingMany, pytest.param(Drawing, marks=pytest.mark.sweep)])
def test_spawned_workers_draw_the_same(kind: Any) -> None:
    """Everything that travels to a worker is pickled there."""
    settings = {"batch_size": 3, "shuffle": True, "collate_fn": masked}
    here = source_of(DataLoader(kind("torch", "python"), **settings), 5, -1)
    spawned = {"num_workers": 1, "multiprocessing_context": "spawn"}
    there = source_of(DataLoader(kind("torch", "python"), **spawned, **settings), 5, -1)
    assert read(there, 0, 1) == read(here, 0, 1)
    there.close()


@pytest.mark.parametrize("kind", [Drawing, DrawingMany])
def test_a_worker_function_sees_the_user_s_own_dataset(kind: Any) -> None:
    here = source_of(DataLoader(kind("numpy", "torch"), batch_size=3), 5, -1)
    loader = DataLoader(kind("torch"), batch_size=3, num_workers=2, worker_init_fn=look_at_the_dataset)
    there = source_of(loader, 5, -1)
    assert read(there, 0) == read(here, 0)
    there.close()


def look_at_the_dataset(worker: int) -> None:
    """Change the dataset as worker functions do: what isn't the user's object all through raises here."""
    info = get_worker_info()
    assert info is not None
    dataset: Any = info.dataset
    assert isinstance(dataset, Drawing)
    assert len(dataset) == N
    dataset.sources = ("numpy", *dataset.sources)
    assert len(dataset[0]) == 1 + len(dataset.sources)


def test_data_that_draws_nothing_is_read_once_and_seeds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the first batch of an epoch is read under seeds; data known to draw nothing isn't even then."""
    numbers: list[int] = []
    monkeypatch.setattr(seeding.banks.Bank, "seed", lambda bank, which, number: numbers.append(number))
    data = Drawing("nothing")
    source = source_of(DataLoader(data, batch_size=2), 5, -1)
    read(source, 0)
    assert data.reads == list(range(N))
    assert len(numbers) == 3
    for plain_data in (torch.utils.data.TensorDataset(torch.rand(N)), list(range(N)), [torch.rand(2)] * N):
        read(source_of(DataLoader(plain_data, batch_size=2), 5, -1), 0)
    assert len(numbers) == 3


def test_only_what_is_drawn_from_is_seeded(monkeypatch: pytest.MonkeyPatch) -> None:
    which: list[Any] = []
    seed = seeding.banks.Bank.seed
    monkeypatch.setattr(
        seeding.banks.Bank, "seed", lambda bank, these, number: (which.append(these), seed(bank, these, number))
    )
    read(source_of(DataLoader(Drawing("python"), batch_size=2), 5, -1), 0)
    probed, rest = which[:3], which[3:]
    assert all(these == seeding.banks.ALL for these in probed)
    assert all(these == {seeding.banks.PYTHON} for these in rest)


def test_a_draw_that_nobody_expected_costs_one_more_read_of_its_batch() -> None:
    data = Drawing("torch", now_and_then=True)
    read(source_of(DataLoader(data, batch_size=1), 5, -1), 0)
    assert data.reads == [0, 1, 2, 2, 3, 4, 5, 6, 7, 8, 9]


class Failing(Drawing):
    at = 4

    def __getitem__(self, index: int) -> Any:
        sample = super().__getitem__(index)
        if index == self.at:
            raise LookupError(f"sample {index}")
        return sample


@pytest.mark.parametrize(("now_and_then", "at"), [(False, 4), (True, 4), (True, 2)])
def test_training_keeps_its_generators_where_reading_fails(now_and_then: bool, at: int) -> None:
    """Also where the sample that fails is the first one that draws."""
    data = Failing("torch", "numpy", "python", now_and_then=now_and_then)
    data.at = at
    source = source_of(DataLoader(data, batch_size=1), 5, -1)
    source.open(0, 0)
    before = standing()
    for _ in range(at):
        source.next()
    with pytest.raises(LookupError, match=f"sample {at}"):
        source.next()
    assert standing() == before


def test_seeds_of_places_and_purposes_differ() -> None:
    found = {
        seeding.seeds(seed, purpose, epoch)(place)
        for seed in (1, 2)
        for purpose in ("sample", "batch")
        for epoch in range(3)
        for place in range(-2, 500)
    }
    assert len(found) == 2 * 2 * 3 * 502
    assert all(0 <= number < 1 << 64 for number in found)
    assert len({number & 0xFFFFFFFF for number in found}) > len(found) - 5  # torch takes these, numpy the others
    assert len({number >> 32 for number in found}) > len(found) - 5


# -- generators of the data's own --------------------------------------------------------------------------


class Jitter:
    """A transform with a generator of its own."""

    def __init__(self, generator: Any) -> None:
        self.generator = generator

    def __call__(self, value: float) -> float:
        if isinstance(self.generator, torch.Generator):
            return value + torch.rand(1, generator=self.generator).item()
        return value + float(self.generator.random())


def jittering(generator: Any) -> Any:
    return lambda value: value + generator.random()


class Private(Dataset[Any]):
    """Draws from a generator of its own, wherever it keeps it."""

    def __init__(self, transforms: Any) -> None:
        self.transforms = transforms

    def __len__(self) -> int:
        return N

    def __getitem__(self, index: int) -> Any:
        value = float(index)
        for transform in self.transforms:
            value = transform(value)
        return value


class Collator:
    def __init__(self) -> None:
        self.rng = np.random.default_rng(3)

    def __call__(self, samples: Any) -> Any:
        return torch.tensor(samples) + self.rng.random()


PRIVATE: dict[str, Any] = {
    "torch's": lambda: Private([Jitter(torch.Generator().manual_seed(3))]),
    "python's": lambda: Private([Jitter(random.Random(3))]),
    "numpy's": lambda: Private((Jitter(np.random.default_rng(3)), Jitter(np.random.Generator(np.random.Philox(3))))),
    "numpy's old ones": lambda: Private([Jitter(np.random.RandomState(3))]),
    "in a partial, a method and a closure": lambda: Private(
        [partial(add, random.Random(3)), Jitter(random.Random(4)).__call__, jittering(random.Random(5))]
    ),
    "in a part of the data": lambda: Subset(Private([Jitter(random.Random(3))]), list(range(N))),
}


def add(generator: random.Random, value: float) -> float:
    return value + generator.random()


@pytest.mark.parametrize("name", PRIVATE)
def test_generators_of_the_data_s_own_are_seeded_as_the_global_ones(name: str) -> None:
    """Each worker has a copy of them: left alone they would all draw the same, and again after a resume."""

    def make(workers: int) -> Any:
        return source_of(
            DataLoader(PRIVATE[name](), batch_size=3, shuffle=True, num_workers=workers, collate_fn=Collator()), 5, -1
        )

    here, there = make(0), make(2)
    whole = read(here, 0)
    assert len({value - i for ids, batch in whole for i, value in zip(ids, batch, strict=True)}) == N
    assert read(here, 1) != read(here, 0)
    for done in range(len(whole)):
        assert read(make(0), 0, done) == whole[done:]
    assert read(there, 0, 1) == whole[1:]
    there.close()


def test_a_dataset_s_state_is_trusted_with_its_generators() -> None:
    class Saved(Private):
        def state_dict(self) -> Any:
            return {"rng": self.transforms[0].generator}

        def load_state_dict(self, state: Any) -> None:
            self.transforms[0].generator = state["rng"]

    def make() -> Any:
        return source_of(DataLoader(Saved([Jitter(random.Random(3))]), batch_size=3), 5, -1)

    own = random.Random(3)
    source = make()
    whole = read(source, 0)
    assert [value for _, batch in whole for value in batch] == [i + own.random() for i in range(N)]
    source = make()
    source.open(0, 0)
    source.next()
    again = make()
    again.load(source.state())
    assert read(again, 0, 1) == whole[1:]


def test_what_is_no_generator_or_data_itself_is_not_searched() -> None:
    for part in (None, len, [random.Random(3)] * 101, random, np.random, {"a": {"b": np.zeros(3)}}, Drawing("torch")):
        assert seeding_of(part) is None
    loop: list[Any] = [random.Random(1)]
    loop.append(loop)
    assert seeding_of(loop) is not None


# -- whole runs --------------------------------------------------------------------------------------------


def outcome(run: Run) -> tuple[Any, ...]:
    """Everything that must be equal: the trace of samples is in the chain, as ids, losses and generators' digests."""
    return run.chain, [w.tolist() for w in run.weights], run.generators, plain_state(run.optimizer.state_dict())


def plain_state(state: Any) -> Any:
    if isinstance(state, dict):
        return {key: plain_state(held) for key, held in state.items()}
    return plain(state)


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, ...]:
    run = Run(run_dir=tmp_path_factory.mktemp("straight") / "run", snapshot_every=None)
    run.run()
    return outcome(run)


WORKERS = [
    {"num_workers": 1},
    {"num_workers": 2, "prefetch_factor": 3},
    {"num_workers": 2, "persistent_workers": True},
    {"num_workers": 3, "persistent_workers": True, "prefetch_factor": 1},
]


@pytest.mark.parametrize("loader", WORKERS, ids=str)
def test_a_training_run_is_the_same_for_any_number_of_workers(
    tmp_path: Path, straight: tuple[Any, ...], loader: dict[str, Any]
) -> None:
    """R05: samples with noise from three generators, dropout, Adam; chain, weights, moments and generators."""
    run = Run(run_dir=tmp_path / "run", snapshot_every=None, loader=loader)
    run.run()
    assert outcome(run) == straight


def resumed(run_dir: Path, stops: Any, loaders: Any) -> Run:
    """Stop after so many batches, build everything anew, go on; a loader for each part."""
    for k, loader in zip([*stops, None], loaders, strict=True):
        run = Run(run_dir=run_dir, snapshot_every=None, loader=loader, n_batches=-1 if k is None else k)
        run.run(resume_from="auto")
    return run


@pytest.mark.parametrize("k", range(1, 12))
def test_stopped_after_any_batch_and_resumed_with_other_workers_it_is_the_straight_run(
    tmp_path: Path, straight: tuple[Any, ...], k: int
) -> None:
    """R05, R22, R09, R31: also at the end of the first epoch, and one batch beside it."""
    loaders = [{}, *WORKERS]
    before, after = loaders[k % 5], loaders[(k * 2 + 1) % 5]
    assert outcome(resumed(tmp_path / "run", [k], [before, after])) == straight


@pytest.mark.parametrize("loader", [{}, WORKERS[2]], ids=["here", "workers"])
def test_stopped_after_every_single_batch_it_is_the_straight_run(
    tmp_path: Path, straight: tuple[Any, ...], loader: dict[str, Any]
) -> None:
    """R26: a chain of resumes; a position is absolute."""
    stops = range(1, 12) if not loader else (2, 3, 5, 6, 7, 9)
    assert outcome(resumed(tmp_path / "run", stops, [loader] * (len(stops) + 1))) == straight


@pytest.mark.sweep
@pytest.mark.parametrize("loader", WORKERS, ids=str)
@pytest.mark.parametrize("k", range(1, 12))
def test_with_any_workers_stopped_after_any_batch_it_is_the_straight_run(
    tmp_path: Path, straight: tuple[Any, ...], k: int, loader: dict[str, Any]
) -> None:
    assert outcome(resumed(tmp_path / "run", [k], [loader, loader])) == straight
