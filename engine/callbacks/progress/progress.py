"""`Progress`: shows a person where the run is. It hears the moments, has the numbers computed, and tells a display.

It reads counters and the loss that the record holds anyway, never a device. Per batch it does an addition and a
comparison; a live line is drawn every 0.2 s at most.
"""

from __future__ import annotations

import datetime
import warnings
from collections.abc import Callable
from pathlib import Path
from types import MethodType
from typing import IO, Any

import attrs

from tachograph.engine.callbacks.callback import MOMENTS, Callback
from tachograph.engine.callbacks.monitor import Monitor
from tachograph.engine.callbacks.snapshot_policy import in_seconds
from tachograph.engine.world import World
from tachograph.states.errors import CallerError

from .best import Best
from .choosing import choose
from .display import Display
from .numbers import Numbers, learning_rates
from .status import Said
from .stream import Stream
from .wording import Words

_ONCE = ("validated", "epoch_ended")
"""What isn't said again by a process that does again what one before it had come past."""


@attrs.frozen
class _Every:
    """How often batches are shown: every so many of the run, or after so many seconds."""

    batches: int
    seconds: float


class Progress(Callback):
    """Shows state, epoch, batch, loss, results, rate, time left and the age of the last snapshot.

    It moves training by no bit, and remembers nothing in snapshots: it can be added, left out or changed at any resume.
    Rate and time left are by the steps of this process alone. What a process before this one had come past is
    re-executed after a crash, but not announced again. Of many processes, rank 0 shows what it sees, and all others are
    silent. A terminal or a pipe that goes away doesn't end the run.

    Args:
        mode: "rich": one live line in a terminal or a notebook; "tqdm": a bar of tqdm's; "plain": lines; "json": JSON
            lines; "auto": "rich" in a terminal or a notebook, else (a pipe, `TERM=dumb`, `CI`) "plain". Where there is
            no terminal, "rich" and "tqdm" are "plain" too. None shows nothing.
        print_every: n >= 1: every n batches of the run; a time such as "10s": the first batch after it. A machine of
            your own that counts no batches is shown by its transitions. None: "30s" for lines, 0.2 seconds for a live
            line, which isn't drawn more often in any case.
        loss_round_ndigit: digits of the loss behind the point. The loss is the mean over the batches since it was shown
            last.
        monitor: which result says whether a validation was better than the best so far; None takes the trainer's.
        larger_better: a larger value is the better one; None takes the trainer's.
        format_json: write results as JSON.
        file: where to write: an open file, or a path, which is appended to; None means stderr, and for "json" stdout.

    Attributes:
        mode: "rich", "tqdm", "plain" or "json", whichever it has become; None where nothing is shown.

    Raises:
        CallerError: an argument can't be used.
    """

    replays = True  # a live line also hears that a batch is fetched, which a replay leaves out
    in_rehearsal = False

    def __init__(
        self,
        mode: str | None = "auto",
        print_every: int | str | datetime.timedelta | None = None,
        loss_round_ndigit: int = 6,
        monitor: Monitor | str | Callable[[dict[str, Any]], Any] | None = None,
        larger_better: bool | None = None,
        format_json: bool = False,
        *,
        file: IO[str] | str | Path | None = None,
    ) -> None:
        if type(loss_round_ndigit) is not int or loss_round_ndigit < 0:
            raise CallerError(f"loss_round_ndigit must be an integer >= 0, not {loss_round_ndigit!r}")
        words = Words(loss_round_ndigit, format_json)
        self._best = Best(monitor, larger_better)
        self._numbers = Numbers()
        display = choose(mode, lambda standard: Stream(file, standard), words)
        self._every = _every(print_every, Display if display is None else display)
        if isinstance(file, (str, Path)):
            self.in_quick_pass = False  # it would be appended to
        self._due = 0.0
        self._going = False
        self.mode = None if display is None else display.name
        if display is None:
            self._fall_silent()
            return
        self._display = display
        if self._every.batches:
            self.on_train_batch_end = self._count_batch  # type: ignore[method-assign]
        else:
            self.on_train_batch_end = self._watch_batch  # type: ignore[method-assign]
            if display.live:
                self.on_train_batch_begin = self._fetched  # type: ignore[method-assign]

    def subscribe(self, listeners: Any) -> None:
        """Hear every transition of a machine that counts no batches."""
        machine = listeners.machine
        if self.mode is None or any(row.event.__name__ == "Stepped" for row in machine.rows):
            return
        for name in machine.names:
            if name not in machine.final:
                listeners.add(name, self._moved, owner=self)

    def _moved(self, trainer: Any) -> None:
        if not self._going:
            self._begin(trainer, "began")
        if self._every.batches and trainer.trainer_state.seq % self._every.batches:
            return
        live = self._display.live or not self._every.batches
        again = not self._display.live and trainer.trainer_state.seq <= trainer.announced_until
        if not again and (not live or _world(trainer).timer() >= self._due):
            self._show(trainer)

    # -- a batch -------------------------------------------------------------------------------------------

    def _watch_batch(self, trainer: Any) -> None:
        self._numbers.step(trainer.last_loss)
        if _world(trainer).timer() >= self._due:
            self._show(trainer, "step")

    def _count_batch(self, trainer: Any) -> None:
        self._numbers.step(trainer.last_loss)
        state = trainer.trainer_state
        if state.global_forward_batches % self._every.batches:
            return
        if self._display.live:
            if _world(trainer).timer() >= self._due:
                self._show(trainer, "step")
        elif state.seq > trainer.announced_until:
            self._show(trainer, "step")
        else:  # the process before this one has shown it
            self._numbers.begin_mean()

    def _fetched(self, trainer: Any, batch: Any, indices: Any = None) -> None:
        if _world(trainer).timer() >= self._due:
            self._show(trainer, "fetch")

    def _evaluated(self, trainer: Any) -> None:
        if self._numbers.evaluate(trainer) and _world(trainer).timer() >= self._due:
            self._show(trainer)

    def _show(self, trainer: Any, state: str = "") -> None:
        """Show a batch: in the live line, named after the state that the time went into, or in a line of its own."""
        now = _world(trainer).timer()
        self._due = now + self._every.seconds
        if self._display.live:
            self._display.update(self._numbers.status(trainer, now, state))
        else:
            self._say(trainer, "stepped")
        self._numbers.begin_mean()

    # -- the moments ---------------------------------------------------------------------------------------

    def on_after_trainer_initialized(self, trainer: Any, driver: Any) -> None:
        if not trainer.ranks.first:
            trainer.listeners.remove_callback(self)
            self.mode = None
            self._fall_silent()
            return
        self._numbers = Numbers()
        evaluator = getattr(trainer, "evaluator", None)
        if evaluator is None or not self._display.live:
            return
        before = evaluator.after_batch  # not as a listener: with one, each evaluation copies the memory of them all

        def after_batch() -> None:
            if before is not None:
                before()
            self._evaluated(trainer)

        evaluator.after_batch = after_batch

    def on_sanity_check_end(self, trainer: Any, sanity_check_res: dict[str, Any]) -> None:
        said = self._best.check(trainer, sanity_check_res)
        if said:
            self._display.close()  # a warning would be written behind the live line
            warnings.warn(said, stacklevel=2)

    def on_train_begin(self, trainer: Any) -> None:
        self._best.begin(trainer)
        self._begin(trainer, "began")

    def on_after_resume(self, trainer: Any, report: Any) -> None:
        self._best.resume(trainer, report.run_dir, report.seq)
        self._begin(trainer, "resumed")

    def on_continue(self, trainer: Any) -> None:
        if self.mode is not None:
            self._begin(trainer, "continued")

    def _begin(self, trainer: Any, event: str) -> None:
        now = _world(trainer).timer()
        self._due = now + self._every.seconds
        self._numbers.begin(trainer, now)
        self._going = True
        self._say(trainer, event)

    def on_train_epoch_begin(self, trainer: Any) -> None:
        self._numbers.begin_epoch(trainer)

    def on_validate_begin(self, trainer: Any) -> None:
        self._numbers.pace.leave(_world(trainer).timer(), trainer.trainer_state.global_forward_batches)

    def on_validate_end(self, trainer: Any, results: dict[str, Any]) -> None:
        state = trainer.trainer_state
        self._numbers.pace.come_back(_world(trainer).timer())
        shown = {key: value for key, value in results.items() if not key.startswith("_")}
        facts = {"validation": state.validations, **self._best.judge(results, state)}
        self._say(trainer, "validated", results=shown, **facts)

    def on_train_epoch_end(self, trainer: Any) -> None:
        self._say(trainer, "epoch_ended")
        self._numbers.begin_mean()

    def on_after_snapshot(self, trainer: Any, path: Any) -> None:
        self._numbers.save(_world(trainer).timer())
        self._say(trainer, "saved", snapshot=path.name)

    def on_stop(self, trainer: Any, reason: str) -> None:
        self._going = False
        self._say(trainer, "stopped", reason=reason)

    def on_exception(self, trainer: Any, exception: BaseException) -> None:
        self._going = False  # in the sanity check, no `on_train_end` follows
        self._say(trainer, "failed", kind=type(exception).__name__, error=str(exception))

    def on_notice(self, trainer: Any, text: str) -> None:
        self._say(trainer, "noticed", text=text)

    def on_train_end(self, trainer: Any) -> None:
        asked = getattr(trainer.trainer_state, "stop_asked", "")
        if asked and self._going:  # it was heeded at an epoch's end, which isn't followed by `on_stop`
            self._say(trainer, "stopped", reason=asked)
        self._going = False
        self._say(trainer, "ended", **self._best.facts)

    def _say(self, trainer: Any, event: str, **facts: Any) -> None:
        world = _world(trainer)
        status = self._numbers.status(trainer, world.timer())
        if status.again and event in _ONCE:
            return
        if self.mode == "json":
            facts = {"lr": learning_rates(trainer), "time": world.clock(), **facts}
        if self._display.live and event in _ONCE and status.state != "done":
            self._display.update(status)  # below what is said stands what comes now
        self._display.say(Said(event, status, facts))
        if not self._going:
            self._display.close()

    def _fall_silent(self) -> None:
        """Hear nothing: what a `Callback` doesn't override costs nothing."""
        for name in MOMENTS:
            setattr(self, name, MethodType(getattr(Callback, name), self))


def _every(print_every: Any, display: Display | type[Display]) -> _Every:
    """Check how often batches are shown.

    Raises:
        CallerError: it is neither a number of batches nor a time.
    """
    least = display.every if display.live else 0.0  # seconds
    if print_every is None:
        return _Every(0, display.every)
    if type(print_every) is int and print_every >= 1:
        return _Every(print_every, least)
    seconds = in_seconds(print_every) if isinstance(print_every, str) else None
    seconds = print_every.total_seconds() if isinstance(print_every, datetime.timedelta) else seconds
    if not seconds or seconds <= 0:
        raise CallerError(f"print_every must be n >= 1 (batches), a time such as '10s', or None, not {print_every!r}")
    return _Every(0, max(seconds, least))


_ELSEWHERE = World()


def _world(trainer: Any) -> World:
    """Return the trainer's clocks; a replay has none."""
    return getattr(trainer, "world", _ELSEWHERE)
