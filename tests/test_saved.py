"""A trainer in a folder of the user's: `trainer.save`, `trainer.load`, and what `save_model` may be given (A7)."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch

from tachograph.drivers import RestoreFault
from tachograph.engine import Callback, Events, Journal
from tachograph.engine.journal import Files
from tachograph.engine.recording import NotARun, SettingsChanged
from tachograph.engine.snapshots import SnapshotFault, SnapshotWriteFault
from tachograph.engine.world import World
from tachograph.states import Stepped
from tachograph.states.errors import CallerError
from tests.toys import Counts, Run, equal, sides, stop_at, stub

MOMENTS = ("on_train_epoch_begin", "on_fetch_data_end", "on_train_batch_begin", "on_train_batch_end")
INSIDE = ("on_before_backward", "on_before_optimizer_step", "on_after_zero_grad")


class Saves(Callback):
    """Saves the trainer at the n-th call of a moment.

    Args:
        folder: where to.
        moment: its name.
        n: which call.
    """

    def __init__(self, folder: Path, moment: str, n: int) -> None:
        self.folder, self.left = folder, n
        setattr(self, moment, self._heard)

    def _heard(self, trainer: Any, *args: Any) -> None:
        self.left -= 1
        if self.left == 0:
            trainer.save(self.folder)


def settings(**more: Any) -> dict[str, Any]:
    return {"accumulation_steps": 2, "n_epochs": 3, "callbacks": lambda run: [Counts()], **more}


def straight(tmp_path: Path, **more: Any) -> Run:
    run = Run(run_dir=tmp_path / "straight", **settings(**more))
    run.run()
    return run


# -- saving and going on -----------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", [*MOMENTS, *INSIDE])
@pytest.mark.parametrize("how", ["resume_from", "load"])
def test_saved_from_any_moment_it_goes_on_with_the_same_bits(tmp_path: Path, moment: str, how: str) -> None:
    """SV11, SV13, R07, S10: what is saved is the state after the transition in work, when everybody has heard it."""
    folder = tmp_path / "kept" / "here"
    first = Run(run_dir=tmp_path / "first", **settings())
    first.trainer.add_callback(Saves(folder, moment, 3))
    first.run()
    assert (folder / "COMMIT").is_file()

    second = Run(run_dir=tmp_path / "second", init=99, **settings())
    if how == "load":
        second.trainer.load(folder)
        second.run()
    else:
        second.run(resume_from=folder)
    assert equal(second.weights, straight(tmp_path).weights)
    assert second.chain == first.chain
    assert second.trainer.listeners.callbacks["Counts"].n == 18  # type: ignore[attr-defined]
    about = json.loads((tmp_path / "second" / "run.json").read_text())
    assert about["parent"]["run"] == json.loads((tmp_path / "first" / "run.json").read_text())["run"]


def test_a_run_that_ended_is_saved_so_that_it_can_be_extended(tmp_path: Path) -> None:
    """SV11, C1: at its last point before the end."""
    first = Run(run_dir=None, **settings(n_epochs=2))
    first.run()
    first.trainer.save(tmp_path / "two")
    second = Run(run_dir=None, **settings(n_epochs=3))
    second.trainer.load(tmp_path / "two")
    second.run()
    assert equal(second.weights, straight(tmp_path).weights)


def test_a_run_without_a_run_directory_is_saved_too(tmp_path: Path) -> None:
    """SV13: neither journal nor snapshots are needed."""
    first = Run(run_dir=None, **settings())
    first.trainer.add_callback(Saves(tmp_path / "kept", "on_train_batch_end", 7))
    first.run()
    second = Run(run_dir=None, **settings())
    end = second.run(resume_from=tmp_path / "kept")
    assert end.global_forward_batches == 18
    assert len(second.model.seen) == 11
    assert equal(second.weights, first.weights)


def test_in_its_own_run_directory_a_run_goes_back_to_where_it_was_saved(tmp_path: Path) -> None:
    """SV11: what was recorded since then must come again."""
    first = Run(run_dir=tmp_path / "run", **settings())
    first.trainer.add_callback(Saves(tmp_path / "kept", "on_train_batch_end", 7))
    first.run()
    before = first.chain
    again = Run(run_dir=tmp_path / "run", **settings())
    again.run(resume_from=tmp_path / "kept")
    assert again.chain == before
    seq = json.loads((tmp_path / "kept" / "COMMIT").read_text())["seq"]
    last = Journal(tmp_path / "run").last
    assert last is not None
    assert [side["matched"] for side in sides(tmp_path / "run", "matched")] == [last.seq - seq - 1]
    assert equal(again.weights, first.weights)


def test_load_without_the_training_takes_the_model_and_the_optimizers_only(tmp_path: Path) -> None:
    """SV11, A2.R3: at once, and the next run begins at 0."""
    first = Run(run_dir=None, **settings())
    first.run()
    first.trainer.save(tmp_path / "kept")
    second = Run(run_dir=None, init=5, **settings())
    second.trainer.load(tmp_path / "kept", resume_training=False)
    assert equal(second.weights, first.weights)
    held, own = (run.optimizer.state_dict()["state"][0]["exp_avg"] for run in (first, second))
    assert torch.equal(held, own)
    end = second.run()
    assert (end.global_forward_batches, len(second.model.seen)) == (18, 18)


def test_load_has_the_model_there_at_once(tmp_path: Path) -> None:
    """SV13: to look at it, or to evaluate it, before it trains on."""
    first = Run(run_dir=None, **settings())
    first.trainer.add_callback(Saves(tmp_path / "kept", "on_train_batch_end", 7))
    seen: list[Any] = []
    first.trainer.on(Stepped, lambda trainer: seen.append(first.weights))
    first.run()
    second = Run(run_dir=None, init=5, **settings())
    second.trainer.load(tmp_path / "kept")
    assert equal(second.weights, seen[6])


def test_the_batch_size_may_be_another_one(tmp_path: Path) -> None:
    """SV12, R51: the rest of the epoch is what wasn't seen, once each."""
    first = Run(run_dir=None, n_epochs=1)
    first.trainer.add_callback(Saves(tmp_path / "kept", "on_train_batch_end", 2))
    first.run()
    second = Run(run_dir=None, n_epochs=1, batch_size=4)
    second.run(resume_from=tmp_path / "kept")
    seen = [*first.model.seen[:2], *second.model.seen]
    assert list(chain.from_iterable(seen)) == list(chain.from_iterable(first.model.seen))
    assert [len(batch) for batch in second.model.seen] == [4, 4]


def test_a_second_save_in_a_resumed_epoch_counts_from_its_beginning(tmp_path: Path) -> None:
    """SV15, SV12: batches done and batches to come make up an epoch, however often it was resumed."""
    runs = []
    for n, source in [(2, None), (1, "a"), (2, "b")]:
        run = Run(run_dir=None, n_epochs=2)
        run.trainer.add_callback(Saves(tmp_path / "abc"[len(runs)], "on_train_batch_end", n))
        run.run(resume_from=None if source is None else tmp_path / source)
        runs.append(run)
    last = Run(run_dir=None, n_epochs=2)
    last.run(resume_from=tmp_path / "c")
    done = [*runs[0].model.seen[:2], *runs[1].model.seen[:1], *runs[2].model.seen[:2], *last.model.seen]
    assert done == runs[0].model.seen


# -- files -------------------------------------------------------------------------------------------------


def test_everything_in_the_folder_is_read_by_plain_torch(tmp_path: Path) -> None:
    """SV1, SV8, R19: tensors and plain data only, and the weights in a file of their own."""
    run = Run(run_dir=None, **settings())
    run.run()
    run.trainer.save(tmp_path / "kept")
    weights = torch.load(tmp_path / "kept" / "model.pt", weights_only=True)
    assert equal(list(weights.values()), run.weights)
    torch.load(tmp_path / "kept" / "rank-0.pt", weights_only=True)
    other = Run(run_dir=None, init=3)
    other.trainer.load_model(tmp_path / "kept")
    assert equal(other.weights, run.weights)


def test_what_was_saved_before_is_replaced_by_what_is_whole(tmp_path: Path) -> None:
    """SV1, B31: `last` is overwritten each time, and there is one at any moment."""
    trainer = stub(run_dir=None)
    trainer.on(Events.on_train_batch_end, lambda t: t.save(tmp_path / "last"))
    trainer.run()
    assert [path.name for path in tmp_path.iterdir()] == ["last"]
    assert json.loads((tmp_path / "last" / "state.json").read_text())["state"]["global_forward_batches"] == 6


JOB = """
import os, sys
from pathlib import Path
from tests.toys import stub
from tachograph.engine.journal import Files
from tachograph.engine.world import World

class Dies(Files):
    left = int(sys.argv[2])
    def rename(self, source, dest):
        self.left -= 1
        if self.left < 0:
            os.kill(os.getpid(), 9)
        super().rename(source, dest)

trainer = stub(run_dir=None)
trainer.world = World(files=Dies())
trainer.on("on_train_batch_end", lambda t: t.save(Path(sys.argv[1]) / "last"))
trainer.run()
"""


@pytest.mark.parametrize("renames", range(1, 11))
def test_killed_between_any_two_renames_one_of_the_two_is_there(tmp_path: Path, renames: int) -> None:
    """B31, R03, SV1: the one before or the new one, whole."""
    root = str(Path(__file__).parent.parent)
    job = [sys.executable, "-c", JOB, str(tmp_path), str(renames)]
    done = subprocess.run(job, check=False, cwd=root, env={**os.environ, "PYTHONPATH": root})
    assert done.returncode == -signal.SIGKILL
    trainer = stub(run_dir=None)
    trainer.run(resume_from=tmp_path / "last")
    done = (
        1 + renames // 2
    )  # the first save takes one rename, and those after it two: the old one aside, the new one in
    assert len(trainer.driver.seen) == 6 - done  # type: ignore[union-attr]


def test_a_disk_that_refuses_leaves_what_was_there(tmp_path: Path) -> None:
    """R12, B31."""

    class Full(Files):
        full = False

        def open_append(self, path: Path) -> int:
            if self.full:
                raise OSError(28, "No space left on device")
            return super().open_append(path)

    trainer, disk = stub(run_dir=None), Full()
    trainer.world = World(files=disk)
    trainer.run()
    trainer.save(tmp_path / "last")
    before = (tmp_path / "last" / "COMMIT").read_bytes()
    disk.full = True
    with pytest.raises(SnapshotWriteFault, match=r"the trainer couldn't be saved to .*last: .*No space left"):
        trainer.save(tmp_path / "last")
    assert (tmp_path / "last" / "COMMIT").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["last"]


def test_a_damaged_one_is_refused(tmp_path: Path) -> None:
    """R64: by its digest."""
    run = Run(run_dir=None, **settings())
    run.run()
    run.trainer.save(tmp_path / "kept")
    path = tmp_path / "kept" / "model.pt"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    other = Run(run_dir=None, **settings())
    before = other.weights
    for use in (lambda: other.trainer.load(tmp_path / "kept"), lambda: other.run(resume_from=tmp_path / "kept")):
        with pytest.raises(SnapshotFault, match=r"kept is damaged: model.pt"):
            use()
    assert equal(other.weights, before)


# -- the user's own way ------------------------------------------------------------------------------------


def test_a_users_function_writes_the_model_and_another_reads_it(tmp_path: Path) -> None:
    """SV8, SV14, B26: in a folder of its own."""
    run = Run(run_dir=None, **settings())
    run.run()

    def write(folder: Path) -> None:
        torch.save({"mine": run.model.out.weight.detach()}, folder / "mine.bin")

    read: list[Any] = []
    run.trainer.save_model(tmp_path / "new" / "folder", model_save_fn=write)
    run.trainer.load_model(tmp_path / "new" / "folder", model_load_fn=lambda folder: read.append(folder / "mine.bin"))
    run.trainer.save(tmp_path / "kept", model_save_fn=write)
    assert torch.equal(torch.load(read[0], weights_only=True)["mine"], run.model.out.weight)
    other = Run(run_dir=None, **settings())
    other.trainer.load(tmp_path / "kept", model_load_fn=lambda folder: read.append(folder / "mine.bin"))
    assert torch.equal(torch.load(read[1], weights_only=True)["mine"], run.model.out.weight)
    (tmp_path / "kept" / "model" / "mine.bin").write_bytes(b"")
    with pytest.raises(SnapshotFault, match=r"model/mine.bin has 0 bytes"):
        other.trainer.load(tmp_path / "kept")


def test_a_folder_takes_the_weights_under_a_name_of_their_own(tmp_path: Path) -> None:
    """SV14: folders that are missing are made."""
    run, other = Run(), Run(init=3)
    for target in (tmp_path, f"{tmp_path}/a/b/", tmp_path / "c" / "weights.pt"):
        run.trainer.save_model(target)
        other.trainer.load_model(target)
        assert equal(run.weights, other.weights)
    assert sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*.pt")) == [
        "a/b/model.pt",
        "c/weights.pt",
        "model.pt",
    ]


# -- wrong use ---------------------------------------------------------------------------------------------


def test_what_cant_be_saved_or_loaded_is_refused_in_a_sentence(tmp_path: Path) -> None:
    """SV14, R64: and nothing is written."""
    run = Run(run_dir=tmp_path / "run", **settings())
    trainer = run.trainer
    with pytest.raises(CallerError, match=r"there is no run to save yet: save_model\(\) saves the weights alone"):
        trainer.save(tmp_path / "kept")
    for target in (tmp_path / "model", io.BytesIO()):
        with pytest.raises(CallerError, match="only_state_dict must be True: a whole module can only be pickled"):
            trainer.save_model(target, only_state_dict=False)
    with pytest.raises(CallerError, match=r"model_save_fn must be a function of \(folder\), and takes a folder"):
        trainer.save_model(io.BytesIO(), model_save_fn=print)
    with pytest.raises(CallerError, match=r"model_load_fn must be a function of \(folder\)"):
        trainer.load_model(tmp_path, model_load_fn="mine")  # type: ignore[arg-type]
    with pytest.raises(CallerError, match="a path or an open binary file is needed, not 3"):
        trainer.save_model(3)
    with pytest.raises(FileNotFoundError, match=r"there is no model at .*nowhere"):
        trainer.load_model(tmp_path / "nowhere")
    with pytest.raises(FileNotFoundError, match=r"there is nothing at .*nowhere"):
        trainer.load(tmp_path / "nowhere")
    with pytest.raises(NotARun):
        trainer.load(tmp_path)
    trainer.run()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(CallerError, match=r"mine holds other files: give save\(\) a folder of its own"):
        trainer.save(tmp_path / "mine")
    with pytest.raises(CallerError, match=r"notes.txt is a file: give save\(\) a folder"):
        trainer.save(tmp_path / "mine" / "notes.txt")
    with pytest.raises(CallerError, match="is where a run keeps its own snapshots"):
        trainer.save(tmp_path / "run" / "snapshots" / "mine")


def test_a_trainer_of_another_kind_is_refused_before_anything_is_changed(tmp_path: Path) -> None:
    """SV11, R40, R64: by its fixed settings, by its model."""
    first = Run(run_dir=None, **settings())
    first.run()
    first.trainer.save(tmp_path / "kept")
    other = Run(run_dir=None, init=4, **settings(accumulation_steps=3))
    before = other.weights
    with pytest.raises(SettingsChanged, match="this run's accumulation_steps is 2, this trainer's 3"):
        other.trainer.load(tmp_path / "kept")
    with pytest.raises(SettingsChanged, match="this run's accumulation_steps is 2, this trainer's 3"):
        other.run(resume_from=tmp_path / "kept")
    with pytest.raises(RestoreFault):
        stub(run_dir=None).load(tmp_path / "kept", resume_training=False)
    assert equal(other.weights, before)


def test_a_run_that_is_under_way_cant_be_put_somewhere_else(tmp_path: Path) -> None:
    trainer = stub(run_dir=None)
    trainer.on(Events.on_train_begin, lambda t: t.load(tmp_path))
    with pytest.raises(CallerError, match=r"load\(\) is for before run\(\)"):
        trainer.run()


def test_saved_when_it_was_asked_to_stop_it_can_be_gone_on_with(tmp_path: Path) -> None:
    """SV11: a stop that ended the run has been heeded."""
    first = Run(run_dir=None, **settings())
    stop_at(Events.on_train_batch_end, 5)(first.trainer)
    first.run()
    first.trainer.save(tmp_path / "kept")
    second = Run(run_dir=None, **settings())
    second.run(resume_from=tmp_path / "kept")
    assert equal(second.weights, straight(tmp_path).weights)
