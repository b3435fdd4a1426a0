"""One run, life after life: what strikes, what each life may end with, and what must be there at the end."""

from __future__ import annotations

import functools
import os
import shutil
import signal
import tempfile
import warnings
from pathlib import Path
from random import Random
from typing import Any

import attrs

from tachograph.engine.journal import Journal, JournalCorrupt, JournalFormat, JournalWriteError
from tachograph.engine.signals import Signals
from tachograph.engine.snapshots import SnapshotWriteFault, catalogue
from tachograph.states import CallerError, TachographError, training_machine

from . import checks
from .checks import Broken, check
from .disk import Disk, Killed
from .plan import SHARED, Event, Life, Settings, lives_of, settings_of
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
        process = Process(settings, _peaceful(settings), disk, Random(f"straight {shared}"), lambda *moment: None)
        process.run()
        chains = {record.seq: record.chain for record in Journal(root / "run")}
        return Straight(chains, process.end(), process.heard, disk.operations, process.moments)
    finally:
        shutil.rmtree(root)


def _peaceful(settings: Settings) -> Life:
    return Life(snapshot_every=settings.snapshot_every, n_epochs=settings.n_epochs)


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
    """

    def __init__(self, seed: int, settings: Settings, root: Path) -> None:
        self.seed = seed
        self.settings = settings
        self.disk = Disk(root)
        self.run_dir = root / "run"
        self.story = [f"trained: {settings}"]
        self.straight = straight_run(seed // SHARED)
        self.exact = True
        self._kept: dict[str, bytes] = {}
        self._damaged: set[str] = set()
        self._told: list[Heard] = []
        self._cut: set[int] = set()
        self._early: list[int] = []
        self._held = 0
        self._last: Any = None
        self._signalled = False

    def tell(self, line: str) -> None:
        self.story.append(line.replace(str(self.disk.root), "").replace(str(os.getpid()), "PID"))

    def go(self) -> None:
        """Live all lives, and hold the end against the straight run's."""
        last = max(self.straight.chains)
        self.tell(f"straight: {last} transitions, {self.straight.operations} operations, chain "
                  f"{self.straight.chains[last]}")  # fmt: skip
        lives = lives_of(self.seed, self.settings, self.straight.operations, self.straight.moments)
        for number, life in enumerate(lives):
            try:
                process = self._live(number, life)
                over = self._check(process)
            except TachographError as error:
                raise Broken(f"nobody could read what was left: {error!r}") from error
            if over and self.settings.stop_at is not None:
                break  # whoever asked for the stop won't ask again: the next process would go on
        if self.exact and process is not None:
            self._compare(process)

    # -- a life --------------------------------------------------------------------------------------------

    def _live(self, number: int, life: Life) -> Process | None:
        """Live one life; return its process if it ended by itself, without an error."""
        rng = Random(f"life {self.seed} {number}")
        self.disk.born(life.strikes)
        mend = self._damage(life.damage, rng)
        self._held = self._announced() if mend is None else 0
        before = {path: file.data for path, file in self.disk.files().items()}
        events, struck = list(life.events), []  # type: ignore[var-annotated]

        def pass_by(process: Process, moment: str) -> None:
            self._strike(process, moment, events, struck)

        process = Process(self.settings, life, self.disk, rng, pass_by)
        error: BaseException | None = None
        try:
            process.run(self._source(life))
        except BaseException as raised:
            error = raised
        if self._may_go_on(life, process, error, struck):
            error = None
            struck.clear()
            self.tell("  the same process goes on")
            try:
                process.run_again()
            except BaseException as raised:
                error = raised
        self._tell_life(number, process, error, struck)
        check(not self.disk.left_open(), f"left open: {self.disk.left_open()}")
        check(not self._early, f"transitions {self._early} were heard before they were committed")
        if not self.disk.dead:
            self._check_end(process, error, struck, mend is not None, before)
        state, clean = process.trainer.trainer_state, error is None and not self.disk.dead
        if not clean:
            self._cut.update(self._around(process))
        if mend is None:
            failed = state.seq if state.state == "exception" else None  # how it ended isn't an announcement
            expected = [heard for heard in process.heard if heard[0] > self._held and heard[0] != failed]
            told = [heard for heard in process.told if heard[0] != failed]
            check(told == expected, f"the world was told {told}, not {expected}")
        self._told += process.told
        if mend is not None:
            mend()
        self._kept.update(checks.handed_over(self.disk, power=False))
        if clean and not self.disk.fired:
            checks.check_no_leftovers(self.run_dir, self._damaged)
        if life.power:  # at the kill, or after it has ended
            self._kept = checks.handed_over(self.disk, power=True)
            self.disk.cut_power(rng)
            self.tell("  the power went")
        self._signalled = [event.kind for event, _ in struck] == ["signal"] and not self.disk.fired
        return process if clean else None

    def _source(self, life: Life) -> Any:
        """Return what a life goes on from."""
        found = [] if life.source is None else catalogue(self.run_dir)[0]
        found = [snapshot for snapshot in found if not snapshot.fault()]
        if not found or life.source is None:
            return "auto"
        path = found[int(life.source * len(found))].path
        self.tell(f"  from {path.name}")
        return path

    def _may_go_on(self, life: Life, process: Process, error: Any, struck: list[tuple[Event, str]]) -> bool:
        """Say whether the same objects can go on exactly: nothing struck them but a signal, and nobody stopped them."""
        kinds = {event.kind for event, _ in struck}
        stopped = self.settings.stop_at is not None or self.settings.patience is not None
        settled = kinds == {"signal"} if error is not None else not kinds
        begun = process.trainer.trainer_state.seq > 1
        return life.again and settled and begun and not stopped and not self.disk.dead and not self.disk.fired

    def _strike(self, process: Process, moment: str, events: list[Event], struck: list[tuple[Event, str]]) -> None:
        if self.disk.dead:
            raise Killed
        if moment == "first listener":
            seq = process.trainer.trainer_state.seq
            committed = self.disk.last_line.startswith(b'{"seq":%d,' % seq) or seq <= self._held
            if not committed and process.trainer.trainer_state.state != "exception":  # how it ended is no announcement
                self._early.append(seq)
        for event in [event for event in events if event.at <= process.moments]:
            if event.kind == "signal":
                handler = signal.getsignal(event.signal)
                if not isinstance(getattr(handler, "__self__", None), Signals):
                    continue  # it comes when it is heeded
            elif event.kind == "error" and self.disk.beside and not isinstance(event.error, Exception):
                continue  # no thread but the main one is interrupted
            events.remove(event)
            struck.append((event, f"{event}, {moment}, in '{process.trainer.trainer_state.state}'"))
            if event.kind == "kill":
                self.disk.kill()
            if event.kind == "signal":
                handler(event.signal, None)  # type: ignore[operator, misc]
            elif event.error is not None:
                raise event.error

    def _tell_life(self, number: int, process: Process, error: Any, struck: list[tuple[Event, str]]) -> None:
        state = process.trainer.trainer_state
        ended = "killed" if self.disk.dead else "done" if error is None else f"{type(error).__name__}: {error}"
        self.tell(f"life {number}: {self.disk.operations} operations, {process.moments} moments, in '{state.state}' "
                  f"after {state.seq}; {ended}")  # fmt: skip
        for strike, where in self.disk.fired:
            self.tell(f"  {strike.kind} {where}, part {strike.part:.2f}")
        for _, where in struck:
            self.tell(f"  {where}")
        for notice in process.notices:
            self.tell(f"  it said: {notice}")

    def _check_end(
        self, process: Process, error: BaseException | None, struck: list[tuple[Event, str]], damaged: bool, before: Any
    ) -> None:
        """A life that wasn't killed ends with its work done, or with the error that the first fault calls for."""
        if damaged and isinstance(error, JournalCorrupt | JournalFormat):
            after = {path: file.data for path, file in self.disk.files().items()}
            check(before == after, "the journal was refused, but something was changed")
            return
        faults = {strike.kind for strike, _ in self.disk.fired}
        warned = ", save," if self.settings.on_fault == "warn" else "nowhere"
        must = [where for _, where in struck if warned not in where] + [kind for kind in faults if kind == "ctrl-c"]
        if error is None:
            check(not must, f"it returned in spite of {must}")
            check(process.trainer.trainer_state.state == "done", "it returned, but isn't done")
            return
        allowed = faults & {"full", "broken", "unreadable", "garbled"} and _is_a_disks(error)
        allowed = allowed or ("ctrl-c" in faults and isinstance(error, KeyboardInterrupt))
        for event, _ in struck:
            allowed = allowed or error is event.error
            allowed = allowed or (isinstance(error, SnapshotWriteFault) and error.__cause__ is event.error)
            if event.kind == "signal":
                interrupt = event.signal == signal.SIGINT and isinstance(error, KeyboardInterrupt)
                status = isinstance(error, SystemExit) and error.code == 128 + event.signal
                allowed = allowed or interrupt or status
        if not allowed:
            raise Broken(f"it ended with {error!r}") from error

    # -- between two lives ---------------------------------------------------------------------------------

    def _announced(self) -> int:
        """Return the last transition that was announced, by what the journal holds."""
        if not checks.holds_a_journal(self.run_dir):
            return 0
        last = Journal(self.run_dir).last
        return 0 if last is None else last.seq - (last.event in ("Failed", "Stopped"))

    def _around(self, process: Process) -> set[int]:
        """Return the transitions whose announcement may have been cut short: those at the end of this life."""
        found = {process.trainer.trainer_state.seq, process.trainer.trainer_state.seq - 1}
        if self.disk.last_line:
            found.add(int(self.disk.last_line[7 : self.disk.last_line.index(b",")]))
        return found

    def _damage(self, kind: str, rng: Random) -> Any:
        """Damage a file; return what mends it, or None if it stays as it is."""
        files = self.disk.files()
        if kind in ("snapshot", "lost"):
            found = sorted(path for path in files if "/snapshots/0" in path and files[path].data)
            if found:
                path = found[int(rng.random() * len(found))]
                self._damaged.add(path.split("/")[2])
                flipped = _flipped(files[path].data, 0, rng) if kind == "snapshot" else None
                self.disk.replace(self.disk.root / path, flipped)
                self.tell(f"  {path} was {'damaged' if kind == 'snapshot' else 'lost'}")
            return None
        if kind == "mark":
            found = [path for path in files if path.endswith("durable.json") and files[path].data]
        else:
            found = sorted(path for path in files if ".jsonl" in path and "torn" not in path) if kind else []
        if not found:
            return None
        path = found[int(rng.random() * len(found))]
        data = files[path].data
        newest = max(found, key=lambda path: (int(path.split(".i")[1].split(".")[0]), path)) if kind != "mark" else ""
        end = len(data)
        if path == newest and not path.endswith(".gz"):  # without a whole line after it, damage looks like a torn tail
            end = data[: max(data.rfind(b"\n"), 0)].rfind(b"\n") + 1
        begin = 10 if path.endswith(".gz") else 0
        if end <= begin:
            return None
        flipped = _flipped(data[:end], begin, rng) + data[end:]
        self.disk.replace(self.disk.root / path, flipped)
        self.tell(f"  {path} was damaged")

        def mend() -> None:
            file = self.disk.files().get(path)
            if file is not None and file.data == flipped:
                self.disk.replace(self.disk.root / path, data)

        return mend

    def _check(self, process: Process | None) -> bool:
        """Check what must hold between two lives; say whether the run is over."""
        checks.check_handed_over(self.disk, self._kept)
        if not checks.holds_a_journal(self.run_dir):
            return False
        self.exact = checks.check_sides(self.run_dir, self._damaged, self.settings.keep is not None)
        if self.exact and self._signalled and not self.disk.dead:
            checks.check_snapshot_at_end(self.run_dir)
        chains = self.straight.chains if self.exact else None
        last = self._last = checks.check_history(self.run_dir, _MACHINE, chains)
        if process is not None:
            check(last is not None and checks.alike(last.state, process.trainer.trainer_state), "it stands elsewhere")
        return last is not None and last.dest == "done" and last.chain == self.straight.chains.get(last.seq)

    def _compare(self, process: Process) -> None:
        """Hold the last life's end against the straight run's."""
        assert self._last is not None
        checks.check_chain(self.run_dir, self._last)
        end, straight = process.end(), dict(self.straight.end)
        for either in (end, straight):
            either["state"] = attrs.evolve(either["state"], n_epochs=None, total_batches=None)
        for name in straight:
            check(end.get(name) == straight[name], f"{name}: {end.get(name)!r}, of the straight run {straight[name]!r}")
        check(end.keys() == straight.keys(), f"there are {end.keys() ^ straight.keys()}")
        missing = {heard for heard in self.straight.heard if heard[0] not in self._cut} - set(self._told)
        check(not missing, f"the world was never told {sorted(missing)}")


def _is_a_disks(error: BaseException) -> bool:
    if isinstance(error, CallerError):
        return "can't be written" in str(error)
    return isinstance(error, JournalWriteError | SnapshotWriteFault)


def _flipped(data: bytes, begin: int, rng: Random) -> bytes:
    at = begin + int(rng.random() * (len(data) - begin))
    return data[:at] + bytes([data[at] ^ 1 << int(rng.random() * 8)]) + data[at + 1 :]
