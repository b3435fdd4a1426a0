"""What the journal's tests share: a short training run as plain values, and files that fail or stop on demand."""

from __future__ import annotations

import math
import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tachograph.engine.journal import Files, Journal, JournalWriter, Record, rank_directory
from tachograph.states import (
    EpochBegan,
    EpochEnded,
    Event,
    Exhausted,
    Fetched,
    Started,
    Stepped,
    TrainerState,
    Validated,
)
from tachograph.states import training_machine as machine

Transition = tuple[str, Event, TrainerState]


def events() -> Iterator[Event]:
    """An endless run: epochs of three batches, each validated, with what is hard to write in between."""
    yield Started()
    for epoch in range(10**9):
        yield EpochBegan(epoch=epoch, num_batches_per_epoch=3)
        for batch in range(3):
            yield Fetched(ids=f"{epoch * 3 + batch:016x}")
            loss = [0.1 + 0.2, math.nan, -math.inf][batch] if epoch == 1 else 1 / (epoch * 3 + batch + 1)
            yield Stepped(loss=loss, lr=[1e-3, 3e-4], samples=32, rng=0x0123456789ABCDEF, validate_due=batch == 2)
            if batch == 2:
                yield Validated(results={"eval#loss#dl": 0.5, "worst": math.inf if epoch else None, "note": "größer"})
        yield Exhausted()
        yield EpochEnded(epoch=epoch)


def run(n: int, state: TrainerState | None = None) -> list[Transition]:
    """The first `n` transitions of the run."""
    table, state = machine(), state or TrainerState(n_epochs=10**6)
    done: list[Transition] = []
    for event, _ in zip(events(), range(n), strict=False):
        before, state = state, event.fold(state, table.next_state(state, event))
        done.append((before.state, event, state))
    return done


def ticking(start: float = 1796081234.0) -> Callable[[], float]:
    """A clock that moves by a quarter of a second at each look."""
    now = [start]

    def clock() -> float:
        now[0] += 0.25
        return now[0]

    return clock


def writer(run_dir: Path, **settings: Any) -> JournalWriter:
    """A writer that syncs only when it is told to."""
    return JournalWriter.create(run_dir, **{"run_id": "r", "clock": ticking(), "sync_every": 3600.0, **settings})


def written(run_dir: Path, n: int, *, close: bool = True, **settings: Any) -> list[Transition]:
    """Write the first `n` transitions into a new journal, then end it in order, or as a kill would."""
    done = run(n)
    out = writer(run_dir, **settings)
    for transition in done:
        out.append(*transition)
    out.close() if close else kill(out)
    return done


def kill(out: JournalWriter) -> None:
    """End a writer as a kill would; a thread that compresses can't be killed, so it is waited for."""
    out.abandon()
    out._sealer.join()


def folder(run_dir: Path) -> Path:
    return rank_directory(run_dir, 0)


def only_file(run_dir: Path) -> Path:
    (path,) = folder(run_dir).glob("*.jsonl")
    return path


def same(records: list[Record], done: list[Transition]) -> bool:
    """Whether the records say exactly these transitions (NaN equal to itself)."""
    told = [(r.source, r.event, r.dest, repr(r.state)) for r in records]
    return told == [(s, type(e).__name__, after.state, repr(after)) for s, e, after in done]


def states_of(run_dir: Path, **settings: Any) -> list[int]:
    return [record.seq for record in Journal(run_dir, **settings)]


class Quick(Files):
    """Files that don't wait for the disk."""

    def fdatasync(self, fd: int) -> None:
        pass

    def fsync_dir(self, path: Path) -> None:
        pass


class Crash(BaseException):
    """The power goes."""


class Faulty(Files):
    """Files that fail once.

    Args:
        fails: the names of the operations that count.
        at: which of them fails, from 0.
        error: what it raises; None: a write takes half of what it got.
    """

    def __init__(self, fails: tuple[str, ...], at: int, error: BaseException | None) -> None:
        self.fails, self.at, self.error = fails, at, error
        self.seen = 0
        self.calls: list[str] = []

    def _strike(self, name: str) -> bool:
        if threading.current_thread().name == "tachograph-journal-seal":
            return False  # sealing has tests of its own
        self.calls.append(name)
        if name not in self.fails:
            return False
        self.seen += 1
        if self.seen - 1 != self.at:
            return False
        if self.error is not None:
            raise self.error
        return True

    def open_append(self, path: Path) -> int:
        self._strike("open_append")
        return super().open_append(path)

    def open_update(self, path: Path) -> int:
        self._strike("open_update")
        return super().open_update(path)

    def write(self, fd: int, data: bytes) -> int:
        if self._strike("write"):
            return super().write(fd, data[: len(data) // 2])
        return super().write(fd, data)

    def pwrite(self, fd: int, data: bytes, offset: int) -> int:
        self._strike("pwrite")
        return super().pwrite(fd, data, offset)

    def fdatasync(self, fd: int) -> None:
        self._strike("fdatasync")
        super().fdatasync(fd)

    def fsync_dir(self, path: Path) -> None:
        self._strike("fsync_dir")
        super().fsync_dir(path)

    def truncate(self, fd: int, size: int) -> None:
        self._strike("truncate")
        super().truncate(fd, size)

    def rename(self, source: Path, dest: Path) -> None:
        self._strike("rename")
        super().rename(source, dest)

    def unlink(self, path: Path) -> None:
        self._strike("unlink")
        super().unlink(path)


class HalfThen(Faulty):
    """A disk that fills up inside a line: one write takes half of it, the next one fails."""

    def write(self, fd: int, data: bytes) -> int:
        self.seen += 1
        if self.seen - 1 == self.at:
            return os.write(fd, data[: len(data) // 2])
        if self.seen - 1 == self.at + 1:
            assert self.error is not None
            raise self.error
        return os.write(fd, data)


def in_child(work: Callable[[], None]) -> int:
    """Run `work` in a forked process; return its pid."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        finally:
            os.kill(os.getpid(), signal.SIGKILL)
    return pid
