"""From a seed: what is trained, and what befalls it."""

from __future__ import annotations

import errno
import signal
from random import Random
from typing import Any

import attrs

from tachograph.engine import Keep

from .disk import Strike

SHARED = 8
"""So many seeds share their settings, and the straight run that they are held against."""


@attrs.frozen(kw_only=True)
class Settings:
    """What is trained: the same in every life of a run, but for `snapshot_every` and `n_epochs`."""

    batches: int
    known: bool
    n_epochs: int
    n_batches: int
    accumulation: int
    tail: str
    evaluation: int
    sanity: int
    validate_every: Any
    used: int
    skip: tuple[int, ...]
    snapshot_every: Any
    keep: Any
    on_fault: str
    snapshots_at: tuple[int, ...]
    stop_at: int | None
    cut_at: int | None
    patience: int | None
    seed: int | None
    segment: int
    eagerness: float

    def __str__(self) -> str:
        told = attrs.asdict(self, recurse=False).items()
        return ", ".join(f"{name} {value}" for name, value in told if value not in (None, (), -1))


def settings_of(seed: int) -> Settings:
    """Choose what is trained."""
    rng = Random(f"settings {seed // SHARED}")
    batches, n_epochs = rng.randint(1, 6), rng.randint(1, 3)
    total = batches * n_epochs
    evaluation = rng.choice([0, 0, 1, 2, 3])
    cadences: list[Any] = [-1, -1, -2, 1, 2, 3, (2, -1), (3, -2)]

    def at(chance: float) -> int | None:
        return rng.randint(1, total) if rng.random() < chance else None

    return Settings(
        batches=batches,
        known=rng.random() < 0.7,
        n_epochs=n_epochs,
        n_batches=rng.randint(1, total) if rng.random() < 0.2 else -1,
        accumulation=rng.choice([1, 1, 2, 3]),
        tail=rng.choice(["flush", "flush", "carry", "drop"]),
        evaluation=evaluation,
        sanity=rng.choice([0, 1, 2]),
        validate_every=rng.choice(cadences),
        used=rng.randint(1, batches) if rng.random() < 0.15 else -1,
        skip=tuple(n for n in range(total) if rng.random() < 0.15) if rng.random() < 0.4 else (),
        snapshot_every=policy(rng),
        keep=rng.choice([None, None, 1, 2, Keep(best=1, monitor="m") if evaluation else Keep(every=2)]),
        on_fault=rng.choice(["raise", "raise", "warn"]),
        snapshots_at=tuple(n for n in range(1, total + 1) if rng.random() < 0.1),
        stop_at=at(0.15),
        cut_at=at(0.15),
        patience=rng.randint(1, 2) if evaluation and rng.random() < 0.4 else None,
        seed=rng.choice([None, 0, 7]),
        segment=rng.choice([1 << 18, 1 << 18, 20, 9]),
        eagerness=rng.choice([0.0, 0.1, 0.4, 1.0]),
    )


def policy(rng: Random) -> Any:
    """Choose when snapshots are due."""
    return rng.choice(["epoch", "epoch", 1, 2, 3, 5, "20s", None])


@attrs.define
class Event:
    """What happens to a process at one of the moments it passes: it is killed, gets a signal, or an error is raised.

    Attributes:
        kind: "kill", "signal" or "error".
        at: the number of the moment.
        signal: the signal's number.
        error: what is raised.
    """

    kind: str
    at: int
    signal: int = 0
    error: BaseException | None = None

    def __str__(self) -> str:
        what = {"kill": "killed", "signal": f"signal {self.signal}", "error": f"{self.error!r}"}[self.kind]
        return f"{what} at moment {self.at}"


@attrs.frozen(kw_only=True)
class Life:
    """What befalls one life of a run.

    Attributes:
        strikes: what happens to its disk.
        events: what happens to its process.
        power: the power goes when it is killed.
        damage: what happens to its files before it begins: "snapshot", "lost", "journal", "mark" or "".
        snapshot_every: its own policy.
        n_epochs: its own limit.
        max_time: its own limit in seconds; None: none.
        source: it goes on from one of the snapshots there are, the oldest at 0.0; None: from where the run stands.
        again: when it has ended, or a signal has ended it, the same process goes on with the run's own limit.
    """

    strikes: tuple[Strike, ...] = ()
    events: tuple[Event, ...] = ()
    power: bool = False
    damage: str = ""
    snapshot_every: Any = None
    n_epochs: int = 1
    max_time: float | None = None
    source: float | None = None
    again: bool = False


def lives_of(seed: int, settings: Settings, operations: int, moments: int) -> list[Life]:
    """Choose the lives of a run; the last one is left in peace.

    Args:
        seed: decides.
        settings: what is trained.
        operations: of the straight run on its disk, for scale.
        moments: that it passed.
    """
    rng = Random(f"lives {seed}")
    number = rng.choice([1, 1, 1, 1, 2, 2, 2, 3, 4, 5])
    lives = [_life(rng, settings, operations, moments, first=n == 0) for n in range(number)]
    return [*lives, Life(snapshot_every=settings.snapshot_every, n_epochs=settings.n_epochs)]


def _life(rng: Random, settings: Settings, operations: int, moments: int, first: bool) -> Life:
    strikes: list[Strike] = []
    events: list[Event] = []
    power = False
    for _ in range(2 if rng.random() < 0.2 else 1):
        kind = rng.choices(*zip(*_KINDS, strict=True))[0]
        early = not first and rng.random() < 0.5  # what a resume does, or what the rest of a run does
        operation = 1 + int(rng.random() * (60 if early else operations * 1.05))
        moment = 1 + int(rng.random() * (12 if early else moments * 1.05))
        part = rng.random()
        power = power or kind.startswith("power")
        if kind in ("kill", "power", "full", "broken", "garbled", "ctrl-c"):
            name = rng.choice(_RARE) if kind != "garbled" and rng.random() < 0.35 else ""
            strikes.append(Strike("kill" if kind == "power" else kind, operation, part, name))
        elif kind == "unreadable":
            strikes.append(Strike(kind, 1 + int(rng.random() * 20)))
        elif kind.endswith("at a moment"):
            events.append(Event("kill", moment))
        elif kind == "signal":
            events.append(Event(kind, moment, signal=rng.choice(_SIGNALS)))
        else:
            events.append(Event(kind, moment, error=rng.choice(_ERRORS)()))
    damage = "" if first or rng.random() < 0.8 else rng.choice(["snapshot", "snapshot", "lost", "journal", "mark"])
    changed = rng.random() < 0.15
    return Life(
        strikes=tuple(strikes),
        events=tuple(events),
        power=power,
        damage=damage,
        snapshot_every=policy(rng) if changed else settings.snapshot_every,
        n_epochs=rng.randint(1, settings.n_epochs) if rng.random() < 0.15 else settings.n_epochs,
        max_time=rng.uniform(1.0, 40.0) if rng.random() < 0.08 else None,
        source=rng.random() if rng.random() < 0.1 else None,
        again=rng.random() < 0.3,
    )


_KINDS = [
    ("kill", 20),
    ("kill at a moment", 10),
    ("power", 16),
    ("power at a moment", 6),
    ("full", 8),
    ("broken", 10),
    ("garbled", 3),
    ("unreadable", 4),
    ("ctrl-c", 5),
    ("signal", 10),
    ("error", 11),
]
_RARE = ["rename", "remove", "create", "make", "sync"]
_SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1]
_ERRORS = [
    lambda: RuntimeError("simulated"),
    lambda: OSError(errno.EIO, "simulated"),
    lambda: KeyboardInterrupt("simulated"),
    lambda: SystemExit(3),
    lambda: MemoryError("simulated"),
]
