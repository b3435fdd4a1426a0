"""Going on: a run that ended, was stopped, died or was damaged, and everything that must be refused."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import math
import os
import shutil
import signal
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from tachograph.drivers import RestoreFault, StubDriver
from tachograph.engine import Callback, Diverged, Events, Filter, Journal, LRSchedule, Trainer, diff
from tachograph.engine.journal import Files, JournalBusy, JournalWriteError, holding
from tachograph.engine.journal.durable import read_mark
from tachograph.engine.listeners import RestoreMismatch
from tachograph.engine.recording import NotARun, SettingsChanged
from tachograph.engine.snapshots import SnapshotFault, SnapshotWriteFault, catalogue, digest_of_commit
from tachograph.engine.world import World
from tachograph.states.errors import CallerError
from tests.test_journal_support import HalfThen, in_child
from tests.toys import Indexed, Run, Sum, equal, files_of, sides, stub, transitions


def job(run_dir: Path | None, driver: StubDriver | None = None, **settings: Any) -> Trainer:
    """Three batches an epoch, windows of two, a validation and a snapshot at each epoch's end."""
    settings = {
        "n_epochs": 3,
        "accumulation_steps": 2,
        "metrics": {"m": Sum()},
        "validate_dataloaders": [5, 6],
        "seed": 11,
        "run_dir": run_dir,
        **settings,
    }
    return stub([3, 1, 4], driver, **settings)


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    """The run that nothing happened to."""
    trainer = job(tmp_path_factory.mktemp("straight") / "run")
    trainer.run()
    return trainer


def expect_same_end(trainer: Trainer, straight: Trainer) -> None:
    assert trainer.trainer_state == straight.trainer_state
    assert trainer.journal.chain == straight.journal.chain  # type: ignore[union-attr]
    assert trainer.driver.weight == straight.driver.weight  # type: ignore[union-attr]
    assert diff(trainer.run_dir, straight.run_dir) is None  # type: ignore[arg-type]
    assert sides(trainer.run_dir, "diverged") == []  # type: ignore[arg-type]


def crash_at(n: int, error: BaseException | None = None) -> StubDriver:
    """A driver whose n-th training step fails."""
    raised = SystemError("the power goes") if error is None else error

    def strike(driver: StubDriver) -> None:
        if driver.calls.count("train_step") == n:
            raise raised

    return StubDriver(on={"train_step": strike})


def crashed(run_dir: Path, n: int = 8, resume_from: Any = None, **settings: Any) -> Trainer:
    """A run that died in its n-th step. What it could save at its death is taken away, as a kill would have it."""
    trainer = job(run_dir, crash_at(n), **settings)
    with pytest.raises(SystemError):
        trainer.run(resume_from=resume_from)
    for snapshot in catalogue(run_dir)[0]:
        if not snapshot.exact:
            shutil.rmtree(snapshot.path)
    return trainer


def notices(trainer: Trainer) -> list[str]:
    said: list[str] = []
    trainer.on(Events.on_notice, lambda trainer, text: said.append(text))
    return said


# -- runs that ended ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("limits", [[1, 3], [2, 3], [1, 2, 3], [1, 1, 2, 2, 3, 3]])
def test_a_finished_run_is_extended_epoch_by_epoch_with_the_chain_of_the_straight_run(
    run_dir: Path, straight: Trainer, limits: list[int]
) -> None:
    """R21, R26: limits are totals, and each epoch's end is heard once in the live history."""
    for limit in limits:
        trainer = job(run_dir, n_epochs=limit)
        assert trainer.run(resume_from="auto").cur_epoch_idx == limit
    expect_same_end(trainer, straight)
    assert sum("EpochEnded" in t for t in transitions(run_dir)) == 3
    assert Journal(run_dir).verify_chain() == straight.journal.chain  # type: ignore[union-attr]


def test_a_finished_run_of_torch_is_extended_to_the_bits_of_the_straight_run(tmp_path: Path) -> None:
    """R05, R22, B10, B12, SV6, SV9: dropout, augmentation, Adam, an open window; at a boundary and inside."""
    straight = Run(run_dir=tmp_path / "straight", n_epochs=3, accumulation_steps=4)
    straight.run()
    after = straight.generators
    for limits in ([{"n_epochs": 1}], [{"n_batches": 7}], [{"n_batches": 3}, {"n_epochs": 1}, {"n_batches": 11}]):
        run_dir = tmp_path / str(limits).translate({ord(c): "_" for c in " [{':}]"})
        for limit in [*limits, {}]:
            torch.manual_seed(os.getpid())  # what the process drew before is nobody's business
            run = Run(**{"run_dir": run_dir, "n_epochs": 3, "accumulation_steps": 4, **limit})
            run.run(resume_from="auto")
        assert equal(run.weights, straight.weights)
        assert run.generators == after
        assert run.chain == straight.chain
        moments = [[s["exp_avg"] for s in r.optimizer.state.values()] for r in (run, straight)]
        assert equal(*moments)


def test_a_run_without_a_snapshot_begins_again(run_dir: Path, straight: Trainer) -> None:
    """R37: zero steps done."""
    job(run_dir, n_epochs=0).run()
    again = job(run_dir)
    said = notices(again)
    again.run(resume_from="auto")
    assert said[0] == "resumed from the beginning: there was no snapshot"
    expect_same_end(again, straight)


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_a_stop_that_was_gone_on_from_stays_lifted_when_the_next_life_dies_before_its_first_snapshot(
    run_dir: Path, straight: Trainer, steps: int
) -> None:
    """R24 R26: whether the life that went on had recorded something of its own or not."""
    first = job(run_dir, snapshot_every=None)
    first.on("step -> fetch", lambda trainer: trainer.stop("enough for today"))
    assert first.run().global_forward_batches == 1
    crashed(run_dir, steps + 1, snapshot_every=None, resume_from="auto")
    trainer = job(run_dir)
    assert trainer.run(resume_from="auto").stop_asked == ""
    expect_same_end(trainer, straight)


EPOCH = 4


def test_a_part_of_the_model_that_was_put_in_evaluation_mode_for_an_epoch_is_so_after_a_resume(tmp_path: Path) -> None:
    """R05: the modes are the model's state too."""

    def freezing(run_dir: Path, n_batches: int = -1) -> Run:
        run = Run(run_dir=run_dir, n_epochs=1, n_batches=n_batches)
        run.trainer.on(Events.on_train_epoch_begin, lambda trainer: run.model.dropout.eval())
        return run

    straight = freezing(tmp_path / "straight")
    straight.run()
    freezing(tmp_path / "run", 3).run()
    again = freezing(tmp_path / "run")
    again.run(resume_from="auto")
    assert equal(again.weights, straight.weights)
    assert again.chain == straight.chain


@pytest.mark.parametrize("same", [False, True])
@pytest.mark.parametrize("done", [0, 3, 4, 10])
@pytest.mark.parametrize("limit", [3, 4, 5, 10, None])
def test_limits_in_steps_are_totals(run_dir: Path, done: int, limit: int | None, same: bool) -> None:
    """R37, R24: exactly max(0, limit - done) steps more, in the same trainer or in a new one."""

    def fresh(n: int | None) -> Trainer:
        return stub([1] * EPOCH, n_epochs=3, n_batches=-1 if n is None else n, run_dir=run_dir)

    first = fresh(done)
    first.run()
    assert len(first.driver.seen) == done  # type: ignore[union-attr]
    again = first if same else fresh(limit)
    if same:
        again.n_batches = limit
        if limit is None:
            again.n_epochs = 3
    end = again.run() if same else again.run(resume_from="auto")
    total = 3 * EPOCH if limit is None else limit
    assert (end.state, end.global_forward_batches) == ("done", max(done, total))
    assert len(again.driver.seen) == max(0, total - done) + (done if same else 0)  # type: ignore[union-attr]


@pytest.mark.parametrize("same", [False, True])
@pytest.mark.parametrize("done", [0, 1, 3])
@pytest.mark.parametrize("limit", [0, 1, 2, 3, 5])
def test_limits_in_epochs_are_totals(run_dir: Path, done: int, limit: int, same: bool) -> None:
    """R37."""
    first = stub([1, 2], n_epochs=done, run_dir=run_dir)
    first.run()
    again = first if same else stub([1, 2], n_epochs=limit, run_dir=run_dir)
    again.n_epochs = limit
    end = again.run() if same else again.run(resume_from="auto")
    assert (end.state, end.cur_epoch_idx) == ("done", max(done, limit))
    assert len(again.driver.seen) == 2 * max(0, limit - done) + (2 * done if same else 0)  # type: ignore[union-attr]


def test_the_rest_of_a_cut_epoch_is_the_rest(run_dir: Path) -> None:
    """B17: with fewer batches an epoch than there are."""
    settings = {"n_epochs": 2, "run_dir": run_dir}
    first = stub(list(range(10)), n_batches=3, **settings)
    first.run(num_train_batch_per_epoch=5)
    again = stub(list(range(10)), **settings)
    end = again.run(num_train_batch_per_epoch=5, resume_from="auto")
    assert again.driver.seen == [3, 4, 0, 1, 2, 3, 4]  # type: ignore[union-attr]
    assert end.global_forward_batches == 10


# -- settings ----------------------------------------------------------------------------------------------


class Wider(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.hidden = nn.Linear(4, 9)

    def forward(self, x: Any, y: Any, id: Any) -> Any:
        return {"loss": self.hidden(x).mean()}


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"model": Wider}, "model is Regression with 4 tensors, digest .*, this trainer's Wider with 2 tensors"),
        (
            {"optimizer": torch.optim.SGD},
            r"optimizers is \['Adam with groups of \[4\]'\], this trainer's \['SGD with groups",
        ),
        ({"seed": 8}, "seed is 7, this trainer's 8, and seed is fixed for a run: use the old one, or start a new run"),
        (
            {"accumulation_steps": 2},
            "accumulation_steps is 1, this trainer's 2, and accumulation_steps is fixed for a run",
        ),
        ({"precision": "bf16"}, "precision is fp32, this trainer's bf16, and precision is fixed for a run"),
        ({"n": 14}, "data is Indexed of 12 samples by .*, this trainer's Indexed of 14 samples by RandomSampler, and"),
    ],
)
def test_a_fixed_setting_that_changed_is_refused_by_its_old_and_its_new_value(
    run_dir: Path, changed: dict[str, Any], said: str
) -> None:
    """R40, R64: and neither the run nor the live objects are touched."""
    Run(run_dir=run_dir, n_epochs=1).run()
    changed = dict(changed)
    make = changed.pop("optimizer", None)
    again = Run(
        run_dir=run_dir,
        optimizer=make and (lambda p: make(p, lr=0.1)),
        **{k: v for k, v in changed.items() if k != "model"},
    )
    if "model" in changed:
        again.model = changed["model"]()
        optimizer = torch.optim.Adam(again.model.parameters())
        again.trainer = Trainer(
            again.model, "torch", again.loader, optimizer, run_dir=run_dir, seed=7, progress_bar=None
        )
    before, files = again.weights, files_of(run_dir)
    with pytest.raises(SettingsChanged, match=f"this run's {said}"):
        again.run(resume_from="auto")
    assert equal(again.weights, before)
    assert files_of(run_dir) == files


def test_another_machine_is_refused(run_dir: Path) -> None:
    """R57, R64."""
    from tests.test_engine import distilling

    job(run_dir, n_epochs=1).run()
    with pytest.raises(SettingsChanged, match=r"this run's machine is [0-9a-f]{16}, this trainer's [0-9a-f]{16}"):
        distilling(StubDriver(), run_dir).run(resume_from="auto")


def test_a_changeable_setting_takes_effect_and_is_said_and_recorded(run_dir: Path) -> None:
    """R40, B18: the mode of validation too."""
    job(run_dir, n_epochs=1).run()
    again = job(run_dir, n_epochs=2, validate_every=2, snapshot_every=None)
    said = notices(again)
    end = again.run(resume_from="auto")
    assert said == [
        "resumed at 11",
        "n_epochs changed from 1 to 2",
        "validate_every changed from [-1] to [2]",
        "snapshot_every changed from epoch to None",
    ]
    (record,) = sides(run_dir, "resumed")
    assert record["changed"] == {"n_epochs": [1, 2], "validate_every": [[-1], [2]], "snapshot_every": ["epoch", None]}
    assert (end.cur_epoch_idx, end.validations) == (2, 3)


def test_a_seed_that_nobody_gave_is_the_run_s(tmp_path: Path) -> None:
    """R05: whatever torch's seed is in the new process."""

    def run(seed: int, **limit: Any) -> Run:
        torch.manual_seed(seed)
        one = Run(init=seed, noise=False)
        settings = {"n_epochs": 2, "run_dir": tmp_path / "run", "progress_bar": None, **limit}
        one.trainer = Trainer(one.model, "torch", one.loader, one.optimizer, **settings)
        return one

    straight = run(5, run_dir=tmp_path / "straight")
    straight.run()
    run(5, n_batches=5).run()
    again = run(6)
    again.run(resume_from="auto")
    assert again.trainer.seed == 5
    assert equal(again.weights, straight.weights)
    assert again.chain == straight.chain


# -- what is no run ----------------------------------------------------------------------------------------


def test_what_is_no_run_is_refused_and_told_apart(tmp_path: Path) -> None:
    """A2.R3, R64: a bare file, an empty folder, a directory of runs, an incomplete snapshot: each has a sentence."""
    torch.save({"w": torch.ones(1)}, tmp_path / "model.pt")
    (tmp_path / "empty").mkdir()
    job(tmp_path / "runs" / "one", n_epochs=1).run()
    (tmp_path / "runs" / "one" / "snapshots" / "000000000099").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "run.json").write_text("{")
    for path, error, said in (
        (tmp_path / "nothing", FileNotFoundError, "resume_from: there is nothing at "),
        (tmp_path / "model.pt", NotARun, "model.pt is a file, and no run. resume_from takes a run directory, or a "),
        (tmp_path / "empty", NotARun, "empty isn't a run directory: it has no run.json. "),
        (tmp_path / "runs", NotARun, r"runs isn't a run directory: it has no run.json. Runs in .*: one."),
        (tmp_path / "broken", NotARun, "broken/run.json can't be read: "),
        (tmp_path / "runs/one/snapshots/000000000099", SnapshotFault, "isn't a complete snapshot: it has no COMMIT"),
    ):
        trainer = job(None)
        with pytest.raises(error, match=said):
            trainer.run(resume_from=path)
        assert trainer.driver.calls == []  # type: ignore[union-attr]


def test_a_newer_format_is_refused(run_dir: Path) -> None:
    """R64."""
    job(run_dir, n_epochs=1).run()
    about = json.loads((run_dir / "run.json").read_text())
    (run_dir / "run.json").write_text(json.dumps({**about, "format": about["format"] + 1}))
    with pytest.raises(NotARun, match=r"is of format 2, but this version reads up to 1: upgrade tachograph"):
        job(run_dir).run(resume_from="auto")
    (run_dir / "run.json").write_text(json.dumps(about))
    snapshot = max(s.path for s in catalogue(run_dir)[0])
    commit = json.loads((snapshot / "COMMIT").read_text())
    (snapshot / "COMMIT").write_text(json.dumps({**commit, "format": commit["format"] + 1}))
    with pytest.raises(SnapshotFault, match="is of format 2, this version reads up to 1: upgrade tachograph"):
        job(run_dir).run(resume_from=snapshot)


def test_a_run_that_another_process_writes_is_refused_until_that_process_is_gone(
    run_dir: Path, straight: Trainer
) -> None:
    """R64, R03: a real process, really killed."""
    read, write = os.pipe()

    def work() -> None:
        trainer = job(run_dir)

        def wait(trainer: Any) -> None:
            if trainer.global_forward_batches == 4:
                os.write(write, b"x")
                signal.pause()

        trainer.on(Events.on_train_batch_end, wait)
        trainer.run()

    pid = in_child(work)
    assert os.read(read, 1) == b"x"
    with pytest.raises(
        JournalBusy, match=f"is being written by process {pid} on .*; a journal has one writer at a time"
    ):
        job(run_dir).run(resume_from="auto")
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    again = job(run_dir)
    again.run(resume_from="auto")
    expect_same_end(again, straight)


def test_two_trainers_cannot_write_one_run(run_dir: Path) -> None:
    first = job(run_dir)
    caught: list[str] = []

    def intrude(trainer: Any) -> None:
        with pytest.raises((JournalBusy, CallerError)) as error:
            job(run_dir).run(resume_from="auto")
        caught.append(str(error.value))

    first.on(Events.on_train_batch_end(once=2), intrude)
    assert first.run().state == "done"
    assert "is being written by process" in caught[0]


# -- snapshots that are damaged ----------------------------------------------------------------------------


def flip(path: Path, at: float = 0.5) -> None:
    raw = bytearray(path.read_bytes())
    raw[int((len(raw) - 1) * at)] ^= 1
    path.write_bytes(bytes(raw))


DAMAGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a flipped bit": (flip, "isn't what was written: its digest differs|can't be read"),
    "a missing file": (Path.unlink, "is missing|it has no COMMIT"),
    "a cut file": (lambda path: path.write_bytes(path.read_bytes()[:-7]), "bytes instead of|can't be read"),
    "an empty file": (lambda path: path.write_bytes(b""), "bytes instead of|can't be read"),
    "a longer file": (lambda path: path.write_bytes(path.read_bytes() + b"\0"), "bytes instead of|can't be read"),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("name", ["rank-0.json", "state.json", "COMMIT"])
def test_a_damaged_snapshot_is_passed_over_with_a_word_and_the_one_before_it_is_used(
    run_dir: Path, straight: Trainer, name: str, damage: str
) -> None:
    """R03, R12, B31: and the records past it are re-executed and match."""
    crashed(run_dir)
    *_, before, last = catalogue(run_dir)[0]
    harm, said = DAMAGES[damage]
    harm(last.path / name)
    again = job(run_dir)
    heard = notices(again)
    with pytest.warns(UserWarning, match=f"{last.path.name} was passed over: .*({said})") as caught:
        again.run(resume_from="auto")
    assert len(caught) == 1
    assert heard[0].startswith(f"resumed at {before.seq}; ")
    assert heard[1].endswith("re-executed transitions match")
    (record,) = sides(run_dir, "resumed")
    assert (record["at"], len(record["passed_over"])) == (before.seq, 1)
    expect_same_end(again, straight)


@pytest.mark.parametrize("name", ["model.pt", "rank-0.pt"])
def test_a_flipped_bit_in_torch_s_files_is_seen(run_dir: Path, name: str) -> None:
    """R03: torch itself would load it silently."""
    settings: dict[str, Any] = {"run_dir": run_dir, "n_epochs": 3}
    Run(**{**settings, "n_epochs": 2}).run()
    last = catalogue(run_dir)[0][-1]
    flip(last.path / name, 0.7)
    with pytest.warns(UserWarning, match=f"{last.path.name} was passed over: {name} isn't what was written"):
        Run(**settings).run(resume_from="auto")
    straight = Run(run_dir=run_dir.with_name("straight"), n_epochs=3)
    straight.run()
    assert Journal(run_dir).chain == straight.chain


def test_any_flipped_bit_of_a_commit_is_seen(tmp_path: Path, straight: Trainer) -> None:
    """R03: its sequence number, its chain, its sizes and names included."""
    crashed(tmp_path / "run")
    last = catalogue(tmp_path / "run")[0][-1]
    size = (last.path / "COMMIT").stat().st_size
    for at in range(0, size, 9):
        run_dir = tmp_path / str(at)
        shutil.copytree(tmp_path / "run", run_dir)
        flip(run_dir / "snapshots" / last.path.name / "COMMIT", at / (size - 1))
        again = job(run_dir)
        with warnings.catch_warnings(record=True):
            warnings.simplefilter("always")
            again.run(resume_from="auto")
        expect_same_end(again, straight)
        shutil.rmtree(run_dir)


def test_where_every_snapshot_is_damaged_the_run_begins_again_and_is_held_against_all_it_had_recorded(
    run_dir: Path, straight: Trainer
) -> None:
    """R03."""
    crashed(run_dir)
    found = catalogue(run_dir)[0]
    for snapshot in found:
        flip(snapshot.path / "rank-0.json")
    again = job(run_dir)
    heard = notices(again)
    with pytest.warns(UserWarning, match="was passed over") as caught:
        again.run(resume_from="auto")
    assert len(caught) == len(found) == 2
    recorded = 26
    assert heard == [
        f"resumed from the beginning: there was no snapshot; {recorded} recorded transitions to re-execute",
        f"resumed at 0; {recorded} of {recorded} re-executed transitions match",
    ]
    expect_same_end(again, straight)


def test_what_a_writer_that_died_left_half_done_is_cleared_away_and_never_used(
    run_dir: Path, straight: Trainer
) -> None:
    """R03."""
    crashed(run_dir)
    last = catalogue(run_dir)[0][-1]
    shutil.copytree(last.path, run_dir / "snapshots" / ".writing-000000000999.i0")
    again = job(run_dir)
    again.run(resume_from="auto")
    assert not list((run_dir / "snapshots").glob(".writing-*"))
    expect_same_end(again, straight)


class Full(StubDriver):
    """A driver whose disk is full from its n-th snapshot on."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.left = n

    def save(self, *given: Any) -> Any:
        self.left -= 1
        if self.left < 0:
            (given[-1] / "rank-0.json").write_bytes(b"half")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().save(*given)


def test_a_snapshot_that_cannot_be_written_leaves_the_earlier_ones_and_nothing_half_done(
    run_dir: Path, straight: Trainer
) -> None:
    """R12."""
    with pytest.raises(
        SnapshotWriteFault, match=f"couldn't be written to {run_dir}/snapshots: .*No space left on device"
    ):
        job(run_dir, Full(1)).run()
    assert [snapshot.fault() for snapshot in catalogue(run_dir)[0]] == [""]
    assert not list((run_dir / "snapshots").glob(".*"))
    again = job(run_dir)
    again.run(resume_from="auto")
    expect_same_end(again, straight)


def doctored(run_dir: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change the last snapshot of a run as somebody would who signs it anew."""
    last = catalogue(run_dir)[0][-1].path
    held = torch.load(last / "rank-0.pt", weights_only=True)
    change(held)
    torch.save(held, last / "rank-0.pt")
    raw = (last / "rank-0.pt").read_bytes()
    commit = json.loads((last / "COMMIT").read_text())
    commit["files"]["rank-0.pt"] = [len(raw), hashlib.blake2b(raw, digest_size=16).hexdigest()]
    del commit["digest"]
    (last / "COMMIT").write_text(json.dumps({**commit, "digest": digest_of_commit(commit)}))


@pytest.mark.parametrize("key", ["generators", "gradients", "evaluating", "extra", "optimizers", "scaler", "batch_ids"])
def test_a_snapshot_that_lacks_an_entry_is_refused_by_its_name_and_nothing_is_half_restored(
    run_dir: Path, key: str
) -> None:
    """R18, R35: a generator that can't be restored is no matter of an info message."""
    Run(run_dir=run_dir, n_epochs=1).run()
    doctored(run_dir, lambda held: held.pop(key))
    again = Run(run_dir=run_dir)
    before = again.weights
    with pytest.raises(RestoreFault, match=f"the snapshot lacks the entry '{key}'"):
        again.run(resume_from="auto")
    assert equal(again.weights, before)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda held: held["optimizers"].append(held["optimizers"][0]),
            "the snapshot holds 2 optimizers, this trainer 1",
        ),
        (lambda held: held.update(scaler={"scale": 1.0}), "the snapshot has a gradient scaler, the trainer has none"),
    ],
)
def test_an_entry_without_an_owner_is_refused(run_dir: Path, change: Any, said: str) -> None:
    Run(run_dir=run_dir, n_epochs=1).run()
    doctored(run_dir, change)
    with pytest.raises(RestoreFault, match=said):
        Run(run_dir=run_dir).run(resume_from="auto")


def test_everything_in_a_snapshot_is_plain_data_and_tensors(run_dir: Path) -> None:
    """R19, R68: and the set of entries covers whatever the run owns."""
    Run(run_dir=run_dir, n_epochs=1, precision="fp16").run()
    for snapshot in catalogue(run_dir)[0]:
        held = torch.load(snapshot.path / "rank-0.pt", weights_only=True)
        assert {"optimizers", "scaler", "generators", "gradients", "evaluating", "batch", "extra"} <= set(held)
        assert set(held["generators"]) >= {"python", "numpy", "torch"}
        assert set(held["extra"]) == {"listeners", "user", "own"}
        assert held["scaler"]["scale"] > 0
        assert "hidden.weight" in torch.load(snapshot.path / "model.pt", weights_only=True)
        assert json.loads((snapshot.path / "state.json").read_text())["state"]["seq"] == snapshot.seq


# -- from a snapshot, to another place ---------------------------------------------------------------------


def test_a_given_snapshot_is_the_point_where_the_run_goes_on(run_dir: Path, straight: Trainer) -> None:
    """K14, R66: what was recorded after it is held against what comes now."""
    job(run_dir, snapshot_every=1).run()
    for snapshot in catalogue(run_dir)[0][1::3]:
        again = job(run_dir, snapshot_every=1)
        heard = notices(again)
        again.run(resume_from=snapshot.path)
        n = straight.trainer_state.seq - 1 - snapshot.seq
        assert heard[0].startswith(f"resumed at {snapshot.seq}")
        if n:
            assert heard[-1] == f"resumed at {snapshot.seq}; {n} of {n} re-executed transitions match"
        expect_same_end(again, straight)


def test_a_given_snapshot_that_is_damaged_is_refused_and_no_other_is_taken(run_dir: Path) -> None:
    """R03."""
    job(run_dir).run()
    last = catalogue(run_dir)[0][-1].path
    flip(last / "rank-0.json")
    with pytest.raises(
        SnapshotFault, match=r"is damaged: rank-0.json isn't what was written: its digest differs. Give another"
    ):
        job(run_dir).run(resume_from=last)


@pytest.mark.parametrize("given", ["run", "snapshot"])
def test_a_run_that_is_resumed_into_another_place_is_a_run_of_its_own(
    tmp_path: Path, straight: Trainer, given: str
) -> None:
    """R12: the source stays as it is, and the new run doesn't need it any more."""
    source = tmp_path / "source"
    job(source, n_epochs=1).run()
    files = files_of(source)
    last = catalogue(source)[0][-1]
    other = job(tmp_path / "other")
    other.run(resume_from=source if given == "run" else last.path)
    assert files_of(source) == files
    about = json.loads((tmp_path / "other" / "run.json").read_text())
    parent = json.loads((source / "run.json").read_text())["run"]
    point = {"incarnation": 0, "seq": last.seq, "chain": last.chain}
    assert about["parent"] == {"run": parent, **point, "run_dir": str(source)}
    assert about["run"] != parent
    assert other.trainer_state == straight.trainer_state
    assert other.journal.chain == straight.journal.chain  # type: ignore[union-attr]
    shutil.rmtree(source)
    again = job(tmp_path / "other", n_epochs=4)
    assert again.run(resume_from="auto").cur_epoch_idx == 4


def test_a_trainer_that_was_left_to_choose_its_place_goes_on_in_the_run_s(
    run_dir: Path, straight: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(run_dir.parent)
    job(run_dir, n_epochs=1).run()
    again = job("auto")  # type: ignore[arg-type]
    again.run(resume_from=run_dir)
    assert again.run_dir == run_dir
    assert not (run_dir.parent / "runs").exists()
    expect_same_end(again, straight)


def test_only_the_model_and_the_optimizers_may_be_taken_into_a_new_run(tmp_path: Path) -> None:
    """SV13, SV11."""
    first = Run(run_dir=tmp_path / "first", n_epochs=2)
    first.run()
    fresh = Run(run_dir=tmp_path / "second", n_epochs=1, init=99)
    began: list[Any] = []
    fresh.trainer.on(Events.on_train_begin, lambda t: began.append((fresh.weights, len(fresh.optimizer.state))))
    end = fresh.run(resume_from=tmp_path / "first", resume_training=False)
    weights, moments = began[0]
    assert equal(weights, first.weights)
    assert moments == len(first.optimizer.state)
    assert (end.cur_epoch_idx, end.global_forward_batches) == (1, 6)
    assert transitions(tmp_path / "second")[0].startswith("init")
    assert json.loads((tmp_path / "second" / "run.json").read_text())["parent"] is None


# -- divergence --------------------------------------------------------------------------------------------


def shifted(batch: Any, n: int) -> float:
    """A loss that is another one from the ninth step on."""
    return float(n + (n >= 8) * 0.5)


def test_a_re_executed_run_that_parts_from_the_recorded_one_is_told_once_and_goes_on(run_dir: Path) -> None:
    """R38, R66: the first transition and the first field; the run is the new one from there on."""
    driver = StubDriver(lambda batch, n: float(n))
    first = job(run_dir, driver)
    first.run()
    point = catalogue(run_dir)[0][1]
    again = job(run_dir, StubDriver(shifted))
    heard = notices(again)
    with pytest.warns(
        UserWarning, match=r"the re-executed run parts from the recorded one at transition \d+: data.loss is 8.0"
    ):
        again.run(resume_from=point.path)
    (found,) = sides(run_dir, "diverged")
    at = next(r.seq for r in Journal(run_dir) if r.event == "Stepped" and r.state.global_forward_batches == 9)
    assert (found["at"], found["field"], found["recorded"], found["found"]) == (at, "data.loss", "8.0", "8.5")
    assert found["matched"] == at - point.seq - 1
    assert sum("parts from the recorded one" in text for text in heard) == 1
    assert again.trainer_state.state == "done"
    third = job(run_dir, StubDriver(shifted))
    third.run(resume_from=point.path)
    assert len(sides(run_dir, "diverged")) == 0, "the newest account of a transition is what counts"


@pytest.mark.parametrize("how", ["error", "stop", "limit"])
def test_ending_earlier_than_the_recorded_run_is_no_divergence(run_dir: Path, straight: Trainer, how: str) -> None:
    """R38, R66: a second fault in the middle of what is done again."""
    job(run_dir).run()
    point = catalogue(run_dir)[0][0]
    again = job(run_dir, crash_at(2) if how == "error" else None, n_epochs=2 if how == "limit" else 3)
    if how == "stop":
        again.on("step -> fetch", lambda trainer: trainer.stop("enough"))
    with contextlib.suppress(SystemError), warnings.catch_warnings():
        warnings.simplefilter("error")
        again.run(resume_from=point.path, on_divergence="raise")
    assert again.trainer_state.seq < straight.trainer_state.seq
    assert sides(run_dir, "diverged") == []
    (matched,) = sides(run_dir, "matched")
    assert matched["matched"] == again.trainer_state.seq - point.seq - 1
    again = job(run_dir)
    again.run(resume_from="auto")
    expect_same_end(again, straight)


def counting(trainer: Trainer) -> Trainer:
    """A trainer whose own state counts how often a batch was asked for."""
    trainer.on("fetch", lambda t: t.state.update(fetches=t.state.get("fetches", 0) + 1))
    return trainer


@pytest.mark.parametrize("at", range(1, 10))
def test_a_journal_that_fails_in_the_middle_of_what_is_done_again_lets_the_next_process_in(
    run_dir: Path, straight: Trainer, at: int
) -> None:
    """R59: the lock is free, so that the same program may try again; and every listener has heard everything once."""
    with pytest.raises(SystemError):
        counting(job(run_dir, crash_at(2), snapshot_every=None)).run()
    for snapshot in catalogue(run_dir)[0]:
        shutil.rmtree(snapshot.path)
    again = counting(job(run_dir, snapshot_every=None))
    again.world = World(files=HalfThen(("write",), at, OSError(errno.ENOSPC, "")))
    with pytest.raises(JournalWriteError, match="ENOSPC"):
        again.run(resume_from="auto")
    third = counting(job(run_dir))
    third.run(resume_from="auto")
    expect_same_end(third, straight)
    assert third.state["fetches"] == sum(record.dest == "fetch" for record in Journal(run_dir))


@pytest.mark.parametrize("at", range(1, 6))
def test_a_record_that_the_journal_could_not_take_travels_in_the_snapshot_be_it_the_very_first(
    run_dir: Path, straight: Trainer, at: int
) -> None:
    trainer = counting(job(run_dir))
    trainer.world = World(files=HalfThen(("write",), at, OSError(errno.ENOSPC, "")))
    with pytest.raises(JournalWriteError, match="ENOSPC"):
        trainer.run()
    fork = counting(job(run_dir.with_name("fork")))
    fork.run(resume_from=run_dir)
    with pytest.raises(SystemError):  # a process that dies before it has a snapshot of its own
        counting(job(run_dir, crash_at(1))).run(resume_from="auto")
    for snapshot in catalogue(run_dir)[0]:
        if not snapshot.exact:
            shutil.rmtree(snapshot.path)
    again = counting(job(run_dir))
    again.run(resume_from="auto")
    expect_same_end(again, straight)
    fetches = sum(record.dest == "fetch" for record in Journal(run_dir))
    assert (again.state["fetches"], fork.state["fetches"]) == (fetches, fetches)


def failed_journal(run_dir: Path, at: int) -> Path:
    """A run whose journal failed; return the snapshot that carries the record which it lacks."""
    trainer = counting(job(run_dir))
    trainer.world = World(files=HalfThen(("write",), at, OSError(errno.ENOSPC, "")))
    with pytest.raises(JournalWriteError):
        trainer.run()
    return catalogue(run_dir)[0][-1].path


def test_a_snapshot_that_carries_a_record_can_be_gone_on_from_again_when_another_process_has_written_it(
    run_dir: Path, straight: Trainer
) -> None:
    source = failed_journal(run_dir, 4)
    with pytest.raises(SystemError):
        counting(job(run_dir, crash_at(2))).run(resume_from="auto")
    again = counting(job(run_dir))
    again.run(resume_from=source)
    expect_same_end(again, straight)
    fork = counting(job(run_dir.with_name("fork")))
    fork.run(resume_from=source, num_eval_sanity_batch=2)
    first = counting(job(run_dir.with_name("fork")))
    first.run(resume_from=catalogue(run_dir.with_name("fork"))[0][0].path)
    fetches = sum(record.dest == "fetch" for record in Journal(run_dir))
    assert (again.state["fetches"], fork.state["fetches"], first.state["fetches"]) == (fetches,) * 3


def test_a_snapshot_past_the_end_of_what_power_left_of_the_journal_is_passed_over(
    run_dir: Path, straight: Trainer
) -> None:
    """The disk took nothing more, then the power went: the snapshot has the last record, and those before are gone."""
    source = failed_journal(run_dir, 4)
    mark = read_mark(run_dir / "journal" / "rank-0")
    assert mark is not None
    os.truncate(run_dir / "journal" / "rank-0" / mark.file, mark.bytes)
    again = counting(job(run_dir))
    with pytest.raises(SnapshotFault, match=r"can't be gone on from: the journal ends at \d+, and lacks what leads"):
        again.run(resume_from=source)
    again = counting(job(run_dir))
    with pytest.warns(UserWarning, match=f"{source.name} was passed over: the journal ends at"):
        again.run(resume_from="auto")
    expect_same_end(again, straight)
    assert again.state["fetches"] == sum(record.dest == "fetch" for record in Journal(run_dir))


class Noting(Files):
    """Files that note in which order names come into being and to the disk."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def open_append(self, path: Path) -> int:
        self.notes.append(f"create {path.name}")
        return super().open_append(path)

    def rename(self, source: Path, dest: Path) -> None:
        self.notes.append(f"name {dest.name}")
        super().rename(source, dest)

    def fsync_dir(self, path: Path) -> None:
        self.notes.append(f"sync {path.name}")
        super().fsync_dir(path)


def test_what_a_run_is_lies_on_the_disk_before_its_journal_begins(run_dir: Path) -> None:
    """Else a power cut could leave a journal that belongs to no run."""
    trainer = job(run_dir)
    trainer.world = World(files=Noting())
    trainer.run()
    notes = trainer.world.files.notes  # type: ignore[attr-defined]
    begins = notes.index("create 000000000000.i0.jsonl")
    assert notes.index("name run.json") < notes.index("sync run", notes.index("name run.json")) < begins
    assert notes.index(f"sync {run_dir.parent.name}") < begins


def test_a_stop_that_was_asked_for_when_a_signal_came_is_still_asked_for_after_it(tmp_path: Path) -> None:
    """R11: the signal ended the run, so nobody has heeded the stop yet."""

    def asking(name: str, number: int | None = None) -> Trainer:
        trainer = job(tmp_path / name)

        def ask(trainer: Trainer) -> None:
            if trainer.global_forward_batches == 4:
                trainer.stop("enough")
                if number is not None:
                    trainer.interrupt(number)

        trainer.on("step -> fetch", ask)
        return trainer

    straight = asking("straight")
    straight.run()
    with pytest.raises(SystemExit):
        asking("run", signal.SIGTERM).run()
    again = asking("run")
    assert again.run(resume_from="auto").stop_asked == "enough"
    assert again.trainer_state == straight.trainer_state
    assert diff(tmp_path / "straight", tmp_path / "run") is None
    assert asking("run").run(resume_from="auto").cur_epoch_idx == 3, "now it has ended, and whoever asked may ask again"


def test_a_divergence_may_be_an_error(run_dir: Path) -> None:
    """R38."""
    job(run_dir, StubDriver(lambda batch, n: float(n))).run()
    point = catalogue(run_dir)[0][0]
    again = job(run_dir, StubDriver(shifted))
    with pytest.raises(Diverged, match=r"data.loss is 8.0 in the one and 8.5 in the other") as caught:
        again.run(resume_from=point.path, on_divergence="raise")
    divergence = caught.value.divergence
    assert (divergence.field, divergence.a, divergence.b) == ("data.loss", 8.0, 8.5)
    assert again.trainer_state.state == "exception"
    assert transitions(run_dir)[-1].endswith("--Failed--> exception")


def test_another_initialisation_is_found_where_there_was_no_snapshot(run_dir: Path) -> None:
    """R38: a killed process, a new one with other weights: the samples and the generators agree, the loss doesn't."""

    def work() -> None:
        run = Run(run_dir=run_dir, snapshot_every=None, noise=False)
        run.trainer.on(
            Events.on_train_batch_end, lambda t: t.global_forward_batches == 5 and os.kill(os.getpid(), signal.SIGKILL)
        )
        run.run()

    os.waitpid(in_child(work), 0)
    again = Run(run_dir=run_dir, snapshot_every=None, noise=False, init=8)
    with pytest.warns(UserWarning, match="parts from the recorded one at transition 4: data.loss is"):
        again.run(resume_from="auto")
    (found,) = sides(run_dir, "diverged")
    assert (found["at"], found["field"], found["matched"]) == (4, "data.loss", 3)


def test_other_data_is_found_at_its_first_batch(run_dir: Path) -> None:
    """R38: the data set says the same of itself, and holds something else."""
    straight = Run(run_dir=run_dir, n_epochs=3, noise=False)
    straight.run()
    point = catalogue(run_dir)[0][0]
    again = Run(run_dir=run_dir, n_epochs=3, noise=False)

    class Other(Indexed):
        def __getitem__(self, index: int) -> Any:
            sample = super().__getitem__(index)
            return {**sample, "y": sample["y"] + (index == 3)}

    Other.__name__ = "Indexed"
    again.loader = DataLoader(Other(12), batch_size=2, shuffle=True)
    settings = {"n_epochs": 3, "run_dir": run_dir, "progress_bar": None, "seed": 7}
    again.trainer = Trainer(again.model, "torch", again.loader, again.optimizer, **settings)
    with pytest.raises(Diverged) as caught:
        again.run(resume_from=point.path, on_divergence="raise")
    assert caught.value.divergence.field == "data.loss"
    assert 3 in again.model.seen[-1]


# -- errors and Ctrl-C -------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["train_step", "next_batch", "evaluate_step", "optimizer_step", "listener"])
def test_ctrl_c_anywhere_is_seen_by_the_caller_and_the_run_can_be_resumed(
    run_dir: Path, straight: Trainer, place: str
) -> None:
    """R25: struck in the middle of a state's work, it goes on from the last exact snapshot."""

    def strike(driver: StubDriver) -> None:
        if driver.calls.count("train_step") == 5 or (place == "evaluate_step" and len(driver.seen) == 6):
            raise KeyboardInterrupt

    trainer = job(run_dir, StubDriver(on={} if place == "listener" else {place: strike}))
    if place == "listener":
        trainer.on("fetch", lambda trainer: strike(trainer.driver))
    heard: list[BaseException] = []
    trainer.on(Events.on_exception, lambda trainer, exception: heard.append(exception))
    with pytest.raises(KeyboardInterrupt) as caught:
        trainer.run()
    assert heard == [caught.value]
    last = Journal(run_dir).last
    assert last is not None
    assert (last.dest, last.data["kind"]) == ("exception", "KeyboardInterrupt")
    again = job(run_dir)
    again.run(resume_from="auto")
    expect_same_end(again, straight)


def test_where_only_an_inexact_snapshot_is_left_it_is_used_with_a_warning(run_dir: Path) -> None:
    """R25: better than nothing, and said."""
    with pytest.raises(SystemError):
        job(run_dir, crash_at(2)).run()
    (snapshot,) = catalogue(run_dir)[0]
    assert not snapshot.exact
    again = job(run_dir)
    with pytest.warns(
        UserWarning, match="was taken when an error had struck inside a state's work: what follows isn't exact"
    ):
        end = again.run(resume_from="auto")
    assert (end.state, end.cur_epoch_idx, end.global_forward_batches) == ("done", 3, 9)


def test_a_crash_is_a_determinism_check(run_dir: Path, straight: Trainer) -> None:
    """R66: "resumed at 20; 5 of 5 re-executed transitions match"."""
    crashed(run_dir)
    point = catalogue(run_dir)[0][-1]
    recorded = [r.seq for r in Journal(run_dir) if r.event != "Failed"][-1]
    again = job(run_dir)
    heard = notices(again)
    again.run(resume_from="auto")
    n = recorded - point.seq
    assert n > 0
    assert heard == [
        f"resumed at {point.seq}; {n} recorded transitions to re-execute",
        f"resumed at {point.seq}; {n} of {n} re-executed transitions match",
    ]
    assert sides(run_dir, "matched") == [{"matched": n, "of": n}]
    lives = Journal(run_dir).incarnations
    assert [life.number for life in lives] == [0, 1]
    assert lives[1].parent is not None
    assert (lives[1].parent.seq, lives[1].parent.chain) == (point.seq, point.chain)
    expect_same_end(again, straight)


class Fails:
    """Writes to files below a directory fail from the n-th on, as on a full disk; other writes don't."""

    def __init__(self, below: Path, n: int) -> None:
        self.below, self.n, self.real = str(below), n, os.write

    def __call__(self, fd: int, data: bytes) -> int:
        if os.readlink(f"/proc/self/fd/{fd}").startswith(self.below):
            self.n -= 1
            if self.n < 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self.real(fd, data)


EACH_A_LINE, HELD = 0.0, math.inf
"""Seconds within which steps are so quick that they are held: never, always."""


@pytest.mark.parametrize(
    ("quick", "n"),
    [
        *((EACH_A_LINE, n) for n in (2, 3, 4, 7, 9, 10, 11, 12, 13, 15, 20, 27, 30, 33, 34)),
        *((HELD, n) for n in range(2, 17)),
    ],
)
def test_a_record_that_the_journal_could_not_take_travels_in_the_snapshot(
    run_dir: Path, straight: Trainer, monkeypatch: pytest.MonkeyPatch, quick: float, n: int
) -> None:
    """The disk fills up at the n-th write: the run stops with the reason, and nothing of it is lost."""
    monkeypatch.setattr(holding, "QUICK", quick)
    trainer = job(run_dir)
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", Fails(run_dir / "journal", n))
        with pytest.raises(JournalWriteError, match=r"can't write .*: No space left on device \(ENOSPC\)") as caught:
            trainer.run()
    assert trainer.exception is caught.value
    snapshots = catalogue(run_dir)[0]
    again = job(run_dir)
    said = notices(again)
    again.run(resume_from="auto")
    if snapshots:
        assert said[0].startswith(f"resumed at {snapshots[-1].seq}")
    expect_same_end(again, straight)
    assert Journal(run_dir).verify_chain() == straight.journal.chain  # type: ignore[union-attr]


@pytest.mark.parametrize("quick", [EACH_A_LINE, HELD])
def test_listeners_hear_the_record_that_travelled_once(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch, quick: float
) -> None:
    """A transition that was committed, but that nobody could hear of, is heard after the resume; none comes twice."""
    monkeypatch.setattr(holding, "QUICK", quick)
    heard: list[int] = []

    def listening() -> Trainer:
        trainer = job(run_dir, snapshot_every=None)
        trainer.on(Events.on_train_batch_end, lambda trainer: heard.append(trainer.global_forward_batches))
        return trainer

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", Fails(run_dir / "journal", 7))
        with pytest.raises(JournalWriteError):
            listening().run()
    before = list(heard)
    listening().run(resume_from="auto")
    assert heard == list(range(1, 10))
    assert before == ([1] if quick == EACH_A_LINE else [1, 2, 3])


# -- listeners ---------------------------------------------------------------------------------------------


class Remembers(Callback):
    def __init__(self, name: str = "Remembers") -> None:
        self._name, self.heard = name, []

    @property
    def callback_name(self) -> str:
        return self._name

    def on_train_batch_end(self, trainer: Any) -> None:
        self.heard.append(trainer.global_forward_batches)

    def state_dict(self) -> dict[str, Any]:
        return {"heard": self.heard}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.heard = state["heard"]


class RemembersSome(Remembers):
    @Filter(every=2)
    def on_train_batch_end(self, trainer: Any) -> None:
        super().on_train_batch_end(trainer)


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ([Remembers("a")], [], "the snapshot holds the state of the callback 'a', which this trainer lacks"),
        ([], [Remembers("a")], "the snapshot lacks the state of the callback 'a', which this trainer has"),
    ],
)
def test_an_owner_without_an_entry_and_an_entry_without_an_owner_are_named(
    run_dir: Path, before: Any, after: Any, said: str
) -> None:
    """SV2, R35: strict by default, and nothing was changed; otherwise one warning for each."""
    job(run_dir, n_epochs=1, callbacks=before).run()
    again = job(run_dir, callbacks=after)
    with pytest.raises(RestoreMismatch, match=f"{said}. Give the same callbacks and listeners, or run"):
        again.run(resume_from="auto")
    assert (again.driver.weight, again.driver.seen) == (1, [])  # type: ignore[union-attr]
    once_more = job(run_dir, callbacks=after)
    with pytest.warns(UserWarning, match=said):
        assert once_more.run(resume_from="auto", strict=False).state == "done"


def test_a_filter_that_the_snapshot_does_not_know_is_named(run_dir: Path) -> None:
    """B5, F7."""
    job(run_dir, n_epochs=1).run()
    again = job(run_dir)
    again.on(Events.on_train_batch_end(every=2), lambda trainer: None)
    with pytest.raises(
        RestoreMismatch, match=r"the snapshot lacks the counts of the filter '.*<lambda>/on_train_batch_end'"
    ):
        again.run(resume_from="auto")


class Log(Callback):
    """Writes down somewhere outside what it hears."""

    outside_effects = True

    def __init__(self, lines: list[int]) -> None:
        self._lines = lines

    def on_train_batch_end(self, trainer: Any) -> None:
        self._lines.append(trainer.global_forward_batches)


@pytest.mark.parametrize("n", range(4, 9))
def test_a_logger_writes_each_point_once_and_others_rebuild_their_memory(run_dir: Path, n: int) -> None:
    """R56: the process dies past its last snapshot, and the next one goes the way again."""
    lines: list[int] = []
    crashed(run_dir, n, callbacks=[Log(lines), RemembersSome()])
    assert lines == list(range(1, n))
    again = RemembersSome()
    job(run_dir, callbacks=[Log(lines), again]).run(resume_from="auto")
    assert lines == list(range(1, 10))
    assert again.heard == [2, 4, 6, 8]


def test_nothing_is_heard_of_the_past_but_that_the_run_goes_on(run_dir: Path) -> None:
    """R56: the state is re-entered without a callback being called again."""
    from tests.toys import scribe

    log: list[str] = []
    job(run_dir, n_batches=4).run()
    job(run_dir, n_batches=5, callbacks=scribe(log)).run(resume_from="auto")
    assert log == [
        *("on_after_trainer_initialized", "on_notice", "on_notice", "on_after_resume"),
        *("on_fetch_data_end", "on_train_batch_begin", "on_before_backward", "on_after_backward"),
        *("on_before_optimizer_step", "on_after_optimizer_step", "on_before_zero_grad", "on_after_zero_grad"),
        *(
            "on_train_batch_end",
            "on_fetch_data_begin",
            "on_fetch_data_end",
            "on_stop",
            "on_train_end",
            "on_after_snapshot",
        ),
    ]


def test_a_chain_of_resumes_after_every_batch_is_the_straight_run(run_dir: Path, straight: Trainer) -> None:
    """R26: positions are absolute."""
    for n in range(1, 10):
        trainer = job(run_dir, n_batches=n)
        trainer.run(resume_from="auto")
        assert len(trainer.driver.seen) == 1  # type: ignore[union-attr]
    trainer = job(run_dir)
    trainer.run(resume_from="auto")
    expect_same_end(trainer, straight)


def test_a_forked_run_has_a_journal_of_its_own_that_begins_where_it_was_forked(tmp_path: Path) -> None:
    def build(name: str, n_epochs: int) -> Trainer:
        return Trainer(
            None, StubDriver(), list(range(10)), None, n_epochs=n_epochs, run_dir=tmp_path / name, progress_bar=None
        )

    build("a", 2).run()
    fork = build("fork", 3)
    fork.run(resume_from=tmp_path / "a")
    journal = Journal(tmp_path / "fork")
    assert journal.verify_chain() == journal.chain
    assert next(iter(journal)).event == "EpochEnded"
    again = build("fork", 4)  # the fork depends on none of its parent's files
    again.run(resume_from="auto")
    straight = build("straight", 4)
    straight.run()
    assert Journal(tmp_path / "fork").chain == straight.journal.chain  # type: ignore[union-attr]
    assert diff(tmp_path / "a", tmp_path / "fork") is None


def test_a_second_run_after_a_signal_at_an_epoch_s_end_ends_that_epoch_for_everybody(
    run_dir: Path, straight: Trainer
) -> None:
    """R41, R57: the signal came before the end of the epoch was counted, so nobody has heard it yet."""
    trainer = job(run_dir)
    ended: list[int] = []
    trainer.on(Events.on_train_epoch_end, lambda t: ended.append(t.cur_epoch_idx))
    trainer.on("fetch -> epoch_end", lambda t: t.interrupt(signal.SIGTERM) if t.cur_epoch_idx == 0 else None)
    trainer.on("validate -> epoch_end", lambda t: t.interrupt(signal.SIGTERM) if t.cur_epoch_idx == 0 else None)
    with pytest.raises(SystemExit):
        trainer.run()
    assert trainer.run().state == "done"
    assert ended == [1, 2, 3]
    expect_same_end(trainer, straight)


def test_a_second_run_does_not_step_a_schedule_of_epochs_twice(tmp_path: Path) -> None:
    """R37: a loader, an optimizer and a scheduler that know nothing of the two calls."""

    def build(name: str, n_epochs: int) -> Trainer:
        torch.manual_seed(3)
        model = torch.nn.Linear(2, 1)
        model.train_step = lambda batch: {"loss": model(batch).pow(2).mean()}  # type: ignore[assignment]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        schedule = LRSchedule(torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5), step_on="epoch")
        return Trainer(
            model,
            "torch",
            DataLoader(torch.randn(6, 2).tolist(), 2, collate_fn=torch.tensor),
            optimizer,
            n_epochs=n_epochs,
            callbacks=schedule,
            run_dir=tmp_path / name,
            progress_bar=None,
        )

    straight, twice = build("straight", 3), build("twice", 2)
    straight.run()
    twice.run()
    twice.n_epochs = 3  # type: ignore[attr-defined]
    twice.run()
    assert diff(tmp_path / "straight", tmp_path / "twice") is None
    assert straight.journal.chain == twice.journal.chain  # type: ignore[union-attr]


def test_a_finished_script_that_is_run_again_adds_no_snapshot(tmp_path: Path) -> None:
    for _ in range(3):
        Trainer(None, StubDriver(), [1, 2], None, n_epochs=2, run_dir=tmp_path / "run", progress_bar=None).run(
            resume_from="auto"
        )
    seqs = [snapshot.seq for snapshot in catalogue(tmp_path / "run")[0]]
    assert len(seqs) == len(set(seqs))
