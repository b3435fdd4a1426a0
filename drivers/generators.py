"""The random generators that training draws from: Python's, numpy's, torch's, and each device's.

Captured first and restored last. `forked` lets validation, samplers and loggers draw what they like without
moving training by a bit. The digest is read per step, so it looks at the generators' memory and not at copies
of their whole state (numpy's `get_state` alone costs 46 µs, Python's `getstate` 11).
"""

from __future__ import annotations

import ctypes
import hashlib
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from zlib import crc32

import numpy as np
import torch

_WORDS = 64  # bytes of a Mersenne state that enter the digest, beside its position: any reseeding changes them


def derive(seed: int, *parts: object) -> int:
    """Derive a 63-bit seed from a run's seed and what it is for; the same on every machine."""
    text = ":".join([str(seed), *map(str, parts)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def seed_all(seed: int) -> None:
    """Seed Python's, numpy's and torch's generators, each with a seed of its own derived from `seed`."""
    random.seed(derive(seed, "python"))
    np.random.seed(derive(seed, "numpy") & 0xFFFFFFFF)
    torch.manual_seed(seed)  # all devices; the user's number itself, so that it equals a hand-written loop's


def capture() -> dict[str, Any]:
    """Return the states of all generators as plain data and tensors."""
    version, words, gauss = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state()
    states: dict[str, Any] = {
        "python": {"version": version, "words": torch.tensor(words, dtype=torch.int64), "gauss": gauss},
        "numpy": {
            "name": str(name),
            "keys": torch.from_numpy(np.asarray(keys).astype(np.int64)),
            "position": int(position),
            "has_gauss": int(has_gauss),
            "cached": float(cached),
        },
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        states["cuda"] = torch.cuda.get_rng_state_all()
    if hasattr(torch, "mps") and torch.backends.mps.is_available():
        states["mps"] = torch.mps.get_rng_state()
    return states


def restore(states: dict[str, Any]) -> None:
    """Put back what `capture` returned."""
    python, numpy = states["python"], states["numpy"]
    random.setstate((python["version"], tuple(python["words"].tolist()), python["gauss"]))
    np.random.set_state(
        (
            numpy["name"],
            numpy["keys"].numpy().astype(np.uint32),
            numpy["position"],
            numpy["has_gauss"],
            numpy["cached"],
        )
    )
    torch.set_rng_state(states["torch"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(states["cuda"])
    if "mps" in states and torch.backends.mps.is_available():
        torch.mps.set_rng_state(states["mps"])


@contextmanager
def forked(seed: int | None = None) -> Iterator[None]:
    """Run the body on copies of the generators, seeded anew if a seed is given, and put back what they were."""
    before = capture()
    try:
        if seed is not None:
            seed_all(seed)
        yield
    finally:
        restore(before)


def digest_reader(whole: bool, device: torch.device) -> Callable[[], int]:
    """Return a function that gives a 32-bit number which moves with every draw.

    Args:
        whole: cover Python's and numpy's generators too. Only a run that seeded them itself may ask for it:
            left to themselves they start from the system's entropy, and equal runs would look different.
        device: a device whose own generator is covered as well, as its seed and offset.
    """
    get_state = torch.default_generator.get_state  # seed, left, next, 624 words, ...: the first bytes say it all
    size = 24 + _WORDS

    def of_torch() -> int:
        words: Any = get_state().numpy()
        return crc32(words[:size])

    readers = _python_and_numpy() if whole else []
    if device.type == "cuda":
        index = device.index if device.index is not None else torch.cuda.current_device()
        cuda = torch.cuda.default_generators[
            index
        ]  # the Philox seed and offset live on the host: no wait for the device
        readers.append(lambda: f"{cuda.initial_seed()} {cuda.get_offset()}".encode())
    if not readers:
        return of_torch

    def of_all() -> int:
        crc = of_torch()
        for read in readers:
            crc = crc32(read(), crc)
        return crc

    return of_all


def _python_and_numpy() -> list[Callable[[], bytes]]:
    address = np.random.get_bit_generator().ctypes.state_address if hasattr(np.random, "get_bit_generator") else 0
    readers: list[Callable[[], bytes]] = [_python_words()]
    if address and np.random.get_state(legacy=False)["bit_generator"] == "MT19937":  # type: ignore[index]
        key, pos = (
            address,
            address + 624 * 4,
        )  # struct { uint32_t key[624]; int pos; }, documented by its ctypes interface
        readers.append(lambda: ctypes.string_at(key, _WORDS) + ctypes.string_at(pos, 4))
    else:
        readers.append(lambda: repr(np.random.get_state(legacy=True)).encode())
    return readers


def _python_words() -> Callable[[], bytes]:
    """Read the position and some words of `random`'s generator where CPython keeps them, if they are there."""
    address = id(random._inst) + object.__basicsize__  # type: ignore[attr-defined]
    words: Any = random.getstate()[1]
    expected = words[-1].to_bytes(4, "little") + b"".join(w.to_bytes(4, "little") for w in words[: _WORDS // 4])
    size = 4 + _WORDS
    if random._inst.__sizeof__() >= object.__basicsize__ + size and ctypes.string_at(address, size) == expected:  # type: ignore[attr-defined]
        return lambda: ctypes.string_at(address, size)
    return lambda: repr(random.getstate()).encode()  # another interpreter or layout: slower, the same meaning
