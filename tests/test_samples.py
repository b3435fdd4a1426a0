"""Which samples were in a batch: found again from the journal, and held against what the model was given."""

from __future__ import annotations

import json
import random
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import (
    DataLoader,
    DistributedSampler,
    IterableDataset,
    Sampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from tachograph.drivers.loaders import Spot, ids_asked, ids_remembered, settings_of
from tachograph.drivers.samplers import RandomBatchSampler, RandomSampler, SequentialSampler
from tachograph.engine import Callback, Journal, NanGuard, SpikeGuard, recording
from tachograph.engine.callbacks.nan_guard import NotFinite
from tachograph.engine.samples import SamplesUnknown, find_samples, samples_of
from tests.jobs.ranks import RankForks
from tests.rank_threads import read, together
from tests.test_cli_support import cli, in_a_process
from tests.toys import Indexed, Mean, Run, stub


def asked_of(run_dir: Path, event: str = "Stepped", **more: Any) -> list[list[int]]:
    """The samples of every batch of a run."""
    return [samples_of(run_dir, record.seq, **more) for record in Journal(run_dir) if record.event == event]


class Odd(Sampler[int]):
    """A user's own order: drawn from the global generators, and turned round in every second epoch."""

    def __init__(self, n: int) -> None:
        self.n, self.epochs = n, 0

    def __iter__(self) -> Iterator[int]:
        self.epochs += 1
        order = torch.randperm(self.n).tolist()
        random.shuffle(order)
        return iter(order if self.epochs % 2 else order[::-1])

    def __len__(self) -> int:
        return self.n


KINDS: dict[str, Callable[[], dict[str, Any]]] = {
    "shuffled": lambda: {"shuffle": True},
    "in order": lambda: {"shuffle": False},
    "the short batch dropped": lambda: {"shuffle": True, "drop_last": True},
    "with replacement": lambda: {"sampler": torch.utils.data.RandomSampler(range(11), True, 9)},
    "a subset": lambda: {"sampler": SubsetRandomSampler([1, 5, 2, 9, 7])},
    "weighted": lambda: {"sampler": WeightedRandomSampler([0.1, 5.0, 1.0, 1.0, 3.0, 1.0, 0.7], 10)},
    "a list": lambda: {"sampler": [3, 1, 4, 1, 5, 9, 2, 6, 5]},
    "a range": lambda: {"sampler": range(10, 0, -2)},
    "our random sampler": lambda: {"sampler": RandomSampler(11, seed=3)},
    "our sequential sampler": lambda: {"sampler": SequentialSampler(11)},
    "our batches": lambda: {"batch_sampler": RandomBatchSampler(11, 4, seed=3)},
    "torch's share": lambda: {"sampler": DistributedSampler(range(11), 1, 0, seed=2)},
}


def run_of(loader: dict[str, Any], run_dir: Path) -> Run:
    if "batch_sampler" not in loader:
        return Run(n=11, noise=False, run_dir=run_dir, batch_size=3, loader={"shuffle": None, **loader})
    run = Run(n=11, noise=False, run_dir=run_dir)
    return reading(run, DataLoader(run.data, batch_sampler=loader["batch_sampler"]))


def reading(run: Run, loader: Any) -> Run:
    """Have a run read another loader."""
    run.trainer.train_dataloader = run.loader = loader
    assert run.trainer.driver is not None
    run.trainer.driver.set_dataloader(loader)
    return run


@pytest.mark.parametrize("kind", KINDS)
def test_the_samples_of_every_batch_are_found_from_the_run_directory_alone(kind: str, run_dir: Path) -> None:
    run = run_of(KINDS[kind](), run_dir)
    run.run()
    assert asked_of(run_dir) == run.model.seen
    assert asked_of(run_dir, "Fetched") == run.model.seen


@pytest.mark.parametrize("settings", [{"accumulation_steps": 2}, {"overfit_batches": 2}])
def test_accumulation_and_overfitting_change_nothing_of_it(settings: dict[str, Any], run_dir: Path) -> None:
    run = Run(n=11, run_dir=run_dir, batch_size=3, **settings)
    run.run()
    assert asked_of(run_dir) == run.model.seen


def test_a_limit_of_batches_in_an_epoch_changes_nothing_of_it(run_dir: Path) -> None:
    run = Run(n=11, run_dir=run_dir, batch_size=3)
    run.run(num_train_batch_per_epoch=2)
    assert asked_of(run_dir) == run.model.seen
    assert len(run.model.seen) == 4


class StopAt(Callback):
    def __init__(self, n: int) -> None:
        self.n = n

    def on_train_batch_end(self, trainer: Any) -> None:
        if trainer.trainer_state.global_forward_batches == self.n:
            trainer.stop("enough")


def test_a_resumed_and_an_extended_run_with_another_batch_size_is_asked_with_what_held_at_each_point(
    run_dir: Path,
) -> None:
    """A batch size of 3 for two batches, then of 2, in an epoch of 11; then one epoch more."""
    first = Run(n=11, run_dir=run_dir, batch_size=3, callbacks=lambda _: [StopAt(2)])
    first.run()
    second = Run(n=11, run_dir=run_dir, batch_size=2, callbacks=lambda _: [StopAt(99)])
    second.run(resume_from="auto")
    third = Run(n=11, run_dir=run_dir, batch_size=2, n_epochs=3, callbacks=lambda _: [StopAt(99)])
    third.run(resume_from="auto")
    assert [len(ids) for ids in first.model.seen] == [3, 3]
    assert asked_of(run_dir) == first.model.seen + second.model.seen + third.model.seen


def test_a_batch_in_hand_when_a_run_went_on_from_another_is_looked_for_in_the_parent(
    run_dir: Path, tmp_path: Path
) -> None:
    """The snapshot stands in step; what comes after it is found in the child itself."""
    first = Run(n=11, run_dir=run_dir, batch_size=3, snapshot_every=None)
    first.trainer.on("fetch -> step", ask_for_a_snapshot)
    first.run()
    snapshot = next(path for path in (run_dir / "snapshots").iterdir() if path.name.startswith("000000000005"))
    child = Run(n=11, run_dir=tmp_path / "child", batch_size=3)
    child.run(resume_from=snapshot)
    with pytest.raises(SamplesUnknown, match=rf"`tachograph show {run_dir} --at 5 --samples`"):
        samples_of(tmp_path / "child", 6)
    assert samples_of(run_dir, 5) == child.model.seen[0]
    assert samples_of(tmp_path / "child", 7) == child.model.seen[1]


def ask_for_a_snapshot(trainer: Any) -> None:
    trainer.request_snapshot()


# -- several ranks -----------------------------------------------------------------------------------------


def spot(rank: int, world: int, done: int, place: int | None, size: int | None, epoch: int = 1) -> Spot:
    return Spot(seed=5, epoch=epoch, done=done, place=place, rank=rank, world=world, batch_size=size)


SHARED: dict[str, tuple[bool | None, Callable[[int], Any]]] = {
    "dealt out": (None, lambda rank: DataLoader(Indexed(23), batch_size=3, shuffle=True)),
    "dealt out, short ones dropped": (None, lambda _: DataLoader(Indexed(23), batch_size=3, drop_last=True)),
    "our sampler": (None, lambda rank: DataLoader(Indexed(23), batch_size=3, sampler=RandomSampler(23, seed=9))),
    "our batches": (None, lambda rank: DataLoader(Indexed(23), batch_sampler=RandomBatchSampler(23, 4, seed=9))),
    "torch's share": (
        None,
        lambda rank: DataLoader(Indexed(23), batch_size=3, sampler=DistributedSampler(range(23), 2, rank)),
    ),
    "torch's even share": (
        None,
        lambda rank: DataLoader(
            Indexed(23), batch_size=3, sampler=DistributedSampler(range(23), 2, rank, drop_last=True)
        ),
    ),
    "torch's share, used as it is": (
        False,
        lambda rank: DataLoader(Indexed(23), batch_size=3, sampler=DistributedSampler(range(23), 2, rank)),
    ),
    "our share": (
        None,
        lambda rank: DataLoader(Indexed(23), batch_size=3, sampler=RandomSampler(23).set_distributed(2, rank)),
    ),
    "single samples": (None, lambda rank: DataLoader(Indexed(23), batch_size=None, shuffle=True)),
}


@pytest.mark.parametrize("kind", SHARED)
def test_of_two_ranks_each_one_s_samples_are_found(kind: str) -> None:
    """What rank 0 writes into run.json is enough for every rank's batches."""
    share, loader = SHARED[kind]
    for epoch in (0, 1):
        found = read(2, loader, epoch, share=share)
        told = json.loads(json.dumps(together(2, lambda ranks: settings_of(loader(ranks.rank), -1, ranks, share))[0]))
        for rank, each in enumerate(found):
            place = 0
            for done, ids in enumerate(each.ids):
                where = spot(rank, 2, done, place, told["batch_size"], epoch)
                assert ids_remembered(told["order"], where) == ids
                place += each.samples[done] or 2 * len(ids)


def test_a_loader_is_asked_for_one_rank_s_samples_without_the_others(run_dir: Path) -> None:
    loader = DataLoader(Indexed(23), batch_size=3, shuffle=True)
    found = read(2, lambda rank: loader, 1)
    for rank, each in enumerate(found):
        assert next(ids_asked(loader, None, spot(rank, 2, 1, 6, 3))) == each.ids[1]


def test_two_processes_and_then_one_each_have_samples_that_their_journals_prove(run_dir: Path) -> None:
    """Killed on two ranks in the middle of an epoch, and gone on with by one; no sample is found twice in an epoch."""
    forks = RankForks("tests.jobs.ranks_job")
    try:
        job = {"run_dir": str(run_dir), "n": 22}
        assert {rank.status for rank in forks.run(2, kill_at=15, **job)} == {-9}
        (rank,) = forks.run(1, driver="torch", **job)
        assert rank.status == 0, rank.err
    finally:
        forks.close()
    epochs: dict[int, list[int]] = {0: [], 1: []}
    for which in (0, 1):
        for record in Journal(run_dir, rank=which):
            if record.event == "Fetched":
                epochs[record.state.cur_epoch_idx] += samples_of(run_dir, record.seq, rank=which)
    assert [sorted(ids) for ids in epochs.values()] == [[*range(22)]] * 2
    worlds = {recording.in_force(recording.load(run_dir), Journal(run_dir), life)["world"] for life in (0, 1)}
    assert worlds == {1, 2}


# -- orders that only the trainer knows --------------------------------------------------------------------


def odd(run_dir: Path | None, n_epochs: int = 3) -> Run:
    return Run(n=8, batch_size=3, n_epochs=n_epochs, run_dir=run_dir, loader={"shuffle": None, "sampler": Odd(8)})


def test_a_sampler_of_the_user_s_own_is_asked_through_the_trainer(run_dir: Path) -> None:
    """It keeps a count of its epochs, so its epochs before are gone through; it is left as it was."""
    run = odd(run_dir)
    run.run()
    with pytest.raises(SamplesUnknown, match="doesn't tell the order of a Odd; --trainer module:function"):
        samples_of(run_dir, run.trainer.trainer_state.seq - 3)
    other = odd(None)
    assert asked_of(run_dir, trainer=other.trainer) == run.model.seen
    assert other.loader.sampler.epochs == 0
    assert not other.data.reads


def test_the_hash_refuses_a_trainer_with_other_data(run_dir: Path) -> None:
    odd(run_dir).run()
    other = Run(n=9, batch_size=3, loader={"shuffle": None, "sampler": Odd(9)})
    with pytest.raises(SamplesUnknown, match="leads to other samples as well: the data or the sampler isn't the run's"):
        asked_of(run_dir, trainer=other.trainer)


def test_a_run_whose_settings_were_edited_is_not_believed(run_dir: Path) -> None:
    Run(n=11, run_dir=run_dir).run()
    about = json.loads((run_dir / "run.json").read_text())
    about["settings"]["order"]["made_of"]["n"] = 12
    (run_dir / "run.json").write_text(json.dumps(about))
    with pytest.raises(SamplesUnknown, match=r"what run\.json tells of the order leads to other samples"):
        asked_of(run_dir)


def test_a_run_of_a_version_that_told_nothing_of_the_order_says_so(run_dir: Path) -> None:
    run = Run(n=11, run_dir=run_dir)
    run.run()
    about = json.loads((run_dir / "run.json").read_text())
    del about["settings"]["order"]
    (run_dir / "run.json").write_text(json.dumps(about))
    with pytest.raises(SamplesUnknown, match=r"run\.json tells nothing of the order"):
        asked_of(run_dir)
    assert asked_of(run_dir, trainer=Run(n=11).trainer) == run.model.seen


class Numbers(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter([Indexed(8)[i] for i in range(8)])


def test_a_stream_s_batches_have_no_ids_and_nobody_is_asked(run_dir: Path) -> None:
    reading(Run(run_dir=run_dir), DataLoader(Numbers(), batch_size=2)).run()
    with pytest.raises(SamplesUnknown, match=r"came without sample ids: the data \(Numbers.*has no index"):
        asked_of(run_dir)


@pytest.mark.parametrize("event", ["Started", "SanityChecked", "EpochBegan", "Exhausted", "Validated", "EpochEnded"])
def test_a_transition_without_a_training_batch_has_none_and_names_the_nearest(event: str, run_dir: Path) -> None:
    Run(n=4, run_dir=run_dir, validate_dataloaders=DataLoader(Indexed(4), 2), metrics={"loss": Mean()}).run()
    events = {record.seq: record.event for record in Journal(run_dir)}
    seq = max(seq for seq, held in events.items() if held == event)
    with pytest.raises(SamplesUnknown, match=rf"transition {seq} .*{event}.* is about no training batch"):
        samples_of(run_dir, seq)
    if events.get(seq - 1) == "Stepped":
        with pytest.raises(SamplesUnknown, match=f"was fetched in {seq - 2}"):
            samples_of(run_dir, seq)


class Broken(Indexed):
    def __getitem__(self, index: int) -> dict[str, Any]:
        if index == 7:
            raise ValueError("sample 7 is broken")
        return super().__getitem__(index)


@pytest.mark.parametrize("where", ["fetch", "step"])
def test_the_samples_of_the_batch_that_a_run_failed_at_are_found(where: str, run_dir: Path) -> None:
    run = Run(n=11, batch_size=3, run_dir=run_dir)
    if where == "fetch":
        reading(run, DataLoader(Broken(11), batch_size=3, shuffle=True))
    else:
        run.trainer.on("fetch -> step", fail_at_7)
    with pytest.raises(ValueError, match="broken"):
        run.run()
    last = Journal(run_dir).last
    assert last is not None
    assert (last.event, last.source) == ("Failed", where)
    assert 7 in samples_of(run_dir, last.seq)


def fail_at_7(trainer: Any) -> None:
    if 7 in trainer.batch_indices:
        raise ValueError("broken")


# -- the command -------------------------------------------------------------------------------------------


def test_show_at_a_transition_prints_the_samples_and_what_proves_them(run_dir: Path) -> None:
    run = Run(n=11, run_dir=run_dir, batch_size=3)
    run.run()
    fetched = next(r for r in Journal(run_dir) if r.event == "Fetched")
    said = cli("show", run_dir, "--at", str(fetched.seq + 1), "--samples")
    assert "Samples  3 in batch 0 of epoch 0" in said.out
    ids = ", ".join(map(str, run.model.seen[0]))
    assert f"  ids       {ids}\n" in said.out
    proof = f"the hash of these is {fetched.data['ids']:08x}, as recorded in transition {fetched.seq}"
    assert f"run.json's order; and {proof}" in said.out
    held = cli("show", run_dir, "--at", str(fetched.seq), "--samples", "--json").json()["samples"]
    assert held["ids"] == run.model.seen[0]
    assert held["told_by"] == "run.json"


def test_show_asks_a_trainer_that_a_script_builds(run_dir: Path, tmp_path: Path) -> None:
    run = odd(run_dir)
    run.run()
    script = "from tests.test_samples import odd\n\ndef build():\n    return odd(None).trainer\n"
    (tmp_path / "odd_script.py").write_text(script)
    seq = [r.seq for r in Journal(run_dir) if r.event == "Stepped"][-1]
    said = cli("show", run_dir, "--at", str(seq), "--samples", "--trainer", f"{tmp_path}/odd_script.py:build")
    assert ", ".join(map(str, run.model.seen[-1])) in said.out
    assert "found by  the trainer's loader" in said.out


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--samples"], "give --at SEQ"),
        (["--at", "3", "--samples", "--rank", "all"], "not --all nor --rank all"),
        (["--at", "3", "--trainer", "a:b"], "give --samples as well"),
        (["--at", "999", "--samples"], "has no transition 999"),
        (["--at", "1", "--samples"], "is about no training batch"),
        (["--at", "4", "--samples", "--rank", "1"], "has no journal of rank 1"),
    ],
)
def test_what_cannot_be_asked_is_one_sentence(options: list[str], sentence: str, run_dir: Path) -> None:
    Run(n=4, run_dir=run_dir).run()
    said = cli("show", run_dir, *options)
    assert said.status == 2
    assert sentence in said.err
    assert len(said.err.splitlines()) == 1


def test_only_the_option_for_samples_imports_torch(run_dir: Path) -> None:
    Run(n=4, run_dir=run_dir).run()
    code = (
        "import sys\nfrom tachograph.engine.cli.app import run\n"
        "run(['show', sys.argv[1], '--at', '4', *sys.argv[2:]])\nsys.exit(10 + ('torch' in sys.modules))"
    )
    assert in_a_process(code, run_dir).returncode == 10
    assert in_a_process(code, run_dir, "--samples").returncode == 11


def test_a_driver_without_data_of_torch_s_is_told_apart(run_dir: Path) -> None:
    stub(run_dir=run_dir).run()
    with pytest.raises(SamplesUnknown):
        asked_of(run_dir)


# -- guards ------------------------------------------------------------------------------------------------


def make_nan(run: Run, at: int) -> None:
    """Have the batch that holds a sample end in NaN."""
    forward = run.model.forward

    def broken(x: Any, y: Any, id: Any) -> Any:
        made = forward(x, y, id)
        return {**made, "loss": made["loss"] * (float("nan") if at in id.tolist() else 1.0)}

    run.model.forward = broken  # type: ignore[method-assign]
    run.trainer.driver._train_fn = lambda batch: broken(**batch)


@pytest.mark.parametrize("policy", ["skip", "continue"])
def test_a_nan_guard_that_goes_on_notes_the_samples_in_the_journal(policy: str, run_dir: Path) -> None:
    run = Run(n=24, batch_size=12, n_epochs=1, run_dir=run_dir, callbacks=lambda _: [NanGuard(policy)])
    make_nan(run, 5)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run.run()
    batch = next(i for i, ids in enumerate(run.model.seen) if 5 in ids)
    note = next(Journal(run_dir).sides("noted"))
    assert f"NanGuard: the loss of batch {batch + 1} of the run" in note.data["text"]
    assert f"samples {run.model.seen[batch][:8]} and 4 more" in note.data["text"]
    seq = int(note.data["text"].split("--at ")[1].split(" ")[0])
    assert samples_of(run_dir, seq) == run.model.seen[batch]


def test_a_nan_guard_that_raises_says_how_to_list_the_samples(run_dir: Path) -> None:
    run = Run(n=24, batch_size=12, run_dir=run_dir, callbacks=lambda _: [NanGuard()])
    make_nan(run, 5)
    with pytest.raises(NotFinite, match="and 4 more") as raised:
        run.run()
    (hint,) = [note for note in raised.value.__notes__ if "--samples" in note]
    seq = int(hint.split("--at ")[1].split(" ")[0])
    assert str(run_dir) in hint
    assert samples_of(run_dir, seq) == run.model.seen[-1]
    assert str(run_dir) not in Journal(run_dir).last.data["error"]  # type: ignore[union-attr]


def test_a_spike_s_note_says_where_its_samples_are(run_dir: Path) -> None:
    run = Run(n=200, batch_size=10, n_epochs=1, run_dir=run_dir, callbacks=lambda _: [SpikeGuard("warn", window=4)])
    run.trainer.driver._train_fn = lambda batch: high(run, batch)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run.run()
    notes = [note.data["text"] for note in Journal(run_dir).sides("noted")]
    text = next(text for text in notes if f"batch {10} of the run" in text)
    seq = int(text.split("--at ")[1].split(" ")[0])
    assert find_samples(run_dir, seq).batch == 9
    assert f"samples {samples_of(run_dir, seq)[:8]} and 2 more" in text
    assert f"(tachograph show RUN --at {seq} --samples)" in text


def high(run: Run, batch: Any) -> Any:
    made = run.model(**batch)
    return {"loss": made["loss"] * (1e4 if len(run.model.seen) == 10 else 1.0)}
