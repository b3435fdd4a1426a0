"""`tachograph show RUN`: the whole run on one page, and as one object."""

from __future__ import annotations

import json
import math
import shutil
import tracemalloc
from pathlib import Path
from typing import Any

import attrs
import pytest

from tachograph.drivers import StubDriver
from tachograph.engine import Engine, Journal, recording
from tachograph.engine.cli.rows import Rows
from tachograph.engine.cli.screen import duration, size
from tachograph.engine.cli.survey import Survey
from tachograph.engine.journal import JournalWriter
from tachograph.states import EpochBegan, Event, Failed, Fetched, Machine, Row, Started, Stepped, TrainerState
from tests.test_cli_support import Said, cli, failed, killed, resumed, validating
from tests.toys import stub


@pytest.fixture
def done(run_dir: Path) -> Path:
    stub(run_dir=run_dir, **validating()).run()
    return run_dir


def segment(run: Path) -> Path:
    return next((run / "journal" / "rank-0").glob("*.jsonl"))


# -- what a page says --------------------------------------------------------------------------------------


def test_the_header_says_what_the_run_is(done: Path) -> None:
    about = recording.load(done)
    lines = cli("show", done).lines
    assert lines[0] == f"Run {done}"
    held = dict(line.strip().split(maxsplit=1) for line in lines[1 : lines.index("")])
    assert held["id"] == about["run"]
    assert held["seed"] == "0 (none was given)"
    assert f"machine {about['settings']['machine']}; " in held["settings"]
    assert "; n_epochs 2; n_batches none; " in held["settings"]
    assert "; validate_every -1; " in held["settings"]
    assert "; snapshot_every epoch; " in held["settings"]
    assert f"python {about['environment']['python']}" in held["environment"]


def test_it_says_where_the_run_stands_with_the_limits(done: Path) -> None:
    said = cli("show", done)
    last = Journal(done).last
    assert last is not None
    assert f"Stands in done  after transition {last.seq}, " in said.out
    shown = [line.split("  ") for line in said.lines if line.startswith(("  epochs", "  batches"))]
    assert [(line[1], line[-1].strip()) for line in shown] == [("epochs done", "2 of 2"), ("batches", "6 of 6")]


def test_a_finished_run_has_one_incarnation_that_ended_as_its_state_says(done: Path) -> None:
    (line,) = cli("show", done).section("Incarnations")
    assert line.startswith("i0 ")
    assert line.endswith("done")


def test_epochs_and_validations_are_listed_with_losses_and_results(done: Path) -> None:
    said = cli("show", done)
    first, second = said.section("Epochs")
    losses = [f"{record.data['loss']:.6g}" for record in Journal(done) if record.event == "Stepped"]
    assert first.split()[:4] == ["0", "3", losses[0], losses[2]]
    assert first.endswith("sum#sum#dev 3  n#sum#dev 2")
    assert second.split()[0] == "1"
    validations = said.section("Validations")
    assert "sanity check" in validations[0]
    assert [line.split()[1:3] for line in validations] == [["0", "0"], ["0", "3"], ["1", "6"]]


def test_the_time_in_each_state_adds_up_to_the_incarnations_life(done: Path) -> None:
    held = cli("show", done, "--json").json()
    visits = {state["state"]: state["visits"] for state in held["states"]}
    assert visits == {
        "init": 1, "sanity_check": 1, "epoch_begin": 2, "fetch": 8, "step": 6, "validate": 2, "epoch_end": 2
    }  # fmt: skip
    assert sum(state["seconds"] for state in held["states"]) == pytest.approx(held["incarnations"][0]["seconds"])
    assert sum(state["share"] for state in held["states"]) == pytest.approx(1)
    for state in held["states"]:
        assert state["mean"] == pytest.approx(state["seconds"] / state["visits"])


def test_losses_that_are_not_finite_are_counted_and_the_first_is_named(run_dir: Path) -> None:
    driver = StubDriver(loss=lambda batch, n: math.nan if n in (1, 2) else math.inf if n == 4 else 0.5)
    stub(driver=driver, run_dir=run_dir).run()
    first, second = cli("show", run_dir, "--json").json()["epochs"]
    assert (first["loss_first"], first["loss_last"], first["not_finite"]) == (0.5, "nan", 2)
    assert Journal(run_dir).seek(first["first_not_finite"]).state.global_forward_batches == 2
    assert (second["loss_last"], second["not_finite"]) == (0.5, 1)
    shown = cli("show", run_dir).section("Epochs")
    assert f"2 from {first['first_not_finite']} on" in shown[0]
    assert "nan" in shown[0]
    assert f"at {second['first_not_finite']}" in shown[1]


def test_losses_that_arrive_late_belong_to_their_own_step(run_dir: Path) -> None:
    state = TrainerState(state="init")
    about = recording.create(run_dir, {}, {})
    with JournalWriter.create(run_dir, run_id=about["run"]) as writer:
        for source, event, dest in [
            ("init", Started(), "epoch_begin"),
            ("epoch_begin", EpochBegan(), "fetch"),
            ("fetch", Fetched(), "step"),
            ("step", Stepped(), "fetch"),
            ("fetch", Fetched(), "step"),
            ("step", Stepped(late=[4, math.nan]), "fetch"),
            ("fetch", Fetched(), "step"),
            ("step", Stepped(late=[6, 0.25]), "fetch"),
        ]:
            state = event.fold(state, dest)
            writer.append(source, event, state)
    (epoch,) = cli("show", run_dir, "--json").json()["epochs"]
    assert (epoch["loss_first"], epoch["loss_last"], epoch["first_not_finite"]) == ("nan", 0.25, 4)


def test_a_failed_run_names_the_state_the_error_and_the_samples(run_dir: Path) -> None:
    said = cli("show", failed(run_dir))
    (error,) = said.section("Errors")
    assert " step " in error
    assert error.endswith("ValueError: the loss exploded, with the samples [1]")
    assert said.section("Incarnations")[0].endswith("failed: ValueError")
    assert "Stands in exception" in said.out


def test_a_stopped_run_says_why(run_dir: Path) -> None:
    trainer = stub(run_dir=run_dir)
    trainer.on("step -> fetch", lambda t: t.stop("enough of it"))
    trainer.run()
    assert cli("show", run_dir).section("Incarnations")[0].endswith("stopped: enough of it")


def test_a_resumed_run_says_what_still_counts_and_what_matched(run_dir: Path) -> None:
    failed(run_dir)
    before = Journal(run_dir).last
    said = cli("show", resumed(run_dir, n_epochs=3))
    old, new = said.section("Incarnations")
    assert "failed: ValueError" in old
    assert before is not None
    assert f"1-{before.seq}" in old
    assert " to " in old
    assert " i0 at " in new
    assert new.endswith("done")
    resumption, match = said.section("Side records")
    assert "n_epochs 2 -> 3" in resumption
    assert "1 of 1 re-executed transitions match" in match
    assert len(said.section("Errors")) == 1, "the error of a superseded incarnation is told of as well"


def test_the_live_history_counts_alone_unless_all_is_asked_for(run_dir: Path) -> None:
    resumed(killed(run_dir))
    live = cli("show", run_dir, "--json").json()
    everything = cli("show", run_dir, "--json", "--all").json()
    assert sum(epoch["batches"] for epoch in live["epochs"]) == 6
    assert sum(state["visits"] for state in live["states"]) == live["stands"]["seq"]
    recorded = sum(life["last_seq"] - life["first_seq"] + 1 for life in everything["incarnations"])
    assert sum(state["visits"] for state in everything["states"]) == recorded > live["stands"]["seq"]
    assert {epoch["incarnation"] for epoch in everything["epochs"]} == {0, 1}


def test_a_run_that_parts_from_its_record_says_where(run_dir: Path) -> None:
    killed(run_dir)
    first_snapshot = sorted((run_dir / "snapshots").iterdir())[0]
    for snapshot in (run_dir / "snapshots").iterdir():
        if snapshot != first_snapshot:
            shutil.rmtree(snapshot)
    resumed(run_dir, driver=StubDriver(loss=lambda batch, n: 0.25))
    assert any("differs: data." in line for line in cli("show", run_dir).section("Side records"))


# -- how it ended ------------------------------------------------------------------------------------------


def test_a_killed_run_is_told_from_a_running_one(run_dir: Path, tmp_path: Path) -> None:
    assert cli("show", killed(run_dir)).section("Incarnations")[0].endswith("killed")
    live: list[Said] = []
    trainer = stub(run_dir=tmp_path / "live")
    trainer.on("epoch_end -> epoch_begin", lambda t: live.append(cli("show", t.run_dir)))
    trainer.run()
    assert live[0].section("Incarnations")[0].endswith("still running")
    assert " ago" in next(line for line in live[0].lines if line.startswith("Stands in"))


def test_of_a_process_on_another_machine_nothing_is_claimed(run_dir: Path) -> None:
    lock = killed(run_dir) / "journal" / "rank-0" / "lock"
    lock.write_text(json.dumps({**json.loads(lock.read_text()), "host": "elsewhere.example"}))
    assert "its process isn't on this machine" in cli("show", run_dir).section("Incarnations")[0]
    lock.unlink()
    assert cli("show", run_dir, "--json").json()["incarnations"][0]["ended"] == "unknown"


def test_a_torn_record_is_the_end_and_is_said(run_dir: Path) -> None:
    path = segment(killed(run_dir))
    size = path.stat().st_size
    with open(path, "ab") as file:
        file.write(b'{"seq":99,"from":"fet')
    assert cli("show", run_dir).section("Incarnations")[0].endswith("killed, its last record torn")
    assert cli("show", run_dir, "--json").json()["torn"] == {"file": str(path), "offset": size}


def test_a_run_without_a_transition_is_shown(done: Path, run_dir: Path) -> None:
    shutil.rmtree(done / "journal")
    said = cli("show", run_dir)
    assert said.status == 0
    assert "No transition was recorded" in said.out
    assert cli("show", run_dir, "--json").json()["stands"] is None


# -- snapshots ---------------------------------------------------------------------------------------------


def test_snapshots_are_checked_by_size_and_on_demand_by_digest(done: Path) -> None:
    first, *_, last = sorted((done / "snapshots").iterdir())
    assert "Snapshots  intact by their sizes" in cli("show", done).out
    assert "Snapshots  intact by their digests" in cli("show", done, "--check").out
    held = (first / "rank-0.json").read_bytes()
    (first / "rank-0.json").write_bytes(bytes([held[0] ^ 1]) + held[1:])
    assert "intact by their sizes" in cli("show", done).out
    assert "1 can't be used" in cli("show", done, "--check").out
    assert "rank-0.json isn't what was written" in cli("show", done, "--check").section("Snapshots")[0]
    (last / "rank-0.json").write_bytes(b"short")
    assert "rank-0.json has 5 bytes instead of" in cli("show", done).section("Snapshots")[-1]
    (last / "rank-0.json").unlink()
    assert cli("show", done).section("Snapshots")[-1].endswith("rank-0.json is missing")


def test_a_snapshot_without_its_commit_is_named_with_the_reason(done: Path) -> None:
    (sorted((done / "snapshots").iterdir())[0] / "COMMIT").unlink()
    faults = [s["fault"] for s in cli("show", done, "--json").json()["snapshots"]]
    assert any("it has no COMMIT" in fault for fault in faults)


def test_an_inexact_snapshot_says_so_and_pruned_ones_are_counted(run_dir: Path) -> None:
    said = cli("show", failed(run_dir))
    assert said.section("Snapshots")[-1].endswith("inexact")
    shutil.rmtree(sorted((run_dir / "snapshots").iterdir())[0])
    assert f"{len(said.section('Snapshots'))} were saved" in cli("show", run_dir).out


# -- long runs, other machines, strange values -------------------------------------------------------------


def long_journal(run_dir: Path, epochs: int, batches: int) -> Path:
    about = recording.create(run_dir, {}, {})
    state = TrainerState(state="init")
    with JournalWriter.create(run_dir, run_id=about["run"]) as writer:

        def go(source: str, event: Event, dest: str) -> None:
            nonlocal state
            state = event.fold(state, dest)
            writer.append(source, event, state)

        go("init", Started(), "epoch_begin")
        for epoch in range(epochs):
            go("epoch_begin", EpochBegan(epoch=epoch), "fetch")
            for _ in range(batches):
                go("fetch", Fetched(), "step")
                go("step", Stepped(loss=0.5), "fetch")
    return run_dir


def test_a_long_table_keeps_its_first_and_last_rows_and_says_what_it_left_out(tmp_path: Path) -> None:
    run = long_journal(tmp_path / "run", epochs=30, batches=1)
    said = cli("show", run, "--rows", "8")
    assert [line.split()[0] for line in said.section("Epochs")] == ["0", "1", "...", "24", "25", "26", "27", "28", "29"]
    assert "22 of 30 left out: --rows 0 shows all" in said.out
    assert len(cli("show", run).section("Epochs")) == 21
    assert len(cli("show", run, "--rows", "0").section("Epochs")) == 30
    assert len(cli("show", run, "--json").json()["epochs"]) == 30
    assert [e["epoch"] for e in cli("show", run, "--json", "--rows", "1").json()["epochs"]] == [29]


def test_memory_does_not_grow_with_the_transitions(tmp_path: Path) -> None:
    def peak(run: Path) -> int:
        journal = Journal(run, history="all")
        tracemalloc.start()
        Survey(journal, everything=False, most=20, snapshots=set())
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return most

    short = long_journal(tmp_path / "short", epochs=50, batches=30)  # already more than one block of a file
    long = long_journal(tmp_path / "long", epochs=50, batches=150)
    peak(short)
    assert peak(long) < 1.5 * peak(short)


def test_rows_never_hold_more_than_they_were_given_room_for() -> None:
    for most in range(1, 9):
        for count in range(20):
            rows: Rows[int] = Rows(most)
            for i in range(count):
                rows.add(i)
            assert len(rows) == min(most, count) == count - rows.omitted
            assert list(rows) == list(range(count))[: len(rows.first)] + list(range(count))[count - len(rows.last) :]


LENGTHS = {
    0: "0 us", 2.5e-5: "25 us", 0.0123: "12.3 ms", 0.9999: "1 s", 59.99: "1m 00s", 61: "1m 01s", 3599.9: "1h 00m",
    3661: "1h 01m", 47 * 3600: "47h 00m", 50 * 3600: "2d 2h",
}  # fmt: skip


@pytest.mark.parametrize(("seconds", "said"), LENGTHS.items())
def test_a_length_of_time_has_a_unit_that_fits(seconds: float, said: str) -> None:
    assert duration(seconds) == said


def test_a_number_of_bytes_has_a_unit_that_fits() -> None:
    assert [size(n) for n in (0, 999, 1000, 999_900, 39_240, 3 * 10**12)] == [
        "0 B", "999 B", "1 kB", "1 MB", "39.2 kB", "3 TB"
    ]  # fmt: skip


@attrs.frozen(kw_only=True)
class Game:
    state: str = "play"
    seq: int = 0
    stop_asked: str = ""
    games: int = 0


@attrs.frozen(kw_only=True)
class Played(Event):
    reward: float = 0.0

    def fold(self, state: Game, dest: str) -> Game:
        return attrs.evolve(state, state=dest, seq=state.seq + 1, games=state.games + 1)


def over(state: Game, event: Played) -> bool:
    """three games"""
    return state.games >= 2


def test_a_run_of_another_machine_is_shown_with_its_own_states_and_counters(run_dir: Path) -> None:
    rows = [Row("play", Played, "done", over), Row("play", Played, "play"), Row("play", Failed, "exception")]
    machine = Machine(rows, initial="play")
    Engine(machine, {"play": lambda state: Played(reward=math.inf)}, state=Game(), run_dir=run_dir).run()
    said = cli("show", run_dir)
    assert said.section("States")[0].split()[:2] == ["play", "3"]
    assert "  games  3" in said.lines
    assert "Epochs" not in said.out
    assert cli("show", run_dir, "--at", "1", "--json").json()["data"] == {"reward": "inf"}


def test_what_was_recorded_can_not_steer_the_terminal(run_dir: Path) -> None:
    said = cli("show", failed(run_dir, text="two\nlines, \x1b[31mred\x1b[0m and \x9b"))
    assert r"ValueError: two\nlines, \x1b[31mred\x1b[0m and \x9b, with the samples [1]" in said.section("Errors")[0]
    assert "\x1b" not in said.out
    assert "\x1b" not in cli("show", run_dir, "--grep", "Failed").out


def test_a_header_of_strange_values_is_shown_as_far_as_it_goes(done: Path) -> None:
    about: dict[str, Any] = {**recording.load(done), "created": "yesterday", "settings": None, "command": "train\x1b"}
    del about["environment"]
    recording.write_json(done / "run.json", about)
    said = cli("show", done)
    assert said.status == 0
    assert "  created  yesterday" in said.lines
    assert r"  command  train\x1b" in said.lines


def test_nothing_in_the_run_directory_changes(done: Path) -> None:
    def tree() -> dict[Path, tuple[int, bytes]]:
        return {p: (p.stat().st_mtime_ns, p.read_bytes()) for p in done.rglob("*") if p.is_file()}

    before = tree()
    for options in ("", "--json", "--check", "--all", "--salvage", "--at 3", "--grep x", "--follow"):
        cli("show", done, *options.split())
    assert tree() == before


def test_fingerprints_fill_no_page_and_a_fork_says_from_where_and_with_what(run_dir: Path) -> None:
    trainer = stub(run_dir=run_dir)
    changed = {"hyperparameters.lr": [0.1, 0.01]}

    def note(heard: Any) -> None:
        heard._recorder.side("fingerprint", at=1, batch="0" * 16)
        heard._recorder.side("forked", run_dir="runs/a", seq=1200, changed=changed, by_hand="one batch passed over")

    trainer.on("init -> epoch_begin", note)
    trainer.run()
    (line,) = cli("show", run_dir).section("Side records")
    assert line.endswith("forked  from runs/a at 1,200; hyperparameters.lr 0.1 -> 0.01; one batch passed over")
