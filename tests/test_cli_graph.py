"""`tachograph graph`: the machine as a drawing and as a table."""

from __future__ import annotations

from pathlib import Path

import pytest

from tachograph.engine import recording
from tachograph.states import training_machine, training_rows
from tests.test_cli_support import cli
from tests.toys import stub


@pytest.fixture
def run(run_dir: Path) -> Path:
    stub(run_dir=run_dir).run()
    return run_dir


def test_the_drawing_is_the_machines_own() -> None:
    assert cli("graph").out == training_machine().mermaid()


def test_a_runs_machine_is_drawn_if_it_is_this_versions(run: Path) -> None:
    assert cli("graph", run).out == training_machine().mermaid()
    assert cli("graph", run, "--table").out == cli("graph", "--table").out


def test_a_run_of_another_machine_is_refused_with_both_digests(run: Path) -> None:
    about = recording.load(run)
    about["settings"]["machine"] = "0123456789abcdef"
    recording.write_json(run / "run.json", about)
    said = cli("graph", run)
    assert (said.status, said.out) == (2, "")
    assert "0123456789abcdef" in said.err
    assert training_machine().digest in said.err


def test_the_table_has_a_line_for_each_row_of_the_machine() -> None:
    head, rule, *rows = cli("graph", "--table").lines
    assert (head, rule) == ("| source | event | guard | dest |", "|---|---|---|---|")
    assert len(rows) == len(training_rows())
    assert "| fetch | Exhausted | validation due at epoch end | validate |" in rows
    assert "| fetch | Exhausted | else | epoch_end |" in rows
    assert "| fetch | Fetched | | step |" in rows
    assert "| any that isn't final | Failed | | exception |" in rows


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    said = cli("graph", tmp_path)
    assert said.status == 2
    assert f"{tmp_path} isn't a run directory" in said.err
