"""A run on one page: one pass over its journal, in memory that doesn't grow with the transitions.

Everything is read, so that superseded incarnations are told of as well; what counts for states, epochs and validations
is the live history, unless all is asked for.
"""

from __future__ import annotations

import math
from typing import Any

import attrs

from tachograph.engine.journal import Incarnation, Journal, Record, SideRecord

from .records import losses_of, state_of
from .rows import Rows

_ELSEWHERE = ("opened", "sealed", "fingerprint")


@attrs.define
class Life:
    """An incarnation, and how it ended.

    Attributes:
        about: what its header says.
        live_until: the last of its transitions that counts, inf for all, -1 for none.
        last: its last transition.
        closed: when it was closed; None where it wasn't.
    """

    about: Incarnation
    live_until: float
    last: Record | None = None
    closed: float | None = None


@attrs.define
class Dwell:
    """The time spent in a state, from one record to the next: its work and its listeners."""

    visits: int = 0
    seconds: float = 0.0


@attrs.define
class Epoch:
    """An epoch; its losses are None until one has arrived, `not_finite` counts those that are NaN or infinite."""

    incarnation: int
    epoch: int
    batches: int = 0
    loss_first: float | None = None
    loss_last: float | None = None
    not_finite: int = 0
    first_not_finite: int | None = None
    results: dict[str, Any] = attrs.field(factory=dict)
    seconds: float = 0.0
    ended: bool = False


@attrs.define
class Validation:
    """A validation, or the sanity check."""

    seq: int
    incarnation: int
    time: float
    epoch: int | None
    batch: int | None
    results: dict[str, Any]
    seconds: float
    sanity: bool


@attrs.define
class Failure:
    """A `Failed` record."""

    seq: int
    incarnation: int
    time: float
    state: str
    kind: str
    error: str
    ids: str
    live: bool


class Survey:
    """What a journal holds, gathered record by record.

    Args:
        journal: opened with `history="all"`.
        everything: count superseded transitions as well.
        most: rows kept of each table; None for all.
        snapshots: names whose `saved` record is wanted.

    Attributes:
        lives: by incarnation.
        last: the last live transition.
        dwells: by state, in the order they were first left.
        epochs, validations, failures: as they came.
        facts: the side records, without what opens, seals and closes files, and without those that come with every
            snapshot and every so many steps: `saved` and `fingerprint`.
        saved: by name, when a snapshot was recorded.
        saves: how many were.
    """

    def __init__(self, journal: Journal, *, everything: bool, most: int | None, snapshots: set[str]) -> None:
        self.lives = _lives(journal)
        self.last: Record | None = None
        self.dwells: dict[str, Dwell] = {}
        self.epochs: Rows[Epoch] = Rows(most)
        self.validations: Rows[Validation] = Rows(most)
        self.failures: Rows[Failure] = Rows(most)
        self.facts: Rows[SideRecord] = Rows(most)
        self.saved: dict[str, float] = {}
        self.saves = 0
        self._snapshots = snapshots
        self._everything = everything
        self._epoch: Epoch | None = None
        self._step: Record | None = None  # the last one, while its loss isn't read
        self._spent = 0.0
        self._heard = {
            "EpochBegan": self._epoch_began,
            "Stepped": self._stepped,
            "Exhausted": self._exhausted,
            "SanityChecked": self._validated,
            "Validated": self._validated,
            "EpochEnded": self._epoch_ended,
            "Failed": self._failed,
        }
        self._read(journal)

    def _read(self, journal: Journal) -> None:
        life, number, bound, at = None, -1, -1.0, 0.0
        for item in journal.everything():
            if isinstance(item, SideRecord):
                self._side(item)
                continue
            if item.header.incarnation != number:
                number = item.header.incarnation
                life = self.lives.get(number)
                bound = math.inf if self._everything else -1 if life is None else life.live_until
                at = item.header.time if life is None else life.about.opened
                if self._everything:
                    self._leave_epoch()
            if life is not None:
                life.last = item
            now = item.meta["time"]
            if item.seq <= bound:
                self._spent = max(now - at, 0.0)  # clocks are set back at times
                self._transition(item)
            elif item.event == "Failed":
                self._failed(item)
            at = now
        self._leave_epoch()

    def _transition(self, record: Record) -> None:
        dwell = self.dwells.get(record.source)
        if dwell is None:
            dwell = self.dwells[record.source] = Dwell()
        dwell.visits += 1
        dwell.seconds += self._spent
        self.last = record
        hear = self._heard.get(record.event)
        if hear is not None:
            hear(record)
        if self._epoch is not None:
            self._epoch.seconds += self._spent
            if self._epoch.ended:
                self._leave_epoch()

    def _leave_epoch(self) -> None:
        if self._epoch is not None and self._step is not None:
            self._take_losses(self._epoch, self._step)
        self._epoch = self._step = None

    def _epoch_began(self, record: Record) -> None:
        self._leave_epoch()
        self._epoch = Epoch(record.incarnation, int(record.data.get("epoch", 0)))
        self.epochs.add(self._epoch)

    def _open_epoch(self, record: Record) -> Epoch:
        if self._epoch is None:  # a machine without EpochBegan, an account that begins within an epoch, or damage
            self._epoch = Epoch(record.incarnation, int(state_of(record).get("cur_epoch_idx", 0)))
            self.epochs.add(self._epoch)
        return self._epoch

    def _stepped(self, record: Record) -> None:
        epoch = self._open_epoch(record)
        epoch.batches += 1
        line = record.line
        if epoch.loss_first is None or b'"loss":"' in line or b'"late":' in line:  # NaN and infinities are strings
            self._step = None
            self._take_losses(epoch, record)
        else:
            self._step = record  # an ordinary one, whose loss is read if it stays the last

    def _exhausted(self, record: Record) -> None:
        if self._epoch is not None and record.data.get("late"):
            self._step = None
            self._take_losses(self._epoch, record)

    def _take_losses(self, epoch: Epoch, record: Record) -> None:
        for seq, loss in losses_of(record):
            if epoch.loss_first is None:
                epoch.loss_first = loss
            epoch.loss_last = loss
            if not math.isfinite(loss):
                epoch.not_finite += 1
                epoch.first_not_finite = epoch.first_not_finite or seq

    def _validated(self, record: Record) -> None:
        state, results = state_of(record), record.data.get("results", {})
        sanity = record.event == "SanityChecked"
        if self._epoch is not None and not sanity:
            self._epoch.results = results
        epoch, batch = state.get("cur_epoch_idx"), state.get("global_forward_batches")
        where = (record.seq, record.incarnation, record.meta["time"], epoch, batch)
        self.validations.add(Validation(*where, results, self._spent, sanity))

    def _epoch_ended(self, record: Record) -> None:
        if self._epoch is not None:
            self._epoch.ended = True

    def _failed(self, record: Record) -> None:
        data, life = record.data, self.lives.get(record.incarnation)
        live = life is not None and record.seq <= life.live_until
        kind, error, ids = (str(data.get(name, "")) for name in ("kind", "error", "ids"))
        where = (record.seq, record.incarnation, record.meta["time"], record.source)
        self.failures.add(Failure(*where, kind, error, ids, live))

    def _side(self, item: SideRecord) -> None:
        if item.kind == "saved":
            self.saves += 1
            name = item.data.get("snapshot")
            if name in self._snapshots:
                self.saved[name] = item.meta["time"]
        elif item.kind == "closed":
            life = self.lives.get(item.incarnation)
            if life is not None:
                life.closed = item.meta["time"]
        elif item.kind not in _ELSEWHERE:
            self.facts.add(item)


def _lives(journal: Journal) -> dict[int, Life]:
    """Return the incarnations, each with how far it belongs to the live history."""
    lives = {about.number: Life(about, -1) for about in journal.incarnations}
    for number, upto in journal.lineage:
        lives[number].live_until = math.inf if upto is None else upto
    return lives
