"""`tachograph show` record by record: --at, --grep, --follow."""

from __future__ import annotations

import json
import math
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tachograph.drivers import StubDriver
from tachograph.engine import Journal, recording
from tachograph.engine.journal import JournalWriter, Position
from tachograph.states import EpochBegan, Started, Stopped, TrainerState
from tests.test_cli_support import PROGRAM, cli, failed, killed, resumed, validating
from tests.toys import stub


@pytest.fixture
def run(run_dir: Path) -> Path:
    driver = StubDriver(loss=lambda batch, n: math.nan if n == 4 else 1 / 3)
    stub(driver=driver, run_dir=run_dir, **validating()).run()
    return run_dir


# -- one record --------------------------------------------------------------------------------------------


def test_one_record_is_printed_whole(run: Path) -> None:
    record = next(r for r in Journal(run) if r.event == "Stepped")
    said = cli("show", run, "--at", str(record.seq))
    assert said.lines[0] == f"Transition {record.seq}  step -> fetch  Stepped"
    fields = dict(line.strip().split(maxsplit=1) for line in said.lines if line.startswith("  "))
    assert fields["chain"] == record.chain
    assert fields["loss"] == "0.3333333333333333", "every digit"
    assert fields["global_forward_batches"] == "1  (was 0)"
    assert fields["state"] == "fetch  (was step)"
    assert fields["cur_epoch_idx"] == "0"


def test_one_record_as_json_is_what_the_journal_says(run: Path) -> None:
    record = next(r for r in Journal(run) if r.event == "Stepped")
    held = cli("show", run, "--at", str(record.seq), "--json").json()
    assert (held["seq"], held["from"], held["event"], held["to"]) == (record.seq, "step", "Stepped", "fetch")
    assert held["data"] == record.data
    assert TrainerState.from_dict(held["state"]) == record.state
    assert (held["chain"], held["meta"], held["incarnation"], held["rank"]) == (record.chain, record.meta, 0, 0)


def test_with_all_every_account_of_a_transition_is_printed(run_dir: Path) -> None:
    failed(run_dir)
    last = Journal(run_dir).last
    assert last is not None
    resumed(run_dir)
    assert "Failed" not in cli("show", run_dir, "--at", str(last.seq)).lines[0]
    both = [line for line in cli("show", run_dir, "--at", str(last.seq), "--all").lines if "Transition" in line]
    assert [line.split()[-1] for line in both] == ["Failed", "Stepped"]


def test_a_transition_that_is_not_there_names_those_that_are(run: Path) -> None:
    last = Journal(run).last
    assert last is not None
    for seq in ("0", "-1", "9999"):
        for options in ([], ["--all"], ["--json"]):
            said = cli("show", run, "--at", seq, *options)
            assert (said.status, said.out) == (2, "")
            assert f"has no transition {seq}: it holds 1 to {last.seq}" in said.err


# -- those that match --------------------------------------------------------------------------------------


def test_records_whose_line_matches_are_printed_as_readable_lines(run: Path) -> None:
    said = cli("show", run, "--grep", '"event":"(Validated|EpochEnded)"')
    assert [line.split()[2] for line in said.lines] == ["Validated", "EpochEnded"] * 2
    assert "validate -> epoch_end" in said.lines[0]
    assert said.lines[0].endswith("sum#sum#dev 3  n#sum#dev 2")


def test_a_step_says_its_batch_its_loss_and_its_rate(run: Path) -> None:
    first, *_, nan = cli("show", run, "--grep", '"event":"Stepped".*"loss":(0.3|"nan")').lines[:5]
    assert first.endswith("step -> fetch          batch 1  loss 0.333333  lr 0.1")
    assert "loss nan" in nan


def test_zero_is_something_worth_saying(run: Path) -> None:
    assert "epoch 0" in cli("show", run, "--grep", "EpochBegan").lines[0]


def test_matches_as_json_are_one_object_a_line_with_nan_as_a_string(run: Path) -> None:
    (record,) = cli("show", run, "--json", "--grep", '"loss":"nan"').json_lines()
    assert record["event"] == "Stepped"
    assert record["data"]["loss"] == "nan"


def test_side_records_match_as_well_and_headers_of_files_do_not(run: Path) -> None:
    assert [r["side"] for r in cli("show", run, "--json", "--grep", '"side"').json_lines()] == ["saved"] * 2


def test_only_the_live_history_is_searched_unless_all_is_asked_for(run_dir: Path) -> None:
    resumed(failed(run_dir))
    assert cli("show", run_dir, "--grep", "Failed").status == 1
    (line,) = cli("show", run_dir, "--grep", "Failed", "--all").lines
    assert line.endswith("step -> exception      ValueError: the loss exploded  samples [1]")


def test_where_nothing_matches_the_status_is_one(run: Path) -> None:
    said = cli("show", run, "--grep", "no such thing")
    assert (said.status, said.out, said.err) == (1, "", "no record matches 'no such thing'\n")


def test_what_is_no_regular_expression_is_refused(run: Path) -> None:
    said = cli("show", run, "--grep", "(")
    assert said.status == 2
    assert "'(' isn't a regular expression" in said.err


# -- live --------------------------------------------------------------------------------------------------


class Live:
    """A run that is being written by this process, and followed by another one."""

    def __init__(self, run_dir: Path, *options: str) -> None:
        self.run = recording.create(run_dir, {}, {})["run"]
        self.writer = JournalWriter.create(run_dir, run_id=self.run)
        self.state = TrainerState(state="init")
        self.go("init", Started(), "epoch_begin")
        command = [*PROGRAM, "show", str(run_dir), "--follow", *options]
        self.reader = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def go(self, source: str, event: Started | EpochBegan | Stopped, dest: str) -> None:
        self.state = event.fold(self.state, dest)
        self.writer.append(source, event, self.state)

    def line(self) -> str:
        assert self.reader.stdout is not None
        return self.reader.stdout.readline()


@pytest.fixture
def live(run_dir: Path, request: pytest.FixtureRequest) -> Iterator[Live]:
    live = Live(run_dir, *getattr(request, "param", []))
    yield live
    live.reader.kill()
    live.reader.communicate()
    live.writer.close()


def test_new_transitions_are_printed_as_they_come_until_the_run_is_closed(live: Live) -> None:
    assert "init -> epoch_begin" in live.line(), "the last one, to say where the run is"
    live.go("epoch_begin", EpochBegan(epoch=0), "fetch")
    assert "epoch_begin -> fetch" in live.line()
    live.writer.side("saved", snapshot="000000000002", exact=True)
    assert "snapshot 000000000002" in live.line()
    live.go("fetch", Stopped(reason="enough"), "done")
    assert live.line().endswith("fetch -> done          reason enough\n")
    live.writer.close()
    assert live.reader.communicate(timeout=60) == ("", "")
    assert live.reader.returncode == 0


@pytest.mark.parametrize("live", [["--json"]], indirect=True)
def test_followed_as_json_it_is_an_object_a_line(live: Live) -> None:
    assert json.loads(live.line())["event"] == "Started"
    live.go("epoch_begin", EpochBegan(epoch=0), "fetch")
    assert json.loads(live.line())["data"]["epoch"] == 0


def test_ctrl_c_ends_the_following_cleanly(live: Live) -> None:
    live.line()
    live.reader.send_signal(signal.SIGINT)
    assert live.reader.communicate(timeout=60) == ("", "")
    assert live.reader.returncode == 0


def test_a_run_that_has_ended_is_followed_to_its_end_at_once(run: Path) -> None:
    said = cli("show", run, "--follow")
    assert said.status == 0
    assert "epoch_end -> done" in said.lines[0]


def test_a_run_whose_process_is_gone_ends_the_following(run_dir: Path) -> None:
    said = cli("show", killed(run_dir), "--follow")
    last = Journal(run_dir).last
    assert last is not None
    assert said.err == f"the run was killed after transition {last.seq}: its process is gone\n"


def test_a_resume_is_followed_over_its_seam(live: Live, run_dir: Path) -> None:
    live.line()
    live.writer.abandon()
    parent = Journal(run_dir).incarnations[-1]
    here = Position(0, parent.last_seq, parent.chain)
    live.writer = JournalWriter.create(run_dir, run_id=live.run, incarnation=1, parent=here)
    live.writer.side("resumed", snapshot=None, at=1, passed_over=[], changed={}, exact=True)
    assert "resumed     from the beginning" in live.line()
    live.go("epoch_begin", EpochBegan(epoch=0), "fetch")
    assert "epoch_begin -> fetch" in live.line()
    live.writer.close()
    assert live.reader.wait(timeout=60) == 0


def test_options_that_exclude_each_other_are_refused(run: Path) -> None:
    for options in ("--at 1 --follow", "--at 1 --grep x", "--follow --all", "-f --salvage"):
        said = cli("show", run, *options.split())
        assert (said.status, said.out) == (2, ""), options
        assert said.err.startswith("tachograph: ")
        assert len(said.err.splitlines()) == 1
