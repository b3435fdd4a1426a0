"""Checks of users' own steps and loops: they name the moments that have listeners and weren't reached, no others."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

STEP = {
    "on_before_backward": "trainer.backward(outputs)",
    "on_after_backward": "trainer.backward(outputs)",
    "on_before_optimizer_step": "trainer.step()",
    "on_after_optimizer_step": "trainer.step()",
    "on_before_zero_grad": "trainer.zero_grad()",
    "on_after_zero_grad": "trainer.zero_grad()",
}
"""What a step should reach, and by which call."""
LOOP = {
    **STEP,
    "on_train_batch_begin": "trainer.on_train_batch_begin(batch, indices)",
    "on_train_batch_end": "trainer.on_train_batch_end()",
}
"""The same for a loop."""


class Check:
    """Watches from its construction to `report` which moments are reached.

    Args:
        trainer: the trainer.
        expected: moment -> the call that reaches it; only those with listeners are watched.
        what: what messages call the user's code.
    """

    def __init__(self, trainer: Any, expected: Mapping[str, str], what: str) -> None:
        self._trainer = trainer
        self._expected = expected
        self._what = what
        self._reached: set[str] = set()
        self._watched = {name for name in expected if name in trainer.listeners.inside}
        self._handles = [trainer.listeners.add(name, self._seen(name), priority=1 << 30) for name in self._watched]

    def _seen(self, name: str) -> Any:
        def seen(trainer: Any, *args: Any) -> None:
            self._reached.add(name)

        return seen

    def after_step(self) -> Check | None:
        """Report after a step that closed a window, and return None: the check is over; else go on watching."""
        if not self._trainer._closes:
            return self
        self.report()
        return None

    def report(self) -> None:
        """Warn of each watched moment that wasn't reached, and watch no longer."""
        for handle in self._handles:
            handle.remove()
        for name in sorted(self._watched - self._reached):
            call = self._expected[name]
            warnings.warn(
                f"{self._what} never reached {name}, which has listeners: it should call {call}", stacklevel=4
            )
