"""Which snapshots of a run are kept, and how the others go.

What is kept follows from the snapshots that are there: each says where it was taken and what the last validation said,
so a resumed run decides as the run before it would have. A snapshot goes in two steps, a rename and a removal: under
its own name it is whole to the end, and what a kill leaves half removed is removed at the next start.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from tachograph.states.errors import CallerError

from .journal import Files

REMOVING = ".removing-"
"""How the temporary name of a snapshot that goes begins."""


@attrs.frozen(kw_only=True)
class Keep:
    """Which snapshots stay when a new one is published: those that any of these rules names.

    The newest one that is intact always stays, and so does the one that the process was resumed from. Snapshots of
    other runs, and whatever else lies beside them, are never touched.

    Attributes:
        last: the last so many, >= 1, in the order they were taken.
        best: of the so many best validations the first snapshot taken after each; 0: none.
        monitor: for `best`: a key of the results ("acc#val", or "acc" if that is clear).
        larger_better: a larger value is the better one. NaN is never good, and of equal values the earlier one is.
        every: n > 0: the first snapshot after every n training batches of the run; -n: after every n epochs; None:
            none.

    Raises:
        CallerError: a number is out of range, or `best` and `monitor` aren't given together.
    """

    last: int = 1
    best: int = 0
    monitor: str | None = None
    larger_better: bool = True
    every: int | None = None

    def __attrs_post_init__(self) -> None:
        for name, least in (("last", 1), ("best", 0)):
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise CallerError(f"Keep: {name} must be an integer >= {least}, not {value!r}")
        if self.every is not None and (type(self.every) is not int or self.every == 0):
            raise CallerError(f"Keep: every must be n > 0 (batches), -n (epochs) or None, not {self.every!r}")
        if (self.best > 0) != (self.monitor is not None):
            lacking = "monitor" if self.monitor is None else "best"
            raise CallerError(f"Keep: best and monitor belong together: {lacking} is missing")
        if self.monitor is not None and not isinstance(self.monitor, str):
            raise CallerError(f"Keep: monitor must be a key of the results, not {self.monitor!r}")
        if type(self.larger_better) is not bool:
            raise CallerError(f"Keep: larger_better must be True or False, not {self.larger_better!r}")

    @classmethod
    def of(cls, given: Any) -> Keep | None:
        """Read what `keep_snapshots` was given: None keeps all, an integer the last so many.

        Raises:
            CallerError: it is neither, nor a `Keep`.
        """
        if given is None or isinstance(given, Keep):
            return given
        if type(given) is not int or given < 1:
            raise CallerError(f"keep_snapshots must be None (all), an integer >= 1 or a Keep(...), not {given!r}")
        return cls(last=given)

    def plain(self) -> Any:
        """Return it as `run.json` keeps it: a number, or the rules by their names."""
        held = {name: value for name, value in attrs.asdict(self).items() if value != _DEFAULTS[name]}
        return self.last if set(held) <= {"last"} else {"last": self.last, **held}

    def check_state(self, state: Any) -> None:
        """Refuse rules that ask for what a state doesn't have.

        Raises:
            CallerError: a field is missing; it is named.
        """
        needed = (["results", "validations"] if self.best else []) + ([self._counter] if self.every else [])
        for name in needed:
            if not hasattr(state, name):
                rule = "best" if name in ("results", "validations") else "every"
                raise CallerError(f"Keep: {rule} looks at {name}, which {type(state).__name__} doesn't have")

    @property
    def _counter(self) -> str:
        return "global_forward_batches" if (self.every or 0) > 0 else "cur_epoch_idx"

    def value(self, results: Mapping[str, Any]) -> float | None:
        """Return what `monitor` names of an evaluation's results; None where there is nothing to compare.

        Raises:
            CallerError: there are results, and none or more than one has this name; those there are are listed.
        """
        if self.monitor is None or not results:
            return None
        from .callbacks.monitor import Monitor  # not before: reading commands have no use for callbacks

        value = Monitor(self.monitor, self.larger_better).value(dict(results))
        return None if value is None or math.isnan(value) else value


_DEFAULTS = {field.name: field.default for field in attrs.fields(Keep)}


@attrs.frozen
class Entry:
    """A snapshot, as far as it matters here.

    Attributes:
        path: its directory.
        incarnation: of the process that took it.
        seq: the transition after which it was taken.
        exact: no state's work was half done.
        live: it is on the history that goes on.
        state: the fields of the state in it.
    """

    path: Path
    incarnation: int
    seq: int
    exact: bool
    live: bool
    state: Mapping[str, Any]


def superfluous(entries: Collection[Entry], keep: Keep, protected: Collection[Path] = ()) -> list[Entry]:
    """List what a rule lets go, oldest first.

    Inexact snapshots count apart: of them only the newest stays, and only while there is no exact one after it. What
    was superseded, because the run was resumed from an earlier point, stays while it is among the last ones.

    Args:
        entries: all snapshots of one run.
        keep: the rules.
        protected: directories that stay in any case.
    """
    taken = sorted(entries, key=lambda e: (e.incarnation, e.seq))
    exact = [e for e in taken if e.exact]
    live = sorted((e for e in exact if e.live), key=lambda e: (e.seq, e.incarnation))
    stay = [*taken[-1:], *exact[-keep.last :], *_best(live, keep), *_regular(live, keep)]
    kept = {e.path for e in stay}.union(protected)
    return [e for e in taken if e.path not in kept]


def _best(live: Sequence[Entry], keep: Keep) -> list[Entry]:
    first: dict[tuple[Any, float], Entry] = {}  # of each validation
    for entry in live if keep.best else ():
        value = _value(entry, keep)
        if value is not None:
            first.setdefault((entry.state.get("validations"), value), entry)
    ranked = sorted(first.items(), key=lambda item: -item[0][1] if keep.larger_better else item[0][1])  # stable
    return [entry for _, entry in ranked[: keep.best]]


def _value(entry: Entry, keep: Keep) -> float | None:
    try:
        return keep.value(entry.state.get("results") or {})
    except (CallerError, TypeError, ValueError):  # an earlier life of the run had other metrics
        return None


def _regular(live: Sequence[Entry], keep: Keep) -> list[Entry]:
    first: dict[int, Entry] = {}
    for entry in live if keep.every else ():
        done = entry.state.get(keep._counter)
        number = done // abs(keep.every or 1) if isinstance(done, int) else 0
        if number:
            first.setdefault(number, entry)
    return list(first.values())


def remove(disk: Files, path: Path) -> None:
    """Remove a snapshot: first its name, then what is in it.

    Raises:
        OSError: it couldn't be renamed, and is as it was; or it couldn't be removed whole, and has a temporary name.
    """
    going = path.with_name(f"{REMOVING}{path.name}")
    disk.remove_tree(going)
    disk.rename(path, going)
    disk.fsync_dir(path.parent)  # the name is gone before a file of it is
    disk.remove_tree(going)
    if going.exists():
        raise OSError(f"{going} couldn't be removed whole")


__all__ = ["REMOVING", "Entry", "Keep", "remove", "superfluous"]
