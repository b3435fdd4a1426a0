"""`Profiler`: has torch's profiler look at some batches of a run, and keeps what it saw as Chrome traces."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tachograph.states.errors import CallerError

from .callback import Callback

_PARTS = ("wait", "warmup", "active", "repeat")


class Profiler(Callback):
    """Steps torch's profiler once a training batch, and writes each finished trace into a file.

    A trace is `batch-<n>.json`, with the number of the last batch of the run that is in it; of many ranks each writes
    its own, `batch-<n>.rank-<r>.json`. Open it in chrome://tracing or in Perfetto. The schedule counts the batches of
    this process, so it begins anew at a resume. Whatever ends the run, a stop or an error, ends the profiler too, and
    what it has recorded till then is written. Training isn't changed by it, only slowed down while it records.

    Args:
        schedule: batches to leave out, to warm up, to record, and how often that is done (0: over and over); None
            records everything, into one trace.
        folder: where traces go; None: `<run_dir>/profiles`.
        activities: "cpu", "cuda" and so on; None: all there are.
        options: further keyword arguments of `torch.profiler.profile`: `record_shapes`, `profile_memory`, `with_stack`.

    Attributes:
        traces: the files that were written, in their order.

    Raises:
        CallerError: the schedule can't be used; or, when the trainer is built, an activity or an option can't, or there
            is neither a folder nor a run directory.
    """

    in_quick_pass = False

    def __init__(
        self,
        schedule: Sequence[int] | None = (1, 1, 3, 1),
        folder: str | Path | None = None,
        activities: Sequence[Any] | None = None,
        **options: Any,
    ) -> None:
        self.traces: list[Path] = []
        self._schedule = None if schedule is None else _checked(schedule)
        self._folder = None if folder is None else Path(folder)
        self._activities = activities
        self._options = options
        self._profiler: Any = None
        self._into = Path()
        self._batches = 0
        self._rank = ""  # in the names of traces

    def on_after_trainer_initialized(self, trainer: Any, driver: Any) -> None:
        if self._folder is None and trainer.run_dir is None:
            raise CallerError("Profiler needs a folder, since this trainer has no run_dir")
        self.traces, self._profiler, self._batches = [], None, 0
        self._rank = f".rank-{trainer.ranks.rank}" if trainer.ranks.world_size > 1 else ""
        driver.profiler(self._schedule, self._activities, self._file, self._options)  # refuses what it can't use

    def on_train_batch_begin(self, trainer: Any, batch: Any, indices: Any = None) -> None:
        if self._profiler is None:
            self._into = trainer.run_dir / "profiles" if self._folder is None else self._folder
            profiler = trainer.driver.profiler(self._schedule, self._activities, self._file, self._options)
            profiler.start()
            self._profiler = profiler

    def on_train_batch_end(self, trainer: Any) -> None:
        if self._profiler is not None:  # a run may be resumed between the two
            self._batches = trainer.global_forward_batches
            self._profiler.step()

    def on_train_end(self, trainer: Any) -> None:
        if self._profiler is not None:
            profiler, self._profiler = self._profiler, None
            self._batches = trainer.global_forward_batches
            profiler.stop()

    def _file(self) -> Path:
        self._into.mkdir(parents=True, exist_ok=True)
        path = self._into / f"batch-{self._batches:09d}{self._rank}.json"
        self.traces.append(path)
        return path


def _checked(schedule: Any) -> tuple[int, ...]:
    parts = tuple(schedule) if isinstance(schedule, (list, tuple)) else ()
    if len(parts) != len(_PARTS) or any(type(n) is not int or n < 0 for n in parts) or parts[2] < 1:
        raise CallerError(
            f"schedule must be ({', '.join(_PARTS)}), integers >= 0 with active >= 1, or None, not {schedule!r}"
        )
    return parts
