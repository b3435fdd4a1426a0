"""Writes the API reference: every public name with its signature, and its docstring as Markdown.

The packages are asked at run time, not their source: second names, properties that mirror `trainer_state` and lazily
fetched names exist only there. A page of `docs/reference` is found by where a name lives, so a new one needs nothing.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import itertools
import pkgutil
import re
import sys
import textwrap
from collections.abc import Callable, Iterator
from functools import cache, partial
from pathlib import Path
from types import FunctionType, ModuleType, UnionType
from typing import Any, TypeVar, get_args

import attrs

from tachograph import drivers, engine, states
from tachograph.drivers import contract, hashing, metrics, samplers
from tachograph.engine import Callback, bundle, exports, journal, report, testing
from tachograph.engine import contract as run_contract
from tachograph.engine.callbacks.callback import MOMENTS
from tachograph.engine.finders import FoundLR
from tachograph.engine.listeners import Handle
from tachograph.engine.replay import Replay
from tachograph.engine.resume import ResumeReport
from tachograph.engine.user_state import State
from tachograph.states import TachographError
from tests.docstrings import Doc, doc_of, one_line
from tests.test_house import MODULES, ROOT

FOLDER = ROOT / "docs" / "reference"
PACKAGES: tuple[ModuleType, ...] = (engine, states, drivers, exports, report, bundle, testing, contract)
"""All names that they export are public; the samplers and metrics stand in `drivers` too."""
PUBLIC: dict[ModuleType, tuple[str, ...]] = {
    **{package: tuple(package.__all__) for package in (*PACKAGES, metrics, samplers)},
    # modules with more in them than is promised
    hashing: ("HashedFile", "write_bytes"),
    run_contract: ("RunContract",),
    journal: (
        "Damage",
        "Journal",
        "JournalBusy",
        "JournalCorrupt",
        "JournalError",
        "JournalFormat",
        "JournalWriteError",
        "JournalWriter",
        "Note",
        "Notes",
        "add_note",
        "read_notes",
        "withdraw_note",
    ),
}
"""module -> the names in it that users may import; nothing else is anybody's promise."""

PAGES = (
    # where a name's module begins so, it stands on that page; the first that fits and is there counts
    ("engine.callbacks.callback", "listening"),
    ("engine.callbacks", "callbacks"),
    ("engine.events", "listening"),
    ("engine.evaluator", "evaluator"),
    ("engine.journal", "journal"),
    ("engine.replay", "journal"),
    ("engine.diff", "journal"),
    ("engine.comparison", "journal"),
    ("engine.contract", "drivers"),
    ("engine.exports", "debugger"),
    ("engine.report", "debugger"),
    ("engine.bundle", "debugger"),
    ("engine.testing", "debugger"),
    ("engine", "trainer"),
    ("states", "states"),
    ("drivers.samplers", "samplers"),
    ("drivers.metrics", "metrics"),
    ("drivers", "drivers"),
)
HANDED_OUT: dict[str, tuple[tuple[type, str], ...]] = {
    # what isn't imported but met: the class, and where from
    "trainer": (
        (State, "`trainer.state`"),
        (ResumeReport, "given to the listeners of `on_after_resume`"),
        (FoundLR, "returned by `trainer.find_lr()`"),
    ),
    "listening": ((Handle, "returned by `trainer.on(target, fn)`"),),
    "journal": (
        (Replay, "returned by `replay(run_dir)`"),
        (journal.Record, "what a `Journal` gives"),
        (journal.SideRecord, "what `Journal.sides()` gives"),
        (journal.Incarnation, "what `Journal.incarnations` holds"),
    ),
}
NAMED = re.compile(r"`(\w+)((?:\.\w+|\([^`]*\))*)`")


# -- the names -----------------------------------------------------------------------------------------------


def pages() -> list[str]:
    """The pages of `docs/reference` that are written so."""
    return [each for each in dict.fromkeys(page for _, page in PAGES) if (FOLDER / f"{each}.md").is_file()]


@attrs.frozen
class Name:
    """A public name.

    Attributes:
        name: as it is imported.
        package: where from.
        value: what it is.
        home: the module it lives in, as "engine.trainer".
        own: its own name; another one means that this is an alias.
    """

    name: str
    package: str
    value: Any
    home: str
    own: str

    @property
    def page(self) -> str:
        return next(page for begin, page in PAGES if page in pages() and f"{self.home}.".startswith(f"{begin}."))


@cache
def names() -> dict[str, Name]:
    """Every public name, sorted."""
    found: dict[str, Name] = {}
    for package, public in PUBLIC.items():
        for name in public:
            found.setdefault(name, named(package, name))
    return {each.name: each for each in sorted(found.values(), key=lambda each: (each.name.lower(), each.name))}


def named(package: ModuleType, name: str) -> Name:
    value = getattr(package, name)
    home = value.__module__ if isinstance(value, (type, FunctionType)) else home_of_constant(package, name)
    own = value.__name__ if isinstance(value, (type, FunctionType)) else name
    return Name(name, package.__name__, value, home.removeprefix("tachograph."), own)


def home_of_constant(package: ModuleType, name: str) -> str:
    folder = ROOT.joinpath(*package.__name__.split(".")[1:])
    (path,) = [p for p in MODULES if folder in p.parents and name in constants_of(p)]
    return ".".join(("tachograph", *path.relative_to(ROOT).with_suffix("").parts))


@cache
def constants_of(path: Path) -> dict[str, str]:
    """The constants of a module that have a docstring, a string below them."""
    body = ast.parse(path.read_text(encoding="utf-8")).body
    found = {}
    for node, below in itertools.pairwise(body):
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        if isinstance(target, ast.Name) and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
            found[target.id] = str(below.value.value)
    return found


def doc_of_name(name: Name) -> Doc:
    if isinstance(name.value, type):
        return doc_of_class(name.value)
    if isinstance(name.value, FunctionType):
        return doc_of(name.value)
    return doc_of(constants_of(ROOT / Path(*name.home.split(".")).with_suffix(".py"))[name.name])


# -- what is written -----------------------------------------------------------------------------------------


def address_of(name: Name, here: str = "") -> str:
    """Where a name is told of, as a link from another page of the reference or from the same one."""
    own = names()[name.own]
    page = "" if here in names() and names()[here].page == own.page else f"{own.page}.md"
    return f"{page}#{own.name.lower()}"


def linked(text: str, here: str = "") -> str:
    """A text with its public names linked, as the section on `here` links them; Markdown finds nothing else in it."""

    def link(match: re.Match[str]) -> str:
        name = names().get(match[1])
        if match[1] == here or (name is None and match[1] not in errors()):
            return match[0]
        return f"[{match[0]}]({'errors.md' if name is None else address_of(name, here)})"

    return re.sub(r"`[^`]*`", lambda code: NAMED.sub(link, code[0]), escaped(text))


def escaped(text: str) -> str:
    """A text in which Markdown finds nothing but code."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else re.sub(r"([*<])", r"\\\1", part) for part in parts)


def prose_of(doc: Doc, here: str) -> Iterator[str]:
    """The prose of a docstring: paragraphs on one line each, examples and lists as they are."""
    for paragraph in doc.prose.split("\n\n"):
        if paragraph.startswith(">>> "):
            yield f"```pycon\n{paragraph}\n```"
        elif paragraph.startswith("    "):
            yield f"```text\n{textwrap.dedent(paragraph)}\n```"
        elif paragraph.startswith("- "):
            entries = re.split(r"^- ", paragraph, flags=re.M)[1:]
            yield "\n".join(f"- {linked(one_line(entry), here)}" for entry in entries)
        elif paragraph:
            yield linked(one_line(paragraph), here)


def parameters_of(fn: Any) -> dict[str, inspect.Parameter]:
    """What a function or a class is called with; nothing where it isn't called, or Python doesn't say."""
    try:
        held = inspect.signature(fn).parameters
    except (TypeError, ValueError):
        return {}
    bound = isinstance(fn, FunctionType) and "." in fn.__qualname__
    return {name: p for name, p in held.items() if not (bound and name in ("self", "cls"))}


def default_of(parameter: inspect.Parameter) -> str:
    value = parameter.default
    if callable(value) and hasattr(value, "__name__"):
        return str(value.__name__)
    if isinstance(value, attrs.Factory):  # type: ignore[arg-type]
        return f"{value.factory.__name__}()"
    if isinstance(value, (set, frozenset)) and value:
        return f"{{{', '.join(sorted(map(repr, value)))}}}"  # in one order, whatever the strings' hashes are
    return repr(value).replace("NOTHING", "...")


def call_of(name: str, fn: Any) -> str:
    """A signature without types: these stand beside the arguments."""
    return f"{name}({', '.join(arguments_of(fn))})"


def arguments_of(fn: Any) -> list[str]:
    told: list[str] = []
    star = False
    for key, p in parameters_of(fn).items():
        prefix = {p.VAR_POSITIONAL: "*", p.VAR_KEYWORD: "**"}.get(p.kind, "")
        if p.kind is p.KEYWORD_ONLY and not star:
            told.append("*")
        star = star or p.kind in (p.KEYWORD_ONLY, p.VAR_POSITIONAL)
        told.append(f"{prefix}{key}" if p.default is p.empty else f"{key}={default_of(p)}")
    return told


def wrapped(name: str, fn: Any, width: int = 100) -> str:
    """A signature, over several lines where one isn't enough."""
    call = call_of(name, fn)
    if len(call) <= width:
        return call
    lines = textwrap.wrap(", ".join(each.replace(" ", "\0") for each in arguments_of(fn)), width - 4)
    return f"{name}(\n{textwrap.indent(chr(10).join(lines), '    ')}\n)".replace("\0", " ")


def sections_of(doc: Doc, here: str, fn: Any = None, indent: str = "") -> Iterator[str]:
    """The sections of a docstring as a list, one line an entry."""
    for title in doc.sections:
        yield from section_of(doc, title, here, fn, indent)


def section_of(doc: Doc, title: str, here: str, fn: Any, indent: str = "") -> Iterator[str]:
    raises = "raises " if indent else ""
    parameters = parameters_of(fn) if fn is not None else {}
    for name, said in doc.sections[title]:
        if title in ("Returns", "Yields"):
            what = title.lower()
        elif title == "Raises":
            what = f"{raises}{linked(', '.join(f'`{kind}`' for kind in name.split(', ')), here)}"
        else:
            what = ", ".join(typed(each, parameters.get(each.lstrip("*")), fn) for each in name.split(", "))
        yield f"{indent}- {what}: {linked(said, here)}"


def typed(name: str, parameter: inspect.Parameter | None, fn: Any) -> str:
    """An argument and its type; one that may be anything, or is whatever the caller gives, has none."""
    kind = "Any" if parameter is None or parameter.annotation is parameter.empty else parameter.annotation
    spelt = spelt_out(kind if isinstance(kind, str) else inspect.formatannotation(kind), fn)
    return f"`{name}`" if spelt == "Any" else f"`{name}: {spelt}`"


def spelt_out(kind: str, fn: Any) -> str:
    """A type in which names that only its module knows are replaced by what they stand for."""
    written = fn.__init__ if isinstance(fn, type) else fn
    there = {**vars(sys.modules[fn.__module__]), **getattr(written, "__globals__", {})} if fn is not None else {}
    for name in re.findall(r"\b[A-Z]\w*\b(?!\.)", re.sub(r"'[^']*'", "", kind)):
        known = there.get(name)
        if isinstance(known, TypeVar):
            return "Any"
        if isinstance(known, UnionType) or get_args(known):
            kind = re.sub(rf"\b{name}\b", re.sub(r"\b(?:\w+\.)+(?=\w)", "", str(known)), kind)
    return kind


def hidden_bases(cls: type) -> list[type]:
    """The bases of a class that have no place of their own here, so that what they bring is told with the class."""
    public = [each.value for each in names().values() if isinstance(each.value, type)]
    return [base for base in cls.__mro__[1:] if base.__module__.startswith("tachograph.") and base not in public]


def doc_of_class(cls: type) -> Doc:
    """A class's docstring, with the attributes of its hidden bases, and their arguments if it takes the same."""
    doc = doc_of(cls)
    sections = {title: list(entries) for title, entries in doc.sections.items()}
    for base in hidden_bases(cls):
        more = doc_of(base).sections
        same = "__init__" not in vars(cls) and cls.__init__ is base.__init__  # type: ignore[misc]
        for title in ("Args", "Attributes", "Raises"):
            if title == "Attributes" or (same and title not in doc.sections):
                sections.setdefault(title, []).extend(more.get(title, ()))
    order = ("Args", "Attributes", "Raises")
    return Doc(doc.prose, {title: sections[title] for title in order if sections.get(title)})


def members_of(cls: type) -> Iterator[tuple[str, Any]]:
    """What a class adds to its public bases: methods and properties with a docstring of their own, in their order."""
    told: set[str] = set()
    for base in (cls, *hidden_bases(cls)):
        for name, held in vars(base).items():
            value = held.__func__ if isinstance(held, (staticmethod, classmethod)) else held
            fit = isinstance(value, property) or (isinstance(value, FunctionType) and value.__name__ == name)
            hidden = name.startswith("_") or name in told or (cls is Callback and name in MOMENTS)
            if fit and value.__doc__ and not hidden:
                told.add(name)
                yield name, value


def member(name: str, value: Any, here: str) -> Iterator[str]:
    doc = doc_of(value)
    abstract = "*Abstract.* " if getattr(value, "__isabstractmethod__", False) else ""
    call = f".{name}" if isinstance(value, property) else f".{call_of(name, value)}"
    yield f"- **`{call}`**: {abstract}{' '.join(prose_of(doc, here))}"
    yield from sections_of(doc, here, None if isinstance(value, property) else value, "  ")


def section(name: str, value: Any, doc: Doc, met: str = "") -> str:
    """The part of a page on one name."""
    parts = [f"## `{name}`"]
    if met:
        parts.append(f"Not imported: {met}.")
    elif isinstance(value, FunctionType) or (arguments_of(value) and not is_event_or_error(value)):
        parts.append(f"```py\n{wrapped(name, value)}\n```")
    others = [each.name for each in names().values() if each.own == name and each.name != name]
    parts.extend(prose_of(doc, name))
    if others:
        parts.append(f"Second names: {', '.join(f'`{other}`' for other in others)}.")
    public = [n.name for n in names().values() if n.value in getattr(value, "__mro__", ())[1:] and n.name == n.own]
    nearest = min(public, key=lambda base: value.__mro__.index(names()[base].value), default="Callback")
    if nearest != "Callback" and not is_event_or_error(value):
        parts.append(f"And all that {linked(f'`{nearest}`', name)} has.")
    told = {title: list(section_of(doc, title, name, None if met else value)) for title in doc.sections}
    if isinstance(value, type):
        told["Methods and properties"] = [line for key, held in members_of(value) for line in member(key, held, name)]
    for title, lines in told.items():
        if title in ("Returns", "Yields"):
            parts.append(f"**{title}** {lines[0].partition(': ')[2]}")
        elif lines:
            parts.append(f"**{'Arguments' if title == 'Args' else title}**\n\n" + "\n".join(lines))
    return "\n\n".join(parts)


def is_event_or_error(value: Any) -> bool:
    return isinstance(value, type) and issubclass(value, (states.Event, BaseException))


def page(which: str) -> str:
    """All names of one page, then what is handed out."""
    told = [section(n.name, n.value, doc_of_name(n)) for n in names().values() if n.page == which and n.name == n.own]
    told += [section(cls.__name__, cls, doc_of_class(cls), met) for cls, met in HANDED_OUT.get(which, ())]
    return "\n" + "\n\n".join(told) + "\n\n"


def table_of_names() -> str:
    """One line a name."""
    lines = ["| name | from | what it is |", "|---|---|---|"]
    for name in names().values():
        said = doc_of_name(name).first if name.name == name.own else f"Second name of `{name.own}`"
        where = f"[`{name.name}`]({address_of(name)})"
        lines.append(f"| {where} | `{name.package}` | {in_a_cell(linked(said))} |")
    return "\n".join(lines) + "\n"


def in_a_cell(text: str) -> str:
    return text.replace("|", "\\|")


@cache
def errors() -> dict[str, type[TachographError]]:
    """Every error of our own by its name, a kind before its kinds."""
    for package in PACKAGES:
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    found: dict[str, type[TachographError]] = {}

    def add(kind: type[TachographError]) -> None:
        if kind.__module__.startswith("tachograph.") and kind.__name__ not in found:
            found[kind.__name__] = kind
            for sub in sorted(kind.__subclasses__(), key=lambda each: each.__name__):
                add(sub)

    add(TachographError)
    return found


def table_of_errors() -> str:
    lines = ["| error | a kind of | from | what it says |", "|---|---|---|---|"]
    for name, kind in errors().items():
        bases = ", ".join(f"`{base.__name__}`" for base in kind.__bases__)
        said = in_a_cell(linked(doc_of(kind).first))
        where = f"[`{name}`]({address_of(names()[name])})"
        lines.append(f"| {where} | {bases} | `{names()[name].package}` | {said} |")
    return "\n".join(lines) + "\n"


PURPOSES = (
    # what a callback is for, by what is in its name, and the page that shows its use; the first that fits counts
    ("to keep and restore", r"Snapshot|Checkpoint|Save|LoadBest|Topk", "checkpoints"),
    ("to evaluate", r"Evaluat|Better", "evaluation"),
    ("to end a run", r"Stop|Limit", "limits"),
    ("to guard", r"Guard", "optimisation"),
    ("to find out", r"Fingerprint|Profil|Anomaly|Finder", "debugging"),
    ("to measure", r"Timer|Norm|Summary|\w+Monitor$", "optimisation"),
    ("to optimise", r"LR|Sched|Warmup|Clip|EMA|Averag|Freez", "optimisation"),
    ("to show", r"Progress|Rich|Raw|Tqdm", "progress"),
    ("to log", r"Log|CSV|TensorBoard|W[aA]ndB|Wandb|MLflow", "logging"),
    ("for more", "", ""),
    ("to build on", "$^", "listeners"),
)


def purpose_of(name: Name) -> str:
    if doc_of_name(name).first.startswith("The base of"):
        return "to build on"
    return next(purpose for purpose, words, _ in PURPOSES if re.search(words, name.name))


def table_of_callbacks() -> str:
    """The ready-made callbacks by what they are for, for a page beside the reference."""
    found = [n for n in names().values() if isinstance(n.value, type) and issubclass(n.value, Callback)]
    found = [n for n in found if n.name == n.own and n.value is not Callback]
    lines = ["|  | callback | what it does |", "|---|---|---|"]
    for purpose, _, shown in PURPOSES:
        label = f"[{purpose}]({shown}.md)" if (FOLDER.parent / f"{shown}.md").is_file() else purpose
        for i, name in enumerate(each for each in found if purpose_of(each) == purpose):
            others = ", ".join(f"`{o.name}`" for o in names().values() if o.own == name.name and o is not name)
            said = escaped(doc_of_name(name).first) + "." + (f" Also named {others}." if others else "")
            link = f"[`{name.name}`](reference/{address_of(name)})"
            lines.append(f"| {'' if i else f'**{label}**'} | {link} | {in_a_cell(said)} |")
    return "\n".join(lines) + "\n"


def parts() -> dict[str, Callable[[], str]]:
    """What the docs' generated parts are called -> how each is made."""
    return {
        **{f"reference: {which}": partial(page, which) for which in pages()},
        "all public names": table_of_names,
        "all errors": table_of_errors,
        "the callbacks": table_of_callbacks,
    }
