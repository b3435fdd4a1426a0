"""The curves of `growth.py` and `ranks.py` as one picture: an SVG without anything that a browser lacks.

Its text is text, and its colours follow those that the reader prefers, light or dark.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path

import attrs
from figures import Run, kept, number

WIDTH, HEIGHT = 400, 250  # of a panel
LEFT, RIGHT, TOP, BOTTOM = 46, 116, 34, 40  # around what is drawn in it
STYLE = """
 svg { --ink: #1f2328; --faint: #d1d9e0; --paper: #fff;
  --a: #0969da; --b: #bc4c00; --c: #1a7f37; --d: #8250df; --e: #bf3989 }
 @media (prefers-color-scheme: dark) { svg { --ink: #e6edf3; --faint: #3d444d; --paper: #0d1117;
  --a: #58a6ff; --b: #f0883e; --c: #3fb950; --d: #bc8cff; --e: #f778ba } }
 .paper { fill: var(--paper) }
 text { fill: var(--ink); font: 11px system-ui, sans-serif }
 .title { font-weight: 600; font-size: 12px }
 .grid { stroke: var(--faint) }
 .most { stroke: var(--ink); stroke-dasharray: 4 3 }
 polyline { fill: none; stroke-width: 2 }
"""


Key = tuple[str, str]  # (script, series)
Points = list[tuple[float, float]]


@attrs.frozen
class Panel:
    """One coordinate system.

    Attributes:
        title: what is shown, and in which unit.
        below: what x counts; "{cores}" stands for those of the machine.
        lines: a curve's (script, series) -> what is written beside it.
        log_x, log_y: whether the axis goes by powers of ten.
        most: what is asked for: a dashed line.
    """

    title: str
    below: str
    lines: Mapping[Key, str]
    log_x: bool = False
    log_y: bool = False
    most: float | None = None


PANELS = (
    Panel(
        "A step late in a run, against one of a young run",
        "steps before it",
        {
            ("growth", "stub, against a run that has just begun, by steps"): "stub driver",
            ("growth", "torch, against a run that has just begun, by steps"): "torch, small MLP",
        },
        log_x=True,
        most=1.1,
    ),
    Panel(
        "Resident memory of the process, MB",
        "transitions",
        {("growth", "resident memory, by transitions"): "stub driver"},
    ),
    Panel(
        "An append to the journal, µs",
        "records in it",
        {("growth", "an append, by records"): "stub driver"},
        log_x=True,
    ),
    Panel(
        "Reading a journal while it is written, ms",
        "records in it",
        {
            ("growth", "opening it and its last record, by records"): "its last record",
            ("growth", "a first seek, by records"): "a first seek",
            ("growth", "a seek beside it, by records"): "a seek near it",
        },
        log_x=True,
        log_y=True,
    ),
    Panel(
        "A step with listeners that do nothing, µs",
        "listeners",
        {
            ("growth", "with so many: a listener with every=100, by number"): "every=100",
            ("growth", "with so many: a listener that is given the event, by number"): "given the event",
            ("growth", "with so many: a listener inside a step, by number"): "inside a step",
            ("growth", "with so many: a listener at each batch's end, by number"): "at a batch's end",
            ("growth", "with so many: a callback at each batch's end, by number"): "a callback",
        },
    ),
    Panel(
        "A step of several ranks, µs of a processor",
        "ranks, on {cores} cores",
        {
            ("ranks", "a bare step's processor time, by ranks"): "a bare DDP loop",
            ("ranks", "journal on, above the bare loop, by ranks"): "journal on, above",
            ("ranks", "journal off, above the bare loop, by ranks"): "journal off, above",
        },
    ),
)


@attrs.frozen
class Axis:
    """Where a value lies, in pixels."""

    low: float
    high: float
    begin: float
    end: float
    log: bool

    def __call__(self, value: float) -> float:
        low, high, value = (math.log10(v) if self.log else v for v in (self.low, self.high, value))
        return self.begin + (value - low) / (high - low) * (self.end - self.begin)

    @property
    def ticks(self) -> list[float]:
        if self.log:
            low, high = round(math.log10(self.low)), round(math.log10(self.high))
            return [10.0**n for n in range(low, high + 1)]
        step = _nice((self.high - self.low) / 4)
        return [n * step for n in range(math.ceil(self.low / step), math.floor(self.high / step + 1e-9) + 1)]

    def label(self, value: float) -> str:
        if self.log:
            return {-1: "0.1", 0: "1", 1: "10"}.get(power := round(math.log10(value)), f"10{_raised(power)}")
        return f"{value / 1e6:g} M" if self.high >= 1e6 and value else f"{value:,g}"


def _nice(least: float) -> float:
    """Round up to 1, 2 or 5 of a power of ten."""
    power = 10 ** math.floor(math.log10(least))
    return next(n * power for n in (1, 2, 5, 10) if n * power >= least * 0.999)


def _raised(power: int) -> str:
    return str(power).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))


def _axis(values: list[float], begin: float, end: float, log: bool, zero: bool) -> Axis:
    low, high = min(values), max(values)
    if log:
        low, high = 10.0 ** math.floor(math.log10(low)), 10.0 ** math.ceil(math.log10(high) - 1e-9)
        return Axis(low, high if high > low else low * 10, begin, end, log)
    low = min(low, 0.0) if zero else low
    high = high * 1.1 if zero else high
    return Axis(low, high if high > low else low + 1, begin, end, log)


def _panel(panel: Panel, curves: Mapping[Key, Points], runs: Mapping[str, Run]) -> Iterator[str]:
    """Draw one coordinate system with its corner at (0, 0)."""
    yield f'<text class="title" x="{LEFT}" y="18">{escape(panel.title)}</text>'
    shown = {key: curves[key] for key in panel.lines if curves.get(key)}
    if not shown:
        yield f'<text x="{LEFT}" y="{HEIGHT // 2}">not measured</text>'
        return
    right, floor = WIDTH - RIGHT, HEIGHT - BOTTOM
    xs, ys = ([point[n] for points in shown.values() for point in points] for n in (0, 1))
    x = _axis(xs, LEFT, right, panel.log_x, zero=False)
    y = _axis([*ys, panel.most or ys[0]], floor, TOP, panel.log_y, zero=True)
    for tick in y.ticks:
        yield f'<line class="grid" x1="{LEFT}" x2="{right}" y1="{y(tick):.1f}" y2="{y(tick):.1f}"/>'
        yield f'<text x="{LEFT - 6}" y="{y(tick) + 4:.1f}" text-anchor="end">{y.label(tick)}</text>'
    for tick in sorted({*xs}) if not panel.log_x and len({*xs}) < 6 else x.ticks:
        yield f'<text x="{x(tick):.1f}" y="{floor + 16}" text-anchor="middle">{x.label(tick)}</text>'
    below = panel.below.format(cores=runs[next(iter(shown))[0]].about["cores"])
    yield f'<text x="{(LEFT + right) / 2}" y="{floor + 32}" text-anchor="middle">{escape(below)}</text>'
    if panel.most is not None:
        at = f"{y(panel.most):.1f}"
        yield f'<line class="most" x1="{LEFT}" x2="{right}" y1="{at}" y2="{at}"/>'
        yield f'<text x="{right + 8}" y="{y(panel.most) + 4:.1f}">at most {panel.most:g}</text>'
    yield from _lines(panel, shown, x, y)


def _lines(panel: Panel, shown: Mapping[Key, Points], x: Axis, y: Axis) -> Iterator[str]:
    taken: list[float] = [] if panel.most is None else [y(panel.most) + 4]
    named = dict(zip(panel.lines, "abcde", strict=False))
    for key in sorted(shown, key=lambda key: y(shown[key][-1][1])):  # from above, so that labels make way downwards
        colour = f"var(--{named[key]})"
        points = [(x(a), y(b)) for a, b in shown[key]]
        drawn = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
        yield f'<polyline points="{drawn}" style="stroke: {colour}"/>'
        if len(points) <= 8:
            for (a, b), (at, value) in zip(points, shown[key], strict=True):
                told = escape(f"{number(at)}: {number(value)}")
                yield f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3" style="fill: {colour}"><title>{told}</title></circle>'
        place = points[-1][1] + 4
        while any(abs(place - other) < 13 for other in taken):
            place += 1
        taken.append(place)
        label = escape(panel.lines[key])
        yield f'<text x="{WIDTH - RIGHT + 8}" y="{place:.1f}" style="fill: {colour}">{label}</text>'


def curves_of(runs: Mapping[str, Run]) -> dict[Key, Points]:
    """Collect the points of every curve."""
    found: dict[Key, Points] = {}
    for script, run in runs.items():
        for figure in run.figures:
            if figure.series:
                found.setdefault((script, figure.series), []).append((figure.x, figure.value))
    return found


def picture(runs: Mapping[str, Run]) -> str:
    """Return the picture of some figures."""
    curves, width, height = curves_of(runs), 2 * WIDTH, HEIGHT * ((len(PANELS) + 1) // 2)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" role="img">',
        "<title>What grows with a run's length, its journal, its listeners and its ranks</title>",
        f"<style>{STYLE}</style>",
        f'<rect class="paper" width="{width}" height="{height}"/>',
    ]
    for place, panel in enumerate(PANELS):
        parts.append(f'<g transform="translate({WIDTH * (place % 2)} {HEIGHT * (place // 2)})">')
        parts += [*_panel(panel, curves, runs), "</g>"]
    return "\n".join([*parts, "</svg>", ""])


def draw(path: Path) -> None:
    """Draw what is kept."""
    path.write_text(picture(kept()), encoding="utf-8")
