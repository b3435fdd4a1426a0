"""A trace in the Trace Event Format, which Perfetto (ui.perfetto.dev) and chrome://tracing open.

Each rank is a process and each of its incarnations a thread. A state is a complete event, from the transition that led
into it to the one that left it, within the event of its epoch; losses, learning rates and results are counters; side
records are instants. Times are in microseconds since the run's first record.

The format is Google's "Trace Event Format" (2016), in its JSON object form.
"""

from __future__ import annotations

import gzip
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from tachograph.engine.journal import Record, SideRecord
from tachograph.engine.journal.codec import plain, to_json

from .curves import Curves
from .source import Source, state_of

_BETWEEN_EPOCHS = ("init", "sanity_check", "epoch_begin")
_QUIET = ("opened", "sealed", "closed")
"""Headers and footers of files."""
_FREQUENT = ("Fetched", "Stepped")
"""Events whose data the counters tell."""

Happening = dict[str, Any]


def write(source: Source, path: Path) -> int:
    """Write the file; return how many transitions it holds."""
    trace = _Trace(source.about)
    with _opened(path) as file:
        file.write(b'{"displayTimeUnit":"ms","traceEvents":[')
        comma = b"\n"
        for event in trace.events(source.items()):
            file.write(comma + to_json(event))
            comma = b",\n"
        file.write(b'\n],"otherData":' + to_json(plain(trace.other())) + b"}\n")
    return trace.transitions


def _opened(path: Path) -> IO[bytes]:
    return gzip.open(path, "xb", compresslevel=6) if path.name.endswith(".gz") else path.open("xb")  # type: ignore[return-value]


class _Trace:
    """Turns a run's records into trace events, one after the other.

    Attributes:
        transitions: how many were read.
    """

    def __init__(self, about: dict[str, Any]) -> None:
        self.transitions = 0
        self._about = about
        self._began: float | None = None
        self._tracks: dict[tuple[int, int], _Track] = {}
        self._curves: dict[int, Curves] = {}

    def events(self, items: Iterator[Record | SideRecord]) -> Iterator[Happening]:
        for item in items:
            track = self._tracks.get((item.rank, item.incarnation))
            if track is None:
                yield from self._begin(item)
                track = self._tracks[item.rank, item.incarnation]
            if isinstance(item, SideRecord):
                yield from track.side(item)
            else:
                self.transitions += 1
                yield from track.transition(item)
                yield from self._counters(item)
        for track in self._tracks.values():
            yield from track.end()

    def other(self) -> dict[str, Any]:
        """Return what is told of the whole trace."""
        return {
            "run": self._about.get("run"),
            "began": self._began,
            "environment": self._about.get("environment"),
            "written_by": "tachograph",
        }

    def _at(self, time: float) -> int:
        """Return microseconds since the first record; a clock that was set back doesn't lead before it."""
        if self._began is None:
            self._began = time
        return max(round((time - self._began) * 1e6), 0)

    def _begin(self, item: Record | SideRecord) -> Iterator[Happening]:
        pid, tid = item.rank + 1, item.incarnation + 1  # 0 is the idle process to some viewers
        if item.rank not in self._curves:
            self._curves[item.rank] = Curves()
            yield _named("process_name", pid, 0, {"name": f"rank {item.rank}"})
            yield _named("process_sort_index", pid, 0, {"sort_index": item.rank})
        yield _named("thread_name", pid, tid, {"name": f"incarnation {item.incarnation}"})
        yield _named("thread_sort_index", pid, tid, {"sort_index": item.incarnation})
        self._tracks[item.rank, item.incarnation] = _Track(pid, tid, self._at(item.meta["time"]), self._at)

    def _counters(self, record: Record) -> Iterator[Happening]:
        for point in self._curves[record.rank].points(record):
            where = {"ts": self._at(point.time), "pid": record.rank + 1}
            if math.isfinite(point.value):
                yield {"name": point.name, "ph": "C", **where, "args": {"value": point.value}}
            else:  # JSON has no number for it
                tid = record.incarnation + 1
                text = f"{point.name} is {point.value}"
                yield {
                    "name": text,
                    "ph": "i",
                    "s": "p",
                    "cat": "value",
                    **where,
                    "tid": tid,
                    "args": {"seq": record.seq},
                }


class _Track:
    """One incarnation of one rank.

    Args:
        pid, tid: what the format calls it.
        start: where its first state begins.
        at: makes a time one of the trace.
    """

    def __init__(self, pid: int, tid: int, start: int, at: Callable[[float], int]) -> None:
        self._where = {"pid": pid, "tid": tid}
        self._now = start
        self._at = at
        self._epoch: tuple[int, Any] | None = None  # where the epoch in work began, and which it is
        self._fresh = True

    def side(self, side: SideRecord) -> Iterator[Happening]:
        if side.kind not in _QUIET:
            args = {"seq": side.seq, **plain(side.data)}
            ts = max(self._at(side.meta["time"]), self._now)
            yield {"name": side.kind, "cat": "side", "ph": "i", "s": "t", "ts": ts, **self._where, "args": args}

    def transition(self, record: Record) -> Iterator[Happening]:
        start, end = self._now, max(self._at(record.meta["time"]), self._now)
        self._now = end
        if record.event == "EpochBegan" or (self._fresh and record.source not in _BETWEEN_EPOCHS):
            self._epoch = start, state_of(record).get("cur_epoch_idx")
        self._fresh = False
        args = {"seq": record.seq, "event": record.event, "to": record.dest}
        if record.event not in _FREQUENT:
            args["data"] = plain(record.data)
        yield self._complete(record.source, "state", start, end, args)
        if record.event == "EpochEnded":
            yield from self.end()

    def end(self) -> Iterator[Happening]:
        """Close the epoch that is open."""
        if self._epoch is not None and self._epoch[1] is not None:
            start, number = self._epoch
            yield self._complete(f"epoch {number}", "epoch", start, self._now, {"epoch": number})
        self._epoch = None

    def _complete(self, name: str, cat: str, start: int, end: int, args: Happening) -> Happening:
        return {"name": name, "cat": cat, "ph": "X", "ts": start, "dur": end - start, **self._where, "args": args}


def _named(what: str, pid: int, tid: int, args: Happening) -> Happening:
    return {"name": what, "ph": "M", "ts": 0, "pid": pid, "tid": tid, "args": args}


__all__ = ["write"]
