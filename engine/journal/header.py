"""The header that opens every segment: which run, rank and incarnation, where it goes on from, how to read it."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import attrs
import msgspec

from .errors import JournalCorrupt, JournalFormat
from .segments import BadLine, Segment, checked, split

FORMAT = 1
"""The version of the format that this library writes, and the newest that it reads."""


@attrs.frozen
class Position:
    """A point of a run's history: after the transition `seq` of an incarnation, the chain was `chain`.

    Before the first transition seq is 0 and the chain all zeros; -1 is the incarnation before the first.
    """

    incarnation: int
    seq: int
    chain: str


FORKED = -1
"""As the incarnation of a first incarnation's parent: the point belongs to another run, which `run.json` names."""


@attrs.frozen(kw_only=True)
class Header:
    """What a segment's first line says.

    Attributes:
        format: the version of the journal's format.
        run: the run's id.
        rank: whose journal.
        incarnation: which life of the run wrote it, from 0.
        first_seq: the first transition that the segment may hold; 0 for the first segment of all.
        chain: the chain before that transition.
        parent: where this incarnation went on from; None for the first.
        machine: the digest of the machine's table.
        previous: the segment before, of the same incarnation: {"file", "crc" of its last line}.
        state: the name of the state's class.
        schema: the version of its fields.
        limits: its fields that are no part of the chain.
        defaults: by class of event or state, the fields that a record leaves out while they hold this value.
        time: when it was opened, in seconds since 1970.
    """

    format: int
    run: str
    rank: int
    incarnation: int
    first_seq: int
    chain: str
    parent: Position | None
    machine: str
    previous: dict[str, Any] | None
    state: str
    schema: int
    limits: tuple[str, ...]
    defaults: dict[str, dict[str, Any]]
    time: float

    @property
    def before(self) -> Position:
        """The point before the segment's first transition, as this header has it."""
        return Position(self.incarnation, max(self.first_seq, 1) - 1, self.chain)

    @property
    def forked(self) -> bool:
        """It begins a run that goes on from another run's point: nothing in this journal comes before it."""
        return self.parent is not None and self.parent.incarnation == FORKED and self.previous is None

    def defaults_of(self, name: str) -> dict[str, Any]:
        """Return a class's fields that a record may leave out, with new lists and dicts."""
        held = self.defaults.get(name, {})
        return {field: copy.copy(v) if v.__class__ in (list, dict) else v for field, v in held.items()}


def read_header(segment: Segment) -> Header:
    """Read a segment's first line.

    Raises:
        BadLine: it is torn or damaged.
        JournalFormat: a newer version wrote it, or it is no journal's file.
        JournalCorrupt: it says something else than the file's name.
    """
    try:
        _, lines = next(checked(segment), (0, [b""]))
    except BadLine:
        _refuse_newer(segment)
        raise
    if not lines[0]:
        raise BadLine(0, "an empty file", unfinished=True)
    header = parse_header(segment.path, lines[0])
    if (header.incarnation, header.first_seq) != (segment.incarnation, segment.first_seq):
        said = f"its header names incarnation {header.incarnation} and seq {header.first_seq}"
        raise JournalCorrupt(segment.path, 0, f"{said}, its name another")
    return header


def header_data(header: Header) -> dict[str, Any]:
    """Return the data of the opened record that says `header`."""
    data = attrs.asdict(header)
    del data["time"]
    return data


def _refuse_newer(segment: Segment) -> None:
    for _, lines, _ in split(segment):
        try:
            found = msgspec.json.decode(lines[0])
        except msgspec.DecodeError:
            return
        if isinstance(found, dict) and isinstance(found.get("data"), dict):
            _check_format(segment.path, found["data"].get("format"))
        return


def _check_format(path: Path, found: object) -> None:
    if isinstance(found, int) and found > FORMAT:
        raise JournalFormat(f"{path} has format {found}, this version reads up to {FORMAT}: upgrade tachograph")


def parse_header(path: Path, line: bytes) -> Header:
    """Read a header's line, whose checksum is right.

    Raises:
        JournalFormat: a newer version wrote it, or it is no journal's file.
    """
    try:
        found = msgspec.json.decode(line)
        data = dict(found["data"])
        if found["side"] != "opened":
            raise KeyError
        _check_format(path, data["format"])
        parent = data.pop("parent")
        limits = tuple(data.pop("limits"))
        return Header(
            **data, parent=None if parent is None else Position(**parent), limits=limits, time=found["meta"]["time"]
        )
    except (msgspec.DecodeError, KeyError, TypeError, ValueError) as error:
        raise JournalFormat(f"{path} isn't a journal's file: it doesn't begin with an opened record") from error
