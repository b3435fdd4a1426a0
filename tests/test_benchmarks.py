"""What a step costs: the scripts that measure it run, pair what belongs together, and leave out what isn't there.

No speed is asserted here.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
import torch

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"

Script = Callable[[str], ModuleType]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[Script]:
    """Imports a file of benchmarks/ as the file beside it does; afterwards their names are free again."""
    monkeypatch.syspath_prepend(BENCHMARKS)
    before = set(sys.modules)
    yield importlib.import_module
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(BENCHMARKS)):
            del sys.modules[name]


def run(name: str, *arguments: str, **setting: str) -> str:
    command = [sys.executable, BENCHMARKS / name, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **setting})
    assert done.returncode == 0, done.stderr
    return done.stdout


# -- what a step costs -------------------------------------------------------------------------------------


def test_the_smallest_measurement_says_what_a_step_and_a_listener_cost(tmp_path: Path) -> None:
    """R50."""
    said = run("overhead.py", "--quick", "--only", "tachograph", "--json", str(tmp_path / "figures.json"))
    assert f"torch {metadata.version('torch')}" in said
    figures = {each["name"]: each for each in json.loads((tmp_path / "figures.json").read_text())["figures"]}
    assert {"a step, journal on", "a step, journal off"} <= set(figures)
    assert figures["a listener that does nothing, in a tight loop"]["budget"] == 0.2


def test_a_difference_is_taken_to_the_bare_loop_of_the_same_process_and_round(script: Script) -> None:
    overhead = script("overhead")
    worker = SimpleNamespace(
        name="ignite",
        versions={"torch": "2", "pytorch-ignite": "0.5"},
        runs=[("bare loop", 0), ("ignite", 0), ("ignite", 10)],
        seconds={
            ("bare loop", 0): [(1.0, 1.0), (5.0, 2.0), (2.0, 2.0)],
            ("ignite", 0): [(1.5, 1.25), (5.5, 2.25), (2.5, 2.25)],
            ("ignite", 10): [(2.5, 1.5), (6.5, 2.5), (3.5, 2.5)],
        },
    )
    (cost,) = overhead.costs(worker, steps=1_000_000)
    assert cost.above == [0.5, 0.5, 0.5]
    assert cost.cpu == [0.25, 0.25, 0.25]
    assert cost.calls == [0.1, 0.1, 0.1]
    assert cost.releases == "pytorch-ignite 0.5"


def test_budgets_are_shares_of_ignites_and_of_the_cheapest_trainers(script: Script) -> None:
    overhead = script("overhead")

    def cost(name: str, above: float) -> object:
        return overhead.Cost(name, 500.0, [above], above, [above], [], [])

    names = {"journal on": 30.0, "journal off": -5.0, "ignite": 100.0, "fastNLP": 50.0, "Accelerate": 40.0}
    found = [cost(name, above) for name, above in names.items()]
    figures = {figure.name: figure for figure in overhead.figures(found, [0.1])}
    assert (figures["a step with the journal on, of ignite's"].value, figures["a step, fastNLP"].value) == (0.3, 50)
    cheapest = figures["a step with the journal on, of the cheapest peer's"]
    assert (cheapest.value, cheapest.met, "fastNLP" in cheapest.note) == (0.6, False, True)
    assert figures["a step with the journal on, of the cheapest loop's by hand"].budget is None
    assert figures["a step with the journal off, of ignite's"].met


def test_a_peer_that_seems_to_cost_nothing_makes_no_budget_met(script: Script) -> None:
    overhead = script("overhead")
    ours, theirs = (
        overhead.Cost(name, 500.0, [a], a, [a], [], []) for name, a in (("journal on", 9.0), ("ignite", -1.0))
    )
    assert not any(figure.met for figure in overhead.compared("journal on", ours, theirs, 0.5))


def test_a_process_that_ends_early_is_left_out_with_its_last_words(
    script: Script, capsys: pytest.CaptureFixture[str]
) -> None:
    overhead = script("overhead")
    ended = SimpleNamespace(
        runs=[("bare loop", 0)], ask=lambda key: (_ for _ in ()).throw(RuntimeError("skorch ended: no"))
    )
    going = SimpleNamespace(runs=[("bare loop", 0)], ask=lambda key: None)
    assert overhead.rounds([ended, going], 2) == [going]
    assert capsys.readouterr().out == "left out: skorch ended: no\n"


# -- the same work for all ---------------------------------------------------------------------------------


def test_who_trains_less_than_the_others_is_refused(script: Script, tmp_path: Path) -> None:
    held = script("peers.work")
    work = held.Work(steps=2, folder=str(tmp_path))

    def half(work: object, listeners: int) -> torch.optim.Optimizer:
        model, optimizer, loader = held.Work.new(work)
        for batch in list(loader)[:4]:
            model.train_step(batch)["loss"].backward()
            optimizer.step()
        return optimizer

    seconds, of_the_processor = work.timed(held.bare, 0)
    assert seconds > 0
    assert of_the_processor > 0
    with pytest.raises(RuntimeError, match=r"8 steps on 128 samples, not \{4\} on 128"):
        work.timed(half, 0)


def test_listeners_that_nobody_calls_are_noticed(script: Script, tmp_path: Path) -> None:
    work, ours = script("peers.work").Work(steps=1, folder=str(tmp_path)), script("peers.tachograph")
    work.checked(ours.journal_off, 2, ours.nothing.__code__)
    with pytest.raises(RuntimeError, match="2 listeners heard 0 calls in 7 batches"):
        work.checked(script("peers.work").bare, 2, ours.nothing.__code__)


# -- environments ------------------------------------------------------------------------------------------


def test_a_library_without_an_environment_is_left_out_with_a_sentence(
    script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    environments = script("peers.environments")
    monkeypatch.setattr(environments, "FOLDER", tmp_path)
    assert environments.python_of("ignite") is None
    said = capsys.readouterr().out
    assert said == "left out: ignite has no environment yet; `python benchmarks/peers ignite` makes it\n"
    assert environments.python_of("tachograph") == Path(sys.executable)


def test_an_environment_of_another_torch_is_made_anew(
    script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environments = script("peers.environments")
    monkeypatch.setattr(environments, "FOLDER", tmp_path)
    ignite = environments.ENVIRONMENTS["ignite"]
    ignite.folder.mkdir()
    (ignite.folder / "made.json").write_text(json.dumps(ignite.asked))
    assert ignite.lacking  # there is no torch for it
    environments.link_torch()
    assert ignite.lacking == ""
    (ignite.folder / "made.json").write_text(json.dumps({**ignite.asked, "torch": "1.0"}))
    assert ignite.lacking == "has an environment of another torch, Python or release"


def test_the_environments_see_torch_and_what_it_requires_and_nothing_else_of_ours(
    script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    environments = script("peers.environments")
    monkeypatch.setattr(environments, "FOLDER", tmp_path)
    folder = environments.link_torch()
    linked = {each.metadata["Name"].lower() for each in metadata.distributions(path=[str(folder)])}
    assert {"torch", "sympy", "jinja2"} <= linked
    assert not linked & {"attrs", "msgspec", "pytest", "tachograph"}
    assert (folder / "torch" / "__init__.py").samefile(torch.__file__)


def test_who_isnt_known_is_answered_with_those_who_are(script: Script) -> None:
    with pytest.raises(SystemExit, match=r"nothing is called keras; there are tachograph, ignite, "):
        script("peers.environments").wanted("ignite,keras")


# -- instructions ------------------------------------------------------------------------------------------


def test_without_valgrind_a_sentence_says_so(tmp_path: Path) -> None:
    assert "nothing was counted: there's no valgrind here" in run("instructions.py", PATH=str(tmp_path))


def test_instructions_are_read_from_what_callgrind_writes(script: Script, tmp_path: Path) -> None:
    instructions = script("instructions")
    (tmp_path / "out.2").write_text("events: Ir\nfn=(1)\n1 7\n\ntotals: 19051329\n")
    assert instructions.total_of(tmp_path / "out.2") == 19051329
    (tmp_path / "out.3").write_text("events: Ir\n")
    with pytest.raises(RuntimeError, match="has no line 'totals"):
        instructions.total_of(tmp_path / "out.3")


def test_instructions_are_compared_above_the_bare_loop_of_the_same_process(script: Script) -> None:
    found = {"journal on": 1200.0, "journal off": 1010.0, "ignite": 1500.0}
    bare = {"journal on": 1000.0, "journal off": 1000.0, "ignite": 1100.0}
    figures = {figure.name: figure.value for figure in script("instructions").figures(found, bare)}
    assert figures["instructions of a step with the journal on, of ignite's"] == 0.5
    assert figures["instructions of a step with the journal off, of ignite's"] == 0.025


# -- all that isn't a step ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("snapshot.py", {"10 MB: the stall, of torch.save": 0.15}),
        ("resume.py", {"small, 2 workers: reads before the first batch": 64}),
        ("reading.py", {"records read": 300_000, "diff of runs that are equal": 1}),
        ("starting.py", {"tachograph --help": 0.3, "tachograph show RUN": 0.3}),
    ],
)
def test_the_smallest_measurement_of_the_rest_says_what_was_asked(
    tmp_path: Path, name: str, asked: dict[str, float]
) -> None:
    """R50."""
    run(name, "--quick", "--json", str(tmp_path / "figures.json"))
    figures = {each["name"]: each for each in json.loads((tmp_path / "figures.json").read_text())["figures"]}
    assert {each: figures[each]["budget"] for each in asked} == asked
    assert all(each["value"] >= 0 for each in figures.values() if "budget" in each)
