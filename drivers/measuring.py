"""Reading losses without waiting for the device.

On the CPU a loss is read where it lies. On an accelerator it is copied to the host while training goes on, and handed
out `lag` steps later, with the number of the transition it belongs to: by then it has long arrived. So a step makes no
host read, and a measurement's place in the journal doesn't depend on how fast the device was.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

LAG = 8
Late = list[Any]  # [seq, value], or [] for nothing

_READ: dict[torch.dtype, Callable[[int], Any]] = {
    torch.float32: ctypes.c_float.from_address,
    torch.float64: ctypes.c_double.from_address,
}


def read_scalar(value: Any) -> float | None:
    """Read a one-element tensor or a number as a float, now; None stays None."""
    if type(value) is torch.Tensor and value.is_cpu:
        read = _READ.get(value.dtype)
        if read is not None:  # host memory, read where it lies: no operator is dispatched for it
            return read(value.data_ptr()).value  # type: ignore[no-any-return]
    if isinstance(value, torch.Tensor):  # float() warns of one that has a graph
        return float(value.item())
    return value if value is None else float(value)


def scalar(value: Any) -> Any:
    """Return a number, or a tensor of one element where it lies, which is on a device then; None for all else."""
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "iuf":
        value = torch.as_tensor(value)
    if not isinstance(value, torch.Tensor):
        return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None
    if value.numel() != 1 or value.dtype == torch.bool or value.is_complex():
        return None
    if value.is_cpu:
        return value.item()
    exact = torch.float32 if value.device.type == "mps" else torch.float64  # which that device hasn't got
    return value.detach().reshape(()).to(exact)


class Losses:
    """The losses of the last steps, on their way to the host.

    Args:
        lag: steps between a loss and its arrival, >= 1.
    """

    def __init__(self, lag: int) -> None:
        self._lag = lag
        self._pending: deque[tuple[int, Any, Any]] = deque()

    def put(self, loss: Any, seq: int) -> Late:
        """Take a step's loss; return the one that arrives with it, `[seq, value]`, or [].

        Args:
            loss: a one-element tensor, a number or None.
            seq: the transition it belongs to.
        """
        self._pending.append((seq, *_on_its_way(loss)))
        return self._arrived() if len(self._pending) > self._lag else []

    def rest(self) -> list[Late]:
        """Return all that are still on their way, waiting for them."""
        return [self._arrived() for _ in range(len(self._pending))]

    def state(self) -> list[Late]:
        """Return all that are on their way as plain data, and keep them."""
        held = self.rest()
        self.load(held)
        return held

    def load(self, held: list[Late]) -> None:
        """Take back what `state` returned."""
        self._pending = deque((seq, value, None) for seq, value in held)

    def _arrived(self) -> Late:
        seq, value, event = self._pending.popleft()
        if event is not None:
            event.synchronize()
        return [seq, read_scalar(value)]


def _on_its_way(loss: Any) -> tuple[Any, Any]:
    """Begin to copy a loss to the host: (where it will be, what to wait for)."""
    if not isinstance(loss, torch.Tensor):
        return loss, None
    loss = loss.detach()
    if loss.device.type != "cuda":
        return loss.to("cpu", torch.float64, copy=True), None
    host = torch.empty((), dtype=torch.float64, pin_memory=True)
    host.copy_(loss.double().reshape(()), non_blocking=True)
    event = torch.cuda.Event()
    event.record()
    return host, event


def memory(device: torch.device) -> dict[str, int]:
    """Return how many bytes of a device's own memory are in use; {} for the CPU."""
    if device.type == "cuda":
        return {
            "allocated": torch.cuda.memory_allocated(device),
            "reserved": torch.cuda.memory_reserved(device),
            "peak": torch.cuda.max_memory_allocated(device),
        }
    if device.type == "mps":
        return {"allocated": torch.mps.current_allocated_memory(), "reserved": torch.mps.driver_allocated_memory()}
    return {}
