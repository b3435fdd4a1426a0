"""Two snapshots held against each other, bit by bit: which of their entries aren't the same bytes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import attrs
import torch

from . import storage

_BESIDE = ("COMMIT", "state.json", "fingerprints", "tachograph_")
"""How files begin that tell of the others, or of what the journal tells as well, or are a callback's own."""


@attrs.frozen
class Unequal:
    """An entry that two snapshots have other bits of.

    Attributes:
        name: the way to it: "model/0.weight", "optimizers/0/state/0/exp_avg".
        said: in which way, in words.
    """

    name: str
    said: str

    def __str__(self) -> str:
        return f"{self.name}: {self.said}"


def unequal(a: Path, b: Path) -> Iterator[Unequal]:
    """Yield what differs between two snapshots, in the order in which they hold it.

    NaNs are equal if they have the same bits, and 0.0 isn't -0.0.

    Args:
        a: a snapshot's directory.
        b: another.

    Raises:
        RestoreFault: a file isn't one of a snapshot.
    """
    names = sorted({p.relative_to(d).as_posix() for d in (a, b) for p in d.rglob("*") if p.is_file()})
    for name in names:
        one, other = a / name, b / name
        if name.startswith(_BESIDE):
            continue
        if not (one.is_file() and other.is_file()):
            yield Unequal(name, f"only the {'first' if one.is_file() else 'second'} has this file")
        elif name.endswith(".pt"):
            yield from _differing(storage.read(one), storage.read(other), "model" if name == "model.pt" else "")
        elif name.endswith(".json"):
            yield from _differing(json.loads(one.read_bytes()), json.loads(other.read_bytes()), "")
        elif one.read_bytes() != other.read_bytes():
            yield Unequal(name, "its bytes differ")


def _differing(a: Any, b: Any, path: str) -> Iterator[Unequal]:
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        said = _tensors(a, b)
        if said:
            yield Unequal(path, said)
    elif isinstance(a, dict) and isinstance(b, dict):
        for key in {**a, **b}:
            at = f"{path}/{key}" if path else str(key)
            if key in a and key in b:
                yield from _differing(a[key], b[key], at)
            else:
                yield Unequal(at, f"only the {'first' if key in a else 'second'} has it")
    elif isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        if len(a) != len(b):
            yield Unequal(path, f"{len(a)} entries and {len(b)}")
            return
        for i, (one, other) in enumerate(zip(a, b, strict=True)):
            yield from _differing(one, other, f"{path}/{i}")
    elif type(a) is not type(b) or repr(a) != repr(b):  # repr tells -0.0 from 0.0, and NaN equals itself
        yield Unequal(path, f"{_short(a)} and {_short(b)}")


def _tensors(a: torch.Tensor, b: torch.Tensor) -> str:
    if a.dtype != b.dtype or a.shape != b.shape:
        return f"{a.dtype} {tuple(a.shape)} and {b.dtype} {tuple(b.shape)}"
    if _raw(a) == _raw(b):
        return ""
    size = a.element_size()
    bits = [t.detach().cpu().contiguous().reshape(-1).view(torch.uint8).reshape(-1, size) for t in (a, b)]
    differs = (bits[0] != bits[1]).any(1).nonzero().reshape(-1)
    first = int(differs[0])
    one, other = (t.detach().cpu().reshape(-1)[first].item() for t in (a, b))
    where = f" at {_index(first, a.shape)}" if a.numel() > 1 else ""
    return f"{len(differs):,} of {a.numel():,} values differ, the first{where}: {one!r} and {other!r}"


def _raw(tensor: torch.Tensor) -> bytes:
    whole = tensor.detach().cpu()
    if whole.layout != torch.strided:
        whole = whole.to_dense()
    flat = whole.resolve_conj().resolve_neg().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""


def _index(flat: int, shape: torch.Size) -> list[int]:
    index: list[int] = []
    for size in reversed(shape):
        index.append(flat % size)
        flat //= size
    return index[::-1]


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


__all__ = ["Unequal", "unequal"]
