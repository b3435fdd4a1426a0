"""Callbacks, one file each. A new one is a new file, and its lines here: the import, its home, its name.

Importing this package imports none of them: each is fetched when it is first asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .callback import Callback
    from .checkpoint import Checkpoint, CheckpointCallback
    from .early_stopping import EarlyStopCallback, EarlyStopping
    from .ema import EMA
    from .execute_on_better import ExecuteOnBetter, ExecuteOnceBetterMonitor
    from .fingerprints import Fingerprints
    from .grad_clip import GradClip, TorchGradClipCallback
    from .grad_norm_monitor import GradNormMonitor
    from .kept import Kept
    from .load_best_model import LoadBestModel, LoadBestModelCallback
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
    from .more_evaluate import MoreEvaluate, MoreEvaluateCallback
    from .nan_guard import NanGuard, NotFinite
    from .profiler import Profiler
    from .progress import Progress, ProgressCallback, RawTextCallback, RichCallback, TqdmCallback
    from .results_monitor import HasMonitorCallback, ResultsMonitor
    from .saver import SaveFault, Saver
    from .snapshot_policy import SnapshotPolicy
    from .spike_guard import SpikeGuard
    from .throughput import ThroughputMonitor
    from .time_limit import TimeLimit
    from .timer import Timer, TimerCallback
    from .top_k import TopkQueue, TopkSaver
    from .warmup import TorchWarmupCallback, Warmup

HOMES = {
    "callback": ("Callback",),
    "checkpoint": ("Checkpoint", "CheckpointCallback"),
    "early_stopping": ("EarlyStopCallback", "EarlyStopping"),
    "ema": ("EMA",),
    "execute_on_better": ("ExecuteOnBetter", "ExecuteOnceBetterMonitor"),
    "fingerprints": ("Fingerprints",),
    "grad_clip": ("GradClip", "TorchGradClipCallback"),
    "grad_norm_monitor": ("GradNormMonitor",),
    "kept": ("Kept",),
    "load_best_model": ("LoadBestModel", "LoadBestModelCallback"),
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
    "more_evaluate": ("MoreEvaluate", "MoreEvaluateCallback"),
    "nan_guard": ("NanGuard", "NotFinite"),
    "profiler": ("Profiler",),
    "progress": ("Progress", "ProgressCallback", "RawTextCallback", "RichCallback", "TqdmCallback"),
    "results_monitor": ("HasMonitorCallback", "ResultsMonitor"),
    "saver": ("SaveFault", "Saver"),
    "snapshot_policy": ("SnapshotPolicy",),
    "spike_guard": ("SpikeGuard",),
    "throughput": ("ThroughputMonitor",),
    "time_limit": ("TimeLimit",),
    "timer": ("Timer", "TimerCallback"),
    "top_k": ("TopkQueue", "TopkSaver"),
    "warmup": ("TorchWarmupCallback", "Warmup"),
}
"""file -> the public names that live in it, as imported above."""
_HOME = {name: module for module, names in HOMES.items() for name in names}

__all__ = [
    "EMA",
    "CSVLogger",
    "Callback",
    "Checkpoint",
    "CheckpointCallback",
    "EarlyStopCallback",
    "EarlyStopping",
    "ExecuteOnBetter",
    "ExecuteOnceBetterMonitor",
    "Fingerprints",
    "GradClip",
    "GradNormMonitor",
    "HasMonitorCallback",
    "Kept",
    "LRMonitor",
    "LRSchedCallback",
    "LRSchedule",
    "LoadBestModel",
    "LoadBestModelCallback",
    "Logger",
    "MLflowLogger",
    "MemoryMonitor",
    "ModelSummary",
    "Monitor",
    "MoreEvaluate",
    "MoreEvaluateCallback",
    "NanGuard",
    "NotFinite",
    "Profiler",
    "Progress",
    "ProgressCallback",
    "RawTextCallback",
    "ResultsMonitor",
    "RichCallback",
    "SaveFault",
    "Saver",
    "SnapshotPolicy",
    "SpikeGuard",
    "TensorBoardLogger",
    "ThroughputMonitor",
    "TimeLimit",
    "Timer",
    "TimerCallback",
    "TopkQueue",
    "TopkSaver",
    "TorchGradClipCallback",
    "TorchWarmupCallback",
    "TqdmCallback",
    "WandbLogger",
    "Warmup",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f".{_HOME[name]}", __name__), name)
    return value
