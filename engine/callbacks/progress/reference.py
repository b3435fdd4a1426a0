"""The reference trainer's names: each is `Progress` in one mode, with its arguments in its order."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from tachograph.engine.callbacks.monitor import Monitor

from .progress import Progress

ProgressCallback = Progress
"""The base of the others; one of these among the callbacks wins over `progress_bar`."""


class _InOneMode(Progress):
    """Progress in one mode.

    Args:
        print_every: batches between two that are shown; see `Progress`.
        loss_round_ndigit: digits of the loss behind the point.
        monitor: which result says what is better; None takes the trainer's.
        larger_better: a larger value is the better one; None takes the trainer's.
        format_json: write results as JSON.
        file: where to write.
    """

    _mode = "auto"

    def __init__(
        self,
        print_every: int | str | None = 1,
        loss_round_ndigit: int = 6,
        monitor: Monitor | str | Callable[[dict[str, Any]], Any] | None = None,
        larger_better: bool | None = None,
        format_json: bool = True,
        *,
        file: IO[str] | str | Path | None = None,
    ) -> None:
        super().__init__(self._mode, print_every, loss_round_ndigit, monitor, larger_better, format_json, file=file)


class RichCallback(_InOneMode):
    """`Progress("rich")`, with the reference trainer's arguments."""

    _mode = "rich"


class RawTextCallback(_InOneMode):
    """`Progress("plain")`, with the reference trainer's arguments: a line for every `print_every` batches."""

    _mode = "plain"


class TqdmCallback(_InOneMode):
    """`Progress("tqdm")`, with the reference trainer's arguments."""

    _mode = "tqdm"
