"""`driver="torch_ddp"`: many processes, each with the whole model; their gradients are averaged in the backward pass.

The exchange is `DistributedDataParallel`'s. What is dealt out to which rank, and what the ranks agree on, is ours.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tachograph.states.errors import CallerError, nearest

from . import buffers
from .many import ManyProcesses


class TorchDDPDriver(ManyProcesses):
    """Trains one model in many processes.

    Args:
        model: an `nn.Module`; or a `DistributedDataParallel` over one, whose options stay what they are.
        device: as `ManyProcesses` takes it; that of a `DistributedDataParallel` is known.
        ddp_options: keyword arguments of `DistributedDataParallel`, and `sync_batchnorm`: True has batch norms take
            their statistics over all ranks (accelerators only).
        options: those of `ManyProcesses`.

    Attributes:
        wrapped: the `DistributedDataParallel`; None before `setup`.

    Raises:
        CallerError: there is no group of processes, or an argument can't be used.
    """

    def __init__(
        self, model: Any, device: Any = None, *, ddp_options: Mapping[str, Any] | None = None, **options: Any
    ) -> None:
        given = model if isinstance(model, DistributedDataParallel) else None
        if given is not None and ddp_options:
            raise CallerError("the model is a DistributedDataParallel already: give it its options there")
        super().__init__(*((model, device) if given is None else (given.module, _device_of(given))), **options)
        self._ddp_options = _checked(ddp_options)
        if self._ddp_options.pop("sync_batchnorm", False):
            self._synchronize_batch_norms()
        self.wrapped: DistributedDataParallel | None = given
        self._called = _Called(self.model, super().train_step)

    def _synchronize_batch_norms(self) -> None:
        if self._on_cpu:
            raise CallerError("sync_batchnorm needs an accelerator: torch has it for no CPU")
        self.model = nn.SyncBatchNorm.convert_sync_batchnorm(self.model)

    def setup(self, seed: int, whole_digest: bool) -> None:
        super().setup(seed, whole_digest)
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
        arranged_once = self._ddp_options.get("static_graph") or self._ddp_options.get("find_unused_parameters")
        if self.ranks.world_size <= 2 or arranged_once:
            return
        if any(parameter._post_accumulate_grad_hooks for parameter in self.model.parameters()):  # type: ignore[attr-defined]
            self._told(
                "the model has hooks on its gradients, which a trial would set off, so DDP arranges its buckets after "
                "the first batch: after a resume, the first sums of more than two ranks may differ in their last bit"
            )
            return
        with self._called.instead(lambda batch: _nothing(self.model)):
            for _ in range(2):  # the second forward pass arranges them
                self.wrapped(None).backward()
        for parameter in self.model.parameters():
            parameter.grad = None

    # -- training ------------------------------------------------------------------------------------------

    def train_step(self, batch: Any) -> Any:
        wrapped = self.wrapped
        assert wrapped is not None, "setup() comes first"
        # by itself it sends rank 0's buffers round if the batch before was exchanged, which no snapshot knows
        wrapped.require_forward_param_sync = wrapped.require_backward_grad_sync
        try:
            with self.processes.waiting(), self._as_called(wrapped):  # for rank 0's buffers
                return wrapped(batch)
        except RuntimeError as error:
            raise self._hinted(error) from error.__cause__

    def _as_called(self, wrapped: DistributedDataParallel) -> AbstractContextManager[None]:
        return nullcontext() if wrapped.module is self._called else _module_of(wrapped, self._called)

    def _hinted(self, error: RuntimeError) -> Exception:
        """Say which parameters had no part in the loss, if that is what DDP complains about."""
        if "find_unused_parameters" not in str(error):
            return error
        names = [name for name, parameter in self.model.named_parameters() if parameter.requires_grad]
        told = re.search(r"did not receive grad for rank \d+: ([\d ]+)", str(error))
        unused = [names[int(index)] for index in told[1].split()] if told else []
        named = ", ".join(unused[:5]) + (", ..." if len(unused) > 5 else "")
        return CallerError(
            f"parameters had no part in the loss of a step{f' ({named})' if named else ''}, so the ranks waited for "
            "gradients that never came: give Trainer(torch_ddp_kwargs={'find_unused_parameters': True}), freeze them "
            "with requires_grad_(False), or use them"
        )

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        assert self.wrapped is not None, "setup() comes first"
        with self.kept_apart(), self.wrapped.no_sync():
            yield

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
        """Evaluate the model of rank 0 on every rank: its buffers too, which each rank moves by itself in a step."""
        together = model is self.model and self.ranks.world_size > 1
        if together and self.wrapped is None:  # what `DistributedDataParallel` will do when it is built
            for parameter in model.parameters():
                dist.broadcast(parameter.data, src=0)
        with self._buffers_of_the_first() if together else nullcontext(), super().evaluating(model, eval_mode):
            yield

    def _buffers_of_the_first(self) -> AbstractContextManager[None]:
        together = self.ranks.world_size > 1 and self._exchanges_buffers()
        return buffers.of_the_first(self.model) if together else nullcontext()

    def _exchanges_buffers(self) -> bool:
        return (
            bool(self._ddp_options.get("broadcast_buffers", True))
            if self.wrapped is None
            else bool(self.wrapped.broadcast_buffers)
        )

    # -- weights -------------------------------------------------------------------------------------------

    def weights(self) -> Any:
        """Copy the weights of rank 0, its buffers too, on every rank: all of them call it."""
        with self._buffers_of_the_first():
            return super().weights()

    def has_weights(self, held: Any) -> bool:
        with self._buffers_of_the_first():
            return super().has_weights(held)

    def save_model(self, target: Any) -> None:
        if self.ranks.writes:
            super().save_model(target)


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


def _checked(options: Mapping[str, Any] | None) -> dict[str, Any]:
    """Refuse options that `DistributedDataParallel` doesn't take."""
    known = {*inspect.signature(DistributedDataParallel.__init__).parameters, "sync_batchnorm"}
    known -= {"self", "module", "device_ids", "output_device", "device_mesh", "process_group", "dim"}
    for name in options or ():
        if name not in known:
            raise CallerError(f"DistributedDataParallel has no option {name!r} to choose. {nearest(name, known)}")
    return dict(options or {})


def _nothing(model: nn.Module) -> torch.Tensor:
    """Return a 0 that depends on every parameter, in their order."""
    total = torch.zeros(())
    for parameter in model.parameters():
        if parameter.requires_grad:
            total = total + (parameter.detach() * 0 * parameter).sum().float().cpu()
    return total


def _device_of(wrapped: DistributedDataParallel) -> Any:
    first = next(wrapped.module.parameters(), None)
    return None if first is None else first.device


__all__ = ["TorchDDPDriver"]
