"""`tachograph snapshots`: ls, verify, prune, export."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import torch

from tachograph.engine import Journal, Trainer
from tachograph.engine.snapshots import catalogue
from tests.test_cli_start import DOCS, LOADED
from tests.test_cli_support import cli, failed, in_a_process, resumed, validating
from tests.test_resume import expect_same_end, flip, job
from tests.toys import stub, validated

SCORES = [0.1, 0.7, 0.3, 0.9, 0.2]


@pytest.fixture
def run(run_dir: Path) -> Path:
    """Five epochs of a batch each, with a snapshot at each one's end and one before the last transition."""
    validated(SCORES, run_dir=run_dir).run()
    return run_dir


def names(run_dir: Path) -> list[str]:
    return [s.path.name for s in catalogue(run_dir)[0]]


ACTIONS = ["ls", "verify", "prune --dry-run --keep-last 1", "prune --keep-best 1 --monitor score"]


@pytest.mark.parametrize("action", ACTIONS)
def test_no_action_imports_torch_or_the_trainer(run: Path, action: str) -> None:
    name, *options = action.split()
    loaded = in_a_process(LOADED, "snapshots", name, run, *options).stderr.split()
    assert "tachograph.engine.snapshots" in loaded
    assert not {"torch", "tachograph.engine.trainer", "tachograph.drivers.single"} & set(loaded)


def test_the_docs_name_every_action_and_every_option() -> None:
    for action in ("ls", "verify", "prune", "export"):
        assert f"`tachograph snapshots {action} " in DOCS
        for option in re.findall(r"--[a-z-]+", cli("snapshots", action, "--help").out):
            assert option == "--help" or f"`{option}" in DOCS, option


@pytest.mark.parametrize("given", ["", "lst RUN", "ls", "prune RUN --keep-last two", "verify RUN --dry-run"])
def test_bad_arguments_are_one_sentence(run: Path, given: str) -> None:
    said = cli("snapshots", *given.replace("RUN", str(run)).split())
    assert said.status == 2
    assert said.err.startswith("tachograph: ")
    assert len(said.err.splitlines()) == 1


# -- ls ----------------------------------------------------------------------------------------------------


def test_they_are_listed_with_where_they_were_taken_and_what_the_last_validation_said(run: Path) -> None:
    said = cli("snapshots", "ls", run)
    head, *rows = said.lines
    assert head.split() == ["seq", "state", "epoch", "batch", "size", "age", "results"]
    assert [row.split()[0] for row in rows] == names(run)
    first = rows[0].split()
    assert first[1:5] == ["8", "i0", "epoch_begin", "1"]
    assert rows[0].endswith("score 0.1")
    assert "superseded" not in said.out


def test_as_json_they_are_an_object_a_line(run: Path) -> None:
    rows = cli("snapshots", "ls", run, "--json").json_lines()
    assert [row["snapshot"] for row in rows] == names(run)
    first = rows[0]
    assert (first["seq"], first["state"], first["epoch"], first["batch"]) == (8, "epoch_begin", 1, 1)
    assert (first["exact"], first["live"], first["fault"]) == (True, True, "")
    assert first["results"] == {"score": 0.1}
    assert first["bytes"] > 100
    assert first["written"] > 1e9


def test_what_was_superseded_and_what_is_inexact_is_said(run_dir: Path) -> None:
    failed(run_dir, step=4)
    rows = cli("snapshots", "ls", run_dir).lines[1:]
    assert [("inexact" in row) for row in rows] == [False] * (len(rows) - 1) + [True]
    job_dir = run_dir.with_name("forked")
    job(job_dir, snapshot_every=1, n_epochs=2).run()
    early, *_, last = catalogue(job_dir)[0]
    other = job(job_dir, snapshot_every=None)
    other.on("step", lambda trainer: setattr(trainer.driver, "weight", 7))
    with pytest.warns(UserWarning, match="parts from the recorded one"):
        other.run(resume_from=early.path)
    held = {row["snapshot"]: row["live"] for row in cli("snapshots", "ls", job_dir, "--json").json_lines()}
    assert held[early.path.name] is True
    assert held[last.path.name] is False
    assert f"{last.path.name} " in [line for line in cli("snapshots", "ls", job_dir).lines if "superseded" in line][-1]


def test_a_damaged_one_is_listed_with_what_is_wrong(run: Path) -> None:
    first, second, third, *_ = catalogue(run)[0]
    (first.path / "rank-0.json").write_bytes(b"")
    (second.path / "COMMIT").unlink()
    flip(third.path / "state.json")
    lines = cli("snapshots", "ls", run).lines
    assert "rank-0.json has 0 bytes instead of" in next(line for line in lines if first.path.name in line)
    assert "it has no COMMIT" in next(line for line in lines if second.path.name in line)
    held = {row["snapshot"]: row for row in cli("snapshots", "ls", run, "--json").json_lines()}
    assert held[third.path.name]["state"] is None


def test_a_damaged_journal_leaves_open_which_are_live(run: Path) -> None:
    path = next((run / "journal" / "rank-0").glob("*.jsonl"))
    path.write_bytes(b"{" + path.read_bytes())
    said = cli("snapshots", "ls", run, "--json")
    assert said.status == 0
    assert {row["live"] for row in said.json_lines()} == {None}
    assert said.err.startswith("which of them are live isn't known: ")


@pytest.mark.parametrize("action", ["ls", "verify"])
def test_where_there_is_none_the_status_is_one(run_dir: Path, action: str) -> None:
    stub(run_dir=run_dir, snapshot_every=None, n_epochs=0).run()
    said = cli("snapshots", action, run_dir)
    assert (said.status, said.out, said.err) == (1, "", f"{run_dir} has no snapshot\n")


@pytest.mark.parametrize("action", ["ls", "verify", "prune"])
def test_what_is_no_run_is_refused(tmp_path: Path, action: str) -> None:
    said = cli("snapshots", action, tmp_path)
    assert said.status == 2
    assert f"{tmp_path} isn't a run directory" in said.err


# -- verify ------------------------------------------------------------------------------------------------


def test_every_file_of_every_snapshot_is_verified(run: Path) -> None:
    said = cli("snapshots", "verify", run)
    assert said.status == 0
    assert said.lines[-1] == f"all {len(names(run))} are intact"
    rows = [line.split() for line in said.lines[:-1]]
    assert [(row[0], row[1], row[-1]) for row in rows] == [
        (name, file, "intact")
        for name in names(run)
        for file in ("rank-0.json", "fingerprints.json", "state.json", "COMMIT")
    ]


@pytest.mark.parametrize("file", ["rank-0.json", "fingerprints.json", "state.json", "COMMIT"])
@pytest.mark.parametrize("at", [0.1, 0.5, 0.9])
def test_a_flipped_bit_is_found_and_the_status_is_one(run: Path, file: str, at: float) -> None:
    """R03: what a resume would find too late."""
    name = names(run)[1]
    flip(run / "snapshots" / name / file, at)
    said = cli("snapshots", "verify", run)
    assert said.status == 1
    (line,) = [line for line in said.lines if "damaged" in line]
    assert line.split()[:2] == [name, file]
    assert said.lines[-1] == f"1 of {len(list((run / 'snapshots').iterdir()))} can't be used"
    held = cli("snapshots", "verify", run, "--json")
    assert held.status == 1
    faults = {(row["snapshot"], f["file"]) for row in held.json_lines() for f in row["files"] if f["fault"]}
    assert faults == {(name, file)}


def test_what_somebody_put_beside_the_files_is_told_and_is_no_damage(run: Path) -> None:
    name = names(run)[0]
    (run / "snapshots" / name / "notes.txt").write_text("x")
    said = cli("snapshots", "verify", run)
    assert said.status == 0
    assert f"{name}  notes.txt" in said.out
    assert "not part of it" in said.out


# -- prune -------------------------------------------------------------------------------------------------


def batches(run_dir: Path) -> list[int]:
    return [s.about()["state"]["global_forward_batches"] for s in catalogue(run_dir)[0]]


@pytest.mark.parametrize(
    ("rule", "left"),
    [
        ("--keep-last 1", [5]),
        ("--keep-last 3", [3, 4, 5]),
        ("--keep-best 2 --monitor score", [2, 4, 5]),
        ("--keep-best 1 --monitor score --smaller-better --keep-last 2", [1, 4, 5]),
        ("--keep-every 2", [2, 4, 5]),
        ("--keep-every -3 --keep-last 1", [3, 5]),
    ],
)
def test_those_that_no_rule_names_go_and_a_dry_run_says_so_before(run: Path, rule: str, left: list[int]) -> None:
    """R12."""
    before = names(run)
    dry = cli("snapshots", "prune", run, *rule.split(), "--dry-run")
    assert dry.status == 0
    assert names(run) == before
    said = cli("snapshots", "prune", run, *rule.split())
    assert said.status == 0
    assert said.out == dry.out.replace("would go", "removed")
    assert sorted(set(batches(run))) == left
    gone = [line.split()[1] for line in said.lines[:-1]]
    assert gone == [name for name in before if name not in names(run)]
    assert said.lines[-1].startswith(f"{len(gone)} of {len(before)} snapshots, ")
    assert said.lines[-1].endswith(f"; {len(names(run))} stay")
    assert cli("snapshots", "verify", run).status == 0
    again = cli("snapshots", "prune", run, *rule.split(), "--json")
    assert (again.status, again.out) == (0, "")


def test_as_json_what_goes_is_an_object_a_line(run: Path) -> None:
    before = names(run)
    rows = cli("snapshots", "prune", run, "--keep-last", "1", "--json").json_lines()
    assert [row["snapshot"] for row in rows] == before[:-1]
    assert {row["done"] for row in rows} == {"removed"}
    assert all(row["bytes"] > 100 for row in rows)


def test_a_run_goes_on_from_what_is_left(run_dir: Path) -> None:
    straight = job(run_dir.with_name("straight"))
    straight.run()
    job(run_dir, n_epochs=2, snapshot_every=1).run()
    assert cli("snapshots", "prune", run_dir, "--keep-last", "1").status == 0
    again = job(run_dir)
    again.run(resume_from="auto")
    expect_same_end(again, straight)


def test_the_newest_intact_one_never_goes(run: Path) -> None:
    """R12: the last ones are damaged, so what a resume would take is an earlier one."""
    *_, before, damaged, last = catalogue(run)[0]
    flip(last.path / "rank-0.json")
    (damaged.path / "state.json").unlink()
    assert cli("snapshots", "prune", run, "--keep-last", "1").status == 0
    assert names(run) == [before.path.name, last.path.name]
    flip(before.path / "rank-0.json")
    said = cli("snapshots", "prune", run, "--keep-last", "1")
    assert said.status == 2
    assert "none of the snapshots of" in said.err
    assert names(run) == [before.path.name, last.path.name]


def test_what_is_of_another_run_or_no_snapshot_is_left_alone(run: Path) -> None:
    """R12."""
    other = run.with_name("other")
    validated(SCORES, run_dir=other).run()
    foreign = catalogue(other)[0][0].path
    shutil.copytree(foreign, run / "snapshots" / "foreign")
    (run / "snapshots" / "notes").mkdir()
    (run / "snapshots" / ".writing-000000000001.i0").mkdir()
    said = cli("snapshots", "prune", run, "--keep-last", "1")
    assert said.status == 0
    assert "removed  .writing-000000000001.i0  left by a process that died" in said.lines
    assert {"foreign", "notes"} < {path.name for path in (run / "snapshots").iterdir()}
    assert len(names(run)) == 2
    assert "it is of the run" in cli("snapshots", "ls", run).out


def test_a_run_that_is_being_written_is_refused_but_for_a_dry_run(run_dir: Path) -> None:
    """R12."""
    told: list[tuple[int, str]] = []

    def ask(trainer: object) -> None:
        for options in ([], ["--dry-run"]):
            said = cli("snapshots", "prune", run_dir, "--keep-last", "1", *options)
            told.append((said.status, said.err))

    trainer = job(run_dir)
    trainer.on("epoch_end -> epoch_begin", ask)
    trainer.run()
    assert [status for status, _ in told[:2]] == [2, 0]
    assert "is being written by process" in told[0][1]
    assert len(names(run_dir)) == 3


def test_rules_that_make_no_sense_are_refused(run: Path) -> None:
    for rule, said in (
        ("", "say what to keep: --keep-last N, --keep-best K --monitor NAME, or --keep-every N"),
        ("--keep-last 0", "Keep: last must be an integer >= 1, not 0"),
        ("--keep-best 2", "Keep: best and monitor belong together: monitor is missing"),
        ("--keep-best 2 --monitor accuracy", "monitor 'accuracy' isn't among the results. Known: score."),
        ("--keep-every 0", "Keep: every must be n > 0 (batches), -n (epochs) or None, not 0"),
    ):
        found = cli("snapshots", "prune", run, *rule.split())
        assert found.status == 2
        assert said in found.err
    assert len(names(run)) == 5


def test_a_process_that_prunes_leaves_no_trace_in_the_journal(run: Path) -> None:
    before = Journal(run).chain
    cli("snapshots", "prune", run, "--keep-last", "2")
    assert Journal(run).verify_chain() == before
    assert cli("show", run).status == 0


# -- what the run itself records ---------------------------------------------------------------------------


def test_what_went_is_shown_among_the_side_records(run_dir: Path) -> None:
    stub(run_dir=run_dir, keep_snapshots=1, **validating()).run()
    first = json.loads(cli("show", run_dir, "--json").out)["sides"][0]
    assert first["side"] == "pruned"
    assert "pruned" in cli("show", run_dir).out
    line = next(line for line in cli("show", run_dir).section("Side records") if "pruned" in line)
    assert line.endswith(f"snapshot {first['data']['snapshots'][0]}")
    resumed(run_dir, n_epochs=3)


# -- export ------------------------------------------------------------------------------------------------


def test_the_weights_of_the_newest_intact_snapshot_are_exported(tmp_path: Path) -> None:
    run_dir, target = tmp_path / "run", tmp_path / "model.pt"
    model = torch.nn.Linear(2, 1)
    trainer = Trainer(
        model,
        "torch",
        [{"input": torch.ones(1, 2)}] * 2,
        torch.optim.SGD(model.parameters(), lr=0.1),
        batch_step_fn=_step,
        n_epochs=2,
        snapshot_every=1,
        run_dir=run_dir,
        progress_bar=None,
    )
    trainer.run()
    *_, older, newest = catalogue(run_dir)[0]
    said = cli("snapshots", "export", str(run_dir), "-o", str(target))
    assert (said.status, said.out.split()[:4]) == (0, ["2", "tensors", "of", newest.path.name])
    other = torch.nn.Linear(2, 1)
    other.load_state_dict(torch.load(target, weights_only=True))
    assert torch.equal(other.weight, model.weight)
    flip(newest.path / "model.pt")
    told = json.loads(cli("snapshots", "export", str(run_dir), "-o", str(target), "--json").out)
    assert told == {"snapshot": older.path.name, "output": str(target), "tensors": 2}
    said = cli("snapshots", "export", str(run_dir), "-o", str(target), "--snapshot", newest.path.name)
    assert (said.status, said.out) == (2, "")
    assert f"has no snapshot {newest.path.name} that is intact" in said.err


def _step(trainer: Trainer, batch: dict[str, torch.Tensor]) -> None:
    trainer.backward({"loss": trainer.model(**batch).sum()})
    trainer.step()
    trainer.zero_grad()
