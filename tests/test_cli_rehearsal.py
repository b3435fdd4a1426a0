"""`tachograph verify`, `shell` and `fork`: the commands that run a trainer."""

from __future__ import annotations

import json
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import attrs
import pytest

from tachograph.engine import Journal, diff
from tachograph.engine.comparison import Divergence
from tachograph.engine.rehearsal import Verification, judged, patrol, repeated
from tachograph.states import CallerError
from tests.jobs import rehearsed
from tests.test_cli_support import PROGRAM, cli
from tests.toys import files_of

JOB = Path(rehearsed.__file__)
BUILD = f"{JOB}:build"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recorded") / "run"
    rehearsed.build(path).run()
    return path


def trainer(name: str) -> tuple[str, str]:
    return "--trainer", f"{JOB}:{name}"


def last(run: Path) -> int:
    record = Journal(run).last
    assert record is not None
    return record.seq


def step(run: Path, nth: int) -> int:
    return [record.seq for record in Journal(run) if record.source == "step"][nth]


# -- verify ------------------------------------------------------------------------------------------------


def test_a_run_that_matches_ends_with_status_zero_and_is_left_as_it_was(run: Path) -> None:
    before = files_of(run)
    said = cli("verify", run, *trainer("build"))
    n = last(run)
    assert (said.status, said.out) == (0, f"{n} of {n} transitions match, 1 to {n}\n")
    assert f"from the beginning: {n} transitions to execute again, which took" in said.err
    part = cli("verify", run, *trainer("build"), "--start", "9", "--stop", "12")
    assert part.status == 0
    assert re.fullmatch(r"\d+ of \d+ transitions match, \d+ to 12\n", part.out)
    assert files_of(run) == before


def test_where_it_parts_the_status_is_one_and_the_cause_and_the_next_command_are_there(run: Path) -> None:
    """R66."""
    said = cli("verify", run, *trainer("faster"))
    seq = step(run, 0)
    assert said.status == 1
    again = f"tachograph verify {run} --trainer module:function --start {seq} --stop {seq} --repeat 3"
    assert said.lines == [
        f"{seq - 1} transitions match, from 1 on; then they part at transition {seq}  data.lr, in step",
        "  recorded  [0.1]",
        "  found     [0.2]",
        "  cause     another learning rate (0.1 in the run, 0.2 in this trainer)",
        f"  next      {again}",
    ]


def test_as_json_it_is_the_same_for_a_program(run: Path) -> None:
    told = cli("verify", run, *trainer("build"), "--json").json()
    assert told["matches"] is True
    assert (told["parts"][0]["first"], told["parts"][0]["last"]) == (1, last(run))
    told = cli("verify", run, *trainer("faster"), "--json").json()
    found = told["parts"][0]["divergence"]
    assert (told["matches"], found["field"], found["a"], found["b"]) == (False, "data.lr", [0.1], [0.2])
    told = cli("verify", run, *trainer("moved"), "--repeat", "2", "--json").json()
    assert (told["kind"], len(told["parts"])) == ("once", 2)


@pytest.mark.parametrize(
    ("name", "kind", "status", "text"),
    [
        ("build", "matches", 0, "all 3 repetitions match what was recorded"),
        ("noisy", "nondeterministic", 1, "the 3 repetitions differ from each other: 3 of them part from the record"),
        ("moved", "once", 1, "Nothing that is known has changed since it was recorded"),
        ("faster", "changed", 1, "Since it was recorded hyperparameters.lr changed from 0.1 to 0.2"),
    ],
)
def test_several_repetitions_tell_what_kind_of_fault_it_is(
    run: Path, name: str, kind: str, status: int, text: str
) -> None:
    """R38: an operation that isn't deterministic, something that changed, or a fault of that one time."""
    said = cli("verify", run, *trainer(name), "--repeat", "3")
    assert said.status == status
    assert said.lines[-1].startswith(f"{kind}: ")
    assert text in said.lines[-1]
    assert len([line for line in said.lines if "transitions match," in line]) == 3


def test_a_library_another_file_or_another_machine_that_changed_is_named(run: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(run, tmp_path / "run")
    about = json.loads((copy / "run.json").read_text())

    def told(**changes: Any) -> str:
        environment = {**about["environment"], **changes.pop("environment", {})}
        (copy / "run.json").write_text(json.dumps({**about, "environment": environment, **changes}))
        said = cli("verify", copy, *trainer("moved"), "--repeat", "2")
        assert said.status == 1
        return said.lines[-1]

    assert told(environment={"torch": "1.9.0"}).startswith("changed: ")
    assert "environment.torch changed from 1.9.0 to" in told(environment={"torch": "1.9.0"})
    assert "environment.threads changed from 77" in told(environment={"threads": 77})
    assert told(host="another").startswith("machine: ")
    assert "Only the machine is another one: host changed from another to" in told(host="another")
    assert told(environment={"cpu": "an abacus"}).startswith("machine: ")
    ours = next(name for name in about["code"] if name.endswith("rehearsed.py"))
    changed = told(code={**about["code"], ours: "0" * 16})
    assert changed.startswith("changed: ")
    assert ours in changed


def test_one_repetition_that_matches_among_others_is_nondeterminism_too() -> None:
    matches = Verification(None, 1, 9, 9, "", "", {}, ())
    parts = attrs.evolve(matches, divergence=Divergence(5, "data.loss", 1.0, 2.0, ""))
    other = attrs.evolve(matches, divergence=Divergence(5, "data.loss", 1.0, 3.0, ""))
    assert judged([matches, parts]).kind == "nondeterministic"
    assert judged([parts, other]).kind == "nondeterministic"
    assert judged([parts, parts]).kind == "once"
    with pytest.raises(CallerError, match="takes 2 repetitions, not 1"):
        repeated(rehearsed.build, "nowhere", None, None, 1)


def test_a_share_of_a_run_is_verified_here_and_there(run: Path) -> None:
    said = cli("verify", run, *trainer("build"), "--sample", "30%", "--seed", "1")
    assert said.status == 0
    n = sum(int(line.split()[0]) for line in said.lines)
    assert 0.3 * last(run) <= n < last(run)
    assert cli("verify", run, *trainer("build"), "--sample", "30%", "--seed", "1").out == said.out
    seen: set[int] = set()
    for seed in range(40):
        for part in patrol(rehearsed.build(), run, 0.3, random.Random(seed)):
            assert part.divergence is None
            seen.update(range(part.first, part.first + part.matched))
    assert seen == set(range(1, last(run) + 1))
    whole = list(patrol(rehearsed.build(), run, 1.0, random.Random(0)))
    assert sum(part.matched for part in whole) == last(run)


def test_a_patrol_ends_with_the_first_part_that_differs(run: Path) -> None:
    said = cli("verify", run, *trainer("moved"), "--sample", "100%", "--seed", "3")
    assert said.status == 1
    parts = [line for line in said.lines if "match" in line]
    assert "then they part at" in parts[-1]
    assert all(" of " in line for line in parts[:-1])


# -- shell -------------------------------------------------------------------------------------------------


def test_code_runs_where_the_trainer_stands(run: Path) -> None:
    seq = step(run, 4)
    code = "out = trainer.train_step(batch); trainer.backward(out)\n"
    code += "print(state.state, float(out['loss']) == record.data['loss'])"
    shell = subprocess.run(
        [*PROGRAM, "shell", str(run), "--at", str(seq), *trainer("build"), "-c", code],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert (shell.returncode, shell.stdout) == (0, "step True\n"), shell.stderr


def test_a_person_types_there_and_leaves(run: Path) -> None:
    typed = "trainer.advance().seq\nmodel[0].weight.shape\n1/0\nlen(list(journal))\n"
    shell = subprocess.run(
        [*PROGRAM, "shell", str(run), "--at", "9", *trainer("build")],
        input=typed, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert shell.returncode == 0
    assert f"Before transition 9 of {run}: in {Journal(run).seek(9).source}, epoch 0" in shell.stderr
    assert ">>> 9\n" in shell.stdout
    assert "torch.Size([8, 4])" in shell.stdout
    assert "ZeroDivisionError" in shell.stderr
    assert f">>> {last(run)}\n" in shell.stdout


@pytest.mark.parametrize(
    ("code", "error"), [("1/0", "ZeroDivisionError"), ("x = (", "SyntaxError"), ("nope", "NameError")]
)
def test_code_that_fails_shows_where_and_ends_with_status_one(run: Path, code: str, error: str) -> None:
    said = cli("shell", run, "--at", "9", *trainer("build"), "-c", code)
    assert said.status == 1
    assert error in said.err


# -- fork --------------------------------------------------------------------------------------------------


def test_a_run_goes_on_with_another_learning_rate_from_there(run: Path, tmp_path: Path) -> None:
    seq = step(run, 4)
    said = cli("fork", run, "--at", str(seq), *trainer("build"), "-o", tmp_path / "fork", "--lr", "0.01")
    assert said.status == 0
    told = f"{tmp_path}/fork went on from transition {seq - 1} of {run}, and ended in done after {last(run)}"
    assert said.out == f"{told}. Compare: tachograph diff {run} {tmp_path}/fork\n"
    found = diff(run, tmp_path / "fork")
    assert found is not None
    assert (found.seq, found.field, found.b) == (seq, "data.lr", [0.01])
    shown = cli("diff", run, tmp_path / "fork")
    assert shown.status == 1
    assert f"goes on from {seq - 1} as a fork" in shown.out
    assert next(Journal(tmp_path / "fork").sides("forked")).data["by_hand"] == ["learning rate set to 0.01"]


def test_a_batch_is_left_out_other_things_are_changed_and_the_limit_is_another_one(run: Path, tmp_path: Path) -> None:
    seq = str(step(run, 4))
    fork = "fork", run, "--at", seq, *trainer("build"), "-o"
    assert cli(*fork, tmp_path / "skips", "--skip-batch", "--n-epochs", "3").status == 0
    skips = Journal(tmp_path / "skips")
    assert skips.seek(int(seq)).data["skipped"]
    assert skips.last is not None
    assert skips.last.state.cur_epoch_idx == 3
    assert cli(*fork, tmp_path / "freezes", "--change", f"{JOB}:freeze", "--n-batches", "7").status == 0
    frozen = Journal(tmp_path / "freezes").last
    assert frozen is not None
    assert frozen.state.global_forward_batches == 7


# -- what can't be done ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("nothing", "'nothing' names no function: --trainer takes module:function, or path/to/script.py:function"),
        (":build", "':build' names no function"),
        ("no_such_module:build", "no_such_module can't be imported: ModuleNotFoundError"),
        ("no/such/file.py:build", "there is no file no/such/file.py"),
        (f"{JOB}:nope", f"{JOB} holds no function 'nope'. Known:"),
        (f"{JOB}:biuld", "Did you mean 'build'?"),
        (f"{JOB}:number", f"{JOB} holds something else as 'number'"),
        (f"{JOB}:failing", f"{JOB}:failing failed with ValueError: no data here"),
        (f"{JOB}:wrong", f"{JOB}:wrong returned int, not a Trainer"),
    ],
)
@pytest.mark.parametrize("command", ["verify", "shell", "fork"])
def test_a_trainer_that_cannot_be_built_is_said_in_one_sentence(
    run: Path, tmp_path: Path, command: str, given: str, sentence: str
) -> None:
    more = {"verify": [], "shell": ["--at", "9"], "fork": ["--at", "9", "-o", tmp_path / "fork"]}[command]
    said = cli(command, run, "--trainer", given, *more)
    assert said.status == 2
    assert said.err.startswith("tachograph: ")
    assert len(said.err.splitlines()) == 1
    assert sentence in said.err
    assert not (tmp_path / "fork").exists()


def refused(*arguments: Any) -> str:
    said = cli(*arguments)
    assert said.status == 2, said.out
    errors = [line for line in said.err.splitlines() if line.startswith("tachograph: ")]
    assert len(errors) == 1
    assert "Traceback" not in said.err
    return errors[0]


def test_what_the_users_own_code_raises_on_the_way_is_said_with_its_place(run: Path, tmp_path: Path) -> None:
    told = refused("shell", run, "--at", str(step(run, 2)), *trainer("struck"))
    assert "executing" in told
    assert "failed with KeyError: 'key'" in told
    said = cli("verify", run, *trainer("struck"))
    assert said.status == 1
    assert "KeyError" in said.out
    assert "failed with KeyError" in refused(
        "fork", run, "--at", str(step(run, 0)), *trainer("struck"), "-o", tmp_path / "fork"
    )


def test_a_transition_a_share_or_a_place_that_cannot_be_is_refused(run: Path, tmp_path: Path) -> None:
    n = last(run)
    assert f"seq=999: {run} has the transitions 1 to {n}" in refused("shell", run, "--at", "999", *trainer("build"))
    assert "'0%' is no share: 1%, or 0.01" in refused("verify", run, *trainer("build"), "--sample", "0%")
    assert "'x' is no share" in refused("verify", run, *trainer("build"), "--sample", "x")
    assert "leave --start and --stop out" in refused("verify", run, *trainer("build"), "--sample", "1%", "--stop", "3")
    assert "'1' isn't a number >= 2" in refused("verify", run, *trainer("build"), "--repeat", "1")
    assert "start=9 comes after stop=3" in refused("verify", run, *trainer("build"), "--start", "9", "--stop", "3")
    fork = "fork", run, "--at", "9", *trainer("build"), "-o"
    assert "no learning rate" in refused(*fork, tmp_path / "f", "--lr", "nan")
    assert "holds a run already" in refused(*fork, run)
    fetch = next(record.seq for record in Journal(run) if record.source == "fetch")
    skip = "fork", run, "--at", str(fetch), *trainer("build"), "-o", tmp_path / "f", "--skip-batch"
    assert f"there is no batch in hand: transition {fetch} leaves fetch" in refused(*skip)
    assert not (tmp_path / "f").exists()


def test_ctrl_c_ends_a_verification_without_a_traceback(run: Path) -> None:
    code = (
        f"import os, signal, sys\nsys.path.insert(0, {str(JOB.parent.parent.parent)!r})\n"
        "from tests.jobs import rehearsed\n"
        "def build():\n    trainer = rehearsed.build()\n"
        "    trainer.on('step -> fetch', lambda trainer: signal.raise_signal(signal.SIGINT))\n    return trainer\n"
        "import types\nsys.modules['job'] = types.ModuleType('job')\nsys.modules['job'].build = build\n"
        f"from tachograph.engine.cli import main\nmain(['verify', {str(run)!r}, '--trainer', 'job:build'])"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert ended.returncode == 130
    assert "Traceback" not in ended.stderr
