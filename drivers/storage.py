"""The bytes of a snapshot: tensors and plain data, written by torch and hashed as they are written.

Everything loads with `torch.load(weights_only=True)`, and is only ever loaded so: nothing is unpickled.
"""

from __future__ import annotations

import copy
import dataclasses
from collections import Counter, OrderedDict
from collections.abc import Callable
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch

from .errors import RestoreFault
from .hashing import HashedFile

PLAIN = (bool, int, float, str, bytes, type(None))


def write(value: Any, path: Path) -> tuple[int, str]:
    """Write a tree of tensors and plain data with `torch.save`, fsynced.

    Returns:
        Its size in bytes and its digest: blake2b with 16 bytes, as hex.

    Raises:
        OSError: the disk refused.
    """
    with HashedFile(path) as file:
        torch.save(value, file)  # type: ignore[arg-type]
    return file.size, file.digest


def read(path: Any) -> Any:
    """Read what `write` wrote, from a path or an open file, onto the CPU.

    Raises:
        RestoreFault: it isn't a file of `torch.save` with tensors and plain data only.
        OSError: it can't be read.
    """
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except (RuntimeError, UnpicklingError, EOFError, LookupError, ValueError, TypeError, AttributeError) as error:
        raise RestoreFault(
            f"{_called(path)} isn't a whole file of torch.save with tensors and plain data only, and nothing else is "
            "unpickled"
        ) from error


def _called(source: Any) -> str:
    """Name a path or an open file; one that stands at its end was probably just written."""
    if not hasattr(source, "tell"):
        return str(source)
    at_end = _seekable(source) and source.tell() == source.seek(0, 2)
    return "the open file (it stands at its end: seek(0) first)" if at_end else "the open file"


def _seekable(file: Any) -> bool:
    return bool(getattr(file, "seekable", bool)())


def write_model(state: Any, target: Any) -> None:
    """Write a model's state dict, marked as such, to a path, whole or not at all; or to an open file.

    Raises:
        OSError: the disk refused.
    """
    marked = OrderedDict(state)
    marked.__dict__.update(getattr(state, "__dict__", {}), tachograph="model")
    if hasattr(target, "write"):
        torch.save(marked, target)
        if _seekable(target):
            target.truncate()  # what a longer one left behind it would be read as the end
        return
    path = Path(target)
    temporary = path.with_name(f".{path.name}.writing")
    temporary.unlink(missing_ok=True)
    try:
        write(marked, temporary)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def is_model(held: Any) -> bool:
    """Say whether what was read is what `write_model` wrote."""
    return getattr(held, "tachograph", "") == "model"


def mapped(value: Any, leaf: Callable[[torch.Tensor], Any]) -> Any:
    """Copy a tree of plain containers with `leaf` applied to its tensors; other leaves stay what they are.

    Dataclasses are containers too, unless they move themselves by a method `to`.
    """
    if isinstance(value, torch.Tensor):
        return leaf(value)
    if isinstance(value, dict):
        pairs = {k: mapped(v, leaf) for k, v in value.items()}
        return type(value)(pairs) if isinstance(value, (OrderedDict, Counter)) else pairs
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(mapped(v, leaf) for v in value))
    if isinstance(value, (list, tuple)):
        return type(value)(mapped(v, leaf) for v in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type) and not hasattr(value, "to"):
        copied = copy.copy(value)
        for field in dataclasses.fields(value):
            object.__setattr__(copied, field.name, mapped(getattr(value, field.name), leaf))  # a frozen one too
        return copied
    return value


def copied(value: Any) -> Any:
    """Copy a tree so that training may change its tensors while the copy is written; tensors come to the CPU."""
    return mapped(value, lambda t: t.detach().to("cpu", copy=True))


def bytes_in(value: Any) -> int:
    """Return how many bytes the tensors of a tree hold."""
    total = 0

    def count(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal total
        total += tensor.numel() * tensor.element_size()
        return tensor

    mapped(value, count)
    return total


def is_plain(value: Any) -> bool:
    """Say whether a tree holds tensors and plain data only, so that `read` will load it."""
    if isinstance(value, torch.Tensor) or type(value) in PLAIN:
        return True
    if type(value) in (dict, OrderedDict, Counter):
        return all(type(k) in PLAIN and is_plain(v) for k, v in value.items())
    return type(value) in (list, tuple) and all(is_plain(v) for v in value)
