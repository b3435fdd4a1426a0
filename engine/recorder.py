"""`Recorder`: the journal and the snapshots that one process writes of a run.

After a resume it also holds every re-executed transition against what the dead process had recorded, so that each
crash is a determinism check that costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tachograph.drivers.ranks import ALONE, Ranks
from tachograph.states import Event, Machine

from .diff import Divergence, first_difference
from .journal import JournalWriter, Position, Record
from .snapshot_writer import SnapshotWriter
from .world import World


class Recorder:
    """Writes one incarnation of a run.

    Args:
        run_dir: the run directory.
        about: its `run.json`.
        machine: the table.
        state_class: the class of the states.
        incarnation: which life of the run this is, from 0.
        parent: the point it goes on from; None for a new run.
        finished: called from another thread when a snapshot is done.
        lock: the journal's lock, where it is held already.
        world: the disk, the clock, and work beside the run.
        ranks: the processes that write it.

    Attributes:
        append: commit one transition: `append(source, event, state)`.
        hold: commit one that may be held: `hold(source, event, before, state)`.
        run: the run's id.
        snapshots: publishes snapshots.
        writes: what it is told is kept; False for a `Reexecution`, which stands in its place.
    """

    writes = True
    append: Callable[[str, Event, Any], None]
    hold: Callable[[str, Event, Any, Any], None]

    def __init__(
        self,
        run_dir: Path,
        about: dict[str, Any],
        machine: Machine,
        state_class: type,
        incarnation: int,
        parent: Position | None,
        finished: Callable[[], None],
        lock: Any = None,
        world: World | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        world = world or World()
        self._writer = JournalWriter.create(
            run_dir,
            run_id=about["run"],
            rank=ranks.rank,
            incarnation=incarnation,
            parent=parent,
            machine=machine.digest,
            state_class=state_class,
            events=machine.event_classes.values(),
            lock=lock,
            files=world.files,
            clock=world.clock,
            background=world.background,
            seal_records=world.segment,
        )
        self.run: str = about["run"]
        self._final = machine.final
        self._incarnation = incarnation
        self._expected: dict[int, Record] = {}
        self._matched = 0
        self._to_match = 0
        self._say: Callable[[str], None] = lambda text: None
        self._diverged: Callable[[Divergence], None] = lambda divergence: None
        self.snapshots = SnapshotWriter(run_dir, about["run"], incarnation, finished, world, ranks)
        self._expect_nothing()

    @property
    def seq(self) -> int:
        """The last transition committed."""
        return self._writer.seq

    @property
    def chain(self) -> str:
        """The chain after the last committed transition."""
        return self._writer.chain

    @property
    def position(self) -> Position:
        """Where the journal stands."""
        return Position(self._incarnation, self._writer.seq, self._writer.chain)

    def flush(self) -> None:
        """Make lines of all that is committed, for whoever reads the journal's files now."""
        self._writer.flush()

    def sync(self) -> None:
        """Wait until everything written is on the disk."""
        self._writer.sync(wait=True)

    def side(self, kind: str, **data: Any) -> None:
        """Write a side record."""
        self._writer.side(kind, **data)

    def rewrite(self, line: bytes, chain: str) -> None:
        """Commit a record that an earlier process couldn't write."""
        self._writer.rewrite(line, chain)

    def expect(
        self, records: dict[int, Record], say: Callable[[str], None], diverged: Callable[[Divergence], None]
    ) -> None:
        """Hold the coming transitions against those recorded before.

        Args:
            records: seq -> record, without gaps from the next transition on.
            say: told how many matched, when all are re-executed.
            diverged: told of the first that doesn't match; after it, no more are compared.
        """
        self._expected, self._to_match = dict(records), len(records)
        self._say, self._diverged = say, diverged
        if records:
            self.append = self._append_expected
            self.hold = lambda source, event, before, state: self._append_expected(source, event, state)

    def _expect_nothing(self) -> None:
        """Write the coming transitions as they are; none is compared."""
        self.append, self.hold = self._writer.append, self._writer.hold

    def _append_expected(self, source: str, event: Event, state: Any) -> None:
        self._writer.append(source, event, state)
        recorded = self._expected.pop(state.seq, None)
        if recorded is None:
            self._ends_comparison()
        elif recorded.chain == self._writer.chain:
            self._matched += 1
            if not self._expected:
                self._ends_comparison()
        elif state.state in self._final:  # an error, a stop or another limit: it ends here, so it hasn't parted
            self._ends_comparison()
        else:
            self._expect_nothing()
            field, before, now = first_difference(recorded, source, event, state)
            found = Divergence(state.seq, field, before, now, "")
            self._writer.remark(
                "diverged", at=found.seq, field=field, recorded=repr(before), found=repr(now), matched=self._matched
            )
            self._diverged(found)

    def _ends_comparison(self) -> None:
        """All that can be re-executed is; a run that ends earlier than its records has matched what it reached."""
        self._expect_nothing()
        self._expected = {}
        self._writer.remark("matched", matched=self._matched, of=self._to_match)
        self._say(f"{self._matched} of {self._to_match} re-executed transitions match")

    def recorded(self, seq: int) -> Record | None:
        """Return what an earlier life of the run has recorded of a transition to come; None where nothing is known."""
        return self._expected.get(seq) if self.append == self._append_expected else None

    @property
    def unwritten(self) -> Sequence[tuple[bytes, str]]:
        """The line and the chain of each record that a failed write kept from the journal, oldest first."""
        return self._writer.unwritten

    def close(self) -> None:
        """Write the footer; everything is on the disk after it."""
        try:
            if self._expected and self.append == self._append_expected:
                self._ends_comparison()
        finally:
            self._writer.close()
