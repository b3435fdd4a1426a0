"""Callbacks, one file each. A new one is a new file and a line here."""

from .callback import Callback
from .checkpoint import Checkpoint
from .early_stopping import EarlyStopping
from .lr_schedule import LRSchedule
from .nan_guard import NanGuard
from .progress import Progress

__all__ = ["Callback", "Checkpoint", "EarlyStopping", "LRSchedule", "NanGuard", "Progress"]
