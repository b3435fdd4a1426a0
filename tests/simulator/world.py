"""The clock and the background work of a simulation: no time passes by itself, and no thread runs."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import attrs

from tachograph.engine.journal import Background, Pulse, Task
from tachograph.engine.world import World

from .disk import Disk, Killed


class Chore(Task):
    """A piece of background work; it is done in one go, at the latest when somebody waits for it."""

    def __init__(self, work: Callable[[], None], disk: Disk) -> None:
        self._work = work
        self._disk = disk
        self._alive = True

    def is_alive(self) -> bool:
        return self._alive

    def join(self) -> None:
        if self._alive and not self._disk.dead:
            self._alive = False
            self._disk.beside += 1
            try:
                self._work()
            except Killed:
                pass
            finally:
                self._disk.beside -= 1


class Beat(Pulse):
    """Work that comes back; here it comes when `Beside` lets it."""

    def __init__(self, work: Callable[[], None], disk: Disk) -> None:
        super().__init__(work, 0.0, "")
        self._disk = disk
        self.asked = self.hurried = False

    def ask(self) -> None:
        self.asked = True

    def hurry(self) -> None:
        self.hurried = True

    def stop(self) -> None:
        self.asked = False

    def beat(self) -> None:
        self.asked = self.hurried = False
        Chore(self._work, self._disk).join()


class Beside(Background):
    """Background work that is done whenever the run passes by, as often as `eagerness` says.

    Args:
        disk: knows whether the process is dead.
        rng: decides.
        eagerness: 0.0: never before it's waited for; 1.0: at once.
    """

    def __init__(self, disk: Disk, rng: Random, eagerness: float) -> None:
        self._disk = disk
        self._rng = rng
        self._eagerness = eagerness
        self._chores: list[Chore] = []
        self._beats: list[Beat] = []

    def start(self, work: Callable[[], None], name: str) -> Task:
        chore = Chore(work, self._disk)
        self._chores.append(chore)
        if self._eagerness == 1.0:
            chore.join()
        return chore

    def pulse(self, work: Callable[[], None], every: float, name: str) -> Pulse:
        beat = Beat(work, self._disk)
        self._beats.append(beat)
        return beat

    def pass_by(self) -> None:
        """Let other threads have their turn."""
        if self._disk.beside or self._disk.dead:
            return
        for beat in self._beats:
            if beat.asked and (beat.hurried or self._rng.random() < self._eagerness / 4):
                beat.beat()
        if self._chores:
            for chore in self._chores:
                if chore.is_alive() and self._rng.random() < self._eagerness / 2:
                    chore.join()
            self._chores = [chore for chore in self._chores if chore.is_alive()]


@attrs.define
class Time:
    """A clock that moves by a quarter of a second whenever somebody looks at it; then other threads have a turn."""

    beside: Beside
    now: float = 1796081234.0

    def __call__(self) -> float:
        self.now += 0.25
        self.beside.pass_by()
        return self.now


def world_of(disk: Disk, rng: Random, eagerness: float, segment: int) -> tuple[World, Beside]:
    """Return a world on a disk, and its background."""
    beside = Beside(disk, rng, eagerness)
    time = Time(beside)
    return World(files=disk, clock=time, timer=time, background=beside, segment=segment), beside
