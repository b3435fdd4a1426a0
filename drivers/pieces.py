"""`Piece`: what one rank holds of a tensor that is spread over all, and trees with pieces in the place of tensors.

Everything here is about lengths and places. It knows no process group, so that what one rank saved can be read by any
number of others, and by one process that is no rank at all.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import torch

REFERENCE = "tachograph.piece"
"""The one key of a dict that stands where a piece was."""


@attrs.frozen
class Share:
    """A rank's place among those that share the tensors; the only one of all holds them whole.

    Attributes:
        index: which of the shares it has, from 0.
        count: how many shares there are.
        first: no other rank with this share comes before it; with copies of all shares there are such.
    """

    index: int = 0
    count: int = 1
    first: bool = True

    def of(self, length: int) -> tuple[int, int]:
        """Return where this share of so many rows begins, and how many it holds; as `torch.chunk` cuts them."""
        most = -(-length // self.count)
        start = min(length, most * self.index)
        return start, min(length, start + most) - start


@attrs.frozen(eq=False)
class Piece:
    """What one rank holds of a tensor.

    Attributes:
        values: on the CPU.
        size: of the whole tensor.
        dim: along which it is cut; None: every rank holds it whole.
        start: where this piece begins along it.
        first: this rank is the one that writes it.
    """

    values: torch.Tensor
    size: tuple[int, ...]
    dim: int | None
    start: int
    first: bool = True

    @classmethod
    def empty(cls, size: tuple[int, ...], dtype: torch.dtype, dim: int | None, share: Share) -> Piece:
        """Make room for a share of a tensor."""
        start, length = (0, 0) if dim is None else share.of(size[dim])
        own = size if dim is None else (*size[:dim], length, *size[dim + 1 :])
        return cls(torch.empty(own, dtype=dtype), tuple(size), dim, start, share.first)

    @property
    def shape(self) -> torch.Size:
        """Of the whole tensor, as it is compared with another's."""
        return torch.Size(self.size)

    @property
    def offsets(self) -> tuple[int, ...]:
        """Where it begins, in all dimensions."""
        return tuple(self.start if d == self.dim else 0 for d in range(len(self.size)))

    @property
    def bytes(self) -> int:
        """How many its values take."""
        return self.values.numel() * self.values.element_size()


def taken_out(tree: Any) -> tuple[Any, dict[str, Piece]]:
    """Take the pieces out of a tree of plain containers.

    Returns:
        The tree with a reference where each was, and the pieces by the path to them, as the references name them.
    """
    pieces: dict[str, Piece] = {}

    def leaf(value: Any, path: str) -> Any:
        if not isinstance(value, Piece):
            return value
        pieces[path] = value
        return {REFERENCE: path}

    return _walked(tree, "", leaf, lambda value: False), pieces


def paths_in(tree: Any) -> list[str]:
    """List the pieces that a tree speaks of."""
    paths: list[str] = []

    def leaf(value: Any, path: str) -> Any:
        if is_reference(value):
            paths.append(value[REFERENCE])
        return value

    _walked(tree, "", leaf, is_reference)
    return paths


def put_in(tree: Any, pieces: Mapping[str, Any]) -> Any:
    """Put pieces, or what was made of them, where a tree has references; a path without one stays a reference."""

    def leaf(value: Any, path: str) -> Any:
        return pieces.get(value[REFERENCE], value) if is_reference(value) else value

    return _walked(tree, "", leaf, is_reference)


def each(tree: Any, change: Callable[[Piece], Any]) -> Any:
    """Copy a tree with every piece changed."""
    return _walked(tree, "", lambda v, _: change(v) if isinstance(v, Piece) else v, lambda value: False)


def is_reference(value: Any) -> bool:
    """Say whether a value stands for a piece."""
    return isinstance(value, dict) and len(value) == 1 and REFERENCE in value


def _walked(value: Any, path: str, leaf: Callable[[Any, str], Any], ends: Callable[[Any], bool]) -> Any:
    """Copy a tree of plain containers with its leaves changed; `ends` names containers that are leaves too."""

    def inner(key: Any, item: Any) -> Any:
        return _walked(item, f"{path}/{key}" if path else str(key), leaf, ends)

    if ends(value):
        return leaf(value, path)
    if isinstance(value, dict):
        pairs = {key: inner(key, item) for key, item in value.items()}
        return type(value)(pairs) if isinstance(value, (OrderedDict, Counter)) else pairs
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(inner(i, item) for i, item in enumerate(value)))
    if isinstance(value, (list, tuple)):
        return type(value)(inner(i, item) for i, item in enumerate(value))
    return leaf(value, path)


__all__ = ["REFERENCE", "Piece", "Share", "each", "is_reference", "paths_in", "put_in", "taken_out"]
