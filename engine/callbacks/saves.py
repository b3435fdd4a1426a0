"""What a save on the disk is: a folder with a name, and in it a note of who wrote it, what for, and when."""

from __future__ import annotations

import json
import re
from itertools import count
from pathlib import Path
from typing import Any

import attrs

from .. import snapshots
from ..journal import Files, make_dirs
from ..retention import REMOVING

MODEL = "model.pt"
NOTE = "tachograph_save.json"
RESULTS = "tachograph_evaluate_results.json"
REPLACED = ".replaced-"
_PLAIN = frozenset((MODEL, NOTE, RESULTS))
_BAD = re.compile(r'[\x00-\x1f\x7f<>:"/\\|?*\s]')
_LONGEST = 200  # bytes of a name; file systems take 255, and temporary names are longer


@attrs.frozen
class Saved:
    """A save that is there.

    Attributes:
        name: of its folder.
        run: the id of the run that wrote it.
        kind: what it was made for: "topk", "regular", "last", "exception", ...
        seq: the transition after which it was made.
    """

    name: str
    run: str
    kind: str
    seq: int


def saved_in(path: Path) -> Saved | None:
    """Read what a folder says of the save in it; None where it isn't one, or was given another name."""
    try:
        note = json.loads((path / NOTE).read_bytes())
        found: Saved | None = Saved(note["name"], note["run"], note["kind"], note["seq"])
    except (OSError, ValueError, KeyError, TypeError):
        found = _saved_trainer(path)
    return found if found is not None and found.name == path.name else None


def _saved_trainer(path: Path) -> Saved | None:
    """Know a trainer whose note wasn't written any more: a kill struck after it was saved."""
    try:
        snapshot = snapshots.read(path)
    except snapshots.SnapshotFault:
        return None
    return Saved(path.name, snapshot.run, "", snapshot.seq)


def fitting(name: str) -> str:
    """Return a name that file systems take: what they don't like is replaced, and what is too long is cut."""
    fit = _BAD.sub("_", name).strip(". ") or "_"
    raw = fit.encode()
    return fit if len(raw) <= _LONGEST else raw[:_LONGEST].decode(errors="ignore")


def epochs_done(state: Any) -> int:
    """Count the epochs that are through, the one that has had its last batch included.

    Of a loader without a length it is known a moment later that a batch was the last one: when it has no other.
    """
    whole = 0 < state.batch_idx_in_epoch == state.num_batches_per_epoch  # its window is closed by now
    return int(state.cur_epoch_idx + (state.epoch_exhausted or whole))


def publish(files: Files, temporary: Path, place: Path) -> None:
    """Give a model's save its name. One that has it is replaced file by file, if one file is all there is of the model.

    Else it goes aside for the moment between two renames; `tidy` knows what to do after a kill in there.
    """
    new, old = _names(temporary), _names(place)
    if not place.exists():
        files.rename(temporary, place)
    elif old <= new <= _PLAIN:
        for name in sorted(new, key=lambda name: (name == NOTE, name)):
            files.rename(temporary / name, place / name)
        files.fsync_dir(place)
        files.remove_tree(temporary)
    else:
        aside = place.with_name(f"{REPLACED}{place.name}")
        files.remove_tree(aside)
        files.rename(place, aside)
        files.rename(temporary, place)
        files.fsync_dir(place.parent)
        files.remove_tree(aside)
    files.fsync_dir(place.parent)


def saves_of(run: str, folder: Path) -> dict[str, Saved]:
    """List the saves of a run in a folder, by their names."""
    found = (saved_in(path) for path in sorted(folder.glob("[!.]*")))
    return {held.name: held for held in found if held is not None and held.run == run}


def is_of(run: str, path: Path) -> bool:
    """Say whether there is a save of a run at a path."""
    held = saved_in(path)
    return held is not None and held.run == run


def free_name(folder: Path, name: str, run: str) -> str:
    """Return the name, or where something lies there that the run didn't write, the next one that is free."""
    names = (name if n == 1 else f"{name}-{n}" for n in count(1))
    return next(n for n in names if not (folder / n).exists() or is_of(run, folder / n))


def make_anew(folder: Path, files: Files) -> None:
    """Make an empty folder; what is there goes."""
    make_dirs(files, folder.parent)
    files.remove_tree(folder)
    files.make_dir(folder)


def tidy(folder: Path, files: Files) -> None:
    """Put right what a process that died had begun: half written saves go, half replaced ones come back."""
    for path in folder.glob(f"{REPLACED}*"):
        place = path.with_name(path.name.removeprefix(REPLACED))
        if not place.exists():
            files.rename(path, place)
        files.remove_tree(path)
    for prefix in (snapshots.TEMPORARY, REMOVING):
        for path in folder.glob(f"{prefix}*"):
            snapshots.settle(path.with_name(path.name.removeprefix(prefix)))
            files.remove_tree(path)


def _names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()} if folder.is_dir() else set()


__all__ = [
    "MODEL",
    "NOTE",
    "REPLACED",
    "RESULTS",
    "Saved",
    "epochs_done",
    "fitting",
    "free_name",
    "is_of",
    "make_anew",
    "publish",
    "saved_in",
    "saves_of",
    "tidy",
]
