"""What all examples have in common: they are short, can be started and imported, are in the docs, and tested."""

from __future__ import annotations

import importlib
import inspect
import re
import runpy
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PATHS = sorted((ROOT / "examples").glob("*.py"))
EXAMPLES = [path for path in PATHS if path.stem != "demo"]  # that one starts char_gpt.py, kills it and looks
each_path = pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
each_example = pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
BORROWED = ("gymnasium", "sklearn")
"""What examples are made with and Tachograph isn't."""


def import_or_skip(path: Path) -> None:
    for name in BORROWED:
        if re.search(rf"^(?:from|import) {name}\b", path.read_text(encoding="utf-8"), re.M):
            pytest.importorskip(name, reason=f"{path.name} needs {name}")


@each_path
def test_an_example_has_less_than_150_lines(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) < 150


@each_path
def test_an_example_is_told_of_in_the_docs(path: Path) -> None:
    assert f"`examples/{path.name}`" in (ROOT / "docs" / "examples.md").read_text(encoding="utf-8")


@each_example
def test_an_example_has_tests_of_its_own_in_which_it_is_killed(path: Path) -> None:
    own = (ROOT / "tests" / f"test_example_{path.stem}.py").read_text(encoding="utf-8")
    assert re.search(r"\bkill=True|\bSIGKILL\b", own)


@each_example
def test_an_example_is_built_by_a_function_that_needs_nothing_but_a_run_directory(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """So that commands and assertions take it, as `examples/name.py:build`. An import says nothing."""
    import_or_skip(path)
    build = importlib.import_module(f"examples.{path.stem}").build
    first, *others = inspect.signature(build).parameters.values()
    assert (first.name, first.default) == ("run_dir", None)
    assert all(p.default is not p.empty or p.kind is p.VAR_KEYWORD for p in others)
    assert capsys.readouterr() == ("", "")


@each_example
def test_an_example_says_how_it_is_started(
    path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import_or_skip(path)
    monkeypatch.setattr(sys, "argv", [str(path), "--help"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(path), run_name="__main__")
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert "--run-dir RUN_DIR" in said
    assert "--resume " in said
