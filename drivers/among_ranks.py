"""What a script asks of the processes it trains in: which one this is, work for the first alone, the values of all.

All of it may be asked before there is a trainer, and then by what the environment says of the launch. In one process
nothing here does anything special. Importing it imports no torch.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from tachograph.states.errors import CallerError

from .launch_environment import local_rank_of, rank_of, world_size_of
from .ranks import ALONE, Ranks, current

P = ParamSpec("P")
T = TypeVar("T")

_everywhere: ContextVar[bool] = ContextVar("everywhere", default=False)


def rank() -> int:
    """Return this process's number among those that train together, from 0."""
    ranks = current()
    if ranks is not ALONE:
        return ranks.rank
    group = _group()
    return rank_of() if group is None else int(group.get_rank())


def local_rank() -> int:
    """Return this process's number among those of its machine, from 0."""
    ranks = current()
    if ranks is not ALONE:
        return ranks.local_rank
    return local_rank_of() if os.environ.get("LOCAL_RANK") or _group() is None else rank()


def world_size() -> int:
    """Return how many processes train together; 1 inside a `rank_zero_call`, which nobody else takes part in."""
    ranks = current()
    if ranks is not ALONE:
        return ranks.world_size
    group = _group()
    return world_size_of() if group is None else int(group.get_world_size())


def is_rank_zero() -> bool:
    """Say whether this is the process that writes what is written once."""
    return rank() == 0


def rank_zero_call(fn: Callable[P, T]) -> Callable[P, T | None]:
    """Decorate a function that only rank 0 runs; elsewhere it returns None at once.

    Nobody waits for anybody meanwhile: a barrier or a gathering inside is over at once, as if there were one process.
    """

    @wraps(fn)
    def call(*args: P.args, **kwargs: P.kwargs) -> T | None:
        if _everywhere.get():
            return fn(*args, **kwargs)
        if not is_rank_zero():
            return None
        with current().alone():
            return fn(*args, **kwargs)

    return call


@contextmanager
def all_rank_call() -> Iterator[None]:
    """Within the block, functions under `rank_zero_call` are run by every rank that calls them, as if undecorated."""
    before = _everywhere.set(True)
    try:
        yield
    finally:
        _everywhere.reset(before)


def all_gather(value: Any) -> list[Any]:
    """Return what every rank gives, in the order of their ranks; all ranks call it.

    Args:
        value: plain data, tensors, trees of them. Their shapes may differ from rank to rank.

    Returns:
        a list as long as there are ranks; tensors are on the device of this rank's own.

    Raises:
        CallerError: several processes were launched, and no trainer has joined them yet.
        RankFailed: another rank failed meanwhile.
    """
    ranks = _joined()
    return [value] if ranks.world_size == 1 else _on_the_device_of(value, ranks.gather(value))


def broadcast_object(value: Any, src: int = 0) -> Any:
    """Return what one rank gives; all ranks call it.

    Args:
        value: plain data, tensors, trees of them; only that of rank `src` matters.
        src: the rank whose value it is.

    Raises:
        CallerError: there is no such rank; or several processes were launched, and no trainer has joined them yet.
        RankFailed: another rank failed meanwhile.
    """
    ranks = _joined()
    if type(src) is not int or not 0 <= src < ranks.world_size:
        raise CallerError(f"src={src!r}: there are ranks 0 to {ranks.world_size - 1}")
    if ranks.world_size == 1:
        return value
    return _on_the_device_of(value, ranks.share(value) if src == 0 else ranks.gather(value)[src])


def seed_everything(seed: int, add_global_rank_to_seed: bool = True) -> int:
    """Seed Python's, numpy's and torch's generators, those of devices too.

    A run needs no call of it: `Trainer(seed=...)` seeds each rank. It is for what a script draws beside its run.

    Args:
        seed: an integer from 0 to 2**32 - 1.
        add_global_rank_to_seed: each rank draws other numbers than the others.

    Returns:
        the seed that was used.

    Raises:
        CallerError: `seed` isn't such a number.
    """
    if type(seed) is not int or not 0 <= seed < 1 << 32:
        raise CallerError(f"seed must be an integer from 0 to 2**32 - 1, not {seed!r}")
    from .generators import seed_all

    used = seed + rank() if add_global_rank_to_seed else seed
    seed_all(used)
    return used


def _group() -> Any:
    """Return torch.distributed if it has a group of processes; else None."""
    held: Any = sys.modules.get("torch.distributed")
    return held if held is not None and held.is_available() and held.is_initialized() else None


def _joined() -> Ranks:
    ranks = current()
    if ranks is ALONE and world_size() > 1:
        raise CallerError(
            f"{world_size()} processes were launched, but they haven't joined yet: build the Trainer or the Evaluator "
            "before what they do together"
        )
    return ranks


def _on_the_device_of(own: Any, held: Any) -> Any:
    """Move the tensors in what was received to the device of the first tensor of what was given."""
    from .storage import mapped

    devices: list[Any] = []
    mapped(own, lambda tensor: devices.append(tensor.device))
    return mapped(held, lambda tensor: tensor.to(devices[0])) if devices else held


__all__ = [
    "all_gather",
    "all_rank_call",
    "broadcast_object",
    "is_rank_zero",
    "local_rank",
    "rank",
    "rank_zero_call",
    "seed_everything",
    "world_size",
]
