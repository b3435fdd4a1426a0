"""TensorBoard: a folder of event files, with the curves of a run at the times when it measured them.

The steps count batches. Values are floats of 32 bits, as TensorBoard has them. Of several ranks each has a folder.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, BinaryIO

from tachograph.engine.journal import Record
from tachograph.states.errors import CallerError

from .curves import Curves, Point
from .source import Source

FOLDER = True


def write(source: Source, path: Path) -> int:
    """Write the folder; return how many transitions were read.

    Raises:
        CallerError: tensorboard isn't installed.
    """
    try:
        from tensorboard.compat.proto import event_pb2, summary_pb2  # noqa: F401
    except ImportError as error:
        raise CallerError(
            "the format 'tensorboard' needs tensorboard, which isn't installed: pip install 'tachograph[tensorboard]'"
        ) from error
    count, boards = 0, {}
    try:
        for rank in source.ranks:
            folder = path if len(source.ranks) == 1 else path / f"rank-{rank}"
            boards[rank] = _Board(folder, str(source.about["run"]))
        for record in source.records():
            boards[record.rank].take(record)
            count += 1
    finally:
        for board in boards.values():
            board.close()
    return count


class _Board:
    """The event file of one rank."""

    def __init__(self, folder: Path, run: str) -> None:
        self._folder, self._run = folder, run
        self._curves = Curves()
        self._file: BinaryIO | None = None
        self._out: Any = None

    def take(self, record: Record) -> None:
        if self._out is None:
            self._open(float(record.meta["time"]))
        for point in self._curves.points(record):
            self._put(point)

    def close(self) -> None:
        if self._file is not None:
            self._out.flush()
            self._file.close()

    def _open(self, time: float) -> None:
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event, self._summary = event_pb2.Event, summary_pb2.Summary
        self._folder.mkdir(exist_ok=True)
        self._file = open(self._folder / f"events.out.tfevents.{int(time):010d}.{self._run}", "xb")  # noqa: SIM115 # closed by close
        self._out = RecordWriter(self._file)
        self._out.write(self._event(wall_time=time, file_version="brain.Event:2").SerializeToString())

    def _put(self, point: Point) -> None:
        value = self._summary.Value(tag=_tag(point.name), simple_value=point.value)
        held = self._event(wall_time=point.time, step=point.step, summary=self._summary(value=[value]))
        self._out.write(held.SerializeToString())


def _tag(name: str) -> str:
    """Name a curve as `TensorBoardLogger` does."""
    return name if name.startswith("validate/") else f"train/{name.replace('/', '_')}"


__all__ = ["FOLDER", "write"]
