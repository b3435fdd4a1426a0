"""Who drives a run: the engine and the trainer, their listeners, the journal, resume and replay.

Importing this package imports no torch, and of the package only what is asked for: the command line and tools that read
journals answer at once.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from . import callbacks as _callbacks

if TYPE_CHECKING:
    from .callbacks import *  # noqa: F403 - they are listed there alone
    from .diff import Diverged, Divergence, diff, ranks_part
    from .engine import Engine
    from .evaluator import Evaluator
    from .events import Events, EventsList, Filter
    from .journal import Journal, JournalError
    from .listeners import RestoreMismatch
    from .recording import NotARun, SettingsChanged
    from .rehearsal.reexecution import Parted
    from .replay import NotReplayed, replay
    from .retention import Keep
    from .samples import SamplesUnknown, samples_of
    from .snapshots import SnapshotFault, SnapshotWriteFault
    from .trainer import Trainer

_HOMES = {
    **{f"callbacks.{file}": names for file, names in _callbacks.HOMES.items()},
    "diff": ("Diverged", "Divergence", "diff", "ranks_part"),
    "engine": ("Engine",),
    "evaluator": ("Evaluator",),
    "events": ("Events", "EventsList", "Filter"),
    "journal": ("Journal", "JournalError"),
    "listeners": ("RestoreMismatch",),
    "recording": ("NotARun", "SettingsChanged"),
    "rehearsal.reexecution": ("Parted",),
    "replay": ("NotReplayed", "replay"),
    "retention": ("Keep",),
    "samples": ("SamplesUnknown", "samples_of"),
    "snapshots": ("SnapshotFault", "SnapshotWriteFault"),
    "trainer": ("Trainer",),
}
"""module -> the public names that live in it, as imported above."""
_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "Diverged",
    "Divergence",
    "Engine",
    "Evaluator",
    "Events",
    "EventsList",
    "Filter",
    "Journal",
    "JournalError",
    "Keep",
    "NotARun",
    "NotReplayed",
    "Parted",
    "RestoreMismatch",
    "SamplesUnknown",
    "SettingsChanged",
    "SnapshotFault",
    "SnapshotWriteFault",
    "Trainer",
    "diff",
    "ranks_part",
    "replay",
    "samples_of",
]
__all__ += _callbacks.__all__


class _Package(ModuleType):
    """Keeps the functions `diff` and `replay` in sight: the import system would put modules of that name over them."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in _HOME or not isinstance(value, ModuleType):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Package


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f".{_HOME[name]}", __name__), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
