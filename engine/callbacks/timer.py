"""`Timer`: tells where the time of a run goes."""

from __future__ import annotations

from typing import Any

from tachograph.states.errors import CallerError

from .callback import Callback

TIMERS = ("fetch-data", "forward", "backward", "optimize", "evaluate", "train", "total")


class Timer(Callback):
    """Measures the seconds spent in fetching, forward, backward, updates and evaluation, and says them now and then.

    "train" is all time but that of evaluations, "total" all of it since training began or was resumed. It is measured
    on this side of the device: where that works on by itself, its time shows where it is waited for. Nothing of it is
    saved: after a resume it counts from there. Of many ranks each measures itself, and rank 0 says what it found.

    Args:
        print_every: n > 0: after every n batches of the run; -n: at the end of every n-th epoch; 0: at the end of the
            run. What is said is what has passed since it was said last.
        time_ndigit: decimals of the seconds.

    Raises:
        CallerError: an argument can't be used.
    """

    def __init__(self, print_every: int = -1, time_ndigit: int = 3) -> None:
        if type(print_every) is not int:
            raise CallerError(
                f"print_every must be an integer: n batches, -n epochs, or 0 for the end, not {print_every!r}"
            )
        if type(time_ndigit) is not int or time_ndigit < 0:
            raise CallerError(f"time_ndigit must be an integer >= 0, not {time_ndigit!r}")
        self._print_every, self._digits = print_every, time_ndigit
        self._forget()
        if print_every > 0:
            self.on_train_batch_end = self._batch_end  # type: ignore[method-assign]
        elif print_every < 0:
            self.on_train_epoch_end = self._epoch_end  # type: ignore[method-assign]

    def _forget(self) -> None:
        self._spent = dict.fromkeys(TIMERS, 0.0)
        self._said = dict(self._spent)
        self._since: dict[str, float] = {}  # when those that run were started
        self._now: Any = None

    @property
    def totals(self) -> dict[str, float]:
        """Timer -> seconds so far, of what is under way too."""
        under_way = tuple(self._since)
        self._stop(*under_way)
        self._start(*under_way)
        return dict(self._spent)

    # -- what is heard -------------------------------------------------------------------------------------

    def on_after_trainer_initialized(self, trainer: Any, driver: Any) -> None:
        self._forget()

    def on_train_begin(self, trainer: Any) -> None:
        self._begin(trainer)

    def on_after_resume(self, trainer: Any, report: Any) -> None:
        self._begin(trainer)

    def on_continue(self, trainer: Any) -> None:
        self._begin(trainer)

    def _begin(self, trainer: Any) -> None:
        self._now = trainer.world.timer
        self._since.clear()
        state = trainer.trainer_state.state
        if state in ("init", "sanity_check"):  # on_train_begin comes later
            return
        inside = {"fetch": "fetch-data", "step": "forward", "validate": "evaluate"}
        self._start("total", *filter(None, [inside.get(state), "train" if state != "validate" else None]))

    def on_fetch_data_begin(self, trainer: Any) -> None:
        self._start("fetch-data")

    def on_fetch_data_end(self, trainer: Any) -> None:
        self._stop("fetch-data")

    def on_train_batch_begin(self, trainer: Any, batch: Any, indices: Any = None) -> None:
        self._start("forward")

    def on_before_backward(self, trainer: Any, outputs: Any) -> None:
        self._stop("forward")
        self._start("backward")

    def on_after_backward(self, trainer: Any) -> None:
        self._stop("backward")

    def on_before_optimizer_step(self, trainer: Any, optimizers: Any) -> None:
        self._start("optimize")

    def on_after_optimizer_step(self, trainer: Any, optimizers: Any) -> None:
        self._stop("optimize")

    def on_validate_begin(self, trainer: Any) -> None:
        self._stop("train")
        self._start("evaluate")

    def on_validate_end(self, trainer: Any, results: dict[str, Any]) -> None:
        self._stop("evaluate")
        self._start("train")

    def on_train_end(self, trainer: Any) -> None:
        if self._print_every == 0:
            self._say(trainer, "the run")
        self._stop(*self._since)

    # -- the clockwork -------------------------------------------------------------------------------------

    def _start(self, *names: str) -> None:
        if self._now is not None:
            now = self._now()
            self._since.update((name, now) for name in names)

    def _stop(self, *names: str) -> None:
        running = [name for name in names if name in self._since]
        if running:
            now = self._now()
            for name in running:
                self._spent[name] += now - self._since.pop(name)

    # -- what is said --------------------------------------------------------------------------------------

    def _batch_end(self, trainer: Any) -> None:
        if trainer.trainer_state.global_forward_batches % self._print_every == 0:
            self._say(trainer, f"{self._print_every} batches" if self._print_every > 1 else "1 batch")

    def _epoch_end(self, trainer: Any) -> None:
        if trainer.trainer_state.cur_epoch_idx % -self._print_every == 0:
            self._say(trainer, f"{-self._print_every} epochs" if self._print_every < -1 else "1 epoch")

    def _say(self, trainer: Any, what: str) -> None:
        if not trainer.ranks.first:
            return
        totals = self.totals
        spent = {name: round(totals[name] - self._said[name], self._digits) for name in TIMERS}
        self._said = totals
        told = ", ".join(f"{name}: {seconds:.{self._digits}f}s" for name, seconds in spent.items() if seconds)
        trainer.say(f"time of {what}: {told or 'less than can be told'}")


TimerCallback = Timer  # the reference trainer's name
