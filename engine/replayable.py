"""Which listeners a replay can drive: those of transitions, and not those of what lies inside a step.

A journal tells every transition and holds no tensor. So what hangs on transitions is heard as it was live, but for
`on_train_batch_begin`, which hands out the batch. Moments of the process (a snapshot published, a resume) say what
became of files and machines, and nothing of the run: no replay calls them.
"""

from __future__ import annotations

import attrs

from .callbacks.callback import Callback
from .listeners import Listeners, Subscription

INSIDE = (
    "on_train_batch_begin",
    "on_before_backward",
    "on_after_backward",
    "on_before_optimizer_step",
    "on_after_optimizer_step",
    "on_before_zero_grad",
    "on_after_zero_grad",
    "on_skipped_optimizer_step",
    "on_validate_batch_begin",
    "on_validate_batch_end",
)
"""Moments inside a step or an evaluation, and the one that hands out a batch."""
OF_THE_PROCESS = (
    "on_after_trainer_initialized",
    "on_after_resume",
    "on_after_snapshot",
    "on_save_model",
    "on_load_model",
)
"""Moments that tell of a process and its files."""


@attrs.frozen
class Skipped:
    """A listener that a replay leaves out.

    Attributes:
        listener: its name.
        why: the reason, in words.
    """

    listener: str
    why: str

    def __str__(self) -> str:
        return f"{self.listener} ({self.why})"


def leave_out(listeners: Listeners) -> list[Skipped]:
    """Take back the subscriptions that a replay can't serve, and return whose they were."""
    skipped = [found for callback in list(listeners.callbacks.values()) if (found := _whole(listeners, callback))]
    for held in listeners.subscriptions:
        why = _why(held)
        if why and held.owner is None:
            skipped.append(Skipped(held.name, why))
        if why:
            listeners.remove([held])
    return skipped


def _whole(listeners: Listeners, callback: Callback) -> Skipped | None:
    """Leave a whole callback out, unless it can do with what a journal holds."""
    inside = [held.point for held in listeners.subscriptions if held.owner is callback and _lies_inside(held)]
    if callback.replays or (callback.replays is None and not inside):
        return None
    listeners.remove_callback(callback)
    why = (
        f"it hears {inside[0]}, of which a journal holds nothing" if inside else "it works on more than a journal holds"
    )
    return Skipped(type(callback).__name__, why)


def _lies_inside(held: Subscription) -> bool:
    return held.kind == "moment" and held.point in INSIDE


def _why(held: Subscription) -> str:
    """Say why a replay can't serve a subscription; "" if it can."""
    if _lies_inside(held):
        return f"a journal holds nothing of {held.point}"
    if held.kind == "moment" and held.point in OF_THE_PROCESS:
        return f"{held.point} tells of a process, not of its run"
    return ""


__all__ = ["INSIDE", "OF_THE_PROCESS", "Skipped", "leave_out"]
