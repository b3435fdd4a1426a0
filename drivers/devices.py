"""Whether a device is there: found out when a driver is built, and not at the first batch."""

from __future__ import annotations

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
