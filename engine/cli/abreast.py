"""The ranks of a run for a person: a table, and what it comes to in sentences."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from .screen import Screen, clock, duration, ended, exact, printable

_IN_STEP = 1e-3
"""Seconds by which the last rank may be later than the first, and nobody is called slow."""
_HERE = ("running", "unknown")


def print_ranks(found: Mapping[str, Any], screen: Screen) -> None:
    """Print the section of the ranks.

    Args:
        found: what `ranks.gather` found.
        screen: where.
    """
    rows = found["rows"]
    screen.title("Ranks", _remark(found))
    parting = found["parting"]
    if parting is not None:
        screen.line(screen.style(f"  THE RANKS PART at transition {parting['seq']:,}: {_parting(parting)}", "red"))
    screen.table(
        ["rank", "<state", "seq", "behind", "<late", "<last record", "~ended"],
        [*map(_row, rows), *((str(rank), "", "", "", "", "", "it has no journal") for rank in found["missing"])],
    )
    for sentence in (*_failure(found["failure"]), *waiting(found)):
        screen.line(f"  {sentence}")


def _remark(found: Mapping[str, Any]) -> str:
    told = [f"late: after the first rank, at the median of {found['measured']:,} transitions"]
    told = told if found["measured"] else []
    if found["machines"] > 1:
        told.append(f"by the clocks of {found['machines']} machines")
    return ", ".join(told)


def _parting(parting: Mapping[str, Any]) -> str:
    field = parting["field"].partition(".")[2]
    values = f"{exact(parting['a'])} and {exact(parting['b'])}"
    return f"{field} is {values} ({parting['cause']}). They don't train one model any more"


def _row(row: Mapping[str, Any]) -> tuple[str, ...]:
    return (
        str(row["rank"]),
        row["state"],
        f"{row['seq']:,}",
        f"{row['behind']:,}" if row["behind"] else "",
        _latest(row["latest"]),
        "" if row["time"] is None else clock(row["time"]),
        "no more part of the run" if row["ended"] == "left" else ended(row),
    )


def _latest(latest: Mapping[str, Any] | None) -> str:
    if latest is None or not latest["seconds"]:
        return ""
    return f"{duration(latest['seconds'])} in {latest['state']}"


def _failure(failure: Mapping[str, Any] | None) -> list[str]:
    if failure is None:
        return []
    told = []
    if failure["kind"] is not None:
        where = f"in {failure['state']}, at transition {failure['seq']:,}, {clock(failure['time'], date=False)}"
        what = f"{printable(failure['kind'])}: {printable(failure['error'])}"
        told.append(f"Rank {failure['rank']} failed first, {where}: {what}")
    elif failure["gone"]:
        told.append(f"{named(failure['gone']).capitalize()} left no record of its end")
    else:
        told.append("Which rank failed first is in no journal here")
    if failure["as_well"]:
        told.append(f"{named(failure['as_well']).capitalize()} failed as well, of an error of {_own(failure)}")
    if failure["because"]:
        told.append(f"{named(failure['because']).capitalize()} ended because of it")
    return told


def _own(failure: Mapping[str, Any]) -> str:
    return "its own" if len(failure["as_well"]) == 1 else "their own"


def waiting(found: Mapping[str, Any]) -> list[str]:
    """Say in sentences which rank the others wait for."""
    waits, slowest, told = found["waits_for"], found["slowest"], []
    if waits is not None and waits["by"] == "transition":
        slow = [row for row in found["rows"] if row["rank"] in waits["ranks"]]
        told.append(_behind(waits, slow, running=any(row["ended"] in _HERE for row in found["rows"])))
    if slowest is not None:
        told.append(_late(slowest))
    return told


def _late(slowest: Mapping[str, Any]) -> str:
    seconds = duration(slowest["seconds"])
    if slowest["seconds"] < _IN_STEP:
        return f"The ranks keep in step: at the median, none leaves a state more than {seconds} after the first"
    where = slowest["others_wait_in"]
    others = f"; the others wait for it in {where}" if where else ""
    late = f"it leaves {slowest['state']} {seconds} after the first rank, at the median{others}"
    return f"Rank {slowest['rank']} is the slowest: {late}"


def _behind(waits: Mapping[str, Any], slow: Sequence[Mapping[str, Any]], *, running: bool) -> str:
    who, states = named(waits["ranks"]), " and ".join(dict.fromkeys(row["state"] or "no state" for row in slow))
    far = f"{waits['behind']:,} transition{'' if waits['behind'] == 1 else 's'} behind the furthest"
    if not running:
        return f"{who.capitalize()} had come least far, to {states}: {far}"
    since = max((row["time"] or 0.0 for row in slow), default=0.0)
    ago = f", since {duration(max(time.time() - since, 0.0))}" if since else ""
    return f"The others wait for {who}, in {states}{ago}: {far}"


def named(ranks: Sequence[int]) -> str:
    """Name ranks: "rank 1", "ranks 0, 2 and 3"."""
    *most, last = map(str, ranks)
    return f"ranks {', '.join(most)} and {last}" if most else f"rank {last}"
