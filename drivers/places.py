"""Which devices several processes are asked for, and which of them is this process's own."""

from __future__ import annotations

import warnings
from typing import Any

import attrs
import torch

from tachograph.states.errors import CallerError

from .calls import device_of
from .launch_environment import Launch


@attrs.frozen(kw_only=True)
class Places:
    """What a caller asks for: a number of processes, and where they train.

    Attributes:
        device: as it was given.
        devices: one for each process; None where they weren't named.
        processes: how many; None where nothing was said.
    """

    device: Any
    devices: tuple[Any, ...] | None
    processes: int | None

    @property
    def first(self) -> Any:
        """The device of a training in one process."""
        return self.device if self.devices is None else self.devices[0]

    def to_launch(self) -> int:
        """Return how many processes to launch, if this machine has a device for each of them.

        Raises:
            CallerError: nobody said how many; or a device isn't there, or isn't enough for two.
        """
        if self.processes is None:
            raise CallerError(
                "how many processes? Give a device for each (device=[0, 1] or ['cpu', 'cpu']), or processes=2 beside "
                "device='cpu' or 'cuda', or start the script with torchrun"
            )
        found = [device_of(self._of(local_rank), torch.nn.Module()) for local_rank in range(self.processes)]
        kinds = {device.type for device in found}
        if len(kinds) > 1:
            raise CallerError(f"device={self.device!r} mixes {' and '.join(sorted(kinds))}: give devices of one kind")
        if kinds != {"cpu"} and len({device.index for device in found}) < len(found):
            raise CallerError(
                f"device={self.device!r} gives one device to several of {self.processes} processes: each needs its own"
            )
        return self.processes

    def in_launch(self, launch: Launch) -> Any:
        """Return the device of a process that was launched.

        Raises:
            CallerError: another number of processes is asked for than was launched.
        """
        self._agree(launch.world_size, named=launch.ours)
        if launch.ours:
            return self._of(launch.local_rank)
        if self.devices is None and (launch.local_world_size == 1 or not _has_index(self.device)):
            return _nth(self.device, launch.local_rank)
        return self._instead(launch)

    def in_group(self, world_size: int) -> Any:
        """Return the device of a process whose group the user has made, without a launch.

        Raises:
            CallerError: another number of processes is asked for than the group has, or a device for each.
        """
        self._agree(world_size, named=True)
        if self.devices is not None:
            raise CallerError(
                f"device={self.device!r} asks for a process on each, but there is a group of processes already: give "
                "each process its own device"
            )
        return self.device

    def _agree(self, launched: int, named: bool) -> None:
        """Refuse another number of processes than there are; that of a list counts if `named`."""
        asked = self.processes if named or self.devices is None else None
        if asked is not None and asked != launched:
            raise CallerError(
                f"{asked} process{'' if asked == 1 else 'es'} asked for, but {launched} launched: one script has one "
                "number of processes, so give every Trainer and Evaluator the same"
            )

    def _instead(self, launch: Launch) -> str:
        """Return the device of this local rank in place of what was given, with one warning if that is another."""
        given = (self.device,) if self.devices is None else self.devices
        on_cpu = all(_kind(device) == "cpu" for device in given) or not torch.cuda.is_available()
        own = "cpu" if on_cpu else f"cuda:{launch.local_rank}"
        as_asked = len(given) in (1, launch.local_world_size) and _plain(given[launch.local_rank % len(given)]) == own
        if not as_asked and launch.rank == 0:
            warnings.warn(
                f"device={self.device!r} is ignored, since the processes were launched already: each takes "
                f"{'the CPU' if on_cpu else 'the GPU of its LOCAL_RANK'}",
                stacklevel=6,
            )
        return own

    def _of(self, local_rank: int) -> Any:
        return _nth(self.device, local_rank) if self.devices is None else self.devices[local_rank]


def places_of(device: Any, processes: Any) -> Places:
    """Read what a caller asks for.

    Args:
        device: one, a list of them, None, or -1: all GPUs.
        processes: how many, beside one device; None: as many as there are devices in the list.

    Raises:
        CallerError: they contradict each other, or can't be used.
    """
    if processes is not None and (type(processes) is not int or processes < 1):
        raise CallerError(f"processes must be an integer >= 1 or None, not {processes!r}")
    devices = _devices_of(device)
    if devices is None:
        return Places(device=device, devices=None, processes=processes)
    if processes not in (None, len(devices)):
        raise CallerError(f"device={device!r} is for {len(devices)} processes, and processes={processes}: give one")
    return Places(device=device, devices=devices, processes=len(devices))


def _devices_of(device: Any) -> tuple[Any, ...] | None:
    if type(device) is int and device == -1:
        count = torch.cuda.device_count()
        if not count:
            raise CallerError("device=-1 asks for all GPUs, and this machine has none: give 'cpu', or a list of 'cpu'")
        return tuple(range(count))
    if not isinstance(device, (list, tuple)):
        return None
    if not device:
        raise CallerError(f"device={device!r} holds no device: give one, or one for each process")
    return tuple(device)


def _nth(device: Any, local_rank: int) -> Any:
    """Return the device of a local rank, if its kind is given; None takes a GPU if there are any."""
    if device is None:
        return f"cuda:{local_rank}" if torch.cuda.is_available() else "cpu"
    return device if _has_index(device) or _kind(device) == "cpu" else f"{_kind(device)}:{local_rank}"


def _plain(device: Any) -> str:
    return f"cuda:{device}" if type(device) is int else str(device)


def _kind(device: Any) -> str:
    return _plain(device).partition(":")[0]


def _has_index(device: Any) -> bool:
    return device is not None and ":" in _plain(device)


__all__ = ["Places", "places_of"]
