"""`PollingSampler`: a batch of each dataset in turn."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .arranged import size_of_batch
from .batch_sampler import ends_of
from .mix_sequential_sampler import OneAtATime
from .sampler import Order


class PollingSampler(OneAtATime):
    """Hands out batches of one dataset each, the datasets in turn; one that has come to its end is passed over.

    As `ds_ratio` is "pad_to_most" unless you say something else, all datasets come to their end in the same turn.
    `MixSampler` says what the arguments are. Where the batch size is another one at a resume, the turns begin with the
    first dataset again.
    """

    def __init__(
        self,
        dataset: Any,
        batch_size: int = 16,
        sampler: Any = None,
        drop_last: bool = False,
        ds_ratio: Any = "pad_to_most",
        rank: int = -1,
        word_size: int = -1,
        seed: int = 0,
    ) -> None:
        super().__init__(dataset, batch_size, sampler, ds_ratio, drop_last, rank, word_size, seed)

    def _arrange(self, rest: Order, layout: Mapping[str, int], rng: np.random.Generator) -> tuple[Order, Order]:
        parts, size = self._parts(rest, layout), size_of_batch(layout)
        sizes = [np.diff(ends_of(len(part), size), prepend=0) for part in parts]
        turns = np.concatenate([np.arange(len(of_one)) * len(parts) + place for place, of_one in enumerate(sizes)])
        each = np.concatenate(sizes)
        in_turn = np.argsort(np.repeat(turns, each), kind="stable")
        return np.concatenate(parts)[in_turn], np.cumsum(each[np.argsort(turns)])
