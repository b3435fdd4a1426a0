"""A recorded run is executed again: verified, rewound to any transition, gone on from there as a run of its own."""

from __future__ import annotations

import gc
import json
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tachograph.drivers import StubDriver
from tachograph.engine import (
    EMA,
    Callback,
    Checkpoint,
    CSVLogger,
    Events,
    Fingerprints,
    Journal,
    LoadBestModel,
    LRSchedule,
    Progress,
    Trainer,
    diff,
)
from tachograph.engine.recording import SettingsChanged
from tachograph.engine.snapshots import SnapshotFault, catalogue
from tachograph.states import CallerError, TrainerState
from tests.jobs import exact_job
from tests.jobs.exact_job import EVERY, Configuration, covering, differences, outcome
from tests.toys import Mean, files_of, stub

Proven = Callable[[int], None]


def everything(run_dir: Path | None, configuration: Configuration, every: Any = 6, foreign: int = 0) -> Trainer:
    return exact_job.build(run_dir, every, configuration, foreign=foreign)


class Loop:
    """A loop of the user's own over an epoch."""

    def run(self, trainer: Trainer, batches: Any) -> None:
        for batch in batches:
            trainer.backward(trainer.train_step(batch))
            trainer.step()
            trainer.zero_grad()
            trainer.batch_idx_in_epoch += 1
            trainer.global_forward_batches += 1


class Net(nn.Sequential):
    def train_step(self, batch: Any) -> dict[str, torch.Tensor]:
        return {"loss": nn.functional.mse_loss(self(batch[0]), batch[1])}

    validate_step = train_step


def small(run_dir: Path | None = None, lr: float = 0.1, **settings: Any) -> Trainer:
    torch.manual_seed(0)
    model = Net(nn.Linear(4, 8), nn.Dropout(0.3), nn.Linear(8, 1))
    data = TensorDataset(torch.randn(20, 4), torch.randn(20, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    settings = {"n_epochs": 2, "seed": 3, "progress_bar": None, "snapshot_every": 4, "run_dir": run_dir, **settings}
    return Trainer(model, "torch", DataLoader(data, 4, shuffle=True), optimizer, **settings)


def notices(trainer: Trainer) -> list[str]:
    said: list[str] = []
    trainer.on(Events.on_notice, lambda trainer, text: said.append(text))
    return said


def ran(trainer: Trainer) -> Trainer:
    trainer.run()
    return trainer


def at(run_dir: Path, source: str, nth: int = 0) -> int:
    """The number of the nth transition that leaves a state."""
    return [record.seq for record in Journal(run_dir) if record.source == source][nth]


# -- verify ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("configuration", covering(EVERY), ids=lambda c: c.id)
def test_a_run_that_is_executed_again_matches_from_its_beginning_and_from_every_snapshot(
    configuration: Configuration, tmp_path: Path
) -> None:
    """R66: however it trains, and without a byte of the run being touched."""
    trainer = ran(everything(tmp_path / "run", configuration))
    before = files_of(tmp_path)
    again = everything(None, configuration, foreign=1)
    said = notices(again)
    assert again.verify(tmp_path / "run") is None
    n = trainer.trainer_state.seq
    assert said[-1] == f"{n} of {n} transitions match, 1 to {n}"
    for snapshot in catalogue(tmp_path / "run")[0]:
        if snapshot.seq < n:
            assert again.verify(tmp_path / "run", start=snapshot.seq + 1, stop=min(snapshot.seq + 9, n)) is None
    assert files_of(tmp_path) == before


def test_the_first_transition_that_differs_is_named_with_what_was_recorded_and_what_was_found(tmp_path: Path) -> None:
    """R66."""
    ran(small(tmp_path / "run"))
    seq = at(tmp_path / "run", "step", 4)
    again = small()

    def disturb(trainer: Trainer) -> None:
        if trainer.trainer_state.seq == seq - 1:
            torch.rand(1)

    again.on("fetch -> step", disturb)
    found = again.verify(tmp_path / "run")
    assert found is not None
    assert (found.seq, found.state, found.field) == (seq, "step", "data.rng")
    assert found.recorded == Journal(tmp_path / "run").seek(seq).data["rng"] != found.found
    later = next(s.seq for s in catalogue(tmp_path / "run")[0] if s.seq >= seq)
    assert again.verify(tmp_path / "run", start=later + 1) is None  # it is past that


@pytest.mark.parametrize(
    ("part", "field"),
    [
        ("weights", "data.loss"),
        ("moments", "data.loss"),
        ("generators", "data.rng"),
        ("lr", "data.lr"),
        ("place", "data.ids"),
    ],
)
def test_a_part_of_a_snapshot_that_was_changed_shows_where_it_is_felt_first(
    tmp_path: Path, part: str, field: str
) -> None:
    """R66: the copy is whole and its digests are right; only what it says is wrong."""
    ran(small(tmp_path / "run"))
    snapshot = catalogue(tmp_path / "run")[0][1]
    tamper(snapshot.path, part)
    found = small().verify(tmp_path / "run", start=snapshot.seq + 1)
    assert found is not None
    assert found.field == field
    assert snapshot.seq < found.seq < snapshot.seq + 6


def tamper(path: Path, part: str) -> None:
    """Change a part of a snapshot, and make its digests right again."""
    from tachograph.engine.snapshots import digest_of, digest_of_commit

    name = {"weights": "model.pt", "place": "state.json"}.get(part, "rank-0.pt")
    held = json.loads((path / name).read_text()) if part == "place" else torch.load(path / name, weights_only=True)
    if part == "weights":
        held["0.weight"][0, 0] += 1.0
    elif part == "moments":
        for state in held["optimizers"][0]["state"].values():
            state["momentum_buffer"].zero_()
    elif part == "generators":
        held["generators"]["torch"] = torch.Generator().manual_seed(5).get_state()
    elif part == "lr":
        held["optimizers"][0]["param_groups"][0]["lr"] = 0.05
    else:
        held["state"]["place"] += 4
    (path / name).write_text(json.dumps(held)) if part == "place" else torch.save(held, path / name)
    commit = json.loads((path / "COMMIT").read_text())
    commit["files"][name] = [(path / name).stat().st_size, digest_of(path / name)]
    del commit["digest"]
    (path / "COMMIT").write_text(json.dumps({**commit, "digest": digest_of_commit(commit)}))


def test_a_changed_learning_rate_is_the_cause_that_is_named(tmp_path: Path) -> None:
    ran(small(tmp_path / "run"))
    found = small(lr=0.2).verify(tmp_path / "run")
    assert found is not None
    assert found.field == "data.lr"
    assert found.cause == "another learning rate (0.1 in the run, 0.2 in this trainer)"
    assert found.hint.startswith(f"tachograph verify {tmp_path}/run --trainer module:function --start {found.seq}")


def test_a_run_of_several_lives_is_verified_over_their_borders(tmp_path: Path) -> None:
    """A stop, a resume, an extension: what each restored is what would have been there."""
    run = tmp_path / "run"
    trainer = small(run)
    trainer.on("step -> fetch", lambda trainer: trainer.stop("enough") if trainer.trainer_state.seq > 9 else None)
    trainer.run()
    small(run).run(resume_from="auto")
    small(run, n_epochs=3).run(resume_from="auto")
    last = Journal(run).last
    assert last is not None
    assert last.incarnation == 2
    again = small(n_epochs=3)
    said = notices(again)
    assert again.verify(run) is None
    assert said[-1].startswith(f"{last.seq} of {last.seq} transitions match")


def test_where_a_life_went_on_with_other_settings_it_ends_and_says_so(tmp_path: Path) -> None:
    run = tmp_path / "run"
    small(run, n_epochs=1).run()
    small(run, lr=0.01).run(resume_from="auto")
    first = small()
    said = notices(first)
    assert first.verify(run) is None
    border = Journal(run).incarnations[1].first_seq - 1
    assert f"after {border} the run went on with another hyperparameters.lr: 0.1 before, 0.01 from there on" in said[-1]
    assert small(lr=0.01).verify(run, start=border + 1) is None


def test_a_failure_is_executed_again_up_to_the_same_failure(tmp_path: Path) -> None:
    def failing(run_dir: Path | None, kind: type[Exception]) -> Trainer:
        def step(trainer: Trainer, batch: Any) -> None:
            if trainer.global_forward_batches == 6:
                raise kind("struck")
            outputs = trainer.train_step(batch)
            trainer.backward(outputs)
            trainer.step()
            trainer.zero_grad()

        return small(run_dir, batch_step_fn=step)

    with pytest.raises(ZeroDivisionError):
        failing(tmp_path / "run", ZeroDivisionError).run()
    last = Journal(tmp_path / "run").last
    assert last is not None
    again = failing(None, ZeroDivisionError)
    said = notices(again)
    assert again.verify(tmp_path / "run") is None
    assert said[-1] == f"{last.seq} of {last.seq} transitions match, 1 to {last.seq}"
    found = failing(None, KeyError).verify(tmp_path / "run")
    assert found is not None
    assert (found.seq, found.field, found.recorded) == (last.seq, "data.kind", "ZeroDivisionError")
    assert found.found == "KeyError: 'struck'"


def test_what_fails_only_now_is_a_divergence_too(tmp_path: Path) -> None:
    ran(small(tmp_path / "run"))
    seq = at(tmp_path / "run", "step", 2)
    again = small()
    again.on(Events.on_before_backward(once=3), lambda trainer, outputs: 1 / 0)
    found = again.verify(tmp_path / "run")
    assert found is not None
    assert (found.seq, found.field, found.recorded) == (seq, "event", "Stepped")
    assert found.found == "ZeroDivisionError: division by zero"


def test_callbacks_that_would_leave_something_behind_hear_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    def told(run_dir: Path | None, folder: str) -> Trainer:
        callbacks = [
            CSVLogger(folder=f"{folder}/log"),
            Checkpoint(f"{folder}/saved", every_n_batches=1),
            Progress("plain"),
        ]
        return small(run_dir, callbacks=callbacks)

    ran(told(tmp_path / "run", "first"))
    capsys.readouterr()
    again = told(None, "second")
    assert again.verify(tmp_path / "run") is None
    again.rewind(tmp_path / "run", seq=9)
    again.advance(3)
    assert not Path("second").exists()
    assert capsys.readouterr().out == ""


def test_a_clock_is_not_asked_again_and_a_limit_is_the_one_of_then(tmp_path: Path) -> None:
    run = tmp_path / "run"
    small(run, n_epochs=3, max_time="1h").run()
    again = small(n_epochs=1, max_time=1e-9)
    assert again.verify(run) is None
    assert (again.max_time, again.n_epochs) == (1e-9, 1)


def test_a_custom_step_a_loop_of_ones_own_and_the_stub_driver_are_executed_again(tmp_path: Path) -> None:
    """D1: it knows no torch; whatever can be snapshotted can be verified."""
    stub(run_dir=tmp_path / "stub", n_epochs=3, snapshot_every=2).run()
    assert stub(n_epochs=3).verify(tmp_path / "stub") is None

    def own(run_dir: Path | None) -> Trainer:
        trainer = small(run_dir)

        trainer.train_batch_loop = Loop()
        return trainer

    own(tmp_path / "own").run()
    assert own(None).verify(tmp_path / "own") is None


# -- rewind and advance ------------------------------------------------------------------------------------


def test_it_stands_exactly_before_each_transition_with_the_batch_in_hand(tmp_path: Path) -> None:
    """Forwards, backwards, again: state, weights, batch and loss are those of the run at that point."""
    losses: dict[int, float] = {}
    weights: dict[int, torch.Tensor] = {}
    trainer = small(tmp_path / "run", accumulation_steps=2)
    for name in ("epoch_begin", "fetch", "step", "epoch_end"):
        trainer.on(name, lambda trainer: weights.update({trainer.trainer_state.seq: trainer.model[0].weight.clone()}))
    trainer.run()
    records = {record.seq: record for record in Journal(tmp_path / "run")}
    losses = {seq: record.data["loss"] for seq, record in records.items() if record.event == "Stepped"}
    again = small(accumulation_steps=2)
    order = [*range(1, len(records) + 1), *range(len(records), 1, -3)]
    for seq in order:
        state = again.rewind(tmp_path / "run", seq=seq)
        assert isinstance(state, TrainerState)
        assert (state.seq, state.state) == (seq - 1, records[seq].source)
        assert again.trainer_state == state
        if seq - 1 in weights:
            assert torch.equal(again.model[0].weight, weights[seq - 1])
        assert (again.batch is not None) == (state.state == "step")
        if seq in losses:
            with torch.random.fork_rng():
                outputs = again.train_step(again.batch)
            assert float(outputs["loss"]) == losses[seq]


def test_a_step_is_made_by_hand_and_its_gradients_are_there(tmp_path: Path) -> None:
    ran(small(tmp_path / "run"))
    seq = at(tmp_path / "run", "step", 6)
    again = small()
    again.rewind(tmp_path / "run", seq=seq)
    outputs = again.train_step(again.batch)
    again.backward(outputs)
    gradient = again.model[0].weight.grad
    assert gradient.abs().sum() > 0
    again.step()
    again.zero_grad()
    by_hand = again.model[0].weight.clone()
    again.rewind(tmp_path / "run", seq=seq)
    again.advance()
    assert torch.equal(again.model[0].weight, by_hand)
    assert again.trainer_state.seq == seq


def test_it_advances_in_memory_up_to_the_end_of_the_record(tmp_path: Path) -> None:
    trainer = ran(small(tmp_path / "run"))
    before = files_of(tmp_path)
    again = small()
    heard: list[int] = []
    again.on("step -> fetch", lambda trainer: heard.append(trainer.trainer_state.seq))
    again.rewind(tmp_path / "run", seq=5)
    heard.clear()
    assert again.advance(4).seq == 8
    assert heard == [seq for seq in range(5, 9) if Journal(tmp_path / "run").seek(seq).source == "step"]
    assert again.advance(10_000).state == "done"
    assert again.trainer_state.seq == trainer.trainer_state.seq
    assert not differences(dict(trainer.model.state_dict()), dict(again.model.state_dict()))
    with pytest.raises(CallerError, match=r"the run's record ends here, after transition \d+"):
        again.advance()
    assert files_of(tmp_path) == before


def test_a_way_that_differs_from_the_record_is_warned_of_once(tmp_path: Path) -> None:
    ran(small(tmp_path / "run", snapshot_every=None))
    again = small()
    again.on(Events.on_train_batch_end(once=1), lambda trainer: torch.rand(1))
    with pytest.warns(UserWarning, match=r"the way there isn't what was recorded: transition \d+: data.rng is") as said:
        again.rewind(tmp_path / "run", seq=12)
    assert len([warning for warning in said if str(warning.message).startswith("the way there")]) == 1


# -- forks -------------------------------------------------------------------------------------------------


def proves_forks(configuration: Configuration, folder: Path, seqs: list[int]) -> int:
    """Go on from before each of these transitions without a change, and expect the end of the run itself."""
    straight = everything(folder / "run", configuration)
    straight.run()
    expected, n = outcome(straight), straight.trainer_state.seq
    proven = 0
    for seq in seqs or range(2, n + 1):
        place = folder / str(seq)
        fork = everything(place, configuration, foreign=1)
        fork.rewind(folder / "run", seq=min(seq, n))
        fork.run()
        assert not differences(expected, outcome(fork)), seq
        assert diff(folder / "run", place) is None
        shutil.rmtree(place)
        proven += 1
    return proven


@pytest.mark.parametrize("configuration", covering(EVERY), ids=lambda c: c.id)
def test_a_run_of_its_own_without_a_change_ends_with_the_bits_of_the_other(
    configuration: Configuration, tmp_path: Path, proven: Proven
) -> None:
    """From a batch in hand, from an open window, right before a validation, from the last transition but one."""
    proven(proves_forks(configuration, tmp_path, [9, 14, 19, 40]))


@pytest.mark.sweep
@pytest.mark.parametrize("configuration", covering(EVERY), ids=lambda c: c.id)
def test_a_run_of_its_own_may_begin_at_every_transition(
    configuration: Configuration, tmp_path: Path, proven: Proven
) -> None:
    proven(proves_forks(configuration, tmp_path, []))


def test_a_fork_tells_its_parent_and_needs_it_no_more(tmp_path: Path) -> None:
    straight = ran(small(tmp_path / "run"))
    fork = small(tmp_path / "fork", n_epochs=3)
    fork.rewind(tmp_path / "run", seq=9)
    point = Journal(tmp_path / "run").seek(8)
    fork.run()
    parent = json.loads((tmp_path / "fork" / "run.json").read_text())["parent"]
    run = json.loads((tmp_path / "run" / "run.json").read_text())["run"]
    where = {"incarnation": 0, "seq": 8, "chain": point.chain}
    assert parent == {"run": run, **where, "run_dir": str(tmp_path / "run")}
    told = next(Journal(tmp_path / "fork").sides("forked"))
    assert (told.data["seq"], told.data["changed"]) == (8, {"n_epochs": [2, 3]})
    shutil.rmtree(tmp_path / "run")
    again = small(tmp_path / "fork", n_epochs=4)
    assert again.run(resume_from="auto").cur_epoch_idx == 4
    assert small(n_epochs=4).verify(tmp_path / "fork") is None
    assert straight.trainer_state.seq < again.trainer_state.seq


def test_a_learning_rate_is_another_one_from_there_on_and_a_schedule_goes_on_from_it(tmp_path: Path) -> None:
    def scheduled(run_dir: Path | None) -> Trainer:
        trainer = small(run_dir)
        optimizer = trainer.driver.optimizers[0]  # type: ignore[union-attr]
        trainer.add_callback(LRSchedule(torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))))
        return trainer

    ran(scheduled(tmp_path / "run"))
    seq = at(tmp_path / "run", "step", 4)
    fork = scheduled(tmp_path / "fork")
    fork.rewind(tmp_path / "run", seq=seq)
    fork.set_learning_rate(0.01)
    fork.run()
    rates = [record.data["lr"][0] for record in Journal(tmp_path / "fork") if record.event == "Stepped"]
    assert rates[0] == 0.01
    assert rates[1:3] == pytest.approx([0.01 * 5 / 6, 0.01 * 5 / 7])
    found = diff(tmp_path / "run", tmp_path / "fork")
    assert found is not None
    assert (found.seq, found.field) == (seq, "data.lr")
    with pytest.raises(CallerError, match="a learning rate is a number >= 0, not -1"):
        fork.set_learning_rate(-1)
    with pytest.raises(CallerError, match="StubDriver can't set a learning rate"):
        stub().set_learning_rate(0.2)


@pytest.mark.parametrize(("window", "nth"), [(1, 3), (2, 2), (2, 3), (3, 4)])
def test_a_batch_is_passed_over(tmp_path: Path, window: int, nth: int) -> None:
    """Its samples count as consumed, its gradients as zeros; alone in its window, its update counts as skipped."""
    ran(small(tmp_path / "run", accumulation_steps=window))
    seq = at(tmp_path / "run", "step", nth)
    recorded = Journal(tmp_path / "run").seek(seq)
    fork = small(tmp_path / "fork", accumulation_steps=window)
    fork.rewind(tmp_path / "run", seq=seq)
    weights = fork.model[0].weight.clone()
    fork.skip_batch()
    fork.run()
    passed = Journal(tmp_path / "fork").seek(seq)
    assert passed.data["loss"] is None
    assert passed.state.samples == recorded.state.samples
    alone = recorded.data["closed"] and Journal(tmp_path / "run").seek(seq - 1).state.accumulated == 0
    assert passed.data["skipped"] == alone
    assert all(
        record.data["loss"] is not None
        for record in Journal(tmp_path / "fork").since(seq + 1)
        if record.event == "Stepped"
    )
    assert not torch.equal(weights, fork.model[0].weight)
    fetch = small()
    fetch.rewind(tmp_path / "run", seq=seq - 1) if window == 1 else None
    with pytest.raises(CallerError, match=r"there is no batch in hand: the trainer stands in fetch|rewind\(\) has"):
        fetch.skip_batch()


def test_other_data_is_gone_on_with_from_the_next_unseen_sample(tmp_path: Path) -> None:
    ran(small(tmp_path / "run"))
    seq = at(tmp_path / "run", "fetch", 2)
    fork = small(tmp_path / "fork")
    fork.rewind(tmp_path / "run", seq=seq)
    held = fork.train_dataloader.dataset
    zeros = TensorDataset(torch.zeros_like(held.tensors[0]), held.tensors[1])
    fork.train_dataloader = DataLoader(zeros, 4, shuffle=True)
    seen: list[torch.Tensor] = []
    fork.on(Events.on_train_batch_begin, lambda trainer, batch, indices: seen.append(batch[0]))
    state = fork.run()
    assert all(not batch.any() for batch in seen)
    assert len(seen) == 10 - 2
    assert state.samples == 40
    ids = [record.data["ids"] for record in Journal(tmp_path / "fork") if record.event == "Fetched"]
    assert ids == [record.data["ids"] for record in Journal(tmp_path / "run").since(seq) if record.event == "Fetched"]


def test_a_trainer_with_another_learning_rate_is_told_to_change_it_afterwards(tmp_path: Path) -> None:
    ran(small(tmp_path / "run"))
    with pytest.raises(CallerError, match=r"hyperparameters.lr is 0.1 in the run and 0.5 in this trainer: build it as"):
        small(lr=0.5).rewind(tmp_path / "run", seq=9)


def test_a_run_directory_that_is_taken_is_refused_and_nothing_is_lost(tmp_path: Path) -> None:
    ran(small(tmp_path / "run"))
    before = files_of(tmp_path)
    fork = small(tmp_path / "run")
    fork.rewind(tmp_path / "run", seq=9)
    with pytest.raises(CallerError, match="holds a run already"):
        fork.run()
    assert files_of(tmp_path) == before
    assert small(tmp_path / "run", n_epochs=3).run(resume_from="auto").cur_epoch_idx == 3


def test_without_a_run_directory_it_goes_on_in_memory(tmp_path: Path) -> None:
    straight = ran(small(tmp_path / "run"))
    before = files_of(tmp_path)
    fork = small()
    fork.rewind(tmp_path / "run", seq=9)
    fork.run()
    assert not differences(dict(straight.model.state_dict()), dict(fork.model.state_dict()))
    assert files_of(tmp_path) == before


# -- who hears of it, and what is left behind --------------------------------------------------------------


class Counting(Callback):
    """Begins to count where a run begins or goes on, as callbacks without a memory do."""

    def on_train_begin(self, trainer: Any) -> None:
        self.n = 0

    def on_after_resume(self, trainer: Any, report: Any) -> None:
        self.n = 0

    def on_train_batch_end(self, trainer: Any) -> None:
        self.n += 1


def test_callbacks_hear_that_they_begin_in_the_middle_as_after_a_resume(tmp_path: Path) -> None:
    ran(small(tmp_path / "run", callbacks=[Counting()]))
    assert small(callbacks=[Counting()]).verify(tmp_path / "run", start=15) is None
    held = Counting()
    fork = small(tmp_path / "fork", callbacks=[held])
    fork.rewind(tmp_path / "run", seq=20)
    fork.run()
    assert held.n == sum(record.event == "Stepped" for record in Journal(tmp_path / "fork"))


def averaging(run_dir: Path | None, *callbacks: Any) -> Trainer:
    settings: dict[str, Any] = {"n_epochs": 3, "validate_every": 2, "snapshot_every": "epoch", "lr": 0.05}
    about = {"metrics": {"m": Mean()}, "validate_dataloaders": validation(), "monitor": "m", "larger_better": False}
    return small(run_dir, callbacks=list(callbacks), **settings, **about)


def validation() -> DataLoader[Any]:
    made = torch.Generator().manual_seed(4)
    return DataLoader(TensorDataset(torch.randn(8, 4, generator=made), torch.randn(8, 1, generator=made)), 4)


@pytest.mark.parametrize("kind", [EMA, LoadBestModel], ids=lambda kind: kind.__name__)
def test_a_trainer_that_has_run_verifies_again_and_forks_with_the_bits_of_its_run(
    tmp_path: Path, kind: Callable[[], Any]
) -> None:
    """Averages are put out of the model again, and the best weights so far are remembered on the way."""
    trainer = averaging(tmp_path / "run", kind())
    trainer.run()
    expected = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    other = averaging(None, kind())
    assert other.verify(tmp_path / "run") is None
    assert other.verify(tmp_path / "run") is None
    assert trainer.verify(tmp_path / "run") is None
    for nth, seq in enumerate((11, 17, 30, 40)):
        fork = trainer if seq == 40 else averaging(None, kind())
        fork.run_dir = tmp_path / f"fork-{nth}"
        fork.rewind(tmp_path / "run", seq=seq)
        fork.run()
        assert diff(tmp_path / "run", tmp_path / f"fork-{nth}") is None
        assert not differences(expected, dict(fork.model.state_dict()))


def test_a_callback_with_files_that_heard_nothing_is_told_of_at_a_fork(tmp_path: Path) -> None:
    def kept(run_dir: Path, folder: str) -> Trainer:
        return averaging(run_dir, Checkpoint(tmp_path / folder, topk=1))

    ran(kept(tmp_path / "run", "first"))
    fork = kept(tmp_path / "fork", "second")
    said = notices(fork)
    fork.rewind(tmp_path / "run", seq=30)
    fork.run()
    assert [text for text in said if text.startswith("Checkpoint heard nothing from ")]


@pytest.mark.parametrize("workers", [1, 2])
def test_no_worker_of_a_loader_is_left_behind_and_the_process_ends(tmp_path: Path, workers: int) -> None:
    """Rewound once, twice, onwards, into an error; and nobody closes anything."""
    ran(small(tmp_path / "run"))
    code = f"""
import multiprocessing, sys
sys.path.insert(0, {str(Path(__file__).parent.parent)!r})
from torch.utils.data import DataLoader
from tests.test_rehearsal import small

def build():
    trainer = small()
    trainer.train_dataloader = DataLoader(trainer.train_dataloader.dataset, 4, shuffle=True, num_workers={workers})
    return trainer

trainer = build()
trainer.rewind({str(tmp_path / "run")!r}, seq=9)
trainer.rewind({str(tmp_path / "run")!r}, seq=9)
trainer.advance(2)
assert len(multiprocessing.active_children()) == {workers}, multiprocessing.active_children()
failing = build()
failing.on("step -> fetch", lambda trainer: 1 / 0)
try:
    failing.rewind({str(tmp_path / "run")!r}, seq=9)
except ZeroDivisionError:
    pass
assert len(multiprocessing.active_children()) == {workers}, multiprocessing.active_children()
print("ended")
"""
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert (ended.returncode, ended.stdout) == (0, "ended\n"), ended.stderr


def test_nothing_of_a_verification_is_felt_outside_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Generators, the seed, the time that counts towards max_time, files in the temporary directory."""
    ran(small(tmp_path / "run", seed=4))
    ran(small(tmp_path / "other", seed=5))
    again = small(seed=None)
    torch.manual_seed(9)
    expected = torch.rand(3)
    torch.manual_seed(9)
    again.verify(tmp_path / "run")
    assert torch.equal(torch.rand(3), expected)
    assert again.seconds == 0.0
    again.verify(tmp_path / "other")  # the seed of the one isn't that of the next
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    fresh = small(seed=4)
    assert fresh.verify(tmp_path / "run") is None
    assert any((tmp_path / "temporary").iterdir())
    del fresh
    gc.collect()
    assert not any((tmp_path / "temporary").iterdir())


# -- what was asked for by hand ----------------------------------------------------------------------------


def test_a_batch_that_is_passed_over_is_so_for_a_verification_and_a_resume_as_well(tmp_path: Path) -> None:
    ran(small(tmp_path / "run"))
    seq = at(tmp_path / "run", "step", 3)
    fork = small(tmp_path / "fork")
    fork.rewind(tmp_path / "run", seq=seq)
    fork.skip_batch()
    fork.skip_batch()  # it is one batch
    fork.run()
    losses = [record.data["loss"] for record in Journal(tmp_path / "fork") if record.event == "Stepped"]
    assert losses.count(None) == 1
    assert next(Journal(tmp_path / "fork").sides("forked")).data["by_hand"] == [
        f"batch of transition {seq} passed over"
    ]
    assert small().verify(tmp_path / "fork") is None
    for snapshot in catalogue(tmp_path / "fork")[0][1:]:
        shutil.rmtree(snapshot.path)
    again = small(tmp_path / "fork", n_epochs=3)
    again.run(resume_from="auto")
    assert not list(Journal(tmp_path / "fork").sides("diverged"))
    told = next(Journal(tmp_path / "fork").sides("matched"))
    assert told.data["matched"] == told.data["of"] > 0


def test_a_rewind_takes_back_what_was_asked_for(tmp_path: Path) -> None:
    ran(small(tmp_path / "run"))
    seq = at(tmp_path / "run", "step", 3)
    fork = small(tmp_path / "fork")
    fork.rewind(tmp_path / "run", seq=seq)
    fork.skip_batch()
    fork.rewind(tmp_path / "run", seq=seq)
    fork.run()
    assert diff(tmp_path / "run", tmp_path / "fork") is None


def test_a_fork_from_the_first_transition_is_a_beginning(tmp_path: Path) -> None:
    ran(small(tmp_path / "run"))
    fork = small(tmp_path / "fork", snapshot_every=None)
    fork.rewind(tmp_path / "run", seq=1)
    struck = fork.on(Events.on_train_batch_end(once=2), lambda trainer: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        fork.run()
    struck.remove()
    for snapshot in catalogue(tmp_path / "fork")[0]:
        shutil.rmtree(snapshot.path)
    again = small(tmp_path / "fork")
    again.run(resume_from="auto")
    assert diff(tmp_path / "run", tmp_path / "fork") is None


def test_who_stopped_the_run_may_stop_the_fork_again_and_limits_are_those_of_now(tmp_path: Path) -> None:
    def stopping(run_dir: Path | None, after: int, **settings: Any) -> Trainer:
        trainer = small(run_dir, **settings)
        trainer.on("step -> fetch", lambda t: t.stop("enough") if t.global_forward_batches == after else None)
        return trainer

    ran(stopping(tmp_path / "run", 4))
    last = Journal(tmp_path / "run").last
    assert last is not None
    assert last.event == "Stopped"
    assert stopping(None, 4).verify(tmp_path / "run") is None
    with pytest.raises(CallerError, match="was asked for from outside"):
        stopping(None, 4).verify(tmp_path / "run", start=last.seq, stop=last.seq)
    fork = stopping(tmp_path / "fork", 4, n_epochs=3)
    fork.rewind(tmp_path / "run", seq=last.seq)
    assert fork.run().cur_epoch_idx == 3


def test_a_run_that_ctrl_c_ended_matches_up_to_there(tmp_path: Path) -> None:
    trainer = small(tmp_path / "run")
    trainer.on("step -> fetch", lambda t: t.interrupt(signal.SIGINT) if t.trainer_state.seq == 12 else None)
    with pytest.raises(KeyboardInterrupt):
        trainer.run()
    assert small().verify(tmp_path / "run") is None


def test_a_trainer_that_ends_before_the_point_cannot_stand_there(tmp_path: Path) -> None:
    ran(small(tmp_path / "run"))
    again = small(tmp_path / "fork")
    again.on(Events.on_train_batch_end(once=1), lambda trainer: trainer.stop("early"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(
            CallerError, match=r"transition 20 can't be reached: after \d+ this trainer came to its end"
        ):
            again.rewind(tmp_path / "run", seq=20)
    with pytest.raises(CallerError, match="is no beginning"):
        again.run()
    assert not (tmp_path / "fork").exists()


def test_at_its_end_a_trainer_says_where_to_go_on_from(tmp_path: Path) -> None:
    ran(small(tmp_path / "run"))
    again = small(tmp_path / "fork")
    again.rewind(tmp_path / "run", seq=9)
    again.advance(1000)
    again.n_epochs = 3
    last = again.trainer_state.seq
    with pytest.raises(CallerError, match=rf"stands at its end, in 'done': rewind\(\) to the last transition, {last}"):
        again.run()
    again.rewind(tmp_path / "run", seq=last)
    assert again.run().cur_epoch_idx == 3


def test_a_fork_that_was_refused_can_be_had_elsewhere(tmp_path: Path) -> None:
    ran(small(tmp_path / "run"))
    fork = small(tmp_path / "run")
    fork.rewind(tmp_path / "run", seq=9)
    with pytest.raises(CallerError, match="holds a run already"):
        fork.run()
    fork.run_dir = tmp_path / "fork"
    fork.run()
    assert diff(tmp_path / "run", tmp_path / "fork") is None


def test_lives_that_are_no_part_of_the_history_change_nothing_at_a_border(tmp_path: Path) -> None:
    """The life between two others went on with another rate and left no trace but its word."""
    run = tmp_path / "run"
    small(run, n_epochs=1, snapshot_every=None).run()

    def dies(trainer: Trainer) -> None:
        trainer.on("on_after_resume", lambda trainer, report: 1 / 0)

    for lr, kept in ((0.01, False), (0.1, True)):
        life = small(run, lr=lr, snapshot_every=None)
        if not kept:
            dies(life)
            with pytest.raises(ZeroDivisionError):
                life.run(resume_from="auto")
        else:
            life.run(resume_from="auto")
    again = small()
    said = notices(again)
    assert again.verify(run) is None
    assert "went on with another" not in said[-1]


# -- what can't be done ------------------------------------------------------------------------------------


def test_where_there_is_no_snapshot_before_it_names_the_nearest(tmp_path: Path) -> None:
    run = tmp_path / "run"
    trainer = ran(small(run))
    with pytest.raises(SnapshotFault, match="has run, so the weights it began with are gone: build a new one"):
        trainer.rewind(run, seq=2)
    snapshot = catalogue(run)[0][0]
    with pytest.raises(
        SnapshotFault, match=rf"at or before transition 1: the first one that can be used is after {snapshot.seq}"
    ):
        trainer.rewind(run, seq=2)
    assert trainer.rewind(run, seq=snapshot.seq + 2).seq == snapshot.seq + 1
    (snapshot.path / "model.pt").write_bytes(b"")
    again = small()
    said = notices(again)
    again.rewind(run, seq=snapshot.seq + 2)
    assert f"from the beginning: {snapshot.seq + 1} transitions to execute again" in said[-1]


@pytest.mark.parametrize("seq", [0, -1, 10_000, True, "9", 2.0, None])
def test_a_transition_that_is_not_there_is_refused_with_the_range(tmp_path: Path, seq: Any) -> None:
    trainer = ran(small(tmp_path / "run"))
    n = trainer.trainer_state.seq
    with pytest.raises(CallerError, match=re.escape(f"seq={seq!r}: {tmp_path}/run has the transitions 1 to {n}")):
        small().rewind(tmp_path / "run", seq=seq)
    if seq is not None:
        with pytest.raises(CallerError, match=f"has the transitions 1 to {n}"):
            small().verify(tmp_path / "run", start=seq)
        with pytest.raises(CallerError, match=f"has the transitions 1 to {n}"):
            small().verify(tmp_path / "run", stop=seq)


def test_what_is_no_run_or_not_this_trainers_is_refused_in_a_sentence(tmp_path: Path) -> None:
    ran(small(tmp_path / "run"))
    with pytest.raises(FileNotFoundError, match="there is no run at"):
        small().verify(tmp_path / "none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match="isn't a run directory"):
        small().verify(tmp_path / "empty")
    with pytest.raises(SettingsChanged, match="accumulation_steps is 1, this trainer's 2"):
        small(accumulation_steps=2).verify(tmp_path / "run")
    with pytest.raises(SettingsChanged, match="this run's model is"):
        other().verify(tmp_path / "run")
    with pytest.raises(CallerError, match="start=9 comes after stop=3"):
        small().verify(tmp_path / "run", start=9, stop=3)
    for name in ("advance", "skip_batch"):
        with pytest.raises(CallerError, match=rf"{name}\(\) is for a trainer that rewind\(\) has brought"):
            getattr(small(), name)()
    with pytest.raises(CallerError, match="transitions must be an integer > 0, not 0"):
        rewound(tmp_path).advance(0)


def other() -> Trainer:
    model = Net(nn.Linear(4, 1))
    data = TensorDataset(torch.randn(20, 4), torch.randn(20, 1))
    return Trainer(model, "torch", DataLoader(data, 4), torch.optim.SGD(model.parameters(), 0.1), seed=3, run_dir=None)


def rewound(folder: Path) -> Trainer:
    trainer = small()
    trainer.rewind(folder / "run", seq=5)
    return trainer


def test_after_a_verification_a_trainer_does_not_take_itself_to_be_at_a_beginning(tmp_path: Path) -> None:
    ran(small(tmp_path / "run"))
    again = small(tmp_path / "other")
    assert again.verify(tmp_path / "run", stop=9) is None
    with pytest.raises(
        CallerError, match="stands after transition 9 of a run that it executed again, which is no begin"
    ):
        again.run()
    assert not (tmp_path / "other").exists()
    assert again.run(resume_from=tmp_path / "run").state == "done"


def test_a_trainer_that_is_running_is_refused(tmp_path: Path) -> None:
    ran(small(tmp_path / "run"))
    trainer = small(n_epochs=1)
    refused: list[str] = []

    def attempt(trainer: Trainer) -> None:
        with pytest.raises(CallerError) as error:
            trainer.verify(tmp_path / "run")
        refused.append(str(error.value))

    trainer.on(Events.on_train_begin, attempt)
    trainer.run()
    assert refused == ["this trainer is running: a part of a run is executed again by a trainer of its own"]


def test_an_error_on_the_way_is_raised_and_the_trainer_can_be_rewound_again(tmp_path: Path) -> None:
    ran(small(tmp_path / "run"))
    again = small()
    struck = again.on(Events.on_train_batch_end(once=1), lambda trainer: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        again.rewind(tmp_path / "run", seq=20)
    with pytest.raises(CallerError, match=r"advance\(\) is for a trainer"):
        again.advance()
    struck.remove()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert again.rewind(tmp_path / "run", seq=20).seq == 19


def test_a_run_of_several_processes_is_refused_in_one(tmp_path: Path) -> None:
    ran(small(tmp_path / "run"))
    about = json.loads((tmp_path / "run" / "run.json").read_text())
    (tmp_path / "run" / "run.json").write_text(json.dumps({**about, "world": 2}))
    with pytest.raises(CallerError, match=r"executed again in one process: .* was made by 2, and here are 1"):
        small().verify(tmp_path / "run")


def test_a_stub_driver_may_be_rewound_and_forked(tmp_path: Path) -> None:
    straight = ran(stub(run_dir=tmp_path / "run", n_epochs=3, snapshot_every=2))
    fork = stub(run_dir=tmp_path / "fork", n_epochs=3, driver=StubDriver())
    fork.rewind(tmp_path / "run", seq=8)
    fork.run()
    assert fork.journal.chain == straight.journal.chain  # type: ignore[union-attr]


def test_fingerprints_that_were_recorded_are_held_against_those_of_now(tmp_path: Path) -> None:
    """R38, R66: a weight that changes by itself shows at that step, not at the next loss."""
    ran(small(tmp_path / "run", callbacks=[Fingerprints(every=1)]))
    seq = at(tmp_path / "run", "step", 4)
    again = small()
    assert again.verify(tmp_path / "run") is None

    def flip(trainer: Trainer, optimizers: Any) -> None:
        if trainer.trainer_state.seq == seq - 1:
            with torch.no_grad():
                trainer.model[0].weight[0, 0] *= -1

    again = small()
    again.on(Events.on_after_optimizer_step, flip)
    found = again.verify(tmp_path / "run")
    assert found is not None
    assert (found.seq, found.state, found.field) == (seq, "step", "fingerprint.parameters")
    assert "something other than the optimizer changed weights in this step" in found.cause
