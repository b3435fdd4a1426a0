"""`Disk`: real files for those who read, and beside them a model of what would be left if the power went now.

What a process has handed over with `write` survives its death. What a power cut leaves is less:

- of bytes appended since the last sync any first part, perhaps with zeros behind it up to the old end;
- of a small file that is written in place (the durable mark) the old or the new bytes, since it lies in one sector;
- of names made, changed or removed since the directory's last sync any first part of these changes, in their order,
  or any selection of them;
- all that was synced, and every name whose directory was.

Every operation is counted. A `Strike` lies in wait for one of them.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import BinaryIO

import attrs

from tachograph.engine.journal import Files

SECTOR = 512


class Killed(BaseException):
    """The process is dead. Python code may still run, as if in a dream: nothing it does reaches the disk."""


@attrs.frozen
class Strike:
    """What happens at one operation.

    Attributes:
        kind: "kill"; "full": no space is left from here on; "broken": this operation fails; "garbled": a write to a
            snapshot hands over something else, and nobody is told; "unreadable": a file that is opened for reading
            can't be; "ctrl-c": KeyboardInterrupt.
        at: the number of the operation, or of the first one that it may strike; for "unreadable" of the reading.
        name: of the operations that it may strike; "": any.
        part: 0.0 to 1.0: how much of it gets done: below 1/3 nothing, above 2/3 all, between them a part of a write.
    """

    kind: str
    at: int
    part: float = 0.0
    name: str = ""

    def through(self, size: int) -> int:
        """Return how many bytes of a write get through."""
        return 0 if self.part < 1 / 3 else size if self.part > 2 / 3 else int((self.part * 3 - 1) * size)


@attrs.define(eq=False)
class File:
    """A file.

    Attributes:
        path: where it is, from the root.
        data: what is in it.
        durable: what is known to be on the disk.
        in_place: it is written in place.
        handed_over: how many bytes of it were written by calls that returned.
    """

    path: str
    data: bytes = b""
    durable: bytes = b""
    in_place: bool = False
    handed_over: int = 0

    def after_power_cut(self, rng: Random) -> bytes:
        """Choose what is left."""
        new, old = self.data, self.durable
        if new == old:
            return new
        if self.in_place and len(new) <= SECTOR:
            return new if rng.random() < 0.5 else old
        if not new.startswith(old):
            return new if rng.random() < 0.5 else old  # cut, and the cut not synced
        kept = new[: len(old) + int(rng.random() * (len(new) - len(old) + 1))]
        return kept.ljust(len(new), b"\0") if rng.random() < 0.25 else kept


@attrs.define(eq=False)
class Folder:
    """A directory: its names, those that are known to be on the disk, and the changes that aren't."""

    names: dict[str, File | Folder] = attrs.field(factory=dict)
    durable: dict[str, File | Folder] = attrs.field(factory=dict)
    changes: list[tuple[str, str, File | Folder]] = attrs.field(factory=list)

    def put(self, name: str, node: File | Folder) -> None:
        self.names[name] = node
        self.changes.append(("", name, node))

    def move(self, source: str, dest: str) -> None:
        node = self.names[dest] = self.names.pop(source)
        self.changes.append((source, dest, node))

    def drop(self, name: str) -> None:
        self.changes.append((name, "", self.names.pop(name)))

    def synced(self) -> None:
        self.durable, self.changes = dict(self.names), []

    def after_power_cut(self, rng: Random) -> None:
        """Choose which names are left, here and below; these are on the disk."""
        changes = self.changes[: int(rng.random() * (len(self.changes) + 1))]
        if rng.random() < 0.3:
            changes = [change for change in self.changes if rng.random() < 0.5]
        self.names = dict(self.durable)
        for source, dest, node in changes:
            if source and self.names.pop(source, None) is not node:
                continue  # its beginning is lost
            if dest:
                self.names[dest] = node
        self.synced()
        for node in self.names.values():
            if isinstance(node, Folder):
                node.after_power_cut(rng)
            else:
                node.data = node.durable = node.after_power_cut(rng)


class Disk(Files):
    """Files under one directory.

    Args:
        root: exists, is empty, and outlives every power cut.

    Attributes:
        operations: how many there were in this life.
        readings: files opened for reading in this life.
        dead: the process was killed.
        beside: depth of background work: what strikes the main thread doesn't strike there.
        fired: the strikes that have struck in this life, with the place.
        last_line: the last transition that was handed over.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._prefix = len(str(root)) + 1
        self.folder = Folder()
        self.beside = 0
        self._open: dict[int, File] = {}
        self.born()

    def born(self, strikes: tuple[Strike, ...] = ()) -> None:
        """Begin another life of the process."""
        self._strikes = list(strikes)
        self.operations = self.readings = 0
        self.dead = self._full = False
        self.fired: list[tuple[Strike, str]] = []
        self.last_line = b""

    def kill(self) -> None:
        """Kill the process, here."""
        self.dead = True
        raise Killed

    def cut_power(self, rng: Random) -> None:
        """Leave on the disk what is left when the power goes."""
        self.folder.after_power_cut(rng)
        for path in self.root.iterdir():
            shutil.rmtree(path)
        self._write_out(self.folder, self.root)

    def _write_out(self, folder: Folder, at: Path) -> None:
        for name, node in folder.names.items():
            if isinstance(node, Folder):
                (at / name).mkdir()
                self._write_out(node, at / name)
            else:
                (at / name).write_bytes(node.data)

    def replace(self, path: Path, data: bytes | None) -> bytes:
        """Put other bytes in a file's place, as a failing disk would; None removes it. Return what was in it."""
        folder, node = self._folder(path.parent), self._file(path)
        before = node.data
        if data is None:
            path.unlink()
            del folder.names[path.name]
            folder.synced()
        else:
            path.write_bytes(data)
            node.data = node.durable = data
        return before

    @property
    def last_seq(self) -> int:
        """The last transition that was handed over in this life; 0 without one."""
        return int(self.last_line[7 : self.last_line.index(b",")]) if self.last_line else 0

    def left_open(self) -> list[str]:
        """List the files that are open."""
        return [file.path for file in self._open.values()]

    def files(self, durable: bool = False) -> dict[str, File]:
        """List all files there are, by their path from the root; or those whose names are on the disk."""
        found: dict[str, File] = {}

        def walk(folder: Folder, at: str) -> None:
            for name, node in (folder.durable if durable else folder.names).items():
                if isinstance(node, Folder):
                    walk(node, f"{at}{name}/")
                else:
                    found[f"{at}{name}"] = node

        walk(self.folder, "")
        return found

    def _at(self, path: Path | str) -> str:
        return str(path)[self._prefix :]

    def _folder(self, path: Path) -> Folder:
        folder = self.folder
        for name in filter(None, self._at(path).split("/")):
            node = folder.names.get(name)
            if node is None:  # made by somebody who doesn't ask for files, like the lock
                node = Folder()
                folder.put(name, node)
            assert isinstance(node, Folder)
            folder = node
        return folder

    def _whole(self, file: File) -> str:
        return f"{self.root}/{file.path}"

    def _file(self, path: Path) -> File:
        node = self._folder(path.parent).names[path.name]
        assert isinstance(node, File)
        return node

    # -- what strikes --------------------------------------------------------------------------------------

    def _due(self, kinds: tuple[str, ...], number: int, what: str, path: Path | str) -> Strike | None:
        for strike in self._strikes:
            if strike.kind in kinds and strike.at <= number and strike.name in ("", what):
                if strike.kind == "ctrl-c" and self.beside:
                    continue
                self._strikes.remove(strike)
                self.fired.append((strike, f"at {what} {number}, {self._at(path)}"))
                return strike
        return None

    def _operate(self, name: str, path: Path | str, act: Callable[[], None], grows: bool = False) -> None:
        """Do an operation that is done whole or not at all, unless something strikes."""
        strike = self._begin(name, path, grows)
        try:
            if strike is None or (strike.part > 0.5 and strike.kind in ("kill", "ctrl-c")):
                act()
        finally:
            if strike is not None:
                self._strike(strike)

    def _begin(self, name: str, path: Path | str, grows: bool) -> Strike | None:
        if self.dead:
            raise Killed
        self.operations += 1
        if self._full and grows:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        if not self._strikes:
            return None
        kinds = ("kill", "ctrl-c", "broken", "full") if grows else ("kill", "ctrl-c", "broken")
        return self._due(kinds, self.operations, name, path)

    def _strike(self, strike: Strike) -> None:
        if strike.kind == "kill":
            self.kill()
        if strike.kind == "ctrl-c":
            raise KeyboardInterrupt
        self._full = self._full or strike.kind == "full"
        number = errno.ENOSPC if strike.kind == "full" else errno.EIO
        raise OSError(number, os.strerror(number))

    # -- the operations ------------------------------------------------------------------------------------

    def open_append(self, path: Path) -> int:
        opened: list[int] = []

        def act() -> None:
            opened.append(Files.open_append(self, path))
            file = self._open[opened[0]] = File(self._at(path))
            self._folder(path.parent).put(path.name, file)

        try:
            self._operate("create", path, act, grows=True)
        except BaseException:
            for fd in opened:
                self.close(fd)
            raise
        return opened[0]

    def open_update(self, path: Path) -> int:
        folder = self._folder(path.parent)
        if path.name not in folder.names:
            self._operate("create", path, lambda: folder.put(path.name, File(self._at(path))), True)
        elif self.dead:
            raise Killed
        fd = super().open_update(path)
        self._open[fd] = self._file(path)
        return fd

    def write(self, fd: int, data: bytes) -> int:
        file = self._open[fd]
        path = self._whole(file)
        if self._strikes and "/.writing-" in path and self._due(("garbled",), self.operations + 1, "write", path):
            data = data[:-1] + bytes([data[-1] ^ 1])
        strike = self._begin("write", path, grows=True)
        size = len(data) if strike is None else strike.through(len(data))
        if strike is not None and strike.kind in ("full", "broken"):
            size = min(size, len(data) - 1)
        if size:
            os.write(fd, data[:size])
            file.data += data[:size]
        if size == len(data) and data.startswith(b'{"seq"') and file.path.endswith(".jsonl"):
            self.last_line = data
        if strike is not None and size and strike.kind == "full":  # first a short write, then none at all
            self._full = True
            return size
        if strike is not None:
            self._strike(strike)
        if size == len(data):
            file.handed_over = len(file.data)
        return size

    def pwrite(self, fd: int, data: bytes, offset: int) -> int:
        file = self._open[fd]

        def act() -> None:
            os.pwrite(fd, data, offset)
            file.data = file.data[:offset].ljust(offset, b"\0") + data + file.data[offset + len(data) :]
            file.in_place = True

        self._operate("write", self._whole(file), act, grows=not file.data)
        return len(data)

    def fdatasync(self, fd: int) -> None:
        file = self._open[fd]

        def act() -> None:
            file.durable = file.data

        self._operate("sync", self._whole(file), act)

    def fsync_dir(self, path: Path) -> None:
        self._operate("sync", path, self._folder(path).synced)

    def truncate(self, fd: int, size: int) -> None:
        file = self._open[fd]

        def act() -> None:
            os.ftruncate(fd, size)
            file.data = file.data[:size]

        self._operate("cut", self._whole(file), act)

    def open_read(self, path: Path) -> BinaryIO:
        if self.dead:
            raise Killed
        self.readings += 1
        if self._due(("unreadable",), self.readings, "read", path) is not None:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return super().open_read(path)

    def make_dir(self, path: Path) -> None:
        def act() -> None:
            os.mkdir(path)
            self._folder(path.parent).put(path.name, Folder())

        self._operate("make", path, act, grows=True)

    def remove_tree(self, path: Path) -> None:
        try:
            for inner in sorted(path.iterdir()):
                self.remove_tree(inner) if inner.is_dir() else self.unlink(inner)
            self._operate("remove", path, lambda: (path.rmdir(), self._folder(path.parent).drop(path.name))[0])
        except OSError:
            if self.dead:
                raise Killed from None

    def rename(self, source: Path, dest: Path) -> None:
        assert source.parent == dest.parent

        def act() -> None:
            os.replace(source, dest)
            folder = self._folder(source.parent)
            folder.move(source.name, dest.name)
            node = folder.names[dest.name]
            if isinstance(node, File):
                node.path = self._at(dest)

        self._operate("rename", source, act)

    def unlink(self, path: Path) -> None:
        def act() -> None:
            os.unlink(path)
            self._folder(path.parent).drop(path.name)

        self._operate("remove", path, act)

    def close(self, fd: int) -> None:
        self._open.pop(fd, None)
        super().close(fd)
