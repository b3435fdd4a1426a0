"""Loaders of a user's own classes: read through their own iterators, once an epoch, and theirs to count on."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from tachograph.drivers import NO_BATCH
from tachograph.drivers.loaders import ClonedSource, ReplayedSource, source_of
from tachograph.engine import Journal, Trainer
from tests.test_loader_stateful import saved
from tests.test_loaders import Ids, Seen, ids_of, read
from tests.toys import Indexed


class Counting(DataLoader[Any]):
    """Counts on itself and on its class, with attributes of every kind."""

    of_all = 0

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.iterations = self.batches = 0
        self.sizes: list[int] = []

    def __iter__(self) -> Iterator[Any]:
        self.iterations += 1
        type(self).of_all += 1
        for batch in super().__iter__():
            self.batches += 1
            self.sizes.append(len(self.dataset))  # type: ignore[arg-type]
            self.last = self.batch_sampler.batch_size if self.batch_sampler is not None else None  # type: ignore[attr-defined]
            yield batch


@pytest.mark.parametrize("workers", [0, 2])
def test_what_a_loader_counts_on_itself_shows_on_the_user_s_object(workers: int) -> None:
    """R48: and what the user sets on it is seen by the loader."""
    Counting.of_all = 0
    loader = Counting(Indexed(8), batch_size=2, shuffle=True, num_workers=workers, persistent_workers=workers > 0)
    kept = dict(vars(loader))
    source = source_of(loader, 5, -1)
    for epoch in range(3):
        read(source, epoch)
    assert (loader.iterations, Counting.of_all, loader.batches, loader.sizes, loader.last) == (3, 3, 12, [8] * 12, 2)
    loader.batches = 100
    read(source, 3, 1)
    assert (loader.iterations, Counting.of_all, loader.batches) == (4, 4, 103)
    source.close()
    changed = {name for name, held in vars(loader).items() if held is not kept.get(name)}
    assert changed == {"iterations", "batches", "last"}
    assert isinstance(source._double, Counting)  # type: ignore[attr-defined]


class Ahead(DataLoader[Any]):
    """Fetches one batch ahead, as those do that copy to a device in the meantime."""

    def __iter__(self) -> Iterator[Any]:
        batches = super().__iter__()
        ahead = next(batches, None)
        while ahead is not None:
            batch, ahead = ahead, next(batches, None)
            yield batch


class Fewer(DataLoader[Any]):
    """Ends an epoch after three batches."""

    def __iter__(self) -> Iterator[Any]:
        for n, batch in enumerate(super().__iter__()):
            if n == 3:
                return
            yield batch


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(("kind", "n"), [(Ahead, 5), (Fewer, 3)])
def test_iterators_that_fetch_ahead_or_end_early_are_entered_anywhere(kind: Any, n: int, workers: int) -> None:
    """B8: a batch that was fetched and not trained on isn't done."""

    def make() -> Any:
        return source_of(kind(Indexed(10), batch_size=2, shuffle=True, num_workers=workers), 5, -1)

    source = make()
    whole = ids_of(read(source, 0))
    assert len(whole) == n
    for done in range(n):
        pairs = read(source, 0, done)
        assert ids_of(pairs)[: n - done] == whole[done:]
        assert all(batch["id"].tolist() == ids for ids, batch in pairs)
    source.close()


class Kept(DataLoader[Any]):
    """Has an order of its own, and draws."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.own = [[3, 1], [2, 0], [4, 5]]

    def __iter__(self) -> Iterator[Any]:
        for indices in self.own:
            yield torch.tensor(indices) + torch.rand(1)


def test_an_iterator_that_asks_for_no_samples_is_read_again_and_that_is_told() -> None:
    """A loader that can't be given our order says so, and what to do; it goes on exactly all the same."""
    told: list[str] = []
    source = source_of(Kept(Ids(6), batch_size=2), 5, -1, told.append)
    whole = [batch.tolist() for _, batch in read(source, 0)]
    read(source, 1)
    assert len(told) == 1
    assert "the iterator of Kept doesn't ask its sampler for samples" in told[0]
    assert "let its __iter__ go over super().__iter__(), or give it state_dict() and load_state_dict()" in told[0]
    for done in range(4):
        source = source_of(Kept(Ids(6), batch_size=2), 5, -1, told.append)
        source.open(0, 0)
        for _ in range(done):
            source.next()
        again = source_of(Kept(Ids(6), batch_size=2), 5, -1, told.append)
        again.load(saved(source))
        pairs = read(again, 0, done)
        assert ids_of(pairs) == [None] * (3 - done)
        assert [batch.tolist() for _, batch in pairs] == whole[done:]
    source = source_of(Kept(Ids(6), batch_size=2), 5, 2, told.append)
    assert len(read(source, 0)) == 2


class Wrapping:
    """A loader that isn't torch's, around one that is; counts its iterations."""

    def __init__(self, loader: DataLoader[Any]) -> None:
        self.loader = loader
        self.iterations = 0

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        self.iterations += 1
        for batch in self.loader:
            yield batch * 2


class Model(Seen):
    def forward(self, batch: Any) -> Any:
        self.ids += batch.reshape(-1).tolist()
        return {"loss": nn.functional.dropout(self.w * batch.float(), 0.5).mean()}


def trained(run_dir: Path, loader: Any, k: int = -1) -> tuple[list[float], str]:
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    Trainer(
        model, "torch", loader, optimizer, n_epochs=3, n_batches=k, seed=3, run_dir=run_dir, snapshot_every=None,
        progress_bar=None,
    ).run(resume_from="auto")  # fmt: skip
    return model.ids, Journal(run_dir).chain


class Noisy(Ids):
    def __getitem__(self, index: int) -> Any:
        return super().__getitem__(index) + torch.rand(1)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_around_a_shuffled_one_with_noise_goes_on_exactly_with_one_iteration_an_epoch(
    tmp_path: Path, workers: int
) -> None:
    """R48, R05: its order and its samples are drawn from generators of the epoch, wherever they are drawn."""

    def make() -> Wrapping:
        return Wrapping(DataLoader(Noisy(8), batch_size=2, shuffle=True, num_workers=workers))

    loader = make()
    whole, chain = trained(tmp_path / "straight", loader)
    assert loader.iterations == 3
    for k in (4, 6, 11):
        first, again = make(), make()
        before, _ = trained(tmp_path / str(k), first, k)
        with pytest.warns(UserWarning, match="a Wrapping, has no index, so") if k % 4 else warnings.catch_warnings():
            after, resumed = trained(tmp_path / str(k), again)
        assert (before + after, resumed) == (whole, chain)
        assert (first.iterations, again.iterations) == (-(-k // 4), 3 - k // 4)


def test_what_is_read_again_is_noted_once(tmp_path: Path) -> None:
    """One warning, and one record in the journal that says what to do."""
    trained(tmp_path, Wrapping(DataLoader(Ids(8), batch_size=2)), 3)
    with pytest.warns(UserWarning, match="3 batches of epoch 0 are read again") as said:
        trained(tmp_path, Wrapping(DataLoader(Ids(8), batch_size=2)))
    assert len([one for one in said if "read again" in str(one.message)]) == 1
    (noted,) = [record for record in Journal(tmp_path).sides("noted") if "read again" in record.data["text"]]
    assert "a DataLoader over a map-style dataset goes on at once" in noted.data["text"]


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"num_workers": 2},
        {"num_workers": 2, "persistent_workers": True, "prefetch_factor": 5},
        {"num_workers": 2, "in_order": False},
        {"pin_memory": True},
        {"timeout": 30, "num_workers": 1},
    ],
)
@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true")
def test_every_setting_of_a_loader_leaves_the_order_as_it_is(settings: dict[str, Any]) -> None:
    plain = read(source_of(DataLoader(Indexed(9), batch_size=2, shuffle=True), 5, -1), 0, 1)
    source = source_of(DataLoader(Indexed(9), batch_size=2, shuffle=True, **settings), 5, -1)
    found = read(source, 0, 1)
    assert ids_of(found) == ids_of(plain)
    assert [batch["x"].tolist() for _, batch in found] == [batch["x"].tolist() for _, batch in plain]
    source.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataset_that_has_set_epoch_is_told_in_every_process(workers: int) -> None:
    class Epochs(Indexed):
        epoch = -1

        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

        def __getitem__(self, index: int) -> Any:
            return torch.tensor(self.epoch)

    settings = {"num_workers": 2, "persistent_workers": True} if workers else {}
    source = source_of(DataLoader(Epochs(6), batch_size=2, **settings), 5, -1)
    for epoch in (0, 1, 4):
        assert [batch.tolist() for _, batch in read(source, epoch)] == [[epoch, epoch]] * 3
    source.close()


@pytest.mark.parametrize(("workers", "prefetch"), [(0, None), (2, 2)])
def test_the_reads_before_the_first_resumed_batch_do_not_depend_on_the_position(workers: int, prefetch: Any) -> None:
    """R43, R14: 100,000 samples, resumed at 90,000; nothing consumed is read, in no process."""
    read_by_all = torch.zeros(100_000, dtype=torch.int32).share_memory_()

    class Noting(Ids):
        def __getitem__(self, index: int) -> Any:
            read_by_all[index] += 1
            return super().__getitem__(index)

    batch = 10
    settings = {"num_workers": workers, "prefetch_factor": prefetch} if workers else {}
    order = source_of(DataLoader(range(100_000), batch_size=batch, shuffle=True), 5, -1)  # type: ignore[arg-type]
    order.open(0, 0, 0)
    source = source_of(DataLoader(Noting(100_000), batch_size=batch, shuffle=True, **settings), 5, -1)
    source.open(0, 9000, 90_000)
    assert read_by_all.sum() == 0
    assert source.next() is not NO_BATCH
    source.close()
    most = max(workers, 1) * (prefetch or 1) * batch
    assert batch <= read_by_all.sum() <= most + batch  # that many, and what was asked for when the first one came
    ahead = source_of(DataLoader(range(100_000), batch_size=batch, shuffle=True), 5, -1)  # type: ignore[arg-type]
    due = [i for ids in ids_of(read(ahead, 0, 9000)) for i in ids]
    assert set(torch.nonzero(read_by_all).flatten().tolist()) <= set(due[: most + batch])


def test_readers_are_chosen_by_what_a_loader_can_do() -> None:
    assert type(source_of(Wrapping(DataLoader(Ids(4))), 5, -1)) is ReplayedSource
    assert type(source_of(Counting(Ids(4)), 5, -1)) is ClonedSource
