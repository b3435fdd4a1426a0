"""The tree of runs that a run belongs with: what it goes on from, and what goes on from it.

A run tells its parent in `run.json`, and a parent doesn't know its children: they are looked for beside the runs that
are known. Nothing but `run.json` is read, and of many siblings only those that have a parent are taken apart.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs

_MOST = 20_000
"""Directories that are looked at beside a run."""
_HIGH = 100
"""Generations that are followed upwards."""
_ORPHAN = b'\n  "parent": null'


@attrs.define
class Kin:
    """A run of the tree.

    Attributes:
        run: its id; "" where nobody knows it.
        run_dir: where it lies; None where it isn't found.
        created: when, as its `run.json` says.
        parent: its parent's id; "" without one.
        seq: the transition of the parent that it goes on from; None without one.
        children: what goes on from it.
    """

    run: str
    run_dir: Path | None = None
    created: str = ""
    parent: str = ""
    seq: int | None = None
    children: list[Kin] = attrs.field(factory=list)

    def as_data(self) -> dict[str, Any]:
        """Return it and what is below it as plain data."""
        where = None if self.run_dir is None else str(self.run_dir)
        told = {"run": self.run, "run_dir": where, "created": self.created, "parent": self.parent or None}
        return {**told, "seq": self.seq, "children": [child.as_data() for child in self.children]}


def family(run_dir: Path, about: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the tree of runs that a run belongs with, from its first ancestor on; None where it stands alone.

    Args:
        run_dir: the run directory.
        about: its `run.json`.

    Returns:
        `tree`: the first ancestor, with its children in it, and theirs; `incomplete`: whether a limit cut the search.
    """
    search = _Search(run_dir, about)
    top = search.climb()
    search.descend(top)
    if not top.children:
        return None
    return {"tree": top.as_data(), "incomplete": search.cut}


class _Search:
    def __init__(self, run_dir: Path, about: Mapping[str, Any]) -> None:
        self.cut = False
        self._me = _kin(run_dir, about)
        self._known = {self._me.run: self._me}
        self._seen: set[Path] = set()
        self._orphans: dict[Path, list[Path]] = {}
        self._at = {self._me.run: _parent_dir(about)}
        self._look_beside(run_dir)

    def climb(self) -> Kin:
        """Go from parent to parent; one that isn't found is known by its id."""
        kin, way = self._me, [self._me]
        while kin.parent and len(way) < _HIGH:
            above = self._known.get(kin.parent) or self._find(kin)
            if any(above is held for held in way):  # a circle: no run can be its own ancestor
                return kin
            way.append(above)
            kin = above
        self.cut = self.cut or bool(kin.parent)
        return kin

    def _find(self, child: Kin) -> Kin:
        """Return a run's parent, which isn't among those known."""
        for path in self._places(child):
            about = _about(path)
            if about is not None and about.get("run") == child.parent:
                found = self._take(path, about)
                self._look_beside(path)
                return found
        missing = self._known[child.parent] = Kin(child.parent)
        return missing

    def _places(self, child: Kin) -> Iterator[Path]:
        """Where a parent may lie: where it was said to, by that name beside its child, anywhere beside it."""
        beside = (child.run_dir or Path()).resolve().parent
        said = self._at.get(child.run)
        if said is not None:
            yield said
            yield beside / said.name
        yield from self._orphans.get(beside, ())

    def _look_beside(self, run_dir: Path) -> None:
        """Take in all runs beside one that have a parent; remember where the others are."""
        room = run_dir.resolve().parent
        if room in self._seen:
            return
        self._seen.add(room)
        orphans = self._orphans[room] = []
        shown = run_dir.parent
        for name in self._names(room):
            raw = _read(room / name / "run.json")
            if raw is None:
                continue
            if _ORPHAN in raw:
                orphans.append(shown / name)
            else:
                about = _parsed(raw)
                if about is not None:
                    self._take(shown / name, about)

    def _names(self, room: Path) -> list[str]:
        with contextlib.suppress(OSError), os.scandir(room) as entries:
            names = [entry.name for _, entry in zip(range(_MOST + 1), entries, strict=False) if entry.is_dir()]
            self.cut = self.cut or len(names) > _MOST
            return sorted(names[:_MOST])
        return []

    def _take(self, path: Path, about: Mapping[str, Any]) -> Kin:
        kin = _kin(path, about)
        self._at.setdefault(kin.run, _parent_dir(about))
        return self._known.setdefault(kin.run, kin)

    def descend(self, top: Kin) -> None:
        """Hang every known run below its parent, as far as it belongs to this tree."""
        below: dict[str, list[Kin]] = {}
        for kin in self._known.values():
            if kin.parent and kin is not top:
                below.setdefault(kin.parent, []).append(kin)
        open_ones, hung = [top], {id(top)}
        while open_ones:
            kin = open_ones.pop()
            kin.children = [child for child in _in_order(below.get(kin.run, ())) if id(child) not in hung]
            hung.update(map(id, kin.children))
            open_ones += kin.children


def _in_order(kin: Iterable[Kin]) -> list[Kin]:
    return sorted(kin, key=lambda k: (k.seq or 0, k.created, str(k.run_dir)))


def _kin(path: Path, about: Mapping[str, Any]) -> Kin:
    told = about.get("parent")
    parent = told if isinstance(told, dict) else {}
    seq = parent.get("seq")
    where = (str(about.get("run", "")), path, str(about.get("created", "")))
    return Kin(*where, str(parent.get("run", "")), seq if isinstance(seq, int) else None)


def _parent_dir(about: Mapping[str, Any]) -> Path | None:
    parent = about.get("parent")
    told = parent.get("run_dir") if isinstance(parent, dict) else None
    return Path(told) if isinstance(told, str) and told else None


def _about(path: Path) -> dict[str, Any] | None:
    raw = _read(path / "run.json")
    return None if raw is None else _parsed(raw)


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except OSError:
        return None


def _parsed(raw: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(raw)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


__all__ = ["Kin", "family"]
