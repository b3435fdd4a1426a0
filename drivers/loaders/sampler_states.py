"""What a sampler of the user's own keeps from epoch to epoch, so that a resumed run asks it in the same condition.

torch's samplers are asked under a private generator and keep nothing. Another one may count its epochs, draw from a
generator of its own, or shuffle its list in place. Its `state_dict` is used if it has one; else those of its attributes
that a snapshot can hold and that changed since the beginning. A sampler of this package is asked whenever a snapshot is
taken: it says how the epoch was dealt out so far, and is told the position by who opens the order.
"""

from __future__ import annotations

import pickle
from typing import Any
from zlib import crc32

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
from tachograph.states.errors import CallerError

from .plain import NotPlain, decoded, encoded, taken_over
from .source import has_state

_KNOWN = (
    *(BatchSampler, RandomSampler, SequentialSampler, SubsetRandomSampler, WeightedRandomSampler, DistributedSampler),
    *(list, tuple, range),
)


class SamplerStates:
    """The states of the samplers of a loader, as they were when the epoch in work began.

    Args:
        sampler: the loader's batch sampler, or its sampler.
    """

    def __init__(self, sampler: Any) -> None:
        parts = {"the sampler": sampler, "the sampler's sampler": getattr(sampler, "sampler", None)}
        own = {name: part for name, part in parts.items() if type(part) not in _KNOWN}
        self._parts = {name: part for name, part in own.items() if hasattr(part, "__dict__")}
        self._first = {name: _digests(part) for name, part in self._parts.items() if not has_state(part)}
        self._begun: dict[str, Any] | None = None
        self._known_to_change: set[str] = set()
        self._to_load: dict[str, Any] | None = None

    def begin(self) -> None:
        """Put in place what was loaded, and keep what there is; before the samplers are asked for an epoch."""
        if self._to_load is not None:
            for name, held in self._to_load.items():
                _put(self._parts[name], name, held)
            self._to_load = None
        if self._parts:
            self._begun = {name: self._taken(name, part) for name, part in self._parts.items()}

    def state(self) -> dict[str, Any] | None:
        """Return the states of the samplers at the beginning of the epoch in work; None if there's nothing to keep."""
        if self._to_load is not None or self._begun is None:
            return self._to_load
        ours = {name: part for name, part in self._parts.items() if isinstance(part, ReproducibleSampler)}
        return {**self._begun, **{name: self._taken(name, part) for name, part in ours.items()}}

    def check(self, held: dict[str, Any] | None) -> None:
        """Refuse a state that there is no sampler for.

        Raises:
            RestoreFault: there is none.
        """
        for name in held or {}:
            if name not in self._parts:
                raise RestoreFault(f"the snapshot has a state of {name}, which keeps none here: use the same samplers")
            _check(self._parts[name], name, (held or {})[name])

    def load(self, held: dict[str, Any] | None) -> None:
        """Take what `state` returned, to be put in place at the next beginning of an epoch."""
        self._to_load = held
        for part in (held or {}).values():
            self._known_to_change.update(part.get("attributes", ()))

    def _taken(self, name: str, part: Any) -> Any:
        if isinstance(part, ReproducibleSampler):
            return {"state_dict": part.state_dict(consumed=0)}
        if has_state(part):
            return {"state_dict": encoded(part.state_dict(), f"state_dict() of {name}, a {type(part).__name__},")}
        first, known = self._first[name], self._known_to_change
        changed = [key for key, crc in _digests(part).items() if first.get(key) != crc or key in known]
        return {"attributes": {key: encoded(vars(part)[key], key) for key in changed}}


def _digests(part: Any) -> dict[str, int]:
    """Digest the attributes of an object that a snapshot can hold."""
    found = {}
    for name, value in vars(part).items():
        try:
            found[name] = _digest(value)
        except NotPlain:
            continue
    return found


def _digest(value: Any) -> int:
    if isinstance(value, torch.Tensor):
        value = value.detach().to("cpu").contiguous()
        return crc32(value.view(-1).view(torch.uint8).numpy()) if value.numel() else 0
    return crc32(pickle.dumps(_untensored(encoded(value, ""))))


def _untensored(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.numpy().tobytes()
    if isinstance(value, dict):
        return {key: _untensored(held) for key, held in value.items()}
    if type(value) in (list, tuple):
        return [_untensored(held) for held in value]
    return value


def _check(part: Any, name: str, held: dict[str, Any]) -> None:
    if isinstance(part, ReproducibleSampler) and "state_dict" in held:
        try:
            part.check(held["state_dict"])
        except CallerError as error:
            raise RestoreFault(f"the state of {name} can't be loaded: {error}") from error


def _put(part: Any, name: str, held: dict[str, Any]) -> None:
    if "state_dict" in held:
        if isinstance(part, ReproducibleSampler):
            part.seek(0)  # an iteration that an earlier run of this object left is given up
        try:
            part.load_state_dict(decoded(held["state_dict"]))
        except Exception as error:
            raise RestoreFault(f"the state of {name}, a {type(part).__name__}, can't be loaded: {error}") from error
        return
    for key, value in held["attributes"].items():
        value = decoded(value)
        if not taken_over(vars(part).get(key), value):
            setattr(part, key, value)
