"""The page: a frame, its styles, its program and the runs, in one file that asks nobody for anything.

What comes from a run goes in as JSON and as base64 only, in elements that a browser doesn't run, and with every
character escaped that could end one. The policy in the page's head allows the one program by its digest, and nothing
from elsewhere.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import os
import re
import time
from collections.abc import Iterable, Iterator, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import attrs

from tachograph.engine import recording
from tachograph.engine.diff import Divergence, diff
from tachograph.states import CallerError, TachographError

from .telling import Told, plain, tell

_PROGRAM = (
    *("inflate", "boxes", "run", "words", "elements", "machine", "sight", "canvas", "plot", "band"),
    *("tables", "page", "card", "bar", "main"),
)
"""The parts of the page's program, in their order; they become one function."""
_PLACE = re.compile(r"<!-- (\w+) -->")


@attrs.frozen(kw_only=True)
class Written:
    """A page that was written.

    Attributes:
        path: the file.
        size: in bytes.
        transitions: of all runs.
        left_out: blocks of records that there was no room for.
        divergences: of each run but the first, where it parts from the first; None where it doesn't.
    """

    path: Path
    size: int
    transitions: int
    left_out: int
    divergences: tuple[Divergence | None, ...]


def report(
    run_dirs: str | Path | Sequence[str | Path],
    path: str | Path = "report.html",
    *,
    rank: int | None = None,
    salvage: bool = False,
) -> Written:
    """Write a page about a run, or about several side by side.

    Args:
        run_dirs: a run directory, or several; each but the first is compared with the first.
        path: the file to write; it is there whole or not at all.
        rank: whose journal is shown; None for the lowest rank's.
        salvage: pass over what is damaged in a journal.

    Raises:
        CallerError: no run directory was given, or one twice.
        NotARun: one isn't a run directory.
        JournalError: a journal can't be read.
        OSError: the file can't be written.
    """
    given = [run_dirs] if isinstance(run_dirs, (str, Path)) else list(run_dirs)
    runs = [Path(run_dir) for run_dir in given]
    _check(runs, Path(path))
    abouts = [recording.load(run_dir) for run_dir in runs]
    compared = [_compared(runs[0], run_dir, rank) for run_dir in runs[1:]]
    seqs = [found.seq for found, _ in compared if found is not None]
    told = [
        tell(run_dir, about, rank=rank, salvage=salvage, diverged=seqs)
        for run_dir, about in zip(runs, abouts, strict=True)
    ]
    size = _write(Path(path), _page(told, compared))
    return Written(
        path=Path(path),
        size=size,
        transitions=sum(run.transitions for run in told),
        left_out=sum(run.left_out for run in told),
        divergences=tuple(found for found, _ in compared),
    )


def _check(runs: Sequence[Path], path: Path) -> None:
    if not runs:
        raise CallerError("a report needs at least one run directory")
    if len({run.resolve() for run in runs}) < len(runs):
        raise CallerError("a report compares different runs, and one of these was given twice")
    if any(_is_part(path.resolve(), run.resolve()) for run in runs):
        raise CallerError(f"{path} is a part of the run: name another file")
    if path.is_dir():
        raise CallerError(f"{path} is a directory: name a file, {path / 'report.html'} for example")


def _is_part(path: Path, run: Path) -> bool:
    folders = {run / "journal", run / "snapshots"} & set(path.parents)
    return bool(folders) or path in (run / "run.json", run / "notes.jsonl")


def _compared(first: Path, other: Path, rank: int | None) -> tuple[Divergence | None, str]:
    """Find where two runs part; where they can't be compared, say why."""
    try:
        return diff(first, other, rank="all" if rank is None else rank), ""
    except TachographError as error:
        return None, str(error)


def _page(told: Sequence[Told], compared: Sequence[tuple[Divergence | None, str]]) -> Iterator[str]:
    style, program = _text("page.css"), _program()
    policy = (
        f"default-src 'none'; script-src '{_digest(program)}'; style-src '{_digest(style)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    facts = {
        "written": time.time(),
        "runs": [run.facts for run in told],
        "compared": [
            {"divergence": None if found is None else _divergence(found), "fault": fault} for found, fault in compared
        ],
    }
    places = {
        "title": html.escape(_storable(", ".join(run.run_dir.name or str(run.run_dir) for run in told))),
        "policy": policy,
        "style": f"<style>{style}</style>",
        "facts": _json("facts", facts),
        "program": f"<script>{program}</script>",
    }
    for i, part in enumerate(_PLACE.split(_text("page.html"))):
        if i % 2 == 0:
            yield part
        elif part == "boxes":
            yield from _boxes(told)
        else:
            yield places[part]


def _boxes(told: Sequence[Told]) -> Iterator[str]:
    for number, run in enumerate(told):
        yield _box(f"outline-{number}", run.outline)
        yield _box(f"curves-{number}", run.curves)
        yield _box(f"prints-{number}", run.prints)
        for place, box in enumerate(run.records):
            if box:
                yield _box(f"records-{number}-{place}", box)


def _divergence(found: Divergence) -> dict[str, Any]:
    return plain(attrs.asdict(found, recurse=False))  # type: ignore[no-any-return]


def _program() -> str:
    parts = "\n".join(_text(f"{name}.js") for name in _PROGRAM)
    return f'(() => {{\n"use strict";\n{parts}\n}})();\n'


def _text(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _json(name: str, value: Any) -> str:
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)  # ASCII only, lone surrogates escaped
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return f'<script type="application/json" id="{name}">{text}</script>\n'


def _box(name: str, text: str) -> str:
    return f'<script type="application/octet-stream" id="{name}">{text}</script>\n'


def _storable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def _write(path: Path, parts: Iterable[str]) -> int:
    """Write a file under another name first, so that a page which is there stays until the new one is whole."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.writelines(parts)
        size = temporary.stat().st_size
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return size
