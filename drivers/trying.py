"""Training for a trial, and putting everything back: what a finder needs of a driver.

What training moves is the model, buffers that no state dict knows included, the optimizers, the gradient scaler, the
gradients, the generators, and what samplers and data keep. Batches are read in this process, whatever workers a loader
has, so that none of it is out of reach.
"""

from __future__ import annotations

import gc
import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from tachograph.states.errors import CallerError

from .loaders.order import Order
from .loaders.plain import decoded, encoded
from .loaders.reading import Reader
from .loaders.sampler_states import SamplerStates
from .loaders.source import has_state

_OUT = ("out of memory", "can't allocate memory", "CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED")


@contextmanager
def buffers_kept(model: nn.Module) -> Iterator[None]:
    """Run the body, and put back every buffer: the same tensor, with the same values."""
    held = [
        (m, name, b, b.detach().clone()) for m in model.modules() for name, b in m._buffers.items() if b is not None
    ]
    try:
        yield
    finally:
        with torch.no_grad():
            for module, name, buffer, value in held:
                module._buffers[name] = buffer
                buffer.copy_(value)


@contextmanager
def groups_kept(optimizers: Sequence[Any]) -> Iterator[None]:
    """Run the body, and put back every parameter group: the same dict, and the same tensors where values are some."""
    held = [(o, o.param_groups, [(group, _values(group)) for group in o.param_groups]) for o in optimizers]
    try:
        yield
    finally:
        for optimizer, groups, parts in held:
            for group, values in parts:
                group.clear()
                group.update({key: value if was is None else value.copy_(was) for key, value, was in values})
            optimizer.param_groups = groups


def _values(group: dict[str, Any]) -> list[tuple[str, Any, Any]]:
    """Return (name, value, a copy of it if it is a tensor) of a parameter group."""
    return [(k, v, v.detach().clone() if isinstance(v, torch.Tensor) else None) for k, v in group.items()]


@contextmanager
def data_kept(loader: Any) -> Iterator[None]:
    """Run the body, and put back what a loader's parts keep, as far as they tell."""
    given: list[Any] = [loader.dataset if isinstance(loader, DataLoader) else loader]  # what is read
    parts = [part for part in given if has_state(part)]
    before = [encoded(part.state_dict(), f"state_dict() of the {type(part).__name__}") for part in parts]
    samplers = SamplerStates(_sampler(loader)) if _indexed(loader) else None
    if samplers is not None:
        samplers.begin(0)
    try:
        yield
    finally:
        for part, state in zip(parts, before, strict=True):
            part.load_state_dict(decoded(state))
        if samplers is not None:
            samplers.load(samplers.state())
            samplers.begin(0)


def batches(loader: Any, seed: int, size: int | None) -> Iterator[Any]:
    """Yield the batches of a loader over and over, from its first epoch on.

    Args:
        loader: a `DataLoader`, or anything that can be iterated over again and again.
        seed: of the order, and of what the data draws.
        size: samples in a batch; None: as the loader makes them.

    Raises:
        CallerError: the loader doesn't make batches of a size that can be chosen.
    """
    if size is not None and (not isinstance(loader, DataLoader) or type(loader.batch_size) is not int):
        raise CallerError(
            f"find_batch_size needs a DataLoader that was given a batch_size, and this {type(loader).__name__} wasn't"
        )
    for epoch in itertools.count():
        found = False
        for batch in _epoch(loader, seed, size, epoch):
            found = True
            yield batch
        if not found:
            return


def samples_in(loader: Any) -> int | None:
    """Return how many samples a loader goes over; None if it doesn't know."""
    if not _indexed(loader):
        return None
    sampler = loader.sampler
    return len(sampler) if hasattr(type(sampler), "__len__") else None


def out_of_memory(error: BaseException) -> bool:
    """Say whether an error means that there is too little memory, on the device or the host."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _OUT)


def give_back_memory() -> None:
    """Have memory that nobody holds any more given back."""
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def _indexed(loader: Any) -> bool:
    return isinstance(loader, DataLoader) and not isinstance(loader.dataset, IterableDataset)


def _sampler(loader: Any) -> Any:
    return loader.sampler if loader.batch_sampler is None else loader.batch_sampler


def _epoch(loader: Any, seed: int, size: int | None, epoch: int) -> Iterator[Any]:
    if not isinstance(loader, DataLoader):
        return iter(loader)
    if not _indexed(loader):
        return _streamed(loader, size)
    return _read(loader, seed, size, epoch)


def _read(loader: Any, seed: int, size: int | None, epoch: int) -> Iterator[Any]:
    single = loader.batch_sampler is None
    sampler = _sampler(loader) if size is None else BatchSampler(loader.sampler, size, drop_last=True)
    reader = Reader(loader.dataset, loader.collate_fn, seed, single)
    reader.begin(epoch)
    opened = Order(sampler, seed, single).open(epoch, 0, 0)
    place = opened.place
    for entry in opened.entries:
        yield reader.read(entry, place)
        place += 1 if single and not isinstance(entry, list) else len(entry)


def _streamed(loader: Any, size: int | None) -> Iterator[Any]:
    n, collate = size or loader.batch_size, loader.collate_fn
    samples = iter(loader.dataset)
    if n is None:
        yield from map(collate, samples)
        return
    while held := list(itertools.islice(samples, n)):
        if len(held) == n or not (size or loader.drop_last):
            yield collate(held)


__all__ = ["batches", "buffers_kept", "data_kept", "give_back_memory", "groups_kept", "out_of_memory", "samples_in"]
