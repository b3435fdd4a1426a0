"""What is promised, and which tests show it: the table of `docs/features.md`, made from the tests' docstrings.

`tests/features.txt` has the promises, one line each. A test that shows one names its id in its docstring, and so may a
class or a module of tests. Nothing is guessed: a range names its ends only, and is refused by `tests/test_features.py`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import attrs

ROOT = Path(__file__).parent.parent
LISTED = ROOT / "tests" / "features.txt"
AT_MOST = 3
"""How many tests are named for an id; the others are counted."""

WAITING: dict[str, str] = {}
"""Ids that no test shows yet, and why."""
PARTLY: dict[str, str] = {}
"""Ids that tests show in part, and what waits."""

_ID = re.compile(r"(?<![\w./-])((?:A[28]\.)?[A-Z]{1,2}\d{1,2})(?!\w)")
_RANGE = re.compile(rf"{_ID.pattern}\s*(?:-|\u2013|to|through)\s*(?:A[28]\.)?[A-Z]{{1,2}}\d{{1,2}}(?!\w)")


@attrs.frozen
class Feature:
    """A promise: its id, its sentence, and the heading it stands under."""

    id: str
    sentence: str
    heading: str


@attrs.frozen
class Named:
    """An id in a docstring.

    Attributes:
        id: as it is written.
        where: the test, as pytest calls it; a class or a file stands for all tests in it.
        shows: whether it counts: a test that is expected to fail shows nothing.
    """

    id: str
    where: str
    shows: bool


def features() -> list[Feature]:
    """Return what `tests/features.txt` lists, in its order."""
    found, heading = [], ""
    for line in LISTED.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            heading = line.removeprefix("## ")
        elif line and not line.startswith("#"):
            id, _, sentence = line.partition(" | ")
            found.append(Feature(id, sentence, heading))
    return found


def files() -> list[Path]:
    return sorted((ROOT / "tests").rglob("test_*.py"))


def families() -> set[str]:
    """Return the letters that ids begin with: `SV` of SV12, `A8.C` of A8.C1."""
    return {feature.id.rstrip("0123456789") for feature in features()}


def named_in(path: Path) -> Iterator[Named]:
    """Yield the ids that the docstrings of a file of tests name, in their order."""
    known = families()
    for where, text, shows in _docstrings(path):
        for id in dict.fromkeys(_ID.findall(text)):
            if id.rstrip("0123456789") in known:
                yield Named(id, where, shows)


def ranges_in(path: Path) -> Iterator[str]:
    """Yield what names a range of ids in place of each."""
    for where, text, _ in _docstrings(path):
        yield from (f"{where}: {found[0]}" for found in _RANGE.finditer(text))


def _docstrings(path: Path) -> Iterator[tuple[str, str, bool]]:
    """Yield (test, docstring, whether it counts) of a module, its classes of tests, and its tests."""
    name = str(path.relative_to(ROOT))
    tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
    yield name, ast.get_docstring(tree) or "", True
    yield from _inside(tree, name, True)


def _inside(body: ast.Module | ast.ClassDef, name: str, shows: bool) -> Iterator[tuple[str, str, bool]]:
    for node in body.body:
        if isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
            counts = shows and not _expected_to_fail(node)
            yield f"{name}::{node.name}", ast.get_docstring(node) or "", counts
            yield from _inside(node, f"{name}::{node.name}", counts)
        elif isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            yield f"{name}::{node.name}", ast.get_docstring(node) or "", shows and not _expected_to_fail(node)


def _expected_to_fail(node: ast.ClassDef | ast.FunctionDef) -> bool:
    marks = [ast.unparse(mark).partition("(")[0] for mark in node.decorator_list]
    return bool({"pytest.mark.xfail", "pytest.mark.skip"} & set(marks))


def shown() -> dict[str, list[str]]:
    """Return id -> the tests that show it."""
    found: dict[str, list[str]] = {}
    for path in files():
        for named in named_in(path):
            if named.shows:
                found.setdefault(named.id, []).append(named.where)
    return found


def table() -> str:
    """Return the tables of `docs/features.md`, one under each heading."""
    tests, lines, heading = shown(), [], ""
    for feature in features():
        if feature.heading != heading:
            heading = feature.heading
            lines += ["", f"## {heading}", "", "| id | what | shown by |", "|---|---|---|"]
        sentence = feature.sentence.replace("|", "\\|")
        lines.append(f"| {feature.id} | {sentence} | {_shown_by(feature.id, tests.get(feature.id, []))} |")
    return "\n".join([*lines, ""]) + "\n"


def _shown_by(id: str, tests: list[str]) -> str:
    named = [f"`{test.removeprefix('tests/')}`" for test in tests[:AT_MOST]]
    more = [f"and {len(tests) - AT_MOST} more"] if len(tests) > AT_MOST else []
    reason = WAITING.get(id) or PARTLY.get(id)
    return ", ".join([*named, *more, *([f"not yet: {reason}"] if reason else [])]) or "nothing"
