"""What a sampler of the user's own keeps from epoch to epoch, so that a resumed run asks it in the same condition.

torch's samplers are asked under a private generator and keep nothing. Another one may count its epochs, draw from a
generator of its own, or shuffle its list in place. Its `state_dict` is used if it has one; else those of its attributes
that a snapshot can hold and that changed since the beginning. A sampler of this package is asked whenever a snapshot is
taken: it says how the epoch was dealt out so far, and is told the position by who opens the order.
"""

from __future__ import annotations

import contextlib
import pickle
from typing import Any
from zlib import crc32

import numpy as np
import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from tachograph.drivers.errors import RestoreFault
from tachograph.drivers.samplers import ReproducibleSampler
from tachograph.drivers.storage import PLAIN
from tachograph.states.errors import CallerError

from .plain import NotPlain, decoded, encoded, taken_over
from .source import has_state

_KNOWN = (
    *(BatchSampler, RandomSampler, SequentialSampler, SubsetRandomSampler, WeightedRandomSampler, DistributedSampler),
    *(list, tuple, range),
)


class SamplerStates:
    """The states of the samplers of a loader.

    The epoch in work is gone on with from what they were as it began, the next one is begun with what they are.

    Args:
        sampler: the loader's batch sampler, or its sampler.

    Attributes:
        told: a sampler was just given a state that it made itself. It may say that the sampler is at an epoch's end.
    """

    told = False

    def __init__(self, sampler: Any) -> None:
        parts = {"the sampler": sampler, "the sampler's sampler": getattr(sampler, "sampler", None)}
        self._parts = {name: _kept(part, name) for name, part in parts.items() if _keeps(part)}
        self._epoch = -1
        self._begun = False
        self._to_load: dict[str, Any] | None = None

    def begin(self, epoch: int) -> None:
        """Put in place what was loaded, and keep what there is; before the samplers are asked for an epoch."""
        held, self._to_load = self._to_load, None
        states = {} if held is None else held["begun" if held["epoch"] == epoch else "now"]
        for name, state in states.items():
            self._parts[name].put(state)
        self.told = any(type(self._parts[name]) is _ByState for name in states)
        for part in self._parts.values():
            part.begin()
        self._epoch, self._begun = epoch, bool(self._parts)

    def state(self) -> dict[str, Any] | None:
        """Return the states of the samplers; None if there's nothing to keep."""
        if self._to_load is not None or not self._begun:
            return self._to_load
        both = {name: part.states() for name, part in self._parts.items()}
        begun, now = ({name: states[i] for name, states in both.items()} for i in (0, 1))
        return {"epoch": self._epoch, "begun": begun, "now": now}

    def check(self, held: dict[str, Any] | None) -> None:
        """Refuse a state that there is no sampler for.

        Raises:
            RestoreFault: there is none.
        """
        for name, state in (held or {"begun": {}})["begun"].items():
            if name not in self._parts:
                raise RestoreFault(f"the snapshot has a state of {name}, which keeps none here: use the same samplers")
            self._parts[name].check(state)

    def load(self, held: dict[str, Any] | None) -> None:
        """Take what `state` returned, to be put in place at the next beginning of an epoch."""
        self._to_load = held


def _keeps(part: Any) -> bool:
    known = type(part) in _KNOWN or type(part).__module__.startswith("torchdata.")
    return not known and hasattr(part, "__dict__")


def _kept(part: Any, name: str) -> _ByState | _ByAttributes:
    if isinstance(part, ReproducibleSampler):
        return _Ours(part, name)
    return _ByState(part, name) if has_state(part) else _ByAttributes(part)


class _ByState:
    """A sampler that says itself what it keeps."""

    def __init__(self, part: Any, name: str) -> None:
        self.part = part
        self.name = f"{name}, a {type(part).__name__},"
        self._begun: Any = None

    def begin(self) -> None:
        self._begun = self.now()

    def states(self) -> tuple[Any, Any]:
        """What it was as the epoch began, and what it is."""
        return self._begun, self.now()

    def now(self) -> Any:
        return encoded(self.part.state_dict(), f"state_dict() of {self.name}")

    def check(self, held: Any) -> None:
        """Nobody but the sampler can tell."""

    def put(self, held: Any) -> None:
        try:
            self.part.load_state_dict(decoded(held))
        except Exception as error:
            raise RestoreFault(f"the state of {self.name} can't be loaded: {error}") from error


class _Ours(_ByState):
    """A sampler of this package: it says how the epoch was dealt out so far, and is told the position by others."""

    def states(self) -> tuple[Any, Any]:
        now = self.now()
        return now, now

    def now(self) -> Any:
        return self.part.state_dict(consumed=0)

    def check(self, held: Any) -> None:
        try:
            self.part.check(held)
        except CallerError as error:
            raise RestoreFault(f"the state of {self.name} can't be loaded: {error}") from error

    def put(self, held: Any) -> None:
        self.part.seek(0)  # an iteration that an earlier run of this object left is given up
        super().put(held)


class _ByAttributes:
    """A sampler whose attributes tell what it keeps."""

    def __init__(self, part: Any) -> None:
        self.part = part
        self._first = self._at_begin = _digests(part)
        self._begun: dict[str, Any] = {}
        self._changing: set[str] = set()

    def begin(self) -> None:
        self._at_begin = _digests(self.part)
        self._begun = self._held(self._at_begin)

    def states(self) -> tuple[Any, Any]:
        """What changing attributes were as the epoch began, and what they are."""
        now, then = _digests(self.part), self._at_begin
        first = self._first
        self._changing |= {key for key in {*now, *then} if not now.get(key) == then.get(key) == first.get(key)}
        begun = {key: held for key, held in self._begun.items() if key in self._changing}
        return begun, self._held(self._changing & now.keys())

    def _held(self, keys: Any) -> dict[str, Any]:
        return {key: encoded(vars(self.part)[key], key) for key in sorted(keys)}

    def check(self, held: Any) -> None:
        """Any attribute can be set."""

    def put(self, held: Any) -> None:
        self._changing.update(held)
        for key, value in held.items():
            given = decoded(value)
            if not taken_over(vars(self.part).get(key), given):
                setattr(self.part, key, given)


def _digests(part: Any) -> dict[str, int]:
    """Digest the attributes of an object that a snapshot can hold."""
    found = {}
    for name, value in vars(part).items():
        with contextlib.suppress(Exception):  # what can't be digested can't be in a snapshot either
            found[name] = _digest(value, [_MANY])
    return found


_MANY = 1000  # tensors in a list: it holds the data itself, and not what a sampler keeps of it
_SCALARS = frozenset(PLAIN)


def _digest(value: Any, left: list[int], crc: int = 0) -> int:
    """Digest a value without copying it; `left` counts down the tensors and arrays in it."""
    if isinstance(value, dict):
        for key, held in value.items():
            if type(key) not in _SCALARS:
                raise NotPlain("a key that isn't plain")
            crc = _digest(held, left, crc32(pickle.dumps(key), crc))
        return crc32(b"}", crc)
    if type(value) in (list, tuple) and not set(map(type, value)) <= _SCALARS:
        for held in value:
            crc = _digest(held, left, crc)
        return crc32(b"]", crc)
    if isinstance(value, (torch.Tensor, np.ndarray)):
        left[0] -= 1
        if left[0] < 0:
            raise NotPlain("the data itself")
        return crc32(_bytes_of(value), crc)
    if type(value) in (*_SCALARS, list, tuple):
        return crc32(pickle.dumps(value), crc)
    return _digest(encoded(value, ""), left, crc)  # a generator, a number of numpy's; or nothing that can be kept


def _bytes_of(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        value = encoded(value, "")
    value = value.detach().to("cpu").contiguous().reshape(-1)
    return value.view(torch.uint8).numpy() if value.numel() else b""
