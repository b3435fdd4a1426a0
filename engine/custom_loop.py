"""A loop of the user's own over one epoch, in place of fetch and step: `trainer.train_batch_loop = loop`.

The machine then knows the epoch only as a whole: one transition enters *fetch*, and `Exhausted` leaves it. So a resume
goes back to the beginning of an epoch, a stop and the limits are heeded at its end, and what the loop does is for the
loop to count: `trainer.batch_idx_in_epoch += 1`, `trainer.global_forward_batches += 1`.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator
from typing import Any

import attrs

from tachograph.states.errors import CallerError

from .legality import LOOP, Check


class Truncated:
    """The first batches of a loader, in each epoch anew; whatever else is asked of it is the loader's.

    Args:
        loader: what is cut short; it may have fewer.
        batches: how many, > 0.
    """

    def __init__(self, loader: Any, batches: int) -> None:
        self._loader, self._batches = loader, batches

    def __len__(self) -> int:
        return min(self._batches, len(self._loader))

    def __iter__(self) -> Iterator[Any]:
        return itertools.islice(self._loader, self._batches)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "_loader":  # asked for by a copy that is being made
            raise AttributeError(name)
        return getattr(self._loader, name)


class CustomLoop:
    """Runs a user's loop, and checks after its first epoch what it left out.

    Args:
        loop: has `run(trainer, train_dataloader)`, which works off one epoch.

    Raises:
        CallerError: it has no `run`.
    """

    def __init__(self, loop: Any) -> None:
        if not callable(getattr(loop, "run", None)):
            raise CallerError(f"train_batch_loop must have run(trainer, train_dataloader), which {loop!r} lacks")
        self.loop = loop
        self._check: Check | None = None
        self._first = True

    def run(self, trainer: Any) -> None:
        """Work off one epoch."""
        check = Check(trainer, LOOP, "train_batch_loop") if self._first else None
        loader = trainer._debug.loader(trainer)
        if self._first:
            self._check_validations(trainer)
        self.loop.run(trainer, loader if trainer._num_train < 0 else Truncated(loader, trainer._num_train))
        if check is not None:
            check.report()
            self._first = False
            self._check_counters(trainer.trainer_state)

    @staticmethod
    def _check_validations(trainer: Any) -> None:
        if trainer.evaluator is not None and trainer._due.only_between_epochs():
            warnings.warn(
                "validate_every asks for validations inside an epoch, which a train_batch_loop works off at once: call "
                "trainer.validate() in it, or give -1 for one at the end of each epoch",
                stacklevel=4,
            )

    @staticmethod
    def _check_counters(state: Any) -> None:
        for name in ("batch_idx_in_epoch", "global_forward_batches"):
            if getattr(state, name) == 0:
                warnings.warn(f"train_batch_loop left trainer.{name} at 0: it should count each batch", stacklevel=4)

    @staticmethod
    def closes(trainer: Any) -> bool:
        """Say whether the batch in work closes an accumulation window, by the loop's own counting."""
        return bool((trainer.trainer_state.global_forward_batches + 1) % trainer.accumulation_steps == 0)

    @staticmethod
    def count_update(trainer: Any) -> None:
        """Count an optimizer step that was taken inside the loop."""
        state = trainer.trainer_state
        if not trainer.step_skipped:
            trainer.trainer_state = attrs.evolve(state, optimizer_steps=state.optimizer_steps + 1)
