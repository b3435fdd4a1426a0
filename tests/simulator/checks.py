"""What must hold after every life of a run, whatever befell it."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import attrs

from tachograph.engine.journal import Journal, Record
from tachograph.engine.snapshots import SnapshotFault, catalogue, read
from tachograph.states import Machine, TrainerState

from .disk import Disk

ASKED = ("stop_asked", "epoch_cut_asked", "num_batches_per_epoch", "n_epochs", "total_batches")
"""Fields that are changed between two transitions: by listeners, and by the limits of the process."""
TEMPORARY = (".tmp", ".writing-", ".removing-", ".run.json")


class Broken(AssertionError):
    """A promise was broken; the message tells which, and the story up to there."""


def check(holds: Any, promise: str) -> None:
    """Raise `Broken` if a promise doesn't hold."""
    if not holds:
        raise Broken(promise)


def holds_a_journal(run_dir: Path) -> bool:
    """Say whether there is a journal to read."""
    directory = run_dir / "journal" / "rank-0"
    return directory.is_dir() and any(directory.glob("*.jsonl*"))


def handed_over(disk: Disk, power: bool) -> dict[str, bytes]:
    """Return what the journal's files must hold from now on: what was handed over or, if the power goes, synced."""
    kept: dict[str, bytes] = {}
    for path, file in disk.files(durable=power).items():
        if path.endswith(".jsonl"):
            kept[path] = file.durable if power else file.data[: file.handed_over]
    return kept


def check_handed_over(disk: Disk, kept: dict[str, bytes]) -> None:
    """Nothing that was acknowledged is lost: it is in its file, or in the compressed one, byte for byte."""
    files = disk.files()
    for path, data in kept.items():
        plain, packed = files.get(path), files.get(f"{path}.gz")
        check(plain or packed or not data, f"{path} is gone, with {len(data)} bytes that were handed over")
        if plain is not None:
            check(plain.data.startswith(data), f"{path} lacks bytes that were handed over")
        elif packed is not None:
            check(zlib.decompress(packed.data, 31).startswith(data), f"{path}.gz lacks bytes that were handed over")


def check_history(run_dir: Path, machine: Machine, straight: dict[int, str] | None) -> Record | None:
    """The live history follows the table, and says what the straight run's says; return its last transition.

    Args:
        run_dir: the run.
        machine: the table.
        straight: the straight run's chain after each transition; None where the run isn't exact any more.
    """
    before, last, end = None, None, max(straight or {0: ""})
    records = list(Journal(run_dir))
    newest = records[-1].incarnation if records else 0
    for number, record in enumerate(records, 1):
        check(record.seq == number, f"transition {record.seq} stands where {number} should")
        ended = record.dest in machine.final and (record.event in ("Failed", "Stopped") or number < end)
        if straight is not None and not ended:
            check(record.chain == straight.get(number), f"{number} isn't the straight run's: {record.line!r}")
        if record.incarnation == newest:  # those before were looked at in an earlier life
            _check_step(machine, before or (last.state if last else TrainerState()), record)
            before = record.state
        last = record
    return last


def check_chain(run_dir: Path, last: Record) -> None:
    """The chain of the live history, computed anew, is the one that the journal tells."""
    journal = Journal(run_dir)
    check(journal.verify_chain() == journal.chain == last.chain, f"{journal.chain} isn't the chain")


def _check_step(machine: Machine, before: TrainerState, record: Record) -> None:
    after = record.state
    event = machine.event_classes[record.event](**record.data)
    before = attrs.evolve(before, **{name: getattr(after, name) for name in ASKED if name != "epoch_cut_asked"})
    check(before.state == record.source, f"transition {record.seq} begins in {record.source}, not in {before.state}")
    found = machine.next_state(before, event)
    check(found == record.dest, f"the table leads transition {record.seq} to {found}, not to {record.dest}")
    folded = event.fold(before, record.dest)
    check(alike(folded, after), f"transition {record.seq} folds to {folded}, not to {after}")


def alike(a: TrainerState, b: TrainerState) -> bool:
    """Say whether two states are the same, but for what listeners ask for and for limits."""
    return attrs.evolve(a, **{name: getattr(b, name) for name in ASKED}) == b


def check_sides(run_dir: Path, damaged: set[str], pruning: bool) -> bool:
    """Every snapshot that a `saved` record names is there and intact, and what was done again hasn't parted.

    Returns:
        Whether all lives were resumed exactly; if one wasn't, those after it may part from the straight run.
    """
    published: dict[str, tuple[int, int]] = {}
    exact = True
    for item in Journal(run_dir, history="all").everything():
        if isinstance(item, Record):
            continue
        if item.kind == "resumed":
            exact = exact and item.data["exact"]
        if item.kind == "saved":
            published[item.data["snapshot"]] = (item.incarnation, item.data["at"])
        check(item.kind != "diverged" or not exact, f"it diverged: {item.kind} {item.seq}")
    if not pruning:
        for name in published:
            fault = fault_of(run_dir / "snapshots" / name)
            check(not fault or name in damaged, f"{name} was published, but {fault}")
    elif published and not damaged:  # older ones went to make room for a newer one, if there is one
        name, taken = list(published.items())[-1]
        newer = [found for found in catalogue(run_dir)[0] if (found.incarnation, found.seq) >= taken]
        check(any(not found.fault() for found in newer), f"{name} was published, and no newer one is there")
    return exact


def fault_of(path: Path) -> str:
    """Say what is wrong with a snapshot."""
    try:
        return read(path).fault()
    except SnapshotFault as error:
        return str(error)


def check_no_leftovers(run_dir: Path, damaged: set[str]) -> None:
    """Nothing lies about under a temporary name, and no snapshot that isn't whole under its own."""
    for path in run_dir.rglob("*"):
        check(not any(mark in path.name for mark in TEMPORARY), f"{path.relative_to(run_dir)} was left behind")
    for path in (run_dir / "snapshots").glob("*"):
        check(path.name in damaged or not fault_of(path), f"{path.name} isn't whole: {fault_of(path)}")


def check_snapshot_at_end(run_dir: Path) -> None:
    """A run that a signal ended has a snapshot of where it stood, so that nothing is done again."""
    last = Journal(run_dir).last
    at = max((found.seq for found in catalogue(run_dir)[0] if found.exact), default=0)
    check(last is None or at >= last.seq - 1, f"a signal ended it after {last}, but the last exact snapshot is of {at}")
