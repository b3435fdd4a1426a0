"""One line of the journal: how a transition becomes bytes, and how its chain and its checksum are computed.

A line is one JSON object. Its deterministic part comes first (seq, from, event, to, data, state), then what may differ
between equal runs (`meta`), then what is computed: `chain` from the first part, `crc` from all before it. All but these
two come from one call of the JSON encoder. Pure: bytes in, bytes out.
"""

from __future__ import annotations

import functools
import math
from binascii import hexlify
from collections.abc import Callable, Iterable, Mapping
from copy import deepcopy
from hashlib import blake2b
from types import CodeType
from typing import Any
from zlib import crc32

import attrs
import msgspec

from tachograph import states
from tachograph.states import CallerError, Event, TrainerState
from tachograph.states.trainer_state import LIMITS

from .errors import JournalError

GENESIS = bytes(8)
"""The chain before the first transition."""
TAIL = len(b',"crc":"00000000"}')
"""Bytes that the checksum takes at the end of a line, without the newline."""

Encode = Callable[[str, Any, Any, bytes, int, float], "tuple[bytes, bytes, int]"]
"""(source, event, state, chain, crc, time) -> (line, chain, crc)."""

TRAINING_EVENTS = tuple(
    cls for cls in vars(states).values() if isinstance(cls, type) and issubclass(cls, Event) and cls is not Event
)
"""The event classes of the training machine."""

_IMMUTABLE = ("bool", "str", "float", "int | None", "str | None", "float | None", *map(str, (bool, str, float)))
_OWN = ("state", "seq")  # fields of a state that a line holds as `to` and `seq`

to_json = msgspec.json.Encoder().encode
_NAMED = {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}


def limits_of(state_class: type) -> tuple[str, ...]:
    """Return the names of a state class's limits: `TrainerState`'s, else what its `LIMITS` says, else none."""
    return LIMITS if state_class is TrainerState else tuple(getattr(state_class, "LIMITS", ()))


def defaults_of(classes: Iterable[type], limits: tuple[str, ...] = ()) -> dict[str, dict[str, Any]]:
    """Return, by class, the fields that a record leaves out while they hold their default.

    Numbers aren't among them: 0, 0.0 and -0.0 are equal, and not the same bits. Nor are limits: they mark where
    the chained part ends.

    Args:
        classes: the events' and the state's.
        limits: names of the state's limits.
    """
    found = {}
    for cls in classes:
        defaults = {a.name: _default(a) for a in attrs.fields(cls) if a.name not in (*_OWN, *limits)}
        plain = {n: v for n, v in defaults.items() if v is None or v is True or v is False or v in ("", (), [], {})}
        if plain:
            found[cls.__name__] = plain
    return found


def as_built(told: Mapping[str, Mapping[str, Any]], own: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return a header's defaults as the classes of now hold them: what was a tuple is a list in a header.

    Args:
        told: as the header has them.
        own: what `defaults_of` returns for the classes of now.
    """
    return {
        name: {f: () if v == [] and own.get(name, {}).get(f) == () else v for f, v in fields.items()}
        for name, fields in told.items()
    }


def _default(attribute: attrs.Attribute[Any]) -> Any:
    default = attribute.default
    factory = getattr(default, "factory", None)  # attrs.Factory is a class in its stubs, and generic in none of them
    if factory is None:
        return default
    return attrs.NOTHING if default.takes_self else factory()  # type: ignore[union-attr]


def encoder(
    state_class: type, limits: tuple[str, ...] | None = None, defaults: Mapping[str, Mapping[str, Any]] | None = None
) -> Encode:
    """Compile the function that turns a transition into its line.

    It is called twice per training step, between torch's operations, with cold caches: what counts is how little it
    touches. So counters go through one format, and all that seldom changes is encoded when it changes.

    Args:
        state_class: a frozen attrs class with the fields `state` and `seq`.
        limits: its last fields that are no part of the chain; None means what `limits_of` says.
        defaults: what may be left out, as `defaults_of` returns it.

    Raises:
        CallerError: the class lacks a field, or the limits aren't its last fields.
    """
    limits, defaults = limits_of(state_class) if limits is None else limits, defaults or {}
    fields = {a.name: a.type for a in attrs.fields(state_class)}
    if not set(fields).issuperset(_OWN):
        raise CallerError(f"{state_class.__name__} needs the fields 'state' and 'seq' to be journalled")
    names = [n for n in fields if n not in _OWN]
    if limits and tuple(names[-len(limits) :]) != limits:
        raise CallerError(f"the limits {', '.join(limits)} must be the last fields of {state_class.__name__}")
    counters = [n for n in names if fields[n] in (int, "int") and n not in limits]
    calm = [n for n in names if n not in counters]  # what seldom changes; the limits are the last of it
    loose = [n for n in calm if str(fields[n]) not in _IMMUTABLE]  # a value of its own may be changed in place
    held = ["calm", "rest", *(f"held_{n}" for n in calm), *(f"copy_{n}" for n in loose)]
    part = _CalmPart(calm, limits, defaults.get(state_class.__name__, {}), leading_comma=bool(counters))
    space: dict[str, Any] = {
        "to_json": to_json,
        "plain_data": _plain_data,
        "blake2b": blake2b,
        "hexlify": hexlify,
        "crc32": crc32,
        "data_of": _DataOf(defaults),
        "head_of": _HeadOf(),
        "encode_calm": part.encode,
        "deepcopy": deepcopy,
        "FORM": b'{"seq":%d%b%b,"state":{' + b",".join(b'"%b":%%d' % n.encode() for n in counters) + b"%b",
    }
    code = _ENCODE.format(
        counters="".join(f"state.{n}, " for n in counters),
        held=", ".join(held),
        fresh=", ".join(["None"] * len(held)),
        changed=" or ".join(
            ["calm is None", *(f"state.{n} is not held_{n}" for n in calm), *(f"held_{n} != copy_{n}" for n in loose)]
        ),
        taken="; ".join([*(f"held_{n} = state.{n}" for n in calm), *(f"copy_{n} = deepcopy(state.{n})" for n in loose)])
        or "pass",
    )
    exec(_compiled(code), space)  # attrs writes its own __init__ the same way
    return space["make"]()  # type: ignore[no-any-return]


_ENCODE = """
def make():
    {held} = {fresh}

    def encode(source, event, state, chain, crc, time):
        nonlocal {held}
        cls = event.__class__
        try:
            data = to_json(data_of[cls](event))
        except Exception as error:
            data = plain_data(cls, data_of[cls](event), state.seq, error)
        if b"null" in data:
            data = plain_data(cls, data_of[cls](event), state.seq, None)
        if {changed}:
            calm, rest = encode_calm(state)
            {taken}
        covered = FORM % (state.seq, head_of[source, cls, state.state], data, {counters}calm)
        chain = blake2b(chain + covered, digest_size=8).digest()
        body = b'%b%b%r}},"chain":"%b"' % (covered, rest, time, hexlify(chain))
        crc = crc32(body, crc)
        return body + b',"crc":"' + hexlify(crc.to_bytes(4, "big")) + b'"}}\\n', chain, crc

    return encode
"""


@functools.lru_cache(maxsize=256)
def _compiled(code: str) -> CodeType:
    """Compile once for all writers of a process: a resume opens one more, and its classes are the same."""
    return compile(code, "<journal>", "exec")


class _CalmPart:
    """Encodes the fields of a state that aren't counters: what the chain covers of them, and the line's middle.

    Args:
        names: the fields, the limits last.
        limits: the names of the limits.
        omitted: field -> the default that may be left out.
        leading_comma: something stands before them in the state.
    """

    def __init__(
        self, names: list[str], limits: tuple[str, ...], omitted: Mapping[str, Any], leading_comma: bool
    ) -> None:
        covered = [n for n in names if n not in limits]
        self._covered = _fields_of(covered, omitted)
        self._limits = _fields_of(list(limits), {})
        self._comma = leading_comma

    def encode(self, state: Any) -> tuple[bytes, bytes]:
        """Return the covered part, and what follows it up to the time."""
        covered = to_json(plain(self._covered(state)))[1:-1]
        limits = to_json(plain(self._limits(state)))[1:-1]
        if covered and self._comma:
            covered = b"," + covered
        if limits and (covered or self._comma):
            limits = b"," + limits
        return covered, limits + b'},"meta":{"time":'


class _HeadOf(dict[tuple[str, type, str], bytes]):
    """(source, event class, dest) -> how that row stands in a line; made when it first occurs."""

    def __missing__(self, key: tuple[str, type, str]) -> bytes:
        source, cls, dest = key
        named = to_json({"from": source, "event": cls.__name__, "to": dest})
        head = self[key] = b"," + named[1:-1] + b',"data":'
        return head


class _DataOf(dict[type, Callable[[Any], "dict[str, Any]"]]):
    """By event class, the compiled function that returns an event's data; compiled at the first event."""

    def __init__(self, defaults: Mapping[str, Mapping[str, Any]]) -> None:
        self.defaults = defaults

    def __missing__(self, cls: type) -> Callable[[Any], dict[str, Any]]:
        if not attrs.has(cls):
            raise CallerError(f"{cls.__name__} can't be journalled: an event is decorated with attrs.frozen")
        self[cls] = _fields_of([a.name for a in attrs.fields(cls)], self.defaults.get(cls.__name__, {}))
        return self[cls]


def _fields_of(names: list[str], omitted: Mapping[str, Any]) -> Callable[[Any], dict[str, Any]]:
    """Compile the function that returns a value's fields as a dict, without those that hold an omitted default."""
    first = next((i for i, name in enumerate(names) if name in omitted), len(names))
    lines = [f"    data = {{{', '.join(f'{n!r}: value.{n}' for n in names[:first])}}}"]
    for name in names[first:]:
        if name in omitted:
            word = "is not" if isinstance(omitted[name], bool | None) else "!="
            lines.append(f"    if value.{name} {word} {omitted[name]!r}:")
        lines.append(f"    {'    ' * (name in omitted)}data[{name!r}] = value.{name}")
    space: dict[str, Any] = {}
    exec(_compiled("\n".join(["def fields(value):", *lines, "    return data"])), space)
    return space["fields"]  # type: ignore[no-any-return]


def _plain_data(cls: type, data: dict[str, Any], seq: int, error: Exception | None) -> bytes:
    """Encode an event's data again, with NaN and infinities as strings.

    Raises:
        JournalError: it holds what a record can't.
    """
    try:
        return to_json(plain(data))
    except Exception as second:
        cause = error or second
        raise JournalError(
            f"{cls.__name__} at seq {seq} holds what a record can't ({cause}); "
            "an event holds numbers, strings, lists and dicts with string keys"
        ) from cause


def plain(value: Any) -> Any:
    """Return `value` with NaN and infinities as "nan", "inf", "-inf", and text that UTF-8 can't hold escaped."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(float(value))
    if isinstance(value, str):
        return value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {plain(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return value


def restored(value: Any) -> Any:
    """Undo `plain`: the three strings become floats again, at any depth."""
    if isinstance(value, str):
        return _NAMED.get(value, value)
    if isinstance(value, dict):
        return {k: restored(v) for k, v in value.items()}
    if isinstance(value, list):
        return [restored(v) for v in value]
    return value


def from_json(raw: bytes | msgspec.Raw) -> Any:
    """Decode plain data as it stands."""
    return msgspec.json.decode(raw)


def sealed(body: bytes, crc: int) -> tuple[bytes, int]:
    """Close a line: append the checksum of `body`, seeded with that of the line before; return (line, crc)."""
    crc = crc32(body, crc)
    return b'%b,"crc":"%08x"}\n' % (body, crc), crc


def stored_crc(line: bytes) -> int | None:
    """Return the checksum that a line (without newline) carries; None where it carries none."""
    tail = line[-TAIL:]
    try:
        crc = int(tail[8:16], 16)
    except ValueError:
        return None
    return crc if tail == b',"crc":"%08x"}' % crc else None  # compared as bytes: int() takes more than we write


def side_line(kind: str, seq: int, data: dict[str, Any], crc: int, time: float) -> tuple[bytes, int]:
    """Encode a side record; return (line, crc).

    Raises:
        JournalError: `data` holds what JSON can't.
    """
    try:
        raw = to_json({"side": kind, "seq": seq, "data": plain(data)})
    except Exception as error:
        raise JournalError(f"a {kind!r} record after seq {seq} holds what it can't: {error}") from error
    return sealed(b'%b,"meta":{"time":%.6f}' % (raw[:-1], time), crc)


def chained(line: bytes, limits: tuple[str, ...]) -> bytes:
    """Return the part of a transition's line that its chain covers: all before the state's limits, or before its end.

    Raises:
        ValueError: it isn't a transition's line.
    """
    end = line.rindex(b'},"meta":')
    if not limits:
        return line[:end]
    cut = line.rindex(b'"%b":' % limits[0].encode(), 0, end)
    return line[: cut - 1 if line[cut - 1 : cut] == b"," else cut]


def next_chain(chain: bytes, part: bytes) -> bytes:
    """Return the chain after a transition whose chained part is `part`."""
    return blake2b(chain + part, digest_size=8).digest()
