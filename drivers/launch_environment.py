"""What the environment says of a launch: torchrun and its like tell each process its number, and how many there are.

It is read before there is any group of processes, and without torch.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

import attrs

from tachograph.states.errors import CallerError

OURS = "TACHOGRAPH_LAUNCHED"
"""The variable by which the processes that this package launched know that it did: the launcher's process id."""
_NEEDED = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@attrs.frozen(kw_only=True)
class Launch:
    """The place of this process among those that were launched to train together.

    Attributes:
        rank: its number, from 0.
        world_size: how many there are, on all machines.
        local_rank: its number among those of this machine.
        local_world_size: how many are on this machine.
        ours: this package launched them.
    """

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    ours: bool


def launch_of(environ: Mapping[str, str] = os.environ) -> Launch | None:
    """Return what was launched; None where the environment says nothing of it.

    Raises:
        CallerError: it says that there are several processes, and not how they find each other; or nonsense.
    """
    world_size = world_size_of(environ)
    missing = [name for name in _NEEDED if not environ.get(name, "").strip()]
    if missing and world_size > 1:
        raise CallerError(
            f"WORLD_SIZE={world_size}: so many processes were launched to train together, but {', '.join(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} not set, by which they find each other: launch them with torchrun"
        )
    if missing:
        return None
    return Launch(
        rank=rank_of(environ),
        world_size=world_size,
        local_rank=local_rank_of(environ),
        local_world_size=_number(environ, "LOCAL_WORLD_SIZE", 1, "the number of processes of this machine"),
        ours=bool(environ.get(OURS)),
    )


def rank_of(environ: Mapping[str, str] = os.environ) -> int:
    """Return this process's number among those of the launch, from 0; 0 where there was no launch.

    Raises:
        CallerError: RANK isn't a number.
    """
    return _number(environ, "RANK", 0, "the number of the process")


def local_rank_of(environ: Mapping[str, str] = os.environ) -> int:
    """Return this process's number among those of its machine, from 0; 0 where there was no launch.

    Raises:
        CallerError: LOCAL_RANK isn't a number.
    """
    return _number(environ, "LOCAL_RANK", 0, "the number of the process on its machine")


def world_size_of(environ: Mapping[str, str] = os.environ) -> int:
    """Return how many processes were launched to train together; 1 where there was no launch.

    Raises:
        CallerError: WORLD_SIZE isn't a number from 1.
    """
    return _number(environ, "WORLD_SIZE", 1, "the number of processes")


def _number(environ: Mapping[str, str], name: str, least: int, meaning: str) -> int:
    """Read a number that is `least` where it isn't said."""
    said = environ.get(name, "").strip() or str(least)
    if not said.isdecimal() or int(said) < least:
        raise CallerError(f"the environment says {name}={said!r}: it must be {meaning}, from {least}")
    return int(said)


def attempt() -> str:
    """Return how often torchrun has started the processes anew: its store, and what was left there, outlives them."""
    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")


__all__ = ["OURS", "Launch", "attempt", "launch_of", "local_rank_of", "rank_of", "world_size_of"]
