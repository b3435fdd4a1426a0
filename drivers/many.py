"""What the drivers of many processes have in common: each is one of the ranks, and the data is dealt out to them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from . import generators, storage
from .joining import joined
from .measuring import LAG
from .processes import Processes
from .single import TorchDriver


class ManyProcesses(TorchDriver):
    """One of the processes that train together.

    Args:
        model: an `nn.Module`.
        device: "cpu", or "cuda", of which each process takes that of its local rank; a list of devices, one for each
            process of this machine; None: where the model's parameters are.
        share: the training loader is dealt out to the ranks (None, True), or each rank's is its own business (False).
        eval_share: the same of evaluation loaders.
        data_device: where batches are moved; None: where the model is.
        options: those of `TorchDriver`.

    Raises:
        CallerError: there is no group of processes, or an argument can't be used.
    """

    def __init__(
        self,
        model: nn.Module,
        device: Any = None,
        *,
        share: bool | None = None,
        eval_share: bool | None = None,
        data_device: Any = None,
        **options: Any,
    ) -> None:
        super().__init__(model, _own(device), **options)
        self._share, self.eval_share = share, eval_share
        if self.device.type == "cuda":
            if self.device.index is None:
                self.device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
            torch.cuda.set_device(self.device)  # nccl takes the current one
        self.processes: Processes = joined(self._on_cpu, 0 if self._on_cpu else LAG)
        self.ranks = self.processes
        self._apart = False
        self._data_device = None if data_device is None else torch.device(data_device)

    def setup(self, seed: int, whole_digest: bool) -> None:
        super().setup(seed, whole_digest)
        self.processes.open()

    # -- data ----------------------------------------------------------------------------------------------

    def initial_seed(self) -> int:
        return int(self.ranks.share(super().initial_seed()))

    def seed_generators(self, seed: int) -> None:
        generators.seed_all(generators.derive(seed, "rank", self.ranks.rank) if self.ranks.rank else seed)

    def to_device(self, batch: Any) -> Any:
        if self._data_device in (None, self.device):
            return super().to_device(batch)
        return storage.mapped(batch, lambda t: t.to(self._data_device, non_blocking=self._non_blocking))

    def backward(self, loss: Any, divisor: int) -> None:
        if self._apart:
            super().backward(loss, divisor)
            return
        with self.processes.waiting():
            super().backward(loss, divisor)
        self.processes.exchanged()

    @contextmanager
    def kept_apart(self) -> Iterator[None]:
        """Run the body, a step that exchanges nothing."""
        self._apart = True
        self.processes.kept_apart()
        try:
            yield
        finally:
            self._apart = False

    def all_gather(self, value: Any) -> list[Any]:
        gathered = self.ranks.gather(value)
        return gathered if self._on_cpu else [storage.mapped(held, lambda t: t.to(self.device)) for held in gathered]

    def close(self) -> None:
        try:
            super().close()
        finally:
            self.processes.close()


def _own(device: Any) -> Any:
    """Return this process's device among those that were given."""
    if isinstance(device, (list, tuple)):
        return device[int(os.environ.get("LOCAL_RANK", 0)) % len(device)]
    return device


__all__ = ["ManyProcesses"]
