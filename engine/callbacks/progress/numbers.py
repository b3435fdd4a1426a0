"""`Numbers`: the one place that computes what displays show. It reads counters and what the engine measured anyway."""

from __future__ import annotations

from typing import Any

import attrs

from tachograph.drivers.lengths import length_of

from .status import Pace, Status

_OUTSIDE_AN_EPOCH = ("init", "sanity_check", "epoch_begin", "done", "exception")
_OF_ALL = ("state", "seq", "stop_asked")
_SHORT = 20
_EVALUATING = ("sanity_check", "validate")


class Numbers:
    """Gathers the numbers of one run.

    Attributes:
        pace: how fast it goes.
    """

    def __init__(self) -> None:
        self.pace = Pace()
        self._sum = 0.0
        self._count = 0
        self._loss: float | None = None
        self._saved: float | None = None
        self._epoch_at = 0  # batches of the run that were done when this epoch began
        self._evaluation: tuple[int, int, int | None] = (-1, 0, None)  # its seq, batches done, batches in it

    def begin(self, trainer: Any, now: float) -> None:
        """Count from here: this process begins, or goes on."""
        state = trainer.trainer_state
        done = getattr(state, "global_forward_batches", 0)
        self.pace = Pace(now, done)
        self._epoch_at = done - getattr(state, "batch_idx_in_epoch", 0)
        self._sum, self._count = 0.0, 0
        if state.state == "validate":
            self.pace.leave(now, done)

    def step(self, loss: float | None) -> None:
        """Take a batch's loss; None where it isn't measured yet."""
        if loss is not None:
            self._sum += loss
            self._count += 1

    def begin_mean(self) -> None:
        """Take note that the mean of the losses was shown: what follows is another one."""
        self._loss, self._sum, self._count = self._mean, 0.0, 0

    @property
    def _mean(self) -> float | None:
        return self._sum / self._count if self._count else self._loss

    def evaluate(self, trainer: Any) -> bool:
        """Take note of an evaluation batch; False if it isn't the run's but one made by hand."""
        state = trainer.trainer_state
        if state.state not in _EVALUATING:
            return False
        seq, _, most = self._evaluation
        if seq != state.seq:
            most = _evaluation_batches(trainer, state)
        self._evaluation = (state.seq, trainer.evaluator.evaluated, most)
        return True

    def save(self, now: float) -> None:
        """Take note that a snapshot was published."""
        self._saved = now

    def begin_epoch(self, trainer: Any) -> None:
        """Take note that what follows is another epoch."""
        self._epoch_at = trainer.trainer_state.global_forward_batches

    def status(self, trainer: Any, now: float, state: str = "") -> Status:
        """Return the numbers of now.

        Args:
            trainer: whose.
            now: the time.
            state: what to name as the state; "" is the one it is in.
        """
        held = trainer.trainer_state
        done: int | None = getattr(held, "global_forward_batches", None)
        if done is None:  # a state of a user's own
            again = held.seq <= getattr(trainer, "announced_until", 0)
            return Status(
                state=state or held.state,
                seq=held.seq,
                loss=self._mean,
                snapshot_age=None if self._saved is None else now - self._saved,
                again=again,
                counters=_counters(held),
            )
        self.pace.look(now, done)
        between = held.batch_idx_in_epoch == 0 and held.cur_epoch_idx > 0 and held.state in _OUTSIDE_AN_EPOCH
        seq, evaluated, most = self._evaluation
        evaluating = seq == held.seq and held.state in _EVALUATING
        return Status(
            state=state or held.state,
            seq=held.seq,
            epoch=held.cur_epoch_idx + (not between),
            n_epochs=held.n_epochs,
            batch=done - self._epoch_at,
            n_batches=held.num_batches_per_epoch,
            global_batch=done,
            total_batches=held.total_batches,
            loss=self._mean,
            results={key: value for key, value in held.results.items() if not key.startswith("_")},
            rate=self.pace.rate,
            eta=self._eta(trainer, held, done),
            snapshot_age=None if self._saved is None else now - self._saved,
            evaluated=evaluated if evaluating else None,
            to_evaluate=most if evaluating else None,
            again=held.seq <= trainer.announced_until,
        )

    def _eta(self, trainer: Any, state: Any, done: int) -> float | None:
        """The time until the first of the limits is reached; None where nothing is left, or one can't be told yet."""
        total, limits = state.total_batches, getattr(trainer, "_limits", None)
        if state.state in trainer.machine.final or (total is not None and done >= total):
            return None
        left = [] if total is None else [self.pace.seconds_for(total - done)]
        if limits is not None and limits.max_time is not None:
            left.append(float(limits.max_time - limits.seconds))
        known = [seconds for seconds in left if seconds is not None]
        return min(known) if known and len(known) == len(left) and min(known) > 0 else None


def _counters(state: Any) -> dict[str, Any]:
    """Return what a state of a user's own class counts: its numbers and short texts, but for what all states have."""
    held = state if isinstance(state, dict) else attrs.asdict(state, recurse=False)
    return {
        name: value
        for name, value in held.items()
        if name not in _OF_ALL
        and (type(value) in (int, float, bool) or (type(value) is str and 0 < len(value) <= _SHORT))
    }


def _evaluation_batches(trainer: Any, state: Any) -> int | None:
    """Say how many batches the evaluation in work has; None where a loader doesn't know its length."""
    most = trainer._sanity if state.state == "sanity_check" else trainer._num_eval
    lengths = [length_of(loader) for loader in trainer.evaluator.dataloaders.values()]
    if None in lengths:
        return None
    return sum(n if most < 0 else min(n, most) for n in lengths if n is not None)


def learning_rates(trainer: Any) -> list[float | None]:
    """Return the learning rates of all parameter groups; None for one that is a tensor, which might lie on a device."""
    driver = getattr(trainer, "driver", None)
    if driver is None:  # a replay knows the rates from its record
        return list(getattr(trainer, "lr", ()))
    optimizers = getattr(driver, "optimizers", None) or ()
    rates = [group["lr"] for optimizer in optimizers for group in optimizer.param_groups]
    return [float(rate) if isinstance(rate, (int, float)) else None for rate in rates]
