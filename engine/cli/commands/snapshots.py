"""`tachograph snapshots`: lists a run's snapshots, verifies them byte by byte, lets old ones go, or exports a model."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tachograph.engine import recording
from tachograph.states import CallerError, TachographError

from ..screen import Screen, duration, printable, results, size

if TYPE_CHECKING:
    from tachograph.engine.retention import Entry, Keep
    from tachograph.engine.snapshots import Snapshot

    Place = Callable[[Snapshot], int | None]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Say what the command takes."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ls|verify|prune|export")
    ls = actions.add_parser("ls", help="list them", description="List the snapshots of a run.")
    verify = actions.add_parser("verify", help="read every byte", description="Read every byte, and compare digests.")
    prune = actions.add_parser("prune", help="remove old ones", description="Remove snapshots but those to keep.")
    export = actions.add_parser("export", help="write the weights in one", description="Write a snapshot's weights.")
    for action in (ls, verify, prune, export):
        action.add_argument("run", metavar="RUN", type=Path, help="the run directory")
        action.add_argument("--json", action="store_true", help="print JSON, one object a line")
    add = prune.add_argument
    add("--keep-last", metavar="N", type=int, help="keep the last N (1)")
    add("--keep-best", metavar="K", type=int, help="keep those with the K best results")
    add("--monitor", metavar="NAME", help="for --keep-best: a key of the results")
    add("--smaller-better", action="store_true", help="for --keep-best: a smaller value is the better one")
    add("--keep-every", metavar="N", type=int, help="keep the first after every N batches; -N: after every N epochs")
    add("--dry-run", action="store_true", help="say what would go, and change nothing")
    export.add_argument("-o", "--output", metavar="FILE", type=Path, required=True, help="the file to write")
    export.add_argument("--snapshot", metavar="NAME", help="which one (the newest that is intact)")


def run(arguments: argparse.Namespace) -> int:
    """Do what was asked for."""
    about = recording.load(arguments.run)
    return _ACTIONS[arguments.action](arguments, str(about["run"]), Screen())


# -- ls ----------------------------------------------------------------------------------------------------


def _ls(arguments: argparse.Namespace, run: str, screen: Screen) -> int:
    from tachograph.engine.snapshots import catalogue

    found, faults = catalogue(arguments.run)
    place = _place(arguments.run)
    rows = [_row(snapshot, run, place) for snapshot in found]
    rows += [{"snapshot": path.name, "fault": reason} for path, reason in faults]
    if not rows:
        return _none(arguments.run)
    if arguments.json:
        for row in rows:
            screen.json(row)
    else:
        columns = ["<", "seq", "<", "<state", "epoch", "batch", "size", "age", "<", "~results"]
        screen.table(columns, [_cells(row) for row in rows])
    return 0


def _none(run_dir: Path) -> int:
    print(f"{run_dir} has no snapshot", file=sys.stderr)
    return 1


def _place(run_dir: Path) -> Place | None:
    """Return what tells whether a snapshot is on the live history; None where the journal doesn't say."""
    from tachograph.engine.journal import Journal
    from tachograph.engine.snapshots import place_in

    try:
        return place_in(Journal(run_dir))
    except TachographError as error:
        print(f"which of them are live isn't known: {error}", file=sys.stderr)
        return None


def _state_in(snapshot: Snapshot) -> dict[str, Any]:
    """Return the fields of the state in a snapshot; none where they can't be read."""
    try:
        state = snapshot.about()["state"]
    except (TachographError, OSError, KeyError):
        return {}
    return state if isinstance(state, dict) else {}


def _row(snapshot: Snapshot, run: str, place: Place | None) -> dict[str, Any]:
    state = _state_in(snapshot)
    fault = snapshot.fault_by_size()
    return {
        "snapshot": snapshot.path.name,
        "seq": snapshot.seq,
        "incarnation": snapshot.incarnation,
        "state": state.get("state"),
        "epoch": state.get("cur_epoch_idx"),
        "batch": state.get("global_forward_batches"),
        "bytes": snapshot.size,
        "written": (snapshot.path / "COMMIT").stat().st_mtime,
        "exact": snapshot.exact,
        "live": None if place is None else place(snapshot) is not None,
        "results": state.get("results") or {},
        "fault": fault or ("" if snapshot.run == run else f"it is of the run {snapshot.run}"),
    }


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    if "seq" not in row:
        return (row["snapshot"], *[""] * 7, printable(row["fault"]), "")
    remarks = [
        row["fault"],
        "" if row["exact"] else "inexact",
        {True: "", False: "superseded", None: ""}[row["live"]],
    ]
    epoch, batch = ("" if row[name] is None else f"{row[name]:,}" for name in ("epoch", "batch"))
    age = duration(max(time.time() - row["written"], 0.0))
    numbers = (f"{row['seq']:,}", f"i{row['incarnation']}", row["state"] or "", epoch, batch, size(row["bytes"]), age)
    return row["snapshot"], *numbers, printable(", ".join(filter(None, remarks))), results(row["results"])


# -- verify ------------------------------------------------------------------------------------------------


def _verify(arguments: argparse.Namespace, run: str, screen: Screen) -> int:
    from tachograph.engine.snapshots import catalogue

    found, faults = catalogue(arguments.run)
    damaged = 0
    for path, reason in faults:
        damaged += 1
        _tell(screen, arguments.json, path.name, {"COMMIT": reason}, {})
    for snapshot in found:
        files = {name: snapshot.fault_of(name) for name in snapshot.files}
        damaged += any(files.values())
        files |= {"COMMIT": "" if snapshot.run == run else f"it is of the run {snapshot.run}"}
        _tell(screen, arguments.json, snapshot.path.name, files, dict(snapshot.files), snapshot.strangers())
        sys.stdout.flush()  # the next one may take a while
    if not found and not faults:
        return _none(arguments.run)
    if not arguments.json:
        count = len(found) + len(faults)
        verdict = f"{damaged:,} of {count:,} can't be used" if damaged else f"all {count:,} are intact"
        screen.line(screen.style(verdict, "bold"))
    return 1 if damaged else 0


def _tell(
    screen: Screen,
    as_json: bool,
    name: str,
    files: Mapping[str, str],
    sizes: Mapping[str, tuple[int, str]],
    strangers: list[str] | None = None,
) -> None:
    """Say of each file of a snapshot whether it is intact."""
    if as_json:
        held = [{"file": f, "bytes": sizes[f][0] if f in sizes else None, "fault": fault} for f, fault in files.items()]
        screen.json({"snapshot": name, "files": held, "strangers": strangers or []})
        return
    width = max(map(len, files))
    for file, fault in files.items():
        amount = size(sizes[file][0]) if file in sizes else ""
        verdict = screen.style(f"damaged: {printable(fault)}", "red") if fault else "intact"
        screen.line(f"{name}  {file:<{width}}  {amount:>8}  {verdict}")
    for stranger in strangers or []:
        screen.line(f"{name}  {printable(stranger):<{width}}  {'':>8}  not part of it")


# -- prune -------------------------------------------------------------------------------------------------


def _prune(arguments: argparse.Namespace, run: str, screen: Screen) -> int:
    from tachograph.engine.journal import Files, JournalLock
    from tachograph.engine.retention import remove
    from tachograph.engine.snapshots import clean

    keep = _rules(arguments)
    lock = None if arguments.dry_run else JournalLock(arguments.run)
    try:
        entries, going = _choose(arguments.run, run, keep)
        told = _said(screen, arguments.json, "would go" if arguments.dry_run else "removed")
        if lock is not None:
            for name in clean(arguments.run):
                told(name, 0)
        for path, amount in going.items():
            if lock is not None:
                remove(Files(), path)
            told(path.name, amount)
    finally:
        if lock is not None:
            lock.release()
    if not arguments.json:
        freed = f", {size(sum(going.values()))} in all" if going else ""
        screen.line(f"{len(going):,} of {len(entries):,} snapshots{freed}; {len(entries) - len(going):,} stay")
    return 0


def _rules(arguments: argparse.Namespace) -> Keep:
    from tachograph.engine.retention import Keep

    given = {"last": arguments.keep_last, "best": arguments.keep_best, "every": arguments.keep_every}
    held = {name: value for name, value in given.items() if value is not None}
    if not held:
        raise CallerError("say what to keep: --keep-last N, --keep-best K --monitor NAME, or --keep-every N")
    return Keep(**held, monitor=arguments.monitor, larger_better=not arguments.smaller_better)


def _choose(run_dir: Path, run: str, keep: Keep) -> tuple[list[Entry], dict[Path, int]]:
    """Return the run's snapshots, and of those that go the sizes. One that a resume would take never does."""
    from tachograph.engine.journal import Journal
    from tachograph.engine.retention import Entry, superfluous
    from tachograph.engine.snapshots import catalogue, newest, place_in

    place = place_in(Journal(run_dir))
    found = [s for s in catalogue(run_dir)[0] if s.run == run]
    entries = [
        Entry(s.path, s.incarnation, s.seq, s.exact, place(s) is not None, _state_in(s))
        for s in sorted(found, key=lambda s: (s.incarnation, s.seq))
    ]
    _check_monitor(keep, entries)
    source = newest(run_dir, run, place)[0] or next((s for s in reversed(found) if not s.fault()), None)
    if found and source is None:
        raise CallerError(f"none of the snapshots of {run_dir} is intact, so nothing was removed")
    protected = () if source is None else (source.path,)
    sizes = {s.path: s.size for s in found}
    return entries, {entry.path: sizes[entry.path] for entry in superfluous(entries, keep, protected)}


def _check_monitor(keep: Keep, entries: list[Entry]) -> None:
    """Refuse a name that no results have; those there are are listed."""
    fault = None
    for entry in entries:
        try:
            if keep.value(entry.state.get("results") or {}) is not None:
                return
        except CallerError as error:
            fault = error
    if fault is not None:
        raise fault


def _said(screen: Screen, as_json: bool, done: str) -> Callable[[str, int], None]:
    def told(name: str, amount: int) -> None:
        if as_json:
            screen.json({"snapshot": name, "bytes": amount, "done": done})
        else:
            screen.line(f"{done}  {name}  {size(amount) if amount else 'left by a process that died'}")
        sys.stdout.flush()

    return told


# -- export ------------------------------------------------------------------------------------------------


def _export(arguments: argparse.Namespace, run: str, screen: Screen) -> int:
    from tachograph.drivers.plain_models import export

    snapshot, target = _intact(arguments.run, run, arguments.snapshot), arguments.output
    tensors = export(snapshot.path, target)
    if arguments.json:
        screen.json({"snapshot": snapshot.path.name, "output": str(target), "tensors": tensors})
    else:
        screen.line(f"{tensors:,} tensors of {snapshot.path.name} are in {target}, for trainer.load_model")
    return 0


def _intact(run_dir: Path, run: str, name: str | None) -> Snapshot:
    """Return the snapshot of this name, or the newest one that can be used."""
    from tachograph.engine.snapshots import catalogue

    found = [s for s in catalogue(run_dir)[0] if s.run == run and name in (None, s.path.name)]
    for snapshot in sorted(found, key=lambda s: (s.incarnation, s.seq), reverse=True):
        if not snapshot.fault():
            return snapshot
    which = "no snapshot" if name is None else f"no snapshot {name}"
    raise CallerError(
        f"{run_dir} has {which} that is intact: `tachograph snapshots verify {run_dir}` says what is wrong"
    )


_ACTIONS: dict[str, Callable[[argparse.Namespace, str, Screen], int]] = {
    "ls": _ls,
    "verify": _verify,
    "prune": _prune,
    "export": _export,
}
