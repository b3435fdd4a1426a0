"""How a process joins the others: in the group that is there, or in one that is formed as it was launched."""

from __future__ import annotations

import atexit
import os
import time
from typing import Any

import torch.distributed as dist

from tachograph.states.errors import CallerError

from .launch_environment import attempt
from .processes import Processes
from .ranks import join


def joined(on_cpu: bool, lag: int) -> Processes:
    """Return the ranks of this process's group, which is formed where there is none yet; all ranks call it.

    Args:
        on_cpu: the model trains on the CPU, so gloo exchanges its gradients; else nccl, or what the device has.
        lag: votes after which a ballot is counted; 0: at once.

    Raises:
        CallerError: torch was built without torch.distributed, or the environment of a launch isn't there.
    """
    if not dist.is_available():
        raise CallerError("this build of torch has no torch.distributed: use driver='torch'")
    formed = not dist.is_initialized()
    if formed:
        if not os.environ.get("RANK"):
            raise CallerError(
                "there is no group of processes to train in: launch the script with torchrun, give a device for each "
                "process (device=['cpu', 'cpu']), or call torch.distributed.init_process_group first"
            )
        _form_group("gloo" if on_cpu else None)
    group = dist.group.WORLD
    held = _held.get(group)
    if held is None:
        _held.clear()
        held = _held[group] = Processes(ours=formed)
        atexit.unregister(_let_go)
        atexit.register(_let_go)
    held.lag, held.paced = lag, on_cpu
    join(held)
    return held


def _form_group(backend: str | None) -> None:
    """Form the group of a launch.

    torchrun's store outlives a restart of its processes, with the addresses of those that are gone. The new ones would
    wait for them now and then, so each attempt has keys of its own.
    """
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        dist.init_process_group(backend)
        return
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    server = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    api: Any = dist  # whose exports no stub names
    store = api.PrefixStore(f"attempt/{attempt()}", api.TCPStore(*server, world, is_master=False))
    dist.init_process_group(backend, store=store, rank=rank, world_size=world)


def _let_go() -> None:
    """Wait for gloo's threads at the end of the process.

    They let go of a collective's tensors when it is done, for which they need the interpreter: one that ends meanwhile
    aborts the process, with status 134, though all has gone well.
    """
    time.sleep(0.1)


_held: dict[Any, Processes] = {}  # those of the group that there is: a second trainer votes in the same


__all__ = ["joined"]
