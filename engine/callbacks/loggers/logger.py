"""`Logger`: hears what a run measures and hands it on, one row of values a step, each step once.

The journal says what a run did; a log is for people to look at, and it is kept outside: in files and databases that
don't know of crashes. So that it has one live value per step and name whatever became of the run, a logger keeps two
promises. What it had written when a snapshot was taken has left the process (`flush`), so a kill can't take it. And
what it wrote after the snapshot that a run goes on from is taken back (`purge`) before the same steps are done again.
"""

from __future__ import annotations

import signal
import time
import uuid
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from importlib import import_module
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from tachograph.engine.alike import by_first
from tachograph.engine.callbacks.callback import Callback
from tachograph.engine.callbacks.monitor import Monitor
from tachograph.engine.callbacks.other_words import names_its_arguments
from tachograph.engine.callbacks.writable import check_early, check_writable
from tachograph.engine.describing import named
from tachograph.engine.notes import message
from tachograph.engine.replay import Replay
from tachograph.states import Exhausted, Stepped
from tachograph.states.errors import CallerError

from .attempts import Attempts
from .belonging import claim, remember, run_of, settings_of
from .windows import Windows

LOSS, SKIPPED, LR = "train/loss", "train/loss_skipped", "train/lr"
_KEPT = 4096  # rows that are kept for a backend that doesn't take them, before the oldest are given up


@names_its_arguments
class Logger(Callback):
    """The base of all loggers: a subclass says how a row is written.

    It overrides `open`, `write` and `close`, and `purge` if what was written can be taken back. The rows it is given
    are complete, and their steps go up. Training is no bit another with a logger than without. Of many ranks, rank 0
    logs what it sees; the others write nothing, and open nothing.

    Args:
        monitor: a key of the validation results whose best value is logged as well; None takes the trainer's, if any,
            which is held to the results in the same way.
        larger_better: a larger value is the better one; None takes the trainer's.
        log_exception: log the class and the message of an error that ends the run.
        log_loss_every: the reference trainer's name for `log_every`.
        log_every: log loss and learning rates once in so many updates, the loss as the mean over their batches; 0 logs
            none. Other values are logged whenever there are some.
        folder: where it writes; None means `logs/<kind>` in the run directory. It belongs to one run.
        step_on: what the steps count: "update" or "batch", since the beginning of the run.
        on_fault: "raise" if an error of the backend is an error of the run; "warn" tries again later, ever less often,
            with what it has kept meanwhile.

    Attributes:
        kind: the name of its folder, and of the extra that brings what it needs.
        needs: the library that it needs; "": none.
        status: "running", or how the run ended: "finished" (by a limit, or a listener's wish), "interrupted" (by a
            signal) or "failed".
        takes_back: `purge` takes back what was written. One that can't is given nothing that may yet change.
        clock: the time of day; in a replay, the time of the record that is heard.

    Raises:
        CallerError: an argument can't be used, or the library isn't installed; or there is neither `folder` nor a run
            directory, or the folder can't be written to, or it holds something else than this run's log (when the run
            begins at the latest); or the monitor isn't among the results, at the sanity check.
    """

    kind = "log"
    needs = ""
    takes_back = True
    in_quick_pass = False
    clock: Callable[[], float] = staticmethod(time.time)

    def __init__(
        self,
        monitor: str | Callable[[dict[str, Any]], Any] | None = None,
        larger_better: bool | None = None,
        log_exception: bool = True,
        log_loss_every: int | None = None,
        *,
        log_every: int = 1,
        folder: str | Path | None = None,
        step_on: str = "update",
        on_fault: str = "raise",
    ) -> None:
        self._check_library()
        log_every = log_every if log_loss_every is None else log_loss_every
        if type(log_every) is not int or log_every < 0:
            raise CallerError(f"log_every must be an integer >= 0, not {log_every!r}")
        if step_on not in ("update", "batch"):
            raise CallerError(f"step_on must be 'update' or 'batch', not {step_on!r}")
        if on_fault not in ("raise", "warn"):
            raise CallerError(f"on_fault must be 'raise' or 'warn', not {on_fault!r}")
        Monitor.of(monitor, larger_better)
        self.log_every, self.log_exception, self.step_on, self.on_fault = log_every, log_exception, step_on, on_fault
        self._asked = (monitor, larger_better)
        self._given_folder = None if folder is None else Path(folder)
        self._monitor: Monitor | None = None
        self._silent = False
        self._forget()

    def _check_library(self) -> None:
        if self.needs:
            try:
                import_module(self.needs)
            except ImportError as error:
                raise needed(self.needs, self.kind, type(self).__name__) from error

    def _forget(self) -> None:
        self._attempts = Attempts(type(self).__name__, self.on_fault == "warn", self._silent)
        self._rows: dict[int, dict[str, Any]] = {}  # those that may get more values
        self._windows = Windows()
        self._lr: Sequence[float] = ()
        self._written: int | None = None  # the last step whose row is complete and was written; -1: none yet
        self._open = self._changed = self._refused = False
        self._run = uuid.uuid4().hex  # whose log it is, where no run directory says it
        self.status = "running"

    # -- what a subclass says ------------------------------------------------------------------------------

    def open(self, folder: Path, memory: dict[str, Any]) -> None:
        """Get ready to write: at the beginning of a run, and each time that it goes on.

        Args:
            folder: exists, and holds this run's log or nothing.
            memory: what the log is known by: `run` and `name`, and what a subclass adds to it here. It is kept in the
                folder, and is what it was when the log is opened again.
        """

    def describe(self, settings: dict[str, Any]) -> None:
        """Write down the settings of the run, by their flat names; called once, when a log begins."""

    def purge(self, after: int) -> None:
        """Take back every row of a later step than `after`, since those steps will be done again; -1: all."""

    def write(self, step: int, values: dict[str, Any]) -> None:
        """Write a row.

        Args:
            step: a larger one than that of the row before.
            values: name -> number, be it NaN or infinite, or text.
        """

    def flush(self) -> None:
        """Give all that was written out of the process; a snapshot follows."""

    def close(self) -> None:
        """Give all that was written out of the process, and let go of what was opened; `status` says how it ended."""

    # -- what is heard -------------------------------------------------------------------------------------

    def subscribe(self, listeners: Any) -> None:
        listeners.add(Stepped, self._stepped, owner=self)
        listeners.add(Exhausted, self._exhausted, owner=self)

    def on_after_trainer_initialized(self, trainer: Any, driver: Any) -> None:
        if trainer.run_dir is None and self._given_folder is None:
            raise CallerError(f"{type(self).__name__} needs a folder, since this trainer has no run_dir: give it one")
        if self.on_fault == "raise":  # else it is tried again and again
            by_first(trainer.ranks, lambda: check_early(self._given_folder, type(self).__name__))
        self._folder(trainer)
        self._silent = not trainer.ranks.first
        self._forget()
        self._watch(trainer)

    def _watch(self, trainer: Any) -> None:
        self._monitor = Monitor.of(*self._asked, trainer=trainer)

    def on_sanity_check_end(self, trainer: Any, sanity_check_res: dict[str, Any]) -> None:
        if self._monitor is not None:
            self._monitor.check(sanity_check_res)

    def on_train_begin(self, trainer: Any) -> None:
        self._ready(trainer)

    def on_after_resume(self, trainer: Any, report: Any) -> None:
        self._go_on(trainer)

    def on_continue(self, trainer: Any) -> None:
        self._go_on(trainer)

    def _go_on(self, trainer: Any) -> None:
        if self._written is None and (now := self._now(trainer)):
            self._written = now  # it wasn't there when the snapshot was taken: what it had said before is left alone
        self._open = False
        self.status = "running"
        self._ready(trainer)

    def _stepped(self, trainer: Any, event: Stepped) -> None:
        if self.log_every:
            self._lr = event.lr
            on_batch = self.step_on == "batch"
            closed, skipped = on_batch or event.closed, event.skipped and not on_batch
            if not (closed and not skipped and self._now(trainer) % self.log_every and self._windows.took(event.loss)):
                self._count(trainer, event, closed, skipped)
        if self._rows:
            self._drain(trainer)

    def _count(self, trainer: Any, event: Stepped, closed: bool, skipped: bool) -> None:
        self._windows.batch(trainer.trainer_state.seq, event.loss)
        if event.late:
            self._windows.arrive([event.late])
        if closed:
            self._close_window(trainer, skipped)

    def _exhausted(self, trainer: Any, event: Exhausted) -> None:
        if self.log_every:
            self._windows.arrive(event.late)
            self._windows.settle()
            if self.step_on == "update" and (event.flushed or event.dropped):
                self._close_window(trainer, event.skipped or event.dropped > 0)
            self._take_losses(trainer)
        self._drain(trainer)

    def _close_window(self, trainer: Any, skipped: bool) -> None:
        step = self._now(trainer)
        if skipped:  # no update, so it has no step of its own: it belongs to the update that's still to come
            self._windows.close(step + 1, SKIPPED)
        elif step % self.log_every:
            self._windows.close(0, "")
        else:
            self._windows.close(step, "")
            self._row(trainer, step).update(self._rates())
        self._take_losses(trainer)

    def _take_losses(self, trainer: Any) -> None:
        for step, name, loss in self._windows.made():
            self._row(trainer, step)[name or LOSS] = loss

    def _rates(self) -> dict[str, float]:
        rates = self._lr
        return {LR: rates[0]} if len(rates) == 1 else {f"{LR}_{i}": rate for i, rate in enumerate(rates)}

    def on_validate_end(self, trainer: Any, results: dict[str, Any]) -> None:
        row = self._row(trainer, self._now(trainer))
        row.update({f"validate/{key}": _plain(value) for key, value in results.items() if isinstance(value, Real)})
        if self._monitor is not None:
            value = self._monitor.value(results)
            if value is not None:
                self._monitor.improves(value)
            if self._monitor.best is not None:
                name = self._monitor.name
                row[f"best/{name if isinstance(name, str) else named(name)}"] = self._monitor.best
        self._drain(trainer)

    def on_log(self, trainer: Any, values: dict[str, Any]) -> None:
        if "step" in values:
            raise CallerError("'step' is the name of the log's own axis: give the value another one")
        self._row(trainer, self._here(trainer)).update(
            {" ".join(name.split()): _plain(v) for name, v in values.items()}
        )
        self._drain(trainer)

    def on_exception(self, trainer: Any, exception: BaseException) -> None:
        self.status = "failed"
        if self.log_exception:
            said = " ".join(f"{type(exception).__name__}: {message(exception)}".split())
            self._row(trainer, self._now(trainer))["exception"] = said
        self._end(trainer)

    def on_stop(self, trainer: Any, reason: str) -> None:
        self.status = "interrupted" if reason in signal.Signals.__members__ else "finished"
        self._end(trainer)

    def on_train_end(self, trainer: Any) -> None:
        if self.status == "running":
            self.status = "finished"
        self._end(trainer)

    def replayed(self, replay: Any) -> None:
        self._end(replay)

    # -- where the run is ----------------------------------------------------------------------------------

    def _now(self, trainer: Any) -> int:
        """Return the step that was done last."""
        state = trainer.trainer_state
        return int(state.optimizer_steps if self.step_on == "update" else state.global_forward_batches)

    def _here(self, trainer: Any) -> int:
        """Return the step in work or, between two steps, the last one."""
        state = trainer.trainer_state
        in_work = state.state == "step" or (self.step_on == "update" and state.accumulated > 0)
        return self._now(trainer) + in_work

    def _row(self, trainer: Any, step: int) -> dict[str, Any]:
        self._changed = True
        row = self._rows.get(step)
        if row is None:
            row = self._rows[step] = {"epoch": trainer.trainer_state.cur_epoch_idx}
        return row

    # -- writing -------------------------------------------------------------------------------------------

    def _drain(self, trainer: Any) -> None:
        """Write the rows that can get no more values; once the run has ended, all."""
        if self.status != "running":
            self._end(trainer)
            return
        first, now = min(self._rows, default=None), self._now(trainer)
        if first is None or first >= now or self._attempts.resting():
            return
        waits_for = self._windows.waits_for()
        limit = now if waits_for is None else min(now, waits_for)
        for step in sorted(self._rows):
            if step >= limit or not (self._ready(trainer) and self._attempts.done(self.write, step, self._rows[step])):
                break
            self._written = step
            del self._rows[step]
        while len(self._rows) > _KEPT:
            del self._rows[min(self._rows)]

    def _end(self, trainer: Any) -> None:
        """Write what there is, though a run that goes on may yet add to it: then it is taken back and written again."""
        if self._refused or not (self._changed or self._open):
            return
        self._changed = False
        ready, now = self._ready(trainer), self._now(trainer)
        left = [step for step in sorted(self._rows) if self.takes_back or step <= now]
        while ready and left and self._attempts.done(self.write, left[0], self._rows[left[0]]):
            del left[0]
        if left:
            who = type(self).__name__
            warnings.warn(f"{who} couldn't write {len(left)} steps; a run that goes on tries again", stacklevel=3)
        self._open = False
        if ready:
            with _untouched(trainer):
                self._attempts.done(self.close)

    def _ready(self, trainer: Any) -> bool:
        """Open the log if it isn't; False if that failed."""
        if not self._open:
            self._refused = True  # it isn't begun a second time, to be refused again, when its own error ends the run
            self._open = self._attempts.done(self._begin, trainer)
            self._refused = False
            self._changed |= self._open
            self._written = -1 if self._written is None else self._written
        return self._open

    def _begin(self, trainer: Any) -> None:
        if self._monitor is None:
            self._watch(trainer)
        folder, run = self._folder(trainer), run_of(trainer) or self._run
        name = folder.name if trainer.run_dir is None else trainer.run_dir.name
        if self.on_fault == "raise":
            check_writable(folder, type(self).__name__)
        self.clock = getattr(trainer.world, "clock", self.clock)
        with _untouched(trainer):
            memory, new = claim(folder, run, name, anew=isinstance(trainer, Replay) and self._written is None)
            before = dict(memory)
            self.open(folder, memory)
            if memory != before:
                remember(folder, memory)
            self.purge(-1 if self._written is None else self._written)
            if new or self._written is None:
                self.describe(settings_of(trainer))

    def _folder(self, trainer: Any) -> Path:
        folder = self._given_folder
        if folder is None:
            folder = Path(trainer.run_dir) / "logs" / self.kind
        others = [c for c in trainer.listeners.callbacks.values() if isinstance(c, Logger) and c is not self]
        if any(type(c) is type(self) and c._given_folder == self._given_folder for c in others):
            raise CallerError(f"two {type(self).__name__}s write to {folder}: give one of them another folder")
        return folder

    # -- memory --------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        """Return what isn't written yet, once all that was written has left the process; {} before a run began."""
        if self._open:
            self._attempts.done(self.flush)
        if self._written is None and not self._rows:
            return {}
        return {
            "step_on": self.step_on,
            "written": self._written,
            "rows": [[step, dict(values)] for step, values in self._rows.items()],
            "windows": self._windows.state_dict(),
            "lr": list(self._lr),
            "best": None if self._monitor is None else self._monitor.best,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._written = state["written"]
        self._rows = {step: dict(values) for step, values in state["rows"]}
        self._windows.load_state_dict(state["windows"])
        self._lr = list(state["lr"])
        if self._monitor is not None:
            self._monitor.best = state["best"]

    def check_state_dict(self, trainer: Any, state: dict[str, Any], at: Any) -> None:
        if state["step_on"] != self.step_on:
            raise CallerError(
                f"this run's log counts steps on {state['step_on']!r}, so {type(self).__name__} can't go on with "
                f"step_on={self.step_on!r}"
            )


def _untouched(trainer: Any) -> Any:
    """Keep the generators as they are: what a library does when it is imported or begins is no affair of the run."""
    driver = getattr(trainer, "driver", None)  # a replay has none
    return nullcontext() if driver is None else driver.forked()


def _plain(value: Real) -> int | float:
    """Make a number one that a snapshot can hold: numpy's aren't."""
    return int(value) if isinstance(value, Integral) else float(value)


def needed(module: str, extra: str, why: str) -> CallerError:
    """Say that an optional library is missing, and how to get it."""
    return CallerError(f"{why} needs {module}, which isn't installed: pip install 'tachograph[{extra}]'")
