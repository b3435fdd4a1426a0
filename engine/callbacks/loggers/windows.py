"""`Windows`: the losses of accumulation windows, put together when the last of them has arrived from the device."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any


class Windows:
    """Makes one value of the losses of all batches between two points of a log.

    A batch is known by the number of its transition, since its loss may arrive with a later one. Losses are added up in
    the order of their batches, whenever they arrive, so that a resumed run makes the same bits.
    """

    def __init__(self) -> None:
        self._open: list[int] = []  # batches of the window in work
        self._closed: deque[tuple[list[int], int, str]] = deque()  # batches, where it belongs, as what
        self._losses: dict[int, float | None] = {}  # those that have arrived, of the batches above
        self._sum, self._n = 0.0, 0  # of the windows since the last point

    def batch(self, seq: int, loss: float | None) -> None:
        """Count a batch to the window in work.

        Args:
            seq: the number of its transition.
            loss: None: it hasn't arrived yet, or there is none.
        """
        self._open.append(seq)
        if loss is not None:
            self._losses[seq] = loss

    def took(self, loss: float | None) -> bool:
        """Take a window of one batch whose loss is at hand, if that's all there is to it: the common case."""
        if loss is None or self._open or self._closed:
            return False
        self._sum, self._n = self._sum + loss, self._n + 1
        return True

    def arrive(self, late: Iterable[Any]) -> None:
        """Take losses that have arrived: `[seq, loss]` each."""
        for seq, loss in late:
            self._losses[seq] = loss

    def close(self, step: int, name: str) -> None:
        """Close the window in work.

        Args:
            step: the point that its losses make a value of, with those of the windows before; 0: a later one does.
            name: what the value is called; "": it is part of the mean that a point without a name makes.
        """
        self._closed.append((self._open, step, name))
        self._open = []

    def settle(self) -> None:
        """Take it that no more losses come for the batches so far: those that didn't make none."""
        for seq in (*self._open, *(seq for batches, _, _ in self._closed for seq in batches)):
            self._losses.setdefault(seq, None)

    def made(self) -> Iterator[tuple[int, str, float]]:
        """Yield (step, name, mean) of each point whose losses are all there now."""
        while self._closed and all(seq in self._losses for seq in self._closed[0][0]):
            batches, step, name = self._closed.popleft()
            losses = [loss for seq in batches if (loss := self._losses.pop(seq)) is not None]
            if name:  # a value of its own
                if losses:
                    yield step, name, sum(losses) / len(losses)
                continue
            self._sum, self._n = self._sum + sum(losses), self._n + len(losses)
            if step and self._n:
                yield step, name, self._sum / self._n
            if step:
                self._sum, self._n = 0.0, 0

    def waits_for(self) -> int | None:
        """Return the first point whose losses aren't all there; None if there is none."""
        return next((step for _, step, _ in self._closed if step), None)

    def state_dict(self) -> dict[str, Any]:
        """Return all that is on its way, as plain data."""
        return {
            "open": list(self._open),
            "closed": [[list(batches), step, name] for batches, step, name in self._closed],
            "losses": [[seq, loss] for seq, loss in self._losses.items()],
            "sum": self._sum,
            "n": self._n,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take back what `state_dict` returned."""
        self._open = list(state["open"])
        self._closed = deque((list(batches), step, name) for batches, step, name in state["closed"])
        self._losses = dict(state["losses"])
        self._sum, self._n = state["sum"], state["n"]
