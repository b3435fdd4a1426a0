"""What a trainer does with a run that is recorded: verify it, rewind to a point of it, go on from there."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tachograph.drivers import Driver
from tachograph.states import TrainerState
from tachograph.states.errors import CallerError

from ..callbacks.lr_schedule import LRSchedule
from ..comparison.divergence import Divergence
from ..listeners import Listeners


class Rehearsals:
    """The part of a trainer that executes recorded transitions again, in memory."""

    # what the other parts of a trainer bring
    driver: Driver | None
    listeners: Listeners
    trainer_state: Any
    batch: Any
    accumulation_steps: int
    say: Callable[[str], None]
    _skips_batch: bool
    _place_in_window: Callable[[Any], None]

    _rehearsal: Any
    _beginning: Any = None

    def verify(self, run_dir: str | Path, start: int | None = None, stop: int | None = None) -> Divergence | None:
        """Execute a part of a run again, and find the first transition that isn't what was recorded.

        It begins at the nearest snapshot at or before `start`, or at the beginning, and writes nothing: callbacks that
        would leave something behind (loggers, savers, a progress bar) hear nothing. Limits are those that the run had;
        what a clock decided is taken from the record. Afterwards this trainer stands somewhere in that run: build one
        for it.

        Args:
            run_dir: a run directory. The trainer is built as the run's was.
            start: the first transition of interest; None: the first one that can be executed again.
            stop: the last one; None: the run's last.

        Returns:
            The divergence: `recorded` is what the journal has, `found` what came now. None if everything matches.

        Raises:
            CallerError: a transition isn't in the run, several processes are involved, or the trainer is running.
            FileNotFoundError, NotARun, JournalError: it isn't a run, or its journal is damaged.
            SettingsChanged, RestoreFault, RestoreMismatch: this trainer isn't built as the run's was; it names in what.
            SnapshotFault: there is no snapshot to begin at; it names the nearest.
        """
        from .verifying import verify

        done = verify(self, run_dir, start, stop)  # type: ignore[arg-type]
        self.say(str(done))
        return done.divergence

    def rewind(self, run_dir: str | Path, *, seq: int) -> TrainerState:
        """Stand exactly before a transition of a run: model, optimizers, generators, listeners, the batch in hand.

        It begins at the nearest snapshot before and executes what lies between; nothing is written. Where the
        transition leaves *step*, `batch` is what it works on, and `train_step`, `backward`, `step` and `zero_grad` do
        its work by hand. Then `advance()` commits transitions in memory, `run()` goes on as a run of its own with this
        point as its parent, and `rewind()` stands somewhere else, or here again as it was.

        Args:
            run_dir: a run directory. The trainer is built as the run's was; what is to be another is changed after.
            seq: the transition that would come next.

        Returns:
            The state.

        Raises:
            CallerError: the run has no such transition, or can't be executed up to it by this trainer; as in `verify`.
            SnapshotFault: there is no snapshot to begin at; it names the nearest.
        """
        from .rehearsing import Rehearsal, let_go_at_exit, warn

        rehearsal = Rehearsal(self, run_dir)  # type: ignore[arg-type]
        rehearsal.check(seq, "seq")
        begin = rehearsal.start(seq - 1)
        self.say(f"rewinds to before transition {seq:,}, {rehearsal.cost(begin, seq - 1)}")
        with rehearsal.entered(begin, warn):
            rehearsal.refuse_other_hyperparameters()
            stopped = rehearsal.go(seq - 1)
            if stopped:
                raise CallerError(f"transition {seq:,} can't be reached: {stopped}")
        assert rehearsal.reexecution is not None
        rehearsal.reexecution.parted = lambda found: self.say(f"parts from the record at {found}")
        self._rehearsal = rehearsal
        let_go_at_exit(self.driver)
        self._ready_by_hand()
        return self.trainer_state  # type: ignore[no-any-return]

    def advance(self, transitions: int = 1) -> TrainerState:
        """Commit so many transitions from where `rewind` stands: in memory, with listeners, without a record.

        Args:
            transitions: how many, > 0. It ends before, where the run's record does.

        Returns:
            The state.

        Raises:
            CallerError: the trainer wasn't rewound, or stands at the run's end.
            BaseException: whatever the model, the data or a listener raised; `rewind` puts everything in order again.
        """
        rehearsal = self._standing("advance")
        if type(transitions) is not int or transitions < 1:
            raise CallerError(f"transitions must be an integer > 0, not {transitions!r}")
        if rehearsal.ended or self.trainer_state.seq >= rehearsal.last:
            raise CallerError(rehearsal.ended or f"the run's record ends here, after transition {rehearsal.last}")
        with rehearsal.going_on():
            stopped = rehearsal.go(min(self.trainer_state.seq + transitions, rehearsal.last))
        if stopped:
            self.say(stopped)
        self._ready_by_hand()
        return self.trainer_state  # type: ignore[no-any-return]

    def set_learning_rate(self, rate: float) -> None:
        """Set the learning rate of all parameter groups of all optimizers; schedules go on from it, in proportion.

        Args:
            rate: >= 0.

        Raises:
            CallerError: it is none, or the driver can't set one.
        """
        if type(rate) not in (int, float) or not 0 <= rate < math.inf:
            raise CallerError(f"a learning rate is a number >= 0, not {rate!r}")
        driver = self.driver
        assert driver is not None
        driver.set_learning_rate(float(rate))
        if any(held != rate for held in driver.learning_rates()):
            raise CallerError(f"{type(driver).__name__} can't set a learning rate")
        if self._rehearsal is not None:
            self._rehearsal.by_hand.append(f"learning rate set to {rate:g}")
        for callback in self.listeners.callbacks.values():
            if isinstance(callback, LRSchedule):
                callback.follow()

    def skip_batch(self) -> None:
        """Have the next step pass over the batch in hand: no forward pass, and in its window it counts as a zero.

        Where no other micro-batch is in the window, its update counts as skipped.

        Raises:
            CallerError: the trainer wasn't rewound to a transition that leaves *step*.
        """
        rehearsal = self._standing("skip_batch")
        if self.trainer_state.state != "step":
            raise CallerError(
                f"there is no batch in hand: the trainer stands in {self.trainer_state.state}, before transition "
                f"{self.trainer_state.seq + 1}. Rewind to one that leaves step"
            )
        if not self._skips_batch:
            self._skips_batch = True
            rehearsal.by_hand.append(f"batch of transition {self.trainer_state.seq + 1} passed over")

    def _standing(self, name: str) -> Any:
        if self._rehearsal is None:
            raise CallerError(f"{name}() is for a trainer that rewind() has brought to a point of a run")
        return self._rehearsal

    def _ready_by_hand(self) -> None:
        if self.accumulation_steps != 1:
            self._place_in_window(self.trainer_state)


__all__ = ["Rehearsals"]
