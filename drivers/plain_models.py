"""Reading a model's weights, all of them, from whatever holds them: a file, or a snapshot of a sharded model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from . import pieces, storage
from .restoring import part


def read_model(source: Any) -> Any:
    """Read a model's state dict onto the CPU.

    Args:
        source: a path, or an open file. A snapshot of a sharded model has no file of its own for the weights: they are
            put together where its `model.pt` would be.

    Raises:
        RestoreFault: it isn't a whole file of tensors and plain data, or a piece is missing.
        OSError: it can't be read.
    """
    if hasattr(source, "read") or Path(source).exists():
        return storage.read(source)
    folder = Path(source).parent
    if Path(source).name != "model.pt" or not (folder / "pieces-0.pt").is_file():
        return storage.read(source)
    from . import piece_files

    first = part(folder, "rank-0.pt")
    found = piece_files.read(folder, pieces.paths_in(first["model"]), pieces.Share(), first["world"])
    return pieces.put_in(first["model"], {path: piece.values for path, piece in found.items()})


def export(snapshot: Path, target: Path) -> int:
    """Write the weights in a snapshot, by whichever driver, as one file that any `load_model` takes.

    Returns:
        How many tensors there are.

    Raises:
        RestoreFault, OSError: as `read_model`; or it can't be written.
    """
    state = read_model(snapshot / "model.pt")
    storage.write_model(state, target)
    return len(state)


__all__ = ["export", "read_model"]
