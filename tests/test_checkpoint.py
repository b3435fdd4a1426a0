"""`Checkpoint` and what it is made of: when it saves, under which names, what it keeps, what a kill leaves of it."""

from __future__ import annotations

import errno
import json
import math
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from torch import nn

from tachograph.drivers import StubDriver
from tachograph.engine import (
    EMA,
    Callback,
    Checkpoint,
    CheckpointCallback,
    EarlyStopping,
    Events,
    ExecuteOnBetter,
    LoadBestModel,
    MoreEvaluate,
    SaveFault,
    Saver,
    TopkQueue,
    TopkSaver,
    Trainer,
)
from tachograph.engine.callbacks.saves import NOTE, RESULTS, fitting, saved_in
from tachograph.engine.snapshots import catalogue
from tachograph.states.errors import CallerError
from tests.disks import Failing, Killing, Recording, disk
from tests.test_journal_support import in_child
from tests.toys import Run, Sum, equal, stub, validated

NAN = math.nan
SCORES = [1.0, 3.0, 2.0, 3.0, 5.0, 0.0, 4.0, 2.5]


def names(folder: Path) -> list[str]:
    """What lies in a folder, hidden things too."""
    return sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []


def weight(save: Path) -> int:
    """The weight that a stub's model was saved with."""
    driver = StubDriver()
    driver.load_model(save / "model.pt")
    return driver.weight


def saving(run_dir: Path | None, *callbacks: Any, scores: Any = SCORES, **settings: Any) -> Trainer:
    """A run of one batch an epoch, each followed by a validation."""
    return validated(scores, callbacks=list(callbacks), run_dir=run_dir, seed=3, **settings)


def saved(run_dir: Path, scores: Any = SCORES, **about: Any) -> list[str]:
    """The names that a run has saved under, by its end."""
    saving(run_dir, Checkpoint(**about), scores=scores).run()
    return names(run_dir / "checkpoints")


# -- when, and under which names ---------------------------------------------------------------------------


def test_it_saves_after_every_n_epochs_and_every_n_batches_under_names_that_say_so(run_dir: Path) -> None:
    """K1, K2."""
    trainer = stub([1, 2, 3], callbacks=Checkpoint(every_n_epochs=2, every_n_batches=4), n_epochs=5, run_dir=run_dir)
    weights = {}
    trainer.on("on_train_batch_end", lambda t: weights.update({t.global_forward_batches: t.driver.weight}))
    trainer.run()
    folder = run_dir / "checkpoints"
    assert names(folder) == [
        "model-epoch_1-batch_4",
        "model-epoch_2",
        "model-epoch_2-batch_8",
        "model-epoch_4",
        "model-epoch_4-batch_12",
    ]
    batches = {name: json.loads((folder / name / NOTE).read_text())["batch"] for name in names(folder)}
    assert batches == dict(zip(names(folder), [4, 6, 8, 12, 12], strict=True))
    assert {name: weight(folder / name) for name in names(folder)} == {n: weights[b] for n, b in batches.items()}


def test_the_last_one_is_written_over_after_each_epoch(run_dir: Path) -> None:
    """K1, K2, B31: it is there and whole at any time."""
    trainer = stub(callbacks=CheckpointCallback(last=True), n_epochs=3, run_dir=run_dir)
    seen = []
    trainer.on("on_train_epoch_end", lambda t: seen.append(weight(run_dir / "checkpoints" / "model-last")))
    trainer.run()
    assert names(run_dir / "checkpoints") == ["model-last"]
    assert len(set(seen)) == 3
    assert seen[-1] == trainer.driver.weight  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("classes", "struck", "kept"),
    [
        (LookupError, KeyError("x"), ["model-epoch_0-batch_2-exception_KeyError"]),
        ([ValueError, OSError], KeyError("x"), []),
        (KeyboardInterrupt, KeyboardInterrupt(), ["model-epoch_0-batch_2-exception_KeyboardInterrupt"]),
        (None, KeyError("x"), []),
    ],
)
def test_it_saves_at_errors_of_the_given_classes_and_of_those_below_them(
    run_dir: Path, classes: Any, struck: BaseException, kept: list[str]
) -> None:
    """K1, K2, B27: it is heard, and saves, while the driver still works; and the error is the caller's."""
    driver = StubDriver()
    trainer = stub(driver=driver, callbacks=Checkpoint(every_n_epochs=99, on_exceptions=classes), run_dir=run_dir)
    closed: list[bool] = []
    driver.close = lambda: closed.append((run_dir / "checkpoints").exists())  # type: ignore[method-assign]

    def strike(trainer: Any) -> None:
        if trainer.global_forward_batches == 2:
            raise struck

    trainer.on("on_train_batch_end", strike)
    with pytest.raises(type(struck)):
        trainer.run()
    assert names(run_dir / "checkpoints") == kept
    assert closed[-1] == bool(kept)


def test_it_saves_when_so_much_time_has_passed(run_dir: Path) -> None:
    """K2: "10min" and the like, by the first batch that is done then."""
    seconds = iter(range(0, 10_000, 7))
    trainer = stub(range(10), callbacks=Checkpoint(every="20s"), n_epochs=1, run_dir=run_dir, snapshot_every=None)
    trainer.world = attrs.evolve(trainer.world, timer=lambda: float(next(seconds)))
    trainer.run()
    assert names(run_dir / "checkpoints") == [f"model-epoch_0-batch_{n}" for n in (3, 6, 9)]


def test_of_the_regular_ones_the_last_n_stay(run_dir: Path) -> None:
    """K2."""
    checkpoint = Checkpoint(every_n_epochs=1, every_n_batches=2, keep_last=3, last=True)
    stub([1, 2, 3], callbacks=checkpoint, n_epochs=4, run_dir=run_dir).run()
    assert names(run_dir / "checkpoints") == [
        "model-epoch_3-batch_10", "model-epoch_4", "model-epoch_4-batch_12", "model-last",
    ]  # fmt: skip


@pytest.mark.parametrize("tail", ["flush", "drop"])
@pytest.mark.parametrize("every", [-1, "0.5 epoch", 6, 3])
def test_one_and_the_same_moment_has_one_name_whatever_it_is_validated_for(
    run_dir: Path, every: Any, tail: str
) -> None:
    """K2: an epoch is through with its last batch, whether or not the loader was asked for more."""
    stub(
        range(6),
        metrics={"score": Sum()},
        validate_dataloaders=[1],
        validate_every=every,
        accumulation_steps=4,
        accumulation_tail=tail,
        callbacks=Checkpoint(topk=-1, monitor="sum"),
        run_dir=run_dir,
    ).run()
    at = set(names(run_dir / "checkpoints"))
    ends = {"model-epoch_1-batch_6-sum_1.0", "model-epoch_2-batch_12-sum_1.0"}
    assert at - {"model-epoch_0-batch_3-sum_1.0", "model-epoch_1-batch_9-sum_1.0"} == ends


def test_a_score_in_a_name_has_six_digits_and_saves_of_equal_names_are_told_apart_by_their_moment(
    run_dir: Path, tmp_path: Path
) -> None:
    """K2, B28: the table and the results have the whole number, over a resume too."""
    scores = [0.91183876991, 0.91183876992, 1e-7 / 3, 0.9118387698, 1234567.0, 0.911838769925]
    kept = ["epoch_2-batch_2-score_0.911839", "epoch_5-batch_5-score_1234570.0", "epoch_6-batch_6-score_0.911839"]
    straight = saving(run_dir, Checkpoint(topk=3, monitor="score"), scores=scores)
    straight.run()
    assert names(run_dir / "checkpoints") == [f"model-{name}" for name in kept]
    held = json.loads((run_dir / "checkpoints" / f"model-{kept[2]}" / RESULTS).read_text())
    assert held == {"score": 0.911838769925}
    for n in (2, 4):
        saving(tmp_path / str(n), Checkpoint(topk=3, monitor="score"), scores=scores, n_epochs=n).run()
        saving(tmp_path / str(n), Checkpoint(topk=3, monitor="score"), scores=scores).run(resume_from="auto")
        assert names(tmp_path / str(n) / "checkpoints") == names(run_dir / "checkpoints")
    assert saved(tmp_path / "tiny", [1e-7 / 3], topk=1, monitor="score") == ["model-epoch_1-batch_1-score_3.33333e-08"]


# -- a folder that can't be written to ---------------------------------------------------------------------


class Batches(Callback):
    """Notes that a batch was worked off."""

    def __init__(self, done: list[int]) -> None:
        self.done = done

    def on_train_batch_end(self, trainer: Any) -> None:
        self.done.append(trainer.global_forward_batches)


def test_a_folder_that_nothing_can_be_written_into_is_refused_in_one_sentence_before_anything_is_trained(
    tmp_path: Path,
) -> None:
    """K2: when the trainer is built, or else when the run begins; no save is lost."""
    (tmp_path / "file").write_text("mine")
    (tmp_path / "nowhere").symlink_to(tmp_path / "gone")
    for folder, why in (
        (tmp_path / "file", "it is a file"),
        (tmp_path / "nowhere", "it is a link to nothing"),
        (tmp_path / "file" / "below", f"{tmp_path}/file is a file"),
        (Path("/proc/nope"), "/proc is on a file system that takes no files (No such file or directory)"),
    ):
        said = f"can't write into {folder}: {why}. Give another folder"
        for callback in (
            Checkpoint(folder, last=True),
            LoadBestModel("score", save_folder=folder),
            MoreEvaluate([1], {"n": Sum()}, topk=1, topk_monitor="n", folder=folder),
        ):
            batches: list[int] = []
            with pytest.raises(CallerError) as refused:
                saving(None, callback, Batches(batches)).run()
            assert str(refused.value).endswith(said)
            assert type(callback).__name__ in str(refused.value)
            assert not batches
    assert (tmp_path / "file").read_text() == "mine"


def test_one_that_has_become_unwritable_is_refused_where_the_run_goes_on(run_dir: Path) -> None:
    """K2: no epoch is trained whose save would be lost."""
    saving(run_dir, Checkpoint(last=True), n_epochs=2).run()
    shutil.rmtree(run_dir / "checkpoints")
    (run_dir / "checkpoints").write_text("a file")
    with pytest.raises(CallerError, match=r"^Checkpoint can't write into .*/checkpoints: it is a file. Give another"):
        saving(run_dir, Checkpoint(last=True)).run(resume_from="auto")


def test_or_with_the_policy_to_warn_it_is_told_and_the_run_goes_on(tmp_path: Path) -> None:
    """B31: as a save that can't be written is."""
    (tmp_path / "file").write_text("mine")
    with pytest.warns(
        UserWarning, match=r"^Checkpoint can't write into .*file: it is a file. Give another folder. The"
    ):
        trainer = saving(None, Checkpoint(tmp_path / "file", last=True), on_snapshot_fault="warn")
    with pytest.warns(UserWarning, match=r"model-last couldn't be written: Not a directory. The run goes on"):
        assert trainer.run().state == "done"


@pytest.mark.parametrize(("mode", "may_not"), [(0o555, "be written to"), (0o444, "be looked into")])
def test_a_folder_without_permission_is_refused(mode: int, may_not: str) -> None:
    """K2: to write into it, or to look whether it is there."""
    with tempfile.TemporaryDirectory() as place:
        locked = Path(place) / "locked"
        locked.mkdir()
        Path(place).chmod(0o755)
        locked.chmod(mode)
        trainer = stub(callbacks=Checkpoint(locked / "deep" / "saves", last=True))
        with unprivileged(), pytest.raises(CallerError) as refused:
            trainer.run()
        assert str(refused.value) == (
            f"Checkpoint can't write into {locked / 'deep' / 'saves'}: {locked} may not {may_not} (no permission). "
            "Give another folder"
        )
        locked.chmod(0o755)
        assert names(locked) == []


@contextmanager
def unprivileged() -> Iterator[None]:
    """Run the body as somebody who may not write everywhere."""
    if os.geteuid():
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_to_try_a_folder_leaves_nothing_there(tmp_path: Path) -> None:
    """K2: not even the folder, where nothing was saved."""
    (tmp_path / "there").mkdir()
    stub(callbacks=Checkpoint(tmp_path / "there", every_n_epochs=99)).run()
    assert names(tmp_path / "there") == []
    stub(callbacks=Checkpoint(tmp_path / "new" / "one", every_n_epochs=99)).run()
    assert names(tmp_path) == ["there"]


def test_a_fault_is_a_sentence_and_speaks_of_earlier_saves_only_where_there_are_some(run_dir: Path) -> None:
    """B31."""
    with (
        disk(run_dir / "checkpoints", Failing(1, errno.ENOSPC)),
        pytest.raises(SaveFault) as struck,
    ):
        saving(run_dir, Checkpoint(last=True)).run()
    place = run_dir / "checkpoints" / "model-last"
    assert str(struck.value) == f"{place} couldn't be written: {os.strerror(errno.ENOSPC)}"
    assert (struck.value.filename, struck.value.errno) == (str(place), errno.ENOSPC)


# -- the best ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("topk", "larger", "epochs"),
    [
        (0, True, []),
        (1, True, [5]),
        (2, True, [5, 7]),
        (3, True, [4, 5, 7]),
        (1, False, [6]),
        (3, False, [1, 3, 6]),
        (-1, True, [1, 2, 3, 4, 5, 6, 7, 8]),
        (100, True, [1, 2, 3, 4, 5, 6, 7, 8]),
    ],
)
def test_the_n_best_are_kept_and_of_equal_ones_the_newer(
    run_dir: Path, topk: int, larger: bool, epochs: list[int]
) -> None:
    """K1, K2: -1 all, 0 none, n the best; a tie replaces the old."""
    kept = saved(run_dir, topk=topk, every_n_epochs=99, monitor="score", larger_better=larger)
    assert kept == sorted(f"model-epoch_{e}-batch_{e}-score_{SCORES[e - 1]}" for e in epochs)


def test_what_is_no_number_is_not_among_the_best(run_dir: Path) -> None:
    """K2, MO4."""
    assert saved(run_dir, [NAN, 1.0, NAN, 2.0, NAN], topk=3, monitor="score") == [
        "model-epoch_2-batch_2-score_1.0",
        "model-epoch_4-batch_4-score_2.0",
    ]


def test_a_value_that_a_function_leaves_out_is_passed_over(run_dir: Path) -> None:
    """MO3."""
    kept = saved(run_dir, topk=-1, monitor=lambda results: results["score"] if results["score"] > 3 else None)
    assert [name.split("-")[1] for name in kept] == ["epoch_5", "epoch_7"]


def test_the_results_lie_in_each_save_of_the_best_and_in_no_other(tmp_path: Path) -> None:
    """K2."""
    saved(tmp_path / "a", topk=1, monitor="score", last=True)
    folder = tmp_path / "a" / "checkpoints"
    assert json.loads((folder / "model-epoch_5-batch_5-score_5.0" / RESULTS).read_text()) == {"score": 5.0}
    assert RESULTS not in names(folder / "model-last")
    saved(tmp_path / "b", topk=1, monitor="score", save_evaluate_results=False)
    assert RESULTS not in names(tmp_path / "b" / "checkpoints" / "model-epoch_5-batch_5-score_5.0")


def test_the_old_one_goes_when_the_new_one_is_whole(run_dir: Path) -> None:
    """R12, K2: write new, publish, prune."""
    noted = Recording(run_dir)
    with disk(run_dir / "checkpoints", noted):
        saved(run_dir, [1.0, 2.0], topk=1, monitor="score")
    told = [(what, path.split("/checkpoints/")[1].split("/")[0]) for what, path in noted.done if "checkpoints/" in path]
    old, new = "model-epoch_1-batch_1-score_1.0", "model-epoch_2-batch_2-score_2.0"
    published = told.index(("rename", f".writing-{new}"))
    assert ("write", f".writing-{new}") in told[:published]
    gone = told.index(("rename", old))
    assert gone > published
    assert ("unlink", f".removing-{old}") in told[gone:]


def test_the_sanity_check_finds_the_key_and_makes_no_best(run_dir: Path) -> None:
    """MO5, MO6: a wrong monitor is refused before the first batch."""
    trainer = saving(run_dir, Checkpoint(topk=1, monitor="scores"))
    with pytest.raises(CallerError, match=r"monitor 'scores' isn't among the results\. Did you mean 'score'"):
        trainer.run()
    assert trainer.trainer_state.global_forward_batches == 0
    checkpoint = Checkpoint(topk=1, monitor="score", larger_better=False)
    trainer = saving(run_dir.with_name("b"), checkpoint, scores=[9.0, 8.0])
    seen = []
    trainer.on("on_train_begin", lambda t: seen.append((checkpoint.state_dict(), names(checkpoint.folder(t)))))
    trainer.run()
    assert seen == [({}, [])]


def test_what_the_trainer_watches_is_watched_here_too(run_dir: Path) -> None:
    """MO1."""
    saving(run_dir, Checkpoint(topk=1), monitor="score", larger_better=False).run()
    assert names(run_dir / "checkpoints") == ["model-epoch_6-batch_6-score_0.0"]
    with pytest.raises(CallerError, match=r"Checkpoint needs a monitor: give it one, or Trainer\(monitor=...\)"):
        saving(run_dir, Checkpoint(topk=1))
    with pytest.raises(CallerError, match="Checkpoint looks at validations, and this trainer has none"):
        stub(callbacks=Checkpoint(topk=1, monitor="x"), run_dir=run_dir)
    stub(callbacks=Checkpoint(last=True), run_dir=run_dir)  # without `topk` it needs neither


def test_a_monitor_s_name_becomes_one_that_file_systems_take(run_dir: Path) -> None:
    """K2."""
    kept = saved(run_dir, [1.0], topk=1, monitor=lambda results: results["score"])
    assert kept == ["model-epoch_1-batch_1-_lambda__1.0"]
    assert fitting('a/b\\c:d*e?f"g<h>i|j\nk l') == "a_b_c_d_e_f_g_h_i_j_k_l"
    assert fitting("acc#m#dev") == "acc#m#dev"
    assert fitting("..") == fitting("") == "_"
    assert len(fitting("ü" * 500).encode()) == 200


# -- queue and savers, as such -----------------------------------------------------------------------------


def test_a_queue_returns_what_goes_or_what_it_was_given() -> None:
    """K3."""
    queue = TopkQueue(2)
    assert [queue.push(name, value) for name, value in (("a", 1.0), ("b", 3.0))] == [(None, None)] * 2
    assert queue.push("c", 2.0) == ("a", 1.0)
    assert queue.push("d", 1.5) == ("d", 1.5)
    assert queue.push("e", 2.0) == ("c", 2.0), "a tie replaces the old"
    assert queue.push("f", NAN) == ("f", NAN)
    assert queue.push("e", 2.5) == (None, None), "the same name again is no other one"
    assert queue.state_dict() == {"b": 3.0, "e": 2.5}
    again = TopkQueue(1)
    again.load_state_dict(queue.state_dict())
    assert again.state_dict() == {"b": 3.0}, "with a smaller n, the best"
    assert (bool(TopkQueue(0)), bool(again), bool(TopkQueue(-1))) == (False, True, True)
    assert TopkQueue(0).push("a", 1.0) == ("a", 1.0)
    every = TopkQueue(-1)
    assert [every.push(str(n), float(-n)) for n in range(50)] == [(None, None)] * 50
    for wrong in (-2, 1.5, True, None):
        with pytest.raises(CallerError, match="topk must be n > 0"):
            TopkQueue(wrong)  # type: ignore[arg-type]


def test_savers_are_for_callbacks_of_one_s_own(tmp_path: Path) -> None:
    """K3: a `Saver` by itself, and a `TopkSaver` on results of one's own."""
    trainer = stub(run_dir=None)
    saver, top = Saver(tmp_path / "plain"), TopkSaver(1, "f1", folder=tmp_path / "top")
    places: list[Any] = []

    def save(trainer: Any) -> None:
        places.append(saver.save(trainer, "here and there", results={"f1": 1}))
        places.append(top.save_topk(trainer, {"f1": 5.0 - trainer.cur_epoch_idx}))

    trainer.on("on_train_epoch_end", save)
    trainer.run()
    assert [place is None or place.exists() for place in places] == [True] * 4
    assert places[3] is None, "it is no better"
    assert names(places[0]) == ["model.pt", RESULTS, NOTE]
    assert places[0].name == "here_and_there"
    assert (top.monitor_value, top.real_monitor) == (4.0, "f1")
    assert saver.remove(trainer, "here_and_there")
    assert not saver.remove(trainer, "here_and_there")


# -- the folder --------------------------------------------------------------------------------------------


def test_a_run_has_a_folder_of_its_own_and_touches_nobody_else_s(tmp_path: Path) -> None:
    """K1, K2, R12: two runs into one folder."""
    ours = tmp_path / "ours"
    (ours / "model-last").mkdir(parents=True)
    (ours / "model-last" / "mine.txt").write_text("mine")
    for n in (1, 2):
        checkpoint = Checkpoint(ours, last=True, topk=1, monitor="score")
        trainer = saving(tmp_path / f"run{n}", checkpoint, scores=SCORES[:n])
        trainer.run()
        assert names(checkpoint.folder(trainer)) == [f"model-epoch_{n}-batch_{n}-score_{SCORES[n - 1]}", "model-last"]
    assert (ours / "model-last" / "mine.txt").read_text() == "mine"
    assert len(names(ours)) == 3


def test_what_lies_in_its_place_and_is_not_its_own_is_left_there(run_dir: Path) -> None:
    """R12: nothing that this run didn't write is ever removed."""
    folder = run_dir / "checkpoints"
    for name in ("model-last", "model-epoch_1-batch_1-score_1.0"):
        (folder / name).mkdir(parents=True)
        (folder / name / "mine.txt").write_text("mine")
    (folder / "model-epoch_2-batch_2-score_2.0").write_text("a file")
    kept = saved(run_dir, [1.0, 2.0, 3.0], topk=1, monitor="score", last=True)
    assert kept == [
        "model-epoch_1-batch_1-score_1.0",
        "model-epoch_2-batch_2-score_2.0",
        "model-epoch_3-batch_3-score_3.0",
        "model-last",
        "model-last-2",
    ]
    assert names(folder / "model-last") == names(folder / "model-epoch_1-batch_1-score_1.0") == ["mine.txt"]
    assert (folder / "model-epoch_2-batch_2-score_2.0").read_text() == "a file"


def test_two_checkpoints_of_one_run_are_kept_apart(tmp_path: Path) -> None:
    """R42: of one class, into one folder, with the same names."""
    for folder in (None, tmp_path / "there"):
        run_dir = tmp_path / f"run-{folder is None}"

        def both() -> list[Checkpoint]:
            return [Checkpoint(folder, topk=k, monitor="score", last=True) for k in (1, 3)]  # noqa: B023

        pair = both()
        saving(run_dir, *pair, n_epochs=5).run()
        again = both()
        trainer = saving(run_dir, *again)
        trainer.run(resume_from="auto")
        first, second = (c.folder(trainer) for c in again)
        assert first != second
        assert [len(names(f)) for f in (first, second)] == [2, 4]
        held = trainer.listeners.state_dict(trainer)["callbacks"]
        assert [len(held[key]["queue"]) for key in ("Checkpoint", "Checkpoint#2")] == [1, 3]


def test_without_a_place_it_is_refused() -> None:
    """MO5, in its kind: at once, not at the first save."""
    with pytest.raises(CallerError, match="Checkpoint needs a folder, since this trainer has no run_dir"):
        stub(callbacks=Checkpoint(last=True))


def test_a_run_that_keeps_nothing_else_saves_all_the_same(tmp_path: Path) -> None:
    """K2."""
    checkpoint = Checkpoint(tmp_path / "there", last=True)
    trainer = stub(callbacks=checkpoint)
    trainer.run()
    assert names(checkpoint.folder(trainer)) == ["model-last"]
    assert checkpoint.folder(trainer).parent == tmp_path / "there"


# -- what is given -----------------------------------------------------------------------------------------


def test_the_reference_s_older_spellings_are_taken(run_dir: Path) -> None:
    """K1."""
    checkpoint = CheckpointCallback(
        monitor="score",
        is_trainer_checkpoint=False,
        save_folder=run_dir.with_name("there"),
        save_every_n_epochs=4,
        save_every_n_global_batches=3,
        save_last=True,
        save_topk=1,
        save_on_exception=KeyError,
        larger_better=True,
        only_state_dict=True,
        model_save_fn=None,
    )
    trainer = saving(run_dir, checkpoint, scores=[1.0, 3.0, 2.0, 4.0])
    trainer.run()
    assert names(checkpoint.folder(trainer)) == [
        "model-epoch_3-batch_3", "model-epoch_4", "model-epoch_4-batch_4-score_4.0", "model-last",
    ]  # fmt: skip
    assert CheckpointCallback is Checkpoint
    saving(run_dir.with_name("b"), Checkpoint(is_trainer_checkpoint=True, save_last=True)).run()
    assert names(run_dir.with_name("b") / "checkpoints") == ["trainer-last"]


@pytest.mark.parametrize(
    ("about", "said"),
    [
        ({"every_n_epochs": 0}, "every_n_epochs must be an integer >= 1 or None, not 0"),
        ({"every_n_batches": 1.5}, "every_n_batches must be an integer >= 1 or None, not 1.5"),
        ({"keep_last": True}, "keep_last must be an integer >= 1 or None, not True"),
        ({"topk": -3}, r"topk must be n > 0 \(the n best\), -1 \(all\) or 0 \(none\), not -3"),
        ({"every": "soon"}, "every must be a time such as '10min', or None, not 'soon'"),
        ({"every": 5}, "every must be a time such as '10min', or None, not 5"),
        ({"on_exceptions": "KeyError"}, "on_exceptions must be classes of errors, not 'KeyError'"),
        ({"on_exceptions": [KeyError, int]}, "on_exceptions must be classes of errors, not <class 'int'>"),
        ({"save_object": "models"}, "save_object must be one of 'model', 'trainer', 'weights', not 'models'"),
        ({"folder": 3}, "folder must be a path or None, not 3"),
        ({"model_save_fn": 3}, r"model_save_fn must be a function f\(folder\), not 3"),
        ({"model_save_fn": print, "save_object": "trainer"}, "model_save_fn is for save_object='model'"),
        ({"only_state_dict": False}, "only_state_dict must be True"),
        ({"larger_better": "min"}, r"larger_better must be True \(more is better\), False \(less is\) or None"),
        ({}, "Checkpoint has nothing to save: give it every_n_epochs, every_n_batches, every, last, topk or on_exc"),
        ({"keep_last": 3, "monitor": "score"}, "Checkpoint has nothing to save"),
        ({"monitor": 3}, "monitor must be a key of the results or a function, not 3"),
        ({"folder": "a", "save_folder": "b"}, "save_folder is an older name of folder, which was given too"),
        ({"dirpath": "a"}, "^Checkpoint has no argument 'dirpath': it is called folder here$"),
        ({"mode": "max"}, "^Checkpoint has no argument 'mode': larger_better=True is what mode='max' is called here$"),
        ({"mode": "auto"}, "^Checkpoint has no argument 'mode'. "),
        ({"save_top_k": 3}, "it is called topk here"),
        ({"save_best_only": True}, "topk=1 is what it is called here"),
        ({"save_lats": True}, "Checkpoint has no argument 'save_lats'. Did you mean 'save_last'"),
    ],
)
def test_what_it_cannot_use_is_refused_when_it_is_built(about: dict[str, Any], said: str) -> None:
    with pytest.raises(CallerError, match=said):
        Checkpoint(**about)


# -- real models -------------------------------------------------------------------------------------------


class Error(nn.Module):
    """A metric: the error of what was predicted."""

    def __init__(self) -> None:
        super().__init__()
        self.reset()

    def update(self, loss: torch.Tensor) -> None:
        self.losses.append(float(loss))

    def compute(self) -> float:
        return sum(self.losses) / len(self.losses)

    def reset(self) -> None:
        self.losses: list[float] = []


def learning(callbacks: Callable[[Run], Any], run_dir: Path, **settings: Any) -> Run:
    """A run of torch that validates twice an epoch on its own data."""
    return Run(
        callbacks=callbacks,
        run_dir=run_dir,
        metrics={"error": Error()},
        validate_dataloaders={"dev": [next(iter(Run(run_dir=None, noise=False).loader))]},
        validate_every=3,
        larger_better=False,
        monitor="error",
        **{"n_epochs": 3, **settings},
    )


def test_a_saved_model_is_loaded_by_its_folder_and_has_the_bits_it_had(run_dir: Path) -> None:
    """K2: by `load_model`, and by plain `torch.load(weights_only=True)`."""
    held: dict[str, Any] = {}
    run = learning(lambda run: Checkpoint(every_n_batches=4, save_object="weights"), run_dir)
    run.trainer.on(Events.on_train_batch_end(every=4), lambda t: held.update({t.global_forward_batches: run.weights}))
    run.run()
    folder = run_dir / "checkpoints"
    for batches, weights in held.items():
        place = next(folder.glob(f"weights-epoch_*-batch_{batches}"))
        fresh = Run(run_dir=None, init=99)
        fresh.trainer.load_model(place)
        assert equal(fresh.weights, weights)
        assert equal(list(torch.load(place / "model.pt", weights_only=True).values()), weights)


def test_a_function_of_the_user_s_writes_the_model_into_a_whole_folder(run_dir: Path) -> None:
    """K1, K2, B31: one that fails half way leaves what was there."""
    run: Run

    def write(folder: Path) -> None:
        (folder / "part").mkdir()
        (folder / "part" / "one.txt").write_text(f"{run.trainer.cur_epoch_idx}")
        if run.trainer.cur_epoch_idx == 3:
            raise OSError(errno.ENOSPC, "full")
        torch.save(run.model.state_dict(), folder / "part" / "two.pt")

    run = learning(lambda run: Checkpoint(last=True, model_save_fn=write), run_dir)
    with pytest.raises(SaveFault, match=r"model-last couldn't be written: full. Earlier saves are intact"):
        run.run()
    folder = run_dir / "checkpoints"
    assert names(folder) == ["model-last"]
    assert names(folder / "model-last" / "part") == ["one.txt", "two.pt"]
    assert (folder / "model-last" / "part" / "one.txt").read_text() == "2"


def test_the_best_is_saved_with_the_weights_that_were_evaluated(run_dir: Path) -> None:
    """K2: where a callback has evaluations use an average, that is what was good."""
    averages: list[list[torch.Tensor]] = []

    class Noting(EMA):
        def on_validate_end(self, trainer: Any, results: Any) -> None:
            with self.applied():
                averages.append([p.detach().clone() for p in trainer.driver.model.parameters()])

    run = learning(lambda run: [Noting(0.5), Checkpoint(topk=-1, last=True)], run_dir)
    run.run()
    folder = run_dir / "checkpoints"
    places = sorted(folder.glob("*-error_*"), key=lambda place: saved_in(place).seq)  # type: ignore[union-attr]
    for place, average in zip(places, averages, strict=True):
        assert equal(list(torch.load(place / "model.pt", weights_only=True).values()), average)
    assert equal(list(torch.load(folder / "model-last" / "model.pt", weights_only=True).values()), run.weights)


def test_training_does_not_notice_that_anything_is_saved(tmp_path: Path) -> None:
    """K2, K4, K13: weights, generators and chain; the last model is what was trained, whatever the best was."""

    def everything_there_is(run: Run) -> list[Any]:
        regular = {"every_n_epochs": 1, "every_n_batches": 2, "last": True}
        trainers = Checkpoint(every_n_batches=5, topk=2, save_object="trainer")
        return [LoadBestModel(), Checkpoint(**regular), trainers, ExecuteOnBetter(execute_fn=lambda: None)]

    plain = learning(lambda run: [], tmp_path / "plain")
    plain.run()
    run = learning(everything_there_is, tmp_path / "run")
    run.run()
    last = torch.load(tmp_path / "run" / "checkpoints" / "model-last" / "model.pt", weights_only=True)
    assert equal(list(last.values()), plain.weights)
    assert run.generators == plain.generators
    assert run.chain == plain.chain


# -- whole trainers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("beside", [[], ["best"], ["stopping"]])
def test_a_saved_trainer_goes_on_to_the_bits_of_the_straight_run(tmp_path: Path, beside: list[str]) -> None:
    """K2, SV13: from any save, the best, the regular and the last; also where others leave other weights at the end."""

    def callbacks(run: Run) -> list[Any]:
        others = {"best": LoadBestModel(), "stopping": EarlyStopping(patience=99)}
        checkpoint = Checkpoint(every_n_batches=4, topk=2, last=True, save_object="trainer")
        return [*(others[name] for name in beside), checkpoint]

    straight = learning(callbacks, tmp_path / "straight", n_epochs=4)
    straight.run()
    first = learning(callbacks, tmp_path / "first", n_epochs=2)
    first.run()
    places = [path for path in sorted((tmp_path / "first" / "checkpoints").iterdir()) if path.is_dir()]
    assert [p.name.split("-")[-1] for p in places].count("last") == 1
    assert len(places) == 6
    for place in places:
        assert catalogue_of_one(place).fault() == ""
        again = learning(callbacks, tmp_path / place.name, n_epochs=4, init=99)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            again.run(resume_from=place)
        assert equal(again.weights, straight.weights), place.name
        assert again.chain == straight.chain, place.name


def catalogue_of_one(place: Path) -> Any:
    from tachograph.engine import snapshots

    return snapshots.read(place)


def test_of_saved_trainers_the_best_are_kept_with_their_results(run_dir: Path) -> None:
    """K2."""
    kept = saved(run_dir, topk=2, monitor="score", save_object="trainer")
    assert kept == ["trainer-epoch_5-batch_5-score_5.0", "trainer-epoch_7-batch_7-score_4.0"]
    assert json.loads((run_dir / "checkpoints" / kept[0] / RESULTS).read_text()) == {"score": 5.0}


def test_a_trainer_is_saved_at_an_error_as_it_stood_before_it(run_dir: Path) -> None:
    """K2."""
    trainer = saving(run_dir, Checkpoint(on_exceptions=Exception, save_object="trainer"))

    def strike(trainer: Any) -> None:
        if trainer.global_forward_batches == 3:
            raise KeyError("x")

    trainer.on("on_train_batch_end", strike)
    with pytest.raises(KeyError):
        trainer.run()
    (name,) = names(run_dir / "checkpoints")
    assert name == "trainer-epoch_3-batch_3-exception_KeyError"
    again = saving(run_dir.with_name("again"), Checkpoint(on_exceptions=Exception, save_object="trainer"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert again.run(resume_from=run_dir / "checkpoints" / name).global_forward_batches == 8


# -- memory ------------------------------------------------------------------------------------------------

EVERYTHING: dict[str, Any] = {"every_n_epochs": 3, "every_n_batches": 2, "keep_last": 2, "last": True, "topk": 2}


def everything(run_dir: Path, scores: Any = SCORES, save_object: str = "model", **settings: Any) -> Trainer:
    checkpoint = Checkpoint(**EVERYTHING, monitor="score", save_object=save_object)
    return saving(run_dir, checkpoint, scores=scores, **settings)


def contents(run_dir: Path) -> dict[str, Any]:
    """What lies in a run's saves; notes without the run that they name."""
    found: dict[str, Any] = {}
    for path in sorted((run_dir / "checkpoints").rglob("*")):
        if path.is_file():
            told = path.read_bytes()
            if path.name == NOTE:
                told = {k: v for k, v in json.loads(told).items() if k != "run"}  # type: ignore[assignment]
            found[str(path.relative_to(run_dir))] = told
    return found


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Trainer:
    """The run that nothing happened to."""
    trainer = everything(tmp_path_factory.mktemp("straight") / "run")
    trainer.run()
    return trainer


def expect_as_straight(trainer: Trainer, straight: Trainer) -> None:
    assert trainer.run_dir is not None
    assert straight.run_dir is not None
    assert contents(trainer.run_dir) == contents(straight.run_dir)
    states = [t.listeners.state_dict(t)["callbacks"]["Checkpoint"] for t in (trainer, straight)]
    assert states[0] == states[1]
    assert trainer.journal.chain == straight.journal.chain  # type: ignore[union-attr]


@pytest.mark.parametrize("k", range(1, 8))
def test_a_run_that_was_interrupted_after_any_epoch_has_the_saves_of_the_straight_run(
    tmp_path: Path, straight: Trainer, k: int
) -> None:
    """B28, K1, K2, MO8: the table of the best, and which regular ones to keep, are part of every snapshot."""
    everything(tmp_path / "run", n_epochs=k).run()
    again = everything(tmp_path / "run")
    again.run(resume_from="auto")
    expect_as_straight(again, straight)


def test_a_run_that_goes_on_in_one_object_has_the_saves_of_the_straight_run(tmp_path: Path, straight: Trainer) -> None:
    """B28, R61."""
    trainer = everything(tmp_path / "run", n_epochs=3)
    trainer.run()
    trainer.n_epochs = 5
    trainer.run()
    trainer.n_epochs = 8
    trainer.run()
    expect_as_straight(trainer, straight)


@pytest.mark.parametrize("seq", range(1, 8))
def test_a_run_that_goes_on_from_an_earlier_snapshot_has_the_saves_of_the_straight_run(
    tmp_path: Path, straight: Trainer, seq: int
) -> None:
    """B28: what is done again replaces what was saved, under the same names; nothing is counted twice."""
    first = everything(tmp_path / "run")
    first.run()
    snapshot = catalogue(tmp_path / "run")[0][seq - 1]
    again = everything(tmp_path / "run")
    again.run(resume_from=snapshot.path)
    expect_as_straight(again, straight)


def test_what_a_life_made_that_was_given_up_goes_when_the_run_has_passed_it(tmp_path: Path) -> None:
    """B28: gone on with from an earlier point, to other results: no leftover, and the best is always there."""
    everything(tmp_path / "run", [1.0, 3.0, 8.0, 9.0, 2.0]).run()
    assert [n for n in names(tmp_path / "run" / "checkpoints") if "score" in n] == [
        "model-epoch_3-batch_3-score_8.0",
        "model-epoch_4-batch_4-score_9.0",
    ]
    other = everything(tmp_path / "run", [1.0, 3.0, 4.0, 2.0, 6.0])
    seen: list[int] = []
    other.on(
        "on_train_epoch_end", lambda t: seen.append(sum("score" in n for n in names(tmp_path / "run" / "checkpoints")))
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it diverges
        other.run(resume_from=catalogue(tmp_path / "run")[0][1].path)
    everything(tmp_path / "straight", [1.0, 3.0, 4.0, 2.0, 6.0]).run()
    assert contents(tmp_path / "run") == contents(tmp_path / "straight")
    assert min(seen) >= 1


def test_a_run_of_its_own_keeps_a_table_of_its_own(tmp_path: Path) -> None:
    """R12: a run that begins from another one's snapshot leaves that one's saves alone."""
    first = everything(tmp_path / "first", n_epochs=5)
    first.run()
    before = contents(tmp_path / "first")
    fork = everything(tmp_path / "fork")
    fork.run(resume_from=tmp_path / "first")
    assert contents(tmp_path / "first") == before
    assert [n for n in names(tmp_path / "fork" / "checkpoints") if "score" in n] == [
        "model-epoch_7-batch_7-score_4.0",
        "model-epoch_8-batch_8-score_2.5",
    ]


@pytest.mark.parametrize("about", [{"every_n_epochs": 1, "keep_last": 1}, {"topk": 1, "monitor": "score"}])
def test_the_save_that_a_process_was_resumed_from_stays_as_long_as_it_lives(
    tmp_path: Path, about: dict[str, Any]
) -> None:
    """R12: one is kept; the source survives in the same folder, and goes in the next life."""

    def build(n_epochs: int) -> Trainer:
        checkpoint = Checkpoint(save_object="trainer", **about)
        return saving(tmp_path / "run", checkpoint, scores=[float(n) for n in range(9)], n_epochs=n_epochs)

    build(2).run()
    (source,) = names(tmp_path / "run" / "checkpoints")
    build(4).run(resume_from=tmp_path / "run" / "checkpoints" / source)
    assert source in names(tmp_path / "run" / "checkpoints")
    assert len(names(tmp_path / "run" / "checkpoints")) == 2
    build(5).run(resume_from="auto")
    assert len(names(tmp_path / "run" / "checkpoints")) == 1
    assert "epoch_5" in names(tmp_path / "run" / "checkpoints")[0]


def test_a_run_that_was_moved_goes_on_with_its_saves(tmp_path: Path, straight: Trainer) -> None:
    """K2: its folder goes with it."""
    everything(tmp_path / "run", n_epochs=5).run()
    (tmp_path / "run").rename(tmp_path / "moved")
    again = everything(tmp_path / "moved")
    again.run(resume_from="auto")
    expect_as_straight(again, straight)


def test_a_save_that_somebody_took_away_is_no_longer_counted(tmp_path: Path) -> None:
    """B28: the table and the files there are."""
    everything(tmp_path / "run", n_epochs=5).run()
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "model-epoch_5-batch_5-score_5.0")
    again = everything(tmp_path / "run")
    again.run(resume_from="auto")
    assert [n for n in names(tmp_path / "run" / "checkpoints") if "score" in n] == [
        "model-epoch_4-batch_4-score_3.0",
        "model-epoch_7-batch_7-score_4.0",
    ]


def test_a_checkpoint_can_be_added_to_a_run_that_had_none_and_taken_from_one_that_had_no_memory(tmp_path: Path) -> None:
    """B28: no state is no fault."""
    saving(tmp_path / "run", n_epochs=3).run()
    again = everything(tmp_path / "run", n_epochs=4)
    again.run(resume_from="auto")
    assert "model-epoch_4-batch_4-score_3.0" in names(tmp_path / "run" / "checkpoints")
    saving(tmp_path / "b", Checkpoint(last=True), n_epochs=3).run()
    saving(tmp_path / "b").run(resume_from="auto")


def test_with_fewer_to_keep_the_best_of_them_and_the_newest_stay(tmp_path: Path) -> None:
    """K2: the settings of now."""
    saving(tmp_path / "regular", Checkpoint(every_n_epochs=1), n_epochs=4).run()
    again = saving(tmp_path / "regular", Checkpoint(every_n_epochs=1, keep_last=2), n_epochs=5)
    again.run(resume_from="auto")
    assert names(tmp_path / "regular" / "checkpoints") == ["model-epoch_4", "model-epoch_5"]
    saving(tmp_path / "run", Checkpoint(topk=4, monitor="score"), n_epochs=5).run()
    again = saving(tmp_path / "run", Checkpoint(topk=1, monitor="score"))
    again.run(resume_from="auto")
    assert names(tmp_path / "run" / "checkpoints") == ["model-epoch_5-batch_5-score_5.0"]


def test_to_keep_none_from_now_on_removes_nothing(tmp_path: Path) -> None:
    """R12: nor does a resume that takes no memory over."""
    saving(tmp_path / "run", Checkpoint(topk=2, monitor="score"), n_epochs=5).run()
    before = names(tmp_path / "run" / "checkpoints")
    saving(tmp_path / "run", Checkpoint(topk=0, last=True), n_epochs=6).run(resume_from="auto")
    assert names(tmp_path / "run" / "checkpoints") == [*before, "model-last"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        saving(tmp_path / "run", n_epochs=7).run(resume_from="auto", strict=False)
    saving(tmp_path / "run", Checkpoint(topk=1, monitor="score"), n_epochs=8).run(resume_from="auto")
    assert set(before) < set(names(tmp_path / "run" / "checkpoints"))


# -- kills and full disks ----------------------------------------------------------------------------------


@pytest.mark.parametrize("save_object", ["model", "trainer"])
def test_killed_before_any_operation_on_its_files_it_ends_with_the_saves_of_the_straight_run(
    tmp_path: Path, save_object: str, proven: Callable[[int], None]
) -> None:
    """B28, B31, R12: in the middle of any save and of any eviction; every save that has its name is whole."""
    scores = [1.0, 3.0, 2.0, 4.0]
    straight, noted = everything(tmp_path / "straight", scores, save_object), Recording(tmp_path)
    with disk(tmp_path / "straight" / "checkpoints", noted):
        straight.run()
    points = decisive(noted)
    for n in points:
        run_dir = tmp_path / str(n)

        def work() -> None:
            with disk(run_dir / "checkpoints", Killing(n)):  # noqa: B023
                everything(run_dir, scores, save_object).run()  # noqa: B023

        os.waitpid(in_child(work), 0)
        assert (run_dir / "run.json").exists()
        for path in (run_dir / "checkpoints").glob("[!.]*"):
            assert is_whole(path), (n, noted.done[n], path)
        again = everything(run_dir, scores, save_object)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            again.run(resume_from="auto")
        assert names(run_dir / "checkpoints") == names(tmp_path / "straight" / "checkpoints"), (n, noted.done[n])
        if save_object == "model":
            expect_as_straight(again, straight)
    proven(len(points))


def two_files(folder: Path, number: int) -> None:
    for name in ("one.txt", "two.txt"):
        (folder / name).write_text(str(number))


def both(folder: Path) -> bool:
    """Whether the two files are there, and of one model."""
    files = [folder / "one.txt", folder / "two.txt"]
    return all(file.exists() for file in files) and files[0].read_text() == files[1].read_text()


def test_killed_while_one_folder_takes_the_place_of_another_the_last_save_is_whole_under_a_name(tmp_path: Path) -> None:
    """B31, K2: many files can't be exchanged by one rename; the next start puts it right before its first batch."""

    def build(run_dir: Path) -> Trainer:
        driver = StubDriver()
        checkpoint = Checkpoint(last=True, model_save_fn=lambda folder: two_files(folder, driver.weight))
        return stub(driver=driver, callbacks=checkpoint, n_epochs=3, run_dir=run_dir, seed=3)

    noted = Recording(tmp_path)
    with disk(tmp_path / "straight" / "checkpoints", noted):
        build(tmp_path / "straight").run()
    points = [i for i, (what, path) in enumerate(noted.done) if what in ("rename", "unlink", "rmdir")]
    for n in points:
        run_dir = tmp_path / str(n)

        def work() -> None:
            with disk(run_dir / "checkpoints", Killing(n)):  # noqa: B023
                build(run_dir).run()  # noqa: B023

        os.waitpid(in_child(work), 0)
        assert any(both(path) for path in (run_dir / "checkpoints").glob("*model-last"))
        again = build(run_dir)
        seen: list[list[str]] = []
        for moment in ("on_train_begin", "on_after_resume", "on_train_batch_begin"):
            again.on(moment, lambda t, *_: seen.append(names(run_dir / "checkpoints")))  # noqa: B023
        again.run(resume_from="auto")
        if n > points[0]:
            assert seen[-1] == ["model-last"]
        assert names(run_dir / "checkpoints") == ["model-last"]
        assert (run_dir / "checkpoints" / "model-last" / "two.txt").read_text() == str(again.driver.weight)  # type: ignore[union-attr]


def decisive(noted: Recording) -> list[int]:
    """The operations of the last epoch, where all happens: a save of each kind, one over another, evictions.

    Of those that only fill a file under a temporary name, one.
    """
    begins = next(i for i, (_, path) in enumerate(noted.done) if "epoch_4-batch_4" in path)
    last = range(begins, len(noted.done))
    filling = [i for i in last if noted.done[i][0] in ("create", "write", "sync", "mkdir")]
    return sorted({*last} - set(filling) | set(filling[3:4]))


def is_whole(path: Path) -> bool:
    if (path / "COMMIT").exists():
        return catalogue_of_one(path).fault() == ""
    weight(path)
    return saved_in(path) is not None


@pytest.mark.parametrize("policy", ["raise", "warn"])
def test_a_disk_that_is_full_loses_no_save_and_the_policy_says_whether_the_run_goes_on(
    tmp_path: Path, policy: str
) -> None:
    """R12: at the k-th operation: the old ones load, nothing half done is left, the error names the path."""
    scores, noted = [1.0, 3.0, 2.0, 4.0], Recording(tmp_path)
    with disk(tmp_path / "straight" / "checkpoints", noted):
        everything(tmp_path / "straight", scores).run()
    failing = [operation for operation, _ in noted.done if operation not in ("unlink", "rmdir")]
    for n in range(len(failing) // 2, len(failing), 2):
        run_dir, fails = tmp_path / str(n), Failing(n, errno.ENOSPC)
        trainer = everything(run_dir, scores, on_snapshot_fault=policy)
        fault = None
        with warnings.catch_warnings(record=True) as caught, disk(run_dir / "checkpoints", fails):
            warnings.simplefilter("always")
            try:
                trainer.run()
            except SaveFault as error:
                fault = error
        said = [str(w.message) for w in caught] if fault is None else [str(fault)]
        if not said:  # a folder was made that was there already
            assert fails.struck is not None
            assert fails.struck[0] == "mkdir"
            assert contents(run_dir) == contents(tmp_path / "straight")
            continue
        assert (fault is None) == (policy == "warn" or "couldn't be removed" in said[0])
        assert fault is None or (fault.errno == errno.ENOSPC and str(run_dir) in str(fault.filename))
        assert any("No space left on device" in text and str(run_dir) in text for text in said), (n, said)
        for path in (run_dir / "checkpoints").glob("[!.]*"):
            assert is_whole(path), (n, fails.struck)
        assert fault is not None or trainer.trainer_state.state == "done"


def test_saves_of_a_life_that_had_no_snapshot_are_counted_by_the_next_one(tmp_path: Path, straight: Trainer) -> None:
    """B28: killed before the first snapshot, the run begins again, in its old folder."""

    def work() -> None:
        trainer = everything(tmp_path / "run", snapshot_every=None)
        trainer.on("on_train_batch_end", lambda t: os.kill(os.getpid(), 9) if t.global_forward_batches == 6 else None)
        trainer.run()

    os.waitpid(in_child(work), 0)
    assert len(names(tmp_path / "run" / "checkpoints")) > 3
    again = everything(tmp_path / "run")
    again.run(resume_from="auto")
    expect_as_straight(again, straight)
