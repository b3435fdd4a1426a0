"""One run, life after life, and what must be there between two of them and at the end."""

from __future__ import annotations

import functools
import os
import re
import shutil
import tempfile
import warnings
from pathlib import Path
from random import Random
from typing import Any

import attrs

from tachograph.engine.journal import Journal, Record
from tachograph.engine.snapshots import catalogue
from tachograph.states import TachographError, training_machine

from . import checks
from .checks import Broken, check
from .damage import damage
from .disk import Disk
from .fate import Fate
from .outcomes import check_outcome, refused
from .plan import SHARED, Life, Settings, lives_of, settings_of
from .trainee import Heard, Process

_MEMORY = Path("/dev/shm")
_MACHINE = training_machine()


@attrs.frozen
class Straight:
    """The run that nothing befell.

    Attributes:
        chains: transition -> the chain after it.
        end: what its process ended with.
        heard: what its diary heard.
        operations: on its disk.
        moments: that it passed.
    """

    chains: dict[int, str]
    end: dict[str, Any]
    heard: list[Heard]
    operations: int
    moments: int


@attrs.frozen
class Lived:
    """A life that is over.

    Attributes:
        process: the process.
        fate: what befell it.
        error: what it raised.
        dead: it was killed.
    """

    process: Process
    fate: Fate
    error: BaseException | None
    dead: bool

    @property
    def clean(self) -> bool:
        """It ended by itself, without an error."""
        return self.error is None and not self.dead

    @property
    def state(self) -> Any:
        return self.process.trainer.trainer_state


def simulate(seed: int) -> list[str]:
    """Simulate one run.

    Returns:
        Its story: what was trained, what befell it, how each life ended.

    Raises:
        Broken: a promise was broken; the message tells the story up to there.
    """
    settings = settings_of(seed)
    root = _scratch()
    run = Run(seed, settings, root)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            run.go()
    except Broken as broken:
        raise Broken("\n".join([f"seed {seed}: {broken}", *run.story])) from broken
    finally:
        shutil.rmtree(root)
    return run.story


@functools.lru_cache(maxsize=4)
def straight_run(shared: int) -> Straight:
    """Run what seeds from `shared * SHARED` on train, from its beginning to its end."""
    settings, root = settings_of(shared * SHARED), _scratch()
    try:
        disk = Disk(root)
        life = Life(snapshot_every=settings.snapshot_every, n_epochs=settings.n_epochs)
        process = Process(settings, life, disk, Random(f"straight {shared}"), lambda *moment: None)
        process.run()
        chains = {record.seq: record.chain for record in Journal(root / "run")}
        return Straight(chains, process.end(), process.heard, disk.operations, process.moments)
    finally:
        shutil.rmtree(root)


def _scratch() -> Path:
    return Path(tempfile.mkdtemp(prefix="simulated-", dir=_MEMORY if os.access(_MEMORY, os.W_OK) else None))


class Run:
    """One run and its lives.

    Args:
        seed: decides on everything.
        settings: what is trained.
        root: an empty directory.

    Attributes:
        story: a line for each thing worth telling.
        exact: every life was resumed exactly; else what follows may part from the straight run.
    """

    def __init__(self, seed: int, settings: Settings, root: Path) -> None:
        self.seed = seed
        self.settings = settings
        self.disk = Disk(root)
        self.run_dir = root / "run"
        self.story = [f"trained: {settings}"]
        self.straight = straight_run(seed // SHARED)
        self.exact = True
        self._kept: dict[str, bytes] = {}  # what the journal's files must hold
        self._damaged: set[str] = set()  # names of snapshots
        self._told: list[Heard] = []  # to the world, by all lives
        self._cut: set[int] = set()  # transitions whose announcement may have been cut short

    def tell(self, line: str) -> None:
        """Add a line to the story, without what differs from one process to the next."""
        line = line.replace(str(self.disk.root), "")
        self.story.append(re.sub(rf"\b{os.getpid()}\b", "PID", line))  # not within a chain's digits

    def go(self) -> None:
        """Live all lives, and hold the end against the straight run's."""
        straight = self.straight
        last = max(straight.chains)
        self.tell(f"straight: {last} transitions, {straight.operations} operations, chain {straight.chains[last]}")
        for number, life in enumerate(lives_of(self.seed, self.settings, straight.operations, straight.moments)):
            try:
                lived = self._live(number, life)
                record = self._check(lived)
            except TachographError as error:
                raise Broken(f"nobody could read what was left: {error!r}") from error
            over = record is not None and record.dest == "done" and record.chain == straight.chains.get(record.seq)
            if over and self.settings.stop_at is not None:
                break  # whoever asked for the stop won't ask again: the next process would go on
        if self.exact and lived.clean and record is not None:
            self._compare(lived.process, record)

    # -- a life --------------------------------------------------------------------------------------------

    def _live(self, number: int, life: Life) -> Lived:
        rng, disk = Random(f"life {self.seed} {number}"), self.disk
        disk.born(life.strikes)
        damaged = damage(disk, life.damage, rng)
        if damaged is not None:
            self.tell(f"  {damaged.path}: {life.damage} damage")
        mend = None if damaged is None else damaged.mend
        if damaged is not None and mend is None:
            self._damaged.add(damaged.path.split("/")[2])
        announced = self._announced() if mend is None else None
        before = {path: file.data for path, file in disk.files().items()}
        lived = self._lived(life, rng, announced or 0)
        self._tell_life(number, lived)
        if mend is not None and refused(lived.error):
            after = {path: file.data for path, file in disk.files().items()}
            check(before == after, "the journal was refused, but something was changed")
        else:
            self._check_life(lived, announced)
        if mend is not None:
            mend()
        self._kept.update(checks.handed_over(disk, power=False))
        if life.power:  # at the kill, or after it has ended
            self._kept = checks.handed_over(disk, power=True)
            disk.cut_power(rng)
            self.tell("  the power went")
        return lived

    def _lived(self, life: Life, rng: Random, announced: int) -> Lived:
        """Run a process to its end, and perhaps once more."""
        fate = Fate(life.events, self.disk, announced)
        process = Process(self.settings, life, self.disk, rng, fate.pass_by)
        lived = Lived(process, fate, _raised(process.run, self._source(life)), self.disk.dead)
        if life.again and self._may_go_on(lived):
            for _, where in fate.struck:
                self.tell(f"  {where}")
            fate.struck.clear()
            self.tell("  the same process goes on")
            lived = Lived(process, fate, _raised(process.run_again), self.disk.dead)
        return lived

    def _source(self, life: Life) -> Any:
        """Return what a life goes on from."""
        found = [] if life.source is None else [s for s in catalogue(self.run_dir)[0] if not s.fault()]
        if not found or life.source is None:
            return "auto"
        path = found[int(life.source * len(found))].path
        self.tell(f"  from {path.name}")
        return path

    def _may_go_on(self, lived: Lived) -> bool:
        """Say whether the same objects can go on exactly: nothing struck them but a signal, and nobody stopped them."""
        kinds = {event.kind for event, _ in lived.fate.struck}
        stopped = self.settings.stop_at is not None or self.settings.patience is not None
        settled = kinds == {"signal"} if lived.error is not None else not kinds
        return settled and lived.state.seq > 1 and not stopped and not lived.dead and not self.disk.fired

    def _tell_life(self, number: int, lived: Lived) -> None:
        error, state = lived.error, lived.state
        ended = "killed" if lived.dead else "done" if error is None else f"{type(error).__name__}: {error}"
        passed = f"{self.disk.operations} operations, {lived.process.moments} moments"
        self.tell(f"life {number}: {passed}, in '{state.state}' after {state.seq}; {ended}")
        for strike, where in self.disk.fired:
            self.tell(f"  {strike.kind} {where}, part {strike.part:.2f}")
        for _, where in lived.fate.struck:
            self.tell(f"  {where}")
        for notice in lived.process.notices:
            self.tell(f"  it said: {notice}")

    # -- what must hold ------------------------------------------------------------------------------------

    def _announced(self) -> int:
        """Return the last transition that was announced, by what the journal holds."""
        last = Journal(self.run_dir).last if checks.holds_a_journal(self.run_dir) else None
        return 0 if last is None else last.seq - (last.event in ("Failed", "Stopped"))

    def _check_life(self, lived: Lived, announced: int | None) -> None:
        """How a life ended, what it told the world, and what it left open or lying about."""
        fired, fate, state = [strike for strike, _ in self.disk.fired], lived.fate, lived.state
        check(not self.disk.left_open(), f"left open: {self.disk.left_open()}")
        check(not fate.early, f"transitions {fate.early} were heard before they were committed")
        if not lived.dead:
            check_outcome(lived.error, state, fate.struck, fired, self.settings.on_fault)
        if not lived.clean:
            self._cut |= {state.seq, state.seq - 1, self.disk.last_seq}
        elif not fired:
            checks.check_no_leftovers(self.run_dir, self._damaged)
        if announced is not None:
            failed = state.seq if state.state == "exception" else None  # how it ended isn't an announcement
            expected = [heard for heard in lived.process.heard if heard[0] > announced and heard[0] != failed]
            told = [heard for heard in lived.process.told if heard[0] != failed]
            check(told == expected, f"the world was told {told}, not {expected}")
        self._told += lived.process.told

    def _check(self, lived: Lived) -> Record | None:
        """Check what a life has left; return the live history's last transition."""
        checks.check_handed_over(self.disk, self._kept)
        if not checks.holds_a_journal(self.run_dir):
            return None
        self.exact = checks.check_sides(self.run_dir, self._damaged, self.settings.keep is not None)
        signalled = [event.kind for event, _ in lived.fate.struck] == ["signal"]
        if self.exact and signalled and not self.disk.fired and not lived.dead:
            checks.check_snapshot_at_end(self.run_dir)
        last = checks.check_history(self.run_dir, _MACHINE, self.straight.chains if self.exact else None)
        if lived.clean:
            check(last is not None and checks.alike(last.state, lived.state), "it stands where its records don't lead")
        return last

    def _compare(self, process: Process, last: Record) -> None:
        """Hold the last life's end against the straight run's."""
        checks.check_chain(self.run_dir, last)
        end, straight = process.end(), dict(self.straight.end)
        for either in (end, straight):
            either["state"] = attrs.evolve(either["state"], n_epochs=None, total_batches=None)
        for name in straight:
            check(end.get(name) == straight[name], f"{name}: {end.get(name)!r}, of the straight run {straight[name]!r}")
        check(end.keys() == straight.keys(), f"there are {end.keys() ^ straight.keys()}")
        missing = {heard for heard in self.straight.heard if heard[0] not in self._cut} - set(self._told)
        check(not missing, f"the world was never told {sorted(missing)}")


def _raised(work: Any, *args: Any) -> BaseException | None:
    try:
        work(*args)
    except BaseException as error:
        return error
    return None
