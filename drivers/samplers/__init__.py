"""Samplers: an epoch's order as a pure function of (seed, epoch), and a position in it that can be gone back to."""

from .batch_sampler import ReproducibleBatchSampler
from .bucketed_batch_sampler import BucketedBatchSampler
from .doped_sampler import DopedSampler
from .mix_sequential_sampler import MixSequentialSampler
from .polling_sampler import PollingSampler
from .random_batch_sampler import RandomBatchSampler
from .random_sampler import RandomSampler
from .replace import replace_batch_sampler, replace_sampler
from .reproduce_batch_sampler import ReproduceBatchSampler
from .sampler import ReproducibleSampler
from .sequential_sampler import SequentialSampler
from .sorted_sampler import SortedSampler
from .unrepeated import UnrepeatedRandomSampler, UnrepeatedSequentialSampler, UnrepeatedSortedSampler

__all__ = [
    "BucketedBatchSampler",
    "DopedSampler",
    "MixSequentialSampler",
    "PollingSampler",
    "RandomBatchSampler",
    "RandomSampler",
    "ReproduceBatchSampler",
    "ReproducibleBatchSampler",
    "ReproducibleSampler",
    "SequentialSampler",
    "SortedSampler",
    "UnrepeatedRandomSampler",
    "UnrepeatedSequentialSampler",
    "UnrepeatedSortedSampler",
    "replace_batch_sampler",
    "replace_sampler",
]
