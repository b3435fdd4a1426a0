"""The docs say what is so: their code runs, prints what they show, and what is made from the code equals it.

`python -m tests.test_docs` writes the generated parts anew.
"""

from __future__ import annotations

import argparse
import contextlib
import doctest
import importlib
import io
import json
import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import attrs
import pytest
import torch

from tachograph.drivers import StubDriver
from tachograph.engine import Callback, Trainer, engine, marked, recording
from tachograph.engine.callbacks.callback import MOMENTS
from tachograph.engine.cli import COMMANDS
from tachograph.engine.events import hangs_on
from tachograph.engine.exports import export
from tachograph.states import Row, training_machine, training_rows
from tachograph.states.table import ANY
from tests import example_parts, features, reference
from tests.test_house import MODULES

ROOT = Path(__file__).parent.parent
PAGES = [path for path in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))] if path.is_file()]
BLOCK = re.compile(r"(?:^<!-- (?P<note>[^\n]*) -->\n+)?^```(?P<language>\w*)\n(?P<text>.*?)^```$", re.M | re.S)
GENERATED = re.compile(r"(<!-- generated: ([^\n]*) -->\n)(.*?)(<!-- end of generated -->)", re.S)
LINK = re.compile(r"\[[^\]\n]*\]\(([^)\s]+)\)")
VARYING = re.compile(r"\b[0-9a-f]{16}\b|\b\d+\.\d+(e-?\d+)?\b|\b[0-9a-f]{8}\b|\b\d+-\d+-\d+ \d+:\d+:\d+|\b[0-9,]+ kB")
"""What differs from machine to machine in what a block prints: chains, hashes, fractions, times and sizes."""


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


each_page = pytest.mark.parametrize("page", PAGES, ids=name_of)


# -- the code ----------------------------------------------------------------------------------------------


@attrs.frozen
class Block:
    """A fenced block of a page.

    Attributes:
        page: where it stands.
        line: the line of the page that it begins in, from 0.
        language: what stands behind its fence.
        note: the comment above it. "not run: reason"; "file: name": it is put into that file; "printed": what the block
            before it prints; "typed": commands after "$ ", which are run, and what they print; "..." stands for lines
            that are left out.
        text: what is in it.
    """

    page: Path
    line: int
    language: str
    note: str
    text: str

    def about(self, word: str) -> str:
        """What a note "word: ..." says; "" if it is another note."""
        return self.note.removeprefix(f"{word}: ") if self.note.startswith(f"{word}: ") else ""


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text(encoding="utf-8")
    return [
        Block(page, text.count("\n", 0, m.start("text")), m["language"], m["note"] or "", m["text"])
        for m in BLOCK.finditer(text)
    ]


def type_in(block: Block) -> None:
    """Run a block's commands in a shell, as a reader does, and hold what they print against what stands there."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for command in re.split(r"^\$ ", block.text, flags=re.M)[1:]:
        lines = command.splitlines()
        typed = [lines.pop(0)]
        while typed[-1].endswith("\\") or "\n".join(typed).count('"') % 2:
            typed.append(lines.pop(0))
        ran = subprocess.run(
            "\n".join(typed), shell=True, capture_output=True, text=True, check=False, timeout=300,
            env={**os.environ, "PATH": path, "COLUMNS": "120"},
        )  # fmt: skip
        said = VARYING.sub("#", ran.stdout + ran.stderr)
        shown = [
            ".*" if line == "..." else re.escape(line) + "\n"
            for line in VARYING.sub("#", "\n".join(lines)).splitlines()
        ]
        assert re.fullmatch("".join(shown), said, re.S), f"{block.page}:{block.line}: $ {typed[0]}\n{said}"


PYTHON = [block for page in PAGES for block in blocks_of(page) if block.language == "python"]


@pytest.fixture
def namespace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A module for the blocks of one page, in an empty folder that its imports look into."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    module = ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", module)
    before, threads = set(sys.modules), torch.get_num_threads()
    yield module
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]
    marked._marked.clear()
    torch.set_num_threads(threads)


@each_page
def test_the_code_of_a_page_runs_and_prints_what_the_page_shows(page: Path, namespace: ModuleType) -> None:
    printed = io.StringIO()
    for block in blocks_of(page):
        if block.note == "typed":
            type_in(block)
        if block.note == "printed":
            assert VARYING.sub("#", printed.getvalue()) == VARYING.sub("#", block.text), f"{page}:{block.line}"
        if block.language != "python" or block.about("not run"):
            continue
        if file := block.about("file"):
            with open(file, "a", encoding="utf-8") as there:
                there.write(block.text)  # it runs when a later block imports it
            continue
        printed = io.StringIO()
        code = compile("\n" * block.line + block.text, str(page), "exec")
        with contextlib.redirect_stdout(printed):
            exec(code, vars(namespace))


@pytest.mark.parametrize("block", PYTHON, ids=lambda block: f"{name_of(block.page)}:{block.line}")
def test_a_block_of_python_is_run_or_says_why_not(block: Block) -> None:
    if block.note.startswith("not run"):
        assert block.about("not run"), "<!-- not run: reason -->"
        pytest.skip(block.about("not run"))


@each_page
def test_code_that_is_no_example_stands_in_generated_parts_only(page: Path) -> None:
    """A signature is fenced as `py`; a block of `python` is run."""
    assert not re.search(r"^```py$", GENERATED.sub("", page.read_text(encoding="utf-8")), re.M)


@each_page
def test_every_fence_of_a_page_is_closed(page: Path) -> None:
    fences = re.findall(r"^\s*(?:```|~~~)", page.read_text(encoding="utf-8"), re.M)  # one in a list wouldn't be run
    assert len(fences) == 2 * len(blocks_of(page))


TRIED = {
    "python": "runs, or says why not",
    "console": "runs if it is `typed`; its commands exist",
    "py": "is a signature in a generated part",
    "mermaid": "is what the machine draws",
    "": "is what a block prints, or the loop",
    "text": "is what a command prints",
    "json": "can be read",
    "sh": "can be read by a shell",
    "bash": "can be read by a shell",
    "sql": "runs on an exported run",
    "yaml": "is Kubernetes' own",
}
"""What is done about a block, by its language."""


def test_the_queries_that_a_page_shows_run_on_an_exported_run(tmp_path: Path) -> None:
    trainer = Trainer(None, StubDriver(), [1, 2, 3], None, n_epochs=2, run_dir=tmp_path / "run", progress_bar=None)
    trainer.run()
    export(tmp_path / "run", "sqlite", tmp_path / "run.db")
    (queries,) = [block for page in PAGES for block in blocks_of(page) if block.language == "sql"]
    with contextlib.closing(sqlite3.connect(tmp_path / "run.db")) as db:
        found = [db.execute(query).fetchall() for query in queries.text.split(";")[:-1]]
    assert [bool(rows) for rows in found] == [False, True, True]  # no loss was NaN; times; snapshots


@each_page
def test_a_block_has_a_language_of_which_is_known_what_is_done_about_it(page: Path) -> None:
    for block in blocks_of(page):
        assert block.language in TRIED, f"{name_of(page)}:{block.line}: {block.language}"
        if block.language == "json":
            for line in [block.text] if block.text.startswith("{\n") else block.text.splitlines():
                json.loads(line)
        if block.language in ("sh", "bash"):
            subprocess.run(["bash", "-n"], input=block.text, text=True, check=True, timeout=60)


def commands_on(page: Path) -> Iterator[tuple[str, str]]:
    """The commands of `tachograph` in a page's sentences and shells, with what stands behind them."""
    text = page.read_text(encoding="utf-8")
    shells = "\n".join(block.text for block in blocks_of(page) if block.language in ("console", "sh", "bash"))
    inline = "\n".join(re.findall(r"`([^`\n]+)`", BLOCK.sub("", GENERATED.sub("", text)).replace("\n", " ")))
    for word, more in re.findall(r"^(?:\$ )?tachograph ([a-z]\w*)((?:.*\\\n)*.*)$", f"{inline}\n{shells}", re.M):
        yield word, re.split(r"[|>;#&]", more, maxsplit=1)[0]


def options_of(parser: argparse.ArgumentParser) -> set[str]:
    """The options of a command, and of those within it."""
    options: set[str] = set()
    for action in parser._actions:
        options.update(action.option_strings)
        if isinstance(action, argparse._SubParsersAction):
            options.update(*map(options_of, action.choices.values()))
    return options


@each_page
def test_every_command_that_a_page_names_is_one_and_has_the_options_that_stand_there(page: Path) -> None:
    for word, more in commands_on(page):
        assert word in COMMANDS, f"{name_of(page)}: tachograph {word}"
        parser = argparse.ArgumentParser()
        importlib.import_module(f"tachograph.engine.cli.commands.{word}").add_arguments(parser)
        named = set(re.findall(r"(?<!\S)--[a-z][\w-]*", more))
        assert named <= options_of(parser), f"{name_of(page)}: tachograph {word}{more}"


def test_the_examples_in_docstrings_run() -> None:
    for path in MODULES:
        if ">>> " in path.read_text(encoding="utf-8"):
            module = importlib.import_module(".".join(("tachograph", *path.relative_to(ROOT).with_suffix("").parts)))
            assert doctest.testmod(module).failed == 0


# -- what is made from the code ----------------------------------------------------------------------------


def table_of_the_machine() -> str:
    """The rows as the source has them, with `ANY` as "any but a final one"."""
    lines = ["| state | event | if | next state |", "|---|---|---|---|"]
    seen: set[tuple[str, str]] = set()
    for row in training_rows():
        way = (row.source, row.event.__name__)
        otherwise = "else" if way in seen else ""
        seen.add(way)
        source = "any but done and exception" if row.source == ANY else row.source
        lines.append(f"| {source} | {row.event.__name__} | {row.label or otherwise} | {row.dest} |")
    return "\n".join(lines) + "\n"


def drawing_of_the_machine() -> str:
    return f"```mermaid\n{training_machine().mermaid()}```\n"


def the_loop() -> str:
    (loop,) = re.findall(r"^    while .*?(?=^\S)", engine.__doc__ or "", re.M | re.S)
    return "```\n" + "\n".join(line.removeprefix("    ") for line in loop.rstrip().splitlines()) + "\n```\n"


def table_of_moments() -> str:
    lines = ["| moment | its listeners are given | when |", "|---|---|---|"]
    for name, given in MOMENTS.items():
        said = " ".join((getattr(Callback, name).__doc__ or "").split())
        when = said.removeprefix("Hear that ").rstrip(".")
        lines.append(f"| `{name}` | {', '.join(f'`{each}`' for each in ('trainer', *given))} | {when} |")
    return "\n".join(lines) + "\n"


def moments_on_transitions() -> str:
    """The moments of every row, rows that hear the same taken together."""
    lines = ["| transition | event | moments, in the order they are heard |", "|---|---|---|"]
    together: dict[tuple[str, str, tuple[str, ...]], list[Row]] = {}
    for row in training_machine().rows:
        heard = tuple(hangs_on(row.source, row.event.__name__, row.dest))
        together.setdefault((row.event.__name__, row.dest, heard), []).append(row)
    for (event, dest, heard), rows in together.items():
        sources = ", ".join(dict.fromkeys(row.source for row in rows))
        lines.append(f"| {sources} → {dest} | {event} | {', '.join(f'`{name}`' for name in heard) or 'none'} |")
    return "\n".join(lines) + "\n"


PARTS: dict[str, Callable[[], str]] = {
    "the table of the machine": table_of_the_machine,
    "the drawing of the machine": drawing_of_the_machine,
    "the loop": the_loop,
    "the moments": table_of_moments,
    "the moments on transitions": moments_on_transitions,
    "the features": features.table,
    **reference.parts(),
    **example_parts.parts(),
}


def generated_anew(text: str) -> str:
    """A page with its generated parts made again."""
    return GENERATED.sub(lambda m: f"{m[1]}{PARTS[m[2]]()}{m[4]}", text)


@each_page
def test_the_generated_parts_of_a_page_are_what_the_code_says(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert text == generated_anew(text), "say `python -m tests.test_docs`"


def test_every_generated_part_has_its_place_in_the_docs() -> None:
    assert {m[2] for page in PAGES for m in GENERATED.finditer(page.read_text(encoding="utf-8"))} == set(PARTS)


@each_page
def test_the_machine_is_drawn_alike_wherever_it_is_drawn(page: Path) -> None:
    for block in blocks_of(page):
        if block.language == "mermaid" and block.text != training_machine().mermaid():
            assert block.text in example_parts.drawings()


@each_page
def test_the_loop_is_told_word_for_word_wherever_it_is_told(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert ("while the state is not final" in text) == (the_loop() in text)


@pytest.mark.parametrize(("heading", "names"), [("fixed", recording.FIXED), ("changeable", recording.CHANGEABLE)])
def test_the_settings_that_are_fixed_and_those_that_may_change_are_all_told(
    heading: str, names: tuple[str, ...]
) -> None:
    text = (ROOT / "docs" / "resume.md").read_text(encoding="utf-8")
    (table,) = re.findall(rf"^\| {heading} \|.*?(?=\n\n|\Z)", text, re.M | re.S)
    assert re.findall(r"^\| `(\w+)`", table, re.M) == list(names)


# -- the links ---------------------------------------------------------------------------------------------


def anchors_of(page: Path) -> set[str]:
    """The anchors that the headings of a page have on GitHub and the like."""
    prose = BLOCK.sub("", page.read_text(encoding="utf-8"))
    headings = [heading.replace("`", "") for heading in re.findall(r"^#+ (.*)$", prose, re.M)]
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@each_page
def test_every_relative_link_of_a_page_leads_somewhere(page: Path) -> None:
    for link in LINK.findall(BLOCK.sub("", page.read_text(encoding="utf-8"))):
        if re.match(r"\w+:", link):
            continue
        path, _, anchor = link.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), f"{name_of(page)} links to {link}"
        if anchor:
            assert anchor in anchors_of(there), f"{name_of(page)} links to {link}"


def test_every_page_is_on_the_map() -> None:
    docs = ROOT / "docs"
    linked = {link.partition("#")[0] for link in LINK.findall((docs / "index.md").read_text(encoding="utf-8"))}
    assert {str(page.relative_to(docs)) for page in PAGES if docs in page.parents} - {"index.md"} <= linked


if __name__ == "__main__":
    for path in PAGES:
        held = path.read_text(encoding="utf-8")
        path.write_text(generated_anew(held), encoding="utf-8")
