"""What listens and writes, in two ranks: each has every listener, all decide alike, and rank 0 writes.

Real processes over gloo. One launch goes through all trainings that end well; what ends a run has one of its own.
"""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tachograph.engine import Journal
from tests.jobs.ranks import RankForks
from tests.test_loggers import log_of, once

Reports = list[dict[str, Any]]
ENDS_WELL = (
    *("logs", "saves", "trainers", "best", "decisions", "guards", "clocks", "equals", "profiles"),
    *("alone", "refusals", "borne"),
)


@pytest.fixture(scope="module")
def forks() -> Iterator[RankForks]:
    forks = RankForks("tests.jobs.ranks_callbacks_job")
    yield forks
    forks.close()


def launched(forks: RankForks, folder: Path, *parts: str, world: int = 2, **job: Any) -> dict[str, Reports]:
    """Launch a job; return each part's reports."""
    ended = forks.run(world, folder=str(folder), parts=parts, **job)
    assert [rank.status for rank in ended] == [0] * world, "\n".join(rank.err for rank in ended)
    return {
        part: [json.loads((folder / f"report-{part}-{rank}.json").read_text()) for rank in range(world)]
        for part in parts
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def reports(forks: RankForks, folder: Path) -> dict[str, Reports]:
    return launched(forks, folder, *ENDS_WELL)


def files_in(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


# -- who shows and logs ------------------------------------------------------------------------------------


def test_rank_0_logs_what_it_saw_and_no_other_touches_a_file(reports: dict[str, Reports], folder: Path) -> None:
    """K12, C4, D10."""
    first, second = reports["logs"]
    for backend in ("csv", "tensorboard"):
        values = once(log_of(folder / "logs", backend))
        losses = [value for (_, name), value in sorted(values.items()) if name == "train/loss"]
        seen = [float(torch.tensor(loss)) if backend == "tensorboard" else loss for loss in first["losses"]]
        assert losses == seen != second["losses"]
    own = re.compile(r"journal|journal/rank-1(/.*)?|snapshots/\.writing-\d+\.i0/(rank-1\.pt|fingerprints-1\.json)")
    assert second["touched"]
    assert not [path for path in second["touched"] if not own.fullmatch(path)]
    assert "logs/csv/metrics.csv" in first["touched"]  # the watch sees what is touched
    assert first["written"] == second["written"] == [7, 7]  # the others remember what they would have said


def test_rank_0_shows_the_run_its_times_and_the_model(reports: dict[str, Reports], folder: Path) -> None:
    """K10, K11, C4."""
    first, second = reports["logs"]
    assert "loss" in (folder / "progress-0").read_text()
    assert not (folder / "progress-1").exists()
    assert (first["mode"], second["mode"]) == ("plain", None)
    assert len(first["said"]) == 2
    assert second["said"] == []
    assert first["samples"] == second["samples"] == [4.0, 4.0]  # a batch of each rank


def test_each_rank_writes_a_trace_of_its_own(reports: dict[str, Reports], folder: Path) -> None:
    """C4."""
    assert [report["traces"] for report in reports["profiles"]] == [[f"batch-000000002.rank-{r}.json"] for r in (0, 1)]
    assert all(report["there"] for report in reports["profiles"])


# -- who saves ---------------------------------------------------------------------------------------------


def test_models_are_saved_once_and_all_ranks_know_which(reports: dict[str, Reports], folder: Path) -> None:
    """K2, K3, SV10."""
    first, second = reports["saves"]
    for name in ("queue", "regular", "best"):
        assert first[name] == second[name]
    there = folder / "saves" / "checkpoints"
    names = {path.name for path in there.iterdir()}
    assert names == {*first["queue"], *first["regular"], "model-last"}
    assert len(first["queue"]) == len(first["regular"]) == 2
    assert {Path(file).name for file in files_in(there)} == {
        *("model.pt", "tachograph_save.json", "tachograph_evaluate_results.json")
    }
    for name in names:  # plain files, whole
        assert torch.load(there / name / "model.pt", weights_only=True).keys()


def test_what_saves_is_called_by_rank_0_and_what_loads_by_every_rank(reports: dict[str, Reports]) -> None:
    """B26, SV8."""
    first, second = reports["saves"]
    assert [report["calls"] for report in (first, second)] == [{"save": 1, "load": 1}, {"save": 0, "load": 1}]
    assert first["loaded"] == second["loaded"] == first["weights"]
    assert first["there"]
    assert second["there"]  # when it returns on any rank, it is written


def test_a_model_that_one_rank_cannot_load_is_loaded_by_none(reports: dict[str, Reports]) -> None:
    """B26."""
    first, second = reports["saves"]
    assert first["lost"] == second["lost"]
    assert first["lost"].startswith("FileNotFoundError: there is no model at ")


def test_a_trainer_that_was_saved_by_all_ranks_goes_on_with_the_bits_of_a_straight_run(
    reports: dict[str, Reports], folder: Path
) -> None:
    """SV10, K1, K2, B26."""
    for report in reports["trainers"]:
        assert report["ended"] == {"midst": True, "after": True, "last": True}
        assert report["refused"] == [""]
    assert files_in(folder / "midst") == [
        *("COMMIT", "fingerprints-1.json", "fingerprints.json", "model.pt", "model/note"),
        *("rank-0.pt", "rank-1.pt", "state.json"),
    ]
    (saved,) = (folder / "trainers" / "checkpoints").iterdir()
    assert {"rank-0.pt", "rank-1.pt", "model.pt"} <= {path.name for path in saved.iterdir()}


def test_a_part_that_one_rank_cannot_write_is_an_error_of_all_and_the_save_before_is_there(
    reports: dict[str, Reports], folder: Path
) -> None:
    """SV10, R17."""
    first, second = reports["trainers"]
    assert first["lost"] == second["lost"]
    said = r"the trainer couldn't be saved to .*/after: rank 1 couldn't write its part: \[Errno 28\] no space here"
    assert re.fullmatch(f"SnapshotWriteFault: {said}", first["lost"])
    assert first["fault"] == second["fault"]
    assert "give save() another folder" in first["fault"]
    assert (folder / "after" / "COMMIT").is_file()
    assert not [path.name for path in folder.iterdir() if path.name.startswith(".")]


def test_a_save_that_may_fail_fails_on_all_ranks_and_is_told_once(reports: dict[str, Reports], folder: Path) -> None:
    """K2, R17."""
    first, second = reports["borne"]
    assert (first["told"], second["told"]) == (1, 0)
    assert first["queue"] == second["queue"]
    assert {path.name for path in (folder / "borne" / "checkpoints").iterdir()} == set(first["queue"])
    assert first["state"] == second["state"] == "done"


def test_one_rank_alone_saves_and_loads_and_waits_for_nobody(reports: dict[str, Reports]) -> None:
    """D10, B26."""
    for rank, report in enumerate(reports["alone"]):
        assert report["there"] == [True, True]
        assert f"rank-{rank}.pt" in report["found"][0]


def test_what_rank_0_finds_unusable_is_refused_on_all_ranks(reports: dict[str, Reports]) -> None:
    """K2, K12, C1."""
    first, second = reports["refusals"]
    assert first == second
    assert first["is_caller_error"]
    assert "it is a file" in first["folder"]
    assert "it is a file" in first["log"]
    for finder in ("find_lr", "find_batch_size"):
        assert f"{finder} tries in one process: call it in a script with driver='torch'" in first[finder]


# -- who decides -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["memory", "folder"])
def test_all_ranks_end_with_the_best_weights(reports: dict[str, Reports], folder: Path, where: str) -> None:
    """K4, B26."""
    first, second = (report[where] for report in reports["best"])
    assert first["ended"] == second["ended"]
    assert first["ended"] == first["kept"][1]  # the second validation was the best of the first run's
    assert first["ended"] != first["kept"][3]
    assert first["at"] == second["at"]
    assert first["went_on"] == second["went_on"]
    assert not list((folder / "best").iterdir())


def test_what_decides_by_results_decides_alike(reports: dict[str, Reports]) -> None:
    """K5, K6, K9, K13."""
    first, second = reports["decisions"]
    assert first == second
    assert first["better"] > 0
    assert first["state"]["stop_asked"].startswith("EarlyStopping: 3 validations")
    assert first["lrs"][0] < 0.01
    count, results, queue = first["more"]
    assert count == 4
    assert results.keys() == {"l"}
    assert len(queue) == 1


@pytest.mark.parametrize("what", ["nan", "loss"])
def test_an_update_is_left_out_on_all_ranks_where_the_loss_of_one_is_no_number(
    reports: dict[str, Reports], what: str
) -> None:
    """R17, R21. The gradients tell of a NaN on every rank; of an infinity added to a loss they don't."""
    first, second = (report[what] for report in reports["guards"])
    assert first == second
    assert first["count"] == 1
    assert len(first["skipped"]) == 1
    assert first["state"]["optimizer_steps"] == 7
    assert "nan" not in first["weights"]


def test_a_guard_stops_all_ranks_at_the_same_transition_and_names_the_rank(reports: dict[str, Reports]) -> None:
    """R17."""
    first, second = (report["stop"] for report in reports["guards"])
    assert first == second
    assert first["state"]["global_forward_batches"] == 7
    said = r"NanGuard: the loss of batch 7 of the run \(epoch 1, batch 2, samples \[\d+, \d+\], rank 1\) is nan"
    assert re.fullmatch(said, first["state"]["stop_asked"])


def test_a_guard_that_lets_the_run_go_on_counts_what_its_own_rank_saw(reports: dict[str, Reports]) -> None:
    """R17."""
    first, second = (report["continue"] for report in reports["guards"])
    assert (first["count"], second["count"]) == (0, 1)
    assert first["weights"] == second["weights"]
    assert first["skipped"] == second["skipped"] == []


def test_a_spike_on_one_rank_is_one_on_all(reports: dict[str, Reports]) -> None:
    """R17."""
    first, second = (report["spike"] for report in reports["guards"])
    assert first == second
    assert first["count"] >= len(first["skipped"]) > 0
    assert any(re.search(r"the loss of batch 7 of the run .*, rank 1\) is ", note) for note in first["notes"])
    first, second = (report["spikes"] for report in reports["guards"])
    assert first["state"] == second["state"]
    assert first["state"]["stop_asked"].startswith("SpikeGuard: the loss of batch ")
    assert first["count"] == second["count"]
    assert (first["told"], second["told"]) == (1, 0)


@pytest.mark.parametrize("what", ["limit", "max_time"])
def test_the_clock_of_one_rank_stops_all_at_the_same_transition(reports: dict[str, Reports], what: str) -> None:
    """C5, C1."""
    first, second = (report[what] for report in reports["clocks"])
    assert first == second
    assert first["state"]["global_forward_batches"] == 4
    assert "600 seconds" in first["state"]["stop_asked"]


def test_snapshots_by_the_clock_are_taken_by_all_ranks_when_rank_0s_says_so(reports: dict[str, Reports]) -> None:
    """SV2, C1. One a time: each rank's clock would say so, one a batch after the other."""
    for report in reports["clocks"]:
        assert report["first"]["snapshots"] == ["000000000011", "000000000025"]
        assert report["second"]["snapshots"] == ["000000000025"]  # that of the end


def test_saves_and_evaluations_by_the_clock_of_any_rank_are_made_by_all(reports: dict[str, Reports]) -> None:
    """K2, K9."""
    first, second = reports["clocks"]
    assert first == second
    assert first["checkpoint"]["saved"] == ["model-epoch_0-batch_3"]
    assert first["more"]["count"] == first["asked"]["count"] == 1


def test_norms_rates_averages_and_results_are_the_same_on_all_ranks(reports: dict[str, Reports]) -> None:
    """B9, K7, K8, C4."""
    first, second = reports["equals"]
    assert first == second
    raw, clipped = ([values[name] for values in first["logged"] if name in values] for name in ("raw", "grad_norm"))
    assert raw == clipped
    assert len(raw) == 8
    rates = [values["lr"] for values in first["logged"] if "lr" in values]
    assert rates[0] < rates[3] > rates[-1]
    assert first["results"][2] == first["results"][3]  # what one rank has of its own doesn't count


def test_each_rank_gets_its_own_memory_back_and_a_new_one_that_of_rank_0(forks: RankForks, tmp_path: Path) -> None:
    """SV10."""
    for world, n_epochs, took in ((1, 1, [None]), (2, 2, [0, 0]), (2, 3, [0, 1])):
        read = launched(forks, tmp_path, "memories", world=world, n_epochs=n_epochs, samples=16)
        assert [report["was"] for report in read["memories"]] == took


def test_where_each_rank_holds_a_share_of_the_weights_all_of_it_is_so_too(forks: RankForks, tmp_path: Path) -> None:
    """D13, K2, K4, R17, SV10."""
    parts = ("saves", "trainers", "best", "guards", "equals")
    read = launched(forks, tmp_path, *parts, driver="torch_fsdp")
    first, second = read["saves"]
    assert [report["calls"] for report in (first, second)] == [{"save": 1, "load": 1}] * 2
    assert all(first[name] == second[name] for name in ("queue", "regular", "best", "loaded"))
    assert first["loaded"] == first["weights"]  # until then each rank has buffers of its own
    for report in read["trainers"]:
        assert report["ended"] == {"midst": True, "after": True, "last": True}
        assert "model_save_fn is called by rank 0 alone here" in report["refused"][0]
    for where in ("memory", "folder"):
        first, second = (report[where] for report in read["best"])
        assert first["ended"] == second["ended"] == first["kept"][1]
    first, second = read["guards"]
    assert [report["continue"].pop("count") for report in (first, second)] == [0, 1]
    for report in (first, second):
        del report["spikes"]["told"], report["continue"]["told"]
    assert first == second
    assert read["equals"][0] == read["equals"][1]


@pytest.mark.sweep
@pytest.mark.parametrize("driver", ["torch_ddp", "torch_fsdp"])
def test_four_ranks_decide_and_save_as_two_do(forks: RankForks, tmp_path: Path, driver: str) -> None:
    """K2, K4, K9, R17, SV10."""
    parts = ("saves", "trainers", "best", "decisions", "guards", "clocks", "equals")
    read = launched(forks, tmp_path, *parts, world=4, driver=driver)
    for part in ("decisions", "clocks", "equals"):
        assert all(report == read[part][0] for report in read[part])
    for report in read["saves"]:
        assert all(report[name] == read["saves"][0][name] for name in ("queue", "regular", "best", "loaded"))
    for report in read["trainers"]:
        assert report["ended"] == {"midst": True, "after": True, "last": True}
    for where in ("memory", "folder"):
        assert len({report[where]["ended"] for report in read["best"]}) == 1
    for name in ("nan", "loss", "stop", "spike"):
        assert all(report[name] == read["guards"][0][name] for report in read["guards"])


@pytest.mark.parametrize(
    "kill_at", [15, *(pytest.param(seq, marks=pytest.mark.sweep) for seq in (6, 10, 19, 21, 24, 28))]
)
def test_saves_logs_and_best_weights_of_ranks_that_were_killed_are_those_of_a_straight_run(
    forks: RankForks, tmp_path: Path, kill_at: int
) -> None:
    """K2, K4, K12, C6, SV10."""
    for name in ("straight", "killed"):
        (tmp_path / name).mkdir()
    straight = launched(forks, tmp_path / "straight", "survives")["survives"]
    killed = forks.run(2, folder=str(tmp_path / "killed"), parts=["survives"], kill_at=kill_at)
    assert [rank.status for rank in killed] == [-signal.SIGKILL] * 2, "\n".join(rank.err for rank in killed)
    resumed = launched(forks, tmp_path / "killed", "survives")["survives"]
    assert resumed == straight
    for name in ("queue", "regular", "best", "at", "bests", "weights"):
        assert straight[0][name] == straight[1][name]


# -- what ends the run -------------------------------------------------------------------------------------


def test_listeners_of_all_ranks_hear_of_an_error_and_none_of_them_hangs(forks: RankForks, tmp_path: Path) -> None:
    """B27, N9, R17. A barrier in `on_exception` is over at once: the others have gone."""
    read = launched(forks, tmp_path, "fails")
    first, second = read["fails"]
    what = r"NotFinite: the loss of batch 3 of the run \(epoch 0, batch 2, samples \[\d+, \d+\], rank 1\) is nan"
    assert re.match(f"RankFailed: rank 1 failed in state 'step', .*: {what}\n", first["error"])
    assert re.fullmatch(what, second["error"])
    assert first["heard"] == ["RankFailed", "here"]
    assert second["heard"] == ["NotFinite", "here"]
    assert first["state"] == second["state"] == "exception"
    assert [path.name for path in (tmp_path / "fails" / "checkpoints").iterdir()] == [
        "model-epoch_0-batch_2-exception_RankFailed"
    ]
    assert not (tmp_path / "no").exists()  # a trainer is of all ranks, or isn't saved
    exception = [value for _, name, value in log_of(tmp_path / "fails", "csv") if name == "exception"]
    assert len(exception) == 1
    assert "RankFailed: rank 1 failed" in exception[0]
    for rank in (0, 1):
        assert Journal(tmp_path / "fails", rank=rank).last.event == "Failed"  # type: ignore[union-attr]


def test_a_save_that_fails_on_rank_0_ends_all_ranks_at_the_same_transition(forks: RankForks, tmp_path: Path) -> None:
    """R17, K2."""
    read = launched(forks, tmp_path, "cannot_save")
    first, second = read["cannot_save"]
    assert first == second
    assert first["done"] == 3
    assert re.fullmatch(r"SaveFault: .*/model-epoch_0-batch_3 couldn't be written: no space here", first["error"])
    assert not list((tmp_path / "cannot" / "checkpoints").iterdir())
