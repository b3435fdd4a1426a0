"""Writing a bundle: a part of a run in one file, for a report of a bug."""

from __future__ import annotations

import itertools
import json
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from ..journal.files import rank_directory
from ..journal.notes import NOTES
from . import batches
from .archive import Archive, blocks_of, written
from .contents import Contents, commit_of, fetched, gather, run_json

if TYPE_CHECKING:
    from ..trainer import Trainer

SAMPLES = "samples.json"
_NEAR = 2_000
"""Transitions before and after the one in question whose sample ids are told at most: each is looked up by itself."""


@attrs.frozen
class Packed:
    """A bundle that was written, or would be.

    Attributes:
        path: the file.
        size: its size in bytes; 0 where it wasn't written.
        around: the transition in question.
        first: the first transition that is in it.
        last: the last one.
        snapshot: the name of its snapshot; None without one.
        files: name -> size in bytes, before compression.
        masked: what was masked, a place each.
        unknown: why sample ids or batches aren't in it, though they were looked for; "" if they are.
    """

    path: Path
    size: int
    around: int
    first: int
    last: int
    snapshot: str | None
    files: dict[str, int]
    masked: list[str]
    unknown: str


def pack(
    run_dir: str | Path,
    around: int,
    path: str | Path | None = None,
    *,
    before: int = 100,
    after: int = 20,
    snapshot: bool = True,
    trainer: Trainer | None = None,
    keep_secrets: bool = False,
) -> Packed:
    """Write what a run did around a transition into one file.

    It holds the records (each rank's), the nearest snapshot before the transition, the ids of the samples, the notes
    and `run.json`. Secrets are masked, and so are the names of the machine and of home directories.

    Args:
        run_dir: the run directory.
        around: the transition.
        path: the file; None: `<run>-<around>.tachograph.zip` in the current directory.
        before: transitions before it.
        after: transitions after it.
        snapshot: with the snapshot, and all transitions from there on, so that they can be executed again.
        trainer: one that is built as the run's was and isn't run: the batches that its loader makes go into the file.
        keep_secrets: mask nothing.

    Raises:
        NotARun, JournalError: it isn't a run, or has no such transition.
        CallerError: something holds a secret that can't be masked, or the trainer isn't the run's.
        OSError: the file can't be written.
    """
    how: dict[str, Any] = {"before": before, "after": after, "snapshot": snapshot, "keep_secrets": keep_secrets}
    return write(gather(run_dir, around, **how), path, trainer)


def write(contents: Contents, path: str | Path | None = None, trainer: Trainer | None = None) -> Packed:
    """Write what `gather` chose; as `pack`."""
    target = path_of(contents, path)
    with written(target) as archive:
        unknown = _write(archive, contents, trainer)
    return _told(contents, target, target.stat().st_size, {n: size for n, (size, _) in archive.files.items()}, unknown)


def path_of(contents: Contents, path: str | Path | None) -> Path:
    """Name the file that a bundle goes into."""
    return Path(f"{contents.run_dir.resolve().name}-{contents.around}.tachograph.zip") if path is None else Path(path)


def listed(contents: Contents, path: str | Path | None = None, *, ids: bool = True) -> Packed:
    """Say what `pack` would write, batches left aside.

    Args:
        contents: what `gather` chose.
        path: the file.
        ids: look for the sample ids, which imports torch.
    """
    files = {"run.json": len(run_json(contents))}
    for window in contents.windows:
        for name, piece in window.pieces():
            at = f"{_directory(window.rank)}/{name}"
            files[at] = files.get(at, 0) + len(piece)
    files |= {NOTES: len(contents.notes)} if contents.notes else {}
    unknown = ""
    if ids:
        raw, unknown = _samples(contents, None)
        files |= {SAMPLES: len(raw)} if raw else {}
    files |= {name: amount for name, amount, _ in _of_snapshot(contents)}
    return _told(contents, path_of(contents, path), 0, files, unknown)


def _told(contents: Contents, path: Path, size: int, files: dict[str, int], unknown: str) -> Packed:
    masked = list(dict.fromkeys([*contents.masked, *(m for window in contents.windows for m in window.masked)]))
    name = None if contents.snapshot is None else contents.snapshot.path.name
    where = contents.around, contents.first, contents.last
    return Packed(path, size, *where, name, files, masked, unknown)


def _write(archive: Archive, contents: Contents, trainer: Any) -> str:
    """Write everything; return why ids aren't known, or ""."""
    archive.add("run.json", [run_json(contents)])
    for window in contents.windows:
        for name, pieces in itertools.groupby(window.pieces(), key=lambda piece: piece[0]):
            archive.add(f"{_directory(window.rank)}/{name}", (line for _, line in pieces))
    if contents.notes:
        archive.add(NOTES, [contents.notes])
    raw, unknown = _samples(contents, trainer)
    if raw:
        archive.add(SAMPLES, [raw])
    for name, _, blocks in _of_snapshot(contents):
        archive.add(name, blocks, packed=False)
    if trainer is not None:
        with tempfile.TemporaryDirectory(prefix="tachograph-batches-") as folder:
            for path in batches.write(contents, trainer, Path(folder)):
                archive.add(f"batches/{path.name}", blocks_of(path), packed=False)
                path.unlink()
    archive.close(_manifest(contents, unknown))
    return unknown


def _manifest(contents: Contents, unknown: str) -> dict[str, Any]:
    from ..recording import environment

    ranks = {
        str(window.rank): {
            "first": window.before.seq + 1,
            "last": window.end.seq,
            "before": window.before.chain,
            "end": window.end.chain,
        }
        for window in contents.windows
        if window.end.seq > window.before.seq  # a rank may have had no part in it
    }
    return {
        "tachograph": environment({})["tachograph"],
        "run": contents.about["run"],
        "name": contents.run_dir.resolve().name,
        "around": contents.around,
        "ranks": ranks,
        "snapshot": None if contents.snapshot is None else contents.snapshot.path.name,
        "masked": _told(contents, Path(), 0, {}, unknown).masked,
        "unknown": unknown,
    }


def _of_snapshot(contents: Contents) -> Iterator[tuple[str, int, Iterable[bytes]]]:
    """Yield the files of the snapshot: name in the bundle, size in bytes, bytes in blocks."""
    if contents.snapshot is not None:
        root = contents.snapshot.path
        commit = commit_of(contents)
        yield f"snapshots/{root.name}/COMMIT", len(commit), [commit]
        for name in sorted(contents.snapshot.files):
            yield f"snapshots/{root.name}/{name}", (root / name).stat().st_size, blocks_of(root / name)


def _samples(contents: Contents, trainer: Any) -> tuple[bytes, str]:
    """Return the sample ids of the batches that were asked for, as JSON, and why some aren't known."""
    from ..samples import SamplesUnknown, samples_of

    found: dict[str, dict[str, Any]] = {}
    unknown = ""
    for window in contents.windows:
        for record in fetched(contents, window.rank, _NEAR):
            try:
                ids = samples_of(contents.run_dir, record.seq, rank=window.rank, trainer=trainer)
            except SamplesUnknown as error:
                unknown = unknown or str(error)
                break  # it is the same for all of them
            found.setdefault(f"rank-{window.rank}", {})[str(record.seq)] = ids
    return (json.dumps(found, indent=1, default=str).encode() + b"\n" if found else b""), unknown


def _directory(rank: int) -> str:
    return rank_directory(Path(), rank).as_posix()


__all__ = ["Packed", "listed", "pack", "path_of"]
