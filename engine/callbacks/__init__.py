"""Callbacks, one file each. A new one is a new file, and its lines here: the import, its home, its name.

Importing this package imports none of them: each is fetched when it is first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .callback import Callback
    from .early_stopping import EarlyStopping
    from .ema import EMA
    from .grad_clip import GradClip, TorchGradClipCallback
    from .grad_norm_monitor import GradNormMonitor
    from .loggers.csv import CSVLogger
    from .loggers.logger import Logger
    from .loggers.mlflow import MLflowLogger
    from .loggers.tensorboard import TensorBoardLogger
    from .loggers.wandb import WandbLogger
    from .lr_monitor import LRMonitor
    from .lr_schedule import LRSchedCallback, LRSchedule
    from .memory import MemoryMonitor
    from .model_summary import ModelSummary
    from .monitor import Monitor
    from .nan_guard import NanGuard
    from .progress import Progress
    from .snapshot_policy import SnapshotPolicy
    from .spike_guard import SpikeGuard
    from .throughput import ThroughputMonitor
    from .time_limit import TimeLimit
    from .timer import Timer, TimerCallback
    from .warmup import TorchWarmupCallback, Warmup

HOMES = {
    "callback": ("Callback",),
    "early_stopping": ("EarlyStopping",),
    "ema": ("EMA",),
    "grad_clip": ("GradClip", "TorchGradClipCallback"),
    "grad_norm_monitor": ("GradNormMonitor",),
    "loggers.csv": ("CSVLogger",),
    "loggers.logger": ("Logger",),
    "loggers.mlflow": ("MLflowLogger",),
    "loggers.tensorboard": ("TensorBoardLogger",),
    "loggers.wandb": ("WandbLogger",),
    "lr_monitor": ("LRMonitor",),
    "lr_schedule": ("LRSchedCallback", "LRSchedule"),
    "memory": ("MemoryMonitor",),
    "model_summary": ("ModelSummary",),
    "monitor": ("Monitor",),
    "nan_guard": ("NanGuard",),
    "progress": ("Progress",),
    "snapshot_policy": ("SnapshotPolicy",),
    "spike_guard": ("SpikeGuard",),
    "throughput": ("ThroughputMonitor",),
    "time_limit": ("TimeLimit",),
    "timer": ("Timer", "TimerCallback"),
    "warmup": ("TorchWarmupCallback", "Warmup"),
}
"""file -> the public names that live in it, as imported above."""
_HOME = {name: module for module, names in HOMES.items() for name in names}

__all__ = [
    "EMA",
    "CSVLogger",
    "Callback",
    "EarlyStopping",
    "GradClip",
    "GradNormMonitor",
    "LRMonitor",
    "LRSchedCallback",
    "LRSchedule",
    "Logger",
    "MLflowLogger",
    "MemoryMonitor",
    "ModelSummary",
    "Monitor",
    "NanGuard",
    "Progress",
    "SnapshotPolicy",
    "SpikeGuard",
    "TensorBoardLogger",
    "ThroughputMonitor",
    "TimeLimit",
    "Timer",
    "TimerCallback",
    "TorchGradClipCallback",
    "TorchWarmupCallback",
    "WandbLogger",
    "Warmup",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f".{_HOME[name]}", __name__), name)
    return value
