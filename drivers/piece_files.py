"""The files of a snapshot of a sharded model, written and read through `torch.distributed.checkpoint`.

Each rank writes its own two: its pieces, in DCP's format, and an index of them. What is written, and by whom, follows
from the pieces alone, so that saving needs no exchange between ranks: it is done beside the run, where a collective
would meet those of training. Reading needs none either. DCP's planner then finds out which parts of which files make up
the share that a rank has now, however many wrote them.

DCP's own index is a pickle, and reading it could run anything. This one is plain data, like the rest of a snapshot. Its
errors for many ranks (`CheckpointException`, which is no `Exception`) come from its collectives, and aren't met here.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import attrs
import torch
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, SavePlan, TensorWriteData, WriteItem, WriteItemType
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

from . import storage
from .errors import RestoreFault
from .hashing import HashedFile
from .pieces import Piece, Share

Written = dict[str, tuple[int, str]]  # name -> (size, digest)


def write(pieces: Mapping[str, Piece], directory: Path, rank: int) -> Written:
    """Write a rank's pieces, fsynced: those that no other rank with the same ones writes.

    Args:
        pieces: by their paths.
        directory: of all ranks.
        rank: this one; its files have its number in their names.

    Returns:
        name -> (size in bytes, digest) of the files.

    Raises:
        OSError: the disk refused.
    """
    own = {path: piece for path, piece in pieces.items() if piece.first and (piece.values.numel() or 0 in piece.size)}
    files: Written = {}
    writer = FileSystemWriter(directory, sync_files=False, per_thread_copy_ahead=0)
    writer.fs = _Hashing(files)
    planner = _Saving(own)
    plans = [SavePlan([])] * rank + [planner.create_local_plan()]  # DCP numbers files by the place of a plan
    places = writer.write_data(writer.prepare_global_plan(plans)[rank], planner).value()
    index = {
        place.index.fqn: {
            "size": list(own[place.index.fqn].size),
            "dtype": own[place.index.fqn].values.dtype,
            "dim": own[place.index.fqn].dim,
            "offsets": list(own[place.index.fqn].offsets),
            "sizes": list(own[place.index.fqn].values.shape),
            "file": place.storage_data.relative_path,
            "at": [place.storage_data.offset, place.storage_data.length],
        }
        for place in places
    }
    name = index_of(rank)
    files[name] = storage.write(index, directory / name)
    return files


def index_of(rank: int) -> str:
    """Name the file that says where the pieces of a rank are."""
    return f"pieces-{rank}.pt"


def read(directory: Path, paths: Iterable[str], share: Share, ranks: int) -> dict[str, Piece]:
    """Read a share of tensors.

    Args:
        directory: a snapshot.
        paths: whose.
        share: which one; `Share()` reads them whole.
        ranks: how many wrote the snapshot.

    Raises:
        RestoreFault: one isn't there, or not all of it.
        OSError: a file can't be read.
    """
    index = _Index(directory, ranks)
    pieces = {path: index.room_for(path, share) for path in paths}
    reader = FileSystemReader(directory)
    reader.set_up_storage_reader(Metadata(dict(index.held), storage_data=index.places), True)
    planner = _Loading(pieces, index.held)
    try:
        reader.read_data(planner.create_local_plan(), planner).wait()
    except (RuntimeError, AssertionError, LookupError, ValueError, TypeError, EOFError) as error:
        raise RestoreFault(f"the pieces in {directory} aren't what their index says: {error}") from error
    return pieces


@attrs.frozen
class _Place:
    """Where a piece lies, as DCP's reader asks for it."""

    relative_path: str
    offset: int
    length: int
    transform_descriptors: tuple[str, ...] = ()


class _Index:
    """What all ranks wrote, in DCP's words."""

    def __init__(self, directory: Path, ranks: int) -> None:
        self._directory = directory
        self._dims: dict[str, int | None] = {}
        self.held: dict[str, TensorStorageMetadata] = {}
        self.places: dict[MetadataIndex, _Place] = {}
        for rank in range(ranks):
            for name, told in storage.read(self._file(index_of(rank))).items():
                self._add(name, told)
        for file in {place.relative_path for place in self.places.values()}:
            self._file(file)

    def _file(self, name: str) -> Path:
        if not (self._directory / name).is_file():
            raise RestoreFault(f"{self._directory} has no {name}: a rank's part of it is missing")
        return self._directory / name

    def _add(self, name: str, told: dict[str, Any]) -> None:
        held = self.held.setdefault(
            name, TensorStorageMetadata(TensorProperties(dtype=told["dtype"]), torch.Size(told["size"]), [])
        )
        held.chunks.append(ChunkStorageMetadata(torch.Size(told["offsets"]), torch.Size(told["sizes"])))
        self.places[MetadataIndex(name, told["offsets"])] = _Place(told["file"], *told["at"])
        self._dims[name] = told["dim"]

    def room_for(self, path: str, share: Share) -> Piece:
        held = self.held.get(path)
        if held is None:
            raise RestoreFault(f"{self._directory} speaks of '{path}', and no rank wrote a piece of it")
        there, whole = sum(chunk.sizes.numel() for chunk in held.chunks), held.size.numel()
        if there != whole:
            raise RestoreFault(
                f"{self._directory} holds {there:,} of the {whole:,} values of '{path}': pieces of it are missing"
            )
        return Piece.empty(tuple(held.size), held.properties.dtype, self._dims[path], share)


class _Saving(DefaultSavePlanner):
    """Plans to write the pieces of one rank."""

    def __init__(self, pieces: Mapping[str, Piece]) -> None:
        super().__init__(flatten_state_dict=False)
        self._pieces = pieces

    def create_local_plan(self) -> SavePlan:
        return SavePlan([self._item(path, piece) for path, piece in self._pieces.items()])

    def lookup_object(self, index: MetadataIndex) -> Any:
        return self._pieces[index.fqn].values

    @staticmethod
    def _item(path: str, piece: Piece) -> WriteItem:
        chunk = ChunkStorageMetadata(torch.Size(piece.offsets), piece.values.shape)
        about = TensorProperties.create_from_tensor(piece.values)
        data = TensorWriteData(chunk=chunk, properties=about, size=torch.Size(piece.size))
        return WriteItem(index=MetadataIndex(path, piece.offsets), type=WriteItemType.SHARD, tensor_data=data)


class _Loading(DefaultLoadPlanner):
    """Plans to read a share of each tensor out of the pieces that there are."""

    def __init__(self, pieces: Mapping[str, Piece], held: Mapping[str, TensorStorageMetadata]) -> None:
        super().__init__(flatten_state_dict=False)
        self._pieces = pieces
        self._held = held

    def create_local_plan(self) -> LoadPlan:
        items = []
        for path, piece in self._pieces.items():
            if piece.values.numel():
                wanted = ChunkStorageMetadata(torch.Size(piece.offsets), piece.values.shape)
                items += create_read_items_for_chunk_list(path, self._held[path], [wanted])
        return LoadPlan(items)

    def lookup_tensor(self, index: MetadataIndex) -> torch.Tensor:
        return self._pieces[index.fqn].values


class _Hashing(FileSystem):
    """DCP's file system, whose new files are hashed as they are written."""

    def __init__(self, files: Written) -> None:
        self._files = files

    @contextmanager
    def create_stream(self, path: Any, mode: str) -> Iterator[io.IOBase]:
        with HashedFile(Path(path)) as file:
            yield _Stream(file)
        self._files[Path(path).name] = file.size, file.digest


class _Stream(io.RawIOBase):
    """A `HashedFile` as a stream that knows where it stands."""

    def __init__(self, file: HashedFile) -> None:
        self._file = file

    def write(self, data: Any) -> int:
        return self._file.write(data)

    def tell(self) -> int:
        return self._file.size


__all__ = ["index_of", "read", "write"]
