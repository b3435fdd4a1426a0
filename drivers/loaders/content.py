"""What a batch holds, as a short text: ranks tell by it whether they were given the same one.

It must be equal in any process, so addresses, and pickles, which may hold some, are no part of it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from types import BuiltinFunctionType, FunctionType
from typing import Any

import numpy as np
import torch

_PLAIN = (int, float, complex, bool, str, bytes, type(None))
_DEPTH = 20


def content_hash(value: Any) -> str:
    """Hash what a value holds.

    Args:
        value: tensors and arrays count by dtype, shape and bytes, plain data by its repr, containers and objects by
            what they hold, 20 levels deep.
    """
    digest = hashlib.blake2b(digest_size=8)
    for part in parts_of(value):
        for raw in [part] if isinstance(part, bytes) else _bytes_of(part):
            digest.update(len(raw).to_bytes(8, "little"))
            digest.update(raw)
    return digest.hexdigest()


def parts_of(value: Any) -> Iterator[Any]:
    """Yield what a value holds: tensors and arrays as they are, and bytes that stand for all else."""
    yield from _parts(value, _DEPTH)


def _parts(value: Any, depth: int) -> Iterator[Any]:
    if type(value) in _PLAIN or depth < 0:
        yield repr(value).encode() if depth >= 0 else type(value).__qualname__.encode()
    elif isinstance(value, torch.Tensor) or (isinstance(value, np.ndarray) and value.dtype.kind != "O"):
        yield value
    elif isinstance(value, (set, frozenset)):
        yield repr(sorted(map(content_hash, value))).encode()
    elif isinstance(value, Mapping):
        yield from _of_a_sequence([part for pair in value.items() for part in pair], depth)
    elif isinstance(value, (list, tuple)):
        yield from _of_a_sequence(value, depth)
    else:
        yield from _of_an_object(value, depth)


def _bytes_of(value: Any) -> Iterator[bytes]:
    """Yield what a tensor or an array holds."""
    if isinstance(value, np.ndarray):
        yield f"array {value.dtype.str} {value.shape}".encode()
        yield value.tobytes()
        return
    held = value.detach().cpu()
    held = held if held.layout is torch.strided else held.to_dense()
    yield f"tensor {held.dtype} {tuple(held.shape)}".encode()
    yield held.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if held.numel() else b""


def _of_a_sequence(values: Any, depth: int) -> Iterator[Any]:
    yield f"{len(values)} values".encode()
    for value in values:
        yield from _parts(value, depth - 1)


def _of_an_object(value: Any, depth: int) -> Iterator[Any]:
    """Take an object apart as pickling would."""
    if isinstance(value, (type, FunctionType, BuiltinFunctionType)):
        yield f"{value.__module__}.{value.__qualname__}".encode()
        return
    try:
        reduced = value.__reduce_ex__(2)
    except Exception:
        reduced = type(value)  # nobody can tell what it holds
    if isinstance(reduced, tuple):
        made, given, *more = reduced
        rest = [part if k == 0 or part is None else list(part) for k, part in enumerate(more[:3])]
        reduced = [made, given, *rest]
    yield from _parts(reduced, depth - 1)


__all__ = ["content_hash", "parts_of"]
