"""The catalogue of snapshots: which are complete, which is the newest, and how one is published.

A snapshot is written under a temporary name beside the run, `COMMIT` last; then it is read back and checked,
renamed, and the directory fsynced. So under its own name it is whole, or it was damaged later, which the digests in
`COMMIT` show. Write new, verify, publish: nothing old is touched before.
"""

from __future__ import annotations

import hashlib
import json
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs

from tachograph.states.errors import TachographError

from .journal import Files, Task, make_dirs, write_file
from .world import World

FORMAT = 1
DISK = Files()
_TEMPORARY = ".writing-"


class SnapshotFault(TachographError, ValueError):
    """A snapshot can't be used; the message names the file and what is wrong with it."""


class SnapshotWriteFault(TachographError, OSError):
    """A snapshot couldn't be written; those that were there before still are."""


@attrs.frozen
class Snapshot:
    """A published snapshot, as its `COMMIT` tells.

    Attributes:
        path: its directory.
        seq: the transition after which it was taken.
        incarnation: of the process that took it.
        chain: the journal's chain there.
        run: the run it belongs to.
        exact: False if an error had struck while a state's work was half done.
        files: name -> (size in bytes, digest).
    """

    path: Path
    seq: int
    incarnation: int
    chain: str
    run: str
    exact: bool
    files: dict[str, tuple[int, str]]

    def fault(self, disk: Files = DISK) -> str:
        """Read every file and say what is wrong; "" if the snapshot is intact."""
        for name, (size, digest) in self.files.items():
            path = self.path / name
            if not path.is_file():
                return f"{name} is missing"
            if path.stat().st_size != size:
                return f"{name} has {path.stat().st_size} bytes instead of {size}"
            try:
                found = digest_of(path, disk)
            except OSError as error:
                return f"{name} can't be read: {error.strerror}"
            if found != digest:
                return f"{name} isn't what was written: its digest differs"
        return ""

    def about(self) -> dict[str, Any]:
        """Read the engine's own part: the state and what belongs to it, as plain data."""
        return json.loads((self.path / "state.json").read_bytes())  # type: ignore[no-any-return]


def digest_of(path: Path, disk: Files = DISK) -> str:
    """Return a file's blake2b with 16 bytes, as hex."""
    digest = hashlib.blake2b(digest_size=16)
    with disk.open_read(path) as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def read(path: Path, disk: Files = DISK) -> Snapshot:
    """Read a snapshot's `COMMIT`.

    Raises:
        SnapshotFault: there is none, it can't be read, or its format is newer.
    """
    try:
        with disk.open_read(path / "COMMIT") as file:
            commit = json.loads(file.read())
        if commit["format"] > FORMAT:
            raise SnapshotFault(
                f"{path} is of format {commit['format']}, this version reads up to {FORMAT}: upgrade tachograph"
            )
        if commit.pop("digest") != digest_of_commit(commit):
            raise SnapshotFault(f"{path}/COMMIT isn't what was written: its digest differs")
        files = {name: (size, digest) for name, (size, digest) in commit["files"].items()}
        return Snapshot(
            path, commit["seq"], commit["incarnation"], commit["chain"], commit["run"], commit["exact"], files
        )
    except FileNotFoundError:
        raise SnapshotFault(f"{path} isn't a complete snapshot: it has no COMMIT") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, SnapshotFault):
            raise
        raise SnapshotFault(f"{path}/COMMIT can't be read: {error!r}") from error


def catalogue(run_dir: Path, disk: Files = DISK) -> tuple[list[Snapshot], list[tuple[Path, str]]]:
    """List a run's published snapshots, oldest first, and what can't be read beside them, with the reason."""
    found, faults = [], []
    for path in sorted((run_dir / "snapshots").glob("*")):
        if path.name.startswith(".") or not path.is_dir():
            continue
        try:
            found.append(read(path, disk))
        except SnapshotFault as fault:
            faults.append((path, str(fault)))
    return sorted(found, key=lambda s: (s.seq, s.incarnation)), faults


def newest(
    run_dir: Path, is_live: Callable[[int, int], bool], disk: Files = DISK
) -> tuple[Snapshot | None, list[str]]:
    """Find the newest complete and intact snapshot on a run's live history.

    Args:
        run_dir: the run.
        is_live: `is_live(incarnation, seq)`: this point belongs to the history that goes on.
        disk: where it is read from.

    Returns:
        The snapshot, and a sentence for each newer one that was passed over. An inexact one is taken only where
        there is no exact one.
    """
    found, faults = catalogue(run_dir, disk)
    skipped = [f"{path.name} was passed over: {reason}" for path, reason in faults]
    live = [s for s in reversed(found) if is_live(s.incarnation, s.seq)]
    for snapshot in sorted(live, key=lambda s: not s.exact):  # stable: newest first within exact and inexact
        fault = snapshot.fault(disk)
        if not fault:
            return snapshot, skipped
        skipped.append(f"{snapshot.path.name} was passed over: {fault}")
    return None, skipped


class SnapshotWriter:
    """Publishes snapshots beside the run, one at a time.

    Args:
        run_dir: the run.
        run: its id.
        incarnation: of this process.
        finished: called, from another thread, when one is done or failed; it must only raise a flag.
        world: the disk, and what does the work beside the run.
    """

    def __init__(
        self, run_dir: Path, run: str, incarnation: int, finished: Callable[[], None], world: World | None = None
    ) -> None:
        world = world or World()
        self._disk = world.files
        self._background = world.background
        self._root = run_dir / "snapshots"
        self._run = run
        self._incarnation = incarnation
        self._finished = finished
        self._task: Task | None = None
        self._done: deque[Snapshot] = deque()
        self._error: BaseException | None = None
        self.last_seq = -1

    def write(
        self,
        about: Mapping[str, Any],
        save: Callable[[Path], dict[str, tuple[int, str]]],
        before_publishing: Callable[[], None],
    ) -> None:
        """Begin to write a snapshot; waits for the one before, if it's still being written.

        Args:
            about: the engine's part, plain data with `seq`, `chain` and `exact`.
            save: writes the driver's part into a directory.
            before_publishing: makes durable what the snapshot relies on (the journal).
        """
        self.wait()
        self.last_seq = about["seq"]
        work = (dict(about), save, before_publishing)
        self._task = self._background.start(lambda: self._work(*work), "tachograph-snapshot")

    def wait(self) -> None:
        """Wait for the snapshot in flight, if there is one."""
        if self._task is not None:
            self._task.join()
            self._task = None

    def collect(self) -> list[Snapshot]:
        """Return the snapshots published since the last call.

        Raises:
            SnapshotWriteFault: one couldn't be written.
        """
        done = [self._done.popleft() for _ in range(len(self._done))]
        if self._error is not None:
            error, self._error = self._error, None
            raise SnapshotWriteFault(
                f"the snapshot after seq {self.last_seq} couldn't be written to {self._root}: {error}. "
                "Earlier ones are intact"
            ) from error
        return done

    def _work(self, about: dict[str, Any], save: Callable[[Path], Any], before_publishing: Callable[[], None]) -> None:
        temporary = self._root / f"{_TEMPORARY}{about['seq']:012d}.i{self._incarnation}"
        try:
            published = self._publish(temporary, about, save, before_publishing)
            self._done.append(published)
        except BaseException as error:
            self._error = error
            self._disk.remove_tree(temporary)
        self._finished()

    def _publish(
        self, temporary: Path, about: dict[str, Any], save: Callable[[Path], Any], before_publishing: Callable[[], None]
    ) -> Snapshot:
        disk = self._disk
        make_dirs(disk, self._root)
        disk.remove_tree(temporary)
        disk.make_dir(temporary)
        files = dict(save(temporary))
        files["state.json"] = _write(disk, temporary / "state.json", about)
        before_publishing()
        commit = {"format": FORMAT, "run": self._run, "incarnation": self._incarnation, "files": files}
        commit |= {key: about[key] for key in ("seq", "chain", "exact")}
        _write(disk, temporary / "COMMIT", {**commit, "digest": digest_of_commit(commit)})
        fault = read(temporary, disk).fault(disk)
        if fault:
            raise OSError(f"read back, {fault}")
        disk.fsync_dir(temporary)
        path = self._root / f"{about['seq']:012d}"
        if path.exists():  # another incarnation's, damaged or superseded
            path = path.with_name(f"{path.name}.i{self._incarnation}")
        disk.rename(temporary, path)
        disk.fsync_dir(self._root)
        return read(path, disk)


def digest_of_commit(commit: dict[str, Any]) -> str:
    """Return the digest that a `COMMIT` carries of its other fields: blake2b with 16 bytes, as hex."""
    return hashlib.blake2b(json.dumps(commit, sort_keys=True).encode(), digest_size=16).hexdigest()


def clean(run_dir: Path, disk: Files = DISK) -> list[str]:
    """Remove what writers that died left under temporary names; return the names."""
    left = list((run_dir / "snapshots").glob(f"{_TEMPORARY}*"))
    for path in left:
        disk.remove_tree(path)
    return [path.name for path in left]


def _write(disk: Files, path: Path, value: Any) -> tuple[int, str]:
    raw = json.dumps(value).encode()
    write_file(disk, path, raw)
    return len(raw), hashlib.blake2b(raw, digest_size=16).hexdigest()


__all__ = [
    "FORMAT",
    "Snapshot",
    "SnapshotFault",
    "SnapshotWriteFault",
    "SnapshotWriter",
    "catalogue",
    "clean",
    "digest_of",
    "digest_of_commit",
    "newest",
    "read",
]
