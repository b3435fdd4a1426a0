"""The rules of the house: who may import whom, and what lies where."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FLOORS = {"states": {"states"}, "drivers": {"drivers", "states"}, "engine": {"engine", "drivers", "states"}}
FOLDERS = {*FLOORS, "tests", "docs", "examples", "benchmarks"}
OF_THE_WORLD = {"datetime", "io", "logging", "os", "pathlib", "random", "secrets", "sys", "tempfile", "time"}
MODULES = [path for floor in FLOORS for path in sorted((ROOT / floor).rglob("*.py"))]


def floor_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0]


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def imports_of(path: Path) -> Iterator[str]:
    """Yield the full name of every module that a file imports or takes a name from, wherever in it."""
    package = ("tachograph", *path.relative_to(ROOT).parent.parts)
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            module = ".".join([*above, *filter(None, [node.module])])
            yield from (f"{module}.{alias.name}" for alias in node.names)


def calls_of(path: Path) -> Iterator[str]:
    """Yield the name of every function that a file calls by its bare name."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            yield node.func.id


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


each_module = pytest.mark.parametrize("path", MODULES, ids=name_of)


@each_module
def test_imports_go_down_the_stairs_only(path: Path) -> None:
    for name in imports_of(path):
        if name.split(".")[0] == "tachograph":
            assert f"{name}.".split(".")[1] in FLOORS[floor_of(path)], f"{name_of(path)} imports {name}"


@each_module
def test_only_drivers_know_torch(path: Path) -> None:
    """D1."""
    if floor_of(path) != "drivers":
        assert not {name.split(".")[0] for name in imports_of(path)} & {"torch", "torchmetrics"}


@pytest.mark.parametrize("path", [path for path in MODULES if floor_of(path) == "states"], ids=name_of)
def test_states_know_no_files_clock_randomness_or_screen(path: Path) -> None:
    assert not {name.split(".")[0] for name in imports_of(path)} & OF_THE_WORLD
    assert not set(calls_of(path)) & {"open", "print", "input", "__import__"}


def test_the_transitions_library_is_known_to_the_table_only() -> None:
    knowing = {name_of(path) for path in MODULES if "transitions" in {n.split(".")[0] for n in imports_of(path)}}
    assert knowing == {"states/table.py"}


def test_importing_the_engine_or_the_choice_of_drivers_imports_no_torch() -> None:
    code = "import sys, tachograph.engine, tachograph.drivers, tachograph.states; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("path", [path for path in MODULES if path.name == "__init__.py"], ids=name_of)
def test_an_init_has_a_sorted_list_of_its_public_names(path: Path) -> None:
    lists = [
        ast.literal_eval(node.value)
        for node in tree_of(path).body
        if isinstance(node, (ast.Assign, ast.AnnAssign))
        and node.value is not None
        and ast.unparse(node.target if isinstance(node, ast.AnnAssign) else node.targets[0]) == "__all__"
    ]
    assert len(lists) == 1
    assert lists[0] == sorted(lists[0], key=lambda name: (not name.isupper(), not name[0].isupper(), name))


def test_no_folder_stands_beside_those_of_the_design() -> None:
    ignored = [line.strip("/") for line in (ROOT / ".gitignore").read_text(encoding="utf-8").split()]
    folders = {path.name for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith(".")}
    assert {name for name in folders if not any(fnmatch(name, pattern) for pattern in ignored)} <= FOLDERS


def test_nothing_is_put_off_in_a_comment() -> None:
    later = ("TO" + "DO", "FIX" + "ME")
    for path in [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*.py"))]:
        assert not any(word in path.read_text(encoding="utf-8") for word in later), name_of(path)
