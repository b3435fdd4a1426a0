"""What a person who watches a run is told, gathered record by record, in memory that doesn't grow with them."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from tachograph.engine import recording
from tachograph.engine.journal import Record, SideRecord
from tachograph.engine.journal.codec import from_json
from tachograph.states import training_machine

from . import ranks
from .alive import ending, is_alive, writer_of
from .curves import Curve
from .ranks import Passing
from .records import as_line, losses_of, state_of
from .screen import Screen

_CURVES = 16
"""Curves that are kept; of results with more names, the first ones."""
_FACTS = 12
_WAITING = 4000
"""Transitions that some ranks have and others don't have yet, for their times."""
_APART = 0.25
"""Seconds between two points that rates are taken from."""
_OF_STEPS = ("loss", "lr", "lr 1")
_QUIET = ("opened", "sealed", "fingerprint")


@attrs.define
class Stand:
    """How far a rank has come.

    Attributes:
        last: its last transition.
        incarnation: the newest life it wrote in.
        closed: the newest life that it closed.
    """

    last: Record | None = None
    incarnation: int = -1
    closed: int = -1


class Watched:
    """A run, as far as it was read.

    Args:
        run_dir: the run directory.
        about: its `run.json`.

    Attributes:
        stands: by rank.
        curves: by name; over the numbers of transitions.
        dwells: by state, the seconds in it.
        facts: the last side records and results, as lines.
        saved: (how many snapshots were saved, the last one's record).
        news: (time, line) of what happened since it was taken away last.
        began: when the life in work was opened.
        first: the rank that single answers come from.
    """

    def __init__(self, run_dir: Path, about: Mapping[str, Any]) -> None:
        self.run_dir, self.about = run_dir, about
        self.stands: dict[int, Stand] = {}
        self.curves: dict[str, Curve] = {}
        self.dwells: dict[str, float] = {}
        self.facts: deque[str] = deque(maxlen=_FACTS)
        self.news: deque[tuple[float, str]] = deque(maxlen=_FACTS)
        self.saved: tuple[int, SideRecord | None] = (0, None)
        self.began: float | None = None
        self.first = 0
        plan = recording.plan_of(about)
        self._names = [*(training_machine().names if plan is None else plan.names)]
        self._seen: dict[str, None] = {}  # in the order in which they were entered
        self._rates: deque[tuple[float, int, int]] = deque(maxlen=64)
        self._passing: dict[int, dict[int, tuple[str, float, float | None]]] = {}
        self._passings: deque[Passing] = deque(maxlen=500)

    # -- reading -------------------------------------------------------------------------------------------

    def take(self, item: Record | SideRecord) -> None:
        """Take a record, in the order in which they are followed."""
        stand = self.stands.get(item.rank)
        if stand is None:
            stand = self.stands[item.rank] = Stand()
            self.first = min(self.stands)
        if item.incarnation > stand.incarnation:
            stand.incarnation = item.incarnation
            self._begin(item)
        if isinstance(item, SideRecord):
            self._take_side(item, stand)
        else:
            self._take_record(item, stand)

    def _begin(self, item: Record | SideRecord) -> None:
        """A life begins: the time between two of them is nobody's."""
        if item.rank == self.first:
            self.began = item.header.time
            self._rates.clear()

    def _take_side(self, item: SideRecord, stand: Stand) -> None:
        if item.kind == "closed":
            stand.closed = max(stand.closed, item.incarnation)
        if item.rank != self.first or item.kind in _QUIET:
            return
        if item.kind == "saved":
            self.saved = self.saved[0] + 1, item
        if item.kind != "closed":
            self._tell(item)

    def _tell(self, item: Record | SideRecord) -> None:
        line = as_line(item, PLAIN)
        self.facts.append(line)
        self.news.append((item.meta["time"], line))

    def _take_record(self, record: Record, stand: Stand) -> None:
        before, stand.last = stand.last, record
        now = record.meta["time"]
        dwell = None
        if before is not None and before.incarnation == record.incarnation:
            dwell = max(now - before.meta["time"], 0.0)
        if len(self.stands) > 1:
            self._pass(record, now, dwell)
        if record.rank != self.first:
            return
        if before is not None and record.seq <= before.seq:
            for curve in self.curves.values():
                curve.cut(record.seq - 1)
        if dwell is not None:
            self.dwells[record.source] = self.dwells.get(record.source, 0.0) + dwell
        if before is None:
            self._seen[record.source] = None
        self._seen[record.dest] = None
        hear = _HEARD.get(record.event)
        if hear is not None:
            hear(self, record)

    def _stepped(self, record: Record) -> None:
        data = from_json(record.raw_data)
        loss = data.get("loss")
        if type(loss) is float and "late" not in data:
            self._add("loss", record.seq, loss)
        else:  # NaN and infinities are strings there, and a loss may be late
            data = record.data
            self._late(record)
        for i, rate in enumerate(data.get("lr", ())[:2]):  # more parameter groups would be more than a page holds
            self._add(_OF_STEPS[1 + i], record.seq, rate)

    def _late(self, record: Record) -> None:
        for seq, loss in losses_of(record):
            self._add("loss", seq, loss)

    def _validated(self, record: Record) -> None:
        self._tell(record)
        for name, value in (record.data.get("results") or {}).items():
            if not name.startswith("_") and type(value) in (int, float):
                self._add(f"validation {name}" if name in _OF_STEPS else name, record.seq, value)

    def _add(self, name: str, at: int, value: float) -> None:
        curve = self.curves.get(name)
        if curve is None:
            if len(self.curves) >= _CURVES:
                return
            curve = self.curves[name] = Curve()
        curve.add(at, value)

    def _pass(self, record: Record, now: float, dwell: float | None) -> None:
        """Note when a rank left a state; once all that take part have, it tells who is late."""
        held = self._passing.setdefault(record.seq, {})
        held[record.rank] = record.source, now, dwell
        part = self.part
        if all(rank in held for rank in part):
            del self._passing[record.seq]
            dwells = {rank: spent for rank, (_, _, spent) in held.items() if spent is not None}
            times = {rank: at for rank, (_, at, _) in held.items()}
            self._passings.append(Passing(record.source, times, dwells))
        elif len(self._passing) > _WAITING:
            del self._passing[next(iter(self._passing))]

    # -- telling -------------------------------------------------------------------------------------------

    @property
    def last(self) -> Record | None:
        """The last transition; None before the first."""
        stand = self.stands.get(self.first)
        return None if stand is None else stand.last

    @property
    def newest(self) -> int:
        """The newest life that was begun."""
        return max((stand.incarnation for stand in self.stands.values()), default=-1)

    @property
    def part(self) -> list[int]:
        """The ranks that have a part in it."""
        return sorted(rank for rank, stand in self.stands.items() if stand.incarnation >= self.newest)

    @property
    def open(self) -> list[int]:
        """The ranks whose journal isn't closed."""
        return [rank for rank in self.part if self.stands[rank].closed < self.newest]

    @property
    def states(self) -> list[str]:
        """The states of its machine; of another one than `run.json` tells of, those that it was seen in."""
        return self._names if self._seen.keys() <= set(self._names) else list(self._seen)

    def ending(self, rank: int) -> tuple[str, str]:
        """Say how a rank's life ended, as `alive.ending` does."""
        stand = self.stands.get(rank, Stand())
        closed = 0 <= stand.incarnation <= stand.closed
        return ending(stand.last, closed, is_alive(self.run_dir, rank))

    def rates(self) -> tuple[float, float] | None:
        """Return (batches, samples) a second, by the records of the last while; None where that isn't known yet."""
        last = self.last
        if last is None:
            return None
        state, now = state_of(last), last.meta["time"]
        batches, samples = state.get("global_forward_batches"), state.get("samples")
        if not isinstance(batches, int) or not isinstance(samples, int):
            return None
        if self._rates and batches < self._rates[-1][1]:
            self._rates.clear()
        if not self._rates or now - self._rates[-1][0] >= _APART:
            self._rates.append((now, batches, samples))
        then, batches_then, samples_then = self._rates[0]
        seconds = now - then
        return None if seconds < _APART else ((batches - batches_then) / seconds, (samples - samples_then) / seconds)

    def abreast(self) -> dict[str, Any] | None:
        """Compare the ranks, as `ranks.gather` does; None where there is one only."""
        part = self.part
        if len(self.stands) < 2:
            return None
        rows = [self._row(rank) for rank in part]
        passings = [passing for passing in self._passings if set(part) <= passing.times.keys()]
        return {"rows": rows, **ranks.compared(rows, rows, passings)}

    def _row(self, rank: int) -> dict[str, Any]:
        last, ended = self.stands[rank].last, self.ending(rank)
        return ranks.row_of(rank, last, ended)

    def machine_s(self) -> tuple[int, str]:
        """Return (process, machine) of who writes it."""
        return writer_of(self.run_dir, self.first)


_HEARD = {
    "Stepped": Watched._stepped,
    "Exhausted": Watched._late,
    "Validated": Watched._validated,
    "SanityChecked": Watched._validated,
    "Failed": Watched._tell,
}


class _Plain(Screen):
    """A screen that styles nothing: lines are kept, and shown in several ways."""

    def __init__(self) -> None:
        self.decorated, self.width = False, 10_000


PLAIN = _Plain()

__all__ = ["Stand", "Watched"]
