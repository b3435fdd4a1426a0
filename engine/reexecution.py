"""`Reexecution` stands in a recorder's place while part of a run is executed again. It writes nothing.

Each transition is encoded as the journal would hold it, and its chain is held against the recorded one: what the chain
covers is equal bit for bit, or the first field that differs is named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tachograph.states import Event, Machine, TachographError

from .diff import Divergence, first_difference
from .journal import Journal, Position, Record
from .journal.codec import Encode, defaults_of, encoder, limits_of
from .journal.header import Header


class Parted(TachographError):
    """What was executed again differs from what is recorded.

    Attributes:
        divergence: where, and in what.
    """

    def __init__(self, divergence: Divergence) -> None:
        self.divergence = divergence
        super().__init__(str(divergence))


class NoSnapshots:
    """Stands in the place of a `SnapshotWriter`: none is taken."""

    last_seq = -1
    done = False
    source = None

    def wait(self) -> None:
        """Do nothing: none is in flight."""

    def collect(self) -> Iterator[Any]:
        """Yield nothing."""
        return iter(())


class Reexecution:
    """Holds the transitions that come against those that a journal has.

    Args:
        journal: of the run, and of this rank.
        run: its id.
        machine: the table.
        state_class: the class of the states.
        start: the point that is gone on from.
        parted: told of the first transition that differs; what it raises keeps that transition from being committed.

    Attributes:
        matched: how many transitions matched.
        parting: the first that didn't; None where all did.
        parted: what is told of it.
    """

    writes = False
    unwritten = None

    def __init__(
        self,
        journal: Journal,
        run: str,
        machine: Machine,
        state_class: type,
        start: Position,
        parted: Callable[[Divergence], None],
    ) -> None:
        self.run = run
        self.snapshots = NoSnapshots()
        self.matched = 0
        self.parting: Divergence | None = None
        self._journal = journal
        self._records: Iterator[Record] | None = journal.since(start.seq + 1)
        self._next: Record | None = None
        self._state_class = state_class
        self._own = defaults_of([*machine.event_classes.values(), state_class], limits_of(state_class))
        self._incarnation, self._seq, self._chain = start.incarnation, start.seq, bytes.fromhex(start.chain)
        self.parted = parted
        self._header: Header | None = None
        self._encode: Encode | None = None

    @property
    def chain(self) -> str:
        """The chain after the last transition."""
        return self._chain.hex()

    @property
    def position(self) -> Position:
        """Where it stands."""
        return Position(self._incarnation, self._seq, self.chain)

    def recorded(self, seq: int) -> Record | None:
        """Return what is recorded of a transition to come; None where nothing is, or where it has parted."""
        while self._records is not None and (self._next is None or self._next.seq < seq):
            self._next = next(self._records, None)
            if self._next is None:
                self._records = None
        return self._next if self._next is not None and self._next.seq == seq and self.parting is None else None

    def append(self, source: str, event: Event, state: Any) -> None:
        """Hold a transition against its record.

        Raises:
            BaseException: what `parted` raised; the transition isn't committed then.
        """
        record = self.recorded(state.seq)
        header = self._header if record is None else record.header
        _, chain, _ = self._encoder(header)(source, event, state, self._chain, 0, 0.0)
        if record is not None:
            if record.chain == chain.hex():
                self.matched += 1
            else:
                self._part(record, source, event, state)
            self._incarnation = record.incarnation
        self._seq, self._chain = state.seq, chain

    def _part(self, record: Record, source: str, event: Event, state: Any) -> None:
        field, before, now = first_difference(record, source, event, state)
        found = Divergence(state.seq, field, before, now, "", state=source)
        self.parted(found)
        self.parting = found

    def _encoder(self, header: Header | None) -> Encode:
        """Return the function that encodes as a journal's file does: another version may leave out other fields."""
        if self._encode is None or header is not self._header:
            limits, defaults = (None, self._own) if header is None else (header.limits, self._as_built(header.defaults))
            self._encode, self._header = encoder(self._state_class, limits, defaults), header
        return self._encode

    def _as_built(self, told: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
        """Return a header's defaults as the classes of now hold them: what was a tuple is a list in a header."""
        return {
            name: {f: () if v == [] and self._own.get(name, {}).get(f) == () else v for f, v in fields.items()}
            for name, fields in told.items()
        }

    def side(self, kind: str, **data: Any) -> None:
        """Write nothing."""

    def sync(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


__all__ = ["Parted", "Reexecution"]
