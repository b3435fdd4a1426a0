"""Whether a device is there, found out when a driver is built and not at the first batch; and what the CPU is."""

from __future__ import annotations

import functools
import platform

import torch

from tachograph.states.errors import CallerError


def check_there(device: torch.device) -> None:
    """Refuse a device that can't hold a value on this machine.

    Raises:
        CallerError: torch wasn't built for it, it isn't there, or it is "meta", which holds shapes only.
    """
    if device.type == "meta":
        raise CallerError("device 'meta' holds shapes and no values: give the model's weights and a device for them")
    if device.type in ("cpu", "cuda"):  # counted when it was named; asking would start CUDA
        return
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0]
        raise CallerError(f"device '{device}' isn't there: {reason}") from error


@functools.cache
def cpu() -> str:
    """Name the CPU's model, and which of torch's kernels it has (AVX2, ...): either may decide on the last bit."""
    capability = getattr(torch.backends.cpu, "get_cpu_capability", lambda: "")()
    return f"{_model() or platform.machine()} {capability}".strip()


def _model() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")
    except OSError:
        return platform.processor()
