"""What two run directories tell of why they part at a transition: settings, environment, resumes, neighbours."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import attrs

from .. import recording
from ..journal import Journal, JournalError, Record
from ..journal.facts import start_of
from .causes import ORDER, PARTS, Known, Resume, kind_of
from .divergence import Divergence, same
from .fingerprinted import Bits

Pair = tuple[Any, Any]
_SHIFTS = 8
"""Batches by which one order may be ahead of the other."""

_LATELY = 8
"""Transitions that are looked back at: of any so many in a row, one is a step."""
_BATCHES = 1000
"""Batches whose order is compared from the first one on that differs."""


@attrs.frozen
class Side:
    """One of the two runs, at the transition where they part.

    Attributes:
        name: its directory, as it was given.
        about: its `run.json`; empty where there is none.
        journal: its journal.
        record: of the transition.
        before: of the transition before it; None where there is none.
    """

    name: str
    about: Mapping[str, Any]
    journal: Journal
    record: Record
    before: Record | None

    @classmethod
    def of(cls, name: str | Path, journal: Journal, seq: int) -> Side:
        """Read what a run says of a transition, which must be there."""
        return cls(str(name), about_of(journal.run_dir), journal, journal.seek(seq), _sought(journal, seq - 1))

    def lately(self) -> Iterator[Record]:
        """Yield the last records before the transition, newest first."""
        for seq in range(self.record.seq - 1, max(self.record.seq - _LATELY, start_of(self.journal).seq), -1):
            yield self.journal.seek(seq)


def about_of(run_dir: Path) -> dict[str, Any]:
    """Return a run's `run.json`; nothing where only its journal is there."""
    return recording.load(run_dir) if recording.holds_a_run(run_dir) else {}


def known_of(divergence: Divergence, a: Side, b: Side, bits: Bits) -> Known:
    """Gather what the two directories tell of a divergence.

    Args:
        divergence: where they part, and in what.
        a: the first run there.
        b: the second.
        bits: what fingerprints tell.
    """
    kind = kind_of(divergence.field)
    held = [in_force(side.about, side.journal, divergence.seq) for side in (a, b)]
    settings, code, environment = differences(*held)
    differ, agree = _at(a, b, divergence, bits)
    before = _before(a, divergence, bits)
    return Known(
        names=(a.name, b.name),
        settings=settings,
        code=code,
        environment=environment,
        differ=differ,
        agree=agree,
        before=before,
        resume=_resume(a, b, divergence.seq),
        window=_window(a, held[0]),
        ahead=_ahead(a, b, divergence.seq) if kind == "ids" else None,
        batches=_batches(a, b, divergence.seq) if kind == "ids" else (0, 0),
        events=_events(a, b, divergence.field),
        reasons=(reason_of(a.record), reason_of(b.record)),
        lossless=_lossless(divergence) if kind == "loss" else None,
        deterministic=all(side.get("environment", {}).get("deterministic_algorithms") for side in held),
    )


# -- settings ----------------------------------------------------------------------------------------------


def in_force(about: Mapping[str, Any], journal: Journal, seq: int) -> dict[str, Any]:
    """Return the settings of a run that a transition was made under, with "environment" and "code" among them.

    Args:
        about: its `run.json`.
        journal: its journal, which tells what each life has changed.
        seq: the transition.
    """
    held = {**about.get("settings", {}), "environment": dict(about.get("environment", {}))}
    held["environment"] |= {"host": about["host"]} if about.get("host") else {}
    held["code"] = dict(about.get("code") or {})
    lives = {number for number, _ in journal.lineage}
    for record in journal.beginnings():
        if record.incarnation in lives and record.data["at"] < seq:
            held |= {name: now for name, (_, now) in record.data["changed"].items()}
            held["code"] |= {name: now for name, (_, now) in record.data.get("code", {}).items()}
    return held


def differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> tuple[dict[str, Pair], list[str], dict[str, Pair]]:
    """Hold what was in force in two runs against each other: (settings, files of code, environment) that differ."""
    bare = [{name: value for name, value in side.items() if name != "code"} for side in (a, b)]
    found = recording.differences(*bare)
    environment = {n.partition(".")[2]: pair for n, pair in found.items() if n.startswith("environment.")}
    settings = {n: pair for n, pair in found.items() if not n.startswith("environment.")}
    codes = a.get("code", {}), b.get("code", {})
    code = sorted(name for name in codes[0].keys() & codes[1].keys() if codes[0][name] != codes[1][name])
    return settings, code, environment


# -- the transition itself ---------------------------------------------------------------------------------


def _at(a: Side, b: Side, divergence: Divergence, bits: Bits) -> tuple[list[str], list[str]]:
    """Say what differs at the transition and what is known to agree, by the names of `ORDER`."""
    differ: set[str] = set()
    agree: set[str] = set()
    if a.record.event == b.record.event:
        one, other = a.record.data, b.record.data
        for name in ("ids", "rng", "loss", "lr"):
            if one.get(name) or other.get(name):  # 0, None and [] say that it wasn't taken
                (agree if same(one[name], other.get(name)) else differ).add(name)
        if a.record.event == "Stepped" and a.before is not None and a.before.data.get("ids"):
            agree.add("ids")  # of the batch fetched for it, before which nothing differs
    if bits.differ == divergence.seq:
        differ |= set(bits.values) & set(PARTS)
        agree |= set(bits.same) & set(PARTS)
    elif bits.agree == divergence.seq:
        agree |= set(bits.parts) & set(PARTS)
    agree -= differ
    differ -= {kind_of(divergence.field)}
    return [n for n in ORDER if n in differ], [n for n in ORDER if n in agree]


def _before(a: Side, divergence: Divergence, bits: Bits) -> list[str]:
    """Say what is known to have agreed before the transition: what no update has changed since it was compared."""
    if not bits.agree or a.before is None or bits.agree >= divergence.seq:
        return []
    then = _sought(a.journal, bits.agree)
    steps, updates = (1, 1) if then is None else _between(then, a.before)
    unchanged = bits.parts if not steps else () if updates else ("parameters", "optimizers", "scaler")
    return [part for part in bits.parts if part in unchanged]


def _between(then: Record, now: Record) -> tuple[int, int]:
    """Count (training steps, updates) from one transition to another."""
    first, last = _counters(then), _counters(now)
    return tuple(last.get(n, 0) - first.get(n, 0) for n in ("global_forward_batches", "optimizer_steps"))  # type: ignore[return-value]


def _counters(record: Record) -> Mapping[str, Any]:
    state = record.state
    return state if isinstance(state, dict) else state.to_dict()  # type: ignore[no-any-return]


def _window(a: Side, held: Mapping[str, Any]) -> int:
    if a.record.event != "Stepped" or a.before is None or held.get("accumulation_steps") in (None, 1):
        return 1
    return int(_counters(a.before).get("accumulated", 0)) + 1


def _events(a: Side, b: Side, field: str) -> tuple[str, str]:
    if field == "data.closed":
        told = tuple("closed" if side.record.data["closed"] else "open" for side in (a, b))
        return told[0], told[1]
    if a.record.event == b.record.event and field not in ("data.error", "data.kind", "data.reason"):
        return a.record.dest, b.record.dest
    return a.record.event, b.record.event


def _lossless(divergence: Divergence) -> int | None:
    made = divergence.a is not None, divergence.b is not None
    return made.index(False) if any(made) and not all(made) else None


def reason_of(record: Record) -> str:
    """Return what an event says of itself: the error of a failure, the reason of a stop; "" of others."""
    data = record.data
    if record.event == "Failed":
        return f"{data.get('kind')}: {data.get('error')}"
    return str(data.get("reason", ""))


# -- the neighbourhood -------------------------------------------------------------------------------------


def _ahead(a: Side, b: Side, seq: int) -> tuple[int, int] | None:
    """Look whether one run fetches here, and from here on, what the other one fetches a few batches later."""
    orders = [list(islice(_fetched(side.journal, seq), _SHIFTS + 3)) for side in (a, b)]
    for who, (mine, other) in enumerate((orders, orders[::-1])):
        if len(mine) < 2:
            continue
        for shift in range(1, min(_SHIFTS, len(other) - 2) + 1):
            pairs = list(zip(mine, other[shift:], strict=False))
            if len(pairs) > 1 and all(x[1] == y[1] for x, y in pairs):
                return who, other[shift][0]
    return None


def _batches(a: Side, b: Side, seq: int) -> tuple[int, int]:
    """Count the batches that differ, from a transition to the epoch's end or for a thousand, and those compared."""
    pairs = zip(_fetched(a.journal, seq), _fetched(b.journal, seq), strict=False)
    same = [one == other for one, other in islice(pairs, _BATCHES)]
    return same.count(False), len(same)


def _fetched(journal: Journal, seq: int) -> Iterator[tuple[int, int]]:
    """Yield (transition, hash of the sample ids) of the batches of one epoch from a transition on."""
    for record in journal.since(seq):
        if record.event == "EpochBegan":
            return
        ids = record.data.get("ids", 0) if record.event == "Fetched" else 0
        if ids:
            yield record.seq, ids


def _resume(a: Side, b: Side, seq: int) -> Resume | None:
    """Find the last resume that only one of the runs had before they part."""
    had = [_resumed(side.journal, seq) for side in (a, b)]
    mine = [(at, of) for of in (0, 1) for at in had[of] if at not in had[1 - of]]
    if not mine:
        return None
    at, of = max(mine)
    side = (a, b)[of]
    then = _sought(side.journal, at) or _sought((a, b)[1 - of].journal, at)
    steps, updates = (0, 0) if then is None or side.before is None else _between(then, side.before)
    told = Resume(of=of, at=at, steps=steps, updates=updates, unrestored=had[of][at])
    if not side.about.get("parent") or at != start_of(side.journal).seq:
        return told
    return attrs.evolve(told, forked=True, by_hand=_by_hand(side.journal))


def _resumed(journal: Journal, seq: int) -> dict[int, str]:
    """Return the points before a transition at which a run was resumed, with why its generators weren't restored."""
    history = journal._first
    found: dict[int, str] = {}
    for number, _ in history.current:
        at = history.segments[number][0][1].before.seq
        if not 0 < at < seq:
            continue
        sides = islice((item for item in history.walk(number, None, sides=True)), 8)
        unrestored = (s.data["reason"] for s in sides if getattr(s, "kind", "") == "rng_not_restored")
        found[at] = next(unrestored, "")
    return found


def _by_hand(journal: Journal) -> list[str]:
    """Return what a fork says was done where it begins."""
    for item in islice(journal.everything(), 4):
        if getattr(item, "kind", "") == "forked":
            return list(item.data.get("by_hand", ()))
    return []


def _sought(journal: Journal, seq: int) -> Record | None:
    if seq <= start_of(journal).seq:
        return None
    try:
        return journal.seek(seq)
    except JournalError:
        return None


__all__ = ["Side", "about_of", "differences", "in_force", "known_of", "reason_of"]
