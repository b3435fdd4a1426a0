"""The form of all that is measured here: a name, a value, a unit, what was asked for; and the file they are kept in.

A script has `measure(options) -> list[Figure]`, and ends with

    def main() -> None:
        options = parser(__doc__)
        options.add_argument("--rounds", type=int, default=40)
        finish(measure, options.parse_args())

so that each takes `--json FILE` and `--quick` (as short as it can be, to see that it works), and prints its figures.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import attrs

_BEGAN = (time.time(), os.getloadavg())  # of the process, since this is imported first
KEPT = Path(__file__).with_name("figures.json")
"""The last figures of every script: what the tables and the plot are made of."""
_DISTRIBUTIONS = ("torch", "numpy", "attrs", "msgspec", "transitions")


@attrs.frozen
class Figure:
    """One thing that was measured.

    Attributes:
        name: what, within the script; its row's name in the tables, hence stable.
        value: how much.
        unit: of the value and of the budget: "µs", "s", "B", "records/s", "of ignite's"; "" for a plain number.
        budget: what is asked for; None: nothing is.
        better: "less": the value may be at most the budget; "more": at least.
        note: what a reader must know of it: of how many, compared with what.
        series: the curve it is a point of; "": none. See `curve`.
        x: where on the curve.
    """

    name: str
    value: float = attrs.field(converter=float)
    unit: str = ""
    budget: float | None = attrs.field(default=None, converter=attrs.converters.optional(float))
    better: str = attrs.field(default="less", validator=attrs.validators.in_(("less", "more")))
    note: str = ""
    series: str = ""
    x: float = 0.0

    @property
    def met(self) -> bool | None:
        """Whether the budget is met; None where there's none."""
        if self.budget is None:
            return None
        return self.value <= self.budget if self.better == "less" else self.value >= self.budget

    @property
    def missed_by(self) -> float:
        """How far from the budget it is, in its unit; 0 where it is met or there's none."""
        return 0.0 if self.budget is None or self.met else abs(self.value - self.budget)

    @property
    def asked(self) -> str:
        """The budget as it is written."""
        sign = "≤" if self.better == "less" else "≥"
        return "" if self.budget is None else f"{sign} {number(self.budget, self.unit)}"

    @property
    def measured(self) -> str:
        """The value as it is written."""
        return number(self.value, self.unit)

    @property
    def verdict(self) -> str:
        """Whether it is met, or by how much it is missed; "" where there's no budget."""
        if self.met is None:
            return ""
        if self.met:
            return "met"
        share = f", {self.missed_by / self.budget:.0%}" if self.budget else ""
        return f"missed by {number(self.missed_by, self.unit)}{share}"


def curve(series: str, points: Mapping[float, float], unit: str, of: str = "", note: str = "") -> list[Figure]:
    """Return the points of a curve: x -> value; `of` is what x counts."""
    series = f"{series}, by {of}" if of else series
    return [Figure(f"{series}: {number(x)}", y, unit, note=note, series=series, x=x) for x, y in points.items()]


@attrs.frozen
class Run:
    """The figures of one run of a script, and where they were made.

    Attributes:
        figures: what was measured.
        about: when, how long, the versions, the machine and its load.
    """

    figures: tuple[Figure, ...] = attrs.field(converter=tuple)
    about: dict[str, Any] = attrs.field(factory=lambda: about())


def number(value: float, unit: str = "") -> str:
    """Write a number with three digits that count, and its unit."""
    if value != value or value in (float("inf"), float("-inf")):
        told = str(value)
    elif value == int(value) or abs(value) >= 1000:
        told = f"{value:,.0f}"
    else:
        size = abs(float(f"{value:.3g}"))
        told = f"{value:.{0 if size >= 100 else 1 if size >= 10 else 2 if size >= 0.1 else 3}f}"
    return f"{told} {unit}".rstrip()


def about() -> dict[str, Any]:
    """Tell when and where figures are made."""
    at, before = _BEGAN
    return {
        "at": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(at)),
        "seconds": round(time.time() - at, 1),
        "cpu": _cpu(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "load": [round(before[0], 2), round(os.getloadavg()[0], 2)],
        "versions": {"python": platform.python_version(), **dict(_versions())},
    }


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def _versions() -> Iterator[tuple[str, str]]:
    for name in _DISTRIBUTIONS:
        try:
            yield name, version(name)
        except PackageNotFoundError:
            continue


def save(figures: Iterable[Figure] | Run, path: str | Path) -> None:
    """Write figures as JSON, with the versions, the machine, and its load at the beginning and at the end."""
    run = figures if isinstance(figures, Run) else Run(tuple(figures))
    Path(path).write_text(json.dumps(_told(run), indent=1, ensure_ascii=False) + "\n")


def load(path: str | Path) -> Run:
    """Read what `save` wrote."""
    return _run(json.loads(Path(path).read_text()))


def _told(run: Run) -> dict[str, Any]:
    return {"about": run.about, "figures": [attrs.asdict(figure, filter=_is_told) for figure in run.figures]}


def _is_told(attribute: attrs.Attribute[Any], value: Any) -> bool:
    return attribute.default is attrs.NOTHING or value != attribute.default


def _run(told: Mapping[str, Any]) -> Run:
    return Run(tuple(Figure(**figure) for figure in told["figures"]), told["about"])


def parser(doc: str | None) -> argparse.ArgumentParser:
    """Return a parser that says what the script says of itself, and has what all of them take."""
    made = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--json", type=Path, metavar="FILE", help="write the figures there as well")
    made.add_argument("--quick", action="store_true", help="as short as it can be: to see that it works")
    return made


def finish(measure: Callable[[argparse.Namespace], Sequence[Figure]], options: argparse.Namespace) -> None:
    """Measure, print the figures, and keep them where `--json` says."""
    run = Run(tuple(measure(options)))
    show(run.figures)
    if options.json is not None:
        save(run, options.json)


def show(figures: Iterable[Figure]) -> None:
    """Print figures as a table, a curve in one row."""
    rows = list(rows_of(figures))
    columns = zip(*(row for row in rows if ": " not in row[1]), strict=True)  # a curve is as long as it is
    widths = [max(map(len, column)) for column in columns] or [0] * 5
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=False)).rstrip())


def rows_of(figures: Iterable[Figure]) -> Iterator[tuple[str, str, str, str, str]]:
    """Yield the cells of a table: what, measured, asked, met or not, note; a curve is one row."""
    for series, held in itertools.groupby(figures, lambda figure: figure.series):
        some = list(held)
        if series:
            points = "; ".join(f"{number(f.x)}: {number(f.value)}" for f in some)
            yield series, f"{points} {some[0].unit}".rstrip(), "", "", some[0].note
        else:
            yield from ((f.name, f.measured, f.asked, f.verdict, f.note) for f in some)


def quartiles(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the lower quartile, the median and the upper quartile; of a single value, itself three times."""
    if len(values) < 2:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


def kept() -> dict[str, Run]:
    """Read the last figures of every script."""
    held = json.loads(KEPT.read_text()) if KEPT.exists() else {}
    return {script: _run(told) for script, told in held.items()}


def keep(runs: Mapping[str, Run]) -> None:
    """Write the last figures of every script."""
    told = {script: _told(run) for script, run in sorted(runs.items())}
    KEPT.write_text(json.dumps(told, indent=1, ensure_ascii=False) + "\n")
