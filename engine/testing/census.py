"""What model, data, callbacks and functions keep in plain attributes, where no snapshot sees it.

A resumed run that parts from the straight one has usually lost such a value. So it is listed where a run is cut and
where it is gone on with, and what differs is named. It is a look from outside: what is too large, or no plain data, is
passed over, and what isn't listed may still matter.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from types import FunctionType
from typing import Any

import attrs

_DEEP = 4
_MANY = 2_000  # entries of a container, or elements of an array
_PLAIN = (bool, int, float, complex, str, bytes, type(None))
_LIBRARIES = ("torch", "numpy", "builtins", "tachograph", "collections", "threading", "logging")
_OF_A_MODULE = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set", "training")

WAYS = {
    "model": "keep it in a buffer (register_buffer), or save it by get_extra_state and set_extra_state",
    "callbacks": "give the callback state_dict() and load_state_dict()",
    "listeners": "keep it in trainer.state (engine.state), which is saved with every snapshot",
    "functions": "keep it in trainer.state (engine.state), or give what holds it state_dict() and load_state_dict(), "
    "and callbacks=[Kept(name=...)]",
    "data": "derive it from the sample's index and the epoch, or give what draws it state_dict() and load_state_dict()",
}
"""Whose memory it is -> how it comes into a snapshot."""


@attrs.frozen
class Lost:
    """A value that a resumed run hasn't got.

    Attributes:
        name: where it is: "model.calls", "callbacks/Warm.seen".
        then: it, where the run was cut.
        now: it, after the resume.
    """

    name: str
    then: str
    now: str

    @property
    def way(self) -> str:
        """How it comes into a snapshot."""
        return WAYS[self.name.split("/")[0].split(".")[0]]

    def __str__(self) -> str:
        return f"{self.name} was {self.then} where the run was cut, and is {self.now} after the resume"


def census(engine: Any) -> dict[str, str]:
    """List the plain values in an engine's model, data, callbacks and functions: where they are -> what they are."""
    found: dict[str, str] = {}
    seen: set[int] = {id(engine)}  # a function of a state's work usually knows it; what it holds is saved
    for name, value in _owners(engine):
        found.update(_of(value, name, seen, 0))
    return found


def lost(then: Mapping[str, str], now: Mapping[str, str]) -> list[Lost]:
    """List what is another value after a resume."""
    names = [name for name in then if then[name] != now.get(name, "not there")]
    return [Lost(name, then[name], now.get(name, "not there")) for name in names]


def _owners(engine: Any) -> Iterator[tuple[str, Any]]:
    from ..trainer import Trainer

    yield from _modules(getattr(engine.driver, "model", None))
    if isinstance(engine, Trainer):
        yield from _loader("data/train", engine.train_dataloader)
        for name, loader in _evaluated(engine).items():
            yield from _loader(f"data/{name or 'validate'}", loader)
    for name, callback in engine.listeners.callbacks.items():
        if not _is_of_a_library(callback):
            yield f"callbacks/{name}", callback
    for subscription in engine.listeners._subscriptions:
        if subscription.owner is None and not _is_ours(subscription.fn):
            yield f"listeners/{_called(subscription.fn)}", subscription.fn
    for fn in _functions(engine):
        if fn is not None and not _is_ours(fn):
            yield f"functions/{_called(fn)}", fn


def _functions(engine: Any) -> Iterator[Any]:
    for name in ("_step_fn", "_output_mapping"):
        yield getattr(engine, name, None)
    yield getattr(engine.driver, "input_mapping", None)
    yield from engine._perform.values()


def _evaluated(trainer: Any) -> Mapping[str, Any]:
    held = getattr(trainer.evaluator, "dataloaders", {})
    return held if isinstance(held, Mapping) else {"validate": held}


def _modules(model: Any) -> Iterator[tuple[str, Any]]:
    """Yield the plain attributes of a model's modules; parameters and buffers are the snapshot's."""
    for path, module in getattr(model, "named_modules", list)():
        unsaved = getattr(module, "_non_persistent_buffers_set", ())
        for name, value in vars(module).items():
            if name not in _OF_A_MODULE and not name.endswith("hooks") and not name.startswith("_forward"):
                yield ".".join(filter(None, ("model", path, name))), value
        for name in sorted(unsaved):
            yield ".".join(filter(None, ("model", path, name))), module._buffers[name]


def _loader(name: str, loader: Any) -> Iterator[tuple[str, Any]]:
    parts = {part: getattr(loader, part, None) for part in ("dataset", "sampler", "batch_sampler", "collate_fn")}
    if not any(part is not None for part in parts.values()):
        yield name, loader
    for part, value in parts.items():
        if value is not None and (callable(value) or not _is_of_a_library(value)):
            yield f"{name}.{part}", value


def _of(value: Any, name: str, seen: set[int], deep: int) -> Iterator[tuple[str, str]]:
    told = _told(value)
    if told is not None:
        yield name, told
        return
    if id(value) in seen or deep >= _DEEP:
        return
    seen.add(id(value))
    for key, held in _within(value):
        yield from _of(held, f"{name}{key}", seen, deep + 1)


def _within(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        if len(value) <= _MANY:
            yield from ((f"[{key!r}]", held) for key, held in value.items())
    elif isinstance(value, (list, tuple, set, frozenset)):
        if len(value) <= _MANY and not isinstance(value, (set, frozenset)):
            yield from ((f"[{i}]", held) for i, held in enumerate(value))
    elif isinstance(value, FunctionType):
        for variable, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            try:
                yield f".{variable}", cell.cell_contents
            except ValueError:  # it isn't filled yet
                continue
    elif isinstance(value, partial):
        yield "", value.func
        yield from ((f"({i})", held) for i, held in enumerate(value.args))
        yield from ((f"({key})", held) for key, held in value.keywords.items())
    elif hasattr(value, "__self__") and hasattr(value, "__func__"):
        yield "", value.__self__
    elif not _is_of_a_library(value) and not isinstance(value, type) and hasattr(value, "__dict__"):
        yield from ((f".{key}", held) for key, held in vars(value).items())


def _told(value: Any) -> str | None:
    """Write a value that can be compared; None for one that can only be looked into, or not even that."""
    if isinstance(value, _PLAIN):
        return _short(repr(value))
    if isinstance(value, (list, tuple)) and len(value) <= _MANY and all(isinstance(v, _PLAIN) for v in value):
        return _short(repr(value))
    for get in _GENERATORS:
        state = get(value)
        if state is not None:
            return f"a generator in the state {hashlib.blake2b(state, digest_size=4).hexdigest()}"
    raw = _array(value)
    if raw is None:
        return None
    few = getattr(value, "tolist", None)
    return _short(repr(few())) if few and len(raw) <= 64 else hashlib.blake2b(raw, digest_size=8).hexdigest()


def _array(value: Any) -> bytes | None:
    """Return the bytes of a small tensor or array."""
    size = getattr(value, "numel", None) or (lambda: getattr(value, "size", _MANY + 1))
    try:
        if not hasattr(value, "dtype") or size() > _MANY:
            return None
        held = value.detach().cpu().numpy() if hasattr(value, "detach") else value
        return bytes(held.tobytes())
    except (TypeError, ValueError, RuntimeError, AttributeError):
        return None


_GENERATORS: tuple[Callable[[Any], bytes | None], ...] = (
    lambda value: repr(value.getstate()).encode() if isinstance(value, random.Random) else None,
    lambda value: repr(value.bit_generator.state).encode() if hasattr(value, "bit_generator") else None,
    lambda value: value.get_state().numpy().tobytes() if type(value).__name__ == "Generator" and hasattr(
        value, "initial_seed") else None,
)  # fmt: skip


def _is_of_a_library(value: Any) -> bool:
    return type(value).__module__.split(".")[0] in _LIBRARIES


def _is_ours(fn: Any) -> bool:
    return str(getattr(fn, "__module__", "")).startswith("tachograph.")


def _called(fn: Any) -> str:
    return str(getattr(fn, "__name__", type(fn).__name__))


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:40]}... ({hashlib.blake2b(text.encode(), digest_size=4).hexdigest()})"
