"""The random generators that training draws from: Python's, numpy's, torch's, and each device's.

Captured first and restored last. `forked` lets validation, samplers and loggers draw what they like without
moving training by a bit. The digest is read per step, so it looks at the generators' memory and not at copies
of their whole state (numpy's `get_state` alone costs 46 µs, Python's `getstate` 11). For the same reason the data's
draws are kept apart from training's through `bank`, which copies that memory.
"""

from __future__ import annotations

import ctypes
import hashlib
import random
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any
from zlib import crc32

import numpy as np
import torch

_WORDS = 16  # words of a Mersenne state that enter the digest, beside its position: any reseeding changes them
_KEPT: list[Any] = []


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
    states: dict[str, Any] = {
        "python": {"version": version, "words": torch.from_numpy(np.array(words, dtype=np.int64)), "gauss": gauss},
        "numpy": _get_numpy(),
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        states["cuda"] = torch.cuda.get_rng_state_all()
    if hasattr(torch, "mps") and torch.backends.mps.is_available():
        states["mps"] = torch.mps.get_rng_state()
    return states


def _get_numpy() -> dict[str, Any]:
    held: Any = np.random.get_state(legacy=False)
    if held["bit_generator"] != "MT19937":  # np.random.set_bit_generator was called
        return {"name": str(held["bit_generator"]), "state": _mapped(held, np.ndarray, torch.from_numpy)}
    return {
        "name": "MT19937",
        "keys": torch.from_numpy(np.asarray(held["state"]["key"]).astype(np.int64)),
        "position": int(held["state"]["pos"]),
        "has_gauss": int(held["has_gauss"]),
        "cached": float(held["gauss"]),
    }


def _mapped(value: Any, kind: type, leaf: Callable[[Any], Any]) -> Any:
    if isinstance(value, dict):
        return {key: _mapped(held, kind, leaf) for key, held in value.items()}
    return leaf(value) if isinstance(value, kind) else value


def _set_python(held: Any) -> None:
    random.setstate((held["version"], tuple(held["words"].tolist()), held["gauss"]))


def _set_numpy(held: Any) -> None:
    if held["name"] != "MT19937":
        np.random.set_state(_mapped(held["state"], torch.Tensor, torch.Tensor.numpy))
        return
    keys = held["keys"].numpy().astype(np.uint32)
    np.random.set_state((held["name"], keys, held["position"], held["has_gauss"], held["cached"]))


def _set_cuda(held: Any) -> None:
    if torch.cuda.is_available():
        torch.cuda.set_rng_state_all(held)


def _set_mps(held: Any) -> None:
    if torch.backends.mps.is_available():
        torch.mps.set_rng_state(held)


_SET: dict[str, Callable[[Any], None]] = {
    "python": _set_python,
    "numpy": _set_numpy,
    "torch": torch.set_rng_state,
    "cuda": _set_cuda,
    "mps": _set_mps,
}


def restore(states: dict[str, Any], but: Collection[str] = ()) -> None:
    """Put back what `capture` returned, of all generators but some."""
    for kind, put_back in _SET.items():
        if kind not in but and kind in states:
            put_back(states[kind])


def faults(states: Any, device: torch.device) -> dict[str, str]:
    """Try to put back the states of generators, and say of which kinds that isn't possible. Nothing is changed.

    Args:
        states: what `capture` returned, or something else.
        device: a device whose own generator must be among them.

    Returns:
        kind -> a sentence without its full stop.
    """
    held = states if isinstance(states, dict) else {}
    needed = ["python", "numpy", "torch", *([device.type] if device.type in ("cuda", "mps") else [])]
    found = {kind: f"the state of {kind}'s generator is missing" for kind in needed if kind not in held}
    with forked():
        for kind, put_back in _SET.items():
            try:
                if kind in held:
                    put_back(held[kind])
            except (TypeError, ValueError, LookupError, RuntimeError, AttributeError, OverflowError) as error:
                found[kind] = f"the state of {kind}'s generator can't be used: {str(error).splitlines()[0]}"
    return found


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

    It reads a few bytes where a generator keeps them: its position, and some words that any reseeding changes. Where
    they lie is found out here and tried; where that fails, the same bytes are taken from a copy of the whole state.

    Args:
        whole: cover Python's and numpy's generators too. Only a run that seeded them itself may ask for it:
            left to themselves they start from the system's entropy, and equal runs would look different.
        device: a device whose own generator is covered as well, as its seed and offset.
    """
    readers = [_torch()]
    if whole:
        readers += [_python(), _numpy()]
    if device.type == "cuda":
        index = device.index if device.index is not None else torch.cuda.current_device()
        cuda = torch.cuda.default_generators[index]  # its seed and offset live on the host: no wait for the device
        readers.append(lambda: f"{cuda.initial_seed()} {cuda.get_offset()}".encode())
    if len(readers) == 1:
        read = readers[0]
        return lambda: crc32(read())

    def of_all() -> int:
        crc = 0
        for read in readers:
            crc = crc32(read(), crc)
        return crc

    return of_all


Reader = Callable[[], Any]


def _torch() -> Reader:
    generator = torch.default_generator

    def slow() -> bytes:  # seed, left, next, 624 words: each word in 8 bytes
        state = generator.get_state().numpy()
        return bytes(state[16:20]) + state[24 : 24 + 8 * _WORDS].view(np.uint64).astype("<u4").tobytes()  # type: ignore[no-any-return]

    address = getattr(generator, "_cdata", 0)
    if not address:
        return slow
    at = ctypes.string_at(address, 4 * 624).find(slow()[4:])  # the object is larger than its 624 words
    return slow if at < 4 else _fast(address + at - 4, slow, lambda: torch.rand(1))


def _python() -> Reader:
    source: Any = random._inst  # type: ignore[attr-defined]

    def slow() -> bytes:
        words: Any = random.getstate()[1]
        return b"".join(word.to_bytes(4, "little") for word in (words[-1], *words[:_WORDS]))

    head = object.__basicsize__  # behind it: the position, then the words
    large = source.__sizeof__() >= head + 4 * (1 + _WORDS)
    return _fast(id(source) + head, slow, random.random) if large else slow


def _numpy() -> Reader:
    def slow() -> bytes:
        state: Any = np.random.get_state(legacy=False)
        if state["bit_generator"] != "MT19937":
            return repr(state).encode()
        held = state["state"]
        return held["key"][-_WORDS:].astype("<u4").tobytes() + int(held["pos"]).to_bytes(4, "little")  # type: ignore[no-any-return]

    if not hasattr(np.random, "get_bit_generator"):
        return slow
    held = np.random.get_bit_generator()
    address = held.ctypes.state_address  # of struct { uint32_t key[624]; int pos; }
    known = np.random.get_state(legacy=False)["bit_generator"] == "MT19937"  # type: ignore[index]
    if not known:
        return slow
    read = _fast(address + 4 * (624 - _WORDS), slow, np.random.random)
    _KEPT.append(held)  # its memory is read even if numpy is given another one
    return read


def _fast(address: int, slow: Callable[[], bytes], draw: Callable[[], object]) -> Reader:
    """Return a reader of memory if it reads what `slow` does, before a draw and after; else `slow` itself."""
    memory = (ctypes.c_char * (4 + 4 * _WORDS)).from_address(address)
    before = bytes(memory) == slow()
    with forked():
        draw()
        after = bytes(memory) == slow()
    return (lambda: memory) if before and after else slow
