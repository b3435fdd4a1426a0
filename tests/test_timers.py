"""What measures a run and limits its time: `Timer`, `TimeLimit`, `ThroughputMonitor`, `MemoryMonitor`, `LRMonitor`."""

from __future__ import annotations

import contextlib
import itertools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tachograph.drivers import StubDriver, measuring
from tachograph.engine import (
    Callback,
    Events,
    Journal,
    LRMonitor,
    MemoryMonitor,
    ThroughputMonitor,
    TimeLimit,
    Timer,
    TimerCallback,
    Trainer,
)
from tachograph.engine.callbacks.memory import process_bytes
from tachograph.engine.callbacks.timer import TIMERS
from tachograph.engine.snapshots import catalogue
from tachograph.engine.world import World
from tachograph.states.errors import CallerError
from tests.toys import Run, Sum, equal, stub


class Clock:
    """A clock that stands still until somebody works."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


COSTS = {"next_batch": 1.0, "train_step": 2.0, "backward": 4.0, "optimizer_step": 8.0, "evaluate_step": 16.0}


def timed(callbacks: Any, batches: int = 4, costs: Any = COSTS, **settings: Any) -> tuple[Trainer, Clock, list[str]]:
    """A run in which each work takes its time, and what it says."""
    clock, said = Clock(), []

    def working(seconds: float) -> Callable[[Any], None]:
        return lambda driver: setattr(clock, "now", clock.now + seconds)

    driver = StubDriver(on={name: working(seconds) for name, seconds in costs.items()})
    settings = {"n_epochs": 2, "metrics": {"sum": Sum()}, "validate_dataloaders": [1], **settings}
    trainer = stub(range(1, batches + 1), driver, callbacks=callbacks, **settings)
    trainer.world = World(clock=clock, timer=clock)
    trainer.on(Events.on_notice, lambda t, text: said.append(text))
    return trainer, clock, said


def logged(trainer: Trainer) -> list[tuple[int, dict[str, Any]]]:
    """What the loggers will have heard, with the batches that were counted by then."""
    heard: list[tuple[int, dict[str, Any]]] = []
    trainer.on(Events.on_log, lambda t, values: heard.append((t.global_forward_batches, values)))
    return heard


# -- Timer ---------------------------------------------------------------------------------------------------


def test_each_work_s_time_is_told_by_its_name() -> None:
    """K11, C4."""
    timer = Timer()
    trainer, clock, _ = timed(timer)
    trainer.run(num_eval_sanity_batch=0)
    assert timer.totals == {
        "fetch-data": 2 * 5 * 1.0,  # that there's none left takes a look too
        "forward": 8 * 2.0,
        "backward": 8 * 4.0,
        "optimize": 8 * 8.0,
        "evaluate": 2 * 16.0,
        "train": 10.0 + 8 * 14.0,
        "total": 10.0 + 8 * 14.0 + 32.0,
    }
    assert tuple(timer.totals) == TIMERS
    clock.now += 1000  # it has ended
    assert timer.totals["total"] == 154.0
    assert TimerCallback is Timer


@pytest.mark.parametrize(
    ("every", "lines"),
    [
        (
            -1,
            [
                "time of 1 epoch: fetch-data: 5.0s, forward: 8.0s, backward: 16.0s, optimize: 32.0s, evaluate: 16.0s, "
                "train: 61.0s, total: 77.0s"
            ]
            * 2,
        ),
        (
            -2,
            [
                "time of 2 epochs: fetch-data: 10.0s, forward: 16.0s, backward: 32.0s, optimize: 64.0s, "
                "evaluate: 32.0s, train: 122.0s, total: 154.0s"
            ],
        ),
        (
            4,
            [
                "time of 4 batches: fetch-data: 4.0s, forward: 8.0s, backward: 16.0s, optimize: 32.0s, train: 60.0s, "
                "total: 60.0s",
                "time of 4 batches: fetch-data: 5.0s, forward: 8.0s, backward: 16.0s, optimize: 32.0s, "
                "evaluate: 16.0s, train: 61.0s, total: 77.0s",
            ],
        ),
        (
            0,
            [
                "time of the run: fetch-data: 10.0s, forward: 16.0s, backward: 32.0s, optimize: 64.0s, "
                "evaluate: 32.0s, train: 122.0s, total: 154.0s"
            ],
        ),
    ],
)
def test_what_has_passed_since_it_was_said_last_is_said_every_n_batches_or_epochs_or_at_the_end(
    every: int, lines: list[str]
) -> None:
    """K11: a positive number counts batches, a negative one epochs, 0 means the end."""
    trainer, _, said = timed(Timer(every, time_ndigit=1))
    trainer.run()
    assert said == lines


def test_only_what_took_time_is_said_with_as_many_decimals_as_wanted() -> None:
    """K11."""
    trainer, _, said = timed(Timer(8, 2), costs={"train_step": 0.125})
    trainer.run()
    assert said == ["time of 8 batches: forward: 1.00s, train: 1.00s, total: 1.00s"]
    trainer, _, said = timed(Timer(1, 0), batches=1, n_epochs=1, costs={"train_step": 0.25})
    trainer.run()
    assert said == ["time of 1 batch: less than can be told"]


def test_after_an_error_or_a_stop_nothing_is_counted_any_more_and_the_end_is_said() -> None:
    """K11."""
    for act in (lambda trainer: trainer.stop("enough"), lambda trainer: 1 / 0):
        timer = Timer(0)
        trainer, clock, said = timed(timer)
        trainer.on(Events.on_train_batch_end(once=3), act)
        with contextlib.suppress(ZeroDivisionError):
            trainer.run()
        clock.now += 1000
        assert timer.totals["total"] == 3 * 15.0
        assert said[-1].endswith("total: 45.000s")


def test_what_is_under_way_counts_as_far_as_it_has_come() -> None:
    """K11: its `totals` can be read at any time."""
    timer = Timer()
    trainer, _, _ = timed(timer)
    seen: list[Any] = []
    trainer.on(Events.on_after_backward, lambda t: seen.append(timer.totals["backward"]))
    trainer.on(Events.on_before_backward, lambda t, outputs: seen.append(timer.totals["backward"]))
    trainer.run()
    assert seen == [float(4 * n) for n in (0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7, 8)]


@pytest.mark.parametrize("state", ["epoch_begin", "fetch", "step", "validate", "epoch_end"])
def test_resumed_in_any_state_it_counts_from_there(run_dir: Path, state: str) -> None:
    """K11: what remains of a straight run's time, whatever was under way."""
    first, clock, _ = timed(Timer(), run_dir=run_dir, snapshot_every=None)
    begun = [0.0]

    def save(trainer: Any) -> None:
        if trainer.trainer_state.cur_epoch_idx == (state != "epoch_end") and not begun[0]:
            trainer.request_snapshot()
            begun[0] = clock.now

    first.on(state, save)
    first.run()
    timer = Timer()
    again, _, _ = timed(timer, run_dir=run_dir, snapshot_every=None)
    taken = [s for s in catalogue(run_dir)[0] if s.about()["state"]["state"] == state]
    again.run(resume_from=taken[0].path)
    assert timer.totals["total"] == clock.now - begun[0]
    assert timer.totals["total"] == timer.totals["train"] + timer.totals["evaluate"]
    named = ("fetch-data", "forward", "backward", "optimize")
    assert timer.totals["train"] == sum(timer.totals[name] for name in named)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"print_every": 1.5}, "print_every must be an integer"),
        ({"print_every": True}, "print_every must be an integer"),
        ({"time_ndigit": -1}, "time_ndigit must be an integer >= 0, not -1"),
    ],
)
def test_a_timer_refuses_what_it_cannot_use(settings: Any, said: str) -> None:
    """K11."""
    with pytest.raises(CallerError, match=said):
        Timer(**settings)


# -- TimeLimit -----------------------------------------------------------------------------------------------

ONE = {"train_step": 1.0}  # a second a batch


def test_a_run_ends_after_the_batch_in_which_its_time_is_up() -> None:
    """C4."""
    trainer, _, _ = timed(TimeLimit(6), costs=ONE)
    end = trainer.run()
    assert (end.state, end.global_forward_batches) == ("done", 6)
    assert end.stop_asked == "TimeLimit: 6 seconds are over"


@pytest.mark.parametrize(("limit", "batches"), [("1s", 4), (4, 4), (4.5, 8), ("1min", 8)])
def test_a_run_ends_with_the_epoch_in_which_its_time_is_up(limit: Any, batches: int) -> None:
    """C4: its validation included."""
    trainer, _, _ = timed(TimeLimit(limit, at="epoch"), costs=ONE)
    end = trainer.run()
    assert (end.global_forward_batches, end.validations) == (batches, batches // 4)
    assert end.state == "done"


@pytest.mark.parametrize("at", ["batch", "epoch"])
def test_the_time_of_all_lives_counts_and_a_larger_limit_goes_on(run_dir: Path, at: str) -> None:
    """C4: a run whose time is up trains nothing; the chain is that of a run without a limit."""

    def life(limit: Any, where: Path = run_dir) -> tuple[int, Trainer]:
        trainer, _, _ = timed([] if limit is None else TimeLimit(limit, at), costs=ONE, n_epochs=3, run_dir=where)
        before = len(list(Journal(where))) if (where / "run.json").is_file() else 0
        end = trainer.run(resume_from="auto")
        assert before or end.seq
        return end.global_forward_batches, trainer

    assert life(3)[0] == (3 if at == "batch" else 4)
    assert life(3)[0] == (3 if at == "batch" else 4)
    assert life("7s")[0] == (7 if at == "batch" else 8)
    done, last = life("5min")
    assert done == 12
    assert last.journal.chain == life(None, run_dir.with_name("free"))[1].journal.chain  # type: ignore[union-attr]


def test_a_second_run_of_the_same_trainer_is_held_to_the_same_time() -> None:
    """C4, R61."""
    limit = TimeLimit(3)
    trainer, _, _ = timed(limit, costs=ONE)
    assert trainer.run().global_forward_batches == 3
    assert trainer.run().global_forward_batches == 3
    limit.seconds = 5
    assert trainer.run().global_forward_batches == 5


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((0,), "limit must be seconds > 0"),
        (("soon",), "limit must be seconds > 0"),
        ((None,), "limit must be seconds > 0 or a time such as '2h', not None: leave TimeLimit out"),
        (("2h", "step"), "at must be one of batch, epoch, not 'step'"),
    ],
)
def test_a_time_limit_refuses_what_it_cannot_use(arguments: Any, said: str) -> None:
    with pytest.raises(CallerError, match=said):
        TimeLimit(*arguments)


# -- the monitors --------------------------------------------------------------------------------------------


def test_throughput_is_samples_and_batches_a_second_without_the_evaluations() -> None:
    """C4."""
    trainer, _, _ = timed(ThroughputMonitor(2), batches=3, validate_every=1)
    heard = logged(trainer)
    trainer.run()
    ends = 1.0  # the third look for a batch of the first epoch
    assert [n for n, _ in heard] == [2, 4, 6]
    for (_, values), seconds in zip(heard, (30.0, 30.0 + ends, 30.0), strict=True):
        assert values == pytest.approx({"throughput/samples": 2 / seconds, "throughput/batches": 2 / seconds})


def test_throughput_after_a_resume_is_of_this_life_alone(run_dir: Path) -> None:
    """C4: and logged after the same batches."""
    first, _, _ = timed(ThroughputMonitor(2), n_epochs=None, n_batches=3, run_dir=run_dir)
    first.run()
    again, _, _ = timed(ThroughputMonitor(2), run_dir=run_dir)
    again.world.timer.now += 1e6  # type: ignore[attr-defined]
    heard = logged(again)
    again.run(resume_from="auto")
    assert [n for n, _ in heard] == [4, 6, 8]
    assert heard[0][1] == pytest.approx({"throughput/samples": 1 / 15, "throughput/batches": 1 / 15})


def test_where_no_time_passes_no_rate_is_made_up() -> None:
    trainer, _, _ = timed(ThroughputMonitor(1), costs={})
    heard = logged(trainer)
    trainer.run()
    assert heard == []


def test_memory_is_what_the_process_holds() -> None:
    """C4: of the size that a block of memory makes it grow by."""
    trainer, _, _ = timed(MemoryMonitor(2))
    heard = logged(trainer)
    held: list[Any] = []
    trainer.on(Events.on_train_batch_end(once=5), lambda t: held.append(torch.ones(64 << 18)))  # 64 MiB, really written
    trainer.run()
    assert [n for n, _ in heard] == [2, 4, 6, 8]
    before, after = heard[1][1]["memory/process"], heard[2][1]["memory/process"]
    assert 48 < after - before < 200
    assert set(heard[0][1]) == {"memory/process"}


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what is held now")
def test_where_the_system_tells_no_more_it_is_the_peak(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """C4."""
    now = process_bytes()
    monkeypatch.setattr("tachograph.engine.callbacks.memory._STATM", tmp_path / "none")
    assert process_bytes() >= now * 0.9


def test_the_memory_of_a_device_is_told_beside_it() -> None:
    """C4: nothing on the CPU."""

    class OnADevice(StubDriver):
        def memory(self) -> dict[str, int]:
            return {"allocated": 3 << 20, "peak": 5 << 20}

    trainer = stub(driver=OnADevice(), callbacks=MemoryMonitor(6))
    heard = logged(trainer)
    trainer.run()
    ((_, values),) = heard
    assert {name: values[name] for name in ("memory/allocated", "memory/peak")} == {
        "memory/allocated": 3.0,
        "memory/peak": 5.0,
    }
    assert measuring.memory(torch.device("cpu")) == {}


def test_learning_rates_are_named_by_their_number_where_there_are_several() -> None:
    """C4."""

    class Two(StubDriver):
        def learning_rates(self) -> list[float]:
            return [0.1, 0.2]

    for driver, names in ((StubDriver(), {"lr": 0.1}), (Two(), {"lr/0": 0.1, "lr/1": 0.2})):
        trainer = stub(driver=driver, callbacks=LRMonitor(4))
        heard = logged(trainer)
        trainer.run()
        assert heard == [(3, names)]


class Counted(StubDriver):
    """Counts what a monitor asks for."""

    asked = 0

    def learning_rates(self) -> list[float]:
        self.asked += 1
        return [0.1]

    def memory(self) -> dict[str, int]:
        self.asked += 1
        return {}


@pytest.mark.parametrize("make", [LRMonitor, MemoryMonitor])
def test_nothing_is_asked_for_where_nothing_is_logged(make: Any) -> None:
    """C4: neither between two values, nor where nobody listens."""
    for listening, every, asked in ((True, 3, 2), (True, 1, 6), (False, 1, 0)):
        driver = Counted()
        trainer = stub(driver=driver, callbacks=make(every))
        if listening:
            trainer.on(Events.on_log, lambda t, values: None)
        trainer.run()
        assert driver.asked == asked


@pytest.mark.parametrize("make", [LRMonitor, MemoryMonitor, ThroughputMonitor])
@pytest.mark.parametrize("every", [0, -1, 1.5, True])
def test_a_monitor_refuses_what_it_cannot_use(make: Any, every: Any) -> None:
    with pytest.raises(CallerError, match=f"every must be an integer >= 1, not {every!r}"):
        make(every)


MEASURING = (Timer, ThroughputMonitor, MemoryMonitor, LRMonitor, lambda: TimeLimit("2h"))


def test_measuring_changes_no_bit_of_a_run_and_is_added_and_left_out_at_will(tmp_path: Path) -> None:
    """C4, K11: none of them has a memory that a resume would miss."""

    def made() -> list[Callback]:
        return [make() for make in MEASURING]

    bare = Run(run_dir=tmp_path / "bare")
    bare.run()
    full = Run(callbacks=lambda run: made(), run_dir=tmp_path / "full")
    logged(full.trainer)
    full.run()
    assert equal(full.weights, bare.weights)
    assert full.chain == bare.chain
    for n, (before, after) in enumerate(itertools.product((made, list), repeat=2)):
        run_dir = tmp_path / str(n)
        Run(callbacks=lambda run, before=before: before(), run_dir=run_dir, n_epochs=1).run()
        again = Run(callbacks=lambda run, after=after: after(), run_dir=run_dir)
        again.run(resume_from="auto")
        assert equal(again.weights, bare.weights)
        assert again.chain == bare.chain
