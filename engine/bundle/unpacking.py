"""Reading a bundle, which may come from anywhere: nothing of it is trusted, and nothing half written is left.

It is checked before anything is written (names, sizes, the manifest), while it is (digests), and after (the chain, the
snapshot). Nothing in it is unpickled; the snapshot is read later, by `torch.load(weights_only=True)`, as all of them.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import stat
import zipfile
import zlib
from pathlib import Path, PurePosixPath
from typing import Any

import attrs

from tachograph.states import CallerError, TachographError

from ..journal import Journal
from ..snapshots import catalogue, digest_of_commit
from .archive import FORMAT, MANIFEST

_BLOCK = 1 << 20
_MANIFEST_MOST = 64 << 20
_RATIO = 100  # how much smaller text becomes at most: a journal 20 times
_SPARE = 16 << 20
_FORBIDDEN = '\\:<>|"?*'  # of which some system makes more than a letter
_NAMES = ("run.json", "notes.jsonl", "samples.json", "journal/", "snapshots/", "batches/")


class BundleFault(TachographError):
    """A file can't be unpacked; the message says what is wrong with it. Nothing was written."""


@attrs.frozen
class Unpacked:
    """A bundle that lies in a folder.

    Attributes:
        run_dir: the run directory.
        manifest: what the bundle says of itself.
    """

    run_dir: Path
    manifest: dict[str, Any]


def unpack(path: str | Path, run_dir: str | Path | None = None) -> Unpacked:
    """Make a run directory of a bundle: what reads runs reads it.

    Args:
        path: the file.
        run_dir: a folder that isn't there yet, or is empty; None: the file's name without `.tachograph.zip`, in the
            current directory.

    Raises:
        BundleFault: it isn't a bundle, is damaged, of a newer format, or isn't meant well.
        CallerError: the folder holds something.
        OSError: the file can't be read, or the folder not be written.
    """
    source = Path(path)
    target = Path(source.name.removesuffix(".zip").removesuffix(".tachograph")) if run_dir is None else Path(run_dir)
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise CallerError(f"{target} is there already: give -o a folder that isn't, or is empty")
    with open(source, "rb") as file:
        try:
            with zipfile.ZipFile(file) as archive:
                manifest = _manifest(source, archive)
                entries = _entries(source, archive, manifest, target)
                _write(source, archive, entries, manifest, target)
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
            raise BundleFault(f"{source} isn't a bundle, or is damaged: {error}") from error
    return Unpacked(target, manifest)


# -- before anything is written ----------------------------------------------------------------------------


def _manifest(source: Path, archive: zipfile.ZipFile) -> dict[str, Any]:
    try:
        entry = archive.getinfo(MANIFEST)
    except KeyError:
        raise BundleFault(
            f"{source} isn't a whole bundle, as `tachograph pack` writes it: it has no {MANIFEST}"
        ) from None
    if entry.file_size > _MANIFEST_MOST:
        raise BundleFault(f"{source}: {MANIFEST} says it has {entry.file_size:,} bytes, which none has")
    with archive.open(entry) as file:
        raw = file.read(_MANIFEST_MOST + 1)
    try:
        found = json.loads(raw)
        version, digest = found["format"], found.pop("digest", "")
        if isinstance(version, int) and version > FORMAT:
            raise BundleFault(f"{source} is of format {version}, this version reads up to {FORMAT}: upgrade tachograph")
        files = {str(n): (size, told) for n, (size, told) in found["files"].items()}
        sound = all(type(size) is int and size >= 0 and type(told) is str for size, told in files.values())
        if not sound or not isinstance(found["ranks"], dict):
            raise ValueError
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BundleFault(f"{source}: {MANIFEST} can't be read: it isn't what `tachograph pack` writes") from error
    if digest != digest_of_commit(found):
        raise BundleFault(f"{source}: {MANIFEST} isn't what was written: its digest differs")
    return found  # type: ignore[no-any-return]


def _entries(
    source: Path, archive: zipfile.ZipFile, manifest: dict[str, Any], target: Path
) -> dict[str, zipfile.ZipInfo]:
    """Hold the entries against the manifest, and refuse names and sizes that no bundle has."""
    found: dict[str, zipfile.ZipInfo] = {}
    for entry in archive.infolist():
        name = entry.filename
        fault = _fault_of(entry) or ("is in it twice" if name in found else "")
        if fault:
            raise BundleFault(f"{source} isn't unpacked: {name!r} {fault}")
        found[name] = entry
    del found[MANIFEST]
    wanted = manifest["files"]
    strange = sorted(found.keys() ^ wanted.keys())
    if strange:
        which = "isn't named in its manifest" if strange[0] in found else "is missing"
        raise BundleFault(f"{source} is damaged: {strange[0]!r} {which}")
    for name, entry in found.items():
        if entry.file_size != wanted[name][0]:
            raise BundleFault(f"{source} is damaged: {name!r} has {entry.file_size:,} bytes, not {wanted[name][0]:,}")
    needed = sum(entry.file_size for entry in found.values())
    free = shutil.disk_usage(_existing(target)).free
    if needed + _SPARE > free:
        raise BundleFault(f"{source} takes {needed:,} bytes, and {_existing(target)} has {free:,} free")
    return found


def _fault_of(entry: zipfile.ZipInfo) -> str:
    """Say what is wrong with an entry; "" if nothing is."""
    name, path = entry.filename, PurePosixPath(entry.filename)
    plain = name == str(path) and not path.is_absolute() and ".." not in path.parts and name.isprintable()
    if not plain or any(letter in name for letter in _FORBIDDEN):
        return "is no name of a file within a folder"
    if name != MANIFEST and not name.startswith(_NAMES):
        return "is nothing that a bundle holds"
    kind = stat.S_IFMT(entry.external_attr >> 16)
    if entry.is_dir() or kind not in (0, stat.S_IFREG):
        return "is no plain file"
    if entry.flag_bits & 1:
        return "is encrypted"
    if entry.file_size > _RATIO * entry.compress_size + _BLOCK:
        return f"says it grows from {entry.compress_size:,} bytes to {entry.file_size:,}"
    return ""


def _existing(path: Path) -> Path:
    """Return the nearest folder above a path that is there."""
    return next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.is_dir())


# -- while it is written, and after ------------------------------------------------------------------------


def _write(
    source: Path, archive: zipfile.ZipFile, entries: dict[str, zipfile.ZipInfo], manifest: dict[str, Any], target: Path
) -> None:
    temporary = target.absolute().with_name(f".{target.absolute().name}.unpacking-{os.getpid()}")
    missing = [folder for folder in temporary.parents if not folder.exists()]
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir(parents=True)
        for name, entry in entries.items():
            _extract(source, archive, entry, temporary / name, *manifest["files"][name])
        _check(source, temporary, manifest)
        if target.exists():
            target.rmdir()
        os.replace(temporary, target)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        for folder in missing:
            with contextlib.suppress(OSError):
                folder.rmdir()
        raise


def _extract(
    source: Path, archive: zipfile.ZipFile, entry: zipfile.ZipInfo, path: Path, size: int, digest: str
) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    told, left = hashlib.blake2b(digest_size=16), size
    with archive.open(entry) as held, open(path, "xb") as file:
        while block := held.read(_BLOCK):
            left -= len(block)
            if left < 0:
                break
            told.update(block)
            file.write(block)
    if left or told.hexdigest() != digest:
        raise BundleFault(f"{source} is damaged: {entry.filename!r} isn't what was written, its digest differs")


def _check(source: Path, run_dir: Path, manifest: dict[str, Any]) -> None:
    """Compute the chains anew, and read the snapshot: what is in the folder proves itself."""
    try:
        for rank, told in manifest["ranks"].items():
            journal = Journal(run_dir, rank=int(rank))
            found = journal.beginning.chain, journal.verify_chain()
            if found != (told["before"], told["end"]):
                raise BundleFault(f"{source} is damaged: the chain of rank {rank} isn't the one in its manifest")
        snapshots, faults = catalogue(run_dir)
        wrong = [reason for _, reason in faults] + [f"{s.path.name}: {s.fault()}" for s in snapshots if s.fault()]
        if wrong:
            raise BundleFault(f"{source} is damaged: {wrong[0]}")
    except (TachographError, KeyError, TypeError, ValueError) as error:
        if isinstance(error, BundleFault):
            raise
        said = str(error).replace(str(run_dir), str(source))
        raise BundleFault(f"{source} is damaged: {said}") from error


__all__ = ["BundleFault", "Unpacked", "unpack"]
