"""`Warmup`, and the learning rate that a record tells: the one that was used, in every update and after any resume."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler as schedules
from torch.utils.data import DataLoader

from tachograph.drivers import StubDriver
from tachograph.engine import (
    Callback,
    Events,
    Journal,
    LRMonitor,
    LRSchedCallback,
    LRSchedule,
    TorchWarmupCallback,
    Trainer,
    Warmup,
)
from tachograph.engine.snapshots import catalogue
from tachograph.states import Stepped
from tachograph.states.errors import CallerError
from tests.toys import Indexed, Run, equal, sides, stub

RATE = 0.4


def warmed(warmup: Any = 0.25, schedule: str = "linear", **settings: Any) -> tuple[Run, list[float]]:
    """A run of four batches an epoch and three epochs, and the rate of each of its updates."""
    rates: list[float] = []
    more = settings.pop("more", lambda run: [])
    rate = settings.pop("lr", RATE)
    run = Run(
        callbacks=lambda run: [Warmup(warmup, schedule), *more(run)],
        optimizer=lambda p: torch.optim.SGD(p, lr=rate, momentum=0.9),
        **{"n": 8, "batch_size": 2, "n_epochs": 3, "snapshot_every": None, **settings},
    )
    run.trainer.on(
        Events.on_after_optimizer_step, lambda t, optimizers: rates.append(optimizers[0].param_groups[0]["lr"])
    )
    return run, rates


def stepped(run_dir: Path) -> list[list[float]]:
    """What the journal says was used, batch by batch."""
    return [record.data["lr"] for record in Journal(run_dir) if record.event == "Stepped"]


def by_torch(make: Callable[[Any], Any], n: int) -> list[float]:
    """The rates of n updates under a schedule of torch's."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=RATE)
    schedule, rates = make(optimizer), []
    for _ in range(n):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return rates


# -- the rates -----------------------------------------------------------------------------------------------


def up_then(then: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Torch's warmup of three updates, and another schedule from the third on."""
    return lambda o: schedules.SequentialLR(o, [schedules.LinearLR(o, 1 / 3, 1.0, 2), then(o)], [2])


@pytest.mark.parametrize("warmup", [0.25, 3])
@pytest.mark.parametrize(
    ("schedule", "then"),
    [
        ("constant", lambda o: schedules.ConstantLR(o, 1.0)),
        ("linear", lambda o: schedules.LinearLR(o, 1.0, 0.0, 9)),
        ("cosine", lambda o: schedules.CosineAnnealingLR(o, 9)),
    ],
)
def test_the_rate_rises_in_a_line_and_then_follows_the_schedule(warmup: Any, schedule: str, then: Any) -> None:
    """K7, C4: a part of the run or a number of batches; the same rates as torch's schedules make in a row."""
    run, rates = warmed(warmup, schedule)
    run.run()
    assert rates == pytest.approx(by_torch(up_then(then), 12), abs=1e-12)
    assert rates[2] == RATE


def test_the_rates_are_those_of_the_reference_trainer_s_formula() -> None:
    """K7: with the batches of the update in work counted, so that none is made with a rate of 0 at the beginning."""

    def factor(progress: float) -> float:
        return progress / 0.25 if progress < 0.25 else (progress - 1) / (0.25 - 1)

    run, rates = warmed(0.25, "linear")
    run.run()
    assert rates == pytest.approx([RATE * factor((n + 1) / 12) for n in range(12)])
    assert TorchWarmupCallback is Warmup
    assert (TorchWarmupCallback().warmup, TorchWarmupCallback().schedule) == (0.1, "linear")


@pytest.mark.parametrize(
    ("warmup", "schedule", "rates"),
    [
        (0, "constant", [1.0] * 12),
        (0.0, "linear", [(12 - n) / 12 for n in range(1, 13)]),
        (1.0, "linear", [n / 12 for n in range(1, 13)]),
        (1.0, "cosine", [n / 12 for n in range(1, 13)]),
        (48, "constant", [n / 48 for n in range(1, 13)]),
        (48, "linear", [n / 48 for n in range(1, 13)]),
    ],
)
def test_a_warmup_may_take_none_of_the_run_all_of_it_or_more(warmup: Any, schedule: str, rates: list[float]) -> None:
    """K7."""
    run, used = warmed(warmup, schedule)
    run.run()
    assert used == pytest.approx([RATE * factor for factor in rates])


def test_every_group_of_every_optimizer_has_its_own_full_rate() -> None:
    """K7."""
    model, used = nn.Linear(1, 1), []
    first = torch.optim.SGD([{"params": [model.weight], "lr": 0.4}, {"params": [], "lr": 0.2}], lr=1.0)
    second = torch.optim.Adam([model.bias], lr=torch.tensor(0.1))
    Fits = type("Fits", (nn.Module,), {"forward": lambda self, batch: {"loss": model(batch).sum()}})
    trainer = Trainer(
        Fits(),
        "torch",
        [torch.ones(1, 1)] * 4,
        [first, second],
        n_epochs=1,
        callbacks=Warmup(4),
        run_dir=None,
        progress_bar=None,
    )
    trainer.on(Stepped, lambda t, event: used.append(event.lr))
    trainer.run()
    assert used == [pytest.approx([0.4 * f, 0.2 * f, 0.1 * f]) for f in (0.25, 0.5, 0.75, 1.0)]
    assert isinstance(second.param_groups[0]["lr"], torch.Tensor)


def test_a_window_has_the_rate_of_the_batch_that_closes_it(run_dir: Path) -> None:
    """K7: the last, shorter window of each epoch too, whether its length was known or not."""
    run, rates = warmed(12, "constant", n=10, accumulation_steps=2, n_epochs=2, run_dir=run_dir)
    run.run()
    assert rates == pytest.approx([RATE * n / 12 for n in (2, 4, 5, 7, 9, 10)])

    class Unknown:
        def __iter__(self) -> Any:
            return iter(DataLoader(Indexed(10), batch_size=2))

    again, known = warmed(12, "constant", n=10, accumulation_steps=2, n_epochs=2)
    again.trainer.train_dataloader = Unknown()
    again.run()
    assert known == rates


def test_a_loop_of_one_s_own_has_the_same_rates() -> None:
    """K7: though the machine counts no batches of it."""

    class Loop:
        def run(self, trainer: Any, loader: Any) -> None:
            for batch in loader:
                trainer.backward(trainer.train_step(trainer.move_data_to_device(batch)))
                trainer.step()
                trainer.zero_grad()
                trainer.batch_idx_in_epoch += 1
                trainer.global_forward_batches += 1

    run, rates = warmed(0.25, "linear", loader={"shuffle": False})
    expected, straight = warmed(0.25, "linear")
    run.trainer.train_batch_loop = Loop()
    run.run()
    expected.run()
    assert rates == straight


def test_an_update_that_is_skipped_holds_nothing_up() -> None:
    """K7: the rate is that of the batch, whatever became of the updates before it."""

    class Skips(Callback):
        def on_before_optimizer_step(self, trainer: Any, optimizers: Any) -> None:
            if trainer.global_forward_batches in (1, 2):
                trainer.skip_update()

    run, rates = warmed(6, "constant", more=lambda run: [Skips()])
    assert run.run().optimizer_steps == 10
    assert rates == pytest.approx([RATE * min(n / 6, 1.0) for n in range(1, 13)])


def test_epochs_that_turn_out_longer_than_the_first_one_make_the_run_longer_and_that_is_said() -> None:
    """K7: from the next epoch on the rates lead to the new end."""

    class Grows:
        n = 4

        def __len__(self) -> int:
            return self.n

        def __iter__(self) -> Any:
            return iter(DataLoader(Indexed(2 * self.n), batch_size=2))

    run, rates = warmed(0.25, "linear")
    run.trainer.train_dataloader = loader = Grows()
    run.trainer.on("epoch_end", lambda trainer: setattr(loader, "n", 6))
    said: list[str] = []
    run.trainer.on(Events.on_notice, lambda t, text: said.append(text))
    assert run.run().total_batches == 16
    assert rates[:4] == pytest.approx([RATE * f for f in (1 / 3, 2 / 3, 1, 8 / 9)])
    assert rates[4:] == pytest.approx([RATE * (16 - n) / 12 for n in range(5, 17)])
    assert [text for text in said if text.startswith("Warmup: the run has 16 batches in all now, not 12")]


# -- what the record tells -----------------------------------------------------------------------------------


def test_the_record_tells_the_rate_that_was_used(run_dir: Path) -> None:
    """K7: and so does what is logged."""
    run, rates = warmed(0.25, "cosine", run_dir=run_dir, more=lambda run: [LRMonitor()])
    logged: list[Any] = []
    run.trainer.on(Events.on_log, lambda t, values: logged.append(values["lr"]))
    run.run()
    assert stepped(run_dir) == [[rate] for rate in rates]
    assert logged == rates


@pytest.mark.parametrize("step_on", ["update", "epoch"])
def test_under_a_schedule_the_record_tells_the_rate_that_was_used_and_not_the_next_one(
    run_dir: Path, step_on: str
) -> None:
    """K6, R10: a schedule moves right after the update, before the record is made."""
    used: list[float] = []
    run = Run(
        callbacks=lambda run: [LRSchedCallback(schedules.ExponentialLR(run.optimizer, 0.5), step_on), LRMonitor()],
        run_dir=run_dir,
        accumulation_steps=2,
        n=10,
    )
    logged: list[Any] = []
    run.trainer.on(Events.on_log, lambda t, values: logged.append(values["lr"]))
    run.trainer.on(
        Events.on_before_optimizer_step, lambda t, optimizers: used.append(optimizers[0].param_groups[0]["lr"])
    )
    run.run()
    closed = [r for r in Journal(run_dir) if r.event == "Stepped" and r.data["closed"]]
    assert [r.data["lr"] for r in closed] == [[rate] for rate in used]
    assert logged == used
    assert LRSchedCallback is LRSchedule


# -- over a resume -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("k", [1, 2])
@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_saved_after_any_transition_the_rates_go_on(tmp_path: Path, schedule: str, k: int) -> None:
    """K7, R10, R27: rates, weights and chain are those of the straight run."""
    settings = {"accumulation_steps": k, "n": 10, "n_epochs": 2}
    straight, expected = warmed(0.5, schedule, run_dir=tmp_path / "straight", **settings)
    for name in straight.trainer.machine.names:
        if name not in straight.trainer.machine.final:
            straight.trainer.on(name, lambda trainer: trainer.request_snapshot())
    end = straight.run()
    taken = catalogue(tmp_path / "straight")[0]
    for snapshot in taken:
        again, rates = warmed(0.5, schedule, run_dir=tmp_path / snapshot.path.name, **settings)
        assert again.run(resume_from=snapshot.path) == end
        done = snapshot.about()["state"]["optimizer_steps"]
        assert rates == expected[done:], snapshot.about()["state"]["state"]
        assert equal(again.weights, straight.weights)
        assert again.chain == straight.chain
    assert len(taken) > 20


@pytest.mark.parametrize("k", [1, 4, 5, 11])
def test_stopped_and_resumed_the_journal_is_that_of_the_straight_run(tmp_path: Path, k: int) -> None:
    """K7, R10, R27: where the limit is the same one."""
    straight, _ = warmed(run_dir=tmp_path / "straight")
    straight.run()
    first, _ = warmed(run_dir=tmp_path / "run")
    first.trainer.on(Events.on_train_batch_end(once=k), lambda trainer: trainer.stop("here"))
    first.run()
    again, _ = warmed(run_dir=tmp_path / "run")
    again.trainer.on(Events.on_train_batch_end(once=k), lambda trainer: None)
    again.run(resume_from="auto", strict=False)
    assert stepped(tmp_path / "run") == stepped(tmp_path / "straight")
    assert again.chain == straight.chain
    assert equal(again.weights, straight.weights)


def test_a_longer_run_is_warmed_up_as_such_from_there_on_and_that_is_said(run_dir: Path) -> None:
    """K7, R40: the total of now decides."""
    warmed(0.5, run_dir=run_dir, n_epochs=2)[0].run()
    again, rates = warmed(0.5, run_dir=run_dir, n_epochs=4)
    again.run(resume_from="auto")
    assert rates == pytest.approx([RATE * (16 - n) / 8 for n in range(9, 17)])
    said = [data["text"] for data in sides(run_dir, "noted")]
    assert said == [
        "Warmup: the run has 16 batches in all now, not 8: the next batch's learning rate is 0.875 of the full one"
    ]


def test_a_second_run_of_the_same_trainer_with_a_larger_limit_follows_it() -> None:
    """K7, R61."""
    run, rates = warmed(0.5, n_epochs=2)
    said: list[str] = []
    run.trainer.on(Events.on_notice, lambda t, text: said.append(text))
    run.run()
    run.trainer.n_epochs = 3
    run.run()
    assert rates[8:] == pytest.approx([RATE * (12 - n) / 6 for n in range(9, 13)])
    assert [text for text in said if text.startswith("Warmup: the run has 12 batches in all now, not 8")]


def test_a_rate_that_is_built_otherwise_at_a_resume_is_the_full_one_from_there_on(run_dir: Path) -> None:
    """K7, R40: not where the schedule had brought the old one."""
    first, _ = warmed(6, "constant", run_dir=run_dir)
    first.trainer.on(Events.on_train_batch_end, lambda t: t.stop("here") if t.global_forward_batches == 3 else None)
    first.run()
    again, rates = warmed(6, "constant", run_dir=run_dir, lr=0.1)
    said: list[str] = []
    again.trainer.on(Events.on_notice, lambda t, text: said.append(text))
    again.run(resume_from="auto")
    assert rates == pytest.approx([0.1 * min(n / 6, 1) for n in range(4, 13)])
    assert f"hyperparameters.lr changed from {RATE} to 0.1" in said


# -- what is refused -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"warmup": -1}, "warmup must be a part of the run from 0.0 to 1.0, or a number of batches, not -1"),
        ({"warmup": 1.5}, "warmup must be a part of the run from 0.0 to 1.0, or a number of batches, not 1.5"),
        ({"warmup": math.nan}, "warmup must be a part of the run from 0.0 to 1.0, or a number of batches, not nan"),
        ({"warmup": True}, "warmup must be a part of the run from 0.0 to 1.0, or a number of batches, not True"),
        ({"schedule": "cos"}, "schedule must be one of linear, constant, cosine, not 'cos'"),
    ],
)
def test_a_warmup_refuses_what_it_cannot_use(settings: Any, said: str) -> None:
    """K7."""
    with pytest.raises(CallerError) as caught:
        Warmup(**settings)
    assert str(caught.value) == said


@pytest.mark.parametrize(("warmup", "schedule"), [(0.1, "constant"), (3, "linear"), (3, "cosine")])
def test_where_the_run_s_length_is_needed_and_not_known_that_is_refused_before_it_begins(
    warmup: Any, schedule: str
) -> None:
    """K7."""
    unknown = StubDriver(known_length=False)
    with pytest.raises(CallerError, match=r"needs to know how many batches the run has, and train_dataloader doesn't"):
        stub(driver=unknown, callbacks=Warmup(warmup, schedule))
    with pytest.raises(CallerError, match="the run has no limit in epochs or batches: give n_batches, or"):
        stub(callbacks=Warmup(warmup, schedule), n_epochs=None, max_time="1h").run()


def test_where_the_run_s_length_is_not_needed_or_given_in_batches_it_need_not_be_known() -> None:
    """K7."""
    for callback, limit in ((Warmup(3, "constant"), {"n_epochs": 1}), (Warmup(0.5, "linear"), {"n_batches": 3})):
        end = stub(driver=StubDriver(known_length=False), callbacks=callback, **limit).run()
        assert end.global_forward_batches == 3


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize(
    "other",
    [
        lambda run: LRSchedule(schedules.StepLR(run.optimizer, 1)),
        lambda run: LRSchedule(schedules.ReduceLROnPlateau(run.optimizer), "plateau", monitor="loss"),
        lambda run: Warmup(),
    ],
)
def test_two_that_would_set_the_rates_of_one_optimizer_are_refused(other: Any, late: bool) -> None:
    """K6, K7: whichever was given first, and one that is added later too."""
    said = "would both set the learning rates of one optimizer"
    if late:
        run, _ = warmed()

        def add_and_run() -> None:
            run.trainer.add_callback(other(run))
            run.run()

        with pytest.raises(CallerError, match=said):
            add_and_run()
        return
    for order in (1, -1):
        with pytest.raises(CallerError, match=said):
            Run(callbacks=lambda run, order=order: [Warmup(), other(run)][::order])
