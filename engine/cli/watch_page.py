"""The page of `tachograph watch`: what is gathered of a run, as lines that fit a terminal of any size."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator, Mapping
from typing import Any

import attrs

from .abreast import waiting
from .curves import Curve, draw, is_logarithmic
from .records import state_of
from .screen import clock, duration, ended, printable, text
from .watched import Watched

_LABEL = 9
"""Columns of the numbers beside a curve."""


@attrs.frozen(kw_only=True)
class Paper:
    """What a page is written on.

    Attributes:
        width, height: in characters.
        plain: ASCII only.
        decorated: escape codes are understood.
    """

    width: int
    height: int
    plain: bool
    decorated: bool


def page(run: Watched, status: str, paper: Paper, now: float) -> list[str]:
    """Return the lines of a page, at most as many as fit, none longer than fits.

    Args:
        run: what there is to tell.
        status: how it goes, or ended.
        paper: what it's written on.
        now: the time.
    """
    above = [
        *_head(run, status, now),
        *_machine(run, paper),
        *_progress(run, paper, now),
    ]
    below = [*_ranks(run), *_saved(run)]
    left = paper.height - len(above) - len(below)
    facts = list(run.facts)[-max(min(4, left // 4), 0) :] if left >= 4 and run.facts else []
    curves = _curves(run, paper, left - len(facts) - bool(facts))
    lines = [*above, *curves, *below, *(["", *facts] if facts else [])]
    return [_finished(line, run, paper) for line in lines[: paper.height]]


def line(run: Watched, now: float) -> str:
    """Return where a run stands as one line, for output that isn't a terminal."""
    last = run.last
    if last is None:
        return f"{clock(now)}  no transition yet"
    state = state_of(last)
    parts = [clock(last.meta["time"]), f"{last.dest:<11}", *_counts(state)]
    loss = run.curves.get("loss")
    parts += [f"loss {text(loss.value)}"] if loss is not None and loss.value is not None else []
    parts += _pace(run, state)
    parts += [sentence for sentence in _waits(run)[:1] if "wait" in sentence]
    return "  ".join(parts)


# -- the parts ---------------------------------------------------------------------------------------------


def _head(run: Watched, status: str, now: float) -> list[str]:
    last, (process, host) = run.last, run.machine_s()
    where = f", process {process} on {host}" if process and status == ended({"ended": "running", "detail": ""}) else ""
    since = "" if last is None or not run.open else f"; last record {duration(max(now - last.meta['time'], 0.0))} ago"
    return [f"Run {run.run_dir}", f"{status}{where}{since}"]


def _machine(run: Watched, paper: Paper) -> list[str]:
    """Draw the states in their order, with the one in work in brackets; and where the time went."""
    last = run.last
    here = "init" if last is None else last.dest
    words = [f"[{name}]" if name == here else f" {name} " for name in run.states]
    lines, used = [""], 0
    for word in words:
        if used and used + len(word) + 1 > paper.width:
            lines.append("")
            used = 0
        lines[-1] += word + " "
        used += len(word) + 1
    if last is not None:
        lines.append(
            f"transition {last.seq:,}: {last.source} {'->' if paper.plain else '→'} {last.dest} ({last.event})"
        )
    total = sum(run.dwells.values())
    if total:
        shares = sorted(run.dwells.items(), key=lambda item: -item[1])
        told = ", ".join(f"{name} {100 * seconds / total:.0f} %" for name, seconds in shares if seconds / total >= 0.01)
        lines.append(f"time: {told}")
    return ["", *(held.rstrip() for held in lines)]


def _counts(state: Mapping[str, Any]) -> list[str]:
    told = []
    fields = {
        "epoch": ("cur_epoch_idx", "n_epochs"),
        "batch": ("batch_idx_in_epoch", "num_batches_per_epoch"),
        "in all": ("global_forward_batches", "total_batches"),
    }
    for name, (field, limit) in fields.items():
        value, most = state.get(field), state.get(limit)
        if isinstance(value, int):
            told.append(f"{name} {value:,}{f'/{most:,}' if isinstance(most, int) else ''}")
    return told


def _pace(run: Watched, state: Mapping[str, Any]) -> list[str]:
    rates = run.rates()
    if rates is None:
        return []
    told = [f"{rates[0]:.3g} batches/s"]
    told += [f"{rates[1]:.3g} samples/s"] if rates[1] else []
    most = total_of(state)
    if most is not None and rates[0] > 0 and run.open:
        told.append(f"{duration(max(most - state['global_forward_batches'], 0) / rates[0])} left")
    return told


def total_of(state: Mapping[str, Any]) -> int | None:
    """Return how many batches a run is to have; None where that isn't known."""
    total, epochs, each = (state.get(name) for name in ("total_batches", "n_epochs", "num_batches_per_epoch"))
    if isinstance(total, int):
        return total
    return epochs * each if isinstance(epochs, int) and isinstance(each, int) else None


def _progress(run: Watched, paper: Paper, now: float) -> list[str]:
    last = run.last
    if last is None:
        return ["", "no transition yet"]
    state = state_of(last)
    since = "" if run.began is None else f"for {duration(max(last.meta['time'] - run.began, 0.0))}"
    lines = ["", "   ".join(filter(None, [*_counts(state), since]))]
    pace = "   ".join(_pace(run, state))
    most, done = total_of(state), state.get("global_forward_batches")
    if most and isinstance(done, int):
        share = min(done / most, 1.0)
        beside = f" {100 * share:.0f} %   {pace}".rstrip()
        room = max(paper.width - len(beside), 10) if paper.width >= len(beside) + 10 else 0
        room = min(room, 40)
        full = int(share * room)
        bar = ("#" * full).ljust(room, "-") if paper.plain else ("━" * full).ljust(room, "╌")
        return [*lines, f"{bar}{beside}".strip()]
    return [*lines, pace] if pace else lines


def _curves(run: Watched, paper: Paper, room: int) -> list[str]:
    """Draw as many curves as there is room for, the loss the highest; one that has no room is a line of numbers."""
    names = [name for name, curve in run.curves.items() if len(curve) or curve.not_finite]
    if not names or room < 2:
        return []
    drawn = [name for name in names if len(run.curves[name]) > 1 and run.curves[name].low < run.curves[name].high]
    heights = dict.fromkeys(names, 0)
    left = room - 1 - len(names)
    for name in drawn:  # two rows each, as far as that goes, then more for the first ones
        if left >= 2:
            heights[name], left = 2, left - 2
    for most in (4, 6, 8):
        for name in drawn:
            if heights[name] and heights[name] < most and left >= 2:
                heights[name], left = heights[name] + 2, left - 2
    lines = [""]
    for name in names:
        lines += _curve(name, run.curves[name], heights[name], paper)
    return lines[:room]


def _curve(name: str, curve: Curve, rows: int, paper: Paper) -> Iterator[str]:
    value = "none" if curve.value is None else text(curve.value)
    between = f"  from {text(curve.low)} to {text(curve.high)}" if curve.low < curve.high else ""
    scale = ", logarithmic" if rows and is_logarithmic(*_drawn_between(curve, paper)) else ""
    bad = "" if not curve.not_finite else f"  NOT FINITE: {curve.not_finite:,}, from {curve.first_not_finite:,} on"
    yield f"{printable(name)} {value}{between}{scale}{bad}"
    if not rows:
        return
    columns = max(paper.width - _LABEL - 1, 8) * (1 if paper.plain else 2)
    lines, low, high = draw(curve.columns(columns), rows, plain=paper.plain)
    for i, drawn in enumerate(lines):
        label = f"{high:.3g}" if i == 0 else f"{low:.3g}" if i == rows - 1 else ""
        yield f"{label:>{_LABEL}} {drawn}"


def _drawn_between(curve: Curve, paper: Paper) -> tuple[float, float]:
    held = [value for value in curve.columns(max(paper.width - _LABEL - 1, 8) * 2) if value is not None]
    return (min(held), max(held)) if held else (0.0, 0.0)


def _ranks(run: Watched) -> list[str]:
    found = run.abreast()
    if found is None:
        return []
    furthest = max(row["seq"] for row in found["rows"])
    shown = sorted(found["rows"], key=lambda row: (row["seq"], -(row["late"] or 0.0)))
    lines = ["", f"ranks {len(found['rows'])}, the furthest at {furthest:,}"]
    for row in shown[:4]:
        late = f"  late by {duration(row['late'])}" if row["late"] else ""
        behind = f"  {row['behind']:,} behind" if row["behind"] else ""
        lines.append(f"  rank {row['rank']:<3} {row['state']:<11} {row['seq']:>9,}{behind}{late}")
    if len(shown) > 4:
        lines.append(f"  and {len(shown) - 4} more ranks")
    return [*lines, *(f"  {sentence}" for sentence in waiting(found))]


def _waits(run: Watched) -> list[str]:
    found = run.abreast()
    return [] if found is None else waiting(found)


def _saved(run: Watched) -> list[str]:
    count, last = run.saved
    if last is None:
        return []
    name, when = printable(str(last.data.get("snapshot"))), clock(last.meta["time"], date=False)
    return [f"snapshots: {count:,} saved, the last {name} at {when[:8]}"]


# -- fitting -----------------------------------------------------------------------------------------------


def _finished(line: str, run: Watched, paper: Paper) -> str:
    """Cut a line to the width, and light the state in work and what is wrong."""
    cut = fitted(printable(line), paper.width)
    if not paper.decorated:
        return cut
    last = run.last
    here = f"[{'init' if last is None else last.dest}]"
    if here in cut and not cut.startswith("Run "):
        return cut.replace(here, f"\x1b[7m{here}\x1b[0m", 1)
    if cut.startswith("Run "):
        return f"\x1b[1m{cut}\x1b[0m"
    return f"\x1b[31m{cut}\x1b[0m" if "NOT FINITE" in cut or "Failed" in cut else cut


def fitted(line: str, width: int) -> str:
    """Cut a line so that it takes no more columns than there are; wide characters take two."""
    if line.isascii():
        return line[:width]
    used = 0
    for i, character in enumerate(line):
        used += 2 if unicodedata.east_asian_width(character) in "WF" else 0 if unicodedata.combining(character) else 1
        if used > width:
            return line[:i]
    return line


__all__ = ["Paper", "fitted", "line", "page", "total_of"]
