"""Checking what an engine is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tachograph.states import Event, Machine, MachineFault
from tachograph.states.errors import CallerError

from .callbacks.callback import Callback

Perform = Callable[[Any], Event]


def check_perform(machine: Machine, perform: Mapping[str, Perform]) -> None:
    """Refuse functions for the states' work that leave a state out, or name one that has no work.

    Raises:
        MachineFault: it names the state.
    """
    needed = [name for name in machine.names if name not in machine.final]
    for name in needed:
        if not callable(perform.get(name)):
            raise MachineFault(f"state '{name}' needs a function: perform={{'{name}': function(state) -> event, ...}}")
    for name in perform:
        if name not in needed:
            raise MachineFault(
                f"perform names '{name}', which is final or no state of this machine: {', '.join(needed)}"
            )


def as_callbacks(callbacks: Any) -> Sequence[Any]:
    """Return callbacks as a sequence.

    Raises:
        CallerError: they are neither one nor a sequence.
    """
    if callbacks is None:
        return ()
    if isinstance(callbacks, Callback):
        return (callbacks,)
    if isinstance(callbacks, (str, bytes)) or not isinstance(callbacks, Sequence):
        raise CallerError(f"callbacks must be a Callback or a sequence of them, not {type(callbacks).__name__}")
    return callbacks
