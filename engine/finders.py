"""`Finders`: trial runs that look for a learning rate or a batch size, and leave the run as it was.

A trial trains on the real model: forward, backward, update. Then everything that training moves is put back, so a run
has the same bits whether or not something was looked for before it, or between two parts of it. Nothing of a trial is
in the journal, and no listener hears of it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import attrs

from tachograph.drivers import Driver
from tachograph.drivers.ranks import ALONE, Ranks
from tachograph.states.errors import CallerError

from . import arguments
from .custom_loop import CustomLoop
from .listeners import Listeners
from .losses import total
from .weighting import Weighting

_SETTLED = 10  # losses

_OF_A_STEP = (
    *("_losses", "_divisor", "_closes", "_custom_loop", "_weighting"),
    *("step_skipped", "last_loss", "batch", "batch_indices", "_given"),
)


@attrs.frozen
class FoundLR:
    """What `find_lr` has seen.

    Attributes:
        lrs: the learning rates that were tried, in their order.
        losses: the loss of each.
        suggestion: where the smoothed loss falls steepest over the logarithm of the rate; None if it falls nowhere.
    """

    lrs: tuple[float, ...]
    losses: tuple[float, ...]
    suggestion: float | None

    def plain(self) -> dict[str, Any]:
        """Return it as plain data, for a file or a plot."""
        return {"lrs": list(self.lrs), "losses": list(self.losses), "suggestion": self.suggestion}


class Finders:
    """Looks for settings of a trainer by trial."""

    # what the other parts of a trainer bring
    driver: Driver | None
    ranks: Ranks
    listeners: Listeners
    train_dataloader: Any
    seed: int
    _running: bool
    _custom_loop: CustomLoop | None
    _weighting: Weighting | None
    _losses: list[Any]
    _divisor: int
    _closes: bool
    _step_fn: Callable[[Any, Any], Any]
    _user_state: Callable[[], dict[str, Any]]
    _take_user_state: Callable[[dict[str, Any]], None]

    def find_lr(
        self,
        min_lr: float = 1e-7,
        max_lr: float = 1.0,
        num_batches: int = 100,
        mode: str = "exponential",
        stop_when: float = 4.0,
    ) -> FoundLR:
        """Train on a few batches with a rising learning rate, and say where the loss falls fastest.

        The trial has no listeners, so nothing clips its gradients, and each batch is an accumulation window of its own.
        All parameter groups get the same rate. Set the one you choose yourself, before `run()`.

        Args:
            min_lr: the first rate, > 0.
            max_lr: the last one, > `min_lr`.
            num_batches: how many rates, >= 3.
            mode: "exponential" or "linear": how they are spread.
            stop_when: leave off when the smoothed loss is so many times the least one, > 1.

        Raises:
            CallerError: an argument can't be used, the run is under way, or the driver is one of many processes.
        """
        rates = _spread(min_lr, max_lr, num_batches, arguments.one_of(mode, "mode", ("exponential", "linear")))
        if not stop_when > 1.0:
            raise CallerError(f"stop_when must be > 1.0, not {stop_when!r}")
        losses: list[float] = []
        with self._trial("find_lr") as driver:
            batches = driver.trial_batches(self.train_dataloader, self.seed)
            for rate, batch in zip(rates, batches, strict=False):
                driver.set_learning_rate(rate)
                losses.append(self._tried(batch))
                if _diverged(losses, stop_when):
                    break
        lrs = rates[: len(losses)]
        return FoundLR(tuple(lrs), tuple(losses), _steepest(lrs, losses))

    def find_batch_size(
        self,
        start: int = 2,
        max_size: int | None = None,
        mode: str = "power",
        steps: int = 3,
        fits: Callable[[int], bool] | None = None,
    ) -> int:
        """Train a few steps with larger and larger batches, and return the largest size that memory is enough for.

        The loader stays as it is: build it with the size you choose.

        Args:
            start: the first size, >= 1.
            max_size: the largest; None: as many samples as the loader goes over.
            mode: "power": sizes are doubled. "binary": then the gap to the first that was too large is halved.
            steps: how many with each size, >= 1.
            fits: `f(size) -> bool`, asked before each trial; False: it is too large.

        Raises:
            CallerError: an argument can't be used, the run is under way, the driver is one of many processes, the
                loader isn't a `DataLoader` with a batch size, or not even `start` fits.
        """
        for name, value in (("start", start), ("steps", steps), ("max_size", start if max_size is None else max_size)):
            arguments.count(value, name)
        arguments.one_of(mode, "mode", ("power", "binary"))
        with self._trial("find_batch_size") as driver:
            most = driver.samples_in(self.train_dataloader)
            limit = min((n for n in (most, max_size) if n is not None), default=None)
            if limit is not None and start > limit:
                raise CallerError(f"start={start} is more than there is to try: at most {limit}")
            return _largest(lambda size: self._fits(driver, size, steps, fits), start, limit, mode)

    @contextmanager
    def _trial(self, name: str) -> Iterator[Driver]:
        """Run the body with nobody listening, and put back whatever it moves."""
        if self._running:
            raise CallerError(f"{name} isn't for a run that is under way: call it before run(), or between two")
        if self.ranks is not ALONE:
            raise CallerError(
                f"{name} tries in one process: call it in a script with driver='torch', and give what it found to the "
                "trainer of many"
            )
        assert self.driver is not None
        memory, inside = self._user_state(), self.listeners.inside
        before = {each: getattr(self, each) for each in _OF_A_STEP}
        with self.driver.untouched():
            self.listeners.inside = {}
            try:
                self.driver.train_mode()
                self.driver.zero_grad()
                yield self.driver
            finally:
                self.listeners.inside = inside
                self._take_user_state(memory)
                for each, value in before.items():
                    setattr(self, each, value)

    def _tried(self, batch: Any) -> float:
        """Take one step, and return its loss, waiting for the device."""
        self._losses = []
        self._divisor, self._closes, self._custom_loop, self._weighting = 1, True, None, None
        self._step_fn(self, batch)
        assert self.driver is not None
        return float(self.driver.plain(total(self._losses)))

    def _fits(self, driver: Driver, size: int, steps: int, fits: Callable[[int], bool] | None) -> bool:
        if fits is not None and not fits(size):
            return False
        done = 0
        try:
            batches = driver.trial_batches(self.train_dataloader, self.seed, size)
            for batch in itertools.islice(batches, steps):
                self._tried(batch)
                done += 1
        except (MemoryError, RuntimeError) as error:
            if not driver.ran_out_of_memory(error):
                raise
            done = 0
        driver.tidy_up()  # not before: the error has held what the step had made
        return done == steps  # data that makes no batch of this size makes none of a larger one


def _spread(low: float, high: float, n: int, mode: str) -> list[float]:
    for name, value in (("min_lr", low), ("max_lr", high)):
        if type(value) not in (int, float) or not 0 < value < math.inf:
            raise CallerError(f"{name} must be a number > 0, not {value!r}")
    if not low < high:
        raise CallerError(f"max_lr must be more than min_lr, and {high!r} isn't more than {low!r}")
    if type(n) is not int or n < 3:
        raise CallerError(f"num_batches must be an integer >= 3, not {n!r}")
    parts = [i / (n - 1) for i in range(n)]
    if mode == "linear":
        return [low + (high - low) * part for part in parts]
    return [low * (high / low) ** part for part in parts]


def _diverged(losses: Sequence[float], stop_when: float, keep: float = 0.9) -> bool:
    """Say whether the running mean of the losses has left its least value far behind, or is no number.

    Before it has taken in some losses, it isn't a mean yet.
    """
    mean, least = 0.0, math.inf
    for i, loss in enumerate(losses):
        mean = keep * mean + (1 - keep) * loss
        smooth = mean / (1 - keep ** (i + 1))
        if i >= _SETTLED:
            least = min(least, smooth)
    return not math.isfinite(smooth) or (least < math.inf and smooth > least + (stop_when - 1) * abs(least))


def _steepest(lrs: Sequence[float], losses: Sequence[float]) -> float | None:
    """Return the rate where the loss, as a mean over its neighbours, falls fastest; None if it falls nowhere.

    The first tenth and the last loss are left out: there the model hasn't begun to learn, or has ceased to.
    """
    finite = [loss for loss in losses if math.isfinite(loss)]
    wide = max(len(finite) // 20, 1)
    smooth = [_mean(finite[max(i - wide, 0) : i + wide + 1]) for i in range(len(finite))]
    best, found = 0.0, None
    for i in range(max(len(smooth) // 10, 1), len(smooth) - 1):
        slope = (smooth[i + 1] - smooth[i - 1]) / (math.log(lrs[i + 1]) - math.log(lrs[i - 1]))
        if slope < best:
            best, found = slope, lrs[i]
    return found


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _largest(fits: Callable[[int], bool], start: int, limit: int | None, mode: str) -> int:
    """Return the largest size that fits, doubling and then, with "binary", halving the gap."""
    if not fits(start):
        raise CallerError(f"a batch of {start} is too large already: give a smaller start")
    good, bad = start, None
    while bad is None and good != limit:
        size = good * 2 if limit is None else min(good * 2, limit)
        if fits(size):
            good = size
        else:
            bad = size
    while mode == "binary" and bad is not None and bad - good > 1:
        size = (good + bad) // 2
        if fits(size):
            good = size
        else:
            bad = size
    return good


__all__ = ["Finders", "FoundLR"]
