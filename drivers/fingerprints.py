"""Fingerprints: what tensors hold, bit for bit, as 16 hex digits.

A tensor is read as 64-bit words, the last one filled up with zeros. Each half of a word is multiplied with an odd
weight of its own, and all are added up modulo 2^64. So a single half that changes always shows, and a swap of two shows
because of their places. Whole words would not do: two that differ in their highest bit alone (two values of opposite
sign, say) could be swapped unseen, since any odd weight leaves that difference what it is. A block of words has the
weights of every other block, times an odd number that is the block's. The weights are splitmix64's, so whoever wants to
can compute the same. Whole numbers are added in any order with the same result: neither threads, nor devices, nor
strides matter.

What comes out is hashed once more with the dtype, the shape and the tree that the tensor stood in.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .extras import fingerprints_file
from .hashing import write_bytes
from .loaders.content import parts_of

FORMAT = 1
"""Of `fingerprints.json` in a snapshot."""

WORDS = 1 << 14
"""Words in a block: 128 KiB, which stay in a core's cache."""
_ROWS = 2  # blocks that are worked off at once on the CPU
_DEVICE_ROWS = 256  # and on a device, where what is made of them takes memory
_BLOCKS_FROM = 1 << 40  # what the blocks' numbers are drawn from is apart from the weights'
_ALL = (1 << 64) - 1
_HALF = np.uint64(32)


def of_trees(trees: Mapping[str, Any]) -> dict[str, str | None]:
    """Return the fingerprint of each tree of tensors, arrays and plain data; None stays None.

    A device is waited for once for all of them.
    """
    parts = {name: None if tree is None else list(parts_of(tree)) for name, tree in trees.items()}
    leaves = [part for listed in parts.values() for part in listed or () if not isinstance(part, bytes)]
    found = iter(_of_leaves(leaves))
    return {name: None if listed is None else _folded(listed, found) for name, listed in parts.items()}


def of_tree(tree: Any) -> str:
    """Return the fingerprint of one tree."""
    return str(of_trees({"": [tree]})[""])


def _folded(parts: Sequence[Any], leaves: Any) -> str:
    digest = hashlib.blake2b(digest_size=8)
    for part in parts:
        raw = part if isinstance(part, bytes) else next(leaves)
        digest.update(len(raw).to_bytes(8, "little"))
        digest.update(raw)
    return digest.hexdigest()


def _of_leaves(leaves: Sequence[Any]) -> list[bytes]:
    """Return what stands for each tensor or array."""
    told: list[bytes] = []
    sums: list[list[Any]] = []
    for leaf in leaves:
        about, strided = _taken_apart(leaf)
        told.append(about.encode())
        sums.append([_sum(part) for part in strided])
    read = iter(_at_host([one for part in sums for one in part]))
    both = zip(told, sums, strict=True)
    return [head + b"".join(next(read).to_bytes(8, "little") for _ in part) for head, part in both]


def _taken_apart(leaf: Any) -> tuple[str, list[Any]]:
    """Name what a leaf is, and return what holds its values: strided tensors, or arrays."""
    if isinstance(leaf, np.ndarray):
        return f"array {leaf.dtype.str} {leaf.shape}", [np.ascontiguousarray(leaf)]
    tensor = leaf.detach()
    if hasattr(tensor, "to_local"):  # spread over ranks: this one's part
        tensor = tensor.to_local()
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    about = f"tensor {tensor.dtype} {tuple(tensor.shape) if not tensor.is_nested else 'nested'} {tensor.layout}"
    return about, _strided(tensor)


def _strided(tensor: torch.Tensor) -> list[torch.Tensor]:
    if tensor.is_nested:
        return [held for part in tensor.unbind() for held in _strided(part)]
    if tensor.layout is torch.sparse_coo:
        whole = tensor.coalesce()
        return [whole.indices(), whole.values()]
    if tensor.layout is not torch.strided:
        return [tensor.to_dense()]
    return [] if tensor.is_meta else [tensor]


# -- the sum -------------------------------------------------------------------------------------------------


def _sum(values: Any) -> Any:
    """Return the weighted sum of an array or a tensor; where a tensor isn't the CPU's, as a tensor there."""
    if isinstance(values, np.ndarray):
        return _sum_on_host(values.reshape(-1).view(np.uint8))
    flat = values.resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
    return _sum_on_host(flat.numpy()) if flat.device.type == "cpu" else _sum_on_device(flat)


def _sum_on_host(raw: Any) -> int:
    """Return the weighted sum of bytes."""
    blocks, total = raw.size // (8 * WORDS), 0
    if blocks:
        whole = raw[: blocks * 8 * WORDS]
        words = (whole if whole.ctypes.data % 8 == 0 else whole.copy()).view(np.uint64).reshape(blocks, WORDS)
        total = int(np.einsum("i,i->", _sums_of_blocks(words), _numbers(0, blocks)))
    rest = raw[blocks * 8 * WORDS :]
    if rest.size:
        words = np.zeros(-(-rest.size // 8), np.uint64)
        words.view(np.uint8)[: rest.size] = rest
        low, high = (each[: words.size] for each in _weights())
        own = int(np.dot(words, low)) + int(np.dot(words >> _HALF, high))  # einsum is faster, from 1,000 words on
        total += own * _number(blocks)
    return total & _ALL


def _sums_of_blocks(words: Any) -> Any:
    low, high = _weights()
    room, sums = np.empty((_ROWS, WORDS), np.uint64), np.empty(len(words), np.uint64)
    for at in range(0, len(words), _ROWS):
        rows = words[at : at + _ROWS]
        upper = np.right_shift(rows, _HALF, out=room[: len(rows)])
        sums[at : at + _ROWS] = np.einsum("ij,j->i", rows, low) + np.einsum("ij,j->i", upper, high)
    return sums


def _sum_on_device(raw: torch.Tensor) -> torch.Tensor:
    """Return the weighted sum of bytes where they lie, without waiting for it."""
    filled = -raw.numel() % (8 * WORDS)
    tail = raw.numel() - (8 * WORDS - filled if filled else 0)
    whole, rest = raw[:tail], raw[tail:]
    if whole.storage_offset() % 8:
        whole = whole.clone()
    low, high = _device_weights(raw.device)
    sums = [_rows(part, low, high) for part in whole.view(torch.int64).view(-1, WORDS).split(_DEVICE_ROWS)]
    if rest.numel():
        sums.append(_rows(torch.nn.functional.pad(rest, (0, filled)).view(torch.int64).view(1, WORDS), low, high))
    of_blocks = torch.cat(sums)
    return (of_blocks * _on(_numbers(0, of_blocks.numel()), raw.device)).sum()


def _rows(words: torch.Tensor, low: torch.Tensor, high: torch.Tensor) -> torch.Tensor:
    upper = (words >> 32).bitwise_and_(0xFFFFFFFF)
    return (words * low).sum(1) + upper.mul_(high).sum(1)


def _at_host(sums: list[Any]) -> list[int]:
    """Read those that lie on devices, all of one device at once."""
    waiting: dict[torch.device, list[int]] = {}
    for at, one in enumerate(sums):
        if isinstance(one, torch.Tensor):
            waiting.setdefault(one.device, []).append(at)
    read = list(sums)
    for places in waiting.values():
        for at, value in zip(places, torch.stack([sums[at] for at in places]).tolist(), strict=True):
            read[at] = value & _ALL
    return read


# -- the weights ---------------------------------------------------------------------------------------------


def _splitmix64(start: int, count: int) -> Any:
    """Return numbers of splitmix64's sequence, from the one of an index on (Steele, Lea and Flood, 2014)."""
    z = (np.arange(start + 1, start + count + 1, dtype=np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@functools.cache
def _weights() -> tuple[Any, Any]:
    """Return the weights of the words, and those of their upper halves."""
    drawn = _splitmix64(0, 2 * WORDS) | np.uint64(1)
    return drawn[:WORDS], drawn[WORDS:]


def _numbers(first: int, count: int) -> Any:
    """Return what the sums of blocks are multiplied with."""
    return _splitmix64(_BLOCKS_FROM + first, count) | np.uint64(1)


@functools.lru_cache(256)
def _number(block: int) -> int:
    return int(_numbers(block, 1)[0])


@functools.cache
def _device_weights(device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    low, high = _weights()
    return _on(low, device), _on(high, device)


def _on(numbers: Any, device: torch.device) -> torch.Tensor:
    return torch.from_numpy(numbers.view(np.int64)).to(device)


# -- optimizers, and snapshots -------------------------------------------------------------------------------


def of_optimizers(model: torch.nn.Module, optimizers: Sequence[Any]) -> list[Any]:
    """Return a tree of what optimizers hold: the values of their groups, and by parameter what they keep of it."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return [
        {
            "groups": [_values(group) for group in optimizer.param_groups],
            "state": [
                [names.get(id(parameter), ""), dict(sorted(optimizer.state[parameter].items(), key=_by_name))]
                for group in optimizer.param_groups
                for parameter in group["params"]
                if parameter in optimizer.state
            ],
        }
        for optimizer in optimizers
    ]


def names_in(model: torch.nn.Module, optimizers: Sequence[Any]) -> list[list[str]]:
    """Return the names of the parameters of each optimizer, in the order that its state dict numbers them."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return [
        [names.get(id(parameter), str(n)) for n, parameter in enumerate(p for g in o.param_groups for p in g["params"])]
        for o in optimizers
    ]


def write(capture: Mapping[str, Any], directory: Path, rank: int) -> dict[str, tuple[int, str]]:
    """Write the fingerprints of all that a rank has captured, as JSON.

    Args:
        capture: as `Captures` makes it, with `names`, and with tensors where pieces of them were.
        directory: of the snapshot.
        rank: whose it is.

    Returns:
        name -> (size in bytes, digest) of the file.
    """
    held = capture["model"] if capture["model"] is not None else capture["buffers"]
    extra = capture["extra"]
    callbacks = extra.get("listeners", {}).get("callbacks", {})
    told = {
        "format": FORMAT,
        "model": of_trees(held),
        "optimizers": _of_saved(capture["optimizers"] or (), capture["names"]),
        "gradients": of_trees(capture["gradients"]),
        "generators": of_trees(capture["generators"]),
        **of_trees({"loader": capture["loader"], "scaler": capture["scaler"]}),
        "listeners": of_trees(callbacks),
        "user": of_tree(extra.get("user")),
    }
    name = fingerprints_file(rank)
    return {name: write_bytes(json.dumps(told, indent=1).encode(), directory / name)}


def _of_saved(states: Sequence[Mapping[str, Any]], names: Sequence[Sequence[str]]) -> dict[str, str | None]:
    """Name all that optimizers' state dicts hold: "0.exp_avg.layer.weight", "0.lr", with several groups "0.lr[1]"."""
    found: dict[str, Any] = {}
    for i, state in enumerate(states):
        called = names[i]
        several = len(state["param_groups"]) > 1
        for j, group in enumerate(state["param_groups"]):
            found |= {f"{i}.{key}[{j}]" if several else f"{i}.{key}": [value] for key, value in _values(group).items()}
        for n, kept in state["state"].items():
            name = called[n] if isinstance(n, int) and n < len(called) else str(n)
            for key, value in kept.items() if isinstance(kept, Mapping) else [("state", kept)]:
                found[f"{i}.{key}.{name}"] = [value]
    return of_trees(found)


def _values(group: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in group.items() if key not in ("params", "param_names")}


def _by_name(pair: tuple[Any, Any]) -> str:
    return str(pair[0])


__all__ = ["FORMAT", "names_in", "of_optimizers", "of_tree", "of_trees", "write"]
