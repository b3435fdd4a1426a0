"""Choosing a driver by its name. A new driver is one new module and one row of `DRIVERS`."""

from __future__ import annotations

import os
import warnings
from importlib import import_module
from typing import TYPE_CHECKING, Any

from tachograph.states.errors import CallerError, nearest

from .driver import Driver
from .launch_environment import launch_of, world_size_of
from .orphans import end_with_launcher

if TYPE_CHECKING:
    from .places import Places


DRIVERS = {
    "torch": ("single", "TorchDriver"),
    "torch_ddp": ("ddp", "TorchDDPDriver"),
    "torch_fsdp": ("fsdp", "TorchFSDPDriver"),
}
"""Name -> the module and the class; they are imported when they are asked for."""
_OTHERS_OPTIONS = {
    "torch": ("ddp_options", "fsdp_options", "share", "eval_share", "data_device"),
    "torch_ddp": ("fsdp_options",),
    "torch_fsdp": ("ddp_options",),
}
"""Driver -> the options that are for other drivers: a script names them all and may run with any."""


def choose_driver(
    driver: str | Driver,
    model: Any = None,
    device: Any = None,
    *,
    processes: int | None = None,
    output_from_new_proc: str = "only_error",
    **options: Any,
) -> Driver:
    """Build a driver, or take the one that is given.

    If several processes are asked for and none were launched, this one becomes their launcher: it runs its own command
    again in each of them, waits for them, and ends; see `launching.launch`.

    Args:
        driver: "torch" (one process, one device), "torch_ddp" (several processes, each with the whole model),
            "torch_fsdp" (several processes that share the model out), "auto" ("torch_ddp" where several processes are
            asked for, were launched or have formed a group, else "torch"), or a `Driver`, which keeps its own model.
        model: an `nn.Module`.
        device: where it trains: "cpu", "cuda:0", "mps", an index, a `torch.device`; None: where its parameters are; a
            list: a process on each; -1: a process on each GPU. One of several processes takes of "cuda" the GPU of its
            local rank, and of None too, if there are GPUs. With `CUDA_VISIBLE_DEVICES=""` the CPU takes the place of a
            GPU, with a warning.
        processes: how many to train in, where `device` isn't a list.
        output_from_new_proc: what becomes of the output of the processes that are launched here, but for rank 0's:
            "all", "only_error" (standard output is dropped), "ignore", or a folder for `{rank}_std.log` and
            `{rank}_err.log`.
        options: what the driver's constructor takes beside these; what is only for another driver is left out.

    Raises:
        CallerError: the name isn't known, the driver refuses its arguments, or what is asked for isn't what was
            launched.
        SystemExit: this process was a launcher, and the others have ended; with their status.
    """
    if isinstance(driver, Driver):
        if processes is not None:
            raise CallerError(f"processes={processes!r} is for a driver that is built here, by its name")
        if driver.model is None:
            driver.model = model
        return driver
    if not isinstance(driver, str):
        raise CallerError(f"driver must be a name or a Driver, not {type(driver).__name__}")
    if driver not in (*DRIVERS, "auto"):
        raise CallerError(f"there is no driver {driver!r}. {nearest(driver, (*DRIVERS, 'auto'))}")
    device = _visible(device, driver)
    if driver == "torch":
        own = _one(device, processes)
    else:
        from .places import places_of

        places = places_of(device, processes)
        if driver == "auto":
            driver = "torch_ddp" if _together(places, model) else "torch"
        own = places.first if driver == "torch" else _one_of_many(places, output_from_new_proc)
    kept = {name: value for name, value in options.items() if name not in _OTHERS_OPTIONS[driver]}
    return _built(driver, model, own, kept)


def _built(name: str, model: Any, device: Any, options: dict[str, Any]) -> Driver:
    from .devices import check_there

    module, kind = DRIVERS[name]
    driver: Any = getattr(import_module(f".{module}", __package__), kind)(model, device, **options)
    check_there(driver.device)
    return driver  # type: ignore[no-any-return]


def _together(places: Places, model: Any) -> bool:
    """Say whether "auto" means several processes."""
    from torch.nn.parallel import DistributedDataParallel

    wrapped = isinstance(model, DistributedDataParallel)
    return wrapped or (places.processes or 1) > 1 or (_group_size() or 1) > 1 or world_size_of() > 1


def _one(device: Any, processes: Any) -> Any:
    """Check the device of a training in one process."""
    if isinstance(device, (list, tuple)) or (type(device) is int and device == -1):
        raise CallerError(
            f"device={device!r} asks for a process on each device, which driver='torch' doesn't start: give one, or "
            "driver='torch_ddp'"
        )
    if processes not in (None, 1):
        raise CallerError(f"processes={processes!r}, but driver='torch' trains in one: use driver='torch_ddp'")
    launched = world_size_of()
    if launched > 1:  # each would train, and write, all there is
        warnings.warn(
            f"WORLD_SIZE={launched}, and driver='torch' trains in one process: each trains by itself, on all data",
            stacklevel=4,
        )
    return device


def _one_of_many(places: Places, output: str) -> Any:
    """Return this process's device among those of several; if nobody has launched them yet, launch them."""
    launched, size = launch_of(), _group_size()
    if launched is not None:
        end_with_launcher()
        return places.in_launch(launched)
    if size is not None:
        return places.in_group(size)
    from .launching import launch

    return launch(places.to_launch(), output)


def _group_size() -> int | None:
    """Return the size of the group of processes that torch.distributed has; None where there is none."""
    import torch.distributed as dist

    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else None


def _visible(device: Any, driver: str) -> Any:
    """Return the CPU in place of GPUs that the user has hidden from a script that was written for them."""
    asked = device if isinstance(device, (list, tuple)) else [device]
    if os.environ.get("CUDA_VISIBLE_DEVICES") == "" and any(type(d) is int or str(d).startswith("cuda") for d in asked):
        several = asked is device and driver != "torch"
        word = f"{len(asked)} processes on the CPU" if several else '"cpu"'
        warnings.warn(f'CUDA_VISIBLE_DEVICES="" hides all GPUs: device={device!r} becomes {word}', stacklevel=4)
        return ["cpu"] * len(asked) if several else "cpu"
    return device
