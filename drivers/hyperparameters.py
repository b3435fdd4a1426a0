"""The plain values of optimizers (learning rate, weight decay, ...): as a script built them, and at a resume.

A snapshot holds the values as they had become, and as they were built. So at a resume three are known: the saved one,
the one that the script of then built, and the one that the script of now has built. Where the scripts agree, the saved
value goes on; where they differ, somebody wants the new one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

_NOT_VALUES = ("params", "param_names")
_BASES = ("initial_lr", "max_lr", "min_lr")
_SCALARS = (bool, int, float, str, type(None))


def of_groups(groups: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the plain values of each parameter group; tensors of one element as numbers, tuples as lists."""
    read = [{k: _plain(v) for k, v in group.items() if k not in _NOT_VALUES} for group in groups]
    return [{k: v for k, v in group.items() if v is not _Unknown} for group in read]


def named(optimizers: Sequence[Sequence[Mapping[str, Any]]]) -> dict[str, Any]:
    """Name the values of all groups of all optimizers, as a person would: "lr", "lr of optimizer 0, group 1".

    A learning rate under a schedule is told as the one that it was built with.
    """
    found: dict[str, Any] = {}
    for i, groups in enumerate(optimizers):
        for j, group in enumerate(groups):
            where = [f"optimizer {i}"] * (len(optimizers) > 1) + [f"group {j}"] * (len(groups) > 1)
            of = f" of {', '.join(where)}" if where else ""
            for key, value in group.items():
                if key != "initial_lr":
                    found[key + of] = _rate(group) if key == "lr" else value
    return found


def merged(saved: Mapping[str, Any], old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that differ from the saved ones because the script of now has built others.

    A learning rate under a schedule (the group has an `initial_lr`) stands where the schedule has brought it: it moves
    in proportion, and the schedule's base becomes the new one.

    Args:
        saved: a parameter group, as the snapshot holds it.
        old: its plain values as they had been built.
        new: its plain values as they are built now.
    """
    changes = {k: v for k, v in new.items() if k not in ("lr", "initial_lr") and (k not in old or old[k] != v)}
    if "initial_lr" in new and "initial_lr" not in saved:  # a schedule that begins now
        changes.update(initial_lr=new["initial_lr"], lr=new["lr"])
        return changes
    before, now = _rate(old), _rate(new)
    if before == now or now is None:
        return changes
    if "initial_lr" in saved:
        changes["initial_lr"] = now
        changes["lr"] = float(saved["lr"]) * (now / before) if before else new["lr"]
    else:
        changes["lr"] = new["lr"]
    return changes


def moved(group: Mapping[str, Any], rate: float) -> dict[str, Any]:
    """Return a group's learning rate as another one, and what a schedule computes it from in proportion.

    Args:
        group: a parameter group.
        rate: the learning rate from now on.
    """
    before = float(group["lr"])
    bases = {name: float(group[name]) for name in _BASES if name in group}
    return {**{k: v * rate / before if before else rate for k, v in bases.items()}, "lr": rate}


def put(group: dict[str, Any], values: Mapping[str, Any]) -> None:
    """Set values of a parameter group; one that is a tensor there stays the same tensor."""
    for key, value in values.items():
        held: Any = group.get(key)
        if hasattr(held, "fill_") and type(value) in (int, float):
            held.fill_(value)
        else:
            group[key] = tuple(value) if isinstance(held, tuple) and isinstance(value, list) else value


class _Unknown:
    """Stands for a value that isn't plain."""


def _plain(value: Any) -> Any:
    if type(value) in _SCALARS:
        return value
    if isinstance(value, (list, tuple)):
        parts = [_plain(part) for part in value]
        return _Unknown if _Unknown in parts else parts
    if hasattr(value, "numel") and value.numel() == 1:
        return value.item()
    return _Unknown


def _rate(group: Mapping[str, Any]) -> Any:
    return group.get("initial_lr", group.get("lr"))
