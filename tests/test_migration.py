"""The pages for those who come from elsewhere: what their tables offer in exchange is there, under that name."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tachograph.drivers import StubDriver
from tachograph.engine import Callback, Trainer, arguments
from tachograph.engine.callbacks.callback import ALIASES, MOMENTS
from tachograph.states import TrainerState
from tests.reference import names, parameters_of
from tests.test_docs import ROOT

PAGES = sorted((ROOT / "docs" / "migrate").glob("*.md"))
CALL = re.compile(r"^@?(?:trainer\.)?(\w+)\((.*)\)$")
NAMED = re.compile(r"(?:^|, )(\w+)(?==)")


def offered(page: Path) -> list[str]:
    """The code in the last column of a page's tables."""
    rows = re.findall(r"^\|(.*)\|$", page.read_text(encoding="utf-8"), re.M)
    cells = [re.split(r"(?<!\\)\|", row)[-1] for row in rows]
    return [code for cell in cells for code in re.findall(r"`([^`]+)`", cell)]


def without_inner(arguments: str) -> str:
    """Arguments without what stands in brackets among them."""
    while (shorter := re.sub(r"\([^()]*\)|\[[^\[\]]*\]|\{[^{}]*\}", "", arguments)) != arguments:
        arguments = shorter
    return arguments


@pytest.fixture(scope="module")
def trainer() -> Trainer:
    return Trainer(None, StubDriver(), [1, 2, 3], None, run_dir=None, progress_bar=None)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_what_is_offered_for_a_name_of_another_library_is_there(page: Path, trainer: Trainer) -> None:
    missing = [code for code in offered(page) if not is_there(code, trainer)]
    assert not missing, f"docs/migrate/{page.name}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_arguments_that_are_offered_are_taken(page: Path) -> None:
    for code in offered(page):
        call = CALL.match(code)
        fn = None if call is None else names()[call[1]].value if call[1] in names() else getattr(Trainer, call[1], None)
        if call is None or fn is None:
            continue
        taken = parameters_of(fn)
        if fn is Trainer or not any(p.kind is p.VAR_KEYWORD for p in taken.values()):
            settings = arguments.SETTINGS if fn is Trainer else ()
            assert set(NAMED.findall(without_inner(call[2]))) <= {*taken, *settings}, code


def is_there(code: str, trainer: Trainer) -> bool:
    """Whether code of a table names something that exists; what isn't code of ours is let through."""
    first = re.match(r"@?(?:(trainer|Events|Handle)\.)?(\w+)", code)
    if first is None:
        return True
    whose, name = first.groups()
    if whose == "trainer":
        rest = re.match(r"trainer\.trainer_state\.(\w+)", code)
        return hasattr(trainer, name) and (rest is None or hasattr(TrainerState(), rest[1]))
    if name.startswith("on_") or whose == "Events":
        return name in (*MOMENTS, *ALIASES, "x", "A", "on_exception", "on_stop") or hasattr(Callback, name)
    if name[0].isupper():
        return name in names() or name in ("Handle", "DataLoader")
    return True
