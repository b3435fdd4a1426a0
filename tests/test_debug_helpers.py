"""What helps to debug a run: overfitting, a quick pass, limits, the least epochs, what torch is to watch."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from tachograph.drivers import Driver, StubDriver
from tachograph.engine import (
    Callback,
    Checkpoint,
    CSVLogger,
    EarlyStopping,
    Events,
    Journal,
    LoadBestModel,
    Profiler,
    Progress,
    Trainer,
)
from tachograph.engine.recording import SettingsChanged
from tachograph.states.errors import CallerError
from tests.toys import Indexed, Mean, Run, Sum, equal, sides, stop_at, stub, validated


class Notices(Callback):
    """Keeps the sentences that a run has for a person."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def on_notice(self, trainer: Any, text: str) -> None:
        self.said.append(text)


def ids(run_dir: Path) -> list[int]:
    return [record.data["ids"] for record in Journal(run_dir) if record.event == "Fetched"]


# -- overfitting a few batches -----------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
def test_the_same_batches_are_trained_on_in_every_epoch_in_the_same_order(tmp_path: Path, workers: int) -> None:
    """T19."""
    run = Run(overfit_batches=2, n_epochs=3, loader={"num_workers": workers}, run_dir=tmp_path / "run")
    end = run.run()
    assert (end.cur_epoch_idx, end.global_forward_batches) == (3, 6)
    assert run.model.seen[0:2] == run.model.seen[2:4] == run.model.seen[4:6]
    found = ids(tmp_path / "run")
    assert found[0:2] == found[2:4] == found[4:6]
    other = Run(n_epochs=1, loader={"num_workers": workers})
    other.run(num_train_batch_per_epoch=2)
    assert run.model.seen[:2] == other.model.seen  # they're the first ones of the first epoch


def test_what_is_drawn_for_a_sample_is_drawn_once_and_a_step_cannot_change_it_for_the_next_epoch() -> None:
    """T19: the batches are kept, with their noise."""
    given: list[torch.Tensor] = []

    def step(trainer: Any, batch: Any) -> None:
        given.append(batch["x"].clone())
        Trainer._default_step(trainer, batch)
        batch["x"].zero_()

    run = Run(overfit_batches=2, n_epochs=2, noise=True, batch_step_fn=step)
    run.run()
    assert equal(given[:2], given[2:])
    assert len(run.data.reads) < 3 * run.data.n  # they're read once


@pytest.mark.parametrize("at", [1, 2, 3])
def test_overfitting_is_exact_over_a_resume(tmp_path: Path, at: int) -> None:
    """T19, with shuffle, noise, dropout and accumulation: killed after any batch it ends as if it hadn't been."""
    how: dict[str, Any] = {"overfit_batches": 2, "n_epochs": 3, "accumulation_steps": 2}
    straight = Run(run_dir=tmp_path / "straight", **how)
    straight.run()
    first = Run(run_dir=tmp_path / "run", **how)
    stop_at(Events.on_train_batch_end, at)(first.trainer)
    first.run()
    second = Run(run_dir=tmp_path / "run", **how)
    second.run(resume_from="auto")
    assert second.chain == straight.chain
    assert equal(second.weights, straight.weights)


class Stream(IterableDataset[Any]):
    """Samples in their order; each iteration goes on where the last one was left, as a stream does."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Iterator[Any]:
        while True:
            self.at += 1
            yield {"id": torch.tensor(self.at), "x": torch.full((4,), self.at / 9), "y": torch.tensor(1.0)}

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


def streamed(run_dir: Path | None, **settings: Any) -> tuple[Any, Trainer]:
    run = Run(run_dir=None)
    given = {"n_epochs": 3, "run_dir": run_dir, "seed": 7, "progress_bar": None, **settings}
    return run, Trainer(run.model, "torch", DataLoader(Stream(), 2), run.optimizer, **given)


def test_a_stream_is_overfitted_on_its_first_batches_too(tmp_path: Path) -> None:
    """T19: of data that goes on from epoch to epoch, the first batches are kept; exact over a resume."""
    run, trainer = streamed(tmp_path / "straight", overfit_batches=3)
    trainer.run()
    assert run.model.seen == [[1, 2], [3, 4], [5, 6]] * 3
    first, stopped = streamed(tmp_path / "run", overfit_batches=3)
    stop_at(Events.on_train_batch_end, 4)(stopped)
    stopped.run()
    second, resumed = streamed(tmp_path / "run", overfit_batches=3)
    resumed.run(resume_from="auto")
    assert first.model.seen + second.model.seen == run.model.seen
    assert resumed.journal is not None
    assert trainer.journal is not None
    assert resumed.journal.chain == trainer.journal.chain


def test_a_second_run_of_the_same_trainer_goes_on_with_the_batches_that_are_kept() -> None:
    """T19."""
    run, trainer = streamed(None, overfit_batches=2, n_epochs=1)
    trainer.run()
    trainer.n_epochs = 2
    trainer.run()
    assert run.model.seen == [[1, 2], [3, 4]] * 2


def test_minus_one_keeps_the_whole_first_epoch() -> None:
    """T19."""
    run = Run(overfit_batches=-1, n_epochs=2)
    assert run.run().global_forward_batches == 12
    assert run.model.seen[:6] == run.model.seen[6:]


def test_more_batches_than_there_are_is_a_warning(tmp_path: Path) -> None:
    """T19."""
    run = Run(overfit_batches=9, run_dir=tmp_path / "run")
    with pytest.warns(UserWarning, match="overfit_batches=9, but the training loader makes 6: all are used"):
        assert run.run().global_forward_batches == 12
    assert [data["text"] for data in sides(tmp_path / "run", "noted")] == [
        "overfit_batches=9, but the training loader makes 6: all are used"
    ]


def test_a_limit_of_an_epoch_takes_some_of_the_batches_that_are_kept() -> None:
    """T19."""
    run = Run(overfit_batches=3)
    assert run.run(num_train_batch_per_epoch=2).global_forward_batches == 4
    assert run.model.seen[:2] == run.model.seen[2:]


@pytest.mark.parametrize("loaders", [None, {"val": DataLoader(Indexed(4), 2), "other": DataLoader(Indexed(4), 2)}])
def test_what_is_trained_on_is_what_is_validated_on(loaders: Any) -> None:
    """T19: under the names of the loaders that were given, so that monitors go on finding their results."""
    seen: dict[str, list[list[int]]] = {"train": [], "validate": []}

    def validate(evaluator: Any, batch: Any) -> None:
        seen["validate"].append(batch["id"].tolist())
        evaluator.update(batch, evaluator.evaluate_step(batch))

    run = Run(
        overfit_batches=2,
        n_epochs=1,
        metrics={"loss": Mean()},
        validate_dataloaders=loaders,
        validate_batch_step_fn=validate,
    )
    end = run.run(num_eval_sanity_batch=0)
    times = 1 if loaders is None else 2
    assert seen["validate"] == run.model.seen * times
    assert set(end.results) == ({"loss"} if loaders is None else {"loss#val", "loss#other"})


@pytest.mark.parametrize("sanity", [0, 1])
def test_validating_on_what_is_trained_on_does_not_move_training(tmp_path: Path, sanity: int) -> None:
    """T19: the sanity check may be the first to read the batches."""
    plain = Run(overfit_batches=2)
    plain.run()
    run = Run(overfit_batches=2, metrics={"loss": Mean()})
    run.trainer.validate()
    run.run(num_eval_sanity_batch=sanity)
    assert equal(plain.weights, run.weights)
    assert plain.generators == run.generators


def test_a_loop_of_ones_own_is_given_the_batches_that_are_kept() -> None:
    """T19."""

    class Loop:
        def run(self, trainer: Any, train_dataloader: Any) -> None:
            for batch in train_dataloader:
                Trainer._default_step(trainer, batch)
                trainer.batch_idx_in_epoch += 1
                trainer.global_forward_batches += 1

    usual, run = Run(overfit_batches=2), Run(overfit_batches=2)
    usual.run()
    run.trainer.train_batch_loop = Loop()
    assert run.run().global_forward_batches == 4
    assert run.model.seen == usual.model.seen


def test_overfitting_is_fixed_for_a_run(tmp_path: Path) -> None:
    """T19: a resume with another number is refused, and nothing is changed."""
    run = Run(run_dir=tmp_path / "run", overfit_batches=2, n_epochs=1)
    run.run()
    with pytest.raises(SettingsChanged, match="overfit_batches is 2, this trainer's 0"):
        Run(run_dir=tmp_path / "run").run(resume_from="auto")


# -- a quick pass ------------------------------------------------------------------------------------------


class Logger(Callback):
    """Writes to the outside."""

    outside_effects = True

    def __init__(self) -> None:
        self.lines: list[int] = []

    def on_train_batch_end(self, trainer: Any) -> None:
        self.lines.append(trainer.global_forward_batches)


@pytest.mark.parametrize(("given", "batches"), [(True, 1), (2, 2)])
def test_a_quick_pass_is_one_epoch_of_a_few_batches_of_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: Any, batches: int
) -> None:
    """C8: training, validation and sanity check alike; nothing is written, and it says so."""
    monkeypatch.chdir(tmp_path)
    notices, logger, evaluated = Notices(), Logger(), []
    left_out = [CSVLogger(), Checkpoint(last=True), LoadBestModel("sum#score", save_folder="best"), Profiler()]
    trainer = stub(
        range(1, 9),
        n_epochs=7,
        n_batches=40,
        fast_dev_run=given,
        run_dir="auto",
        snapshot_every=1,
        keep_snapshots=3,
        validate_every=5,
        metrics={"score": Sum()},
        validate_dataloaders=list(range(1, 7)),
        validate_batch_step_fn=lambda evaluator, batch: evaluated.append(batch),
        callbacks=[notices, logger, *left_out],
    )
    end = trainer.run()
    assert (end.state, end.cur_epoch_idx, end.global_forward_batches, end.validations) == ("done", 1, batches, 1)
    assert evaluated == [*range(1, batches + 1)] * 2
    assert trainer.run_dir is None
    assert list(tmp_path.iterdir()) == []
    assert logger.lines == []
    assert [text for text in notices.said if "fast_dev_run" in text] == [
        f"fast_dev_run: one epoch of {batches} batch{'es' if batches > 1 else ''}, of training, validation and sanity "
        "check alike; run_dir and resume_from are ignored, and callbacks that would leave something behind hear nothing"
    ]


def held_in(folder: Path) -> dict[str, bytes | None]:
    """All files and folders below one, with every byte."""
    return {str(p.relative_to(folder)): p.read_bytes() if p.is_file() else None for p in sorted(folder.rglob("*"))}


def script(run_dir: Path | None, **settings: Any) -> Run:
    """A user's script: a run with validation, a snapshot after every second batch, and a logger."""
    return Run(
        run_dir=run_dir,
        n_epochs=3,
        snapshot_every=2,
        metrics={"loss": Mean()},
        validate_dataloaders=DataLoader(Indexed(8), 2),
        callbacks=lambda run: [CSVLogger(), EarlyStopping("loss", larger_better=False)],
        **settings,
    )


RESUMED: dict[str, Callable[[Path], Any]] = {
    "auto": lambda run_dir: "auto",
    "the run": lambda run_dir: run_dir,
    "a snapshot": lambda run_dir: sorted((run_dir / "snapshots").iterdir())[0],
    "nothing": lambda run_dir: None,
}


@pytest.mark.parametrize("resumed", RESUMED)
@pytest.mark.parametrize("at", [3, None], ids=["stopped", "done"])
def test_a_quick_pass_in_a_script_that_resumes_trains_and_leaves_the_run_there_byte_for_byte(
    tmp_path: Path, resumed: str, at: int | None
) -> None:
    """C8: whatever the run was at, and the script goes on from it afterwards as if nothing had been."""
    straight = script(tmp_path / "straight")
    straight.run()
    first = script(tmp_path / "run")
    if at is not None:
        stop_at(Events.on_train_batch_end, at)(first.trainer)
    first.run()
    before = held_in(tmp_path)
    quick = script(tmp_path / "run", fast_dev_run=2)
    end = quick.run(resume_from=RESUMED[resumed](tmp_path / "run"))
    assert (end.state, end.cur_epoch_idx, end.global_forward_batches, end.validations) == ("done", 1, 2, 1)
    assert quick.trainer.run_dir is None
    assert quick.trainer.journal is None
    assert not equal(quick.weights, Run().weights), "it doesn't train"
    assert held_in(tmp_path) == before
    second = script(tmp_path / "run")
    second.run(resume_from="auto")
    assert second.chain == straight.chain
    assert equal(second.weights, straight.weights)


def test_a_quick_pass_that_comes_first_leaves_no_run_that_the_script_would_take_for_its_own(tmp_path: Path) -> None:
    """C8."""
    straight = script(tmp_path / "straight")
    straight.run()
    before = held_in(tmp_path)
    script(tmp_path / "run", fast_dev_run=True).run(resume_from="auto")
    assert held_in(tmp_path) == before
    run = script(tmp_path / "run")
    run.run(resume_from="auto")
    assert run.chain == straight.chain


@pytest.mark.parametrize("run_dir", [None, "auto"])
def test_a_quick_pass_needs_no_run_directory_for_a_resume_that_it_ignores(run_dir: Any) -> None:
    """C8: what a script without fast_dev_run has to give is its own affair."""
    assert stub(fast_dev_run=True, run_dir=run_dir).run(resume_from="auto").global_forward_batches == 1


def test_a_quick_pass_does_not_go_on_from_what_was_loaded(tmp_path: Path) -> None:
    """C8: the weights are there, and it is trained on from them."""
    first = Run()
    first.run()
    first.trainer.save(tmp_path / "saved")
    before = held_in(tmp_path)
    quick = Run(fast_dev_run=True)
    quick.trainer.load(tmp_path / "saved")
    assert equal(quick.weights, first.weights)
    assert quick.run().global_forward_batches == 1
    assert held_in(tmp_path) == before


def test_an_error_or_a_signal_in_a_quick_pass_leaves_nothing_behind_either(tmp_path: Path) -> None:
    """C8: without it, a run takes a snapshot then."""
    for error in (ValueError, KeyboardInterrupt):

        def fail(trainer: Any, error: Any = error) -> None:
            trainer.request_snapshot()
            raise error

        trainer = stub(fast_dev_run=True, run_dir=tmp_path / "run")
        trainer.on(Events.on_train_batch_end, fail)
        with pytest.raises(error):
            trainer.run(resume_from="auto")
    trainer = stub(fast_dev_run=True, run_dir=tmp_path / "run")
    trainer.on(Events.on_train_batch_end, lambda trainer: trainer.interrupt(signal.SIGTERM))
    with pytest.raises(SystemExit):
        trainer.run()
    assert list(tmp_path.iterdir()) == []


def test_no_limit_makes_a_quick_pass_longer_or_shorter() -> None:
    """C8: neither run()'s nor one of the time; a sanity check that was left out stays so."""
    evaluated: list[int] = []
    trainer = stub(
        range(9),
        fast_dev_run=3,
        max_time=1e-9,
        limit_train_batches=5,
        metrics={"score": Sum()},
        validate_dataloaders=list(range(9)),
        validate_batch_step_fn=lambda evaluator, batch: evaluated.append(batch),
    )
    end = trainer.run(num_train_batch_per_epoch=7, num_eval_batch_per_dl=7, num_eval_sanity_batch=0)
    assert (end.global_forward_batches, evaluated) == (3, [0, 1, 2])


def test_a_callback_that_is_added_later_is_left_out_of_a_quick_pass_too() -> None:
    """C8."""
    logger, notices = Logger(), Notices()
    trainer = stub(fast_dev_run=True)
    trainer.add_callback(logger)
    trainer.add_callback(notices)
    with pytest.raises(CallerError):
        trainer.add_callback(lambda trainer: None)  # type: ignore[arg-type]
    trainer.run()
    assert logger.lines == []
    assert notices.said


def test_progress_that_goes_into_a_file_is_left_out_of_a_quick_pass(tmp_path: Path) -> None:
    """C8: the file may be that of a run; an open one, and a terminal, are written to."""
    opened, path = io.StringIO(), tmp_path / "progress.jsonl"
    path.write_text("of a run\n")
    stub(fast_dev_run=True, callbacks=[Progress("json", file=path), Progress("plain", file=opened)]).run()
    assert path.read_text() == "of a run\n"
    assert "epoch 1/1" in opened.getvalue()


@pytest.mark.parametrize("off", [False, 0])
def test_no_quick_pass_changes_nothing(off: Any) -> None:
    """C8."""
    assert stub(fast_dev_run=off).run().global_forward_batches == 6


# -- limits ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "told", "batches"),
    [(4, {}, 4), (0.5, {}, 5), (0.01, {}, 1), (1.0, {}, 10), (None, {}, 10), (4, {"num_train_batch_per_epoch": 2}, 2)],
)
def test_a_limit_of_training_batches_is_a_default_that_run_overrides(limit: Any, told: Any, batches: int) -> None:
    """C8: a number, or a fraction of the loader's length, of which one batch at least is used."""
    trainer = stub(range(10), n_epochs=1, limit_train_batches=limit)
    assert trainer.run(**told).global_forward_batches == batches


@pytest.mark.parametrize(
    ("limit", "told", "seen"),
    [(2, {}, {"a": 2, "b": 2}), (0.5, {}, {"a": 2, "b": 3}), (0.5, {"num_eval_batch_per_dl": 1}, {"a": 1, "b": 1})],
)
def test_a_limit_of_validation_batches_is_taken_of_every_loader(limit: Any, told: Any, seen: dict[str, int]) -> None:
    """C8."""
    loaders = {"a": [1] * 4, "b": [1] * 6}
    trainer = stub(
        n_epochs=1,
        metrics={"score": Sum()},
        validate_dataloaders=loaders,
        limit_validate_batches=limit,
        output_mapping={},
    )
    end = trainer.run(num_eval_sanity_batch=0, **told)
    assert {name: end.results[f"n#score#{name}"] for name in loaders} == seen


def test_a_fraction_of_a_length_that_nobody_knows_is_refused() -> None:
    """C8."""
    _run, trainer = streamed(None, limit_train_batches=0.5)
    with pytest.raises(CallerError, match=r"limit_train_batches=0.5 is a fraction, and train_dataloader, a DataLoader"):
        trainer.run()
    assert trainer.trainer_state.seq == 0


def test_the_limits_are_recorded_as_what_they_come_to(tmp_path: Path) -> None:
    """C8: a limit that is a default is kept as one that was given to run()."""
    trainer = stub(range(10), n_epochs=1, limit_train_batches=0.3, run_dir=tmp_path / "run")
    trainer.run()
    assert json.loads((tmp_path / "run" / "run.json").read_text())["settings"]["num_train_batch_per_epoch"] == 3


# -- the least epochs --------------------------------------------------------------------------------------


def test_a_stop_that_is_asked_for_too_early_waits_and_is_said_once() -> None:
    """C1: min_epochs."""
    notices = Notices()
    trainer = stub(n_epochs=9, min_epochs=2, callbacks=notices)
    trainer.on(Events.on_train_batch_end, lambda trainer: trainer.stop("enough"))
    end = trainer.run()
    assert (end.state, end.cur_epoch_idx, end.global_forward_batches, end.stop_asked) == ("done", 2, 6, "enough")
    assert [text for text in notices.said if "min_epochs" in text] == [
        "min_epochs=2: the run goes on until then (enough)"
    ]


def test_a_stop_that_is_asked_for_late_enough_is_heeded_at_once() -> None:
    """C1."""
    trainer = stub(n_epochs=9, min_epochs=1)
    stop_at(Events.on_train_batch_end, 4)(trainer)
    end = trainer.run()
    assert (end.cur_epoch_idx, end.batch_idx_in_epoch) == (1, 1)


def test_early_stopping_waits_for_the_least_epochs() -> None:
    """C1: at the end of the last of them it stops as it does without."""
    scores = [3.0, 2.0, 1.0, 0.5, 0.2, 0.1]
    for least, epochs in [(0, 2), (2, 2), (4, 4)]:
        trainer = validated(scores, min_epochs=least, callbacks=EarlyStopping("score", patience=1))
        assert trainer.run().cur_epoch_idx == epochs
    for least in (0, 2):
        trainer = validated(scores, min_epochs=least, callbacks=EarlyStopping("score", patience=1))
        heard: list[str] = []
        trainer.on("epoch_end -> done", lambda trainer, heard=heard: heard.append("decided at the epoch's end"))
        trainer.run()
        assert heard


@pytest.mark.parametrize("kill_at", [4, 7])
def test_a_stop_that_waits_is_not_forgotten_over_a_resume(tmp_path: Path, kill_at: int) -> None:
    """C1: killed before and after the wish, it ends where the straight run does, and says it once."""

    class Once(Callback):
        def on_train_batch_end(self, trainer: Any) -> None:
            if trainer.global_forward_batches == 5:
                trainer.stop("enough")

    def build(run_dir: Path) -> tuple[Notices, Trainer]:
        notices = Notices()
        return notices, stub(n_epochs=9, min_epochs=4, run_dir=run_dir, snapshot_every=1, callbacks=[Once(), notices])

    _, straight = build(tmp_path / "straight")
    straight.run()
    first, trainer = build(tmp_path / "run")

    class Killed(BaseException):
        pass

    def kill(trainer: Any) -> None:
        if trainer.global_forward_batches == kill_at:
            raise Killed

    trainer.on(Events.on_fetch_data_begin, kill)
    with pytest.raises(Killed):
        trainer.run()
    second, trainer = build(tmp_path / "run")
    end = trainer.run(resume_from="auto")
    assert (end.cur_epoch_idx, end.stop_asked) == (4, "enough")
    assert Journal(tmp_path / "run").chain == Journal(tmp_path / "straight").chain
    assert len([text for text in first.said + second.said if "min_epochs" in text]) == 1


def test_signals_limits_and_errors_do_not_wait_for_the_least_epochs() -> None:
    """C1."""
    signalled = stub(n_epochs=9, min_epochs=5)
    signalled.on(Events.on_train_batch_end(once=2), lambda trainer: trainer.interrupt(signal.SIGTERM))
    with pytest.raises(SystemExit):
        signalled.run()
    assert signalled.global_forward_batches == 2

    failing = stub(n_epochs=9, min_epochs=5)
    failing.on(Events.on_train_batch_end(once=2), lambda trainer: {}["nothing"])
    with pytest.raises(KeyError):
        failing.run()
    assert stub(n_batches=4, min_epochs=5).run().global_forward_batches == 4


def test_a_limit_that_is_lowered_below_the_batch_in_hand_does_not_wait(tmp_path: Path) -> None:
    """C1."""
    trainer = stub(n_epochs=9, min_epochs=5, run_dir=tmp_path / "run")
    trainer.on("fetch -> step", lambda trainer: trainer.global_forward_batches == 2 and trainer.interrupt(15))
    with pytest.raises(SystemExit):
        trainer.run()
    second = stub(n_batches=2, min_epochs=5, run_dir=tmp_path / "run")
    assert second.run(resume_from="auto").global_forward_batches == 2


def test_fewer_least_epochs_at_a_resume_let_the_wish_through(tmp_path: Path) -> None:
    """C1: min_epochs may be changed, and is recorded."""
    trainer = stub(n_epochs=9, min_epochs=6, run_dir=tmp_path / "run", snapshot_every=1)
    stop_at(Events.on_train_batch_end, 2, "enough")(trainer)
    trainer.on(
        Events.on_train_batch_end, lambda trainer: trainer.global_forward_batches == 10 and trainer.interrupt(15)
    )
    with pytest.raises(SystemExit):
        trainer.run()
    second = stub(n_epochs=9, min_epochs=3, run_dir=tmp_path / "run", snapshot_every=1)
    end = second.run(resume_from="auto")
    assert (end.global_forward_batches, end.stop_asked) == (10, "enough")
    (resumed,) = sides(tmp_path / "run", "resumed")
    assert resumed["changed"] == {"callbacks.MinEpochs.min_epochs": [6, 3]}


# -- what torch is to watch --------------------------------------------------------------------------------


def flags() -> tuple[Any, ...]:
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.backends.cudnn.deterministic,
        torch.backends.cudnn.benchmark,
        torch.is_anomaly_enabled(),
    )


@pytest.mark.parametrize(
    ("given", "during"),
    [
        ({"deterministic": True}, (True, False, True, False, False)),
        ({"deterministic": "warn"}, (True, True, True, False, False)),
        ({"detect_anomaly": True}, (False, False, False, False, True)),
    ],
)
@pytest.mark.parametrize("fails", [False, True])
def test_what_torch_is_to_watch_holds_during_the_run_and_is_put_back(given: Any, during: Any, fails: bool) -> None:
    """C8: also when the run fails."""
    before, seen = flags(), []
    run = Run(n_epochs=1, **given)
    assert flags() == before

    def look(trainer: Any) -> None:
        seen.append(flags())
        if fails:
            raise LookupError

    run.trainer.on(Events.on_train_batch_end(once=1), look)
    if fails:
        with pytest.raises(LookupError):
            run.run()
    else:
        run.run()
    assert seen == [during]
    assert flags() == before


def test_what_torch_watched_is_told_in_the_environment_of_the_run(tmp_path: Path) -> None:
    """C8: and a resume without it says so."""
    Run(n_epochs=1, run_dir=tmp_path / "run", deterministic="warn", detect_anomaly=True).run()
    told = json.loads((tmp_path / "run" / "run.json").read_text())["environment"]
    assert told["deterministic_algorithms"]
    assert told["deterministic_warn_only"]
    assert told["cudnn_deterministic"]
    assert told["detect_anomaly"]
    Run(n_epochs=2, run_dir=tmp_path / "run").run(resume_from="auto")
    (resumed,) = sides(tmp_path / "run", "resumed")
    assert resumed["changed"]["environment.deterministic_algorithms"] == [True, False]
    assert resumed["changed"]["environment.detect_anomaly"] == [True, None]


def test_an_operation_without_a_deterministic_algorithm_is_an_error_or_a_warning() -> None:
    """C8."""

    def step(trainer: Any, batch: Any) -> None:
        torch.zeros(4).put_(torch.tensor([0]), torch.tensor([1.0]), accumulate=False)
        Trainer._default_step(trainer, batch)

    with pytest.raises(RuntimeError, match="does not have a deterministic implementation"):
        Run(n_epochs=1, deterministic=True, batch_step_fn=step).run()
    with pytest.warns(UserWarning, match="does not have a deterministic implementation"):
        Run(n_epochs=1, deterministic="warn", batch_step_fn=step).run()


class Rooted(nn.Linear):
    """Its backward pass makes a NaN, and its loss is a number."""

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:  # type: ignore[override]
        return {"loss": (super().forward(x) * 0).sqrt().sum() * 0}


@pytest.mark.filterwarnings("ignore:Error detected in")
def test_a_backward_pass_that_makes_a_nan_is_an_error_with_our_note() -> None:
    """C8: without detect_anomaly nobody notices."""

    def build(**settings: Any) -> Trainer:
        model = Rooted(4, 1)
        given = {"n_epochs": 1, "run_dir": None, "progress_bar": None, **settings}
        return Trainer(model, "torch", DataLoader(Indexed(4), 2), torch.optim.SGD(model.parameters(), 0.1), **given)

    build().run()
    trainer = build(detect_anomaly=True)
    with pytest.raises(RuntimeError, match="returned nan values") as caught:
        trainer.run()
    assert any("in state 'step', epoch 0, batch 0" in note for note in caught.value.__notes__)


def test_watching_does_not_change_a_bit() -> None:
    """C8."""
    plain, watched = Run(), Run(deterministic=True, detect_anomaly=True)
    plain.run()
    watched.run()
    assert equal(plain.weights, watched.weights)
    assert plain.generators == watched.generators


def test_cublas_is_asked_for_its_environment_variable_before_python_starts() -> None:
    """C8: the sentence comes on a CUDA device alone, and not where it is set."""
    code = """
        import torch
        from tachograph.drivers.deterministic import deterministic
        told = []
        for device in ("cpu", "cuda"):
            with deterministic(True, torch.device(device), told.append):
                pass
        print("\\n".join(told))
    """
    for value, said in ((None, "CUBLAS_WORKSPACE_CONFIG=:4096:8"), (":4096:8", "")):
        env = {k: v for k, v in os.environ.items() if k != "CUBLAS_WORKSPACE_CONFIG"}
        env |= {} if value is None else {"CUBLAS_WORKSPACE_CONFIG": value}
        ran = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], env=env, capture_output=True, text=True)
        assert ran.returncode == 0, ran.stderr
        assert (said in ran.stdout) if said else not ran.stdout.strip()
        assert len(ran.stdout.split("\n")) == 2


# -- what is refused ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"overfit_batches": -2}, "overfit_batches must be 0 (off), -1 (all) or an integer > 0, not -2"),
        ({"overfit_batches": True}, "overfit_batches must be 0 (off), -1 (all) or an integer > 0, not True"),
        ({"fast_dev_run": -1}, "fast_dev_run must be True, False or a number of batches >= 0, not -1"),
        ({"fast_dev_run": "yes"}, "fast_dev_run must be True, False or a number of batches >= 0, not 'yes'"),
        ({"limit_train_batches": 0}, "limit_train_batches must be an integer > 0 (batches), a fraction"),
        ({"limit_train_batches": 1.5}, "limit_train_batches must be an integer > 0 (batches), a fraction"),
        ({"limit_validate_batches": 0.0}, "limit_validate_batches must be an integer > 0 (batches), a fraction"),
        ({"limit_validate_batches": True}, "limit_validate_batches must be an integer > 0 (batches), a fraction"),
        ({"min_epochs": -1}, "min_epochs must be an integer >= 0, not -1"),
        ({"min_epochs": 3}, "min_epochs=3 is more than n_epochs=2: raise n_epochs, or lower min_epochs"),
        ({"deterministic": "yes"}, "deterministic must be True, False, 'warn', not 'yes'"),
        ({"detect_anomaly": "warn"}, "detect_anomaly must be True, False, not 'warn'"),
        ({"compile": "inductor"}, "compile must be True, False or a dict of torch.compile's keyword arguments"),
    ],
)
def test_a_debug_helper_that_cannot_be_used_is_refused_in_one_clear_sentence(given: Any, said: str) -> None:
    """C8, T19."""
    with pytest.raises(CallerError) as caught:
        stub(**given)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    "ask",
    [
        lambda driver: driver.overfit(1),
        lambda driver: driver.kept_batches(0),
        lambda driver: driver.compile({}),
        lambda driver: driver.profiler(None, None, Path, {}),
        lambda driver: driver.untouched(),
        lambda driver: driver.trial_batches([], 0),
    ],
)
def test_a_driver_that_cannot_help_says_so(ask: Callable[[Driver], Any]) -> None:
    """C8: a driver of the user's own goes on working, and refuses what it doesn't know."""
    own = type("Own", (StubDriver,), {name: getattr(Driver, name) for name in OF_DEBUGGING})()
    with pytest.raises(CallerError, match="Own"):
        ask(own)
    assert own.samples_in([1, 2]) is None
    own.set_learning_rate(0.1)
    assert own.ran_out_of_memory(MemoryError())
    assert not own.ran_out_of_memory(RuntimeError("out of memory"))


OF_DEBUGGING = ("overfit", "kept_batches", "compile", "profiler", "untouched", "trial_batches")


def test_a_callback_says_whether_a_quick_pass_is_its_business() -> None:
    """C8: without a word, what writes to the outside is left out."""

    class Hears(Callback):
        heard = 0

        def on_train_batch_end(self, trainer: Any) -> None:
            self.heard += 1

    said = {
        (effects, says): type("Own", (Hears,), {"outside_effects": effects, "in_quick_pass": says})()
        for effects in (False, True)
        for says in (None, False, True)
    }
    stub(fast_dev_run=True, callbacks=list(said.values())).run()
    assert {key for key, callback in said.items() if callback.heard} == {(False, None), (False, True), (True, True)}
