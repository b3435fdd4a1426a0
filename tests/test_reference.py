"""The API reference: every public name has its place, and what a docstring names is there."""

from __future__ import annotations

import inspect
import re
from types import FunctionType
from typing import Any

import pytest

from tachograph import drivers, engine, states
from tests import reference
from tests.docstrings import doc_of
from tests.reference import doc_of_name, members_of, names, parameters_of

each_name = pytest.mark.parametrize("name", names().values(), ids=lambda name: name.name)


def functions_of(name: reference.Name) -> list[tuple[str, Any]]:
    """What a name's section tells of as callable: itself, and its methods."""
    if not isinstance(name.value, type):
        return [(name.name, name.value)] if isinstance(name.value, FunctionType) else []
    own = [(f"{name.name}.{key}", held) for key, held in members_of(name.value) if isinstance(held, FunctionType)]
    return [(name.name, name.value), *own]


def told_of(fn: Any, section: str = "Args") -> list[str]:
    """The names that a section of a docstring tells of; an entry may be of several."""
    entries = doc_of(fn).sections.get(section, ())
    return [each.lstrip("*") for several, _ in entries for each in several.split(", ")]


def test_every_public_name_stands_on_one_page_under_a_heading() -> None:
    public = {name for names in reference.PUBLIC.values() for name in names}
    assert {engine, states, drivers} < set(reference.PUBLIC)
    headings: list[str] = []
    for part, make in reference.parts().items():
        if part.startswith("reference: "):
            headings += [line[4:-1] for line in make().splitlines() if line.startswith("## ")]
    assert set(names()) == public
    assert {names()[name].own for name in public} <= set(headings)
    assert len(headings) == len(set(headings))


@each_name
def test_a_public_name_has_a_docstring(name: reference.Name) -> None:
    assert doc_of_name(name).first


@each_name
def test_every_argument_that_a_docstring_tells_of_is_there(name: reference.Name) -> None:
    for where, fn in functions_of(name):
        taken = parameters_of(fn)
        passed_on = any(p.kind is p.VAR_KEYWORD for p in taken.values())
        assert passed_on or set(told_of(fn)) <= set(taken), where


@each_name
def test_arguments_with_a_place_are_told_in_their_order(name: reference.Name) -> None:
    for where, fn in functions_of(name):
        told = told_of(fn)
        placed = [key for key, p in parameters_of(fn).items() if p.kind is p.POSITIONAL_OR_KEYWORD and key in told]
        assert placed == [each for each in told if each in placed], where


@each_name
def test_where_one_argument_is_told_of_all_are(name: reference.Name) -> None:
    for where, fn in functions_of(name):
        told, taken = told_of(fn), parameters_of(fn).values()
        named = {p.name for p in taken if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}
        inherited = isinstance(fn, type) and "__init__" not in vars(fn)
        assert inherited or not told or named <= set(told), where


def test_a_signature_is_written_as_it_is_called() -> None:
    def f(a: int, b: str = "x", *rest: int, c: float, d: object = print, **more: object) -> None:
        """Do nothing."""

    def g(a: int, *, b: int = 1) -> None:
        """Do nothing."""

    assert reference.call_of("f", f) == "f(a, b='x', *rest, c, d=print, **more)"
    assert reference.call_of("g", g) == "g(a, *, b=1)"


def test_a_second_name_is_told_with_the_first() -> None:
    text = reference.table_of_names()
    for name in names().values():
        if name.name != name.own:
            assert names()[name.own].value is name.value
            assert f"[`{name.name}`]" in text
            assert f"`{name.name}`" in reference.page(name.page)


def test_a_docstring_is_read_in_its_parts() -> None:
    doc = doc_of(
        inspect.cleandoc(
            """Do it. And more.

            A paragraph.

            Args:
                a: one thing: with a colon,
                    over two lines.
                b: another.

            Returns:
                What came of it: a number.

            Raises:
                ValueError, TypeError: it can't be done.
            """
        )
    )
    assert doc.first == "Do it"
    assert doc.prose == "Do it. And more.\n\nA paragraph."
    assert doc.sections == {
        "Args": [("a", "one thing: with a colon, over two lines."), ("b", "another.")],
        "Returns": [("", "What came of it: a number.")],
        "Raises": [("ValueError, TypeError", "it can't be done.")],
    }


@pytest.mark.parametrize("text", ["Do it.\n\nArgs:\n    a\n", "Do it.\n\nArgs:\n    just prose.\n"])
def test_an_entry_that_names_nothing_is_refused(text: str) -> None:
    with pytest.raises(AssertionError, match="every entry of Args"):
        doc_of(text)


def test_a_type_that_only_its_module_knows_is_spelt_out() -> None:
    assert "`perform: Mapping[str, Callable[..., Event]]`" in reference.page("trainer")
    assert "`dataloader`" in reference.page("samplers")  # its type is whatever the caller gives


@each_name
def test_every_attribute_that_a_docstring_tells_of_is_there(name: reference.Name) -> None:
    if not isinstance(name.value, type):
        return
    classes = [cls for cls in name.value.__mro__ if cls.__module__.startswith("tachograph.")]
    source = "".join(map(inspect.getsource, classes))
    for attribute in told_of(name.value, "Attributes"):
        declared = any(attribute in vars(cls).get("__annotations__", ()) for cls in classes)
        set_by_itself = re.search(rf"\bself\.{attribute}\b[^\n]*=", source)
        assert declared or set_by_itself or hasattr(name.value, attribute), attribute
