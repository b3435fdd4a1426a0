"""Transitions that are committed and no lines yet: how a run whose steps take microseconds pays little for its journal.

A line costs most by what it displaces: between torch's operations, its code and the kernel's have left the caches. So
where steps follow each other quickly, a transition goes into a page of memory that the kernel keeps with a file
(`held.bin`): a killed process loses none of it. The lines are written several at a time, soon after, and always before
a transition of another kind, a snapshot, a note, or the end.

What is held is the event; the state that a line also has follows from the line before it, by the event's fold. Whoever
reads the journal, or resumes the run, makes the lines that aren't there yet (`left_over`).
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Iterator
from operator import attrgetter
from pathlib import Path
from typing import Any
from zlib import crc32

import attrs
import msgspec

from tachograph.states import Fetched, Stepped, TrainerState

from .codec import as_built, defaults_of, encoder, stored_crc
from .files import HELD, Files
from .header import Header
from .locate import text_of
from .record import SIDE, Record, decode_record
from .segments import Segment

QUICK = 1e-3
"""Seconds: two transitions must follow each other within these, or each one is written as a line at once."""
LONGEST = 2e-2
"""Seconds after which what is held is written with the next transition."""
MOST = 64
"""Transitions that are held at most."""
SIZE = 1 << 14
"""Bytes of the file."""

HOLDABLE: tuple[type, ...] = (Fetched, Stepped)
"""Events that may be held: their fields are plain data of the engine's own making, and their folds need no more."""

_LOOK_BACK = 1 << 18
_HEAD = struct.Struct(">HI")
_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder().decode
_NAMES = {cls: [field.name for field in attrs.fields(cls)] for cls in HOLDABLE}
_VALUES: dict[type, Callable[[Any], Any]] = {cls: attrgetter(*names) for cls, names in _NAMES.items()}
_CLASSES = {cls.__name__: cls for cls in HOLDABLE}


class Holding:
    """What one writer holds back.

    Args:
        directory: the rank's.
        state_class: of the states; only a `TrainerState` can be made again from events.
        files: the layer below.

    Attributes:
        held: (source, event, state, time) of what is no line yet.
        state: the state after the last transition; None: the next one must be a line.
    """

    def __init__(self, directory: Path, state_class: type, files: Files) -> None:
        self.held: list[tuple[str, Any, Any, float]] = []
        self.state: Any = None
        self._last = self._before = float("-inf")  # when the last two transitions were committed
        self._end = self._crc = 0
        self._path, self._files = directory / HELD, files
        self._memory: Any = None
        self._usable = state_class is TrainerState

    def passed(self, state: Any, now: float) -> None:
        """Take note of a transition that isn't held."""
        self.state, self._before, self._last = state, self._last, now

    def take(self, source: str, event: Any, before: Any, state: Any, now: float, crc: int) -> bool:
        """Hold a transition, if it may be held now.

        Args:
            source: the name of the state it left.
            event: what happened.
            before: the state before it.
            state: the state after it.
            now: in seconds.
            crc: the checksum of the journal's last line.

        Returns:
            False: it isn't held, and must be written as a line.
        """
        earlier, begin = self._before, self._end
        if now - earlier >= QUICK or before is not self.state or (self._memory is None and not self._opened()):
            return False
        cls = event.__class__
        try:
            entry = _pack((state.seq, source, cls.__name__, state.state, now, _VALUES[cls](event)))
        except (TypeError, ValueError, OverflowError):  # a driver's own kind of number: a line takes it, or tells of it
            return False
        end = begin + 6 + len(entry)
        if end > SIZE:
            return False
        crc = crc32(entry, self._crc if begin else crc)
        self._memory[begin:end] = _HEAD.pack(len(entry), crc) + entry
        self.held.append((source, event, state, now))
        self._end, self._crc, self.state, self._before, self._last = end, crc, state, self._last, now
        return True

    def is_full(self, now: float) -> bool:
        """Say whether what is held should become lines now."""
        return len(self.held) >= MOST or now - self.held[0][3] >= LONGEST

    def begin(self) -> None:
        """Begin anew at the file's beginning: what was held is in the journal."""
        self._end = 0

    def _opened(self) -> bool:
        if self._usable:
            try:
                self._memory = self._files.map(self._path, SIZE)
            except (OSError, ValueError):  # a full disk, or one that can't be mapped: then every transition is a line
                self._usable = False
        return self._usable

    def close(self, remove: bool = False) -> None:
        """Let go of the file.

        Args:
            remove: all that was held is in the journal; else it stays in the file.
        """
        self._usable = False
        memory, self._memory = self._memory, None
        if memory is not None:
            with contextlib.suppress(BufferError, ValueError, OSError):
                memory.close()
                if remove:
                    self._files.unlink(self._path)


def left_over(segment: Segment, header: Header) -> bytes:
    """Return what is missing at the end of a journal's last file: lines of what is held, or was when a process died.

    Args:
        segment: the file; a torn line at its end doesn't count.
        header: its header.

    Returns:
        Whole lines; b"" where nothing is missing, or where what is held belongs to another point.
    """
    try:
        held = segment.path.with_name(HELD).read_bytes()
    except FileNotFoundError:
        return b""
    first = next(_entries(held), None)
    if first is None or segment.compressed or header.state != TrainerState.__name__:
        return b""
    lines = _last_lines(segment)
    since = next((n for n, line in enumerate(lines) if line.startswith(b'{"seq":%d,' % first[0])), len(lines))
    record = next((line for line in reversed(lines[:since]) if not line.startswith(SIDE)), None)
    if record is None:
        return b""
    start = decode_record(record[:-1])
    start.header = header
    made = b"".join(_made(held, start, stored_crc(lines[since - 1][:-1]) or 0))
    written = b"".join(lines[since:])
    return made[len(written) :] if made.startswith(written) else b""


def _last_lines(segment: Segment) -> list[bytes]:
    """Read a file's last lines: more than can be held, and the side records among them."""
    with text_of(segment) as text:
        stop = text.rfind(b"\n") + 1
        start = text.rfind(b"\n", 0, max(0, stop - _LOOK_BACK)) + 1
        return text[start:stop].splitlines(keepends=True)


def _entries(held: bytes, crc: int | None = None) -> Iterator[tuple[Any, ...]]:
    """Yield (seq, source, event, dest, time, values) of each entry, as far as they follow from each other.

    Args:
        held: the file's bytes.
        crc: the checksum of the line before the first; None takes any for the first, which comes alone then.
    """
    at = 0
    while at + _HEAD.size <= len(held):
        size, found = _HEAD.unpack_from(held, at)
        entry = held[at + _HEAD.size : at + _HEAD.size + size]
        if not size or len(entry) < size or (crc is not None and crc32(entry, crc) != found):
            return
        try:
            seq, source, event, dest, time, values = _unpack(entry)
        except (msgspec.DecodeError, TypeError, ValueError):
            return
        if type(seq) is not int:
            return
        yield seq, source, event, dest, time, values
        if crc is None:
            return
        at, crc = at + _HEAD.size + size, found


def _made(held: bytes, start: Record, crc: int) -> Iterator[bytes]:
    """Make the lines of what follows a record.

    Args:
        held: the file's bytes.
        start: the last transition before.
        crc: the checksum of the last line before.
    """
    limits = start.header.limits
    own = defaults_of((TrainerState, *HOLDABLE), limits)
    encode = encoder(TrainerState, limits, as_built(start.header.defaults, own))
    state, chain, line_crc = start.state, bytes.fromhex(start.chain), crc
    for seq, source, name, dest, time, values in _entries(held, crc):
        cls = _CLASSES.get(name)
        if cls is None or seq != state.seq + 1 or source != state.state:
            return
        names = _NAMES[cls]
        given = zip(names, [values] if len(names) == 1 else values, strict=True)
        event = cls(**{name: () if value == [] else value for name, value in given})  # an empty tuple, as it was made
        state = event.fold(state, dest)
        line, chain, line_crc = encode(source, event, state, chain, line_crc, time)
        yield line
