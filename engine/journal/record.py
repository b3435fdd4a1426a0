"""What a journal yields: `Record` for a transition, `SideRecord` for a fact beside them. Both decode lazily."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from tachograph.states import TrainerState

from .codec import from_json, restored
from .errors import JournalCorrupt
from .header import Header


class Record(msgspec.Struct, gc=False):
    """One committed transition.

    Attributes:
        seq: its number, from 1.
        source: the state it left.
        event: the name of the event's class.
        dest: the state it led to.
        chain: the chain after it, as 16 hex digits.
        line: its bytes in the file, without the newline.
        header: the header of its segment.
    """

    seq: int
    event: str
    raw_data: msgspec.Raw = msgspec.field(name="data")
    raw_state: msgspec.Raw = msgspec.field(name="state")
    chain: str
    raw_meta: msgspec.Raw = msgspec.field(name="meta")
    source: str = msgspec.field(name="from")
    dest: str = msgspec.field(name="to")
    line: bytes = msgspec.field(name=" line", default=b"")
    header: Header = msgspec.field(name=" header", default=None)  # type: ignore[assignment]

    @property
    def data(self) -> dict[str, Any]:
        """The event's fields; what must be equal in an equal run."""
        return {**self.header.defaults_of(self.event), **restored(from_json(self.raw_data))}

    @property
    def state(self) -> Any:
        """The state after it: a `TrainerState`, or a plain dict where another class was journalled.

        Raises:
            StateFault: a field is unknown, missing or wrong, or a newer version wrote it.
        """
        fields = from_json(self.raw_state)
        for name, value in fields.items():
            if value.__class__ is dict:
                fields[name] = restored(value)
        fields = {"state": self.dest, "seq": self.seq, **self.header.defaults_of(self.header.state), **fields}
        if self.header.state != TrainerState.__name__:
            return fields
        return TrainerState.from_dict(fields, self.header.schema)

    @property
    def meta(self) -> dict[str, Any]:
        """What may differ between equal runs: `time`, in seconds since 1970."""
        return from_json(self.raw_meta)  # type: ignore[no-any-return]

    @property
    def incarnation(self) -> int:
        """Which life of the run wrote it, from 0."""
        return self.header.incarnation

    @property
    def rank(self) -> int:
        """Whose journal it stands in."""
        return self.header.rank

    def __repr__(self) -> str:
        return f"Record({self.seq}: {self.source} --{self.event}--> {self.dest}, chain={self.chain!r})"


class SideRecord(msgspec.Struct, gc=False):
    """A fact about the run that is no transition: opened, saved, resumed, noted, diverged, sealed, closed …

    Attributes:
        kind: what it is.
        seq: the last transition before it.
        line: its bytes in the file, without the newline.
        header: the header of its segment.
    """

    kind: str = msgspec.field(name="side")
    seq: int
    raw_data: msgspec.Raw = msgspec.field(name="data")
    raw_meta: msgspec.Raw = msgspec.field(name="meta")
    line: bytes = msgspec.field(name=" line", default=b"")
    header: Header = msgspec.field(name=" header", default=None)  # type: ignore[assignment]

    @property
    def data(self) -> dict[str, Any]:
        """Its fields."""
        return restored(from_json(self.raw_data))  # type: ignore[no-any-return]

    @property
    def meta(self) -> dict[str, Any]:
        """`time`, in seconds since 1970."""
        return from_json(self.raw_meta)  # type: ignore[no-any-return]

    @property
    def incarnation(self) -> int:
        """Which life of the run wrote it, from 0."""
        return self.header.incarnation

    @property
    def rank(self) -> int:
        """Whose journal it stands in."""
        return self.header.rank

    def __repr__(self) -> str:
        return f"SideRecord({self.kind} after {self.seq}, {self.data!r})"


Item = Record | SideRecord
"""What a journal's lines are read as."""
decode_record = msgspec.json.Decoder(Record).decode
"""Decode a transition's line; `line` and `header` are the caller's to set."""
_side = msgspec.json.Decoder(SideRecord).decode
SIDE = b'{"side":'


def decode(line: bytes, header: Header, file: Path, offset: int) -> Record | SideRecord:
    """Decode a line whose checksum is right.

    Raises:
        JournalCorrupt: it is no record; it names `file` and `offset`.
    """
    found: Record | SideRecord
    try:
        found = _side(line) if line.startswith(SIDE) else decode_record(line)
    except msgspec.DecodeError as error:
        raise JournalCorrupt(file, offset, f"a line that is no record ({error})") from error
    found.line = line
    found.header = header
    return found
