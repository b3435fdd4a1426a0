"""The machine of a run as a drawing: where its states and arrows lie.

The training machine has a layout of its own; a user's machine is laid out in layers, by how far each state is from the
first. Arrows are straight, and bend where another state is in the way.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import attrs

from tachograph.states.table import FINAL, Plan

_TRAINING = {
    "init": (0, 0),
    "epoch_begin": (1, 0),
    "fetch": (2, 0),
    "step": (3, 0),
    "sanity_check": (0, 1),
    "epoch_end": (1, 1),
    "validate": (2, 1),
    "exception": (3, 2),
    "done": (1, 2),
}
_COLUMN, _ROW = 178, 92  # from one state to the next
_HALF_HEIGHT = 17
_MARGIN = 14
_APART = 7  # half the distance of two arrows between the same states
_AROUND = ((-1, -10), (1, 3))
"""The corners of a text around the middle of its line: the side, and how far up or down."""
_BENDS = (0, 36, -36, 72, -72, 110, -110, 150, -150)
Point = tuple[float, float]
Pair = tuple[str, str]


@attrs.frozen
class Node:
    """A state's place: the middle of its box, and half of the box's width."""

    name: str
    x: float
    y: float
    half: float

    def holds(self, point: Point, more: float = 0.0) -> bool:
        """Say whether a point lies in the box, or in one that is larger by `more` on each side."""
        return abs(point[0] - self.x) <= self.half + more and abs(point[1] - self.y) <= _HALF_HEIGHT + more


@attrs.frozen
class Arrow:
    """An arrow from a state to another one.

    Attributes:
        path: as SVG writes it.
        label: what stands on it.
        at: where.
        through: points on it, the last two at its tip.
    """

    source: str
    dest: str
    path: str
    label: str
    at: Point
    through: Sequence[Point]


def drawing(taken: Iterable[tuple[str, str, str]], plan: Plan | None) -> dict[str, Any]:
    """Lay out a machine: where its states and arrows lie, as plain data.

    Args:
        taken: the rows that the run took: (source, event, dest).
        plan: the machine, whose other rows are known too; None: there are only those that were taken.
    """
    known = [] if plan is None else [(source, event, dest) for source, event, dest, *_ in plan.rows]
    calm = [row for row in known if row[1] not in ("Stopped", "Failed")]
    rows = list(dict.fromkeys([*calm, *taken]))
    names = [] if plan is None else [plan.initial, *plan.names]
    usual = [name for name in _TRAINING if name in names]
    states = list(dict.fromkeys([*(usual if set(names) <= set(_TRAINING) else names), *_named(rows)]))
    nodes = _placed(states, rows, FINAL if plan is None else plan.final)
    arrows = list(_arrows(rows, nodes))
    return _told(list(nodes.values()), arrows)


def _named(rows: Iterable[tuple[str, str, str]]) -> Iterator[str]:
    return (state for row in rows for state in (row[0], row[2]))


def _placed(states: Sequence[str], rows: Sequence[tuple[str, str, str]], final: Sequence[str]) -> dict[str, Node]:
    fixed = set(states) <= set(_TRAINING)
    usual = {name: cell for name, cell in _TRAINING.items() if name in states}
    cells: dict[str, tuple[int, float]] = {**usual} if fixed else _layers(states, rows, final)
    longest = max((len(_short(state)) for state in states), default=0)
    half = max(52.0, 4.0 * longest + 8)
    column = max(_COLUMN, 2 * half + 74)
    return {
        state: Node(state, _MARGIN + half + column * x, _MARGIN + 10 + _HALF_HEIGHT + _ROW * y, half)
        for state, (x, y) in cells.items()
    }


def _layers(
    states: Sequence[str], rows: Sequence[tuple[str, str, str]], final: Sequence[str]
) -> dict[str, tuple[int, float]]:
    """Place each state in the column that says how many transitions it is away from the first one."""
    depth = {states[0]: 0} if states else {}
    todo = list(depth)
    for state in todo:
        for dest in (row[2] for row in rows if row[0] == state):
            if dest not in depth:
                depth[dest] = depth[state] + 1
                todo.append(dest)
    for state in states:
        depth.setdefault(state, 0)
    inner = [column for state, column in depth.items() if state not in final]
    last = max(inner, default=-1) + 1
    depth = {state: last if state in final else column for state, column in depth.items()}
    columns: dict[int, list[str]] = {}
    for state in states:
        columns.setdefault(depth[state], []).append(state)
    tallest = max(map(len, columns.values()), default=0)
    return {
        state: (column, (tallest - len(held)) / 2 + place)
        for column, held in columns.items()
        for place, state in enumerate(held)
    }


def _arrows(rows: Iterable[tuple[str, str, str]], nodes: dict[str, Node]) -> Iterator[Arrow]:
    labels: dict[Pair, list[str]] = {}
    for source, event, dest in rows:
        held = labels.setdefault((source, dest), [])
        if event not in held:
            held.append(event)
    for (source, dest), events in labels.items():
        label = _short(" or ".join(events), 26)
        if source == dest:
            yield _loop(nodes[source], label)
        else:
            yield _arrow(nodes[source], nodes[dest], label, nodes, both=(dest, source) in labels)


def _loop(node: Node, label: str) -> Arrow:
    x, y = node.x + node.half, node.y
    start, end = (x - 14, y - _HALF_HEIGHT), (x, y - 4)
    path = (
        f"M{start[0]:.1f},{start[1]:.1f} C{x - 10:.1f},{y - 43:.1f} {x + 36:.1f},{y - 24:.1f} {end[0]:.1f},{end[1]:.1f}"
    )
    return Arrow(
        node.name, node.name, path, label, (x, y - _HALF_HEIGHT - 20), [(x + 24, y - 34), (x + 20, y - 14), end]
    )


def _arrow(source: Node, dest: Node, label: str, nodes: dict[str, Node], *, both: bool) -> Arrow:
    """Lead an arrow around what is in its way, with the least bend."""
    dx, dy = dest.x - source.x, dest.y - source.y
    length = math.hypot(dx, dy) or 1.0
    across = (-dy / length, dx / length)
    aside = _APART if both else 0
    others = [node for node in nodes.values() if node not in (source, dest)]
    ways = (_way(source, dest, across, aside, bend) for bend in _BENDS)
    best = min(ways, key=lambda way: sum(node.holds(point, 4) for node in others for point in way))
    outside = [point for point in best if not source.holds(point) and not dest.holds(point, 3)]
    way = outside if len(outside) > 1 else best
    middle = way[len(way) // 2]
    flat = abs(dy) < 1
    at = (middle[0], middle[1] + (-7 if across[1] * aside <= 0 else 13)) if flat else _beside(middle, across, aside)
    path = "M" + " L".join(f"{x:.1f},{y:.1f}" for x, y in way)
    return Arrow(source.name, dest.name, path, label, at, way)


def _beside(middle: Point, across: Point, aside: float) -> Point:
    """Return where the text of a slanted arrow stands: on it, or where there are two on its own side."""
    return (middle[0] + across[0] * aside * 3.2, middle[1] + across[1] * aside * 1.6 + 3)


def _way(source: Node, dest: Node, across: Point, aside: float, bend: float) -> list[Point]:
    """Return the points of a curve between the middles of two boxes."""
    points = []
    for i in range(41):
        t = i / 40
        off = aside + bend * 4 * t * (1 - t)
        x, y = source.x + (dest.x - source.x) * t, source.y + (dest.y - source.y) * t
        points.append((x + across[0] * off, y + across[1] * off))
    return points


def _told(nodes: Sequence[Node], arrows: Sequence[Arrow]) -> dict[str, Any]:
    return {
        "box": _box(nodes, arrows),
        "states": [
            {"name": node.name, "short": _short(node.name), "x": node.x, "y": node.y, "half": node.half}
            for node in nodes
        ],
        "arrows": [
            {"from": arrow.source, "to": arrow.dest, "path": arrow.path, "head": _head(arrow), "label": arrow.label}
            | {"x": round(arrow.at[0], 1), "y": round(arrow.at[1], 1)}
            for arrow in arrows
        ],
    }


def _box(nodes: Sequence[Node], arrows: Sequence[Arrow]) -> list[int]:
    """Return what must be in sight: left, top, width and height."""
    labels = [(arrow.at[0] + side * 3 * len(arrow.label), arrow.at[1] + up) for arrow in arrows for side, up in _AROUND]
    corners = [(node.x + side * node.half, node.y + side * _HALF_HEIGHT) for node in nodes for side in (-1, 1)]
    points = [*labels, *corners, *(point for arrow in arrows for point in arrow.through)] or [(0.0, 0.0)]
    left, top = (min(part) - _MARGIN for part in zip(*points, strict=True))
    right, bottom = (max(part) + _MARGIN for part in zip(*points, strict=True))
    return [round(left), round(top), round(right - left), round(bottom - top)]


def _head(arrow: Arrow) -> str:
    """Return the corners of an arrow's head, as SVG writes them."""
    (x0, y0), (x, y) = arrow.through[-2:]
    angle = math.atan2(y - y0, x - x0)
    corners = [(x - 8 * math.cos(angle + turn), y - 8 * math.sin(angle + turn)) for turn in (-0.42, 0.42)]
    return " ".join(f"{px:.1f},{py:.1f}" for px, py in [(x, y), *corners])


def _short(text: str, most: int = 18) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
