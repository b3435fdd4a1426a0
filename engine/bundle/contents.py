"""What goes into a bundle: which transitions, which snapshot, what of `run.json`, and what had to be masked in it."""

from __future__ import annotations

import json
import math
import re
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs

from tachograph.states import CallerError, TrainerState

from .. import recording
from ..journal import Journal, Record
from ..journal.codec import sealed, to_json
from ..journal.notes import NOTES, read_notes
from ..journal.segments import ranks_of
from ..snapshots import Snapshot, catalogue, digest_of_commit, place_in
from . import masking
from .archive import blocks_in, blocks_of
from .window import Window

BEFORE = 100
"""Transitions before the one that is asked for, where nothing else is said."""
AFTER = 20
"""Likewise behind it."""
_VARIABLES = (
    *("PYTHONHASHSEED", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "CUBLAS_WORKSPACE_CONFIG"),
    *("CUDA_LAUNCH_BLOCKING", "NVIDIA_TF32_OVERRIDE", "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "KMP_AFFINITY"),
)
"""The variables of the environment whose values may be told: they decide on bits, and on nothing else."""
_IS_VARIABLE = re.compile(r"[A-Z][A-Z0-9]*_[A-Z0-9_]+|PYTHON[A-Z]+|PATH|HOME|USER")


@attrs.define
class Contents:
    """What goes into a bundle.

    Attributes:
        run_dir: the run.
        about: its `run.json`, masked.
        around: the transition in question.
        first: the first transition that is in it.
        last: the last one.
        asked: the first transition that was asked for; those before it lead from the snapshot to it.
        snapshot: the nearest snapshot before the transition; None without one.
        windows: the journals, one a rank.
        notes: `notes.jsonl`, with the notes on these transitions.
        masked: what was masked, a place each.
        host: the name of the run's machine, which isn't told; "" if it isn't known.
        keep_secrets: nothing is masked.
    """

    run_dir: Path
    about: dict[str, Any]
    around: int
    first: int
    last: int
    asked: int
    snapshot: Snapshot | None
    windows: list[Window]
    notes: bytes
    masked: list[str]
    host: str
    keep_secrets: bool


def gather(
    run_dir: str | Path,
    around: int,
    *,
    before: int = BEFORE,
    after: int = AFTER,
    snapshot: bool = True,
    keep_secrets: bool = False,
) -> Contents:
    """Choose what goes into a bundle; nothing is written.

    Args:
        run_dir: the run directory.
        around: a transition.
        before: how many before it.
        after: how many after it.
        snapshot: with the nearest snapshot before it, and all transitions from there on.
        keep_secrets: leave in what looks like a secret.

    Raises:
        NotARun, JournalError: it isn't a run, or has no such transition.
        CallerError: a number can't be used, or something holds a secret that can't be masked.
    """
    where = Path(run_dir)
    about = recording.load(where)
    ranks = ranks_of(where)
    journal = Journal(where, rank=ranks[0])
    if min(before, after) < 0:
        raise CallerError(f"before and after are numbers of transitions >= 0, not {min(before, after)}")
    journal.seek(around)  # refused here, with what there is
    asked = max(around - before, journal.beginning.seq + 1)
    last = min(around + after, _last(journal))
    found = _nearest(journal, str(about["run"]), around) if snapshot else None
    first = asked if found is None else max(min(asked, found.seq), journal.beginning.seq + 1)
    about = _in_force(about, journal, journal.seek(first).incarnation)
    masked: list[str] = []
    host = str(about.get("host") or "")
    told = about if keep_secrets else _masked_about(about, host, masked)
    windows = [Window(where, n, first, last, host=host, keep_secrets=keep_secrets) for n in ranks]
    lives = sorted({life for window in windows for life in window.numbers})
    for window in windows:
        window.numbers = {life: lives.index(life) for life in window.numbers}
    notes = _notes(where, first, last, host, masked, keep_secrets)
    if found is not None and not keep_secrets:
        _check_snapshot(found)
    return Contents(where, told, around, first, last, asked, found, windows, notes, masked, host, keep_secrets)


def _in_force(about: dict[str, Any], journal: Journal, life: int) -> dict[str, Any]:
    """Return `run.json` with the settings of one of the run's lives, as if the run had begun so.

    What later lives changed is in their records.
    """
    held = recording.in_force(about, journal, life)
    environment = dict(held.pop("environment", {}))
    for name in [name for name in held if name.startswith("environment.")]:
        environment[name.partition(".")[2]] = held.pop(name)
    return {**about, "settings": held, "environment": environment}


def _last(journal: Journal) -> int:
    last = journal.last
    return 0 if last is None else last.seq


def _nearest(journal: Journal, run: str, seq: int) -> Snapshot | None:
    """Return the newest intact snapshot of the live history from which a transition can be executed again."""
    place = place_in(journal)
    held = [s for s in catalogue(journal.run_dir)[0] if s.run == run and s.exact and s.seq < seq]
    for snapshot in reversed(held):
        if place(snapshot) is not None and not snapshot.fault() and snapshot.about()["unwritten"] is None:
            return snapshot
    return None


def fetched(contents: Contents, rank: int, near: float = math.inf) -> Iterator[Record]:
    """Yield the transitions that brought a batch, of those that were asked for.

    Args:
        contents: what was chosen.
        rank: whose.
        near: how far they are from the one in question at most.
    """
    first, last = max(contents.asked, contents.around - near), min(contents.last, contents.around + near)
    for record in Journal(contents.run_dir, rank=rank).since(int(first)):
        if record.seq > last:
            return
        if record.event == "Fetched" and record.header.state == TrainerState.__name__:
            yield record


# -- what must not be told ---------------------------------------------------------------------------------


def _masked_about(about: Mapping[str, Any], host: str, masked: list[str]) -> dict[str, Any]:
    told = dict(masking.masked(about, "run.json", masked.append, host=host))
    if host:
        told["host"] = masking.called(host)
        masked.append("run.json.host (its name)")
    told["environment"] = _of_environment(told.get("environment") or {}, "run.json.environment", masked)
    return told


def _of_environment(held: Any, at: str, masked: list[str]) -> Any:
    """Mask the values of variables of the environment that aren't known to decide on bits."""
    if not isinstance(held, dict):
        return held
    told = {}
    for name, value in held.items():
        if _IS_VARIABLE.fullmatch(name) and name not in _VARIABLES and value is not None:
            masked.append(f"{at}.{name} (a variable of the environment)")
            told[name] = masking.MASK
        else:
            told[name] = _of_environment(value, f"{at}.{name}", masked)
    return told


def _notes(run_dir: Path, first: int, last: int, host: str, masked: list[str], keep_secrets: bool) -> bytes:
    lines = []
    for note in read_notes(run_dir).standing:
        if first <= note.seq <= last:
            text = (
                note.text if keep_secrets else masking.masked(note.text, f"{NOTES}.{note.id}", masked.append, host=host)
            )
            told = {"note": note.id, "seq": note.seq, "text": text, "time": note.time}
            lines.append(sealed(to_json(told)[:-1], 0)[0])
    return b"".join(lines)


def _check_snapshot(snapshot: Snapshot) -> None:
    """Refuse a snapshot with what looks like a secret: it is what it is, and can't be masked.

    Raises:
        CallerError: a file of it has one.
    """
    for name in snapshot.files:
        what = masking.secrets_in_blocks(_text_of(snapshot.path / name))
        if what:
            raise CallerError(
                f"{snapshot.path / name} holds what looks like {what}: trainer.state and what callbacks remember are "
                "in it. --without-snapshot leaves it out, --keep-secrets leaves it in"
            )


def _text_of(path: Path) -> Iterator[bytes]:
    """Read a file in blocks; of one of `torch.save`, which is a zip, the plain data and not the tensors."""
    if path.suffix == ".pt" and zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            for entry in archive.infolist():
                if "/data/" not in entry.filename:
                    with archive.open(entry) as part:
                        yield from blocks_in(part)
        return
    yield from blocks_of(path)


def commit_of(contents: Contents) -> bytes:
    """Return the `COMMIT` of the bundle's snapshot: the life that it belongs to has another number in the file."""
    assert contents.snapshot is not None
    held = json.loads((contents.snapshot.path / "COMMIT").read_bytes())
    del held["digest"]
    held["incarnation"] = contents.windows[0].life_of(contents.snapshot.seq)
    return json.dumps({**held, "digest": digest_of_commit(held)}).encode()


def run_json(contents: Contents) -> bytes:
    """Return the bundle's `run.json`."""
    return json.dumps(contents.about, indent=2, default=str).encode() + b"\n"


__all__ = ["AFTER", "BEFORE", "Contents", "commit_of", "fetched", "gather", "run_json"]
