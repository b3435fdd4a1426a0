"""The numbers of a run that a person looks at: `Status` at one time, `Pace` over time. Pure: time is given."""

from __future__ import annotations

from typing import Any

import attrs

_HALF_LIFE = 30.0  # seconds after which what was measured counts half


@attrs.frozen(kw_only=True)
class Status:
    """Where a run is, and how it gets on. What isn't known is None, and isn't shown.

    Attributes:
        state: the machine's state; of a live line that which the time went into when it was drawn.
        seq: transitions committed.
        epoch: the epoch in work, from 1; between two epochs the one that ended.
        n_epochs: the limit in epochs.
        batch: batches done in this epoch.
        n_batches: batches in this epoch.
        global_batch: batches done in the run.
        total_batches: the limit in batches.
        loss: the mean over the batches since it was shown last.
        results: of the last validation, without those whose names begin with an underscore.
        rate: batches a second, of this process.
        eta: seconds to the end.
        snapshot_age: seconds since this process published a snapshot.
        evaluated: evaluation batches done in the evaluation in work.
        to_evaluate: evaluation batches in it.
        again: the process before this one had come past this point.
        counters: of a state that is of a user's own class: its numbers and short texts, by their names.
    """

    state: str
    seq: int = 0
    epoch: int | None = None
    n_epochs: int | None = None
    batch: int | None = None
    n_batches: int | None = None
    global_batch: int | None = None
    total_batches: int | None = None
    loss: float | None = None
    results: dict[str, Any] = attrs.field(factory=dict)
    rate: float | None = None
    eta: float | None = None
    snapshot_age: float | None = None
    evaluated: int | None = None
    to_evaluate: int | None = None
    again: bool = False
    counters: dict[str, Any] = attrs.field(factory=dict)


@attrs.frozen
class Said:
    """Something that happened, for a display to say.

    Attributes:
        event: "began", "resumed", "continued", "stepped", "validated", "epoch_ended", "saved", "stopped", "failed",
            "noticed" or "ended".
        status: the numbers then.
        facts: what belongs to this event alone.
    """

    event: str
    status: Status
    facts: dict[str, Any]


class Pace:
    """How fast this process trains. What it did before a resume isn't known to it, nor wanted.

    The rate is batches by seconds, both fading with a half-life of 30 seconds: at first the plain mean, later what is
    true now. Evaluations are no part of it; their share of the time is, for the time that is left.

    Args:
        now: when it begins, in seconds; None: it hasn't begun.
        batches: how many were done before.
    """

    def __init__(self, now: float | None = None, batches: int = 0) -> None:
        self._at = now
        self._left_at: float | None = None
        self._seen = batches
        self._batches = self._seconds = 0.0  # fading
        self._trained = self._evaluated = 0.0

    def look(self, now: float, batches: int) -> None:
        """Take note of how far it has come."""
        if self._at is None or self._left_at is not None or batches <= self._seen:
            return  # what passed without a batch belongs to the next one
        spent, done = now - self._at, batches - self._seen
        fading = 0.5 ** (spent / _HALF_LIFE)
        self._batches, self._seconds = self._batches * fading + done, self._seconds * fading + spent
        self._trained += spent
        self._at, self._seen = now, batches

    def leave(self, now: float, batches: int) -> None:
        """Take note that an evaluation begins."""
        self.look(now, batches)
        if self._at is not None:
            self._left_at = now

    def come_back(self, now: float) -> None:
        """Take note that it is over."""
        if self._at is not None and self._left_at is not None:
            self._evaluated += now - self._left_at
            self._at += now - self._left_at
        self._left_at = None

    @property
    def rate(self) -> float | None:
        """Batches a second; None before any were seen to take time."""
        return self._batches / self._seconds if self._seconds > 0 else None

    def seconds_for(self, batches: int) -> float | None:
        """Say how long so many batches will take, with as much evaluation among them as there has been so far."""
        rate = self.rate
        if rate is None:
            return None
        return max(batches, 0) / rate * (1 + (self._evaluated / self._trained if self._trained else 0.0))
