"""Where a run, an epoch and an accumulation window end: totals, the verb that cuts an epoch, the last short window."""

from __future__ import annotations

import datetime
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tachograph.drivers import StubDriver
from tachograph.engine import Events, Journal, Trainer, diff
from tachograph.engine.world import World
from tachograph.states.errors import CallerError
from tests.toys import sides, stop_at, stub, transitions


class Clock:
    """A clock that moves by a second with each training step."""

    def __init__(self) -> None:
        self.now = 100.0

    def timed(self, run_dir: Path | None, max_time: Any, **settings: Any) -> Trainer:
        trainer = stub([1, 2, 3], n_epochs=3, run_dir=run_dir, max_time=max_time, snapshot_every=1, **settings)
        trainer.world = World(clock=lambda: self.now, timer=lambda: self.now)
        trainer.on("Stepped", self.tick)
        return trainer

    def tick(self, trainer: Any) -> None:
        self.now += 1


# -- the epoch's own end -----------------------------------------------------------------------------------


def cut_at(batch: int) -> Callable[[Trainer], None]:
    def subscribe(trainer: Trainer) -> None:
        def cut(trainer: Any) -> None:
            if trainer.global_forward_batches == batch:
                trainer.end_epoch("seen enough")

        trainer.on(Events.on_train_batch_end, cut)

    return subscribe


def cutting(run_dir: Path | None, batch: int = 2, **settings: Any) -> Trainer:
    trainer = stub([1, 2, 3, 4, 5], run_dir=run_dir, snapshot_every=1, **settings)
    cut_at(batch)(trainer)
    return trainer


def test_an_epoch_that_is_cut_ends_with_its_validation_and_its_end_and_the_next_is_whole(run_dir: Path) -> None:
    """R24: "end epoch now" is its own verb; it is recorded, and the counters say so."""
    trainer = cutting(run_dir)
    end = trainer.run()
    assert transitions(run_dir)[6:9] == [
        "fetch --Exhausted--> epoch_end",
        "epoch_end --EpochEnded--> epoch_begin",
        "epoch_begin --EpochBegan--> fetch",
    ]
    cut = next(r for r in Journal(run_dir) if r.event == "Exhausted")
    assert (cut.data["cut"], cut.state.batch_idx_in_epoch, cut.state.num_batches_per_epoch) == ("seen enough", 2, 5)
    assert (end.cur_epoch_idx, end.global_forward_batches, end.total_batches) == (2, 7, 7)
    assert trainer.driver.seen == [1, 2, 1, 2, 3, 4, 5]  # type: ignore[union-attr]


def test_a_stop_can_be_gone_on_from_and_a_cut_epoch_is_over() -> None:
    """R24: stopped at 3 of 5 in the first of two epochs, a second run does items 3 and 4, then the second epoch."""
    trainer = stub([1, 2, 3, 4, 5])
    stop_at(Events.on_train_batch_end, 3)(trainer)
    trainer.run()
    end = trainer.run()
    assert trainer.driver.seen == [1, 2, 3, 4, 5, 1, 2, 3, 4, 5]  # type: ignore[union-attr]
    assert (end.cur_epoch_idx, end.global_forward_batches) == (2, 10)


@pytest.mark.parametrize("stop", range(1, 15))
def test_a_run_with_a_cut_epoch_is_resumed_exactly_at_every_transition(tmp_path: Path, stop: int) -> None:
    straight = cutting(tmp_path / "straight")
    straight.run()
    first = cutting(tmp_path / "run")
    for name in first.machine.names:
        first.on(name, lambda trainer: trainer.trainer_state.seq == stop and trainer.stop())
    first.run()
    again = cutting(tmp_path / "run")
    again.run(resume_from="auto")
    assert again.journal.chain == straight.journal.chain  # type: ignore[union-attr]
    assert again.driver.weight == straight.driver.weight  # type: ignore[union-attr]


def test_a_crash_between_the_request_and_the_end_of_the_epoch_does_not_lose_it(run_dir: Path) -> None:
    class Crash(Exception):
        pass

    def crash(trainer: Any, path: Path) -> None:
        if path.name.endswith("6"):  # the one of the batch at whose end the request was made
            raise Crash

    trainer = cutting(run_dir)
    trainer.on("on_after_snapshot", crash)
    with pytest.raises(Crash):
        trainer.run()
    end = stub([1, 2, 3, 4, 5], run_dir=run_dir).run(resume_from="auto")
    assert end.global_forward_batches == 7


def test_an_epoch_is_cut_before_its_first_batch_too() -> None:
    trainer = stub([1, 2], n_epochs=1)
    trainer.on("fetch", lambda trainer: trainer.end_epoch())
    end = trainer.run()
    assert (end.cur_epoch_idx, end.global_forward_batches) == (1, 0)


@pytest.mark.parametrize("state", ["init", "epoch_begin", "epoch_end", "done"])
def test_where_no_epoch_is_under_way_none_can_be_cut(state: str) -> None:
    trainer = stub()
    if state == "init":
        with pytest.raises(CallerError, match="end_epoch: no epoch is under way in state 'init'"):
            trainer.end_epoch()
        return
    trainer.on(state, lambda trainer: trainer.end_epoch())
    with pytest.raises(CallerError, match=f"end_epoch: no epoch is under way in state '{state}'"):
        trainer.run()


# -- time --------------------------------------------------------------------------------------------------


def test_a_run_stops_when_its_time_is_over_and_says_so(run_dir: Path) -> None:
    """C1."""
    end = Clock().timed(run_dir, 4).run()
    assert (end.state, end.global_forward_batches) == ("done", 4)
    last = Journal(run_dir).last
    assert last is not None
    assert last.data["reason"] == "max_time, 4 seconds, is over"


def test_the_time_is_a_total_over_all_lives_of_a_run(run_dir: Path) -> None:
    """R37: a limit that is reached already: no step, and done; a larger one: exactly the difference."""
    clock = Clock()
    clock.timed(run_dir, 4).run()
    clock.now += 1000  # nobody trained in between
    assert clock.timed(run_dir, 4).run(resume_from="auto").global_forward_batches == 4
    again = clock.timed(run_dir, "6s")
    assert again.run(resume_from="auto").global_forward_batches == 6
    again.max_time = datetime.timedelta(seconds=7)
    assert again.run().global_forward_batches == 7
    again.max_time = None
    assert again.run().global_forward_batches == 9
    assert {"max_time": [4.0, 6.0]} in [side["changed"] for side in sides(run_dir, "resumed")]


def test_stopped_by_its_time_and_extended_a_run_has_the_chain_of_a_straight_one(
    tmp_path: Path,
) -> None:
    clock = Clock()
    clock.timed(tmp_path / "straight", None).run()
    for limit in (2, 5, None):
        clock.timed(tmp_path / "run", limit).run(resume_from="auto")
    assert diff(tmp_path / "straight", tmp_path / "run") is None
    assert Journal(tmp_path / "run").chain == Journal(tmp_path / "straight").chain


@pytest.mark.parametrize("wrong", [0, -1, "soon", "0s", True, float("nan"), datetime.timedelta(0)])
def test_a_time_that_is_none_is_refused(wrong: Any) -> None:
    with pytest.raises(CallerError, match="max_time must be seconds > 0, a time such as '10min', or None"):
        stub(max_time=wrong)


# -- windows at an epoch's end -----------------------------------------------------------------------------


def updates(
    length: int, steps: int, tail: str, *, known: bool = True, n_epochs: int = 3
) -> tuple[list[list[int]], Any]:
    """The micro-batches that each update used, and the final state."""
    driver = StubDriver(known_length=known)
    trainer = stub(list(range(length)), driver, accumulation_steps=steps, accumulation_tail=tail, n_epochs=n_epochs)
    window: list[int] = []
    used: list[list[int]] = []
    trainer.on("step -> fetch", lambda trainer: None)
    trainer.on(Events.on_after_backward, lambda trainer: window.append(trainer.global_forward_batches))
    trainer.on(Events.on_after_optimizer_step, lambda trainer, optimizers: used.append(window.copy()))
    trainer.on(Events.on_before_zero_grad, lambda trainer, optimizers: window.clear())
    return used, trainer.run()


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("length", [1, 3, 4, 5])
@pytest.mark.parametrize("steps", [2, 4, 8])
def test_flushed_carried_or_dropped_the_windows_are_those_of_the_rule(length: int, steps: int, known: bool) -> None:
    """R23, B15: flush: every micro-batch in one update, ceil(B/k) an epoch; carry: floor(E*B/k) in all; drop: floor."""
    epochs = [list(range(e * length, (e + 1) * length)) for e in range(3)]

    used, end = updates(length, steps, "flush", known=known)
    assert used == [epoch[i : i + steps] for epoch in epochs for i in range(0, length, steps)]
    assert (end.optimizer_steps, end.accumulated) == (3 * -(-length // steps), 0)

    used, end = updates(length, steps, "carry", known=known)
    flat = list(range(3 * length))
    assert used == [flat[i : i + steps] for i in range(0, len(flat) - steps + 1, steps)]
    assert (end.optimizer_steps, end.accumulated) == (3 * length // steps, 3 * length % steps)

    used, end = updates(length, steps, "drop", known=known)
    assert used == [epoch[i : i + steps] for epoch in epochs for i in range(0, length - steps + 1, steps)]
    assert (end.optimizer_steps, end.accumulated) == (3 * (length // steps), 0)


def test_what_was_dropped_is_recorded(run_dir: Path) -> None:
    stub([1, 2, 3], accumulation_steps=2, accumulation_tail="drop", n_epochs=1, run_dir=run_dir).run()
    (exhausted,) = (r for r in Journal(run_dir) if r.event == "Exhausted")
    assert (exhausted.data["dropped"], exhausted.data["flushed"], exhausted.state.accumulated) == (1, False, 0)


def test_another_rule_is_refused_and_so_is_a_change_of_it_at_a_resume(run_dir: Path) -> None:
    """C7."""
    with pytest.raises(CallerError, match="accumulation_tail must be one of 'flush', 'carry', 'drop', not 'keep'"):
        stub(accumulation_tail="keep")
    stub(accumulation_steps=2, run_dir=run_dir).run()
    with pytest.raises(CallerError, match="accumulation_tail is flush, this trainer's carry"):
        stub(accumulation_steps=2, accumulation_tail="carry", run_dir=run_dir).run(resume_from="auto")


# -- leaving an update out ---------------------------------------------------------------------------------


def test_a_listener_can_leave_an_update_out_and_it_counts_as_skipped(run_dir: Path) -> None:
    trainer = stub([1, 2, 3], n_epochs=1, run_dir=run_dir)

    def second(trainer: Any, optimizers: Any) -> None:
        if trainer.global_forward_batches == 1:
            trainer.skip_update()

    trainer.on(Events.on_before_optimizer_step, second)
    heard: list[int] = []
    trainer.on("on_skipped_optimizer_step", lambda trainer, optimizers: heard.append(trainer.global_forward_batches))
    end = trainer.run()
    assert (end.optimizer_steps, end.global_forward_batches, heard) == (2, 3, [1])
    assert [r.data["skipped"] for r in Journal(run_dir) if r.event == "Stepped"] == [False, True, False]
    assert trainer.driver.calls.count("optimizer_step") == 2  # type: ignore[union-attr]


def test_an_update_can_be_left_out_only_where_it_is_about_to_be_taken() -> None:
    trainer = stub()
    with pytest.raises(CallerError, match=r"skip_update\(\) is for listeners of on_before_optimizer_step"):
        trainer.skip_update()
