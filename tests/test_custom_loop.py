"""A loop of the user's own in place of fetch and step."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from tachograph.drivers import StubDriver
from tachograph.engine import Trainer


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
