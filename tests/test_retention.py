"""Which snapshots are kept: the rules as such, and runs that obey them whatever happens to them."""

from __future__ import annotations

import errno
import json
import math
import os
import shutil
import threading
import warnings
from pathlib import Path
from typing import Any

import pytest

from tachograph.engine import Journal, Keep, Trainer, snapshot_writer
from tachograph.engine.retention import Entry, remove, superfluous
from tachograph.engine.snapshots import SnapshotWriteFault, catalogue
from tachograph.states import TrainerState
from tachograph.states.errors import CallerError
from tests.disks import Failing, disk
from tests.test_resume import crash_at, expect_same_end, files_of, job, notices
from tests.toys import Sum, sides, stub, validated

# -- the rules ---------------------------------------------------------------------------------------------


def entry(seq: int, score: float | None = None, *, life: int = 0, exact: bool = True, live: bool = True) -> Entry:
    """A snapshot after batch `seq`, in epoch `seq // 10`, whose last validation was the one after batch `seq`."""
    results = {} if score is None else {"acc#val": score}
    state = {"results": results, "validations": seq, "global_forward_batches": seq, "cur_epoch_idx": seq // 10}
    return Entry(Path(f"{seq}.i{life}"), life, seq, exact, live, state)


def left(entries: list[Entry], keep: Keep, protected: tuple[Path, ...] = ()) -> list[str]:
    gone = superfluous(entries, keep, protected)
    assert gone == sorted(gone, key=lambda e: (e.incarnation, e.seq)), "the oldest goes first"
    return [str(e.path) for e in entries if e not in gone]


def test_the_last_so_many_are_those_that_were_taken_last() -> None:
    held = [entry(seq) for seq in (1, 2, 3, 4)]
    assert left(held, Keep(last=2)) == ["3.i0", "4.i0"]
    assert left(held, Keep(last=9)) == ["1.i0", "2.i0", "3.i0", "4.i0"]
    assert left([], Keep(last=1)) == []


def test_the_best_are_those_with_the_best_results_and_of_equal_ones_the_earlier() -> None:
    held = [entry(1, 0.5), entry(2, 0.9), entry(3, 0.7), entry(4, 0.9), entry(5, 0.1), entry(6)]
    assert left(held, Keep(best=1, monitor="acc#val")) == ["2.i0", "6.i0"]
    assert left(held, Keep(best=3, monitor="acc")) == ["2.i0", "3.i0", "4.i0", "6.i0"]
    assert left(held, Keep(best=2, monitor="acc", larger_better=False)) == ["1.i0", "5.i0", "6.i0"]


def test_what_is_not_a_number_is_never_among_the_best() -> None:
    held = [entry(1, math.nan), entry(2, 0.1), entry(3, math.nan), entry(4)]
    for larger in (True, False):
        assert left(held, Keep(best=2, monitor="acc", larger_better=larger)) == ["2.i0", "4.i0"]
    held = [entry(1, math.inf), entry(2, -math.inf), entry(3)]
    assert left(held, Keep(best=1, monitor="acc")) == ["1.i0", "3.i0"]


def test_of_one_validation_the_first_snapshot_is_kept_and_takes_one_place() -> None:
    def between(seq: int, score: float, validations: int) -> Entry:
        state = {"results": {"acc#val": score}, "validations": validations}
        return Entry(Path(f"{seq}.i0"), 0, seq, True, True, state)

    held = [between(1, 0.9, 1), between(2, 0.9, 1), between(3, 0.9, 1), between(4, 0.4, 2), between(5, 0.4, 2)]
    assert left(held, Keep(best=2, monitor="acc")) == ["1.i0", "4.i0", "5.i0"]


def test_an_earlier_life_with_other_metrics_is_no_error() -> None:
    other = Entry(Path("1.i0"), 0, 1, True, True, {"results": {"loss#val": 9.0}, "validations": 1})
    broken = Entry(Path("2.i0"), 0, 2, True, True, {})
    held = [other, broken, entry(3, 0.5), entry(4)]
    assert left(held, Keep(best=3, monitor="acc")) == ["3.i0", "4.i0"]


def test_every_n_batches_or_epochs_the_first_snapshot_from_there_on_is_kept() -> None:
    held = [entry(seq) for seq in (3, 7, 11, 14, 21, 28, 35, 36)]
    assert left(held, Keep(every=7)) == ["7.i0", "14.i0", "21.i0", "28.i0", "35.i0", "36.i0"]
    assert left(held, Keep(every=10)) == ["11.i0", "21.i0", "35.i0", "36.i0"]
    assert left(held, Keep(every=-1)) == ["11.i0", "21.i0", "35.i0", "36.i0"]
    assert left(held, Keep(every=-2)) == ["21.i0", "36.i0"]


def test_the_rules_add_up() -> None:
    held = [entry(seq, score) for seq, score in ((5, 0.9), (10, 0.1), (15, 0.2), (20, 0.3), (25, 0.4))]
    assert left(held, Keep(last=2, best=1, monitor="acc", every=10)) == ["5.i0", "10.i0", "20.i0", "25.i0"]


def test_inexact_ones_count_apart_and_go_when_an_exact_one_follows() -> None:
    exact, inexact = [entry(seq) for seq in (1, 2, 3)], [entry(seq, exact=False) for seq in (4, 5)]
    assert left([*exact, *inexact], Keep(last=2)) == ["2.i0", "3.i0", "5.i0"]
    later = entry(4, life=1)
    assert left([*exact, *inexact, later], Keep(last=2)) == ["3.i0", "4.i1"]


def test_what_was_superseded_stays_while_it_is_among_the_last_and_is_never_among_the_best() -> None:
    """Resumed from 2: what came after it in the first life is off the history that goes on."""
    old = [entry(1, 0.1), entry(2, 0.2), entry(3, 0.99, live=False), entry(4, 0.3, live=False)]
    keep = Keep(last=2, best=1, monitor="acc")
    assert left([*old, entry(3, 0.25, life=1)], keep) == ["4.i0", "3.i1"]
    assert left([*old, entry(3, 0.15, life=1)], keep) == ["2.i0", "4.i0", "3.i1"]
    assert left([*old, entry(3, 0.25, life=1), entry(4, 0.1, life=1)], keep) == ["3.i1", "4.i1"]
    assert left([*old[:2], entry(3, 0.9, live=False), entry(3, 0.9, life=1)], Keep(every=1)) == ["1.i0", "2.i0", "3.i1"]


def test_what_is_protected_stays() -> None:
    held = [entry(seq) for seq in (1, 2, 3)]
    assert left(held, Keep(last=1), (held[0].path,)) == ["1.i0", "3.i0"]


# -- what is given -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"last": 0}, "last must be an integer >= 1, not 0"),
        ({"last": True}, "last must be an integer >= 1, not True"),
        ({"last": 2.0}, "last must be an integer >= 1"),
        ({"best": -1, "monitor": "acc"}, "best must be an integer >= 0, not -1"),
        ({"best": 1}, "best and monitor belong together: monitor is missing"),
        ({"monitor": "acc"}, "best and monitor belong together: best is missing"),
        ({"best": 1, "monitor": len}, "monitor must be a key of the results"),
        ({"every": 0}, r"every must be n > 0 \(batches\), -n \(epochs\) or None, not 0"),
        ({"every": "epoch"}, "every must be n > 0"),
        ({"larger_better": 1}, "larger_better must be True or False"),
    ],
)
def test_rules_that_make_no_sense_are_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(CallerError, match=f"Keep: {said}"):
        Keep(**given)


@pytest.mark.parametrize("given", [0, -1, True, 2.0, "3", [2]])
def test_what_is_no_rule_is_refused(given: Any) -> None:
    with pytest.raises(CallerError, match=r"keep_snapshots must be None \(all\), an integer >= 1 or a Keep\(...\)"):
        Keep.of(given)


def test_a_rule_is_a_setting_in_plain_data() -> None:
    assert Keep.of(None) is None
    assert Keep.of(3) == Keep(last=3)
    assert Keep.of(Keep(last=3)).plain() == 3  # type: ignore[union-attr]
    assert Keep(best=2, monitor="acc", every=-5).plain() == {"last": 1, "best": 2, "monitor": "acc", "every": -5}


def test_a_state_that_cannot_answer_is_refused_by_the_field_that_it_lacks() -> None:
    class Own:
        cur_epoch_idx = 0

    Keep(last=3).check_state(Own())
    Keep(every=-1).check_state(Own())
    Keep(best=1, monitor="acc", every=4).check_state(TrainerState())
    with pytest.raises(CallerError, match="Keep: every looks at global_forward_batches, which Own doesn't have"):
        Keep(every=1).check_state(Own())
    with pytest.raises(CallerError, match="Keep: best looks at results, which Own doesn't have"):
        Keep(best=1, monitor="acc").check_state(Own())


# -- runs --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    """The run that nothing happened to, and that kept all."""
    trainer = job(tmp_path_factory.mktemp("straight") / "run", snapshot_every=1)
    trainer.run()
    return trainer


def there(run_dir: Path) -> list[int]:
    found, faults = catalogue(run_dir)
    assert faults == []
    return [s.seq for s in found]


def gone(run_dir: Path) -> list[str]:
    return [name for record in sides(run_dir, "pruned") for name in record["snapshots"]]


def test_a_run_keeps_the_last_so_many_and_records_which_went(run_dir: Path, straight: Trainer) -> None:
    """R12: and what is kept makes no difference to the history."""
    trainer = job(run_dir, snapshot_every=1, keep_snapshots=3)
    trainer.run()
    all_of_them = there(straight.run_dir)  # type: ignore[arg-type]
    assert there(run_dir) == all_of_them[-3:]
    assert [int(name) for name in gone(run_dir)] == all_of_them[:-3]
    kinds = [record.kind for record in Journal(run_dir).sides() if record.kind in ("saved", "pruned")]
    assert kinds == ["saved"] * 3 + ["saved", "pruned"] * (len(all_of_them) - 3)
    expect_same_end(trainer, straight)


def test_by_default_all_are_kept(run_dir: Path) -> None:
    job(run_dir).run()
    assert len(there(run_dir)) == len(sides(run_dir, "saved"))
    assert gone(run_dir) == []


def test_old_ones_go_beside_the_run(run_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads = set()

    def noted(*given: Any) -> None:
        threads.add(threading.current_thread().name)
        remove(*given)

    monkeypatch.setattr(snapshot_writer, "remove", noted)
    job(run_dir, keep_snapshots=1).run()
    assert threads == {"tachograph-snapshot"}


@pytest.mark.parametrize("keep", [1, 2, Keep(every=4), Keep(last=2, best=2, monitor="score"), Keep(every=-2)])
def test_stopped_and_resumed_at_every_epoch_a_run_keeps_what_the_straight_one_keeps(tmp_path: Path, keep: Any) -> None:
    """R12, R13: what is kept follows from the snapshots themselves, whoever took them."""
    scores = [0.1, 0.7, 0.3, 0.9, 0.2, 0.9, 0.4]

    def build(run_dir: Path, n_epochs: int = len(scores)) -> Trainer:
        return validated(scores, run_dir=run_dir, keep_snapshots=keep, n_epochs=n_epochs, seed=1)

    build(tmp_path / "straight").run()
    for n in range(1, len(scores) + 1):
        build(tmp_path / "run", n).run(resume_from="auto")
    kept, again = (batches_of(tmp_path / name) for name in ("straight", "run"))
    assert set(again) >= set(kept) - ({6} if keep == 2 else set()), "what is kept at an end counts as well"
    assert len(set(again) - set(kept)) <= 1, "the one it was resumed from stays too"
    if keep == Keep(last=2, best=2, monitor="score"):
        assert set(kept) == {4, 6, 7}
    if keep == Keep(every=-2):
        assert set(kept) == {2, 4, 6, 7}


def batches_of(run_dir: Path) -> list[int]:
    """How many batches were done at each of the snapshots."""
    return [s.about()["state"]["global_forward_batches"] for s in catalogue(run_dir)[0]]


def test_the_source_of_a_resume_is_kept_while_its_process_lives(run_dir: Path, straight: Trainer) -> None:
    """R12: keep-last-1, resumed from the first one of many; the next process may let it go."""
    job(run_dir, snapshot_every=1, n_epochs=2).run()
    source = catalogue(run_dir)[0][0]
    again = job(run_dir, snapshot_every=1, n_epochs=2, keep_snapshots=1)
    again.run(resume_from=source.path)
    assert there(run_dir) == [source.seq, *there(run_dir)[1:]]
    assert len(there(run_dir)) == 2
    third = job(run_dir, snapshot_every=1, keep_snapshots=1)
    third.run(resume_from="auto")
    assert source.seq not in there(run_dir)
    expect_same_end(third, straight)


@pytest.mark.parametrize("given", ["run", "snapshot"])
def test_a_run_that_begins_from_another_one_s_snapshot_never_touches_it(
    tmp_path: Path, straight: Trainer, given: str
) -> None:
    """R12: keep-last-1, resumed into another folder."""
    job(tmp_path / "source", n_epochs=1).run()
    files = files_of(tmp_path / "source")
    source = catalogue(tmp_path / "source")[0][0].path if given == "snapshot" else tmp_path / "source"
    other = job(tmp_path / "other", keep_snapshots=1, snapshot_every=1)
    other.run(resume_from=source)
    assert files_of(tmp_path / "source") == files
    assert len(there(tmp_path / "other")) == 1
    assert other.journal.chain == straight.journal.chain  # type: ignore[union-attr]


def test_what_is_no_snapshot_of_this_run_is_never_touched(tmp_path: Path) -> None:
    """R12: another run's, a copy without its COMMIT, a damaged one, files and links of the user's."""
    run_dir = tmp_path / "run"
    job(tmp_path / "other", n_epochs=1).run()
    job(run_dir, n_epochs=1).run()
    root, mine = run_dir / "snapshots", catalogue(run_dir)[0][0].path
    foreign = catalogue(tmp_path / "other")[0][0].path
    shutil.copytree(foreign, root / "000000000001")
    shutil.copytree(mine, root / "my copy")
    shutil.copytree(mine, root / "000000000002")
    (root / "000000000002" / "COMMIT").write_text("{")
    (root / "000000000003").mkdir()
    (root / "notes.txt").write_text("x")
    (root / "link").symlink_to(tmp_path / "other")
    (root / "my copy" / "COMMIT").unlink()
    strangers = {path.name for path in root.iterdir()} - {path.name for path in root.iterdir() if path == mine}
    strangers -= {s.path.name for s in catalogue(run_dir)[0] if s.run != catalogue(tmp_path / "other")[0][0].run}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        job(run_dir, keep_snapshots=1).run(resume_from="auto")
    assert strangers <= {path.name for path in root.iterdir()}
    assert {"000000000001", "my copy", "000000000002", "000000000003", "notes.txt", "link"} <= strangers
    assert files_of(tmp_path / "other")


def test_an_inexact_snapshot_goes_when_an_exact_one_follows(run_dir: Path, straight: Trainer) -> None:
    """R12: those of errors pile up no more than others."""
    settings: dict[str, Any] = {"keep_snapshots": 2, "snapshot_every": "epoch"}
    for n in (5, 2, 2):
        with pytest.raises(SystemError):
            job(run_dir, crash_at(n), **settings).run(resume_from="auto")
        assert [s.exact for s in catalogue(run_dir)[0]].count(False) == 1
    again = job(run_dir, **settings)
    again.run(resume_from="auto")
    assert all(s.exact for s in catalogue(run_dir)[0])
    expect_same_end(again, straight)


# -- what can't be kept by such a rule ---------------------------------------------------------------------


def test_a_monitor_that_is_not_among_the_results_is_refused_at_the_first_evaluation(run_dir: Path) -> None:
    """R12: with the names there are; hours later it would be too late."""
    trainer = job(run_dir, keep_snapshots=Keep(best=2, monitor="summ"))
    said = r"keep_snapshots: monitor 'summ' isn't among the results. Did you mean 'sum#m'\?"
    with pytest.raises(CallerError, match=said):
        trainer.run()
    assert trainer.trainer_state.global_forward_batches == 0, "the sanity check has the same names"
    with pytest.raises(CallerError, match="keep_snapshots: monitor 'n' fits n#m, n#o"):
        stub(
            metrics={"m": Sum(), "o": Sum()},
            validate_dataloaders=[1],
            run_dir=run_dir.with_name("other"),
            keep_snapshots=Keep(best=1, monitor="n"),
        ).run(num_eval_sanity_batch=0)


def test_the_best_without_results_are_refused_when_the_trainer_is_built(run_dir: Path) -> None:
    with pytest.raises(CallerError, match="keep_snapshots: the best ones are those with the best results, so give the"):
        stub(run_dir=run_dir, keep_snapshots=Keep(best=1, monitor="m"))


def test_the_rule_is_a_setting_that_may_change_and_the_next_snapshot_follows_it(
    run_dir: Path, straight: Trainer
) -> None:
    """R40."""
    job(run_dir, snapshot_every=1, n_epochs=2).run()
    assert json.loads((run_dir / "run.json").read_text())["settings"]["keep_snapshots"] is None
    again = job(run_dir, snapshot_every=1, keep_snapshots=Keep(every=3))
    said = notices(again)
    again.run(resume_from="auto")
    assert "keep_snapshots changed from None to {'last': 1, 'every': 3}" in said
    assert set(batches_of(run_dir)) == {3, 6, 9}
    expect_same_end(again, straight)


# -- a disk that fails -------------------------------------------------------------------------------------


class Refusing:
    """A disk that lets nothing go: the operation named fails on what lies under a removed name, or is to."""

    def __init__(self, operation: str) -> None:
        self.operation = operation

    def __call__(self, operation: str, path: str, data: bytes) -> None:
        going = ".removing-" in path if operation != "rename" else ".writing-" not in path
        if operation == self.operation and going:
            raise OSError(errno.EACCES, os.strerror(errno.EACCES), path)


@pytest.mark.parametrize("operation", ["rename", "unlink", "rmdir"])
def test_what_cannot_be_removed_costs_one_warning_and_never_stops_a_run(
    run_dir: Path, straight: Trainer, operation: str
) -> None:
    """R12: it is tried again after each snapshot, and goes when it can."""
    trainer = job(run_dir, keep_snapshots=1, n_epochs=2, snapshot_every=1)
    refusing = disk(run_dir / "snapshots", Refusing(operation))
    with pytest.warns(UserWarning, match="old snapshots couldn't be removed: .*The run goes on") as caught, refusing:
        trainer.run()
    told = [record["error"] for record in sides(run_dir, "not_pruned")]
    assert len(caught) == len(told) == len(set(told))
    if operation == "rename":
        assert len(told) == 1
        assert len(there(run_dir)) == len(sides(run_dir, "saved")), "all are there"
    expect_all_usable(run_dir)
    again = job(run_dir, keep_snapshots=1, snapshot_every=1)
    again.run(resume_from="auto")
    assert len(there(run_dir)) <= 2
    assert not list((run_dir / "snapshots").glob(".*"))
    expect_same_end(again, straight)


def expect_all_usable(run_dir: Path) -> None:
    assert [s.fault() for s in catalogue(run_dir)[0]] == [""] * len(there(run_dir))


@pytest.mark.parametrize("n", range(15))
def test_where_the_new_one_cannot_be_written_no_old_one_goes(run_dir: Path, n: int) -> None:
    """R12: write new, verify, publish, then prune: whichever operation of the second snapshot fails."""
    trainer = job(run_dir, keep_snapshots=1)
    with disk(run_dir / "snapshots", Failing(17 + n, errno.ENOSPC, for_good=True)), pytest.raises(SnapshotWriteFault):
        trainer.run()
    assert there(run_dir) == [12]
    expect_all_usable(run_dir)


def test_what_a_process_left_half_removed_is_removed_at_the_next_start(run_dir: Path, straight: Trainer) -> None:
    """R12."""
    job(run_dir, n_epochs=1).run()
    last = catalogue(run_dir)[0][-1].path
    shutil.copytree(last, last.with_name(".removing-000000000001"))
    (last.with_name(".removing-000000000001") / "state.json").unlink()
    again = job(run_dir)
    said = notices(again)
    again.run(resume_from="auto")
    assert not list((run_dir / "snapshots").glob(".*"))
    assert not any("removing" in text for text in said)
    expect_same_end(again, straight)
