"""One line of the journal: how a transition becomes bytes, and how its chain and its checksum are computed.

A line is one JSON object. Its deterministic part comes first (seq, from, event, to, data, state), then what may differ
between equal runs (`meta`), then what is computed: `chain` from the first part, `crc` from all before it. All but these
two come from one call of the JSON encoder. Pure: bytes in, bytes out.
"""

from __future__ import annotations

import math
from binascii import hexlify
from collections.abc import Callable, Iterable, Mapping
from hashlib import blake2b
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

    Args:
        state_class: a frozen attrs class with the fields `state` and `seq`.
        limits: its last fields that are no part of the chain; None means what `limits_of` says.
        defaults: what may be left out, as `defaults_of` returns it.

    Raises:
        CallerError: the class lacks a field, or the limits aren't its last fields.
    """
    limits, defaults = limits_of(state_class) if limits is None else limits, defaults or {}
    names = [a.name for a in attrs.fields(state_class)]
    if not set(names).issuperset(_OWN):
        raise CallerError(f"{state_class.__name__} needs the fields 'state' and 'seq' to be journalled")
    names = [n for n in names if n not in _OWN]
    if limits and tuple(names[-len(limits) :]) != limits:
        raise CallerError(f"the limits {', '.join(limits)} must be the last fields of {state_class.__name__}")
    omitted = defaults.get(state_class.__name__, {})
    space: dict[str, Any] = {
        "to_json": to_json,
        "without_nulls": _without_nulls,
        "blake2b": blake2b,
        "hexlify": hexlify,
        "crc32": crc32,
        "chained": chained,
        "state_of": _fields_of(names, omitted),
        "data_of": _DataOf(defaults),
    }
    exec(_ENCODE.format(cut=_cut(names, omitted, limits)), space)  # attrs writes its own __init__ the same way
    return space["encode"]  # type: ignore[no-any-return]


def _cut(names: list[str], omitted: Mapping[str, Any], limits: tuple[str, ...]) -> str:
    """Write the expression that finds where the chained part of `raw` ends; `chained` is its twin for reading."""
    if not limits:
        return "raw.rindex(b'},\"meta\":')"
    if len(names) > len(limits) + len(omitted):  # a field that is always written stands before the limits
        return f"raw.rindex(b',\"{limits[0]}\":')"
    return f"len(chained(raw, ('{limits[0]}',)))"


_ENCODE = """
def encode(source, event, state, chain, crc, time):
    cls = event.__class__
    row = {{
        "seq": state.seq, "from": source, "event": cls.__name__, "to": state.state,
        "data": data_of[cls](event), "state": state_of(state), "meta": {{"time": time}},
    }}
    try:
        raw = to_json(row)
    except Exception as error:
        raw = without_nulls(row, None, error)
    if b"null" in raw:
        raw = without_nulls(row, raw, None)
    chain = blake2b(chain + raw[:{cut}], digest_size=8).digest()
    body = raw[:-1] + b',"chain":"' + hexlify(chain) + b'"'
    crc = crc32(body, crc)
    return body + b',"crc":"' + hexlify(crc.to_bytes(4, "big")) + b'"}}\\n', chain, crc
"""


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
    exec("\n".join(["def fields(value):", *lines, "    return data"]), space)
    return space["fields"]  # type: ignore[no-any-return]


def _without_nulls(row: dict[str, Any], raw: bytes | None, error: Exception | None) -> bytes:
    """Encode again with NaN and infinities as strings, unless all nulls in `raw` are plain Nones."""
    if raw is not None and raw.count(b"null") == [*row["data"].values(), *row["state"].values()].count(None):
        return raw
    try:
        return to_json(plain(row))
    except Exception as second:
        cause = error or second
        raise JournalError(
            f"{row['event']} at seq {row['seq']} holds what a record can't ({cause}); "
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
