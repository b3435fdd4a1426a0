"""The catalogue of snapshots: which are complete, which is the newest, and what is wrong with the others.

A snapshot is written under a temporary name, `COMMIT` last; then it is read back and checked, renamed, and the
directory fsynced (`snapshot_writer`). So under its own name it is whole, or it was damaged later, which the digests in
`COMMIT` show.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs

from tachograph.states.errors import TachographError

from .journal import Files, Journal, JournalError, write_file
from .retention import REMOVING

FORMAT = 1
DISK = Files()
TEMPORARY = ".writing-"
"""How the name of a snapshot that is being written begins."""


class SnapshotFault(TachographError, ValueError):
    """A snapshot can't be used; the message names the file and what is wrong with it."""


class SnapshotWriteFault(TachographError, OSError):
    """A snapshot couldn't be written; those that were there before still are.

    Attributes:
        path: the directory it was to be in.
        needed: about how many bytes it takes; 0 where that isn't known.
        errno: the number of the system's error; None where it wasn't one.
    """

    path: Path
    needed: int


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
        chains: of many ranks, the chain of each one's journal there; () of one.
    """

    path: Path
    seq: int
    incarnation: int
    chain: str
    run: str
    exact: bool
    files: dict[str, tuple[int, str]]
    chains: Sequence[str] = ()

    def fault(self, disk: Files = DISK) -> str:
        """Read every file and say what is wrong; "" if the snapshot is intact."""
        return next(filter(None, (self.fault_of(name, disk) for name in self.files)), "")

    def fault_of(self, name: str, disk: Files = DISK) -> str:
        """Read a file and say what is wrong with it; "" if it is intact."""
        fault = self._fault_by_size(name)
        if fault:
            return fault
        try:
            found = digest_of(self.path / name, disk)
        except OSError as error:
            return f"{name} can't be read: {error.strerror}"
        return "" if found == self.files[name][1] else f"{name} isn't what was written: its digest differs"

    def fault_by_size(self) -> str:
        """Say which file is missing or of another size; "" where none is. It reads no file."""
        return next(filter(None, map(self._fault_by_size, self.files)), "")

    def _fault_by_size(self, name: str) -> str:
        path, size = self.path / name, self.files[name][0]
        if not path.is_file():
            return f"{name} is missing"
        found = path.stat().st_size
        return "" if found == size else f"{name} has {found} bytes instead of {size}"

    def about(self) -> dict[str, Any]:
        """Read the engine's own part: the state and what belongs to it, as plain data.

        Raises:
            SnapshotFault: it isn't what was written.
            OSError: it can't be read.
        """
        raw = (self.path / "state.json").read_bytes()
        if digest_of_bytes(raw) != self.files.get("state.json", (0, ""))[1]:
            raise SnapshotFault(f"{self.path}/state.json isn't what was written: its digest differs")
        return json.loads(raw)  # type: ignore[no-any-return]

    def strangers(self) -> list[str]:
        """List what lies in its directory and isn't part of it."""
        own = {"COMMIT", *(name.split("/")[0] for name in self.files)}
        names = (p.name for p in self.path.iterdir())
        return sorted(n for n in names if n not in own and not n.startswith("tachograph_"))  # notes of callbacks

    @property
    def size(self) -> int:
        """Its size in bytes, as `COMMIT` tells."""
        return sum(size for size, _ in self.files.values())


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
        place = commit["seq"], commit["incarnation"], commit["chain"], commit["run"], commit["exact"]
        return Snapshot(path, *place, files, commit.get("chains", ()))
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


def candidates(found: list[Snapshot], faults: list[tuple[Path, str]], run: str) -> tuple[list[Snapshot], list[str]]:
    """Return a run's snapshots as they are tried, exact ones and newer ones first, and why others of the list aren't.

    Args:
        found: what `catalogue` lists,
        faults: and what it can't read.
        run: the run's id.
    """
    skipped = [f"{path.name} was passed over: {reason}" for path, reason in faults]
    skipped += [f"{s.path.name} was passed over: it is of the run {s.run}" for s in found if s.run != run]
    own = [s for s in reversed(found) if s.run == run]
    return sorted(own, key=lambda s: not s.exact), skipped  # stable: newest first within each


def newest(
    run_dir: Path,
    run: str,
    place: Callable[[Snapshot], int | None],
    disk: Files = DISK,
    lacking: Callable[[Snapshot], str] = lambda snapshot: "",
) -> tuple[Snapshot | None, list[str]]:
    """Find the newest complete and intact snapshot on a run's live history.

    Args:
        run_dir: the run.
        run: its id.
        place: tells the incarnation that a snapshot's point belongs to, on the history that goes on; see `place_in`.
        disk: where it is read from.
        lacking: says what the journal lacks of what leads to a snapshot; see `lacking_in`.

    Returns:
        The snapshot, and a sentence for each newer one that was passed over. An inexact one is taken only where
        there is no exact one.
    """
    ordered, skipped = candidates(*catalogue(run_dir, disk), run)
    for snapshot in ordered:
        where = place(snapshot)
        if where is None:
            continue
        placed = attrs.evolve(snapshot, incarnation=where)
        fault = placed.fault(disk) or lacking(placed)
        if not fault:
            return placed, skipped
        skipped.append(f"{snapshot.path.name} was passed over: {fault}")
    return None, skipped


def place_in(journal: Journal) -> Callable[[Snapshot], int | None]:
    """Return `place(snapshot)`: the incarnation that its point belongs to, on the history that a run goes on from.

    That is the one that took it; or a later one that went through the same point, with the same chain. None: its point
    isn't on that history.
    """
    bounds: dict[int, float] = {}
    lives = {life.number: life for life in journal.incarnations}
    number: int = max(lives, default=-1)
    bound = float("inf")
    while number in lives:
        bounds[number] = bound
        parent = lives[number].parent
        if parent is None:
            break
        number, bound = parent.incarnation, min(bound, parent.seq)

    def place(snapshot: Snapshot) -> int | None:
        if snapshot.seq <= bounds.get(snapshot.incarnation, -1):
            return snapshot.incarnation
        try:
            record = journal.seek(snapshot.seq)
        except JournalError:
            return None
        return record.incarnation if record.chain == snapshot.chain else None

    return place


def lacking_in(journal: Journal) -> Callable[[Snapshot], str]:
    """Return `lacking(snapshot)`: what a journal lacks of what leads to an intact snapshot; "" if nothing.

    A snapshot waits for the journal to be on the disk, unless the journal couldn't be written any more: that one
    carries what is missing, and a power cut may take those before.
    """
    ends = {life.number: life.last_seq for life in journal.incarnations}

    def lacking(snapshot: Snapshot) -> str:
        end = ends.get(snapshot.incarnation, 0)
        if snapshot.seq <= end or snapshot.seq <= end + len(snapshot.about()["unwritten"] or ()):
            return ""
        return f"the journal ends at {end}, and lacks what leads to it"

    return lacking


def digest_of_bytes(raw: bytes) -> str:
    """Return blake2b with 16 bytes, as hex."""
    return hashlib.blake2b(raw, digest_size=16).hexdigest()


def digest_of_commit(commit: dict[str, Any]) -> str:
    """Return the digest that a `COMMIT` carries of its other fields."""
    return digest_of_bytes(json.dumps(commit, sort_keys=True).encode())


def leftovers(run_dir: Path, *, removed: bool = False) -> list[Path]:
    """List what lies under temporary names: snapshots that were being written, or with `removed` those that went."""
    return sorted((run_dir / "snapshots").glob(f"{REMOVING if removed else TEMPORARY}*"))


def settle(path: Path) -> None:
    """Give a folder that a trainer was saved to its name back, if a kill struck between the two renames of a save."""
    if path.exists():
        return
    for prefix in (TEMPORARY, REMOVING):
        other = path.with_name(f"{prefix}{path.name}")
        with contextlib.suppress(SnapshotFault, OSError):
            if not read(other).fault():
                os.rename(other, path)
                return


def clean(run_dir: Path, disk: Files = DISK) -> list[str]:
    """Remove what processes that died left under temporary names; return the names of the half written ones."""
    torn = leftovers(run_dir)
    for path in [*torn, *leftovers(run_dir, removed=True)]:
        disk.remove_tree(path)
    return [path.name for path in torn]


def write_json(disk: Files, path: Path, value: Any) -> tuple[int, str]:
    """Write plain data into a new file; return its size in bytes and its digest."""
    raw = json.dumps(value).encode()
    write_file(disk, path, raw)
    return len(raw), digest_of_bytes(raw)


__all__ = [
    "FORMAT",
    "TEMPORARY",
    "Snapshot",
    "SnapshotFault",
    "SnapshotWriteFault",
    "candidates",
    "catalogue",
    "clean",
    "digest_of",
    "digest_of_bytes",
    "digest_of_commit",
    "leftovers",
    "newest",
    "place_in",
    "read",
    "settle",
    "write_json",
]
