"""What the ranks agree on between two transitions, so that all of them take the same edge.

Each rank casts a ballot after every transition but those into *step*, whose batch is in hand. It says what was asked
for here: a snapshot, a stop, the end of an epoch, a signal; and whether a snapshot is done. What any rank asked for,
all do, after the same transition. Between epochs and after validations a ballot is counted at once. After a step nobody
waits for another rank in order to learn that there is nothing to do: what is asked for is done after the next step, or
on an accelerator some steps later (`Ranks.vote`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import attrs

from tachograph.drivers.ranks import Ranks

from . import saving

if TYPE_CHECKING:
    from .engine import Engine

SNAPSHOT, SIGNAL, ASKED, WRITTEN = 1, 2, 4, 8
_IN_HAND = frozenset({"step"})
"""States in which no ballot is cast."""


class Together:
    """What one rank asks of all.

    Attributes:
        asked: (field of the state, reason) of what listeners asked for here and isn't agreed on yet.
        signal: the number of a signal that has come here; None without one.
        due: every rank asks for a snapshot after the transition in work.
    """

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []
        self.signal: int | None = None
        self.due = False
        self._flying = 0  # bits that are cast, and not counted yet
        self._batches: int | None = None

    def ask(self, field: str, reason: str) -> None:
        """Ask that a field of every rank's state gets a reason, where it has none."""
        self.asked.append((field, reason))

    def signal_of_any(self, ranks: Ranks) -> int | None:
        """Return the signal of the lowest rank that one has come to; all ranks ask."""
        return next((number for number in ranks.gather(self.signal) if number is not None), None)

    def attend(self, engine: Engine) -> None:
        """Cast a ballot, and do what is agreed on."""
        engine._attention = False
        engine._do_what_waits()
        if engine.trainer_state.state in _IN_HAND:
            return
        agreed = self._agreed(engine)
        if agreed & ASKED:
            self._give_reasons(engine)
        final = engine.trainer_state.state in engine.machine.final
        if agreed & SNAPSHOT:
            engine._snapshot_asked = False
        if agreed & WRITTEN:
            saving.wait(engine)
        if (self.due or agreed & SNAPSHOT) and not final:
            saving.wait(engine)
            engine._snapshot()
        self.due = False
        if agreed & SIGNAL and not final:
            engine._signal = self.signal_of_any(engine.ranks)
            engine._commit(engine.give_up())

    def _agreed(self, engine: Engine) -> int:
        """Return what all ranks do now."""
        ranks, bits = engine.ranks, self._bits(engine)
        batches = getattr(engine.trainer_state, "global_forward_batches", None)
        after_step, self._batches = batches not in (None, self._batches), batches
        if ranks.lag:
            cast = bits & ~self._flying
            self._flying |= cast
            agreed = ranks.vote(cast)
            self._flying &= ~agreed
            return agreed
        return ranks.vote(bits) if after_step else ranks.agree(bits)

    def _bits(self, engine: Engine) -> int:
        reason = engine.overdue()
        if reason and not engine.trainer_state.stop_asked:
            self.ask("stop_asked", reason)
        signal = 0 if self.signal is None else SIGNAL
        snapshots = None if engine._recorder is None else engine._recorder.snapshots
        written = snapshots is not None and engine.ranks.first and snapshots.done
        return SNAPSHOT * engine._snapshot_asked | signal | ASKED * bool(self.asked) | WRITTEN * bool(written)

    def _give_reasons(self, engine: Engine) -> None:
        """Put what the ranks asked for into the state; of two reasons for one thing, that of the lower rank."""
        mine, self.asked = self.asked, []
        wanted: dict[str, Any] = {}
        for asked in engine.ranks.gather(mine):
            for field, reason in asked:
                wanted.setdefault(field, reason)
        state = engine.trainer_state
        if "epoch_cut_asked" in wanted and not engine._is_in_epoch(state):
            del wanted["epoch_cut_asked"]  # the epoch has ended while the ranks agreed
        new = {field: reason for field, reason in wanted.items() if not getattr(state, field)}
        if new:
            engine.trainer_state = attrs.evolve(state, **new)


__all__ = ["Together"]
