"""`TensorBoardLogger`: event files for TensorBoard, written by its own package, without torch."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import Any

from tachograph.engine.journal import Files

from .appending import append
from .logger import Logger


class TensorBoardLogger(Logger):
    """Writes event files: a scalar for each name, with 32 bits as TensorBoard has it; texts and settings as texts.

    Each life of a run writes a file of its own, which begins by telling TensorBoard from where on the files before it
    are superseded. A row is handed to the system as soon as its step is over; there's no thread.

    Args:
        monitor, larger_better, log_exception, log_loss_every: as of `Logger`, as are all others.

    Raises:
        CallerError: tensorboard isn't installed (`pip install 'tachograph[tensorboard]'`), or as `Logger` says.
    """

    kind = needs = "tensorboard"
    _file: Any = None

    def open(self, folder: Path, memory: dict[str, Any]) -> None:
        from tensorboard.compat.proto import event_pb2, summary_pb2, tensor_pb2, tensor_shape_pb2
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event, self._summary = event_pb2, summary_pb2
        self._tensor, self._shape = tensor_pb2, tensor_shape_pb2
        earlier = sorted(path.name for path in folder.glob("events.out.tfevents.*"))
        began = int(time.time())
        if earlier:  # TensorBoard reads them in the order of their names
            began = max(began, int(earlier[-1].split(".")[3]) + 1)
        name = f"events.out.tfevents.{began:010d}.{socket.gethostname()}.{os.getpid()}"
        self._file = RecordWriter(_File(folder / name))
        self._put(file_version="brain.Event:2")

    def purge(self, after: int) -> None:
        """Tell TensorBoard from where on it is to forget what it read; so does the first file, or none is heeded."""
        self._put(step=after + 1, session_log=self._event.SessionLog(status=self._event.SessionLog.START))

    def describe(self, settings: dict[str, Any]) -> None:
        rows = [f"| {name} | {_cell(value)} |" for name, value in settings.items()]
        text = "\n".join(["| setting | value |", "|---|---|", *rows])
        self._put(step=0, summary=self._summary.Summary(value=[self._value("settings", text)]))

    def write(self, step: int, values: dict[str, Any]) -> None:
        held = [self._value(name, value) for name, value in values.items()]
        self._put(step=step, summary=self._summary.Summary(value=held))

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _put(self, **what: Any) -> None:
        self._file.write(self._event.Event(wall_time=self.clock(), **what).SerializeToString())

    def _value(self, name: str, value: Any) -> Any:
        if not isinstance(value, str):
            return self._summary.Summary.Value(tag=name, simple_value=value)
        shape = self._shape.TensorShapeProto(dim=[self._shape.TensorShapeProto.Dim(size=1)])
        tensor = self._tensor.TensorProto(dtype="DT_STRING", string_val=[value.encode()], tensor_shape=shape)
        kind = self._summary.SummaryMetadata.PluginData(plugin_name="text")
        metadata = self._summary.SummaryMetadata(plugin_data=kind)
        return self._summary.Summary.Value(tag=name, tensor=tensor, metadata=metadata)


class _File:
    """A file as the record writer wants it, to which each record goes as a whole."""

    def __init__(self, path: Path) -> None:
        self._fd = Files().open_append(path)

    def write(self, data: bytes) -> None:
        append(self._fd, data)

    def close(self) -> None:
        os.close(self._fd)


def _cell(value: Any) -> str:
    return str(value).replace("|", "\\|").replace("\n", " ")
