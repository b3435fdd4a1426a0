"""`Progress`: shows a person where the run is, in a terminal or as plain lines.

It reads counters and the loss that the record holds anyway, never a device. It has no thread of its own: rich's
refresh thread and its capture of stdout stay off, since a live display deadlocks workers that are forked under it.
"""

from __future__ import annotations

import random
import sys
import time
from typing import IO, Any

from tachograph.states.errors import CallerError

from .callback import Callback

_EVERY = 0.2  # seconds between two updates of a live line
_MODES = ("auto", "rich", "plain")


class Progress(Callback):
    """Shows epoch, batch, loss, rate and results.

    Args:
        mode: "rich": one live line; "plain": a line at each validation, each epoch's end and about every
            `print_every` seconds; "auto": rich in a terminal or a notebook, else plain without the timed lines.
        print_every: seconds between two plain lines within an epoch.
        file: where to write; None means stderr.

    Raises:
        CallerError: the mode isn't known.
    """

    def __init__(self, mode: str = "auto", print_every: float = 10.0, file: IO[str] | None = None) -> None:
        if mode not in _MODES:
            raise CallerError(f"progress must be one of {', '.join(_MODES)} or None, not {mode!r}")
        self._file = file
        self._live: Any = None
        self._loss: float | None = None
        self._print_every = print_every
        self._began = self._shown = 0.0
        self._first = 0
        terminal = (file or sys.stderr).isatty()
        self.mode = mode if mode != "auto" else "rich" if terminal else "plain"
        if self.mode == "rich" or mode == "plain":
            self.on_train_batch_end = self._batch_end  # type: ignore[method-assign]

    # -- what is heard -------------------------------------------------------------------------------------

    def on_train_begin(self, trainer: Any) -> None:
        self._begin(trainer)

    def on_after_resume(self, trainer: Any, report: Any) -> None:
        self._begin(trainer)

    def on_continue(self, trainer: Any) -> None:
        self._begin(trainer)

    def _batch_end(self, trainer: Any) -> None:
        now = time.monotonic()
        if now - self._shown >= (_EVERY if self.mode == "rich" else self._print_every):
            self._shown = now
            self._show(self._line(trainer))

    def on_validate_end(self, trainer: Any, results: dict[str, Any]) -> None:
        state = trainer.trainer_state
        shown = "  ".join(f"{key} {_number(value)}" for key, value in results.items() if not key.startswith("_"))
        self._print(f"validation {state.validations} after batch {state.global_forward_batches:,}: {shown}")

    def on_train_epoch_end(self, trainer: Any) -> None:
        self._print(f"{self._line(trainer)}  done")

    def on_stop(self, trainer: Any, reason: str) -> None:
        self._print(f"stopped: {reason}")

    def on_exception(self, trainer: Any, exception: BaseException) -> None:
        self._print(f"failed after batch {trainer.trainer_state.global_forward_batches:,}: {type(exception).__name__}")

    def on_notice(self, trainer: Any, text: str) -> None:
        self._print(text)

    def on_train_end(self, trainer: Any) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    # -- what is shown -------------------------------------------------------------------------------------

    def _begin(self, trainer: Any) -> None:
        self._began = self._shown = time.monotonic()
        self._first = trainer.trainer_state.global_forward_batches

    def _line(self, trainer: Any) -> str:
        state = trainer.trainer_state
        done = state.global_forward_batches - self._first
        spent = time.monotonic() - self._began
        rate = done / spent if spent > 0 else 0.0
        of = f"/{state.num_batches_per_epoch}" if state.num_batches_per_epoch is not None else ""
        at_end = state.batch_idx_in_epoch == 0 and state.cur_epoch_idx > 0
        epoch, batch = (
            (state.cur_epoch_idx, "")
            if at_end
            else (state.cur_epoch_idx + 1, f"  batch {state.batch_idx_in_epoch}{of}")
        )
        epochs = f"/{state.n_epochs}" if state.n_epochs is not None else ""
        loss = "" if trainer.last_loss is None else f"  loss {_number(trainer.last_loss)}"
        return f"epoch {epoch}{epochs}{batch}{loss}  {rate:.1f} batches/s{self._left(state, rate)}"

    @staticmethod
    def _left(state: Any, rate: float) -> str:
        if state.total_batches is None or rate <= 0 or state.global_forward_batches >= state.total_batches:
            return ""
        minutes, seconds = divmod(int((state.total_batches - state.global_forward_batches) / rate), 60)
        return f"  {minutes}:{seconds:02d} left"

    def _show(self, line: str) -> None:
        if self.mode != "rich":
            self._print(line)
            return
        if self._live is None:
            self._live = self._start()
        self._live.update(line, refresh=True)

    def _start(self) -> Any:
        before = random.getstate()
        from rich.console import Console
        from rich.live import Live

        random.setstate(
            before
        )  # importing rich draws from Python's generator, and when that happens is the clock's affair

        console = Console(file=self._file or sys.stderr)
        live = Live(
            "", console=console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False, transient=True
        )
        live.start()
        return live

    def _print(self, line: str) -> None:
        if self._live is not None:
            self._live.console.print(line, highlight=False, markup=False)
        else:
            print(line, file=self._file or sys.stderr, flush=True)


def _number(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
