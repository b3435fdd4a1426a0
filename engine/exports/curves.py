"""The curves of a run: losses, learning rates, results, each at the step it belongs to."""

from __future__ import annotations

from collections.abc import Iterator
from numbers import Real
from typing import Any

import attrs

from tachograph.engine.journal import Record

from .source import losses_of, state_of

_KEPT = 4096  # steps whose losses may still be on their way


@attrs.frozen
class Point:
    """One value of a curve.

    Attributes:
        name: the curve: "loss", "lr" or "lr/0", "lr/1", …, or "validate/…".
        step: batches done.
        time: when, in seconds since 1970.
        value: a number, be it NaN or infinite.
    """

    name: str
    step: int
    time: float
    value: float


class Curves:
    """Reads the points off one rank's records, in their order.

    A loss that arrived late is put where its step was.
    """

    def __init__(self) -> None:
        self._steps: dict[int, tuple[int, float]] = {}  # of transitions that are still without their loss

    def points(self, record: Record) -> Iterator[Point]:
        """Yield what a record adds."""
        if record.event == "Fetched":  # every other record, and it measures nothing
            return
        data = record.data
        if not data:
            return
        here: tuple[int, float] | None = None
        if data.keys() & {"loss", "late", "lr", "results"}:
            here = int(state_of(record).get("global_forward_batches", record.seq)), float(record.meta["time"])
        if here is None:
            return
        if "loss" in data and data["loss"] is None:
            self._await(record.seq, here)
        for seq, loss in losses_of(record, data):
            step, time = here if seq == record.seq else self._steps.pop(seq, here)
            yield Point("loss", step, time, float(loss))
        rates = data.get("lr") or ()
        for i, rate in enumerate(rates):
            yield Point("lr" if len(rates) == 1 else f"lr/{i}", *here, float(rate))
        if record.event != "SanityChecked":
            yield from self._results(data.get("results"), here)

    def _await(self, seq: int, here: tuple[int, float]) -> None:
        self._steps[seq] = here
        if len(self._steps) > _KEPT:
            del self._steps[next(iter(self._steps))]

    @staticmethod
    def _results(results: Any, here: tuple[int, float]) -> Iterator[Point]:
        if isinstance(results, dict):
            for name, value in results.items():
                if isinstance(value, Real):
                    yield Point(f"validate/{name}", *here, float(value))


__all__ = ["Curves", "Point"]
