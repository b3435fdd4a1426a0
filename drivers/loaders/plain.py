"""States of the user's objects as tensors and plain data, so that a snapshot can hold them, and back.

Beside plain data, states hold numpy's arrays and numbers, generators, sets and deques: they are written as a dict with
the mark below. Anything else can't be in a snapshot, and is refused with the path to it.
"""

from __future__ import annotations

import random
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from tachograph.drivers.storage import PLAIN
from tachograph.states.errors import CallerError

_MARK = "tachograph.kind"


class NotPlain(CallerError):
    """A state holds something that no snapshot can hold; the message names the path to it."""


def encoded(value: Any, path: str) -> Any:
    """Return a state as tensors and plain data, copied to its leaves.

    Args:
        value: the state.
        path: how messages name it.

    Raises:
        NotPlain: it holds something else.
    """
    if type(value) in PLAIN:
        return value
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu", copy=True)
    if type(value) in (dict, OrderedDict, Counter):
        for key in value:
            if type(key) not in PLAIN:
                raise NotPlain(f"{path} has the key {key!r}, a {type(key).__name__}, {_ASKED}")
        return type(value)({key: encoded(held, f"{path}[{key!r}]") for key, held in value.items()})
    if type(value) in (list, tuple):
        if set(map(type, value)) <= _PLAIN:
            return value[:]
        return type(value)(encoded(held, f"{path}[{i}]") for i, held in enumerate(value))
    for kind, (write, _) in _KINDS.items():
        if isinstance(value, _CLASSES[kind]):
            return {_MARK: kind, "held": encoded(write(value), path)}
    raise NotPlain(f"{path} is a {type(value).__name__}, {_ASKED}")


def decoded(value: Any) -> Any:
    """Return what `encoded` was given."""
    if isinstance(value, dict):
        if _MARK in value:
            return _KINDS[value[_MARK]][1](decoded(value["held"]))
        return type(value)({key: decoded(held) for key, held in value.items()})
    if type(value) in (list, tuple):
        return value[:] if set(map(type, value)) <= _PLAIN else type(value)(map(decoded, value))
    return value


def taken_over(held: Any, given: Any) -> bool:
    """Give a generator the state of another one of its kind, a dict of its own kind what it held; False for others."""
    if type(held) is not type(given):
        if not isinstance(held, dict) or not isinstance(given, dict):
            return False
        held.clear()
        held.update(given)
        return True
    if isinstance(held, torch.Generator):
        held.set_state(given.get_state())
    elif isinstance(held, random.Random):
        held.setstate(given.getstate())
    elif isinstance(held, np.random.Generator):
        held.bit_generator.state = given.bit_generator.state
    elif isinstance(held, np.random.RandomState):
        held.set_state(given.get_state())
    else:
        return False
    return True


_PLAIN = frozenset(PLAIN)
_ASKED = "and a snapshot holds tensors and plain data only: return those (numbers, strings, lists, dicts, arrays)"


def _array(value: Any) -> Any:
    if value.dtype.kind not in "biufc":
        raise NotPlain(f"an array of {value.dtype} can't be in a snapshot: return a list")
    return torch.from_numpy(np.array(value, order="C"))


def _torch_generator(state: torch.Tensor) -> torch.Generator:
    made = torch.Generator()
    made.set_state(state)
    return made


def _python_generator(state: Any) -> random.Random:
    made = random.Random()
    made.setstate(state)
    return made


def _numpy_generator(state: dict[str, Any]) -> np.random.Generator:
    bits = getattr(np.random, state["bit_generator"])()
    bits.state = state
    return np.random.Generator(bits)


def _legacy_generator(state: Any) -> np.random.RandomState:
    made = np.random.RandomState()
    made.set_state(state)
    return made


_CLASSES: dict[str, Any] = {
    "array": np.ndarray,
    "number": np.generic,
    "torch.Generator": torch.Generator,
    "random.Random": random.Random,
    "numpy.Generator": np.random.Generator,
    "numpy.RandomState": np.random.RandomState,
    "set": set,
    "frozenset": frozenset,
    "deque": deque,
    "dict": dict,  # of a kind of its own, such as a defaultdict: what it holds comes back
}
_KINDS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "array": (_array, lambda held: held.numpy()),
    "number": (lambda value: _array(np.asarray(value)), lambda held: held.numpy()[()]),
    "torch.Generator": (lambda value: value.get_state(), _torch_generator),
    "random.Random": (lambda value: value.getstate(), _python_generator),
    "numpy.Generator": (lambda value: value.bit_generator.state, _numpy_generator),
    "numpy.RandomState": (lambda value: value.get_state(legacy=False), _legacy_generator),
    "set": (list, set),
    "frozenset": (list, frozenset),
    "deque": (lambda value: [list(value), value.maxlen], lambda held: deque(*held)),
    "dict": (lambda value: dict(value), lambda held: held),
}
