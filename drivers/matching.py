"""Filling a function's parameters by name from a batch, as the model's and the metrics' calls do.

A dict (or dataclass) is matched by parameter name; anything else is passed whole. Signatures are read once,
when the caller is compiled, never per batch.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tachograph.states.errors import CallerError

from .errors import MatchFault


def as_mapping(value: Any) -> Mapping[str, Any] | None:
    """Return a dict or dataclass (or attrs) value as a mapping; None for anything else."""
    if isinstance(value, Mapping):
        return value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: getattr(value, f.name) for f in dataclasses.fields(value)}
    return None


def needed(fn: Any) -> int:
    """Count the parameters without a default that a function has.

    Returns:
        -1 if it isn't one, won't tell, or is a coroutine or a generator, of which a call alone does nothing.
    """
    if inspect.iscoroutinefunction(fn) or inspect.isgeneratorfunction(fn):
        return -1
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):
        return -1
    return sum(p.default is p.empty for p in parameters)


class Signature:
    """The parameters of a function that can be filled by name.

    Args:
        fn: any callable.
        name: how messages call it.

    Raises:
        MatchFault: it takes `*args` but not `**kwargs`, so that nothing can be matched by name.
    """

    def __init__(self, fn: Callable[..., Any], name: str) -> None:
        parameters = inspect.signature(fn).parameters.values()
        kinds = {p.kind for p in parameters}
        self.name = name
        self.takes_all = inspect.Parameter.VAR_KEYWORD in kinds
        if inspect.Parameter.VAR_POSITIONAL in kinds and not self.takes_all:
            raise MatchFault(
                f"{name} takes *{_starred(parameters)}, which can't be filled by name: name its parameters"
            )
        named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        self.names = tuple(p.name for p in named)
        self.required = tuple(p.name for p in named if p.default is p.empty)

    def pick(self, *sources: Mapping[str, Any]) -> dict[str, Any]:
        """Pick the arguments for one call; an earlier source wins where the objects are the same.

        Raises:
            MatchFault: a required parameter is in no source, or two sources hold different objects for it.
        """
        wanted = {n for s in sources for n in s if isinstance(n, str)} if self.takes_all else self.names
        picked: dict[str, Any] = {}
        for name in wanted:
            found = [s[name] for s in sources if name in s]
            if any(f is not found[0] for f in found[1:]):
                raise MatchFault(f"{self.name}: '{name}' is in the batch and in the outputs, with different values")
            if found:
                picked[name] = found[0]
        missing = [name for name in self.required if name not in picked]
        if missing:
            has = sorted({str(n) for s in sources for n in s})
            raise MatchFault(
                f"{self.name} needs '{missing[0]}', which isn't among {has}. Rename it there, or map it with "
                "input_mapping / output_mapping"
            )
        return picked


def _starred(parameters: Any) -> str:
    return str(next(p.name for p in parameters if p.kind is p.VAR_POSITIONAL))


def matched(fn: Callable[..., Any], name: str, signature_of: Callable[..., Any] | None = None) -> Callable[[Any], Any]:
    """Return `call(batch)`: a dict batch fills `fn`'s parameters by name, any other is passed whole.

    Args:
        fn: what is called.
        name: how messages call it.
        signature_of: where its parameters are read, if not from `fn` itself (a module is called, its `forward` read).
    """
    try:
        signature = Signature(signature_of or fn, name)
    except MatchFault:
        return fn  # *args: it takes what it is given

    names, needed = signature.names, frozenset(signature.required)

    def call(batch: Any) -> Any:
        if not isinstance(batch, dict) and not (isinstance(batch, Mapping) and needed <= batch.keys()):
            return fn(batch)  # a mapping of a user's own may be meant as a whole
        picked = {name: batch[name] for name in names if name in batch}
        if signature.takes_all or not needed <= picked.keys():
            picked = signature.pick(batch)  # the slow way, which also knows how to complain
        return fn(**picked)

    return call


def mapping_fn(mapping: Any, name: str) -> Callable[[Any], Any] | None:
    """Turn an `input_mapping` or `output_mapping` into a function.

    Args:
        mapping: None; a callable `mapping(data)`; or a dict old name -> new name, for the keys of a dict, the fields
            of a dataclass, or `_0`, `_1`, ... of a sequence.
        name: how messages call it.

    Raises:
        CallerError: it is something else.
    """
    if mapping is None:
        return None
    if isinstance(mapping, Mapping):
        return lambda data: _renamed(data, mapping, name)
    if not callable(mapping):
        raise CallerError(f"{name} must be None, a callable or a dict, not {type(mapping).__name__}")
    if not _takes_one(mapping):
        raise CallerError(f"{name} must take (data), which {mapping!r} can't")
    return mapping  # type: ignore[no-any-return]


def _takes_one(fn: Any) -> bool:
    try:
        inspect.signature(fn).bind("data")
    except TypeError:
        return False
    except ValueError:  # a builtin that won't tell
        return True
    return True


def _renamed(data: Any, mapping: Mapping[str, str], name: str) -> dict[str, Any]:
    found = as_mapping(data)
    if found is None and isinstance(data, Sequence) and not isinstance(data, str):
        found = {f"_{i}": value for i, value in enumerate(data)}
    if found is None:
        raise CallerError(
            f"{name} is a dict, so the data must be a dict, a dataclass or a sequence, not {type(data).__name__}"
        )
    renamed = {mapping.get(key, key): value for key, value in found.items()}
    if len(renamed) != len(found):
        _name_the_double(found, mapping, name)
    return renamed


def _name_the_double(found: Mapping[str, Any], mapping: Mapping[str, str], name: str) -> None:
    seen: dict[str, str] = {}
    for key in found:
        new = mapping.get(key, key)
        if new in seen:
            raise CallerError(f"{name} makes two values of one name: {seen[new]!r} and {key!r} are both {new!r}")
        seen[new] = key
