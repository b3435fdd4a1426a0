"""`SpikeGuard`: what becomes of a loss far above those before it, and a judgement that a resume doesn't change."""

from __future__ import annotations

import math
import statistics
from pathlib import Path
from typing import Any

import pytest

from tachograph.drivers import StubDriver
from tachograph.engine import Events, Journal, NanGuard, SpikeGuard, Trainer
from tachograph.states import Stepped
from tachograph.states.errors import CallerError
from tests.toys import Run, equal, sides, stub

USUAL = [1.0, 1.2, 0.9, 1.1, 1.0, 0.8, 1.1, 1.0]
NAN, INF = math.nan, math.inf


def guarded(losses: list[float], guard: SpikeGuard | None = None, **settings: Any) -> tuple[Trainer, SpikeGuard]:
    """A run of one epoch whose n-th loss is the n-th of `losses`."""
    guard = SpikeGuard(window=4) if guard is None else guard
    driver = StubDriver(loss=lambda batch, n: losses[n])
    more = settings.pop("more", [])
    settings = {"n_epochs": 1, **settings}
    return stub(range(1, len(losses) + 1), driver, callbacks=[guard, *more], **settings), guard


def skipped(run_dir: Path) -> list[int]:
    """The batches, from 1, whose update was left out."""
    steps = [record for record in Journal(run_dir) if record.event == "Stepped"]
    return [n for n, record in enumerate(steps, 1) if record.data["skipped"]]


def test_an_update_of_a_loss_far_above_the_usual_is_left_out_counted_and_named(run_dir: Path) -> None:
    """C4: the journal has the true loss, and says which batch it was, of which samples, and what had been usual."""
    trainer, guard = guarded([*USUAL, 9.0, *USUAL], run_dir=run_dir)
    end = trainer.run()
    assert skipped(run_dir) == [9]
    assert (end.optimizer_steps, guard.count) == (16, 1)
    assert [r.data["loss"] for r in Journal(run_dir) if r.event == "Stepped"][8] == 9.0
    (noted,) = sides(run_dir, "noted")
    assert noted["text"] == (
        "SpikeGuard: the loss of batch 9 of the run (epoch 0, batch 8, samples [8]) is 9, where 1 is usual"
    )


@pytest.mark.parametrize("n", [1, 2, 3, 4])
def test_before_the_window_is_full_nothing_is_a_spike(run_dir: Path, n: int) -> None:
    """C4: the first losses of a run fall steeply, and there is nothing to hold them against."""
    losses = [*USUAL]
    losses[n - 1] = 1000.0
    assert guarded(losses, run_dir=run_dir)[0].run().optimizer_steps == 8


@pytest.mark.parametrize(("threshold", "least"), [(3.0, 1.0), (10.0, 3.0)])
def test_a_spike_is_so_many_deviations_above_the_median(run_dir: Path, threshold: float, least: float) -> None:
    """C4: by the formula, on both sides of the line; and never below the median."""
    window = USUAL[-6:]
    median = statistics.median(window)
    deviation = 1.4826 * statistics.median(abs(loss - median) for loss in window)
    for factor, spikes in ((1.001, 1), (0.999, 0), (-50.0, 0)):
        loss = median + factor * threshold * deviation
        trainer, guard = guarded([*window, loss], SpikeGuard(window=6, threshold=threshold))
        trainer.run()
        assert guard.count == spikes, factor


def test_losses_that_hardly_differ_make_no_spike_of_a_small_rise() -> None:
    """C4: the deviation counts as a hundredth of the median at least."""
    for loss, spikes in ((2.1, 0), (2.13, 1)):
        trainer, guard = guarded([2.0] * 8 + [loss])
        trainer.run()
        assert guard.count == spikes


def test_a_loss_that_stays_on_a_higher_level_is_the_usual_one_after_a_while() -> None:
    """C4: else a run would skip all its updates from there on."""
    trainer, guard = guarded([1.0] * 4 + [9.0] * 8)
    assert (trainer.run().optimizer_steps, guard.count) == (10, 2)


@pytest.mark.parametrize("odd", [NAN, INF, -INF])
def test_a_loss_that_is_not_finite_is_no_part_of_what_is_usual(run_dir: Path, odd: float) -> None:
    """C4, R45: another guard sees to it; this one's statistics are as if it had never been."""
    losses = [1.0, 1.2, odd, 0.9, odd, odd, 1.1, 9.0, 1.0, odd, 1.0]
    trainer, guard = guarded(losses, run_dir=run_dir)
    trainer.run()
    assert skipped(run_dir) == [8]
    assert guard.state_dict()["losses"] == [1.1, 9.0, 1.0, 1.0]


def test_two_guards_get_on_and_each_counts_its_own(run_dir: Path) -> None:
    """C4."""
    nan = NanGuard("skip")
    trainer, guard = guarded([*USUAL, NAN, 9.0, *USUAL], more=[nan], run_dir=run_dir)
    trainer.run()
    assert skipped(run_dir) == [9, 10]
    assert (nan.count, guard.count) == (1, 1)


def test_a_window_with_a_spike_in_it_is_left_out_whole_and_no_other(run_dir: Path) -> None:
    """C4: with accumulation."""
    losses = [1.0] * 6 + [9.0, 1.0, 1.0] + [1.0] * 6
    trainer, guard = guarded(losses, accumulation_steps=3, run_dir=run_dir)
    assert trainer.run().optimizer_steps == 4
    assert skipped(run_dir) == [9]
    assert guard.count == 1


# -- the policies --------------------------------------------------------------------------------------------


def test_a_warning_lets_the_update_through_and_comes_once(run_dir: Path) -> None:
    """C4: the notes name each."""
    trainer, guard = guarded([*USUAL, 9.0, *USUAL, 9.0], SpikeGuard("warn", window=4), run_dir=run_dir)
    with pytest.warns(UserWarning, match="batch 9 of the run .* is 9, where 1 is usual; the run goes on with it") as w:
        end = trainer.run()
    assert len(w) == 1
    assert (end.optimizer_steps, guard.count, len(sides(run_dir, "noted"))) == (18, 2, 2)


def test_a_stop_leaves_the_update_out_and_ends_the_run_with_the_reason(run_dir: Path) -> None:
    """C4: it can be gone on with."""
    losses = [*USUAL, 9.0, *USUAL]
    trainer, _ = guarded(losses, SpikeGuard("stop", window=4), run_dir=run_dir)
    end = trainer.run()
    assert (end.state, end.global_forward_batches, end.optimizer_steps) == ("done", 9, 8)
    assert end.stop_asked.startswith("SpikeGuard: the loss of batch 9 of the run")
    again, guard = guarded(losses, SpikeGuard("stop", window=4), run_dir=run_dir)
    end = again.run(resume_from="auto")
    assert (end.global_forward_batches, end.optimizer_steps, guard.count) == (17, 16, 1)


@pytest.mark.parametrize("policy", ["skip", "warn"])
@pytest.mark.filterwarnings("ignore:the loss of batch")
def test_so_many_spikes_in_a_row_stop_the_run(policy: str) -> None:
    """C4: a usual loss between them begins the row anew."""
    losses = [*USUAL, 9.0, 9.0, 1.0, 9.0, 30.0, 90.0, 1.0]
    trainer, guard = guarded(losses, SpikeGuard(policy, window=8, patience=3))
    end = trainer.run()
    assert (end.global_forward_batches, guard.count) == (14, 5)
    assert end.stop_asked.endswith("is 90, where 5.05 is usual; that makes 3 in a row")


def test_a_second_run_of_the_same_trainer_begins_the_row_anew() -> None:
    """C4, R61."""
    losses = [*USUAL, 9.0, 9.0, 9.0, 1.0, 1.0]
    trainer, guard = guarded(losses, SpikeGuard(window=8, patience=2))
    assert trainer.run().global_forward_batches == 10
    assert trainer.run().global_forward_batches == 13
    assert guard.count == 3


# -- over a resume -------------------------------------------------------------------------------------------

LOSSES = [*USUAL, 9.0, 1.0, 9.5, *USUAL, 20.0]


@pytest.mark.parametrize("n", range(1, 20))
def test_interrupted_after_any_batch_it_judges_as_in_the_straight_run(tmp_path: Path, n: int) -> None:
    """C4: the same updates are left out, the state and the chain are the same."""
    settings = {"accumulation_steps": 2, "n_epochs": 1}
    straight, expected = guarded(LOSSES, run_dir=tmp_path / "straight", **settings)
    end = straight.run()
    first, _ = guarded(LOSSES, run_dir=tmp_path / "run", **settings)
    first.on(Stepped, lambda t, event: t.global_forward_batches == n and t.stop("here"))
    first.run()
    again, guard = guarded(LOSSES, run_dir=tmp_path / "run", **settings)
    assert again.run(resume_from="auto") == end
    assert guard.state_dict() == expected.state_dict()
    assert again.journal.chain == straight.journal.chain  # type: ignore[union-attr]
    assert again.driver.weight == straight.driver.weight  # type: ignore[union-attr]


def test_a_guard_can_be_added_to_a_run_that_had_none_and_changed(run_dir: Path) -> None:
    """C4, R40: a smaller window keeps the last losses."""
    losses = [*USUAL, 9.0, *USUAL]
    bare = stub(range(1, 18), StubDriver(loss=lambda b, n: losses[n]), run_dir=run_dir, n_epochs=None, n_batches=2)
    bare.run()
    more, guard = guarded(losses, SpikeGuard(window=6), run_dir=run_dir, n_epochs=None, n_batches=8)
    more.run(resume_from="auto")
    assert guard.state_dict()["losses"] == USUAL[2:]
    last, guard = guarded(losses, SpikeGuard(window=4), run_dir=run_dir, n_epochs=1)
    said: list[str] = []
    last.on(Events.on_notice, lambda t, text: said.append(text))
    last.run(resume_from="auto")
    assert guard.count == 1
    assert "callbacks.SpikeGuard.window changed from 6 to 4" in said


def test_with_torch_a_skipped_spike_leaves_the_weights_as_they_were() -> None:
    """C4."""

    def spiking(run: Run) -> Any:
        return SpikeGuard(window=4)

    weights: list[Any] = []
    run = Run(callbacks=spiking, n=16, n_epochs=1)
    run.trainer._output_mapping = lambda outputs: {
        "loss": outputs["loss"] * (1000 if run.trainer.global_forward_batches == 5 else 1)
    }
    run.trainer.on(Stepped, lambda t, event: weights.append(run.weights))
    assert run.run().optimizer_steps == 7
    assert equal(weights[5], weights[4])
    assert not equal(weights[6], weights[5])


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"policy": "rewind"}, "policy must be one of skip, stop, warn, not 'rewind'"),
        ({"window": 1}, "window must be an integer >= 2, not 1"),
        ({"threshold": 0}, "threshold must be a number > 0, not 0"),
        ({"patience": 0}, "patience must be an integer >= 1 or None, not 0"),
    ],
)
def test_a_guard_refuses_what_it_cannot_use(settings: Any, said: str) -> None:
    with pytest.raises(CallerError) as caught:
        SpikeGuard(**settings)
    assert str(caught.value) == said
