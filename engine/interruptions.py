"""How a run is interrupted from outside: a signal is heeded at the next transition, on all ranks at the same one.

`Interruptions` is the part of `Engine` that raises the flag, and ends the script with the status that a signal has.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

from tachograph.drivers.ranks import Ranks
from tachograph.states import Event, Machine, Stopped

from .together import Together


class Interruptions:
    """Ends a run when it is told to."""

    # what the engine brings
    machine: Machine
    ranks: Ranks
    together: Together
    trainer_state: Any
    _snapshot: Callable[..., None]
    _requeue: Callable[[], None] | None
    _signal: int | None
    _heeded: bool
    _attention: bool

    def interrupt(self, number: int) -> None:
        """End the run at its next transition as a signal does that is caught: with a snapshot, and its exit status.

        It may be called at any time and from any thread, so it fits into a signal handler of your own. Before `run()`
        it ends the run to come.

        Args:
            number: of the signal; for SIGINT, `run()` raises KeyboardInterrupt, else SystemExit(128 + number).

        Raises:
            ValueError: no signal has this number.
        """
        if self.ranks.world_size > 1:
            self.together.signal = signal.Signals(number)
        else:
            self._signal = signal.Signals(number)
        self._attention = True

    def interrupted(self) -> bool:
        """Say whether the run is to end: long work in a state, such as a validation, should ask now and then.

        Of many ranks all must ask equally often, and each waits for the others.
        """
        ranks, together = self.ranks, self.together
        if self._signal is None and ranks.world_size > 1 and ranks.agree(together.signal is not None):
            self._signal = together.signal_of_any(ranks)
        return self._signal is not None

    def overdue(self) -> str:
        """Say why this rank's clock wants the run to stop; "" if it doesn't. Of many ranks only: they must agree."""
        return ""

    def give_up(self) -> Event:
        """Return what a state's work returns that leaves off since the run is `interrupted()`.

        The snapshot that is taken here says that the work hasn't begun: what was done of it must have left no trace.
        """
        self._snapshot()
        self._heeded = True
        number = self._signal or signal.SIGTERM
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        if "Stopped" not in self.machine.legal(self.trainer_state.state):  # a machine that can only fail
            raise SystemExit(128 + number)
        return Stopped(reason=signal.Signals(number).name)

    def _leave(self) -> None:
        """End the script too, if a signal has come, be it when the run was done already."""
        number = self._signal or self.together.signal
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        if number is not None:
            self._signal = number
            self._ask_for_requeue()
            raise SystemExit(128 + number)

    def _ask_for_requeue(self) -> None:
        if self._requeue is not None and self._signal != signal.SIGTERM and self.ranks.first:
            self._requeue()


__all__ = ["Interruptions"]
