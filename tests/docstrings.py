"""Reads docstrings: prose, then the sections Args, Attributes, Returns, Yields and Raises, in Google's style."""

from __future__ import annotations

import inspect
import re
import textwrap
from typing import Any

import attrs

SECTION = re.compile(r"^(Args|Attributes|Returns|Yields|Raises):$\n((?:^(?: .*)?$\n?)+)", re.M)


@attrs.frozen
class Doc:
    """A docstring in its parts.

    Attributes:
        prose: what stands before the sections.
        sections: "Args" and so on -> its entries, (name, text); Returns and Yields have one without a name.
    """

    prose: str
    sections: dict[str, list[tuple[str, str]]]

    @property
    def first(self) -> str:
        """Its first sentence."""
        return re.split(r"(?<=[\w)`\]])\. ", one_line(self.prose.split("\n\n")[0]))[0].rstrip(".:")


def doc_of(thing: Any) -> Doc:
    text = inspect.cleandoc(thing if isinstance(thing, str) else thing.__doc__ or "")
    sections = {m[1]: entries_of(m[1], m[2]) for m in SECTION.finditer(text)}
    return Doc(SECTION.sub("", text).strip(), sections)


def entries_of(section: str, text: str) -> list[tuple[str, str]]:
    body = textwrap.dedent(text).strip()
    if section in ("Returns", "Yields"):
        return [("", one_line(body))]
    entries = [re.sub(r"\n +", " ", entry) for entry in re.split(r"\n(?! )", body) if entry.strip()]
    assert all(": " in entry for entry in entries), f"every entry of {section} is 'name: text', not {body!r}"
    return [(name, one_line(said)) for name, said in (entry.split(": ", 1) for entry in entries)]


def one_line(text: str) -> str:
    return " ".join(text.split())
