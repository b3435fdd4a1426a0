"""Our own samplers under a trainer: stopped anywhere, it goes on with the samples of the run that wasn't."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from shutil import copytree
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from tachograph.drivers import (
    BucketedBatchSampler,
    DopedSampler,
    MixSequentialSampler,
    PollingSampler,
    RandomBatchSampler,
    RandomSampler,
    ReproduceBatchSampler,
    ReproducibleBatchSampler,
    replace_batch_sampler,
    replace_sampler,
)
from tachograph.engine import Journal, Trainer
from tests.test_samplers import LENGTHS, PARTS, SAMPLERS, N, Own, at, flat
from tests.toys import Sum

EPOCHS = 2


class Sees(nn.Module):
    """Keeps the batches it was trained on."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(1))
        self.batches: list[list[int]] = []

    def forward(self, batch: Any) -> Any:
        self.batches.append(batch.tolist())
        return {"loss": (self.w * batch.float().mean()).sum()}


def loader_over(sampler: Any, batch_size: int = 4, workers: int = 0) -> DataLoader[Any]:
    data: Any = list(range(sum(PARTS) if hasattr(sampler, "ds_ratio") else N))
    if isinstance(sampler, ReproducibleBatchSampler):
        return DataLoader(data, batch_sampler=sampler, num_workers=workers)
    return DataLoader(data, batch_size, sampler=sampler, num_workers=workers)


def trained(run_dir: Path, loader: DataLoader[Any], n_batches: int = -1, **settings: Any) -> list[list[int]]:
    """Train in fresh objects, going on where there is something to go on from; return the batches that were seen."""
    model = Sees()
    settings = {"n_epochs": EPOCHS, "snapshot_every": None, "progress_bar": None, "seed": 3, **settings}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    Trainer(model, "torch", loader, optimizer, n_batches=n_batches, run_dir=run_dir, **settings).run(resume_from="auto")
    return model.batches


@pytest.mark.parametrize(
    ("name", "workers", "every"),
    [
        *((name, 0, 1 if name == "bucketed" else 9) for name in SAMPLERS),
        *((name, 2, 9) for name in ("random", "bucketed", "written down", "in turn")),
        *(pytest.param(name, workers, 1, marks=pytest.mark.sweep) for name in SAMPLERS for workers in (0, 2)),
    ],
)
def test_a_resumed_run_sees_the_batches_of_the_straight_one_wherever_it_was_stopped(
    tmp_path: Path, name: str, workers: int, every: int
) -> None:
    """SA1, SA2, SA3, SA4, SA5, SA6, SW1, B8, B10, R01, R04: no batch twice, none missing, and the same chain."""
    straight = trained(tmp_path / "straight", loader_over(SAMPLERS[name]()))
    expected = SAMPLERS[name]()
    epochs = [flat(expected) for _ in range(EPOCHS)]
    assert flat(straight) == flat(epochs)
    for k in range(1, len(straight), every):
        before = trained(tmp_path / str(k), loader_over(SAMPLERS[name](), workers=workers), k)
        after = trained(tmp_path / str(k), loader_over(SAMPLERS[name](), workers=workers))
        assert (len(before), before + after) == (k, straight)
        assert Journal(tmp_path / str(k)).chain == Journal(tmp_path / "straight").chain


@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_may_be_resumed_after_every_batch_of_an_epoch_in_turn(tmp_path: Path, workers: int) -> None:
    """R26: a position is absolute."""
    straight = trained(tmp_path / "straight", loader_over(SAMPLERS["bucketed"]()))
    seen: list[list[int]] = []
    for k in range(1, len(straight) + 1, 1 if workers == 0 else 4):
        seen += trained(tmp_path / "run", loader_over(SAMPLERS["bucketed"](), workers=workers), k)
    seen += trained(tmp_path / "run", loader_over(SAMPLERS["bucketed"](), workers=workers))
    assert seen == straight


RESIZED: dict[str, Callable[[int], DataLoader[Any]]] = {
    "random": lambda size: loader_over(RandomSampler(N), size),
    "random batches": lambda size: loader_over(RandomBatchSampler(N, size)),
    "bucketed": lambda size: loader_over(BucketedBatchSampler(N, LENGTHS, size, 2)),
    "doped": lambda size: loader_over(DopedSampler(PARTS, size, "rand")),
    "one after the other": lambda size: loader_over(MixSequentialSampler(PARTS, size, "rand")),
    "in turn": lambda size: loader_over(PollingSampler(PARTS, size, "rand", ds_ratio=None)),
    "written down": lambda size: loader_over(ReproduceBatchSampler(Own(N), size, False)),
}


@pytest.mark.parametrize("name", RESIZED)
def test_the_batch_size_may_change_in_the_middle_of_an_epoch_and_change_again(tmp_path: Path, name: str) -> None:
    """SA4: every sample once an epoch all the same, and the rest of an epoch is what it would have been unstopped."""

    def run(run_dir: Path, *stops: tuple[int, int]) -> list[list[int]]:
        return [batch for size, k in stops for batch in trained(run_dir, RESIZED[name](size), k)]

    batches = run(tmp_path / "run", (4, 2), (3, 4), (2, 5), (5, 6), (5, -1))
    epochs = [sorted(flat(batches)[N * epoch : N * epoch + N]) for epoch in range(EPOCHS)]
    assert epochs == [list(range(N))] * EPOCHS
    assert [len(batch) for batch in batches[:5]] == [4, 4, 3, 3, 2]
    if name != "written down":  # what it asks draws anew in every run
        assert run(tmp_path / "less", (4, 2), (3, 4), (2, 5), (5, -1)) == batches


def test_a_sampler_that_nobody_can_set_back_is_resumed_in_its_epoch_once_it_is_written_down(tmp_path: Path) -> None:
    """SA3."""
    for k in (1, 3, 5, 6, 8):
        seen = [
            batch
            for n_batches in (k, -1)
            for batch in trained(tmp_path / str(k), loader_over(ReproduceBatchSampler(Own(N), 4, False)), n_batches)
        ]
        assert [len(batch) for batch in seen] == [4, 4, 4, 4, 4, 3] * EPOCHS
        assert [sorted(flat(seen)[at : at + N]) for at in (0, N)] == [list(range(N))] * 2


def test_a_loader_that_was_built_anew_resumes_as_one_that_was_built_so(tmp_path: Path) -> None:
    """SA7, SW7, B10: what counts is the loader that is returned."""

    def plain() -> DataLoader[Any]:
        return DataLoader(list(range(N)), 4, shuffle=True)  # type: ignore[arg-type]

    for name, make in {
        "samples": lambda: replace_sampler(plain(), SAMPLERS["random"]()),
        "batches": lambda: replace_batch_sampler(plain(), SAMPLERS["bucketed"]()),
        "default": plain,
    }.items():
        straight = trained(tmp_path / name / "straight", make())
        stopped = trained(tmp_path / name / "stopped", make(), 4)
        assert stopped + trained(tmp_path / name / "stopped", make()) == straight


def test_batches_that_were_only_fetched_ahead_are_trained_on_after_a_resume(tmp_path: Path) -> None:
    """SV5, B8: interrupted after 4 batches with workers that fetch 6 ahead; the sampler's own count is no position."""
    sampler = SAMPLERS["random batches"]()
    before = trained(tmp_path / "run", loader_over(sampler, workers=2), 4)
    after = trained(tmp_path / "run", loader_over(SAMPLERS["random batches"](), workers=2))
    assert len(before) == 4
    assert before + after == [batch for epoch in (0, 1) for batch in at("random batches", epoch)]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_trainer_that_was_stopped_in_an_epoch_goes_on_in_it_when_it_is_run_again(workers: int) -> None:
    """R24: with the same loader and the same sampler, whose iteration was under way."""
    for name in ("random", "bucketed", "written down"):
        model, loader = Sees(), loader_over(SAMPLERS[name](), workers=workers)
        trainer = Trainer(
            model,
            "torch",
            loader,
            torch.optim.SGD(model.parameters(), lr=0.01),
            n_batches=3,
            run_dir=None,
            progress_bar=None,
            seed=3,
        )
        trainer.run()
        assert len(model.batches) == 3
        trainer.n_batches = EPOCHS * len(loader)
        trainer.run()
        assert flat(model.batches) == [sample for epoch in range(EPOCHS) for sample in flat(at(name, epoch))]


class Crash(Exception):
    pass


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", ["bucketed", "in turn", "written down"])
def test_after_a_crash_the_batches_since_the_snapshot_are_the_same_ones_again(
    tmp_path: Path, name: str, workers: int
) -> None:
    """B8: the snapshot is older than what was handed out, and than what was trained on; the batch size had changed."""

    def resized(batch_size: int = 2) -> DataLoader[Any]:
        sampler = SAMPLERS[name]()
        sampler.batch_size = batch_size
        return loader_over(sampler, workers=workers)

    trained(tmp_path / "run", resized(4), 2)
    copytree(tmp_path / "run", tmp_path / "straight")
    straight = trained(tmp_path / "straight", resized())

    def crash(trainer: Any) -> None:
        if trainer.global_forward_batches == 5:
            raise Crash

    model = Sees()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    settings = {"n_epochs": EPOCHS, "snapshot_every": 2, "progress_bar": None, "seed": 3, "run_dir": tmp_path / "run"}
    trainer = Trainer(model, "torch", resized(), optimizer, **settings)
    trainer.on("on_train_batch_end", crash)
    with pytest.raises(Crash):
        trainer.run(resume_from="auto")
    assert model.batches == straight[:3]
    resumed = trained(tmp_path / "run", resized(), snapshot_every=2)
    assert resumed == straight[2:]
    assert Journal(tmp_path / "run").chain == Journal(tmp_path / "straight").chain


class Validates(Sees):
    """Keeps the batches it was validated on, too."""

    def __init__(self) -> None:
        super().__init__()
        self.validated: list[list[int]] = []

    def validate_step(self, batch: Any) -> Any:
        self.validated.append(batch.tolist())
        return {"value": len(batch)}


@pytest.mark.parametrize("name", ["random", "unrepeated random", "bucketed"])
def test_every_validation_has_the_same_order_however_many_there_were(name: str) -> None:
    """EV3: so a resumed run validates as the straight one does."""
    model = Validates()
    Trainer(
        model,
        "torch",
        loader_over(RandomSampler(N)),
        torch.optim.SGD(model.parameters(), lr=0.01),
        validate_dataloaders=loader_over(SAMPLERS[name]()),
        n_epochs=3,
        run_dir=None,
        progress_bar=None,
        metrics={"samples": Sum()},
    ).run(num_eval_sanity_batch=2)
    once = list(loader_over(at(name, -1)))
    assert model.validated == [batch.tolist() for batch in once[:2] + 3 * once]
