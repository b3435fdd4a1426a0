"""Choosing a driver by its name. A new driver is one new module and one row of `DRIVERS`."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from typing import Any

from tachograph.states.errors import CallerError, nearest

from .driver import Driver


def _torch(model: Any, device: Any, **options: Any) -> Driver:
    from .devices import check_there
    from .single import TorchDriver

    driver = TorchDriver(model, device, **options)
    check_there(driver.device)
    return driver


DRIVERS: dict[str, Callable[..., Driver]] = {"torch": _torch, "auto": _torch}


def choose_driver(driver: str | Driver, model: Any = None, device: Any = None, **options: Any) -> Driver:
    """Build a driver, or take the one that is given.

    Args:
        driver: "torch" (one device), "auto" (what the machine says), or a `Driver`, which keeps its own model.
        model: an `nn.Module`.
        device: where it trains: "cpu", "cuda:0", "mps", an index, a `torch.device`; None: where its parameters are.
            With `CUDA_VISIBLE_DEVICES=""` the CPU takes the place of a GPU, with a warning.
        options: what the driver's constructor takes beside these.

    Raises:
        CallerError: the name isn't known, the driver refuses its arguments, or several processes were launched (as
            torchrun does) for "auto".
    """
    if isinstance(driver, Driver):
        if driver.model is None:
            driver.model = model
        return driver
    if not isinstance(driver, str):
        raise CallerError(f"driver must be a name or a Driver, not {type(driver).__name__}")
    if driver not in DRIVERS:
        raise CallerError(f"there is no driver {driver!r}. {nearest(driver, DRIVERS)}")
    _check_launch(driver)
    device = _visible(device)
    if isinstance(device, (list, tuple)) or (type(device) is int and device == -1):
        raise CallerError(
            f"device={device!r} asks for a process on each device, which driver={driver!r} doesn't start: give one"
        )
    return DRIVERS[driver](model, device, **options)


def _check_launch(driver: str) -> None:
    """Tell one of several processes that its training is nobody else's: each would train, and write, all there is."""
    launched = os.environ.get("WORLD_SIZE", "").strip() or "1"
    if launched == "1":
        return
    if driver == "auto":
        raise CallerError(
            f"WORLD_SIZE={launched}: so many processes were launched to train together, for which there is no driver. "
            "Launch one, or give driver='torch' for trainings of their own"
        )
    warnings.warn(
        f"WORLD_SIZE={launched}, and driver={driver!r} trains in one process: each trains by itself, on all data",
        stacklevel=4,
    )


def _visible(device: Any) -> Any:
    """Return the CPU in place of GPUs that the user has hidden from a script that was written for them."""
    asked = device if isinstance(device, (list, tuple)) else [device]
    if os.environ.get("CUDA_VISIBLE_DEVICES") == "" and any(type(d) is int or str(d).startswith("cuda") for d in asked):
        warnings.warn(f'CUDA_VISIBLE_DEVICES="" hides all GPUs: device={device!r} becomes "cpu"', stacklevel=4)
        return "cpu"
    return device
