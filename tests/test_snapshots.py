"""Snapshots on a bad disk: writers that die, disks that fail, files that were damaged or are something else."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import math
import os
import random
import shutil
import signal
import stat
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from tachograph.drivers import RestoreFault, StubDriver, generators
from tachograph.drivers.staging import Staging
from tachograph.engine import Callback, EarlyStopping, Events, Journal, LRSchedule, Progress, SnapshotPolicy, Trainer
from tachograph.engine.journal import JournalWriteError, holding
from tachograph.engine.snapshots import (
    SnapshotFault,
    SnapshotWriteFault,
    catalogue,
    digest_of_bytes,
    digest_of_commit,
    leftovers,
    newest,
)
from tachograph.states import trainer_state
from tachograph.states.errors import CallerError
from tests.disks import Failing, Killing, KillingAfter, Recording, Strike, disk
from tests.test_journal_support import in_child
from tests.test_resume import Wider, crash_at, doctored, expect_same_end, flip, job, notices
from tests.toys import Counts, Indexed, Run, equal, sides, stub

FULL, BROKEN = errno.ENOSPC, errno.EIO


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    """The run that nothing happened to."""
    trainer = job(tmp_path_factory.mktemp("straight") / "run")
    trainer.run()
    return trainer


def operations(folder: Path, **settings: Any) -> Recording:
    """What such a run does to the disk for its snapshots."""
    noted = Recording(folder / "run")
    with disk(folder / "run" / "snapshots", noted):
        job(folder / "run", **settings).run()
    return noted


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    return operations(tmp_path_factory.mktemp("plain"))


@pytest.fixture(scope="module")
def pruned(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    return operations(tmp_path_factory.mktemp("pruned"), keep_snapshots=1)


def published(noted: Recording, before: int) -> list[int]:
    """The transitions whose snapshots were published before the n-th operation."""
    renamed = [path for operation, path in noted.done[:before] if operation == "rename" and ".writing-" in path]
    return [int(path.split(".writing-")[1].split(".")[0]) for path in renamed]


def hidden(run_dir: Path) -> list[str]:
    return [path.name for path in (run_dir / "snapshots").glob(".*")]


def expect_all_intact(run_dir: Path) -> None:
    found, faults = catalogue(run_dir)
    assert faults == []
    assert [snapshot.fault() for snapshot in found] == [""] * len(found)


# -- a writer that dies ------------------------------------------------------------------------------------


def dies(run_dir: Path, strike: Strike, build: Callable[[Path], Any]) -> None:
    """Run in a process of its own, which is struck."""

    def work() -> None:
        with disk(run_dir / "snapshots", strike):
            build(run_dir).run()

    os.waitpid(in_child(work), 0)


def goes_on(run_dir: Path, complete: list[int], straight: Trainer, **settings: Any) -> None:
    """Resume, and see that the last complete snapshot is what it goes on from, and that the torn one is told of."""
    torn = [path.name for path in leftovers(run_dir)]
    again = job(run_dir, **settings)
    said = notices(again)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again.run(resume_from="auto")
    where = f"at {complete[-1]:,}" if complete else "from the beginning: there was no snapshot"
    assert said[0].startswith(f"resumed {where}")
    assert [text for text in said if "wasn't finished" in text] == [
        f"{name} wasn't finished when its process died, and was removed" for name in torn
    ]
    assert sides(run_dir, "resumed")[-1]["torn"] == torn
    assert hidden(run_dir) == []
    expect_same_end(again, straight)
    expect_all_intact(run_dir)


def test_a_run_does_to_the_disk_what_the_docs_say_in_that_order(pruned: Recording) -> None:
    """N5, R12: write new, verify, publish, prune."""
    first = next(i for i, (operation, _) in enumerate(pruned.done) if operation == "rename")
    told = [f"{operation} {path.split('/snapshots')[1].split('/')[-1]}" for operation, path in pruned.done[first + 2 :]]
    new, old = ".writing-000000000022.i0", "000000000012"
    names = ("rank-0.json", "fingerprints.json", "state.json", "COMMIT")
    files = [f"{what} {name}" for name in names for what in ("create", "write", "sync")]
    assert told[:15] == [f"mkdir {new}", *files, f"sync {new}", f"rename {new}"]
    assert told[15:18] == ["sync ", f"rename {old}", "sync "]
    assert sorted(told[18:22]) == sorted(f"unlink {name}" for name in names)
    assert told[22] == f"rmdir .removing-{old}"


def test_killed_before_any_operation_on_the_disk_it_goes_on_from_the_last_complete_snapshot(
    tmp_path: Path, straight: Trainer, pruned: Recording
) -> None:
    """N5, R03, B31: before and after each file, COMMIT, the rename, and in the middle of what removes an old one."""
    settings = {"keep_snapshots": 1}
    for n in range(len(pruned.done)):
        run_dir = tmp_path / str(n)
        dies(run_dir, Killing(n), lambda run_dir: job(run_dir, **settings))
        complete = published(pruned, n)
        assert {s.seq for s in catalogue(run_dir)[0]} <= set(complete[-2:])
        goes_on(run_dir, complete, straight, **settings)
        assert [s.seq for s in catalogue(run_dir)[0]][-1] == straight.trainer_state.seq - 1


def test_killed_after_n_bytes_of_a_snapshot_it_goes_on_from_the_one_before(
    tmp_path: Path, straight: Trainer, plain: Recording
) -> None:
    """R03: at 0 bytes, at each file's boundary, and within each file."""
    sizes = [size for size in plain.sizes if size]
    before, second = sum(sizes[:4]), sizes[4:8]
    ends = [sum(second[:i]) for i in range(5)]
    grid = sorted({n + d for n in ends[:4] for d in (0, 1, 7, 100)} | {end - 1 for end in ends[1:]})
    for n in grid:
        run_dir = tmp_path / str(n)
        dies(run_dir, KillingAfter(before + n), job)
        assert [path.name for path in leftovers(run_dir)] == [".writing-000000000022.i0"]
        goes_on(run_dir, [12], straight)


def torch_run(run_dir: Path, **settings: Any) -> Run:
    return Run(**{"run_dir": run_dir, "n_epochs": 2, "snapshot_every": 3, "accumulation_steps": 2, **settings})


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    run = torch_run(tmp_path_factory.mktemp("trained") / "run")
    run.run()
    return run


def torch_kills(tmp_path: Path, trained: Run, points: Callable[[list[int]], list[int]]) -> None:
    noted = Recording(tmp_path / "noted")
    with disk(tmp_path / "noted" / "snapshots", noted):
        torch_run(tmp_path / "noted").run()
    for n in points([i for i, (operation, _) in enumerate(noted.done) if operation != "mkdir"]):
        run_dir = tmp_path / str(n)
        dies(run_dir, Killing(n), torch_run)
        complete = published(noted, n)
        again = torch_run(run_dir, init=99 if complete else None)
        said = notices(again.trainer)
        again.run(resume_from="auto")
        assert said[0].startswith(f"resumed at {complete[-1]:,}" if complete else "resumed from the beginning")
        assert equal(again.weights, trained.weights)
        assert again.generators == trained.generators
        assert again.chain == trained.chain
        assert hidden(run_dir) == []


def test_a_writer_of_torch_killed_at_a_sample_of_its_operations_leaves_the_one_before(
    tmp_path: Path, trained: Run
) -> None:
    """R03."""
    torch_kills(tmp_path, trained, lambda all_of_them: all_of_them[::61])


@pytest.mark.sweep
def test_a_writer_of_torch_killed_at_one_in_five_of_its_operations_leaves_the_one_before(
    tmp_path: Path, trained: Run
) -> None:
    """R03."""
    torch_kills(tmp_path, trained, lambda all_of_them: all_of_them[::5])


# -- a disk that fails -------------------------------------------------------------------------------------


def fails(run_dir: Path, strike: Failing, **settings: Any) -> tuple[Trainer, BaseException | None]:
    trainer = job(run_dir, **settings)
    trainer.on("fetch", lambda trainer: trainer._recorder.snapshots.wait())  # a disk quicker than the run
    try:
        with disk(run_dir / "snapshots", strike):
            trainer.run()
    except OSError as error:
        return trainer, error
    return trainer, None


@pytest.mark.parametrize(("number", "for_good"), [(FULL, True), (BROKEN, False)])
def test_whichever_operation_fails_the_run_ends_with_the_reason_and_nothing_of_what_there_was_is_touched(
    tmp_path: Path, straight: Trainer, plain: Recording, number: int, for_good: bool
) -> None:
    """R12, R59: ENOSPC from the n-th operation on, EIO at the n-th, for every n."""
    last = straight.trainer_state.seq - 1
    for n in range(len(plain.done)):
        run_dir, strike = tmp_path / f"{n}", Failing(n, number, for_good=for_good)
        trainer, error = fails(run_dir, strike)
        operation, path = plain.done[n]
        assert strike.struck == (operation, path.replace(str(plain.root), str(run_dir)))
        assert isinstance(error, SnapshotWriteFault)
        complete = published(
            plain, max(n - 1, 0)
        )  # one that was renamed, but whose name isn't on the disk, is taken back
        failed = next(seq for seq in (12, 22, last) if seq not in complete)
        assert (error.errno, error.path, error.needed > 100) == (number, run_dir / "snapshots", True)
        said = f"the snapshot after seq {failed} couldn't be written to {run_dir}/snapshots: [Errno {number}] "
        assert str(error).startswith(f"{said}{os.strerror(number)}")
        assert f". It needs about {error.needed:,} bytes" in str(error)
        assert trainer.exception is error or (failed == last and trainer.exception is None)
        end = Journal(run_dir).last
        assert end is not None
        assert end.dest == ("exception" if failed != last else "done")
        expect_all_intact(run_dir)
        assert hidden(run_dir) == []
        there = [s.seq for s in catalogue(run_dir)[0]]
        assert there[: len(complete)] == complete
        assert all(s.exact for s in catalogue(run_dir)[0])
        emergency = not for_good and failed != last
        stuck = for_good and (operation, plain.done[n - 1][0]) == ("sync", "rename")  # it can't be taken back any more
        assert len(there) == len(complete) + (emergency or stuck)
        again = job(run_dir)
        again.run(resume_from="auto")
        expect_same_end(again, straight)


def test_torch_reports_the_disk_s_own_error_at_whichever_write(tmp_path: Path) -> None:
    """R12: what writes through C++ would say something else of it, or end the process."""
    noted = Recording(tmp_path / "noted")
    with disk(tmp_path / "noted" / "snapshots", noted):
        torch_run(tmp_path / "noted").run()
    for n in range(0, len(noted.done), 29):
        run_dir = tmp_path / str(n)
        said = r"No space left on device. It needs about [\d,]+ bytes. Earlier ones are intact"
        full = disk(run_dir / "snapshots", Failing(n, FULL, for_good=True))
        with pytest.raises(SnapshotWriteFault, match=said) as caught, full:
            torch_run(run_dir).run()
        assert caught.value.needed > 1000
        assert hidden(run_dir) == []
        expect_all_intact(run_dir)


def test_with_warn_the_run_goes_on_and_the_next_snapshot_is_tried_again(
    tmp_path: Path, straight: Trainer, plain: Recording
) -> None:
    """R12: one warning and one side record, and the history doesn't notice."""
    last = straight.trainer_state.seq - 1
    for n in range(len(plain.done)):
        run_dir = tmp_path / str(n)
        trainer = job(run_dir, on_snapshot_fault="warn")
        full = disk(run_dir / "snapshots", Failing(n, FULL))
        with pytest.warns(UserWarning, match="No space left on device.* The run goes on") as caught, full:
            assert trainer.run().state == "done"
        assert len(caught) == 1
        failed = next(seq for seq in (12, 22, last) if seq not in published(plain, max(n - 1, 0)))
        (record,) = sides(run_dir, "not_saved")
        assert record["at"] == failed
        assert record["error"] == str(caught[0].message).removesuffix(". The run goes on")
        assert [s.seq for s in catalogue(run_dir)[0]] == [seq for seq in (12, 22, last) if seq != failed]
        expect_same_end(trainer, straight)


def test_with_warn_a_disk_that_stays_full_costs_a_warning_per_snapshot_and_no_step(
    run_dir: Path, straight: Trainer
) -> None:
    """R12."""
    trainer = job(run_dir, on_snapshot_fault="warn")
    full = disk(run_dir / "snapshots", Failing(0, FULL, for_good=True))
    with pytest.warns(UserWarning, match="No space left on device") as caught, full:
        trainer.run()
    assert len(caught) == len(sides(run_dir, "not_saved")) == 3
    assert catalogue(run_dir) == ([], [])
    expect_same_end(trainer, straight)


@pytest.mark.parametrize("given", ["stop", None, True])
def test_what_a_fault_means_is_one_of_two(given: Any) -> None:
    with pytest.raises(CallerError, match=f"on_snapshot_fault must be 'raise' or 'warn', not {given!r}"):
        stub(on_snapshot_fault=given)


def test_what_a_fault_means_may_be_changed_at_a_resume(run_dir: Path, straight: Trainer) -> None:
    """R40."""
    job(run_dir, n_epochs=1).run()
    again = job(run_dir, on_snapshot_fault="warn", keep_snapshots=2)
    again.run(resume_from="auto")
    (record,) = sides(run_dir, "resumed")
    assert record["changed"] == {
        "n_epochs": [1, 3],
        "keep_snapshots": [None, 2],
        "on_snapshot_fault": ["raise", "warn"],
    }
    expect_same_end(again, straight)


@pytest.mark.parametrize(
    ("quick", "n"), [*((0.0, n) for n in [0, 1, 2, *range(3, 36, 3)]), *((math.inf, n) for n in range(17))]
)
@pytest.mark.parametrize("also_snapshots", [False, True])
def test_a_journal_that_fails_at_its_nth_write_or_sync_ends_the_run_and_loses_nothing_that_was_acknowledged(
    run_dir: Path, straight: Trainer, monkeypatch: pytest.MonkeyPatch, quick: float, n: int, also_snapshots: bool
) -> None:
    """R12, R59: EIO for good; if no emergency snapshot can be written either, that is attached to the first error.

    Each transition a line at once, and several of them held.
    """
    monkeypatch.setattr(holding, "QUICK", quick)
    below = run_dir if also_snapshots else run_dir / "journal"
    strike = FailingAfter(run_dir / "journal", n, also_snapshots)
    heard: list[int] = []
    trainer = job(run_dir, on_snapshot_fault="warn")
    trainer.on("on_train_batch_end", lambda trainer: heard.append(trainer.trainer_state.seq))
    with disk(below, strike), pytest.raises(JournalWriteError, match="EIO") as caught:
        trainer.run()
    assert trainer.exception in (caught.value, None)
    later = [type(e) for e in getattr(caught.value, "later", [])]
    assert set(later) <= {SnapshotWriteFault} if also_snapshots else later == []
    recorded = [record.seq for record in Journal(run_dir)]
    assert set(heard) <= {*recorded, *(s.seq for s in catalogue(run_dir)[0])}, "what was heard is kept"
    again = job(run_dir)
    again.run(resume_from="auto")
    expect_same_end(again, straight)
    assert Journal(run_dir).verify_chain() == straight.journal.chain  # type: ignore[union-attr]


class FailingAfter:
    """The journal's disk fails for good at its n-th write; with `all_of_it` the snapshots' as well."""

    def __init__(self, journal: Path, n: int, all_of_it: bool) -> None:
        self.journal, self.n, self.all_of_it = str(journal), n, all_of_it

    def __call__(self, operation: str, path: str, data: bytes) -> None:
        of_journal = path.startswith(self.journal)
        if of_journal and operation == "write":
            self.n -= 1
        if self.n < 0 and (of_journal or self.all_of_it) and operation not in ("unlink", "rmdir"):
            raise OSError(BROKEN, os.strerror(BROKEN))


@pytest.mark.parametrize(("quick", "n"), [(0.0, 17), (math.inf, 9)])
def test_an_emergency_snapshot_is_used_again_if_the_life_that_went_on_from_it_took_none(
    run_dir: Path, straight: Trainer, monkeypatch: pytest.MonkeyPatch, quick: float, n: int
) -> None:
    """R12: the records that it carried are the next life's, but the point is the same."""
    monkeypatch.setattr(holding, "QUICK", quick)
    strike = FailingAfter(run_dir / "journal", n, False)
    with disk(run_dir / "journal", strike), pytest.raises(JournalWriteError):
        job(run_dir, snapshot_every=None).run()
    (emergency,) = catalogue(run_dir)[0]
    for _ in range(2):
        dies_in_a_step(run_dir, 2, snapshot_every=None)
    again = job(run_dir)
    said = notices(again)
    again.run(resume_from="auto")
    assert said[0].startswith(f"resumed at {emergency.seq}; ")
    expect_same_end(again, straight)


def dies_in_a_step(run_dir: Path, n: int, **settings: Any) -> None:
    """Go on in a process of its own, which is killed in its n-th training step."""

    def work() -> None:
        kill = {"train_step": lambda driver: driver.calls.count("train_step") == n and os.kill(os.getpid(), 9)}
        job(run_dir, StubDriver(on=kill), **settings).run(resume_from="auto")

    os.waitpid(in_child(work), 0)


def test_a_snapshot_of_an_earlier_life_is_used_where_the_history_went_through_its_point_again(
    run_dir: Path, straight: Trainer
) -> None:
    """R12, R26: resumed from an early one, and killed long past the next ones, of which none was taken anew."""
    job(run_dir, snapshot_every=1, n_epochs=2).run()
    early, *others = catalogue(run_dir)[0]
    again = job(run_dir, crash_at(4), snapshot_every=None)
    with pytest.raises(SystemError):
        again.run(resume_from=early.path)
    last = Journal(run_dir).last
    assert last is not None
    reached = [s for s in others if s.seq < last.seq]
    assert len(reached) >= 2
    third = job(run_dir)
    said = notices(third)
    third.run(resume_from="auto")
    assert said[0].startswith(f"resumed at {reached[-1].seq}; ")
    expect_same_end(third, straight)


def test_a_run_that_began_from_another_has_its_own_snapshot_before_it_takes_a_step(
    tmp_path: Path, straight: Trainer
) -> None:
    """R12: killed at its first transition, with a slow disk, it depends on nobody else's files."""
    job(tmp_path / "source", n_epochs=1).run()

    def work() -> None:
        fork = job(tmp_path / "fork", snapshot_every=None)
        fork.on("fetch", lambda trainer: os.kill(os.getpid(), signal.SIGKILL))
        fork.run(resume_from=tmp_path / "source")

    os.waitpid(in_child(work), 0)
    shutil.rmtree(tmp_path / "source")
    again = job(tmp_path / "fork")
    again.run(resume_from="auto")
    assert again.trainer_state == straight.trainer_state
    assert again.journal.chain == straight.journal.chain  # type: ignore[union-attr]


def test_where_it_has_none_it_is_refused_since_its_beginning_is_another_run_s(tmp_path: Path) -> None:
    """R12, R64: beginning again would be training from the start, and call itself a resume."""
    job(tmp_path / "source", n_epochs=1).run()
    job(tmp_path / "fork", n_epochs=2).run(resume_from=tmp_path / "source")
    for snapshot in catalogue(tmp_path / "fork")[0]:
        flip(snapshot.path / "rank-0.json")
    said = r"fork goes on from transition 11 of the run \w+, and has no snapshot of its own that can be used. .* passed"
    with pytest.raises(SnapshotFault, match=said):
        job(tmp_path / "fork").run(resume_from="auto")
    shutil.rmtree(tmp_path / "fork" / "snapshots")
    with pytest.raises(SnapshotFault, match=r"that can be used. Begin it anew from there, in another run_dir"):
        job(tmp_path / "fork").run(resume_from="auto")


def test_after_a_snapshot_that_could_not_be_written_the_same_object_runs_on(run_dir: Path, straight: Trainer) -> None:
    """R59."""
    trainer, error = fails(run_dir, Failing(20, FULL))
    assert isinstance(error, SnapshotWriteFault)
    trainer.run()
    expect_same_end(trainer, straight)


# -- places that can't be written --------------------------------------------------------------------------


def test_a_file_where_the_snapshots_should_be_is_named(run_dir: Path, straight: Trainer) -> None:
    job(run_dir, n_epochs=0).run()
    (run_dir / "snapshots").write_text("not a directory")
    with pytest.raises(
        SnapshotWriteFault, match=rf"couldn't be written to {run_dir}/snapshots: \[Errno {errno.ENOTDIR}"
    ):
        job(run_dir).run(resume_from="auto")
    assert (run_dir / "snapshots").read_text() == "not a directory"
    (run_dir / "snapshots").unlink()
    again = job(run_dir)
    again.run(resume_from="auto")
    expect_same_end(again, straight)


@pytest.fixture
def shared() -> Iterator[Path]:
    """A directory that any user reaches."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o777)
    yield folder
    for path in [folder, *folder.rglob("*")]:
        if path.is_dir():
            path.chmod(0o777)
    shutil.rmtree(folder)


def as_nobody(work: Callable[[], None]) -> str:
    """Do work as a user who may not write what others forbid; return the error's type and text."""
    read, write = os.pipe()

    def done() -> None:
        if os.getuid() == 0:
            os.setuid(65534)
        try:
            work()
        except BaseException as error:
            os.write(write, f"{type(error).__name__}: {error}".encode())

    pid = in_child(done)
    os.close(write)
    os.waitpid(pid, 0)
    with open(read, "rb") as pipe:
        return pipe.read().decode()


def test_a_directory_that_may_not_be_written_is_told_of(shared: Path) -> None:
    """R12: the run directory's place at the start, the snapshots' at the first snapshot, the journal's at a resume."""
    run_dir = shared / "run"
    shared.chmod(0o555)
    assert as_nobody(lambda: job(run_dir).run()).startswith(f"CallerError: run_dir {run_dir} can't be written: ")
    shared.chmod(0o777)
    assert as_nobody(lambda: job(run_dir, n_epochs=1).run()) == ""
    (run_dir / "snapshots").chmod(0o555)
    said = as_nobody(lambda: job(run_dir).run(resume_from="auto"))
    assert said.startswith("SnapshotWriteFault: the snapshot after seq 12 couldn't be written to ")
    assert "Permission denied" in said
    assert hidden(run_dir) == []
    for path in [run_dir, *run_dir.rglob("*")]:
        path.chmod(path.stat().st_mode & ~(stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH))
    said = as_nobody(lambda: job(run_dir).run(resume_from="auto"))
    assert said.startswith("JournalWriteError: can't write ")
    assert "Permission denied" in said


# -- damage ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = torch_run(tmp_path_factory.mktemp("whole") / "run")
    run.run()
    return run.trainer.run_dir  # type: ignore[return-value]


def run_of(run_dir: Path) -> str:
    return str(json.loads((run_dir / "run.json").read_text())["run"])


@pytest.mark.parametrize("name", ["model.pt", "rank-0.pt", "state.json", "COMMIT"])
def test_any_flipped_bit_in_any_file_is_seen_and_the_one_before_is_chosen(
    tmp_path: Path, whole: Path, name: str
) -> None:
    """R03: a grid over every file; the sentence names the snapshot and the file."""
    run_dir = tmp_path / "run"
    shutil.copytree(whole, run_dir)
    *_, before, last = catalogue(run_dir)[0]
    path = last.path / name
    raw = path.read_bytes()
    for step, at in enumerate(range(0, len(raw), max(len(raw) // 97, 1))):
        path.write_bytes(raw[:at] + bytes([raw[at] ^ (1 << step % 8)]) + raw[at + 1 :])
        found, skipped = newest(run_dir, run_of(run_dir), lambda snapshot: snapshot.incarnation)
        assert found == before, at
        assert len(skipped) == 1
        assert skipped[0].startswith(f"{last.path.name} was passed over: ")
        assert name in skipped[0]


@pytest.mark.parametrize("name", ["model.pt", "rank-0.pt", "state.json", "COMMIT"])
@pytest.mark.parametrize("harm", ["missing", "empty", "cut", "longer", "a directory", "flipped"])
def test_a_given_snapshot_that_is_damaged_is_refused_in_a_sentence_and_changes_nothing(
    tmp_path: Path, whole: Path, name: str, harm: str
) -> None:
    """R03, R64: no other is taken in its place."""
    run_dir = tmp_path / "run"
    shutil.copytree(whole, run_dir)
    path = catalogue(run_dir)[0][-1].path / name
    raw = path.read_bytes()
    path.unlink()
    if harm == "a directory":
        path.mkdir()
    elif harm != "missing":
        path.write_bytes({"empty": b"", "cut": raw[:-1], "longer": raw + b"\0"}.get(harm, raw))
    if harm == "flipped":
        flip(path)
    again = torch_run(run_dir, init=99)
    before = alive(again)
    with pytest.raises(SnapshotFault) as caught:
        again.run(resume_from=path.parent)
    assert str(path.parent) in str(caught.value)
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)
    assert alive(again) == before


def test_a_file_that_somebody_put_into_a_snapshot_is_left_alone_and_told_of(run_dir: Path, straight: Trainer) -> None:
    """R12: what was saved is whole, so it is used."""
    job(run_dir, n_epochs=1).run()
    last = catalogue(run_dir)[0][-1]
    (last.path / "notes.txt").write_text("good one")
    again = job(run_dir)
    said = notices(again)
    again.run(resume_from="auto")
    assert said[0].startswith(f"resumed at {last.seq}")
    assert f"notes.txt isn't part of the snapshot {last.path}, and was left alone" in said
    assert (last.path / "notes.txt").exists()
    expect_same_end(again, straight)


def test_a_snapshot_of_another_run_among_a_run_s_own_is_passed_over(tmp_path: Path, straight: Trainer) -> None:
    """R64: were it taken, the history would be another one."""
    job(tmp_path / "other", n_epochs=2).run()
    job(tmp_path / "run", n_epochs=1).run()
    foreign = catalogue(tmp_path / "other")[0][-1]
    shutil.copytree(foreign.path, tmp_path / "run" / "snapshots" / foreign.path.name)
    again = job(tmp_path / "run")
    with pytest.warns(UserWarning, match=f"{foreign.path.name} was passed over: it is of the run {foreign.run}"):
        again.run(resume_from="auto")
    expect_same_end(again, straight)


# -- what is no snapshot -----------------------------------------------------------------------------------


def alive(run: Run) -> list[Any]:
    """Everything that a refusal must leave as it was."""
    driver, trainer = run.trainer.driver, run.trainer
    assert driver is not None
    held = [*run.weights, *(v for s in run.optimizer.state_dict()["state"].values() for v in s.values())]
    grads = [p.grad for p in run.model.parameters()]
    return [
        [t.tolist() if isinstance(t, torch.Tensor) else t for t in (*held, *grads)],
        run.optimizer.state_dict()["param_groups"],
        trainer.listeners.state_dict(trainer),
        trainer.trainer_state,
        dict(trainer.state),
        run.generators,
        [module.training for module in run.model.modules()],
    ]


def counted(run_dir: Path, **settings: Any) -> Run:
    return torch_run(run_dir, callbacks=lambda run: [Counts()], **settings)


def edit(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, str]]:
    """What people give to `resume_from`, and what they are told."""
    folder = tmp_path_factory.mktemp("foreign")
    run = counted(folder / "run")
    run.run()
    last = catalogue(folder / "run")[0][-1].path
    torch.save(run.model.state_dict(), folder / "weights.pt")
    run.trainer.save_model(folder / "best.pt")
    torch.save({"model": run.model.state_dict(), "epoch": 3}, folder / "checkpoint.tar")
    torch.save(run.model, folder / "pickled.pt")
    (folder / "notes.txt").write_text("hello")
    (folder / "empty").mkdir()
    run.trainer.save_model(f"{folder}/saved/")
    (folder / "kept").mkdir()
    torch.save(run.model.state_dict(), folder / "kept" / "a.ckpt")
    for name in ("newer", "broken", "newer snapshot", "moved"):
        shutil.copytree(folder / "run", folder / name)
    edit(folder / "newer" / "run.json", format=2)
    (folder / "broken" / "run.json").write_text("{")
    edit(folder / "newer snapshot" / "snapshots" / last.name / "COMMIT", format=2)
    shutil.copytree(last, folder / "lone")
    job(folder / "other").run()
    wider = Wider()
    settings: dict[str, Any] = {"n_epochs": 1, "run_dir": folder / "wider", "seed": 7, "progress_bar": None}
    Trainer(wider, "torch", run.loader, torch.optim.Adam(wider.parameters()), **settings).run()
    shutil.copytree(catalogue(folder / "other")[0][-1].path, folder / "moved" / "snapshots" / "999999999999")
    legal = r"and no run. resume_from takes a run directory, or a snapshot of it"
    return {
        "a state dict": (folder / "weights.pt", f"is a state dict of 4 tensors, {legal}.*load_model"),
        "a model": (folder / "best.pt", f"is a model that save_model wrote, with 4 tensors, {legal}.*load_model"),
        "a checkpoint": (folder / "checkpoint.tar", f"is a file of torch.save with the keys 'model', 'epoch', {legal}"),
        "a pickle": (folder / "pickled.pt", f"is no file of tensors and plain data, {legal}"),
        "a text": (folder / "notes.txt", f"is no file of tensors and plain data, {legal}"),
        "a part": (last / "model.pt", f"is a file of the snapshot {last}: give its directory"),
        "run.json": (folder / "run" / "run.json", f"is a file of the run {folder}/run: give its directory"),
        "an empty directory": (folder / "empty", f"isn't a run directory: it has no run.json. .*{legal[12:]}"),
        "a saved model": (
            folder / "saved",
            f"no run.json. .*{legal[12:]}.*; trainer.load_model.path. takes its model.pt",
        ),
        "a folder of weights": (
            folder / "kept",
            f"no run.json. .*{legal[12:]}.*; .*{folder}/kept/a.ckpt.* takes its weights",
        ),
        "the snapshots": (
            folder / "run" / "snapshots",
            f"holds the snapshots of the run {folder}/run: give that, or one",
        ),
        "a newer run": (folder / "newer", "is of format 2, but this version reads up to 1: upgrade tachograph"),
        "a broken run": (folder / "broken", "run.json can't be read: "),
        "a newer snapshot": (
            folder / "newer snapshot" / "snapshots" / last.name,
            "is of format 2, this version reads up to 1: upgrade tachograph",
        ),
        "a lone snapshot": (folder / "lone", "is a snapshot of the run .* but doesn't lie in its run directory"),
        "another run's": (
            folder / "moved" / "snapshots" / "999999999999",
            "is a snapshot of the run .* and lies in the run .*: give it in its own run",
        ),
        "another driver's": (folder / "other", "this run's seed is 11|has no model.pt: another driver took it"),
        "another model's": (
            folder / "wider",
            "this run's model is Wider with 2 tensors, .*, this trainer's Regression with 4|'hidden.weight' has shape",
        ),
        "nothing": (folder / "nothing", "there is nothing at"),
    }


FOREIGN = (
    *("a state dict", "a model", "a checkpoint", "a pickle", "a text", "a part", "run.json", "an empty directory"),
    *("a saved model", "a folder of weights"),
    *("the snapshots", "a newer run", "a broken run", "a newer snapshot", "a lone snapshot", "another run's"),
    *("another driver's", "another model's", "nothing"),
)


@pytest.mark.parametrize("kind", FOREIGN)
def test_what_is_no_snapshot_of_this_run_is_refused_by_what_it_is_and_nothing_is_changed(
    tmp_path: Path, foreign: dict[str, tuple[Path, str]], kind: str
) -> None:
    """R64: weights, gradients, optimizer, generators, listeners, state and modes are what they were."""
    path, said = foreign[kind]
    again = counted(tmp_path / "run", init=99)
    again.model(**next(iter(again.loader)))["loss"].backward()
    again.optimizer.step()
    before = alive(again)
    for training in (True, False):
        with pytest.raises((ValueError, OSError, RestoreFault), match=said) as caught:
            again.run(resume_from=path, resume_training=training)
        assert "\n" not in str(caught.value)
        assert alive(again) == before
    assert not (tmp_path / "run").exists()


def test_every_kind_is_told_apart(foreign: dict[str, tuple[Path, str]]) -> None:
    """R64."""
    assert set(foreign) == set(FOREIGN)
    assert len({said for _, said in foreign.values()}) == len(foreign) - 1, "a pickle and a text are alike"


@pytest.mark.parametrize("given", [3, b"runs", ["a"], True])
def test_what_is_no_path_is_refused(given: Any) -> None:
    with pytest.raises(CallerError, match="resume_from must be a path, 'auto' or None, not "):
        stub().run(resume_from=given)


def resigned(snapshot: Path, name: str, held: dict[str, Any]) -> None:
    """Change a snapshot's file as somebody would who signs it anew."""
    raw = json.dumps(held).encode()
    (snapshot / name).write_bytes(raw)
    commit = json.loads((snapshot / "COMMIT").read_text())
    del commit["digest"]
    commit["files"][name] = [len(raw), digest_of_bytes(raw)]
    (snapshot / "COMMIT").write_text(json.dumps({**commit, "digest": digest_of_commit(commit)}))


def test_a_state_of_a_newer_schema_is_refused_and_one_of_an_older_is_brought_up_to_date(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R64: the states' part has a version of its own."""
    counted(tmp_path / "run", n_epochs=1).run()
    last = catalogue(tmp_path / "run")[0][-1].path
    held = json.loads((last / "state.json").read_text())
    resigned(last, "state.json", {**held, "schema": trainer_state.SCHEMA + 1})
    again = counted(tmp_path / "run", init=99)
    before = alive(again)
    with pytest.raises(ValueError, match=r"state of schema \d+, but this version reads up to \d+: upgrade tachograph"):
        again.run(resume_from=last)
    assert alive(again) == before
    older = {**held["state"], "batches": held["state"]["global_forward_batches"]}
    del older["global_forward_batches"]

    def upcast(old: dict[str, Any]) -> dict[str, Any]:
        plain = {**old, "global_forward_batches": old["batches"]}
        del plain["batches"]
        return plain

    monkeypatch.setitem(trainer_state.UPCASTS, trainer_state.SCHEMA - 1, upcast)
    resigned(last, "state.json", {**held, "schema": trainer_state.SCHEMA - 1, "state": older})
    again.run(resume_from=last)
    straight = counted(tmp_path / "straight")
    straight.run()
    assert equal(again.weights, straight.weights)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda held: held["optimizers"][0]["param_groups"][0].update(params=[0, 1]),
            r"optimizer 0 has groups of \[4\] parameters, the saved one of \[2\]: build it as it was",
        ),
        (lambda held: held.update(optimizers=[{}]), "optimizer 0 has groups of .* the saved one of nothing"),
        (lambda held: held.update(optimizers=None), "the snapshot holds no optimizers, this trainer 1"),
    ],
)
def test_optimizers_that_do_not_fit_are_refused_before_the_model_is_changed(
    run_dir: Path, change: Callable[[dict[str, Any]], Any], said: str
) -> None:
    """R64: torch would find out when the weights are another's already."""
    counted(run_dir, n_epochs=1).run()
    doctored(run_dir, change)
    again = counted(run_dir, init=99)
    before = alive(again)
    for training in (True, False):
        with pytest.raises(RestoreFault, match=said):
            again.run(resume_from=run_dir, resume_training=training)
        assert alive(again) == before


# -- generators --------------------------------------------------------------------------------------------

SPOILT: dict[str, tuple[Callable[[dict[str, Any]], Any], str]] = {
    "no generators": (lambda held: held.pop("generators"), "the state of python's generator is missing"),
    "not a dict": (lambda held: held.update(generators=[1]), "the state of torch's generator is missing"),
    "one is missing": (lambda held: held["generators"].pop("numpy"), "the state of numpy's generator is missing"),
    "two are swapped": (
        lambda held: held["generators"].update(python=held["generators"]["numpy"], numpy=held["generators"]["python"]),
        "the state of python's generator can't be used: .*the state of numpy's generator can't be used: ",
    ),
    "one is cut": (
        lambda held: held["generators"].update(torch=held["generators"]["torch"][:-1].clone()),
        "the state of torch's generator can't be used: ",
    ),
    "of another kind": (
        lambda held: held["generators"]["python"].update(words=torch.zeros(3, dtype=torch.int64)),
        "the state of python's generator can't be used: ",
    ),
}


@pytest.mark.parametrize("spoil", SPOILT)
def test_a_generator_that_cannot_be_restored_is_refused_and_not_strict_warned_of_once_and_recorded(
    run_dir: Path, spoil: str
) -> None:
    """R18: the file and the reason; the others are restored all the same."""
    counted(run_dir, n_epochs=1).run()
    change, said = SPOILT[spoil]
    doctored(run_dir, change)
    again = counted(run_dir, init=99)
    before = alive(again)
    told = "the snapshot lacks the entry 'generators'" if spoil == "no generators" else f"rank-0.pt: .*{said}"
    with pytest.raises(RestoreFault, match=told):
        again.run(resume_from="auto")
    assert alive(again) == before
    with pytest.warns(UserWarning, match=f"{said}.*What follows isn't exact") as caught:
        assert again.run(resume_from="auto", strict=False).state == "done"
    assert len(caught) == 1
    (record,) = sides(run_dir, "rng_not_restored")
    assert record["snapshot"] == catalogue(run_dir)[0][0].path.name or record["reason"]


def test_what_of_the_generators_can_be_restored_is(run_dir: Path) -> None:
    """R18."""
    straight = counted(run_dir.with_name("straight"), noise=False)
    straight.run()
    counted(run_dir, noise=False, n_epochs=1).run()
    doctored(run_dir, lambda held: held["generators"].pop("numpy"))  # which nothing draws from
    again = counted(run_dir, noise=False, init=99)
    with pytest.warns(UserWarning, match="numpy"):
        again.run(resume_from="auto", strict=False)
    assert equal(again.weights, straight.weights)


def test_the_stub_s_generator_likewise(run_dir: Path) -> None:
    """R18."""
    job(run_dir, n_epochs=1).run()
    last = catalogue(run_dir)[0][-1].path
    held = json.loads((last / "rank-0.json").read_text())
    del held["generator"]
    resigned(last, "rank-0.json", held)
    with pytest.raises(RestoreFault, match="the snapshot lacks the entry 'generator'"):
        job(run_dir).run(resume_from="auto")
    with pytest.warns(UserWarning, match="the state of the generator is missing"):
        job(run_dir).run(resume_from="auto", strict=False)
    assert len(sides(run_dir, "rng_not_restored")) == 1


# -- what is in it -----------------------------------------------------------------------------------------


def spread() -> list[float]:
    """The next hundred numbers of every kind of generator."""
    drawn = [random.random() for _ in range(100)] + [random.gauss(0, 1) for _ in range(100)]
    drawn += np.random.rand(100).tolist() + np.random.standard_normal(100).tolist()
    return drawn + torch.rand(100).tolist() + torch.randn(100).tolist()


def built_ins(run: Run) -> list[Any]:
    made = {
        "SnapshotPolicy": lambda: SnapshotPolicy(3),
        "EarlyStopping": lambda: EarlyStopping("loss", larger_better=False),
        "LRSchedule": lambda: LRSchedule(torch.optim.lr_scheduler.OneCycleLR(run.optimizer, 0.1, total_steps=99)),
        "Progress": lambda: Progress("plain"),
    }
    return [make() for make in made.values()]


class MeanLoss:
    def reset(self) -> None:
        self.losses: list[float] = []

    def update(self, loss: torch.Tensor) -> None:
        self.losses.append(float(loss))

    def compute(self) -> float:
        return sum(self.losses) / len(self.losses)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_whatever_is_written_loads_safely_and_its_generators_draw_the_same_numbers(
    tmp_path: Path, precision: str
) -> None:
    """N8, R19, R68: with a scaler, an open window, schedules and every kind of callback."""
    random.gauss(0, 1), np.random.standard_normal()  # each leaves a second number behind, which is saved as well
    run = torch_run(
        tmp_path / "run",
        precision=precision,
        n_batches=7,
        callbacks=built_ins,
        metrics={"loss": MeanLoss()},
        validate_dataloaders=torch.utils.data.DataLoader(Indexed(4), 2),
    )
    run.trainer.state["mine"] = {"a": torch.ones(2, dtype=torch.bfloat16), "b": [1, 2.5, "c", None, True, b"d"]}
    run.run()
    expected = spread()
    last = catalogue(tmp_path / "run")[0][-1].path
    for path in last.glob("*.pt"):
        torch.load(path, weights_only=True)
    held = torch.load(last / "rank-0.pt", weights_only=True)
    assert held["gradients"], "the window is open"
    assert (held["scaler"] is None) == (precision != "fp16")
    assert {"EarlyStopping", "LRSchedule"} <= set(held["extra"]["listeners"]["callbacks"])
    assert torch.equal(held["extra"]["user"]["mine"].pop("a"), torch.ones(2, dtype=torch.bfloat16))
    assert held["extra"]["user"]["mine"] == {"b": [1, 2.5, "c", None, True, b"d"]}
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    generators.restore(held["generators"])
    assert spread() == expected
    if precision == "fp16":
        reread = torch.load(last / "rank-0.pt", weights_only=True)["scaler"]
        assert reread == run.trainer.driver._scaler.state_dict()  # type: ignore[union-attr]


def test_a_saved_model_is_what_plain_torch_loads_and_says_what_it_is(tmp_path: Path) -> None:
    """R64, SV14: into a plain module, into a buffer, and back."""
    run = Run()
    for target in (tmp_path / "model.pt", io.BytesIO()):
        run.trainer.save_model(target)
        if isinstance(target, io.BytesIO):
            target.seek(0)
        held = torch.load(target, weights_only=True)
        assert list(held) == list(run.model.state_dict())
        plain = type(run.model)()
        plain.load_state_dict(held)
        assert equal(list(plain.parameters()), run.weights)
    assert [path.name for path in tmp_path.iterdir()] == ["model.pt"]


@pytest.mark.parametrize("n", range(0, 60, 9))
def test_a_model_that_cannot_be_saved_leaves_the_one_that_was_there(tmp_path: Path, n: int) -> None:
    """B31, SV14: and nothing beside it."""
    run, path = Run(), tmp_path / "model.pt"
    run.trainer.save_model(path)
    before = path.read_bytes()
    with disk(tmp_path, Failing(n, FULL, for_good=True)), contextlib.suppress(OSError):
        run.trainer.save_model(path)
    assert [p.name for p in tmp_path.iterdir()] == ["model.pt"]
    assert equal(list(torch.load(path, weights_only=True).values()), run.weights)
    assert path.read_bytes() == before


def test_a_file_that_is_no_model_is_refused_in_a_sentence(tmp_path: Path) -> None:
    """R64."""
    run, path = Run(), tmp_path / "model.pt"
    before = run.weights
    for content in (b"", b"hello", b"PK" + bytes(99)):
        path.write_bytes(content)
        with pytest.raises(RestoreFault, match=r"model.pt isn't a whole file of torch.save with"):
            run.trainer.load_model(path)
    torch.save([1, 2], path)
    with pytest.raises(RestoreFault, match="this file holds a list, not a model's state dict"):
        run.trainer.load_model(path)
    assert equal(run.weights, before)


def test_a_file_in_which_a_model_s_weights_are_wrapped_or_renamed_is_refused_with_where_they_are(
    tmp_path: Path,
) -> None:
    """R64: another library's checkpoint, or that of a model in a wrapper."""
    run, path = Run(), tmp_path / "model.pt"
    before, held = run.weights, run.model.state_dict()
    take = "model.load_state_dict(torch.load(path)['{}']) takes it"
    for content, said in (
        (
            {"epoch": 3, "state_dict": held, "optimizer_states": [], "lr": 0.1},
            "this file holds 'epoch', 'state_dict', 'optimizer_states', 'lr', and no weights at its top: "
            + take.format("state_dict"),
        ),
        ({"model": held}, "this file holds 'model', and no weights at its top: " + take.format("model")),
        (
            {"ema": {"w": torch.ones(1)}, "net": {f"net.{k}": v for k, v in held.items()}},
            "this file holds 'ema', 'net', and no weights at its top: " + take.format("net"),
        ),
        (
            {"state_dict": {"w": torch.ones(1)}},
            "this file holds 'state_dict', and no weights at its top: " + take.format("state_dict"),
        ),
        (dict.fromkeys("abcdefg", 1), "the model has 'hidden.weight', which the saved one lacks"),
        ({}, "the model has 'hidden.weight', which the saved one lacks"),
        (
            {f"module.{k}": v for k, v in held.items()},
            "all names of the saved model begin with 'module.', as a wrapper makes them: take that off them",
        ),
        (
            {f"_orig_mod.{k}": v for k, v in held.items()},
            "all names of the saved model begin with '_orig_mod.', as a wrapper makes them: take that off them",
        ),
        ({"other.hidden.weight": held["hidden.weight"]}, "the model has 'hidden.weight', which the saved one lacks"),
    ):
        torch.save(content, path)
        with pytest.raises(RestoreFault) as caught:
            run.trainer.load_model(path)
        assert str(caught.value) == said
    assert equal(run.weights, before)


# -- live objects ------------------------------------------------------------------------------------------


class Holds(Callback):
    """Has a memory of whatever it is given."""

    def __init__(self, held: Any) -> None:
        self.held = held

    def state_dict(self) -> dict[str, Any]:
        return {"a": [1, {"b": self.held}]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.held = state["a"][1]["b"]


class Pair(NamedTuple):
    a: int


LIVE: dict[str, Callable[[], Any]] = {
    "lock": threading.Lock,
    "function": lambda: lambda: None,
    "generator": lambda: (i for i in range(3)),
    "TextIOWrapper": lambda: open(os.devnull),  # noqa: SIM115 # closed by the test
    "Linear": lambda: torch.nn.Linear(1, 1),
    "ndarray": lambda: np.ones(2),
    "float64": lambda: np.float64(1),
    "set": lambda: {1},
    "Pair": lambda: Pair(1),
    "type": lambda: int,
    "PosixPath": lambda: Path("x"),
}


@pytest.fixture(params=LIVE)
def live(request: pytest.FixtureRequest) -> Iterator[tuple[str, Any]]:
    held = LIVE[request.param]()
    yield request.param, held
    if hasattr(held, "close"):
        held.close()


def test_a_callback_that_holds_what_cannot_be_saved_is_refused_by_the_path_to_it(
    run_dir: Path, live: tuple[str, Any]
) -> None:
    """R49: when the trainer is built, or, for one that comes later, before the run starts."""
    kind, held = live
    said = rf"the state of callback 'Holds' must be plain data or tensors, but state\['a'\]\[1\]\['b'\] is a {kind}"
    with pytest.raises(CallerError, match=said):
        job(run_dir, callbacks=[Holds(held)])
    trainer = job(run_dir)
    trainer.listeners.add_callback(Holds(held))
    with pytest.raises(CallerError, match=said):
        trainer.run()
    assert not run_dir.exists()


def test_a_state_of_the_user_s_that_cannot_be_saved_is_refused_before_the_run_starts(
    run_dir: Path, live: tuple[str, Any]
) -> None:
    """R49."""
    kind, held = live
    trainer = job(run_dir)
    trainer.state["x"] = {"y": (held,)}
    with pytest.raises(
        CallerError, match=rf"trainer.state is saved .* but trainer.state\['x'\]\['y'\]\[0\] is a {kind}"
    ):
        trainer.run()
    assert not run_dir.exists()


@pytest.mark.parametrize("where", ["state", "callback"])
def test_what_came_later_and_cannot_be_saved_ends_the_run_at_the_next_snapshot_by_its_path(
    run_dir: Path, straight: Trainer, where: str
) -> None:
    """R49, R59: the journal says so, and the snapshots before it are used."""
    holder = Holds(1)
    trainer = job(run_dir, callbacks=[holder])

    def spoil(trainer: Any) -> None:
        if trainer.global_forward_batches < 5:
            return
        if where == "state":
            trainer.state.lock = threading.Lock()
        else:
            holder.held = threading.Lock()

    trainer.on("fetch", spoil)
    path = r"trainer.state\['lock'\]" if where == "state" else r"'Holds' must be .*, but state\['a'\]\[1\]\['b'\]"
    with pytest.raises(CallerError, match=f"{path} is a lock"):
        trainer.run()
    last = Journal(run_dir).last
    assert last is not None
    assert (last.dest, last.data["kind"]) == ("exception", "CallerError")
    again = job(run_dir, callbacks=[Holds(1)])
    again.run(resume_from="auto")
    expect_same_end(again, straight)


# -- beside the run ----------------------------------------------------------------------------------------


class Slow(StubDriver):
    """A driver whose disk waits until it is told to go on."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.begun, self.go = threading.Event(), threading.Event()
        self.writing = self.most = 0

    def save(self, capture: Any, directory: Path) -> Any:
        self.writing += 1
        self.most = max(self.most, self.writing)
        self.begun.set()
        self.go.wait()
        self.writing -= 1
        return super().save(capture, directory)


def test_the_run_goes_on_while_a_snapshot_is_written_and_the_copy_is_what_was_then(run_dir: Path) -> None:
    """R12: what training does meanwhile isn't in it."""
    driver = Slow()
    trainer = stub(list(range(9)), driver, n_epochs=1, run_dir=run_dir, snapshot_every=None)
    trainer.on(Events.on_train_batch_end(once=2), lambda trainer: trainer.request_snapshot())
    trainer.state["seen"] = [0]
    then: list[Any] = []

    def later(trainer: Any) -> None:
        n = trainer.global_forward_batches
        trainer.state["seen"].append(n)
        if n == 2:
            then.append((driver.weight, list(trainer.state["seen"])))
        if n == 7:
            assert driver.begun.wait(60)
            assert catalogue(run_dir)[0] == []
            driver.go.set()

    trainer.on(Events.on_train_batch_end, later)
    trainer.run()
    first = catalogue(run_dir)[0][0].path
    held = json.loads((first / "rank-0.json").read_text())
    assert (held["weight"], held["extra"]["user"]["seen"]) == then[0]
    assert driver.weight != held["weight"]


def test_torch_s_copy_is_what_was_then(tmp_path: Path) -> None:
    """R12: weights, moments, gradients and a tensor of the user's, changed in place while they are written."""
    run = torch_run(tmp_path / "run", snapshot_every=None, n_epochs=1)
    driver = run.trainer.driver
    assert driver is not None
    go, save, then = threading.Event(), driver.save, {}

    def slow(capture: Any, directory: Path) -> Any:
        assert go.wait(60)
        return save(capture, directory)

    driver.save = slow  # type: ignore[method-assign]
    run.trainer.state["t"] = torch.zeros(3)

    def after(trainer: Any) -> None:
        n = trainer.global_forward_batches
        run.trainer.state["t"] += 1
        if n == 3:
            trainer.request_snapshot()
            then["weights"], then["t"] = run.weights, trainer.state["t"].clone()
            then["grads"] = [p.grad.clone() for p in run.model.parameters()]  # type: ignore[union-attr]
            then["moments"] = [s["exp_avg"].clone() for s in run.optimizer.state.values()]
        if n == 5:
            go.set()

    run.trainer.on(Events.on_train_batch_end, after)
    run.run()
    path = catalogue(tmp_path / "run")[0][0].path
    held = torch.load(path / "rank-0.pt", weights_only=True)
    assert equal(list(torch.load(path / "model.pt", weights_only=True).values()), then["weights"])
    assert torch.equal(held["extra"]["user"]["t"], then["t"])
    assert equal(list(held["gradients"].values()), then["grads"])
    assert equal([s["exp_avg"] for s in held["optimizers"][0]["state"].values()], then["moments"])


def test_at_most_one_is_in_flight_and_the_end_waits_for_it(run_dir: Path, straight: Trainer) -> None:
    """R12: a slow disk at the end of a run."""
    driver = Slow()
    trainer = job(run_dir, driver, snapshot_every=1)
    threading.Thread(target=lambda: driver.begun.wait() and driver.go.set()).start()
    trainer.run()
    assert driver.most == 1
    found, _ = catalogue(run_dir)
    assert [s.seq for s in found] == [record["at"] for record in sides(run_dir, "saved")]
    assert len(found) == 10
    expect_all_intact(run_dir)
    expect_same_end(trainer, straight)


def test_the_end_of_a_process_waits_for_the_snapshot_that_a_signal_asked_for(run_dir: Path, straight: Trainer) -> None:
    """R11, R12: the disk is slower than the run; its process ends when the snapshot is whole."""

    def work() -> None:
        driver = Slow()
        trainer = job(run_dir, driver, snapshot_every=None)
        trainer.on("step", lambda trainer: len(driver.seen) == 4 and os.kill(os.getpid(), signal.SIGTERM))
        threading.Thread(target=lambda: driver.begun.wait() and driver.go.set()).start()
        trainer.run()

    os.waitpid(in_child(work), 0)
    (snapshot,) = catalogue(run_dir)[0]
    assert snapshot.fault() == ""
    again = job(run_dir)
    again.run(resume_from="auto")
    expect_same_end(again, straight)


def test_an_error_of_the_writer_ends_the_run_at_the_next_transition_and_not_at_its_end(run_dir: Path) -> None:
    """R12."""

    class Breaks(Slow):
        def save(self, *given: Any) -> Any:
            super().save(*given)
            raise OSError(BROKEN, os.strerror(BROKEN))

    driver = Breaks()
    trainer = stub(list(range(99)), driver, n_epochs=1, run_dir=run_dir, snapshot_every=None)
    trainer.on(Events.on_train_batch_end(once=3), lambda trainer: trainer.request_snapshot())

    def wait(trainer: Any) -> None:
        if trainer.global_forward_batches == 5:
            driver.go.set()
            trainer._recorder.snapshots.wait()

    trainer.on(Events.on_train_batch_end, wait)
    with pytest.raises(SnapshotWriteFault, match="the snapshot after seq 8 couldn't be written"):
        trainer.run()
    assert trainer.global_forward_batches == 5


def test_listeners_hear_of_a_snapshot_before_it_may_give_way_to_the_next(run_dir: Path) -> None:
    """R12: whoever copies it elsewhere finds it there."""
    heard: list[int] = []
    trainer = job(run_dir, keep_snapshots=1, snapshot_every=1)

    def look(trainer: Any, path: Path) -> None:
        assert (path / "COMMIT").is_file()
        heard.append(int(path.name))

    trainer.on(Events.on_after_snapshot, look)
    trainer.run()
    saved = [record["at"] for record in sides(run_dir, "saved")]
    assert heard[-1] == saved[-1]
    assert set(saved) - set(heard) <= {saved[-2]}, "the end's own may follow at once"


def test_a_copy_goes_into_the_memory_of_an_earlier_one_once_that_is_written_and_not_before(tmp_path: Path) -> None:
    """R12: a capture that somebody still holds is never overwritten."""
    run = torch_run(tmp_path / "run", snapshot_every=None, n_epochs=1)
    run.run()
    driver = run.trainer.driver
    assert driver is not None
    first = driver.capture({})
    pointers = [p.data_ptr() for p in first["model"].values()]
    held = [t.clone() for t in first["model"].values()]
    second = driver.capture({})  # the first isn't written yet
    with torch.no_grad():
        for parameter in run.model.parameters():
            parameter += 1
    assert equal(list(first["model"].values()), held)
    assert not {p.data_ptr() for p in second["model"].values()} & set(pointers)
    (tmp_path / "a").mkdir()
    driver.save(first, tmp_path / "a")
    third = driver.capture({})
    assert [p.data_ptr() for p in third["model"].values()] == pointers
    assert equal(list(third["model"].values()), run.weights)
    assert equal(list(torch.load(tmp_path / "a" / "model.pt", weights_only=True).values()), held)


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.randn(3, 4),
        lambda: torch.randn(3, 4).t(),
        lambda: torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        lambda: torch.randn(3, dtype=torch.complex64).conj(),
        lambda: torch.imag(torch.randn(3, dtype=torch.complex64).conj()),
        lambda: torch.nn.Parameter(torch.randn(5)),
        lambda: torch.randn(4).to_sparse(),
        lambda: torch.randn(1).expand(4),
        lambda: torch.tensor(7, dtype=torch.int64),
        lambda: torch.empty(0),
    ],
)
def test_a_copy_of_any_tensor_is_its_equal_the_first_time_and_the_second(make: Callable[[], torch.Tensor]) -> None:
    """R12: whatever its memory looks like."""
    first = Staging()
    first.copied("x", [make()])
    for tensor in (make(), make()):
        (copy,) = Staging(first).copied("x", [tensor])
        assert torch.equal(copy.to_dense(), tensor.detach().to_dense())
        assert copy.dtype == tensor.dtype
        assert copy.data_ptr() != tensor.data_ptr() if not tensor.is_sparse and tensor.numel() else True
