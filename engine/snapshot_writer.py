"""How a snapshot comes into being, and how older ones go to make room for it. All of it happens beside the run.

Write new, verify, publish, prune: nothing old is touched before the new one is whole and in its place. One snapshot is
in flight at a time, and what became of it is collected by the run at its next transition.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs

from tachograph.drivers.ranks import ALONE, Ranks

from .joint import Joint
from .journal import Files, Journal, JournalWriteError, Task, make_dirs
from .retention import Entry, Keep, remove, superfluous
from .snapshots import (
    FORMAT,
    TEMPORARY,
    Snapshot,
    SnapshotFault,
    SnapshotWriteFault,
    catalogue,
    digest_of_commit,
    leftovers,
    place_in,
    read,
    write_json,
)
from .world import World

Save = Callable[[Path], dict[str, tuple[int, str]]]


@attrs.frozen
class Outcome:
    """What became of a snapshot.

    Attributes:
        seq: the transition after which it was taken.
        snapshot: it, if it was published.
        fault: why it wasn't.
        pruned: the names of those that went to make room for it.
        prune_fault: why one of them couldn't go; "" if all could, or if it was said before.
    """

    seq: int
    snapshot: Snapshot | None = None
    fault: SnapshotWriteFault | JournalWriteError | None = None
    pruned: list[str] = attrs.field(factory=list)
    prune_fault: str = ""


def write_whole(
    disk: Files,
    directory: Path,
    about: Mapping[str, Any],
    save: Save,
    run: str,
    incarnation: int,
    before: Callable[[], None] = lambda: None,
) -> Snapshot:
    """Write a snapshot under a temporary name, `COMMIT` last, and read it back.

    Args:
        disk: where it is written.
        directory: its temporary name; what is there goes.
        about: the engine's part, plain data with `seq`, `chain` and `exact`.
        save: writes the driver's part into a directory.
        run: the run's id.
        incarnation: of this process.
        before: called before `COMMIT` is written; makes durable what the snapshot relies on.

    Raises:
        OSError: the disk refused, or what is read back isn't what was written.
    """
    disk.remove_tree(directory)
    disk.make_dir(directory)
    files = dict(save(directory))
    files["state.json"] = write_json(disk, directory / "state.json", about)
    before()
    commit = {"format": FORMAT, "run": run, "incarnation": incarnation, "files": files}
    commit |= {key: about[key] for key in ("seq", "chain", "exact", "chains") if key in about}
    write_json(disk, directory / "COMMIT", {**commit, "digest": digest_of_commit(commit)})
    written = read(directory, disk)
    fault = written.fault(disk)
    if fault:
        raise OSError(f"read back, {fault}")
    disk.fsync_dir(directory)
    return written


class SnapshotWriter:
    """Publishes snapshots beside the run, one at a time. Of many ranks the first one does, and the others give a part.

    Args:
        run_dir: the run.
        run: its id.
        incarnation: of this process.
        finished: called, from another thread, when one is done or failed; it must only raise a flag.
        world: the disk, and what does the work beside the run.
        ranks: who takes part.

    Attributes:
        keep: which snapshots stay when a new one is published; None: all.
        source: the snapshot that this process was resumed from, which stays; None without one.
        last_seq: the transition of the last snapshot that was begun, or that this process was resumed from.
    """

    def __init__(
        self,
        run_dir: Path,
        run: str,
        incarnation: int,
        finished: Callable[[], None],
        world: World | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        world = world or World()
        self._ranks = ranks
        self._disk = world.files
        self._background = world.background
        self._run_dir = run_dir
        self._root = run_dir / "snapshots"
        self._run = run
        self._incarnation = incarnation
        self._finished = finished
        self._task: Task | None = None
        self._done: deque[Outcome] = deque()
        self._place: Callable[[Snapshot], int | None] | None = None
        self._states: dict[Path, Mapping[str, Any]] = {}
        self._said = ""
        self.keep: Keep | None = None
        self.source: Path | None = None
        self.last_seq = -1

    def write(
        self,
        about: Mapping[str, Any],
        save: Save,
        before_publishing: Callable[[], None],
        size: Callable[[], int] = int,
    ) -> None:
        """Begin to write a snapshot; waits for the one before, if it's still being written.

        Args:
            about: the engine's part, plain data with `seq`, `chain` and `exact`.
            save: writes the driver's part into a directory.
            before_publishing: makes durable what the snapshot relies on (the journal).
            size: about how many bytes `save` writes, for the message if it can't; 0: unknown.
        """
        self.wait()
        self.last_seq = about["seq"]
        joint = Joint(self._ranks) if self._ranks.world_size > 1 else None
        work = (dict(about), save, before_publishing, size, joint)
        self._task = self._background.start(lambda: self._work(*work), "tachograph-snapshot")

    @property
    def done(self) -> bool:
        """Whether one is done, or failed, that `collect` hasn't told of."""
        return bool(self._done)

    def wait(self) -> None:
        """Wait for the snapshot in flight, if there is one."""
        if self._task is not None:
            self._task.join()
            self._task = None

    def collect(self) -> Iterator[Outcome]:
        """Yield what became of the snapshots that were done since the last call."""
        while self._done:
            outcome = self._done.popleft()
            if outcome.fault is not None and self.last_seq == outcome.seq:
                self.last_seq = -1  # it isn't there, so it may be tried again
            yield outcome

    # -- in the other thread -------------------------------------------------------------------------------

    def _work(
        self,
        about: dict[str, Any],
        save: Save,
        before_publishing: Callable[[], None],
        size: Callable[[], int],
        joint: Joint | None,
    ) -> None:
        seq = about["seq"]
        temporary = self._root / f"{TEMPORARY}{seq:012d}.i{self._incarnation}"
        first = self._ranks.first
        try:
            if joint is None:
                snapshot = self._publish(temporary, about, save, before_publishing)
            elif first:
                with joint.published() as published:
                    snapshot = self._publish(temporary, about, joint.all_parts(save), before_publishing)
                    published(snapshot.path)
            else:
                snapshot = read(joint.part(save, before_publishing), self._disk)
        except BaseException as error:
            fault = self._fault(seq, error, size)
            if first:
                self._disk.remove_tree(temporary)
            self._done.append(Outcome(seq, fault=fault))
        else:
            gone, reason = self._prune(snapshot) if first else ([], "")
            again, self._said = reason == self._said, reason  # it is tried anew each time, and told once
            self._done.append(Outcome(seq, snapshot, None, gone, "" if again else reason))
        self._finished()

    def _publish(
        self, temporary: Path, about: dict[str, Any], save: Save, before_publishing: Callable[[], None]
    ) -> Snapshot:
        disk = self._disk
        make_dirs(disk, self._root)
        written = write_whole(disk, temporary, about, save, self._run, self._incarnation, before_publishing)
        path = self._root / f"{about['seq']:012d}"
        if path.exists():  # another incarnation's, damaged or superseded
            path = path.with_name(f"{path.name}.i{self._incarnation}")
        disk.rename(temporary, path)
        try:
            disk.fsync_dir(self._root)
        except OSError:
            with contextlib.suppress(OSError):
                disk.rename(path, temporary)  # where it is removed as any other that couldn't be written
            raise
        return attrs.evolve(written, path=path)

    def _fault(self, seq: int, error: BaseException, size: Callable[[], int]) -> SnapshotWriteFault | JournalWriteError:
        if isinstance(error, JournalWriteError):
            return error  # it speaks for itself, and ends the run whatever becomes of snapshots
        needed = size()
        room = f". It needs about {needed:,} bytes" if needed else ""
        fault = SnapshotWriteFault(
            f"the snapshot after seq {seq} couldn't be written to {self._root}: {error}{room}. Earlier ones are intact"
        )
        fault.path, fault.needed, fault.errno = self._root, needed, getattr(error, "errno", None)
        fault.__cause__ = error
        return fault

    def _prune(self, newest: Snapshot) -> tuple[list[str], str]:
        """Let go what `keep` doesn't name; return the names, and what went wrong. It never raises."""
        gone: list[str] = []
        if self.keep is None:
            return gone, ""
        try:
            for path in leftovers(self._run_dir, removed=True):
                self._disk.remove_tree(path)
            protected = {newest.path} if self.source is None else {newest.path, self.source}
            for entry in superfluous(self._entries(), self.keep, protected):
                try:
                    remove(self._disk, entry.path)
                finally:
                    if not entry.path.exists():
                        gone.append(entry.path.name)
            left = leftovers(self._run_dir, removed=True)
            return gone, f"{left[0]} couldn't be removed whole" if left else ""
        except Exception as error:
            return gone, f"{type(error).__name__}: {error}"

    def _entries(self) -> list[Entry]:
        if self._place is None:
            self._place = place_in(Journal(self._run_dir))
        entries = []
        for s in catalogue(self._run_dir, self._disk)[0]:
            if s.run == self._run:
                live = self._place(s) is not None
                entries.append(Entry(s.path, s.incarnation, s.seq, s.exact, live, self._state_in(s)))
        return entries

    def _state_in(self, snapshot: Snapshot) -> Mapping[str, Any]:
        """Return the fields of the state in a snapshot, which never change; none where they can't be read."""
        if snapshot.path not in self._states:
            try:
                held = snapshot.about()["state"]
            except (SnapshotFault, OSError, KeyError, TypeError):
                held = {}
            self._states[snapshot.path] = held if isinstance(held, dict) else {}
        return self._states[snapshot.path]


__all__ = ["Outcome", "SnapshotWriter", "write_whole"]
