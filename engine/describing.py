"""Describing what a script built in plain data, so that what another script builds can be held against it.

A function is described by what it computes: its code, its constants, the plain values that it closes over or reads from
its module. Names of variables, comments and line numbers are no part of it.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Mapping
from types import CodeType
from typing import Any

_SCALARS = (bool, int, float, str, type(None))
_DEEPEST = 6
_LONGEST, _MOST = 400, 64  # characters of a list, entries of a dict; what is longer is described by its digest


def described(value: Any, depth: int = 0) -> Any:
    """Describe a value: plain data as it is, tensors of one element as numbers, functions by what they compute.

    Anything else is described by its class alone.
    """
    if type(value) in _SCALARS:
        return value
    if depth > _DEEPEST:
        return "..."
    if isinstance(value, Mapping):
        return _short({str(k): described(v, depth + 1) for k, v in value.items()})
    if isinstance(value, (list, tuple)):
        return _short([described(v, depth + 1) for v in value])
    if isinstance(value, (set, frozenset)):
        return _short(sorted((described(v, depth + 1) for v in value), key=repr))
    if hasattr(value, "numel") and value.numel() == 1:
        return value.item()
    return _function(value, depth + 1) if callable(value) else _name(type(value))


def named(fn: Any) -> str | None:
    """Name a function or a class as its module does; None for None."""
    return None if fn is None else _name(fn if hasattr(fn, "__qualname__") else type(fn))


def _function(fn: Any, depth: int) -> Any:
    if isinstance(fn, functools.partial):
        return [described(fn.func, depth), described(fn.args, depth), described(fn.keywords, depth)]
    owner = getattr(fn, "__self__", None)
    if owner is not None and hasattr(fn, "__func__"):
        return [_function(fn.__func__, depth), _name(type(owner)), described(_held(owner), depth)]
    code = getattr(fn, "__code__", None)
    if code is None:  # a callable object, or one that isn't written in Python
        return [_name(type(fn)), described(_held(fn), depth)] if hasattr(fn, "__dict__") else _name(fn)
    cells = [_cell(cell) for cell in fn.__closure__ or ()]
    outside = {name: fn.__globals__[name] for name in code.co_names if _is_plain(fn.__globals__.get(name, _name))}
    reads = [described(part, depth) for part in (cells, fn.__defaults__, fn.__kwdefaults__, outside)]
    return f"function {_digest(repr([_code(code), reads]))}"


def _code(code: CodeType) -> list[Any]:
    constants = [_code(c) if isinstance(c, CodeType) else described(c) for c in code.co_consts]
    return [code.co_code.hex(), constants, list(code.co_names)]


def _cell(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return None


def _held(owner: object) -> Any:
    return getattr(owner, "__dict__", {}) if not isinstance(owner, type) else {}


def _is_plain(value: Any) -> bool:
    return type(value) in _SCALARS or (type(value) in (list, tuple) and all(_is_plain(v) for v in value))


def _short(value: Any) -> Any:
    text = repr(value)
    fits = len(value) <= _MOST if isinstance(value, dict) else len(text) <= _LONGEST
    return value if fits else f"{text[:40]}... {_digest(text)}"


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


def _name(thing: Callable[..., Any] | type) -> str:
    return str(getattr(thing, "__qualname__", type(thing).__qualname__))


__all__ = ["described", "named"]
