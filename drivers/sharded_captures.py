"""Snapshots of a sharded model: each rank writes its shares, and reads those it has when the run goes on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from . import carrying, fingerprints, piece_files, pieces, restoring, storage
from .captures import NOT_WRITTEN
from .errors import RestoreFault
from .fsdp_api import DTensor, FSDPModule
from .many import ManyProcesses
from .pending import Pending
from .spread import local, piece_of, placed, share_of
from .staging import Staging


class _Staging(Staging):
    """Copies what this rank has of a tensor that is spread over ranks, and keeps it as a piece."""

    def _own(self, tensor: torch.Tensor) -> torch.Tensor:
        own: torch.Tensor = local(tensor)
        return own

    def _kept(self, tensor: torch.Tensor, copy: torch.Tensor) -> Any:
        return piece_of(tensor, copy) if isinstance(tensor, DTensor) else copy


class ShardedCaptures(ManyProcesses):
    """The part of `TorchFSDPDriver` that knows snapshots."""

    # what the other parts bring
    _mesh: Any
    _pending: Pending | None

    _units: Sequence[FSDPModule] = ()
    _staging_of = _Staging

    def _reshard(self) -> None:
        """Let go of whole parameters that are left of a forward pass without a backward pass."""
        for unit in self._units:
            unit.reshard()

    def _captured(self, extra: Mapping[str, Any], batch: Any, whole: bool) -> dict[str, Any]:
        """Copy what this rank holds, in each case: no other rank does."""
        assert self._pending is not None, "setup() comes first"
        self._reshard()
        held = super()._captured(extra, batch, True)
        return {**held, "pending": held["staging"].copied("pending", self._pending.named())}

    def save(self, capture: Any, directory: Path) -> dict[str, tuple[int, str]]:
        rest, own = pieces.taken_out({key: value for key, value in capture.items() if key not in NOT_WRITTEN})
        name = f"rank-{self.ranks.rank}.pt"
        try:
            files = piece_files.write(own, directory, self.ranks.rank)
            files[name] = storage.write(rest, directory / name)
            held = pieces.each({**capture, "staging": None}, lambda piece: piece.values)
            return {**files, **fingerprints.write(held, directory, self.ranks.rank)}
        finally:
            self._staging = capture["staging"]

    def size_of(self, capture: Any) -> int:
        rest, own = pieces.taken_out(capture)
        return storage.bytes_in(rest) + sum(piece.bytes for piece in own.values())

    def _parts(self, directory: Path, strict: bool) -> tuple[Any, dict[str, Any]]:
        first = restoring.part(directory, "rank-0.pt")
        if not isinstance(first, dict) or first.get("model") is None:
            raise RestoreFault(
                f"{directory} holds no sharded model: another driver than torch_fsdp took it. Go on with that one; "
                "trainer.load_model(snapshot) takes its weights"
            )
        rest = carrying.read(directory, self.ranks, strict, "pending")
        rest["model"] = rest["model"] if rest["world"] == self.ranks.world_size else first["model"]
        found = piece_files.read(directory, pieces.paths_in(rest), share_of(self._mesh), rest["world"])
        whole = pieces.put_in(rest, {path: self._placed(piece) for path, piece in found.items()})
        return whole.pop("model"), whole

    def _placed(self, piece: pieces.Piece) -> DTensor:
        return placed(piece, self._mesh, self.device)

    def restore(self, held: Any, *, training: bool = True) -> Any:
        assert self._pending is not None, "setup() comes first"
        self._reshard()
        model, rest = pieces.each(held, self._placed)
        batch = super().restore((model, rest), training=training)
        if training:
            self._pending.put(rest["pending"], self.device)
        return batch


__all__ = ["ShardedCaptures"]
