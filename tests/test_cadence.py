"""When a trainer validates: `validate_every`, in batches, updates, epochs, parts of epochs and seconds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tachograph.drivers import StubDriver
from tachograph.engine import Events, Trainer
from tachograph.engine.world import World
from tachograph.states.errors import CallerError
from tests.toys import Sum, sides, stop_at, stub


def validating(every: Any, batches: Sequence[int] = (1, 2, 3, 4, 5), **settings: Any) -> Trainer:
    """A trainer that validates, and notes after which update, epoch and batch."""
    trainer = stub(batches, validate_every=every, metrics={"sum": Sum()}, validate_dataloaders=[1, 2], **settings)
    trainer.seen = []
    trainer.on(
        Events.on_validate_end,
        lambda t, results: t.seen.append(
            (t.trainer_state.optimizer_steps, t.cur_epoch_idx, t.trainer_state.batch_idx_in_epoch)
        ),
    )
    return trainer


def updates_of(trainer: Trainer) -> list[int]:
    return [update for update, _, _ in trainer.seen]


@pytest.mark.parametrize("known_length", [True, False])
def test_every_two_updates_means_updates_whatever_batches_they_are_made_of(known_length: bool) -> None:
    """R32, C5: epochs of five batches, windows of two, so three updates an epoch, the last of one batch."""
    trainer = validating("2 updates", n_epochs=4, accumulation_steps=2, driver=StubDriver(known_length=known_length))
    trainer.run(num_eval_sanity_batch=0)
    assert updates_of(trainer) == [2, 4, 6, 8, 10, 12]


@pytest.mark.parametrize("known_length", [True, False])
@pytest.mark.parametrize("at", range(1, 20))
def test_stopped_at_any_batch_and_resumed_it_validates_after_the_same_updates(
    tmp_path: Path, at: int, known_length: bool
) -> None:
    """R32."""

    def run(**arguments: Any) -> Trainer:
        driver = StubDriver(known_length=known_length)
        trainer = validating(
            ("2 updates", -2), n_epochs=4, accumulation_steps=2, driver=driver, run_dir=tmp_path / "run"
        )
        if "resume_from" not in arguments:
            stop_at(Events.on_train_batch_end, at)(trainer)
        trainer.run(num_eval_sanity_batch=0, **arguments)
        return trainer

    straight = validating(
        ("2 updates", -2), n_epochs=4, accumulation_steps=2, driver=StubDriver(known_length=known_length)
    )
    straight.run(num_eval_sanity_batch=0)
    assert updates_of(straight) == [2, 4, 6, 8, 10, 12]
    assert run().seen + run(resume_from="auto").seen == straight.seen


def test_an_update_that_was_skipped_isnt_counted_and_nothing_is_validated_twice() -> None:
    """R32: the third and fourth of six updates are skipped."""
    trainer = validating("2 updates", batches=range(1, 7), n_epochs=1, driver=StubDriver(skip=(2, 3)))
    trainer.run(num_eval_sanity_batch=0)
    assert trainer.seen == [(2, 0, 2), (4, 0, 6)]


@pytest.mark.parametrize(
    ("every", "batches"),
    [
        ("0.25 epoch", [2, 3, 4, 5, 7, 8, 9, 10]),
        ("1/2 epoch", [3, 5, 8, 10]),
        ("1.5 epochs", [8]),
        (("0.5 epoch", -1), [3, 5, 8, 10]),
        (("0.4 epoch", -1), [2, 4, 5, 6, 8, 10]),
        ("4 batches", [4, 8]),
        ("1 epoch", [5, 10]),
        (["5 batches", "2 epochs"], [5, 10]),
    ],
)
def test_a_unit_says_what_is_counted(every: Any, batches: list[int]) -> None:
    """C5, T13: two epochs of five batches."""
    trainer = validating(every)
    trainer.run(num_eval_sanity_batch=0)
    assert [epoch * 5 + batch for _, epoch, batch in trainer.seen] == batches


def test_parts_of_an_epoch_need_its_length() -> None:
    """C5: and the sentence says what to write instead."""
    trainer = validating("0.25 epoch", driver=StubDriver(known_length=False))
    with pytest.raises(CallerError, match=r"'1/4 epoch' needs a train_dataloader that knows its length"):
        trainer.run()


@pytest.mark.parametrize(
    "wrong", [0, "0 updates", "-2 updates", "1.5 updates", "often", "3 weeks", "", 2.5, True, (), ("2 updates", 0)]
)
def test_what_cant_be_a_cadence_is_refused(wrong: Any) -> None:
    """T13, C5."""
    with pytest.raises(
        CallerError, match=r"validate_every must be n > 0 \(batches\), -n \(epochs\), a number with its"
    ):
        validating(wrong)


# -- seconds -----------------------------------------------------------------------------------------------


class Hours:
    """A clock that each batch moves by one second."""

    def __init__(self) -> None:
        self.now = 0.0

    def timed(self, every: Any, run_dir: Path | None = None, **settings: Any) -> Trainer:
        settings = {"n_epochs": 2, "run_dir": run_dir, "snapshot_every": 1, **settings}
        trainer = validating(every, **settings)
        trainer.world = World(clock=lambda: self.now, timer=lambda: self.now)
        trainer.on("on_train_batch_begin", lambda trainer, batch, indices: self.tick())
        return trainer

    def tick(self) -> None:
        self.now += 1.0


def test_every_three_seconds_is_at_the_first_batch_that_ends_then() -> None:
    """R32, C5: seconds of the run, counted from the last validation."""
    trainer = Hours().timed("3s")
    trainer.run(num_eval_sanity_batch=0)
    assert [epoch * 5 + batch for _, epoch, batch in trainer.seen] == [3, 6, 9]


@pytest.mark.parametrize("at", range(1, 10))
def test_the_time_since_the_last_validation_goes_on_over_a_resume(tmp_path: Path, at: int) -> None:
    """R32: a job that is preempted every ten minutes validates once an hour all the same."""
    clock = Hours()
    first = clock.timed("3s", tmp_path / "run")
    stop_at(Events.on_train_batch_end, at)(first)
    first.run(num_eval_sanity_batch=0)
    clock.now += 1000.0  # nobody trains
    second = clock.timed("3s", tmp_path / "run")
    second.run(num_eval_sanity_batch=0, resume_from="auto")
    seen = [epoch * 5 + batch for _, epoch, batch in first.seen + second.seen]
    assert seen == [3, 6, 9]


def test_what_the_clock_decided_is_decided_again_as_it_was_recorded(tmp_path: Path) -> None:
    """R32, R66: the re-executed batches take another time, and validations fall where they fell."""
    clock = Hours()
    first = clock.timed("3s", tmp_path / "run", snapshot_every=None)

    class Crash(Exception):
        pass

    def crash(trainer: Trainer) -> None:
        if trainer.global_forward_batches == 7:
            raise Crash

    first.on("on_train_batch_end", crash)
    with pytest.raises(Crash):
        first.run(num_eval_sanity_batch=0)
    for path in (tmp_path / "run" / "snapshots").glob("*"):
        path.rename(tmp_path / path.name)  # as if the process had died before it could take one

    slow = clock.timed("3s", tmp_path / "run", snapshot_every=None)
    slow.on("on_train_batch_begin", lambda trainer, batch, indices: [clock.tick() for _ in range(50)])
    slow.run(num_eval_sanity_batch=0, resume_from="auto")
    assert [epoch * 5 + batch for _, epoch, batch in slow.seen][:2] == [3, 6]
    assert sides(tmp_path / "run", "diverged") == []
    assert sides(tmp_path / "run", "matched")
