"""The figures of `benchmarks/`: budgets, what is kept, and that tables, costs and plot say what was kept.

No speed is asserted here; what a step keeps in memory is counted, which repeats.
"""

from __future__ import annotations

import gc
import importlib
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

from tachograph.drivers import StubDriver
from tachograph.engine import Trainer

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], ModuleType]]:
    """Imports a file of benchmarks/ as the file beside it does; afterwards their names are free again."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    before = set(sys.modules)
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(BENCHMARKS)):
            del sys.modules[name]


Script = Callable[[str], ModuleType]


# -- budgets -----------------------------------------------------------------------------------------------


def test_a_budget_is_met_at_its_edge_and_missed_by_what_lies_beyond(script: Script) -> None:
    figure = script("figures").Figure
    assert figure("a step", 0.5, budget=0.5).verdict == "met"
    assert figure("a step", 0.6, budget=0.5).verdict == "missed by 0.10, 20%"
    assert figure("reading", 300_000, "records/s", 300_000, "more").met
    slow = figure("reading", 150_000, "records/s", 300_000, "more")
    assert (slow.met, slow.missed_by, slow.asked) == (False, 150_000, "≥ 300,000 records/s")


def test_a_budget_of_nothing_is_missed_by_anything(script: Script) -> None:
    figure = script("figures").Figure
    assert figure("growth", 0, "B", 0).met
    assert figure("growth", 2, "B", 0).verdict == "missed by 2 B"
    assert not figure("growth", float("nan"), "B", 0).met


def test_without_a_budget_there_is_no_verdict(script: Script) -> None:
    held = script("figures").Figure("a copy", 3.25, "ms")
    assert (held.met, held.missed_by, held.asked, held.verdict, held.measured) == (None, 0.0, "", "", "3.25 ms")


@pytest.mark.parametrize(
    ("value", "told"),
    [(0, "0"), (1, "1"), (0.0312, "0.031"), (0.25, "0.25"), (12.34, "12.3"), (123.4, "123"), (1234.5, "1,234")],
)
def test_a_number_is_told_with_the_digits_that_count(script: Script, value: float, told: str) -> None:
    assert script("figures").number(value) == told


# -- what is kept ------------------------------------------------------------------------------------------


def test_figures_are_read_as_they_were_written_with_the_machine_and_its_load(script: Script, tmp_path: Path) -> None:
    figures = script("figures")
    written = [figures.Figure("a", 1, "µs", 2, "more", "n"), *figures.curve("b", {1: 2.0, 10: 3.0}, "ms", "ranks")]
    figures.save(written, tmp_path / "told.json")
    read = figures.load(tmp_path / "told.json")
    assert list(read.figures) == written
    assert set(read.about) == {"at", "seconds", "cpu", "cores", "load", "versions"}
    assert len(read.about["load"]) == 2


def test_a_curve_is_one_row(script: Script) -> None:
    figures = script("figures")
    curve = figures.curve("a vote", {2: 250.0, 4: 900.0}, "µs", "ranks")
    rows = list(figures.rows_of([*curve, figures.Figure("b", 1)]))
    assert [row[:2] for row in rows] == [("a vote, by ranks", "2: 250; 4: 900 µs"), ("b", "1")]


def test_a_script_that_fails_leaves_its_last_figures(
    script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    table = script("table")
    monkeypatch.setattr(table, "HERE", tmp_path)
    (tmp_path / "broken.py").write_text("raise SystemExit(3)")
    assert table.run("broken", quick=True) is None
    assert "broken.py ended with status 3; its last figures stay" in capfd.readouterr().err


def test_a_benchmark_that_is_not_there_is_named_with_those_that_are(script: Script) -> None:
    with pytest.raises(SystemExit, match=r"there is no benchmark 'grwth': there are .*growth"):
        list(script("table").chosen("grwth"))


def test_every_script_that_measures_is_in_the_tables(script: Script) -> None:
    table = script("table")
    text = (BENCHMARKS / "README.md").read_text(encoding="utf-8")
    for name in table.SCRIPTS:
        assert f"<!-- measured: {name} -->" in text, f"benchmarks/README.md has no section for {name}.py"


# -- what is told of it ------------------------------------------------------------------------------------


def test_the_tables_and_the_plot_are_those_of_the_kept_figures(script: Script) -> None:
    """`python benchmarks/table.py --only ""` makes them anew."""
    table, runs = script("table"), script("figures").kept()
    for page in table.PAGES:
        text = page.read_text(encoding="utf-8")
        assert table.filled(text, runs) == text, page
    assert script("plot").picture(runs) == table.PLOT.read_text(encoding="utf-8")


def test_every_budget_that_is_missed_says_what_would_close_it(script: Script) -> None:
    table, runs = script("table"), script("figures").kept()
    missed = [(name, figure) for name, run in runs.items() for figure in run.figures if figure.met is False]
    assert [figure.name for name, figure in missed if not table.closing(name, figure)] == []


def test_what_is_said_of_costs_names_figures_that_there_are(script: Script) -> None:
    table, runs = script("table"), script("figures").kept()
    there = {(name, told) for name, run in runs.items() for f in run.figures for told in (f.name, f.series)}
    assert {(name, figure) for _, name, figure in table.COSTS if name in runs} <= there


def test_what_is_held_by_a_test_names_one_that_there_is(script: Script) -> None:
    for _, test in script("table").HELD:
        path, _, name = test.partition("::")
        assert f"def {name}(" in (BENCHMARKS.parent / path).read_text(encoding="utf-8")


def test_the_plot_is_small_and_asks_for_nothing_from_elsewhere(script: Script) -> None:
    drawn = script("table").PLOT.read_text(encoding="utf-8")
    assert len(drawn) < 60_000
    assert "not measured" not in drawn
    told = {value for element in ElementTree.fromstring(drawn).iter() for value in element.attrib.values()}
    assert not any("://" in value for value in told)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("growth", "a listener at each batch's end"),
        ("fingerprints", "32-64-2: at each update"),
        ("ranks", "journal on, above the bare loop, by ranks: 2"),
    ],
)
def test_in_its_smallest_form_a_script_prints_and_keeps_its_figures(
    script: Script, tmp_path: Path, name: str, told: str
) -> None:
    command = [sys.executable, str(BENCHMARKS / f"{name}.py"), "--quick", "--json", str(tmp_path / "told.json")]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    figures = script("figures").load(tmp_path / "told.json").figures
    assert told in [figure.name for figure in figures]
    assert all(figure.name in ended.stdout for figure in figures if not figure.series)


def test_a_long_run_keeps_nothing_of_its_transitions(tmp_path: Path) -> None:
    """`benchmarks/growth.py` measures it over a million of them; here, objects are counted over 16,000."""
    blocks: list[int] = []

    class Forgetful(StubDriver):
        def _called(self, name: str) -> None:
            self.seen.clear()

    def count(trainer: Trainer) -> None:
        if trainer.trainer_state.cur_epoch_idx in (8, 16):
            gc.collect()
            blocks.append(sys.getallocatedblocks())

    settings = {"n_epochs": 17, "snapshot_every": None, "progress_bar": None}
    trainer = Trainer(None, Forgetful(), list(range(1000)), None, run_dir=tmp_path / "run", **settings)
    trainer.on("on_train_epoch_end", count)
    trainer.run()
    assert blocks[1] - blocks[0] < 500
