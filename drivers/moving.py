"""Stretches of the host's memory, copied by a few threads where they are long.

One core doesn't use the whole of a machine's memory bandwidth. A helper is woken and never waited for: it takes blocks
from the list that the caller works off itself, so one that comes late finds nothing left to do.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import torch

MUCH = 16 << 20
"""Bytes from which on helpers are woken."""

_BLOCK = 1 << 20
_SMALL = 1 << 16  # bytes for which an operator of torch costs no more than looking up where they lie
_MOST = 4  # threads, the caller's among them: by then it is the memory that sets the pace

Pair = tuple[torch.Tensor, torch.Tensor]  # to, from


def movable(tensor: torch.Tensor) -> bool:
    """Say whether a tensor is one stretch of the host's memory, without a gap, and just what lies there."""
    return (
        type(tensor) is torch.Tensor
        and tensor.is_cpu
        and tensor.layout is torch.strided
        and not (tensor.is_nested or tensor.is_quantized or tensor.is_conj() or tensor.is_neg())
        and (tensor.is_contiguous() or _spanned(tensor) == tensor.numel())
    )


def _spanned(tensor: torch.Tensor) -> int:
    return 1 + sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))


def move(pairs: Sequence[Pair]) -> None:
    """Copy tensors into others that have the same dtype, shape and strides.

    Args:
        pairs: (to, from); both are what `movable` says.
    """
    large: list[Pair] = []
    total = 0
    for to, of in pairs:
        amount = of.numel() * of.element_size()
        if amount < _SMALL:
            to.copy_(of)
        else:
            large.append((to, of))
            total += amount
    if total < MUCH:
        for to, of in large:
            to.copy_(of)
    else:
        _Moving(large).finish()


class _Moving:
    """Blocks that several threads work off.

    It holds the tensors, so that their memory stays what it is while a thread is at work on it, even if the caller was
    interrupted.
    """

    def __init__(self, pairs: Sequence[Pair]) -> None:
        self._held = pairs
        blocks = [
            (to.data_ptr() + at, of.data_ptr() + at, min(_BLOCK, amount - at))
            for to, of, amount in ((to, of, of.numel() * of.element_size()) for to, of in pairs)
            for at in range(0, amount, _BLOCK)
        ]
        self._left = iter(blocks)
        self._unmoved = len(blocks)
        self._lock = threading.Lock()
        self._finished = threading.Event()

    def finish(self) -> None:
        """Have all blocks moved."""
        with contextlib.suppress(RuntimeError):  # no thread can be had: the interpreter ends, or the system has no more
            for _ in range(_threads() - 1):
                _helpers(os.getpid()).submit(self._work)
        self._work()
        self._finished.wait()
        self._held = ()

    def _work(self) -> None:
        while True:
            with self._lock:
                block = next(self._left, None)
            if block is None:
                return
            ctypes.memmove(*block)  # without the interpreter's lock
            with self._lock:
                self._unmoved -= 1
                if not self._unmoved:
                    self._finished.set()


def _threads() -> int:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, _MOST)


@functools.lru_cache(1)
def _helpers(process: int) -> ThreadPoolExecutor:
    """Return the helpers of a process; a fork hasn't got its parent's."""
    return ThreadPoolExecutor(_MOST - 1, "tachograph-copy")


__all__ = ["MUCH", "movable", "move"]
