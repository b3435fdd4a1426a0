"""A loop of the user's own in place of fetch and step."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from tachograph.drivers import StubDriver
from tachograph.engine import Trainer
from tests.toys import Sum, stub


class Whole:
    """Does all that the built-in loop does."""

    def run(self, trainer: Any, loader: Any) -> None:
        for batch in loader:
            trainer.on_train_batch_begin(batch)
            outputs = trainer.train_step(batch)
            trainer.backward(outputs)
            trainer.step()
            trainer.zero_grad()
            trainer.batch_idx_in_epoch += 1
            trainer.global_forward_batches += 1
            trainer.on_train_batch_end()


class Lazy:
    """Trains, and neither counts nor clears nor tells anyone."""

    def run(self, trainer: Any, loader: Any) -> None:
        for batch in loader:
            trainer.backward(trainer.train_step(batch))


def trainer_with(loop: Any, **settings: Any) -> Trainer:
    settings = {"n_epochs": 2, "run_dir": None, "progress_bar": None, **settings}
    trainer = Trainer(None, StubDriver(), [1, 2, 3, 4, 5], None, **settings)
    trainer.train_batch_loop = loop
    return trainer


def test_a_whole_loop_trains_as_the_built_in_one_and_nothing_is_warned_of() -> None:
    """A8.C2, A8.C4, B7, N2: the epoch's counter is 0 afterwards, since a new epoch begins, and that is no fault."""
    trainer = trainer_with(Whole(), accumulation_steps=1)
    heard: list[int] = []
    trainer.on("on_train_batch_end", lambda trainer: heard.append(trainer.global_forward_batches))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        end = trainer.run()
    straight = Trainer(None, StubDriver(), [1, 2, 3, 4, 5], None, n_epochs=2, run_dir=None, progress_bar=None)
    straight.run()
    assert heard == list(range(1, 11))
    assert (end.cur_epoch_idx, end.global_forward_batches, end.optimizer_steps) == (2, 10, 10)
    assert trainer.driver.weight == straight.driver.weight  # type: ignore[union-attr]


def test_what_a_loop_leaves_out_is_named_once_if_somebody_listens() -> None:
    """A8.C2, A8.C4."""
    trainer = trainer_with(Lazy())
    trainer.on("on_before_backward", lambda trainer, outputs: None)
    trainer.on("on_before_zero_grad", lambda trainer, optimizers: None)
    with pytest.warns(UserWarning, match="train_batch_loop") as caught:
        trainer.run()
    assert sorted(str(w.message).split(":")[0] for w in caught) == [
        "train_batch_loop left trainer.batch_idx_in_epoch at 0",
        "train_batch_loop left trainer.global_forward_batches at 0",
        "train_batch_loop never reached on_before_zero_grad, which has listeners",
    ]


def test_a_loop_without_run_is_refused() -> None:
    """A8.C2."""
    with pytest.raises(ValueError, match=r"must have run\(trainer, train_dataloader\)"):
        trainer_with(object())


def test_a_step_beside_a_loop_is_said_to_be_unused() -> None:
    """A8.C3."""
    with pytest.warns(UserWarning, match="batch_step_fn isn't called"):
        trainer_with(Whole(), batch_step_fn=lambda trainer, batch: None)


class Notes(Whole):
    """Notes what it is given, and what it gets from it."""

    def __init__(self) -> None:
        self.lengths: list[int] = []
        self.mine: list[Any] = []
        self.batches: list[list[Any]] = []

    def run(self, trainer: Any, loader: Any) -> None:
        self.lengths.append(len(loader))
        self.mine.append(loader.mine)
        self.batches.append(list(loader))
        super().run(trainer, loader)


class Loader(list[Any]):
    """A loader with something of its own."""

    mine = "an attribute"


@pytest.mark.parametrize(("asked", "used"), [(2, 2), (9, 5), (-1, 5)])
def test_a_loop_is_given_as_many_batches_as_were_asked_for(asked: int, used: int) -> None:
    """A8.C6, A2.R5: the shorter length, from the first batch in each epoch, and the loader's own attributes."""
    loop = Notes()
    trainer = Trainer(None, StubDriver(), Loader([1, 2, 3, 4, 5]), None, n_epochs=2, run_dir=None, progress_bar=None)
    trainer.train_batch_loop = loop
    end = trainer.run(num_train_batch_per_epoch=asked)
    assert loop.lengths == [used] * 2
    assert loop.batches == [[1, 2, 3, 4, 5][:used]] * 2
    assert loop.mine == ["an attribute"] * 2
    assert (end.num_batches_per_epoch, end.global_forward_batches) == (used, 2 * used)


def test_a_loader_that_is_cut_short_reads_no_batch_more() -> None:
    """A8.C6."""
    read: list[int] = []

    class Reads(Loader):
        def __iter__(self) -> Any:
            for batch in super().__iter__():
                read.append(batch)
                yield batch

    trainer = Trainer(None, StubDriver(), Reads([1, 2, 3, 4, 5]), None, n_epochs=1, run_dir=None, progress_bar=None)
    trainer.train_batch_loop = Whole()
    trainer.run(num_train_batch_per_epoch=2)
    assert read == [1, 2]


@pytest.mark.parametrize(
    ("every", "told", "validations"),
    [(-1, False, 2), (2, True, 0), ((2, -1), True, 2), ("10min", True, 0), (lambda trainer: True, True, 0)],
)
def test_validations_that_no_loop_can_be_interrupted_for_are_told_of_once(
    every: Any, told: bool, validations: int
) -> None:
    """A8.C2, A8.C4: an epoch is one transition then; it would never be asked whether one is due."""
    trainer = trainer_with(Whole(), metrics={"m": Sum()}, validate_dataloaders=[1], validate_every=every)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        end = trainer.run()
    assert end.validations == validations
    said = "validate_every asks for validations inside an epoch, which a train_batch_loop works off at once"
    assert [str(w.message).startswith(said) for w in caught] == [True] * told
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer_with(Whole(), validate_every=2).run()  # nobody validates


def test_the_moments_of_a_fetch_are_heard_once_an_epoch_around_a_loop() -> None:
    """A8.C2, L2."""
    trainer, heard = trainer_with(Whole()), []
    for name in ("on_fetch_data_begin", "on_fetch_data_end"):
        trainer.on(name, lambda trainer, name=name: heard.append((name, trainer.global_forward_batches)))
    trainer.run()
    assert heard == [
        ("on_fetch_data_begin", 0),
        ("on_fetch_data_end", 5),
        ("on_fetch_data_begin", 5),
        ("on_fetch_data_end", 10),
    ]


def test_a_step_that_was_written_for_many_processes_runs_on_one() -> None:
    """A8.C5: nothing is exchanged there, so there is nothing to hold back."""

    def step(trainer: Any, batch: Any) -> None:
        with trainer.get_no_sync_context():
            trainer.backward(trainer.train_step(batch))
        trainer.step()
        trainer.zero_grad()

    assert stub(batch_step_fn=step).run().optimizer_steps == 6
