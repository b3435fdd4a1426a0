"""Callbacks, one file each. A new one is a new file, and its lines here: the import, its home, its name.

Importing this package imports none of them: each is fetched when it is first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .callback import Callback
    from .early_stopping import EarlyStopping
    from .lr_schedule import LRSchedule
    from .monitor import Monitor
    from .nan_guard import NanGuard
    from .progress import Progress
    from .snapshot_policy import SnapshotPolicy

HOMES = {
    "callback": ("Callback",),
    "early_stopping": ("EarlyStopping",),
    "lr_schedule": ("LRSchedule",),
    "monitor": ("Monitor",),
    "nan_guard": ("NanGuard",),
    "progress": ("Progress",),
    "snapshot_policy": ("SnapshotPolicy",),
}
"""file -> the public names that live in it, as imported above."""
_HOME = {name: module for module, names in HOMES.items() for name in names}

__all__ = ["Callback", "EarlyStopping", "LRSchedule", "Monitor", "NanGuard", "Progress", "SnapshotPolicy"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f".{_HOME[name]}", __name__), name)
    return value
