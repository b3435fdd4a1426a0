"""A trainer in miniature: leads a driver as an engine does, and notes everything the driver shows on the way."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import attrs

from tachograph.drivers.driver import NO_BATCH, Driver


@attrs.frozen
class Place:
    """Where a run stands: what an engine keeps beside a snapshot.

    Attributes:
        epoch: its number; the one to come, if none is open.
        done: batches consumed of it.
        samples: samples consumed of it, over all ranks.
        seq: steps done, over all epochs.
        accumulated: micro-batches in the open window.
        opened: the epoch is open.
        in_hand: a batch was fetched and not trained on yet.
        handed_out: losses that were measured and handed out.
    """

    epoch: int = 0
    done: int = 0
    samples: int = 0
    seq: int = 0
    accumulated: int = 0
    opened: bool = False
    in_hand: bool = False
    handed_out: tuple[int, ...] = ()


@attrs.frozen
class Row:
    """What a driver shows of one micro-batch."""

    epoch: int
    batch_ids: list[Any] | None
    batch_samples: int
    ids_digest: int
    updated: bool | None  # None: the window stayed open
    learning_rates: list[float]
    rng_digest: int


class Course:
    """Leads a driver from batch to batch.

    Args:
        driver: set up.
        loss_of: finds the loss in outputs.
        window: micro-batches in an accumulation window; the last one of an epoch may be shorter.
        place: where it stands.

    Attributes:
        batch: the batch in hand, or `NO_BATCH`.
        rows: what the driver showed, batch by batch, from `place` on.
        losses: seq -> loss, as they were handed out.
    """

    def __init__(self, driver: Driver, loss_of: Callable[[Any], Any], window: int, place: Place | None = None) -> None:
        self.driver, self.window = driver, window
        self.begun = self._at = place or Place()
        self.batch: Any = NO_BATCH
        self.rows: list[Row] = []
        self.losses: dict[int, float | None] = {}
        self._loss_of = loss_of

    @property
    def place(self) -> Place:
        """Where it stands now."""
        handed_out = (*self.begun.handed_out, *self.losses)
        return attrs.evolve(self._at, in_hand=self.batch is not NO_BATCH, handed_out=handed_out)

    def enter(self, batch: Any) -> Course:
        """Stand the driver where a snapshot was taken, as an engine does.

        Args:
            batch: what `restore` returned.
        """
        at, driver = self._at, self.driver
        self._at = attrs.evolve(at, in_hand=False, handed_out=())
        if at.opened:
            held = at.in_hand and batch is not NO_BATCH
            samples = at.samples + (driver.batch_samples if held else 0)
            driver.open_epoch(at.epoch, at.done + held, samples)
            if at.in_hand:
                self.batch = batch if held else driver.next_batch()
        return self

    def go(self, batches: int) -> Course:
        """Train on so many batches more, over the ends of epochs."""
        for _ in range(batches):
            if self.batch is NO_BATCH:
                self.fetch()
            self.step()
        return self

    def fetch(self) -> Course:
        """Take the next batch in hand; that of the next epoch at the end of one."""
        if not self._at.opened:
            self._open()
        self.batch = self.driver.next_batch()
        if self.batch is NO_BATCH:
            self._close_window()
            self._at = attrs.evolve(self._at, epoch=self._at.epoch + 1, opened=False)
            self._open()
            self.batch = self.driver.next_batch()
        return self

    def step(self) -> None:
        """Train on the batch in hand."""
        driver, at = self.driver, self._at
        accumulated = at.accumulated + 1
        closes = accumulated == self.window
        with nullcontext() if closes else driver.no_sync():
            loss = self._loss_of(driver.train_step(self.batch))
            driver.backward(loss, self.window)
        updated = self._update() if closes else None
        ids, samples = driver.batch_ids, driver.batch_samples
        at = self._at = attrs.evolve(
            at, done=at.done + 1, samples=at.samples + samples, seq=at.seq + 1, accumulated=0 if closes else accumulated
        )
        self._measure(loss, at.seq)
        self.rows.append(
            Row(
                at.epoch,
                None if ids is None else list(ids),
                samples,
                driver.ids_digest(),
                updated,
                driver.learning_rates(),
                driver.rng_digest(),
            )
        )
        self.batch = NO_BATCH

    def late(self) -> None:
        """Have the losses handed out that are on their way."""
        for seq, loss in self.driver.measured_late():
            self._take(seq, loss)

    def differs(self, other: Course) -> str:
        """Say in what this run, from where it began, differs from another; "" if in nothing.

        Losses that are still on their way are waited for.
        """
        self.late()
        other.late()
        for n, (mine, its) in enumerate(zip(self.rows, other.rows[self.begun.seq :], strict=True), self.begun.seq):
            for field in attrs.fields(Row):
                a, b = getattr(mine, field.name), getattr(its, field.name)
                if repr(a) != repr(b):  # NaN equals itself
                    return f"{field.name} of batch {n} is {a!r}, not {b!r}"
        losses = {seq: loss for seq, loss in other.losses.items() if seq not in self.begun.handed_out}
        if repr(sorted(self.losses.items())) != repr(sorted(losses.items())):
            return f"the losses are {self.losses}, not {losses}"
        return "" if same_weights(self.driver, other.driver) else "the weights are others"

    def _open(self) -> None:
        self.driver.open_epoch(self._at.epoch, 0, 0)
        self._at = attrs.evolve(self._at, done=0, samples=0, opened=True)

    def _close_window(self) -> None:
        if self._at.accumulated:
            self.driver.exchange_gradients()
            self.driver.scale_gradients(self.window / self._at.accumulated)
            self._update()
            self._at = attrs.evolve(self._at, accumulated=0)

    def _update(self) -> bool:
        taken = self.driver.optimizer_step()
        self.driver.zero_grad()
        return taken

    def _measure(self, loss: Any, seq: int) -> None:
        now, late = self.driver.measure(loss, seq)
        if now is not None:
            self._take(seq, now)
        if late:
            self._take(*late)

    def _take(self, seq: int, loss: float) -> None:
        if seq in self.losses or seq in self.begun.handed_out:
            raise AssertionError(f"measure: the loss of step {seq} was handed out twice")
        self.losses[seq] = loss


def same_weights(a: Driver, b: Driver) -> bool:
    """Say whether two drivers hold the same weights, bit for bit; True where they copy none."""
    if type(a).weights is Driver.weights:
        return True
    return b.has_weights(a.weights())


__all__ = ["Course", "Place", "Row", "same_weights"]
