"""`Journal`: reads a run's journal, while it is written or years later. It changes nothing and needs no torch."""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import attrs

from .codec import chained, next_chain
from .damage import Damage
from .errors import JournalCorrupt, JournalError
from .expected import accounts_after, expected_after
from .follow import Follower
from .header import Position
from .history import RankHistory
from .links import START
from .record import Item, Record, SideRecord
from .segments import directory_of, ranks_of


@attrs.frozen(kw_only=True)
class Incarnation:
    """One life of a run, from its start or a resume to its end.

    Attributes:
        number: 0 for the first.
        parent: the position it went on from; None for the first.
        first_seq: its first transition, >= 1.
        last_seq: its last one; `first_seq - 1` where it has none.
        chain: the chain there.
        files: its segments, in order.
        opened: when it began, in seconds since 1970.
        closed: it ended by itself; False while it runs, or after a kill.
        machine: the digest of its machine's table.
    """

    number: int
    parent: Position | None
    first_seq: int
    last_seq: int
    chain: str
    files: tuple[Path, ...]
    opened: float
    closed: bool
    machine: str


class Journal:
    """The journal of a run. Iterating gives the transitions of its live history, oldest first.

    Every line's checksum is checked. A torn tail, which a kill leaves or which is just being written, is the end
    (`torn` says where); any other damage is refused. Each iteration looks at the files anew.

    Args:
        run_dir: the run directory.
        rank: whose journal; "all" merges them by (seq, rank).
        history: "live" gives what the run went through as it stands: of an incarnation that a later one resumed
            from, the part before that point. "all" gives every incarnation's records, one after the other.
        salvage: pass over damage and go on with the next line that is right; `damage` lists what was passed over.

    Raises:
        JournalError: `run_dir` isn't a run directory, or has no such rank.
    """

    def __init__(
        self,
        run_dir: Path | str,
        *,
        rank: int | Literal["all"] = 0,
        history: Literal["live", "all"] = "live",
        salvage: bool = False,
    ) -> None:
        self.run_dir = Path(run_dir)
        self.ranks = ranks_of(self.run_dir) if rank == "all" else [rank]
        self._all = history == "all"
        self._histories = [RankHistory(directory_of(self.run_dir, n), salvage=salvage) for n in self.ranks]

    @property
    def torn(self) -> tuple[Path, int] | None:
        """(file, offset) of the torn tail that the last iteration met."""
        return next((h.torn for h in self._histories if h.torn is not None), None)

    @property
    def damage(self) -> list[Damage]:
        """What the last iteration of a salvaging reader passed over."""
        return [damage for history in self._histories for damage in history.damage]

    def __iter__(self) -> Iterator[Record]:
        return self._items(sides=False)  # type: ignore[return-value]

    def _items(self, sides: bool) -> Iterator[Item]:
        streams = []
        for history in self._histories:
            history.load()
            streams.append(history.all(sides) if self._all else history.live(sides))
        if len(streams) == 1:
            return streams[0]
        return heapq.merge(*streams, key=lambda item: (item.seq, item.rank))

    def everything(self) -> Iterator[Item]:
        """Iterate over transitions and side records together, as they were written."""
        return self._items(sides=True)

    def sides(self, kind: str | None = None) -> Iterator[SideRecord]:
        """Iterate over the side records, or those of one kind: opened, saved, resumed, continued, noted, …"""
        for item in self._items(sides=True):
            if isinstance(item, SideRecord) and (kind is None or item.kind == kind):
                yield item

    def beginnings(self) -> Iterator[SideRecord]:
        """Iterate over what each life but the first noted when it went on, oldest first; no more of them is read."""
        history = self._first
        for number in sorted(history.segments):
            for item in itertools.islice(history.walk(number, None, sides=True), 8):
                if isinstance(item, SideRecord) and item.kind in ("resumed", "continued"):
                    yield item
                    break

    @property
    def _first(self) -> RankHistory:
        """The rank that single answers come from: the only one, or the lowest."""
        self._histories[0].load()
        return self._histories[0]

    def seek(self, seq: int) -> Record:
        """Return the live transition of this number, without reading those before it.

        Raises:
            JournalError: there is none; it names the range there is.
        """
        history = self._first
        for incarnation, upto in reversed(history.lineage(history.newest)):
            if history.first_seq(incarnation) <= seq and (upto is None or seq <= upto):
                found = history.seek(incarnation, seq)
                if found is not None:
                    return found
        end = self._end(history)
        there = f"it holds 1 to {end.seq}" if end.seq else "it is empty"
        raise JournalError(f"the journal of {self.run_dir} has no transition {seq}: {there}")

    def _end(self, history: RankHistory) -> Position:
        return history.end(history.newest)[0] if history.segments else START

    def __len__(self) -> int:
        total = 0
        for history in self._histories:
            history.load()
            if history.salvage:
                total += sum(1 for _ in (history.all if self._all else history.live)(False))
            elif self._all:
                total += sum(history.end(n)[0].seq - history.first_seq(n) + 1 for n in history.segments)
            else:
                total += self._end(history).seq
        return total

    def __bool__(self) -> bool:
        return True

    @property
    def chain(self) -> str:
        """The chain after the last live transition; 16 zeros before the first."""
        return self._end(self._first).chain

    @property
    def last(self) -> Record | None:
        """The last live transition; None before the first."""
        history = self._first
        end = self._end(history)
        return self.seek(end.seq) if end.seq > history.beginning.seq else None

    @property
    def incarnations(self) -> list[Incarnation]:
        """The lives of the run, oldest first."""
        history = self._first
        return [_incarnation(history, number) for number in sorted(history.segments)]

    @property
    def seconds(self) -> float:
        """How long the run was at work, all its lives together: each from its start to its last transition."""
        history = self._first
        spent = 0.0
        for life in self.incarnations:
            last = history.seek(life.number, life.last_seq) if life.last_seq >= life.first_seq else None
            spent += max(last.meta["time"] - life.opened, 0.0) if last is not None else 0.0
        return spent

    def expected_after(self, incarnation: int, seq: int) -> dict[int, Record]:
        """Return by seq what was recorded past a snapshot, for a resumed run to be held against.

        Only incarnations that went through the snapshot's point count, and of several accounts the newest. Once an
        incarnation has a `diverged` record, older accounts of what follows its end don't. Transitions into a final
        state are left out: a resumed run need not end as its predecessor did.

        Args:
            incarnation: the incarnation that took the snapshot.
            seq: the transition it was taken after.

        Raises:
            JournalError: there is no such incarnation.
        """
        history = self._first
        if incarnation not in history.segments:
            raise JournalError(f"the journal of {self.run_dir} has no incarnation {incarnation}")
        return expected_after(history, incarnation, seq)

    def accounts_after(self, incarnation: int, seq: int) -> list[Record]:
        """Return what each incarnation that went through a point did next there, oldest first; ends are among them.

        Args:
            incarnation: one that went through the point.
            seq: the transition that the point is after.
        """
        return accounts_after(self._first, incarnation, seq)

    def follow(
        self,
        poll: float = 0.1,
        stop: Callable[[], bool] | None = None,
        *,
        after: int = 0,
        sides: bool = False,
        sleep: Callable[[float], None] = time.sleep,
    ) -> Iterator[Item]:
        """Yield the live transitions past `after`, then new ones as they are written. It doesn't end by itself.

        When the run is resumed from an earlier point, the transitions from there on come again, from the new
        incarnation.

        Args:
            poll: seconds between two looks when there is nothing new.
            stop: asked then; True ends it.
            after: the seq to begin after.
            sides: yield side records too.
            sleep: waits.

        Raises:
            JournalCorrupt: a line is damaged.
        """
        followers = [Follower(history, after, sides) for history in self._histories]
        while True:
            new = False
            for follower in followers:
                for item in follower.poll():
                    new = True
                    yield item
            if new:
                continue
            if stop is not None and stop():
                return
            sleep(poll)

    def verify_chain(self) -> str:
        """Compute the chain of the live history anew, for every rank; return that of the first one.

        Raises:
            JournalCorrupt: a record carries another chain; it names the first.
        """
        for history in reversed(self._histories):
            history.load()
            chain = bytes.fromhex(history.beginning.chain)
            for record in history.live(sides=False):
                assert isinstance(record, Record)
                chain = next_chain(chain, chained(record.line, record.header.limits))
                if record.chain != chain.hex():
                    reason = f"the chain of seq {record.seq} should be {chain.hex()}, not {record.chain}"
                    raise JournalCorrupt(history.directory, 0, reason)
        return chain.hex()


def _incarnation(history: RankHistory, number: int) -> Incarnation:
    opened = history.segments[number]
    header = opened[0][1]
    end, closed = history.end(number)
    return Incarnation(
        number=number,
        parent=header.parent,
        first_seq=history.first_seq(number),
        last_seq=end.seq,
        chain=end.chain,
        files=tuple(segment.path for segment, _ in opened),
        opened=header.time,
        closed=closed,
        machine=header.machine,
    )
