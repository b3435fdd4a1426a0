"""What `docs/examples.md` shows of the examples: the drawings of their machines, and the lines that matter.

"examples/name.py, drawn" is the machine of what its `build()` returns; "examples/name.py: First, second" are these
definitions, as they stand in the file.
"""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "examples.md"
_KEY = re.compile(r"^<!-- generated: (examples/(\w+)\.py(?:, drawn|: [^\n]*)) -->$", re.M)


def parts() -> dict[str, Callable[[], str]]:
    """Return the generated parts that the page asks for."""
    return {key: partial(_part, key, name) for key, name in _KEY.findall(PAGE.read_text(encoding="utf-8"))}


def _part(key: str, name: str) -> str:
    _, colon, wanted = key.partition(": ")
    return _lines(name, wanted.split(", ")) if colon else f"```mermaid\n{drawing(name)}```\n"


def drawing(name: str) -> str:
    """Draw the machine of an example."""
    machine = importlib.import_module(f"examples.{name}").build().machine
    return str(machine.mermaid())


def drawings() -> set[str]:
    """Return all drawings that the page asks for."""
    return {drawing(name) for key, name in _KEY.findall(PAGE.read_text(encoding="utf-8")) if key.endswith(", drawn")}


def _lines(name: str, wanted: list[str]) -> str:
    source = (ROOT / "examples" / f"{name}.py").read_text(encoding="utf-8")
    lines, found = source.splitlines(), {}
    for node in ast.parse(source).body:
        targets = getattr(node, "targets", [node])
        called = getattr(targets[0], "id", None) or getattr(node, "name", "")
        first = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
        found[called] = "\n".join(lines[first - 1 : node.end_lineno])
    return "```py\n" + "\n\n\n".join(found[each] for each in wanted) + "\n```\n"
