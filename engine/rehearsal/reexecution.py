"""`Reexecution` stands in a recorder's place while part of a run is executed again. It writes nothing.

Each transition is encoded as the journal would hold it, and its chain is held against the recorded one: what the chain
covers is equal bit for bit, or the first field that differs is named.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import attrs

from tachograph.states import Event, Machine, TachographError

from ..comparison.causes import ORDER, PARTS, kind_of
from ..comparison.divergence import Divergence, first_difference, same
from ..journal import Journal, Position, Record
from ..journal.codec import Encode, as_built, defaults_of, encoder, limits_of
from ..journal.header import Header
from ..journal.record import Item


class Parted(TachographError):
    """What was executed again differs from what is recorded.

    Attributes:
        divergence: where, and in what.
    """

    def __init__(self, divergence: Divergence) -> None:
        self.divergence = divergence
        super().__init__(str(divergence))


@attrs.frozen
class Apart:
    """What else is known of a transition that differs, by the names of `causes.ORDER`.

    Attributes:
        differ: what differs.
        agree: what agrees.
        event: what happened when it was executed again.
    """

    differ: Sequence[str] = ()
    agree: Sequence[str] = ()
    event: str = ""


class Bits:
    """Two fingerprints of a transition, held against each other.

    Args:
        held: the recorded one.
        found: that of now; it may be of some parts only.

    Attributes:
        differ: the parts that differ, causes first.
        agree: those that don't.
    """

    def __init__(self, held: Mapping[str, Any], found: Mapping[str, Any]) -> None:
        self.held, self.found = held, found
        both = [part for part in PARTS if held.get(part) is not None and found.get(part) is not None]
        self.differ = [part for part in both if held[part] != found[part]]
        self.agree = [part for part in both if held[part] == found[part]]


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
        apart: what else is known of it.
        weights_at: the last transition whose fingerprint matched; 0: none did.
        parted: what is told of it.
        inputs: returns the fingerprints of what goes into the update in work.
    """

    writes = False
    unwritten: Sequence[tuple[bytes, str]] = ()

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
        self.apart = Apart()
        self.weights_at = 0
        self._journal = journal
        self._items: Iterator[Item] | None = journal.everything_since(start.seq + 1)
        self._next: Record | None = None
        self._fingerprint: Mapping[str, Any] | None = None
        self._state_class = state_class
        self._own = defaults_of([*machine.event_classes.values(), state_class], limits_of(state_class))
        self._incarnation, self._seq, self._chain = start.incarnation, start.seq, bytes.fromhex(start.chain)
        self.parted = parted
        self.inputs: Callable[[], Mapping[str, Any]] = dict
        self._header: Header | None = None
        self._encode: Encode | None = None

    @property
    def seq(self) -> int:
        """The last transition."""
        return self._seq

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
        while self._items is not None and (self._next is None or self._next.seq < seq):
            self._read()
        return self._next if self._next is not None and self._next.seq == seq and self.parting is None else None

    def _read(self) -> None:
        """Read up to the next transition; of what stands between, keep the fingerprint."""
        for item in self._items or ():
            if isinstance(item, Record):
                self._next = item
                return
            if item.kind == "fingerprint":
                self._fingerprint = item.data
        self._items = self._next = None

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

    def hold(self, source: str, event: Event, before: Any, state: Any) -> None:
        """Hold a transition against its record; see `append`."""
        self.append(source, event, state)

    def _part(self, record: Record, source: str, event: Event, state: Any) -> None:
        field, before, now = first_difference(record, source, event, state)
        found = Divergence(state.seq, field, before, now, "", state=source)
        apart = _apart(record, event)
        told = self._told_apart(state.seq, self.inputs())
        if told is None:
            self._tell(found, apart)
            return
        part = min(told.differ, key=ORDER.index, default="")
        if part and _comes_before(part, kind_of(field)):
            found = attrs.evolve(found, field=f"fingerprint.{part}", a=told.held[part], b=told.found[part])
        self._tell(found, Apart([*apart.differ, *told.differ], [*apart.agree, *told.agree], apart.event))

    def _told_apart(self, seq: int, found: Mapping[str, Any]) -> Bits | None:
        """Hold parts of a fingerprint against the one that is recorded of a transition; None where none is."""
        self.recorded(seq + 1)  # what stands before that has been read then
        held = self._fingerprint
        return None if held is None or held.get("at") != seq else Bits(held, found)

    def _tell(self, found: Divergence, apart: Apart) -> None:
        self.apart = apart
        self.parted(found)
        self.parting = found

    def _encoder(self, header: Header | None) -> Encode:
        """Return the function that encodes as a journal's file does: another version may leave out other fields."""
        if self._encode is None or header is not self._header:
            limits, defaults = (
                (None, self._own) if header is None else (header.limits, as_built(header.defaults, self._own))
            )
            self._encode, self._header = encoder(self._state_class, limits, defaults), header
        return self._encode

    def side(self, kind: str, **data: Any) -> None:
        """Write nothing; hold a fingerprint against the recorded one.

        Raises:
            BaseException: what `parted` raised.
        """
        if kind != "fingerprint" or self.parting is not None:
            return
        seq = data["at"]
        told = self._told_apart(seq, data)
        if told is None:
            return
        if not told.differ:
            self.weights_at = seq if "parameters" in told.agree else self.weights_at
            return
        part, source = told.differ[0], self._journal.seek(seq).source
        found = Divergence(seq, f"fingerprint.{part}", told.held[part], told.found[part], "", state=source)
        self._tell(found, Apart(told.differ, ["ids", "rng", "loss", "lr", *told.agree]))

    def sync(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""


def _comes_before(part: str, kind: str) -> bool:
    return kind not in ORDER or ORDER.index(part) < ORDER.index(kind)


def _apart(record: Record, event: Event) -> Apart:
    if record.event != type(event).__name__:
        return Apart(event=type(event).__name__)
    held = record.data
    told = [name for name in ("ids", "rng", "loss", "lr") if held.get(name) and hasattr(event, name)]
    differ = [name for name in told if not same(held[name], getattr(event, name))]
    return Apart(differ, [name for name in told if name not in differ], record.event)


__all__ = ["Parted", "Reexecution"]
