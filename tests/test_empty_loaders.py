"""Loaders without a batch: refused where it can be known, and at their first fetch where it can't."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, Sampler, Subset, TensorDataset

from tachograph.engine import Evaluator, Events, Journal, Trainer
from tachograph.states.errors import CallerError
from tests.toys import Sum, stub, transitions


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)

    def forward(self, batch: Any) -> dict[str, Any]:
        return {"loss": self.layer(torch.as_tensor(batch[0]).float().reshape(-1, 1)).mean()}


class Nothing(IterableDataset[Any]):
    """Yields nothing, and may say so."""

    def __init__(self, length: int | None = None) -> None:
        self.length = length

    def __iter__(self) -> Iterator[Any]:
        return iter(())

    def __len__(self) -> int:
        if self.length is None:
            raise TypeError
        return self.length


class Draws(Sampler[Any]):
    """A sampler that yields what it is given, and says how much that is, or something else."""

    def __init__(self, entries: list[Any], length: int | None) -> None:
        self.entries, self.length = entries, length

    def __iter__(self) -> Iterator[Any]:
        return iter(self.entries)

    def __len__(self) -> int:
        if self.length is None:
            raise TypeError
        return self.length


class Iterable:
    def __init__(self, epochs: list[list[Any]]) -> None:
        self.epochs = list(epochs)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.epochs.pop(0) if len(self.epochs) > 1 else self.epochs[0])


def data(n: int = 5) -> TensorDataset:
    return TensorDataset(torch.arange(float(n)))


KNOWN: dict[str, tuple[Callable[[], Any], str]] = {
    "a list": (list, "its list of 0 samples makes no batch"),
    "a tuple": (lambda: (), "its tuple of 0 samples makes no batch"),
    "an empty dataset": (lambda: DataLoader(data(0)), "its TensorDataset of 0 samples makes no batch"),
    "an empty subset": (lambda: DataLoader(Subset(data(), [])), "its Subset of 0 samples makes no batch"),
    "an empty list as a dataset": (lambda: DataLoader([], batch_size=None), "its list of 0 samples makes no batch"),
    "a sampler of length 0": (
        lambda: DataLoader(data(), sampler=Draws([], 0)),
        "its TensorDataset of 5 samples makes no",
    ),
    "an empty list as a sampler": (
        lambda: DataLoader(data(), sampler=[]),
        "its TensorDataset of 5 samples makes no batch",
    ),
    "a batch sampler of length 0": (
        lambda: DataLoader(data(), batch_sampler=Draws([], 0)),
        "TensorDataset of 5 samples",
    ),
    "too few for drop_last": (
        lambda: DataLoader(data(), 8, drop_last=True),
        "of 5 samples, with drop_last=True makes no",
    ),
    "an iterable dataset of length 0": (lambda: DataLoader(Nothing(0)), "its Nothing of 0 samples makes no batch"),
    "workers": (lambda: DataLoader(data(0), num_workers=2), "its TensorDataset of 0 samples makes no batch"),
}
UNKNOWN: dict[str, Callable[[], Any]] = {
    "an iterable": lambda: Iterable([[]]),
    "an iterable dataset": lambda: DataLoader(Nothing()),
    "an iterable dataset without batches": lambda: DataLoader(Nothing(), batch_size=None),
    "an iterable dataset that says it has some": lambda: DataLoader(Nothing(6), batch_size=2),
    "an iterable dataset in workers": lambda: DataLoader(Nothing(), num_workers=2),
    "a sampler without a length": lambda: DataLoader(data(), sampler=Draws([], None)),
    "a sampler that says it has some": lambda: DataLoader(data(), sampler=Draws([], 4)),
    "a sampler of single samples": lambda: DataLoader(data(), batch_size=None, sampler=Draws([], 4)),
    "a batch sampler without a length": lambda: DataLoader(data(), batch_sampler=Draws([], None)),
    "a batch sampler that says it has some": lambda: DataLoader(data(), batch_sampler=Draws([], 3)),
    "a batch sampler in workers": lambda: DataLoader(data(), batch_sampler=Draws([], 3), num_workers=1),
}


def trainer(loader: Any, run_dir: Path | None = None, **settings: Any) -> Trainer:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    settings = {"n_epochs": 2, "progress_bar": None, **settings}
    return Trainer(model, "torch", loader, optimizer, run_dir=run_dir, **settings)


@pytest.mark.parametrize("name", KNOWN)
def test_training_data_that_is_known_to_be_empty_is_refused_when_the_trainer_is_built(name: str, run_dir: Path) -> None:
    """R62: by its name, with what makes it so; nothing is written."""
    make, said = KNOWN[name]
    with pytest.raises(CallerError, match=f"train_dataloader is empty: .*{said}"):
        trainer(make(), run_dir)
    assert not run_dir.exists()


@pytest.mark.parametrize("name", KNOWN)
def test_training_data_that_was_emptied_since_is_refused_before_the_run_begins(name: str, run_dir: Path) -> None:
    """R62: nothing is written, and no epoch begun."""
    one = trainer([torch.ones(1)], run_dir)
    one.train_dataloader = KNOWN[name][0]()
    with pytest.raises(CallerError, match="train_dataloader is empty"):
        one.run()
    assert (one.trainer_state.seq, run_dir.exists()) == (0, False)


@pytest.mark.parametrize("accumulation_steps", [1, 3])
@pytest.mark.parametrize("name", UNKNOWN)
def test_training_data_that_turns_out_to_be_empty_ends_the_run_at_its_first_fetch(
    name: str, accumulation_steps: int, run_dir: Path
) -> None:
    """R62: nothing is trained, nothing divided by, and the journal says why."""
    one = trainer(UNKNOWN[name](), run_dir, accumulation_steps=accumulation_steps)
    heard: list[BaseException] = []
    one.on(Events.on_exception, lambda trainer, exception: heard.append(exception))
    with pytest.raises(CallerError, match="train_dataloader made no batch at all in epoch 0") as caught:
        one.run()
    assert heard == [caught.value]
    assert transitions(run_dir)[1:] == ["epoch_begin --EpochBegan--> fetch", "fetch --Failed--> exception"]
    last = Journal(run_dir).last
    assert last is not None
    assert (last.state.optimizer_steps, last.state.global_forward_batches) == (0, 0)


def test_a_later_epoch_that_turns_out_to_be_empty_ends_the_run_there(run_dir: Path) -> None:
    """R62: an iterator that was used up, say."""
    one = trainer(Iterable([[torch.ones(1)] * 3, []]), run_dir)
    with pytest.raises(CallerError, match="train_dataloader made no batch at all in epoch 1"):
        one.run()
    assert one.trainer_state.global_forward_batches == 3


def test_the_stub_refuses_no_batches_too() -> None:
    with pytest.raises(CallerError, match="the stub's train_dataloader must be a sequence with at least one batch"):
        stub([])


class Count:
    def reset(self) -> None:
        self.n = 0

    def update(self, loss: Any) -> None:
        self.n += 1

    def compute(self) -> int:
        return self.n


@pytest.mark.parametrize("name", KNOWN)
@pytest.mark.parametrize("alone", [True, False])
def test_validation_data_that_is_known_to_be_empty_is_refused_when_the_trainer_is_built(
    name: str, alone: bool, run_dir: Path
) -> None:
    """R62: and among several loaders, by its name."""
    empty = KNOWN[name][0]()
    loaders = empty if alone else {"full": [torch.ones(1)], "dev": empty}
    which = "" if alone else " 'dev'"
    with pytest.raises(CallerError, match=f"the evaluation loader{which} is empty"):
        trainer([torch.ones(1)], run_dir, metrics={"n": Count()}, validate_dataloaders=loaders)
    assert not run_dir.exists()


@pytest.mark.parametrize("sanity", [0, 2, -1])
@pytest.mark.parametrize("name", UNKNOWN)
def test_validation_data_that_turns_out_to_be_empty_is_an_error_and_no_results(
    name: str, sanity: int, run_dir: Path
) -> None:
    """R62: in the sanity check already, if there is one, so before an epoch begins."""
    one = trainer(
        [torch.ones(1)] * 2,
        run_dir,
        metrics={"n": Count()},
        validate_dataloaders={"dev": UNKNOWN[name]()},
    )
    with pytest.raises(CallerError, match="the evaluation loader 'dev' made no batch"):
        one.run(num_eval_sanity_batch=sanity)
    state = one.trainer_state
    assert (state.state, state.results, state.validations) == ("exception", {}, 0)
    assert state.global_forward_batches == (0 if sanity else 2)


@pytest.mark.parametrize("name", UNKNOWN)
def test_an_evaluator_on_its_own_says_the_same(name: str) -> None:
    """R62."""
    evaluator = Evaluator(Net(), UNKNOWN[name](), {"n": Count()}, "torch", verbose=0)
    with pytest.raises(CallerError, match="the evaluation loader made no batch"):
        evaluator.run()


def test_a_stub_s_validation_data_is_held_to_the_same() -> None:
    """R62."""
    with pytest.raises(CallerError, match="the evaluation loader is empty"):
        stub(metrics={"m": Sum()}, validate_dataloaders=[])
    with pytest.raises(CallerError, match="dataloaders is an empty dict: give one loader at least"):
        stub(metrics={"m": Sum()}, validate_dataloaders={})
    with pytest.raises(CallerError, match="the evaluation loader 'a' made no batch"):
        stub(metrics={"m": Sum()}, validate_dataloaders={"a": Iterable([[]])}).run()
