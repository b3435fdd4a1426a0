"""`Journal`: reads a run's journal, while it is written or years later. It changes nothing and needs no torch."""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

from .codec import chained, next_chain
from .damage import Damage
from .errors import JournalCorrupt, JournalError
from .expected import accounts_after, expected_after
from .follow import Follower
from .header import Position
from .history import RankHistory
from .incarnation import Incarnation, incarnation_of
from .notes import Note, read_notes
from .record import Item, Record, SideRecord
from .segments import directory_of, ranks_of


class Journal:
    """The journal of a run. Iterating gives the transitions of its live history, oldest first.

    Every line's checksum is checked. A torn tail, which a kill leaves or which is just being written, is the end
    (`torn` says where); any other damage is refused. Each iteration looks at the files anew.

    Args:
        run_dir: the run directory.
        rank: whose journal; "all" merges them by (seq, rank), and single answers (`seek`, `last`, `chain`,
            `incarnations`) are those of the lowest rank.
        history: "live" gives what the run went through as it stands: of an incarnation that a later one resumed
            from, the part before that point. A rank that the run was resumed without ends at that point. "all" gives
            every incarnation's records, one life of the run after the other.
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
        self._every_rank = rank == "all"
        self._all = history == "all"
        self._salvage = salvage
        self._run: RankHistory | None = None
        self._histories = [self._history_of(n) for n in self.ranks]

    def _history_of(self, rank: int) -> RankHistory:
        directory, lowest = directory_of(self.run_dir, rank), ranks_of(self.run_dir)[0]
        if rank == lowest:
            return RankHistory(directory, salvage=self._salvage)
        if self._run is None:  # its headers tell what became of the run, whatever else is wrong with it
            self._run = RankHistory(directory_of(self.run_dir, lowest), salvage=True)
        return RankHistory(directory, salvage=self._salvage, run=self._run)

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

    def since(self, seq: int) -> Iterator[Record]:
        """Iterate over the live transitions from this number on; files that end before it aren't read."""
        return self.everything_since(seq, sides=False)  # type: ignore[return-value]

    def everything_since(self, seq: int, *, sides: bool = True) -> Iterator[Item]:
        """Iterate over the live transitions from this number on, and over the side records among them."""
        for history in self._histories:
            history.load()
        streams = [history.live(sides=sides, start=seq) for history in self._histories]
        for item in heapq.merge(*streams, key=lambda i: (i.seq, i.rank)):
            if item.seq >= seq:
                yield item

    def _items(self, sides: bool) -> Iterator[Item]:
        streams = []
        for history in self._histories:
            history.load()
            streams.append(history.all(sides) if self._all else history.live(sides))
        if len(streams) == 1:
            return streams[0]
        return heapq.merge(*streams, key=lambda i: (i.incarnation if self._all else 0, i.seq, i.rank))

    def everything(self) -> Iterator[Item]:
        """Iterate over transitions and side records together, as they were written."""
        return self._items(sides=True)

    def sides(self, kind: str | None = None) -> Iterator[SideRecord]:
        """Iterate over the side records, or those of one kind: opened, saved, resumed, continued, noted, …"""
        for item in self._items(sides=True):
            if isinstance(item, SideRecord) and (kind is None or item.kind == kind):
                yield item

    def notes(self) -> tuple[Note, ...]:
        """Return what people noted at transitions, oldest first; what was withdrawn isn't among it."""
        return read_notes(self.run_dir).standing

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
        for incarnation, upto in reversed(history.current):
            if history.first_seq(incarnation) <= seq and (upto is None or seq <= upto):
                found = history.seek(incarnation, seq)
                if found is not None:
                    return found
        before, end = history.beginning.seq, history.reached.seq
        there = f"it holds {before + 1} to {end}" if end > before else "it is empty"
        whose = f" of rank {self.ranks[0]}" if self.ranks[0] else ""
        raise JournalError(f"the journal{whose} of {self.run_dir} has no transition {seq}: {there}")

    def __len__(self) -> int:
        total = 0
        for history in self._histories:
            history.load()
            if history.salvage:
                total += sum(1 for _ in (history.all if self._all else history.live)(False))
            elif self._all:
                total += sum(history.end(n)[0].seq - history.first_seq(n) + 1 for n in history.segments)
            else:
                total += max(history.reached.seq - history.beginning.seq, 0)
        return total

    def __bool__(self) -> bool:
        return True

    @property
    def chain(self) -> str:
        """The chain after the last live transition; 16 zeros before the first."""
        return self._first.reached.chain

    @property
    def last(self) -> Record | None:
        """The last live transition; None before the first."""
        history = self._first
        end = history.reached
        return self.seek(end.seq) if end.seq > history.beginning.seq else None

    @property
    def beginning(self) -> Position:
        """The point before the first transition: seq 0, or where a run that goes on from elsewhere begins."""
        return self._first.beginning

    @property
    def incarnations(self) -> list[Incarnation]:
        """The lives of the run, oldest first."""
        history = self._first
        return [incarnation_of(history, number) for number in sorted(history.segments)]

    @property
    def lineage(self) -> list[tuple[int, int | None]]:
        """What the live history is made of: (incarnation, the last seq of it that counts; None: all), oldest first."""
        return self._first.current

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

        With `rank="all"`, what is there at one look is merged by (seq, rank), and ranks that come later are taken in.

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
        followers: list[Follower] = []
        while True:
            new = False
            self._take_in_new_ranks()
            followers += [Follower(history, after, sides) for history in self._histories[len(followers) :]]
            for item in heapq.merge(*(follower.poll() for follower in followers), key=lambda i: (i.seq, i.rank)):
                new = True
                yield item
            if new:
                continue
            if stop is not None and stop():
                return
            sleep(poll)

    def _take_in_new_ranks(self) -> None:
        """Open the journals of ranks that have come since; they come one by one when a run begins."""
        if self._every_rank:
            new = [rank for rank in ranks_of(self.run_dir) if rank not in self.ranks]
            self._histories += [self._history_of(rank) for rank in new]
            self.ranks += new

    def world_at(self, seq: int) -> int:
        """Count the ranks that this journal has of the life of the run that a live transition belongs to."""
        for history in self._histories:
            history.load()
        first = self._histories[0]
        life = max((number for number, _ in first.current if first.first_seq(number) <= seq), default=-1)
        return sum(life in history.segments for history in self._histories)

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
