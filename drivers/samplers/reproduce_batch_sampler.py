"""`ReproduceBatchSampler`: makes any sampler resumable by writing down what it gives."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NoReturn

import numpy as np
import torch

from tachograph.drivers import generators
from tachograph.drivers.epochs import tell_epoch
from tachograph.drivers.errors import SamplerFault
from tachograph.states.errors import CallerError

from .batch_sampler import ReproducibleBatchSampler
from .sampler import Order, whole


class ReproduceBatchSampler(ReproducibleBatchSampler):
    """Hands out, in batches, what another sampler gives; its state holds the epoch's whole list of indices.

    The other sampler is asked once an epoch, under private generators seeded by (seed, epoch): whatever it draws from
    the global ones is a function of these, and moves nobody else's. What it draws from elsewhere is only in the list,
    so that the epoch a state was taken in is exact for any sampler, and those after it are if the sampler's are. It
    can't be shared by ranks, and a long list makes large snapshots: prefer `RandomSampler` where it will do.

    Args:
        batch_sampler: anything that gives indices, or lists of them, again and again. Its own batches don't matter. It
            is told the epoch if it, or its `sampler`, has `set_epoch`.
        batch_size: samples in a batch.
        drop_last: drop the last batch if it's short.
        seed: of what it draws, together with the epoch; any integer.
    """

    def __init__(self, batch_sampler: Any, batch_size: int, drop_last: bool, seed: int = 0) -> None:
        super().__init__(0, batch_size, drop_last)
        if not isinstance(batch_sampler, Iterable) or isinstance(batch_sampler, Iterator):
            raise CallerError(
                f"batch_sampler must give its indices in every epoch again, unlike a {type(batch_sampler).__name__}"
            )
        self.dataset = self.batch_sampler = batch_sampler
        self.seed = whole(seed, "seed")
        self._lists: dict[int, Order] = {}  # of the last two epochs: the next may be asked for before one has ended

    @property
    def num_samples(self) -> int:
        return len(self.order(self.epoch))

    def order(self, epoch: int) -> Order:
        if epoch not in self._lists:
            self._keep(epoch, self._asked(epoch))
        return self._lists[epoch]

    def _keep(self, epoch: int, indices: Order) -> None:
        self._lists = dict([*self._lists.items(), (epoch, indices)][-2:])

    def _asked(self, epoch: int) -> Order:
        tell_epoch(epoch, self.batch_sampler, getattr(self.batch_sampler, "sampler", None))
        with generators.forked(generators.derive(self.seed, "order", epoch)):
            return np.fromiter(_flat(self.batch_sampler), np.int64)

    def _count_left(self, epoch: int, consumed: int) -> int:
        return len(self._left(epoch, consumed))

    def set_distributed(self, num_replicas: int, rank: int, pad: bool = True) -> NoReturn:
        """Raise `SamplerFault`: a sampler of unknown kind can't be shared."""
        raise SamplerFault(
            f"a ReproduceBatchSampler can't be shared by ranks, since nobody knows what its "
            f"{type(self.batch_sampler).__name__} does on each of them: use RandomSampler or another one of ours"
        )

    def _fixed(self) -> dict[str, Any]:
        return {"sampler_type": type(self).__name__}

    def _taken(self) -> dict[str, Any]:
        return {"seed": self.seed}

    def _held(self, epoch: int) -> dict[str, Any]:
        indices = self.order(epoch)
        return {"length": len(indices), "index_list": torch.from_numpy(indices.copy())}

    def check(self, state: Mapping[str, Any]) -> None:
        super().check(state)
        held = np.asarray(state["index_list"])
        own = len(self.order(state["epoch"]))
        if held.ndim != 1 or held.dtype.kind not in "iu" or len(held) != state["length"]:
            raise CallerError("'index_list' in the state of a ReproduceBatchSampler must hold 'length' integers")
        if own != len(held):
            raise CallerError(
                f"this state of a ReproduceBatchSampler was saved with length {len(held)}, and here length is {own}: "
                "the order would be another one"
            )

    def _take(self, state: Mapping[str, Any]) -> None:
        self._lists = {state["epoch"]: np.asarray(state["index_list"]).astype(np.int64)}


def _flat(sampler: Iterable[Any]) -> Iterator[int]:
    for entry in sampler:
        try:
            yield from [operator.index(entry)] if not isinstance(entry, Iterable) else map(operator.index, entry)
        except TypeError as error:
            raise CallerError(f"a ReproduceBatchSampler keeps integers, and its sampler gave {entry!r}") from error
