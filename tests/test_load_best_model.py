"""`LoadBestModel`: the best weights are in the model at the end, and training goes on from those that were trained."""

from __future__ import annotations

import errno
import os
import signal
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tachograph.drivers import StubDriver
from tachograph.engine import EMA, EarlyStopping, LoadBestModel, LoadBestModelCallback, Trainer
from tachograph.states.errors import CallerError
from tests.disks import Killing, Recording, disk
from tests.test_checkpoint import learning, names
from tests.test_journal_support import in_child
from tests.toys import Run, Scores, equal, stub, validated

SCORES = [1.0, 4.0, 2.0, 6.0, 3.0, 5.0, 0.0]


def best(run_dir: Path | None, scores: Any = SCORES, best: dict[str, Any] | None = None, **settings: Any) -> Trainer:
    """A run of one batch an epoch, each followed by a validation."""
    others = settings.pop("others", [])
    callback = LoadBestModel("score", **(best or {}))
    trainer = validated(scores, callbacks=[callback, *others], run_dir=run_dir, seed=5, **settings)
    trainer.held = []  # type: ignore[attr-defined]
    trainer.on("on_validate_end", lambda t, results: t.held.append(t.driver.weight))
    return trainer


def weights_by_epoch(n: int = len(SCORES)) -> list[int]:
    """The weight at each epoch's end, in a run that nobody interferes with."""
    trainer = validated([0.0] * n, run_dir=None, seed=5)
    held: list[int] = []
    trainer.on("on_validate_end", lambda t, results: held.append(t.driver.weight))
    trainer.run()
    return held


PLACES = ["memory", "folder"]


def about(place: str, tmp_path: Path) -> dict[str, Any]:
    return {} if place == "memory" else {"save_folder": tmp_path / "best"}


# -- the best ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize(
    ("larger", "scores", "epoch"),
    [(True, SCORES, 4), (False, SCORES, 7), (True, [1.0, 1.0, 1.0], 1), (True, [float("nan"), 2.0, float("nan")], 2)],
)
def test_the_model_ends_with_the_weights_that_were_the_best(
    tmp_path: Path, place: str, larger: bool, scores: list[float], epoch: int
) -> None:
    """K4, MO4, B30: better more than once, equal, and NaN; what was held before is held no more."""
    trainer = best(tmp_path / "run", scores, {"larger_better": larger, **about(place, tmp_path)})
    said: list[str] = []
    trainer.on("on_notice", lambda t, text: said.append(text))
    trainer.run()
    assert trainer.driver.weight == weights_by_epoch(len(scores))[epoch - 1]  # type: ignore[union-attr]
    assert said == [f"the model has the best weights now: score was {scores[epoch - 1]}, after batch {epoch}"]
    assert LoadBestModelCallback is LoadBestModel


@pytest.mark.parametrize("place", PLACES)
def test_real_weights_come_back_to_the_bit_buffers_too(tmp_path: Path, place: str) -> None:
    """K4."""
    held: list[tuple[float, list[torch.Tensor]]] = []
    run = learning(lambda run: LoadBestModel(**about(place, tmp_path)), tmp_path / "run")
    run.trainer.on("on_validate_end", lambda t, results: held.append((next(iter(results.values())), run.weights)))
    run.run()
    assert len(held) == 6
    assert equal(run.weights, min(held, key=lambda pair: pair[0])[1])


def test_where_evaluations_use_an_average_the_best_average_is_in_the_model(run_dir: Path) -> None:
    """K4: what was good is what was evaluated."""
    averages: list[tuple[float, list[torch.Tensor]]] = []

    class Noting(EMA):
        def on_validate_end(self, trainer: Any, results: Any) -> None:
            with self.applied():
                held = [p.detach().clone() for p in trainer.driver.model.parameters()]
            averages.append((next(iter(results.values())), held))

    run = learning(lambda run: [Noting(0.5), LoadBestModel()], run_dir)
    run.run()
    assert equal(run.weights, min(averages, key=lambda pair: pair[0])[1])


def test_the_sanity_check_finds_the_key_and_makes_no_best(run_dir: Path) -> None:
    """MO5, MO6."""
    with pytest.raises(CallerError, match="monitor 'scores' isn't among the results"):
        validated(SCORES, callbacks=LoadBestModel("scores"), run_dir=run_dir).run()
    callback = LoadBestModel("score")
    trainer = validated([9.0, 8.0], callbacks=callback, run_dir=None, larger_better=False)
    seen: list[Any] = []
    trainer.on("on_train_begin", lambda t: seen.append((callback.monitor_value, callback.state_dict())))
    trainer.run()
    assert seen == [(None, {})]
    assert callback.monitor_value == 8.0
    with pytest.raises(CallerError, match="LoadBestModel needs a monitor"):
        validated(SCORES, callbacks=LoadBestModel())
    with pytest.raises(CallerError, match="LoadBestModel looks at validations, and this trainer has none"):
        stub(callbacks=LoadBestModel("x"))


def test_two_that_would_both_leave_their_weights_in_the_model_are_refused() -> None:
    """R42."""
    with pytest.raises(CallerError, match="two LoadBestModel would each leave its weights in the one model"):
        validated(SCORES, callbacks=[LoadBestModel("score"), LoadBestModel("score", larger_better=False)])


def test_what_a_full_disk_kept_from_being_written_is_not_taken_for_the_best(tmp_path: Path) -> None:
    """K4, R12: the best that is there is loaded, and said."""
    trainer = best(tmp_path / "run", [1.0, 2.0, 9.0, 0.0], about("folder", tmp_path), on_snapshot_fault="warn")
    said: list[str] = []
    trainer.on("on_notice", lambda t, text: said.append(text))

    def fail(operation: str, path: str, data: bytes) -> None:
        if operation == "write" and "best-epoch_3" in path:
            raise OSError(errno.ENOSPC, "full")

    with pytest.warns(UserWarning, match="best-epoch_3-batch_3 couldn't be written: full"), disk(tmp_path, fail):
        trainer.run()
    assert trainer.driver.weight == weights_by_epoch()[1]  # type: ignore[union-attr]
    assert said == ["the model has the best weights now: score was 2.0, after batch 2"]


def test_where_nothing_was_validated_the_model_is_left_alone(run_dir: Path) -> None:
    trainer = best(run_dir, validate_every=-100)
    trainer.run()
    assert trainer.driver.weight == weights_by_epoch()[-1]  # type: ignore[union-attr]


# -- how a run ends ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", PLACES)
def test_after_a_stop_the_best_is_in_the_model(tmp_path: Path, place: str) -> None:
    """K4."""
    trainer = best(tmp_path / "run", best=about(place, tmp_path), others=[EarlyStopping("score", patience=2)])
    assert trainer.run().validations == 6
    assert trainer.driver.weight == weights_by_epoch()[3]  # type: ignore[union-attr]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("error", [KeyError("x"), KeyboardInterrupt()])
def test_after_an_error_the_best_is_in_the_model_and_a_resume_knows_it(
    tmp_path: Path, place: str, error: BaseException
) -> None:
    """K4: an error, and Ctrl-C; the files stay, for the run isn't over."""
    trainer = best(tmp_path / "run", best=about(place, tmp_path))

    def strike(trainer: Any) -> None:
        if trainer.global_forward_batches == 4:
            raise error

    trainer.on("on_train_batch_end", strike)
    with pytest.raises(type(error)):
        trainer.run()
    expected = weights_by_epoch()
    assert trainer.driver.weight == expected[1]  # type: ignore[union-attr]
    again = best(tmp_path / "run", [1.0, 4.0, 2.0, 3.0, 3.0, 3.0, 0.0], about(place, tmp_path))
    again.run(resume_from="auto")
    assert again.driver.weight == expected[1]  # type: ignore[union-attr]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("how", ["signal", "max_time"])
def test_a_run_that_was_cut_off_keeps_its_files_until_it_is_over(tmp_path: Path, place: str, how: str) -> None:
    """K4: what the next life needs isn't deleted."""
    trainer = best(tmp_path / "run", best=about(place, tmp_path))

    def cut(trainer: Any) -> None:
        if trainer.global_forward_batches != 3:
            return
        if how == "signal":
            trainer.interrupt(signal.SIGTERM)
        else:
            trainer.max_time = 1e-9

    trainer.on("on_train_batch_end", cut)
    if how == "signal":
        with pytest.raises(SystemExit):
            trainer.run()
    else:
        trainer.run()
    assert trainer.trainer_state.global_forward_batches == 3
    again = best(tmp_path / "run", [1.0, 4.0, 2.0, 3.0, 3.0, 3.0, 0.0], about(place, tmp_path))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again.run(resume_from="auto")
    assert again.driver.weight == weights_by_epoch()[1]  # type: ignore[union-attr]
    assert list((tmp_path / "best").glob("*")) == []


# -- going on ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("k", [1, 2, 3, 5, 6])
def test_a_run_that_ended_is_extended_from_what_was_trained(tmp_path: Path, place: str, k: int) -> None:
    """K4: resumed in another process, it trains on from the last weights, not from the best: the bits, and the best."""
    where = {**about(place, tmp_path), "delete_after_train": False}
    straight = best(tmp_path / "straight", best=where)
    straight.run()
    first = best(tmp_path / "run", best=where, n_epochs=k)
    first.run()
    expected = weights_by_epoch()
    assert first.driver.weight == expected[max(range(k), key=SCORES[:k].__getitem__)]  # type: ignore[union-attr]
    again = best(tmp_path / "run", best=where)
    again.run(resume_from="auto")
    assert again.held == expected[k:]  # type: ignore[attr-defined]
    assert again.driver.weight == expected[3]  # type: ignore[union-attr]
    assert again.journal.chain == straight.journal.chain  # type: ignore[union-attr]
    states = [t.listeners.state_dict(t)["callbacks"]["LoadBestModel"] for t in (again, straight)]
    assert {**states[0], "file": ""} == {**states[1], "file": ""}


@pytest.mark.parametrize("delete", [True, False])
@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("k", [1, 2, 3, 5, 6])
def test_a_second_run_of_one_object_goes_on_from_what_was_trained(
    tmp_path: Path, place: str, k: int, delete: bool
) -> None:
    """K4, R61: the trained weights come back before its first batch; the best are known still, deleted or not."""
    where = {**about(place, tmp_path), "delete_after_train": delete}
    trainer = best(tmp_path / "run", best=where, n_epochs=k)
    trainer.run()
    trainer.n_epochs = len(SCORES)
    trainer.run()
    expected = weights_by_epoch()
    assert trainer.held == expected  # type: ignore[attr-defined]
    assert trainer.driver.weight == expected[3]  # type: ignore[union-attr]
    straight = best(tmp_path / "straight", best=where)
    straight.run()
    assert trainer.journal.chain == straight.journal.chain  # type: ignore[union-attr]
    trainer.run()  # the limit is reached: the best stay where they are
    assert trainer.driver.weight == expected[3]  # type: ignore[union-attr]


def test_real_runs_are_extended_to_the_bits_of_the_straight_one(tmp_path: Path) -> None:
    """K4: weights, chain, and the callback's memory, tensor by tensor; in a new process's objects and in the same."""
    straight = learning(lambda run: LoadBestModel(), tmp_path / "straight", n_epochs=4)
    trained: list[Any] = []
    straight.trainer.on("on_train_epoch_end", lambda t: trained.append(straight.weights))
    straight.run()
    one = learning(lambda run: LoadBestModel(), tmp_path / "one", n_epochs=2)
    one.run()
    again = learning(lambda run: LoadBestModel(), tmp_path / "one", n_epochs=4, init=99)
    one.trainer.n_epochs = 4
    for run, how in ((again, {"resume_from": "auto"}), (one, {"resume_from": "auto"})):
        ends: list[Any] = []
        run.trainer.on("on_train_epoch_end", lambda t, run=run, ends=ends: ends.append(run.weights))
        run.run(**how)
        if ends:
            assert equal(ends[-1], trained[-1])
        assert equal(run.weights, straight.weights)
        assert run.chain == straight.chain
    states = [r.trainer.listeners.state_dict(r.trainer)["callbacks"]["LoadBestModel"] for r in (again, straight)]
    assert equal(list(states[0].pop("weights").values()), list(states[1].pop("weights").values()))
    assert states[0] == states[1]
    other = learning(lambda run: LoadBestModel(), tmp_path / "other", n_epochs=2)
    other.run()
    other.trainer.n_epochs = 4
    other.run()
    assert equal(other.weights, straight.weights)
    assert other.chain == straight.chain


def test_other_weights_that_somebody_put_into_the_model_after_the_end_are_left_in_it(run_dir: Path) -> None:
    """K4: nobody's weights are lost without a word."""
    trainer = best(run_dir, n_epochs=3)
    said: list[str] = []
    trainer.on("on_notice", lambda t, text: said.append(text))
    trainer.run()
    trainer.driver.weight = 777  # type: ignore[union-attr]
    begins: list[int] = []
    trainer.on("on_train_batch_begin", lambda t, batch, indices: begins.append(t.driver.weight))
    trainer.n_epochs = 4
    trainer.run()
    assert begins == [777]
    assert "the model has other weights than those that LoadBestModel put into it: they are left in it" in said


def test_a_trainer_that_is_saved_after_its_end_is_saved_with_what_was_trained(tmp_path: Path) -> None:
    """K4, SV13: and the model holds the best before and after."""
    trainer = best(tmp_path / "run", n_epochs=5)
    trainer.run()
    expected = weights_by_epoch()
    trainer.save(tmp_path / "saved")
    assert trainer.driver.weight == expected[3]  # type: ignore[union-attr]
    again = best(tmp_path / "again")
    again.run(resume_from=tmp_path / "saved")
    assert again.held == expected[5:]  # type: ignore[attr-defined]


# -- files -------------------------------------------------------------------------------------------------


def test_there_is_one_file_beside_what_a_snapshot_names_and_none_at_the_end(tmp_path: Path) -> None:
    """K4: deleted after; a snapshot's best stays until a later snapshot is there."""
    counts: list[int] = []
    callback = LoadBestModel("score", save_folder=tmp_path / "best")
    trainer = validated([1.0, 2.0, 3.0, 4.0, 5.0], callbacks=callback, run_dir=tmp_path / "run")
    trainer.on("on_train_batch_end", lambda t: counts.append(len(names(callback._saver.folder(t)))))
    trainer.run()
    assert max(counts) <= 2
    assert names(tmp_path / "best") == []
    kept = LoadBestModel("score", save_folder=tmp_path / "kept", delete_after_train=False)
    trainer = validated([1.0, 2.0, 3.0], callbacks=kept, run_dir=tmp_path / "other")
    trainer.run()
    assert names(kept._saver.folder(trainer))[-1] == "best-epoch_3-batch_3"


def test_functions_of_the_user_s_write_and_read_the_model(tmp_path: Path) -> None:
    """K4: both or neither."""
    driver = StubDriver()

    def write(folder: Path) -> None:
        (folder / "weight.txt").write_text(str(driver.weight))

    def read(folder: Path) -> None:
        driver.weight = int((folder / "weight.txt").read_text())

    for fns in ({"model_save_fn": write}, {"model_load_fn": read}):
        with pytest.raises(CallerError, match="model_save_fn and model_load_fn belong together"):
            LoadBestModel("score", save_folder=tmp_path, **fns)
    with pytest.raises(CallerError, match="model_save_fn writes files: give a save_folder"):
        LoadBestModel("score", model_save_fn=write, model_load_fn=read)
    with pytest.raises(CallerError, match="only_state_dict must be True"):
        LoadBestModel("score", only_state_dict=False)
    callback = LoadBestModel("score", save_folder=tmp_path / "best", model_save_fn=write, model_load_fn=read)
    metric = Scores(SCORES)
    metric.trainer = stub(
        [1], driver, metrics={"score": metric}, validate_dataloaders=[1], callbacks=callback, n_epochs=7, seed=5
    )
    metric.trainer.run()
    assert driver.weight == weights_by_epoch()[3]


def test_best_weights_that_were_deleted_are_missed_with_a_word_when_the_run_is_extended(tmp_path: Path) -> None:
    """K4: training goes on as it would have; the best from there on counts."""
    best(tmp_path / "run", best=about("folder", tmp_path), n_epochs=5).run()
    again = best(tmp_path / "run", best=about("folder", tmp_path))
    with pytest.warns(UserWarning, match=r"the best weights so far \(score = 6.0\) aren't in"):
        again.run(resume_from="auto")
    expected = weights_by_epoch()
    assert again.held == expected[5:]  # type: ignore[attr-defined]
    assert again.driver.weight == expected[5]  # type: ignore[union-attr]


@pytest.mark.parametrize(("before", "after"), [("memory", "folder"), ("folder", "memory")])
def test_where_they_are_kept_may_change_at_a_resume(tmp_path: Path, before: str, after: str) -> None:
    keep = {"delete_after_train": False}
    best(tmp_path / "run", best={**about(before, tmp_path), **keep}, n_epochs=5).run()
    again = best(tmp_path / "run", best={**about(after, tmp_path), **keep})
    again.run(resume_from="auto")
    assert again.driver.weight == weights_by_epoch()[3]  # type: ignore[union-attr]


# -- kills -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", PLACES)
def test_killed_in_any_epoch_it_ends_with_the_best_of_the_straight_run(
    tmp_path: Path, place: str, proven: Callable[[int], None]
) -> None:
    """K4, B28: the best weights are part of every snapshot, or named in it and there."""
    expected = weights_by_epoch()
    for n in range(1, len(SCORES) + 1):
        run_dir, where = tmp_path / str(n), about(place, tmp_path / str(n))

        def work() -> None:
            trainer = best(run_dir, best=where)  # noqa: B023
            trainer.on("on_train_epoch_end", lambda t: os.kill(os.getpid(), 9) if t.cur_epoch_idx == n else None)  # noqa: B023
            trainer.run()

        os.waitpid(in_child(work), 0)
        again = best(run_dir, best=where)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            again.run(resume_from="auto")
        assert again.held[-1] == expected[-1]  # type: ignore[attr-defined]
        assert again.driver.weight == expected[3]  # type: ignore[union-attr]
    proven(len(SCORES))


def test_killed_twice_before_a_new_snapshot_the_file_that_the_old_one_names_is_there(tmp_path: Path) -> None:
    """K4, B28: what a resumed run finds better makes no room at the cost of what it would be resumed from again."""
    where = {**about("folder", tmp_path), "delete_after_train": False}

    def die(trainer: Any) -> None:
        if trainer.cur_epoch_idx == 2:
            trainer._recorder.snapshots.wait()
            os.kill(os.getpid(), 9)

    def work() -> None:
        trainer = best(tmp_path / "run", [1.0, 2.0, 3.0, 4.0], best=where, snapshot_every=2)
        trainer.on("on_train_epoch_end", die)
        trainer.run(resume_from="auto")

    for _ in range(2):
        os.waitpid(in_child(work), 0)
    again = best(tmp_path / "run", [1.0, 2.0, 3.0, 4.0], best=where, snapshot_every=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again.run(resume_from="auto")
    [folder] = (tmp_path / "best").iterdir()
    assert names(folder) == ["best-epoch_4-batch_4"]


def test_killed_in_the_middle_of_writing_or_removing_the_best_it_ends_with_it(
    tmp_path: Path, proven: Callable[[int], None]
) -> None:
    """K4, B31."""
    noted, expected = Recording(tmp_path), weights_by_epoch()
    with disk(tmp_path / "straight" / "best", noted):
        best(tmp_path / "straight" / "run", best=about("folder", tmp_path / "straight")).run()
    points = [i for i, (what, _) in enumerate(noted.done) if what in ("rename", "unlink", "rmdir")]
    deleting = [i for i, (what, path) in enumerate(noted.done) if what == "rename" and "/best-epoch_4-" in path][-1]
    for n in [i for i in points if i < deleting]:
        root = tmp_path / str(n)

        def work() -> None:
            with disk(root / "best", Killing(n)):  # noqa: B023
                best(root / "run", best=about("folder", root)).run()  # noqa: B023

        os.waitpid(in_child(work), 0)
        again = best(root / "run", best=about("folder", root))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            again.run(resume_from="auto")
        assert again.driver.weight == expected[3], noted.done[n]  # type: ignore[union-attr]
        assert names(root / "best") == []
    proven(len(points))


def test_a_resumed_run_of_torch_has_the_best_of_the_dead_process(tmp_path: Path) -> None:
    """K4, B28: killed with SIGKILL after its best validation."""

    def build(run_dir: Path) -> Run:
        return learning(lambda run: LoadBestModel(), run_dir)

    straight = build(tmp_path / "straight")
    straight.run()

    def work() -> None:
        run = build(tmp_path / "run")
        run.trainer.on("on_train_batch_end", lambda t: os.kill(os.getpid(), 9) if t.global_forward_batches == 16 else 0)
        run.run()

    os.waitpid(in_child(work), 0)
    again = build(tmp_path / "run")
    again.run(resume_from="auto")
    assert equal(again.weights, straight.weights)
    assert again.chain == straight.chain
