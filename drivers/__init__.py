"""Who touches the hardware: the protocol, the drivers, and everything that knows a tensor.

Importing this package imports no torch and no numpy: `choose_driver` does when it builds a driver that needs them, and
the samplers and the metrics do when the first of them is asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .among_ranks import (
    all_gather,
    all_rank_call,
    broadcast_object,
    is_rank_zero,
    rank,
    rank_zero_call,
    seed_everything,
    world_size,
)
from .choose import choose_driver
from .driver import NO_BATCH, Driver
from .errors import LossFault, MatchFault, RestoreFault, SamplerFault
from .ranks import RankFailed
from .stub import StubDriver

if TYPE_CHECKING:
    from .loaders.plain import NotPlain
    from .metrics import (
        Accuracy,
        ClassifyFPreRecMetric,
        Element,
        Metric,
        SpanFPreRecMetric,
        TransformersAccuracy,
    )
    from .samplers import (
        BucketedBatchSampler,
        DopedSampler,
        MixSequentialSampler,
        PollingSampler,
        RandomBatchSampler,
        RandomSampler,
        ReproduceBatchSampler,
        ReproducibleBatchSampler,
        ReproducibleSampler,
        SequentialSampler,
        SortedSampler,
        UnrepeatedRandomSampler,
        UnrepeatedSequentialSampler,
        UnrepeatedSortedSampler,
        replace_batch_sampler,
        replace_sampler,
    )

_HOMES = {
    "loaders.plain": ("NotPlain",),
    "metrics": ("Accuracy", "ClassifyFPreRecMetric", "Element", "Metric", "SpanFPreRecMetric", "TransformersAccuracy"),
}
"""module -> the public names that are fetched from it when they are asked for; the samplers are the others."""
_HOME = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "NO_BATCH",
    "Accuracy",
    "BucketedBatchSampler",
    "ClassifyFPreRecMetric",
    "DopedSampler",
    "Driver",
    "Element",
    "LossFault",
    "MatchFault",
    "Metric",
    "MixSequentialSampler",
    "NotPlain",
    "PollingSampler",
    "RandomBatchSampler",
    "RandomSampler",
    "RankFailed",
    "ReproduceBatchSampler",
    "ReproducibleBatchSampler",
    "ReproducibleSampler",
    "RestoreFault",
    "SamplerFault",
    "SequentialSampler",
    "SortedSampler",
    "SpanFPreRecMetric",
    "StubDriver",
    "TransformersAccuracy",
    "UnrepeatedRandomSampler",
    "UnrepeatedSequentialSampler",
    "UnrepeatedSortedSampler",
    "all_gather",
    "all_rank_call",
    "broadcast_object",
    "choose_driver",
    "is_rank_zero",
    "rank",
    "rank_zero_call",
    "replace_batch_sampler",
    "replace_sampler",
    "seed_everything",
    "world_size",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f".{_HOME.get(name, 'samplers')}", __name__), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
