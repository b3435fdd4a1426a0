"""`driver="torch_ddp"`: many processes, each with the whole model; their gradients are averaged in the backward pass.

The exchange is `DistributedDataParallel`'s. What is dealt out to which rank, and what the ranks agree on, is ours.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tachograph.states.errors import CallerError

from . import generators, storage
from .loaders import BatchSource, source_of
from .measuring import LAG
from .processes import Processes, joined
from .single import TorchDriver


class TorchDDPDriver(TorchDriver):
    """Trains one model in many processes.

    Args:
        model: an `nn.Module`; or a `DistributedDataParallel` over one, whose options stay what they are.
        device: "cpu", or "cuda", of which each process takes that of its local rank; a list of devices, one for each
            process of this machine; None: where the model's parameters are.
        ddp_options: keyword arguments of `DistributedDataParallel`, and `sync_batchnorm`: True has batch norms take
            their statistics over all ranks (accelerators only).
        share: the training loader is dealt out to the ranks (None, True), or each rank's is its own business (False).
        eval_share: the same of evaluation loaders.
        data_device: where batches are moved; None: where the model is.
        options: those of `TorchDriver`.

    Attributes:
        wrapped: the `DistributedDataParallel`; None before `setup`.

    Raises:
        CallerError: there is no group of processes, or an argument can't be used.
    """

    def __init__(
        self,
        model: Any,
        device: Any = None,
        *,
        ddp_options: Mapping[str, Any] | None = None,
        share: bool | None = None,
        eval_share: bool | None = None,
        data_device: Any = None,
        **options: Any,
    ) -> None:
        given = model if isinstance(model, DistributedDataParallel) else None
        if given is not None and ddp_options:
            raise CallerError("the model is a DistributedDataParallel already: give it its options there")
        module = model if given is None else given.module
        where = _device_of(device, module, given)
        self._share, self.eval_share = share, eval_share
        self._ddp_options = dict(ddp_options or {})
        super().__init__(module, where, **options)
        self.processes: Processes = joined(self._on_cpu, 0 if self._on_cpu else LAG)
        self.ranks = self.processes
        if self.device.type == "cuda" and self.device.index is None:
            self.device = torch.device("cuda", self.ranks.local_rank)
        if self._ddp_options.pop("sync_batchnorm", False):
            self._synchronize_batch_norms()
        self._data_device = None if data_device is None else torch.device(data_device)
        self.wrapped: DistributedDataParallel | None = given
        self._called = _Called(self.model, self._run)

    def _synchronize_batch_norms(self) -> None:
        if self._on_cpu:
            raise CallerError("sync_batchnorm needs an accelerator: torch has it for no CPU")
        self.model = nn.SyncBatchNorm.convert_sync_batchnorm(self.model)

    def setup(self, seed: int, whole_digest: bool) -> None:
        super().setup(seed, whole_digest)
        self.processes.open()
        if self.wrapped is None:
            ids = None if self._on_cpu else [self.device.index]
            self.wrapped = DistributedDataParallel(self._called, device_ids=ids, **self._ddp_options)
            self._settle_buckets()

    def _settle_buckets(self) -> None:
        """Go through one backward pass without a batch, so that the buckets are what they will be at every step.

        DDP arranges them anew after its first backward pass. The order in which more than two ranks' numbers are added
        depends on them, and a resumed run's first step must add as the straight run's.
        """
        assert self.wrapped is not None
        if self._ddp_options.get("static_graph") or self._ddp_options.get("find_unused_parameters"):
            return
        with self._called.instead(lambda batch: _nothing(self.model)):
            for _ in range(2):  # the second forward pass arranges them
                self.wrapped(None).backward()
        for parameter in self.model.parameters():
            parameter.grad = None

    # -- data ----------------------------------------------------------------------------------------------

    def _source_of(self, seed: int) -> BatchSource:
        return source_of(self._loader, seed, self._max_batches, self._told, self.ranks, self._share)

    def initial_seed(self) -> int:
        return int(self.ranks.share(super().initial_seed()))

    def seed_generators(self, seed: int) -> None:
        generators.seed_all(generators.derive(seed, "rank", self.ranks.rank) if self.ranks.rank else seed)

    def to_device(self, batch: Any) -> Any:
        if self._data_device in (None, self.device):
            return super().to_device(batch)
        return storage.mapped(batch, lambda t: t.to(self._data_device, non_blocking=self._non_blocking))

    # -- training ------------------------------------------------------------------------------------------

    def _run(self, batch: Any) -> Any:
        if self._autocast is None:
            return self._train_fn(batch)
        with self._autocast():
            return self._train_fn(batch)

    def train_step(self, batch: Any) -> Any:
        wrapped = self.wrapped
        assert wrapped is not None, "setup() comes first"
        try:
            if wrapped.module is self._called:
                return wrapped(batch)
            with _module_of(wrapped, self._called):
                return wrapped(batch)
        except RuntimeError as error:
            raise self._hinted(error) from error.__cause__

    def _hinted(self, error: RuntimeError) -> Exception:
        """Say which parameters had no part in the loss, if that is what DDP complains about."""
        if "find_unused_parameters" not in str(error):
            return error
        unused = [n for n, p in self.model.named_parameters() if p.requires_grad and p.grad is None]
        named = ", ".join(unused[:5]) + (", ..." if len(unused) > 5 else "")
        return CallerError(
            f"parameters had no part in the loss of a step{f' ({named})' if named else ''}, so the ranks waited for "
            "gradients that never came: give Trainer(torch_ddp_kwargs={'find_unused_parameters': True}), freeze them "
            "with requires_grad_(False), or use them"
        )

    def no_sync(self) -> AbstractContextManager[Any]:
        assert self.wrapped is not None, "setup() comes first"
        return self.wrapped.no_sync()

    def exchange_gradients(self) -> None:
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        there = self.ranks.gather([p.grad is not None for p in parameters])
        for parameter, some in zip(parameters, map(any, zip(*there, strict=True)), strict=True):
            if some:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                parameter.grad.div_(self.ranks.world_size)
                dist.all_reduce(parameter.grad)

    # -- evaluation ----------------------------------------------------------------------------------------

    @contextmanager
    def evaluating(self, model: Any, eval_mode: bool = True) -> Iterator[None]:
        """Evaluate the weights of rank 0 on every rank: buffers too, which the ranks move by themselves in a step."""
        if model is self.model and self._exchanges_buffers() and self.ranks.world_size > 1:
            for buffer in model.buffers():
                dist.broadcast(buffer, src=0)
        with super().evaluating(model, eval_mode):
            yield

    def _exchanges_buffers(self) -> bool:
        return (
            bool(self._ddp_options.get("broadcast_buffers", True))
            if self.wrapped is None
            else bool(self.wrapped.broadcast_buffers)
        )

    def all_gather(self, value: Any) -> list[Any]:
        gathered = self.ranks.gather(value)
        return gathered if self._on_cpu else [storage.mapped(held, lambda t: t.to(self.device)) for held in gathered]

    # -- files ---------------------------------------------------------------------------------------------

    def save_model(self, target: Any) -> None:
        if self.ranks.first:
            super().save_model(target)

    def close(self) -> None:
        try:
            super().close()
        finally:
            self.processes.close()


class _Called(nn.Module):
    """What `DistributedDataParallel` calls in the model's place: the method that a training batch is meant for."""

    def __init__(self, module: nn.Module, fn: Callable[[Any], Any]) -> None:
        super().__init__()
        self.module = module
        self._fn = fn

    def forward(self, batch: Any) -> Any:
        return self._fn(batch)

    @contextmanager
    def instead(self, fn: Callable[[Any], Any]) -> Iterator[None]:
        """Call another function within the body."""
        held, self._fn = self._fn, fn
        try:
            yield
        finally:
            self._fn = held


@contextmanager
def _module_of(wrapped: DistributedDataParallel, module: nn.Module) -> Iterator[None]:
    """Have a user's own DDP call another module with the same parameters within the body."""
    held = wrapped.module
    wrapped.module = module
    try:
        yield
    finally:
        wrapped.module = held


def _nothing(model: nn.Module) -> torch.Tensor:
    """Return a 0 that depends on every parameter, in their order."""
    total = torch.zeros(())
    for parameter in model.parameters():
        if parameter.requires_grad:
            total = total + (parameter.detach() * 0 * parameter).sum().float().cpu()
    return total


def _device_of(device: Any, module: Any, given: DistributedDataParallel | None) -> Any:
    """Return this process's device among those that were given."""
    if given is not None:
        first = next(module.parameters(), None)
        return None if first is None else first.device
    if isinstance(device, (list, tuple)):
        local = int(os.environ.get("LOCAL_RANK", 0))
        return device[local % len(device)]
    return device


__all__ = ["TorchDDPDriver"]
