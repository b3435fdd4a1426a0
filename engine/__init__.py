"""Who drives a run: the engine and the trainer, their listeners, the journal, resume and replay.

Importing this package imports no torch.
"""

from .callbacks import Callback, Checkpoint, EarlyStopping, LRSchedule, Progress
from .diff import Diverged, Divergence, diff
from .engine import Engine
from .evaluator import Evaluator
from .events import Events, EventsList, Filter
from .journal import Journal
from .trainer import Trainer

__all__ = [
    "Callback",
    "Checkpoint",
    "Diverged",
    "Divergence",
    "EarlyStopping",
    "Engine",
    "Evaluator",
    "Events",
    "EventsList",
    "Filter",
    "Journal",
    "LRSchedule",
    "Progress",
    "Trainer",
    "diff",
]
