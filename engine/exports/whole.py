"""A file or a folder that is there as a whole or not at all."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from tachograph.engine.journal import Files
from tachograph.states.errors import CallerError

_OURS = ("events.out.tfevents.", "rank-")
"""How the names begin of what an exported folder holds."""


@contextlib.contextmanager
def whole(path: Path, *, folder: bool, force: bool) -> Iterator[Path]:
    """Give a temporary path to write to, and put what is there in its place at the end; remove it after an error.

    Args:
        path: what is to be written.
        folder: it is a folder, which is made.
        force: what is there may be replaced.

    Raises:
        CallerError: something is there that mustn't be replaced, or there is no folder to write into.
        OSError: the system refused.
    """
    _check(path, folder, force)
    temporary = path.with_name(f".{os.getpid()}-{path.name}")  # its end stays, which may say how it is packed
    _remove(temporary)
    try:
        if folder:
            temporary.mkdir()
        yield temporary
        for file in temporary.rglob("*") if folder else [temporary]:
            _sync(file)
        _put(temporary, path)
    except BaseException:
        _remove(temporary)
        raise


def _check(path: Path, folder: bool, force: bool) -> None:
    if not path.parent.is_dir():
        raise CallerError(f"{path} can't be written: there is no folder {path.parent}")
    if not os.path.lexists(path):
        return
    if not force:
        raise CallerError(f"{path} is there already: give another path, or replace it with force=True (--force)")
    if path.is_dir() != folder:
        raise CallerError(
            f"{path} is a {'folder' if path.is_dir() else 'file'}, which isn't replaced by the other kind"
        )
    if folder and not all(entry.name.startswith(_OURS) for entry in path.iterdir()):
        raise CallerError(f"{path} holds more than an export has written, so it isn't replaced")


def _put(temporary: Path, path: Path) -> None:
    old = None
    if path.is_dir() and not path.is_symlink():  # a folder can't be replaced in one move
        old = temporary.with_name(f"{temporary.name}.old")
        os.replace(path, old)
    os.replace(temporary, path)
    Files().fsync_dir(path.parent)
    if old is not None:
        shutil.rmtree(old)


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()


__all__ = ["whole"]
