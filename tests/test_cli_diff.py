"""`tachograph diff`: what it prints, for a person and for a program, and how it refuses what it can't compare."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from tachograph.drivers import StubDriver
from tests.jobs import diff_job as job
from tests.jobs.diff_job import once, stepped, stopped_at, train
from tests.test_cli_support import Said, cli, failed, in_a_process
from tests.toys import stub


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A room with runs: `a`, one that equals it, one with a flipped bit, one of another seed, one that was resumed."""
    room = tmp_path_factory.mktemp("runs")
    for name in ("a", "equal"):
        train(room / name, snapshot_every=4)
    train(room / "flipped", once(17, "on_after_optimizer_step", job.flip_a_bit), snapshot_every=4)
    train(room / "seed", seed=8, init=7, snapshot_every=4)
    train(stopped_at(room / "moments", 10), resume=True, plant=job.forget_the_moments)
    return room


@pytest.fixture(autouse=True)
def in_the_room(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(runs)


def flat(said: Said) -> str:
    return " ".join(said.out.split())


# -- for a person ------------------------------------------------------------------------------------------


def test_the_transition_stands_side_by_side_with_the_cause_and_what_to_type_next() -> None:
    """R38."""
    said = cli("diff", "a", "flipped")
    assert said.status == 1
    assert said.lines[0] == "Comparing a and flipped"
    assert said.lines[1] == f"They part at transition {stepped(17)}  fingerprint.parameters, in step"
    head, row = (line.split() for line in said.lines[3:5])
    assert head == ["a", "flipped"]
    assert row[0] == "fingerprint.parameters"
    assert len({len(row[1]), len(row[2]), 16}) == 1 < len({row[1], row[2]})
    told = flat(said)
    assert "cause gradients and the optimizer's state agree and the weights don't" in told
    assert f"weights, up to transition {stepped(17) - 1}" in told
    assert f"snapshots equal at transition {stepped(16)}; at 42 differ model.hidden.weight" in told
    assert said.lines[-1] == f"  next       tachograph shell flipped --at {stepped(17)} --trainer module:function"


def test_only_what_differs_is_printed_and_floats_with_every_digit(tmp_path: Path) -> None:
    for run, weight in (("x", 0.1), ("y", 0.1 + 2**-56)):
        driver = StubDriver(lambda batch, n, weight=weight: weight if n == 2 else 1.0)
        stub(driver=driver, run_dir=tmp_path / run).run()
    said = cli("diff", tmp_path / "x", tmp_path / "y")
    assert said.status == 1
    row = next(line.split() for line in said.lines if line.split()[:1] == ["data.loss"])
    assert row[1:] == [repr(0.1), repr(0.1 + 2**-56)]
    assert not any(line.split()[:1] == ["data.lr"] for line in said.lines)


def test_settings_that_differ_are_listed_whether_or_not_they_are_the_cause() -> None:
    """R38."""
    told = flat(cli("diff", "a", "seed"))
    assert "cause another seed (7 in a, 8 in seed)" in told
    assert "settings seed 7 and 8" in told
    assert "agree code, environment, up to transition 2" in told or "agree code and environment, up to" in told
    told = flat(cli("diff", "a", "moments"))
    assert "cause moments was resumed at 22, and its first update makes something else of the same gradients" in told
    assert "settings snapshot_every 4 and epoch" in told


def test_runs_that_do_not_part_end_with_status_0_and_say_what_was_compared(tmp_path: Path) -> None:
    said = cli("diff", "a", "equal")
    assert (said.status, said.lines[1]) == (0, "a and equal are equal")
    assert said.lines[2:] == [
        "  compared  transitions 1 to 44",
        "  agree     settings, code, environment, samples, generators, losses, weights",
    ]
    short = stopped_at(tmp_path / "short", 10)
    said = cli("diff", short, "a")
    assert (said.status, said.lines[1]) == (0, f"{short} is the beginning of a, which goes on to transition 44")
    assert f"ended {short} was stopped: enough" in flat(said)


def test_what_is_not_known_is_said_with_what_would_tell(tmp_path: Path) -> None:
    a = train(tmp_path / "a", every=None)
    b = train(tmp_path / "b", once(17, "on_after_optimizer_step", job.flip_a_bit), every=None)
    told = flat(cli("diff", a, b))
    assert "not known neither run has fingerprints of steps" in told
    assert "run again with callbacks=[Fingerprints(every=1)]" in told
    assert told.endswith(f"next tachograph verify {a} --trainer module:function --start 38 --stop 38 --repeat 3")


def test_what_a_run_holds_cannot_steer_the_terminal(tmp_path: Path) -> None:
    runs = [failed(tmp_path / name, 4, text) for name, text in (("x", "one\x1b[31m"), ("y\x1b[2J", "two"))]
    said = cli("diff", *runs)
    assert said.status == 1
    assert "\x1b" not in said.out
    assert "\\x1b[31m" in said.out
    assert "\\x1b[2J" in said.out


def test_on_a_narrow_terminal_sentences_are_wrapped(monkeypatch: pytest.MonkeyPatch) -> None:
    said = in_a_process(
        "import os; os.environ['COLUMNS'] = '60'\nfrom tachograph.engine.cli import main; main()",
        *("diff", os.path.abspath("a"), os.path.abspath("flipped")),
    )
    assert said.returncode == 1
    cause = [line for line in said.stdout.splitlines() if line.startswith(" " * 13) and line.strip()]
    assert cause
    assert all(len(line) <= 60 for line in cause)


# -- for a program -----------------------------------------------------------------------------------------


def test_json_holds_the_divergence_both_records_and_what_is_known() -> None:
    """R38."""
    said = cli("diff", "a", "moments", "--json")
    assert said.status == 1
    found = said.json()
    divergence = found["divergence"]
    assert (divergence["seq"], divergence["field"]) == (stepped(11), "fingerprint.parameters")
    assert (divergence["rank"], divergence["state"]) == (0, "step")
    assert divergence["hint"].startswith("tachograph verify moments ")
    assert [record["seq"] for record in found["records"]] == [stepped(11)] * 2
    assert found["fingerprints"].keys() == {"parameters", "optimizers"}
    assert found["settings"] == {"snapshot_every": [4, "epoch"]}
    assert (found["outcome"], found["a"], found["b"], found["ends"]) == ("parted", "a", "moments", [44, 44])


def test_json_of_equal_runs_has_no_divergence() -> None:
    said = cli("diff", "a", "equal", "--json")
    assert said.status == 0
    found = said.json()
    assert (found["outcome"], found["divergence"], found["settings"]) == ("equal", None, {})
    assert (found["first"], found["last"]) == (1, 44)


def test_it_imports_no_torch() -> None:
    code = "import sys\nfrom tachograph.engine.cli import main\ntry: main()\nfinally: print('torch' in sys.modules)"
    said = in_a_process(code, "diff", os.path.abspath("a"), os.path.abspath("flipped"))
    assert said.stdout.splitlines()[-1] == "False", said.stderr


# -- ranks -------------------------------------------------------------------------------------------------


def test_ranks_are_compared_one_by_one_or_all(tmp_path: Path) -> None:
    from tests.test_journal_ranks import STEPS, life, ranks, run, with_loss

    a, b = ranks(tmp_path / "a", 15, 15), ranks(tmp_path / "b", 15)
    life(b, 1, with_loss(run(15), STEPS[1], 60.0))
    for path in (a, b):
        _give_settings(path)
    said = cli("diff", a, b)
    assert said.status == 1
    assert said.lines[1] == f"They part at transition {STEPS[1]} of rank 1  data.loss, in step"
    assert cli("diff", a, b, "--rank", "1").status == 1
    assert cli("diff", a, b, "--rank", "0").status == 0
    said = cli("diff", a, b, "--rank", "7")
    assert said.status == 2
    assert "has no journal of rank 7, but of 0, 1" in said.err
    assert "isn't the number of a rank" in cli("diff", a, b, "--rank", "x").err


def test_runs_of_other_numbers_of_ranks_are_compared_by_their_states(tmp_path: Path) -> None:
    """R38."""
    from tests.test_journal_ranks import STEPS, life, otherwise, ranks, run

    a, b = ranks(tmp_path / "a", 15, 15), tmp_path / "b"
    life(b, 0, otherwise(run(15), STEPS[2], optimizer_steps=77))
    for path in (a, b):
        _give_settings(path)
    told = flat(cli("diff", a, b))
    assert "the runs have 2 and 1 ranks here, so only their states are compared" in told
    assert told.endswith(f"next tachograph show {b} --at {STEPS[2]}")


def _give_settings(run_dir: Path) -> None:
    (run_dir / "run.json").write_text(json.dumps({"format": 1, "run": "r", "settings": {}, "environment": {}}))


# -- bad input ---------------------------------------------------------------------------------------------


def refused(*arguments: Any) -> str:
    """The one sentence that a command line is refused with."""
    said = cli("diff", *arguments)
    assert said.status == 2
    assert said.out == "" or (said.out.startswith("Comparing ") and said.out.count("\n") == 1)
    assert said.err.count("\n") == 1
    assert "Traceback" not in said.err
    return said.err


def test_what_is_no_run_is_refused_in_a_sentence(tmp_path: Path) -> None:
    assert "there is no run at nowhere" in refused("a", "nowhere")
    empty = tmp_path / "empty"
    empty.mkdir()
    assert f"{empty} isn't a run directory" in refused(empty, "a")
    file = tmp_path / "file"
    file.write_text("x")
    assert "run.json" in refused("a", file)
    assert "the following arguments are required: B" in refused("a")


def test_a_run_of_a_newer_version_and_a_foreign_journal_are_refused(tmp_path: Path) -> None:
    newer = tmp_path / "newer"
    shutil.copytree("a", newer)
    about = json.loads((newer / "run.json").read_text())
    (newer / "run.json").write_text(json.dumps({**about, "format": 99}))
    assert "format 99" in refused("a", newer)
    foreign = tmp_path / "foreign"
    shutil.copytree("a", foreign)
    segment = next(foreign.glob("journal/rank-0/*.jsonl"))
    segment.write_text('{"step": 1, "loss": 2.0}\n')
    assert str(segment) in refused("a", foreign)


def test_a_run_without_a_journal_or_a_transition_is_refused(tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    shutil.copytree("a", bare)
    shutil.rmtree(bare / "journal")
    assert "has no journal" in refused("a", bare)
    begun = tmp_path / "begun"
    shutil.copytree("a", begun)
    (begun / "journal/rank-0/durable.json").unlink()
    segment = next(begun.glob("journal/rank-0/*.jsonl"))
    segment.write_bytes(segment.read_bytes().split(b"\n")[0] + b"\n")
    assert f"{begun} holds no transition yet, so there is nothing to compare" in refused("a", begun)


def test_a_damaged_journal_is_refused_with_the_file_and_the_place(tmp_path: Path) -> None:
    damaged = tmp_path / "damaged"
    shutil.copytree("a", damaged)
    segment = next(damaged.glob("journal/rank-0/*.jsonl"))
    lines = segment.read_bytes().split(b"\n")
    at = next(i for i, line in enumerate(lines) if b'"seq":44,' in line and not line.startswith(b'{"side"'))
    lines[at] = lines[at].replace(b'"seq":44', b'"seq":45')
    segment.write_bytes(b"\n".join(lines))
    told = refused("a", damaged)
    assert f"{segment} is damaged at byte " in told
    hole = tmp_path / "hole"
    shutil.copytree("moments", hole)
    next(hole.glob("journal/rank-0/*.i0.jsonl*")).unlink()
    assert "missing" in refused("a", hole)


def test_a_torn_tail_is_the_end_of_what_can_be_compared(tmp_path: Path) -> None:
    torn = tmp_path / "torn"
    shutil.copytree("a", torn)
    (torn / "journal/rank-0/durable.json").unlink()
    segment = next(torn.glob("journal/rank-0/*.jsonl"))
    text = segment.read_bytes()
    segment.write_bytes(text[: text.index(b'{"seq":30,') + 40])
    said = cli("diff", "a", torn)
    assert (said.status, said.lines[1]) == (0, f"{torn} is the beginning of a, which goes on to transition 44")


def test_damage_past_which_nothing_is_asked_of_fingerprints_is_still_damage(tmp_path: Path) -> None:
    damaged = tmp_path / "damaged"
    shutil.copytree("a", damaged)
    segment = next(damaged.glob("journal/rank-0/*.jsonl"))
    text = segment.read_bytes()
    at = text.rindex(b'{"side":"fingerprint"')
    segment.write_bytes(text[:at] + text[at:].replace(b'"batch":"', b'"batch":"0', 1))
    assert f"{segment} is damaged at byte " in refused("a", damaged)


def test_an_unreadable_fingerprint_of_a_snapshot_is_passed_over(tmp_path: Path) -> None:
    other = tmp_path / "other"
    shutil.copytree("equal", other)
    for path in other.glob("snapshots/*/fingerprints.json"):
        path.write_text(path.read_text().replace('"model"', '"modal"'))
    assert cli("diff", "a", other).status == 0


def test_runs_that_have_no_transition_in_common_are_refused(tmp_path: Path) -> None:
    fork = train(tmp_path / "fork", resume=stopped_at(tmp_path / "parent", 10))
    short = stopped_at(tmp_path / "short", 3)
    told = refused(short, fork)
    assert f"{short} and {fork} have no transition in common: the one begins at 23, the other ends at 9" in told


def test_a_run_can_be_compared_while_it_goes_on(tmp_path: Path) -> None:
    """R38: what is being written isn't waited for, nor taken for damage."""
    said: list[Said] = []
    live = tmp_path / "live"
    at_12 = once(12, "on_train_batch_end", lambda trainer: said.append(cli("diff", "a", live)))
    train(live, at_12)
    assert (said[0].status, said[0].err) == (0, "")
    assert said[0].lines[1] == f"{live} is the beginning of a, which goes on to transition 44"


def test_the_help_names_both_runs() -> None:
    said = cli("diff", "--help")
    assert said.status == 0
    assert {"A", "B", "--rank", "--json"} <= set(said.out.replace("[", " ").replace("]", " ").split())


def test_what_differs_at_the_transition_is_printed_causes_first(tmp_path: Path) -> None:
    """R38."""
    b = train(tmp_path / "b", plant=job.altered(7), snapshot_every=4)
    said = cli("diff", "a", b)
    names = [line.split()[0] for line in said.lines[4 : said.lines.index("", 4)]]
    assert names[0] == "fingerprint.batch"
    loss, gradients = names.index("data.loss"), names.index("fingerprint.gradients")
    assert loss < gradients < names.index("fingerprint.optimizers")
