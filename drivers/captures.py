"""A copy of everything heavy that a driver holds: taken, written, read, held against it, put back.

Where many ranks hold one model, rank 0 writes it and its optimizers, and each rank what is its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from tachograph.states.errors import CallerError

from . import carrying, fingerprints, generators, hyperparameters, restoring, storage
from .driver import NO_BATCH, Driver
from .errors import RestoreFault
from .loaders import BatchSource
from .measuring import Losses
from .staging import Staging

NOT_WRITTEN = ("staging", "names")
"""Entries of a capture that its files don't hold."""


class Captures(Driver):
    """The part of `TorchDriver` that knows snapshots."""

    # what the other parts bring
    device: torch.device
    _scaler: Any
    _loader: Any
    _source: BatchSource | None
    _losses: Losses | None
    _built: dict[str, Any] | None

    _staging_of: type[Staging] = Staging
    _staging: Staging | None = None
    _to_restore: tuple[Any, dict[str, str]] | None = None
    _seed: int = 0

    def _as_built(self) -> dict[str, Any]:
        """Return the plain values of the optimizers and of the scaler, as they were before the first batch."""
        if self._built is None:
            scaler = {} if self._scaler is None else self._scaler.state_dict()
            self._built = {
                "optimizers": [hyperparameters.of_groups(o.param_groups) for o in self.optimizers],
                "scaler": {k: v for k, v in scaler.items() if not k.startswith("_")},
            }
        return self._built

    def capture(self, extra: Mapping[str, Any], batch: Any = NO_BATCH) -> dict[str, Any]:
        """Copy model, optimizers, scaler, generators, gradients and the batch in hand to the CPU's memory.

        Optimizer entries are numbered in their order. A batch that isn't plain data is left to be fetched again. Ranks
        but the first leave out what all have: the weights and the optimizers.
        """
        return self._captured(extra, batch, self.ranks.first)

    def _captured(self, extra: Mapping[str, Any], batch: Any, whole: bool) -> dict[str, Any]:
        staging, self._staging = self._staging_of(self._staging), None  # it comes back when this capture is written
        states = generators.capture()
        grads = {n: p.grad for n, p in self.model.named_parameters() if p.grad is not None}
        in_hand = batch is not NO_BATCH
        plain = in_hand and storage.is_plain(batch)
        if in_hand and not plain and self._source is None:
            raise CallerError(
                f"the batch in hand is saved with a snapshot: plain data and tensors only, but it is a "
                f"{type(batch).__name__} with something else in it, and no loader could fetch it again"
            )
        return {
            "staging": staging,
            "names": fingerprints.names_in(self.model, self.optimizers),
            "model": staging.copied("model", self.model.state_dict()) if whole else None,
            "optimizers": staging.copied("optimizers", [o.state_dict() for o in self.optimizers]) if whole else None,
            "buffers": None if whole else staging.copied("buffers", dict(self.model.named_buffers())),
            "world": self.ranks.world_size,
            "scaler": None if self._scaler is None else self._scaler.state_dict(),
            "built": self._as_built(),
            "evaluating": [name for name, module in self.model.named_modules() if not module.training],
            "gradients": staging.copied("gradients", grads),
            "generators": states,
            "loader": None if self._source is None else self._source.state(again=in_hand and not plain),
            "batch": storage.copied(batch) if plain else None,
            "batch_ids": storage.copied(self.batch_ids) if storage.is_plain(self.batch_ids) else None,
            "batch_samples": self.batch_samples,
            "has_batch": plain,
            "losses": [] if self._losses is None else self._losses.state(),
            "extra": staging.copied("extra", dict(extra)),
        }

    def save(self, capture: Any, directory: Path) -> dict[str, tuple[int, str]]:
        rest = {key: value for key, value in capture.items() if key not in ("model", *NOT_WRITTEN)}
        parts = {f"rank-{self.ranks.rank}.pt": rest}
        if capture["model"] is not None:
            parts = {"model.pt": capture["model"], **parts}
        try:
            files = {name: storage.write(part, directory / name) for name, part in parts.items()}
            return {**files, **fingerprints.write(capture, directory, self.ranks.rank)}
        finally:
            self._staging = capture["staging"]

    def size_of(self, capture: Any) -> int:
        return storage.bytes_in(capture)

    def what_is(self, path: Path) -> str:
        return restoring.what_is(path)

    def read(self, directory: Path, *, strict: bool = True) -> tuple[dict[str, Any], Any]:
        model, rest = self._parts(directory, strict)
        restoring.check_model(self.model, model)
        restoring.check_optimizers(self.optimizers, rest["optimizers"])
        built = self._as_built()["optimizers"]
        restoring.check_values(self.optimizers, rest["optimizers"], rest["built"]["optimizers"], built)
        restoring.check_scaler(self._scaler, rest["scaler"])
        if self._source is not None:
            self._source.check(rest["loader"])
        elif self._loader is None and rest["loader"] is not None:
            raise RestoreFault(
                "the snapshot holds the state of a training loader, and there is none: set_dataloader() comes first"
            )
        faults = {} if rest["new_rank"] else generators.faults(rest.get("generators"), self.device)
        if faults and strict:
            raise RestoreFault(
                f"{directory}/rank-{self.ranks.rank}.pt: {'; '.join(faults.values())}. Give another snapshot, or "
                "run(strict=False), which leaves these generators as they are"
            )
        states = rest.get("generators")
        held = {**rest, "generators": states if isinstance(states, dict) else {}, "faults": faults}
        return rest["extra"], (model, held)

    def _parts(self, directory: Path, strict: bool) -> tuple[Any, dict[str, Any]]:
        """Read the model's state dict, and what else this rank takes of a snapshot."""
        return restoring.part(directory, "model.pt"), carrying.read(directory, self.ranks, strict)

    def restore(self, held: Any, *, training: bool = True) -> Any:
        model, rest = held
        old, new = rest["built"], self._as_built()
        self.model.load_state_dict(model)
        for name, buffer in self.model.named_buffers():
            if name in rest["buffers"]:
                buffer.copy_(rest["buffers"][name])
        for i, (optimizer, state) in enumerate(zip(self.optimizers, rest["optimizers"], strict=True)):
            optimizer.load_state_dict(state)
            for group, was, now in zip(optimizer.param_groups, old["optimizers"][i], new["optimizers"][i], strict=True):
                hyperparameters.put(group, hyperparameters.merged(group, was, now) if training else now)
        if not training:
            return NO_BATCH
        if self._scaler is not None:
            self._scaler.load_state_dict(restoring.scaler_state(rest["scaler"], old["scaler"], new["scaler"]))
            self._scaler.scale(torch.zeros((), device=self.device))  # else it can't divide gradients it hasn't made
        for name, parameter in self.model.named_parameters():
            grad = rest["gradients"].get(name)
            parameter.grad = None if grad is None else grad.to(parameter.device)
        if self._losses is not None:
            self._losses.load(rest["losses"])
        evaluating = frozenset(rest["evaluating"])
        for name, module in self.model.named_modules():
            module.training = name not in evaluating
        if self._source is not None:
            self._source.load(rest["loader"])
        self._to_restore = None if rest["new_rank"] else rest["generators"], rest["faults"]
        self.batch_ids, self.batch_samples = rest["batch_ids"], rest["batch_samples"]
        return self.to_device(rest["batch"]) if rest["has_batch"] else NO_BATCH

    def restore_generators(self) -> str:
        if self._to_restore is None:
            return ""
        (states, faults), self._to_restore = self._to_restore, None
        if states is None:  # a rank that the saved run hadn't got
            generators.seed_all(generators.derive(self._seed, "rank", self.ranks.rank, "of", self.ranks.world_size))
            return ""
        generators.restore(states, but=faults)
        return "; ".join(faults.values())


__all__ = ["NOT_WRITTEN", "Captures"]
