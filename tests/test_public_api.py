"""What users may build on: every public name with its kind and signature, so that none changes unseen.

`tests/public_api.txt` is that list. `python -m tests.test_public_api` writes it anew.
"""

from __future__ import annotations

import ast
import difflib
import importlib
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import attrs
import pytest

from tachograph import drivers, engine, states
from tachograph.drivers import StubDriver, metrics, samplers
from tachograph.engine import Callback, Divergence, Events, Journal, Trainer, diff, replay
from tachograph.engine.callbacks.callback import MOMENTS
from tachograph.engine.replay import Replay
from tachograph.states import Stepped, TrainerState
from tests import reference
from tests.reference import HANDED_OUT, PUBLIC, default_of, hidden_bases
from tests.test_docs import PAGES, blocks_of
from tests.test_house import ROOT, name_of

LIST = ROOT / "tests" / "public_api.txt"
HEAD = """\
# Every public name with its kind and its signature; `python -m tests.test_public_api` writes it.
# docs/public-api.md says what may change in it, and when.
"""
SPECIAL = ("__call__", "__contains__", "__enter__", "__exit__", "__getitem__", "__iter__", "__len__", "__next__")
WIDTH = 100
CHANGED = """\
{lines}
The public names aren't those of tests/public_api.txt any more. Is that meant? Then see docs/public-api.md for what the
change asks of the version and of CHANGELOG.md, say `python -m tests.test_public_api`, and commit the list with it."""


# -- the list ----------------------------------------------------------------------------------------------


def listed() -> str:
    """The list: a heading for each module, then its names, a class with what it has."""
    parts = [HEAD]
    for module, names in sorted(PUBLIC.items(), key=lambda entry: entry[0].__name__):
        parts.append(f"\n## {module.__name__}\n")
        parts += [told(module, name) for name in sorted(names)]
    parts.append("\n## Met, not imported\n")
    met = {cls.__name__: cls for classes in HANDED_OUT.values() for cls, _ in classes}
    parts += [told_of_class(met[name], name) for name in sorted(met)]
    return "\n".join(parts) + "\n"


def told(module: ModuleType, name: str) -> str:
    """A name as a module exports it; where another one has told of it, that one."""
    value = getattr(module, name)
    first = reference.names()[name].package
    if first != module.__name__:
        return f"{name} = {first}.{name}"
    if isinstance(value, (type, FunctionType)) and value.__name__ != name:
        return f"{name} = {value.__name__}"
    if isinstance(value, type):
        return told_of_class(value, name)
    return call(name, value) if isinstance(value, FunctionType) else f"{name}: {type(value).__name__}"


def told_of_class(cls: type, name: str) -> str:
    bases = [base.__name__ for base in cls.__bases__ if base is not object and base not in hidden_bases(cls)]
    head = call(f"class {name}", cls) if takes_arguments(cls) else f"class {name}"
    lines = [f"{head} <- {', '.join(bases)}" if bases else head]
    lines += [f"    .{line}" for line in sorted(members_of(cls))]
    return "\n".join(line.replace("\n", "\n    ") if i else line for i, line in enumerate(lines))


def takes_arguments(cls: type) -> bool:
    """Whether a class says by itself what it is built with."""
    return not issubclass(cls, BaseException) and cls.__init__ is not object.__init__  # type: ignore[misc]


def members_of(cls: type) -> Iterator[str]:
    """What users may ask of a class: what it defines without underscore, or a base that has no place of its own."""
    seen: set[str] = set()
    if cls is Callback:
        seen = set(MOMENTS)
        yield from (call(name, vars(cls)[name]) for name in MOMENTS)
    fields = {field.name for field in attrs.fields(cls)} if attrs.has(cls) else set()
    for base in (cls, *hidden_bases(cls)):
        for name, held in vars(base).items():
            if name not in seen and (name in SPECIAL or not name.startswith("_")):
                seen.add(name)
                if name not in fields:
                    yield member(name, held)
    entries = reference.doc_of_class(cls).sections.get("Attributes", ())
    said = {name for names, _ in entries for name in names.split(", ")}
    yield from (f"{name}: an attribute" for name in (said - seen) | fields)


def member(name: str, held: Any) -> str:
    value = held.__func__ if isinstance(held, (staticmethod, classmethod)) else held
    kind = {staticmethod: "static ", classmethod: "class "}.get(type(held), "")
    if isinstance(value, (property, cached_property)):
        asked = value.fget if isinstance(value, property) else value.func
        settable = ", may be set" if getattr(value, "fset", None) else ""
        return f"{name} -> {getattr(asked, '__annotations__', {}).get('return', 'Any')}{settable}"
    if isinstance(value, FunctionType):
        return kind + call(name, value)
    return f"{name}: an attribute"


def call(name: str, fn: Any) -> str:
    """A signature with its types, a line for each argument where one line isn't enough."""
    try:
        signature = inspect.signature(fn)
    except ValueError:
        return name
    parameters = [p for key, p in signature.parameters.items() if not (key in ("self", "cls") and p.default is p.empty)]
    arguments: list[str] = []
    star = False
    for p in parameters:
        if p.kind is p.KEYWORD_ONLY and not star:
            arguments.append("*")
        star = star or p.kind in (p.KEYWORD_ONLY, p.VAR_POSITIONAL)
        prefix = {p.VAR_POSITIONAL: "*", p.VAR_KEYWORD: "**"}.get(p.kind, "")
        kind = "" if p.annotation is p.empty else f": {written(p.annotation)}"
        default = "" if p.default is p.empty else f"{' = ' if kind else '='}{default_of(p)}"
        arguments.append(f"{prefix}{p.name}{kind}{default}")
    returns = signature.return_annotation
    after = "" if isinstance(fn, type) or returns in (signature.empty, None, "None") else f" -> {written(returns)}"
    line = f"{name}({', '.join(arguments)}){after}"
    if len(line) <= WIDTH:
        return line
    return f"{name}(\n" + "".join(f"    {argument},\n" for argument in arguments) + f"){after}"


def written(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)


def test_the_public_names_and_their_signatures_are_those_that_are_listed() -> None:
    held, found = LIST.read_text(encoding="utf-8").splitlines(), listed().splitlines()
    lines = list(difflib.unified_diff(held, found, "listed", "found", n=2, lineterm=""))
    assert not lines, CHANGED.format(lines="\n".join(lines))


# -- where the names are -----------------------------------------------------------------------------------

each_public = pytest.mark.parametrize("module", PUBLIC, ids=lambda module: module.__name__)


@each_public
def test_what_a_module_exports_is_there_once_and_not_private(module: ModuleType) -> None:
    public = PUBLIC[module]
    assert len(public) == len(set(public))
    assert not [name for name in public if name.startswith("_") or isinstance(getattr(module, name), ModuleType)]
    assert set(public) <= set(dir(module))


@pytest.mark.parametrize("module", [engine, states, drivers, metrics, samplers], ids=lambda module: module.__name__)
def test_what_a_package_takes_from_its_files_it_exports(module: ModuleType) -> None:
    taken = {
        alias.asname or alias.name
        for node in ast.walk(ast.parse(re.sub(r"^def .*", "", inspect.getsource(module), flags=re.M | re.S)))
        if isinstance(node, ast.ImportFrom) and node.level
        for alias in node.names
    }
    assert {name for name in taken if not name.startswith("_")} - {"*"} <= {*module.__all__}


def test_everything_that_the_reference_tells_of_is_public_and_everything_public_is_told_of() -> None:
    pages = "".join((reference.FOLDER / f"{page}.md").read_text(encoding="utf-8") for page in reference.pages())
    headings = re.findall(r"^## `(\w+)`$", pages, re.M)
    met = {cls.__name__ for classes in HANDED_OUT.values() for cls, _ in classes}
    assert set(headings) - met == {name.own for name in reference.names().values()}
    assert {name for public in PUBLIC.values() for name in public} == {*reference.names()}


def test_every_error_is_imported_from_a_public_place() -> None:
    assert {*reference.errors()} <= {*reference.names()}


IMPORT = re.compile(r"^ *from (tachograph[\w.]*) import (\([^)]*\)|[^\n#]*)", re.M)


def imported(text: str) -> Iterator[tuple[str, str]]:
    """The names that a text imports from us, each with its module."""
    for module, names in IMPORT.findall(text):
        yield from ((module, name.split(" as ")[0].strip()) for name in names.strip("()").split(",") if name.strip())


def test_the_docs_and_the_examples_import_public_names_only() -> None:
    public = {(module.__name__, name) for module, names in PUBLIC.items() for name in names}
    texts = {name_of(page): "".join(block.text for block in blocks_of(page)) for page in PAGES}
    texts |= {name_of(path): path.read_text(encoding="utf-8") for path in sorted((ROOT / "examples").rglob("*.py"))}
    for where, text in texts.items():
        assert not {*imported(text)} - public, where


LAZY = """
import sys
import tachograph.engine, tachograph.drivers, tachograph.states
from tachograph.engine import Journal, diff, replay, Events, Filter, Callback
heavy = {"torch", "numpy", "rich"}
print(sorted(heavy & sys.modules.keys()))
"""


def test_the_names_that_read_a_run_are_imported_without_torch_numpy_or_rich() -> None:
    printed = subprocess.run([sys.executable, "-c", LAZY], capture_output=True, text=True, check=True).stdout
    assert printed == "[]\n"


# -- the names that code outside of this repository is written against ------------------------------------

TRAINER = """
model, driver, train_dataloader, optimizers, device="cpu", n_epochs=20, validate_dataloaders=None, batch_step_fn=None,
validate_batch_step_fn=None, validate_mode="validate", callbacks=None, metrics=None, validate_every=-1,
input_mapping=None, output_mapping=None, accumulation_steps=1, fp16=False, marker=None, run_dir="auto", seed=None,
precision=None, snapshot_every="epoch", **kwargs
"""
RUN = """
num_train_batch_per_epoch=-1, num_eval_batch_per_dl=-1, num_eval_sanity_batch=2, resume_from=None, resume_training=True,
catch_KeyboardInterrupt=None
"""


def arguments_of(fn: Any) -> list[tuple[str, Any]]:
    return [(name, p.default) for name, p in inspect.signature(fn).parameters.items() if name != "self"]


def written_as(arguments: str) -> list[tuple[str, Any]]:
    made: dict[str, Any] = {}
    exec(f"def f({arguments.strip()}): ...", made)
    return arguments_of(made["f"])


def fits(fn: Any, pinned: str) -> bool:
    """Whether a function begins with the arguments it is pinned to; one that must be given there need not here."""
    found = arguments_of(fn)
    return all(
        name == key and default in (value, inspect.Parameter.empty)
        for (key, value), (name, default) in zip(found, written_as(pinned), strict=False)
    ) and len(found) >= len(written_as(pinned))


def test_the_pinned_names_are_imported_from_their_packages() -> None:
    pinned = {
        "tachograph.engine": "Trainer Evaluator Engine Callback Events Filter Journal replay diff Divergence",
        "tachograph.states": "TrainerState training_machine",
        "tachograph.drivers": "Driver choose_driver",
    }
    for module, names in pinned.items():
        assert {*names.split()} <= {*importlib.import_module(module).__all__}


def test_the_pinned_calls_take_what_they_are_pinned_to_in_its_order() -> None:
    assert fits(Trainer, TRAINER)
    assert fits(Trainer.run, RUN)
    assert fits(Trainer.verify, "run_dir, start=None, stop=None")
    assert fits(Trainer.rewind, "run_dir")
    assert "seq" in inspect.signature(Trainer.rewind).parameters
    assert fits(Trainer.stop, "reason")
    assert fits(Replay.run, "stop=None")
    assert fits(diff, "run_a, run_b")


def test_the_pinned_attributes_are_there(tmp_path: Path) -> None:
    def build(run_dir: Path | None) -> Trainer:
        return Trainer(None, StubDriver(), [1, 2], None, n_epochs=1, run_dir=run_dir, seed=1, progress_bar=None)

    run_dir = tmp_path / "run"
    trainer = build(run_dir)
    heard: list[Any] = []
    build(None).on(Events.on_train_batch_end(every=100), heard.append).remove()
    for target in (Events.on_train_batch_end, "fetch -> epoch_end", "fetch", Stepped):
        trainer.on(target, lambda *given: heard.append(given))
    trainer.on("fetch", lambda trainer: trainer.request_snapshot())
    state = trainer.run()
    assert isinstance(state, TrainerState)
    assert trainer.trainer_state is state
    assert trainer.run_dir == run_dir
    journal = Journal(run_dir)
    assert isinstance(trainer.journal, Journal)
    assert trainer.journal.chain == journal.chain
    for name in ("seq", "source", "event", "dest", "state", "data", "chain", "meta"):
        assert all(hasattr(record, name) for record in journal)
    replay(run_dir).on("step -> fetch", lambda trainer: heard.append(trainer)).run(stop=None)
    assert len(heard) > 4
    assert build(None).verify(run_dir, start=None, stop=None) is None
    again = build(None)
    assert isinstance(again.rewind(run_dir, seq=4), TrainerState)
    assert again.batch == 1
    assert diff(run_dir, run_dir) is None
    assert {"seq", "field", "a", "b", "cause"} <= {field.name for field in attrs.fields(Divergence)}


if __name__ == "__main__":
    LIST.write_text(listed(), encoding="utf-8")
