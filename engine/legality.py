"""A check of custom steps: after the first one, it names the moments that have listeners and weren't reached."""

from __future__ import annotations

import warnings
from typing import Any

_EXPECTED = {
    "on_before_backward": "trainer.backward(outputs)",
    "on_after_backward": "trainer.backward(outputs)",
    "on_before_optimizer_step": "trainer.step()",
    "on_after_optimizer_step": "trainer.step()",
    "on_before_zero_grad": "trainer.zero_grad()",
    "on_after_zero_grad": "trainer.zero_grad()",
}


class StepCheck:
    """Watches a custom `batch_step_fn` until its first accumulation window is closed; says nothing if nothing is missing."""

    def __init__(self, trainer: Any) -> None:
        self._trainer = trainer
        self._reached: set[str] = set()
        self._watched = {name for name in _EXPECTED if name in trainer.listeners.inside}
        self._handles = [trainer.listeners.add(name, self._seen(name), priority=1 << 30) for name in self._watched]

    def _seen(self, name: str) -> Any:
        def seen(trainer: Any, *args: Any) -> None:
            self._reached.add(name)

        return seen

    def after_step(self) -> StepCheck | None:
        """Warn after a step that closed a window, and return None: the check is over; else go on watching."""
        if not self._trainer._closes:
            return self
        for handle in self._handles:
            handle.remove()
        for name in sorted(self._watched - self._reached):
            warnings.warn(
                f"batch_step_fn never reached {name}, which has listeners: it should call {_EXPECTED[name]}",
                stacklevel=2,
            )
        return None
