"""What a driver of one device does in an evaluation."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from typing import Any

import numpy as np
import torch

from . import generators, storage
from .calls import batch_size, caller_of, method_of
from .driver import Driver
from .loaders import EvaluationSource, described
from .matching import as_mapping
from .metrics.syncing import joining, joins
from .share import Share
from .undisturbed import undisturbed

_LOOKUP = {"validate": ("validate_step", "test_step"), "test": ("test_step", "validate_step")}


class Evaluations(Driver):
    """The part of `TorchDriver` that evaluates, so that training doesn't notice."""

    # what the other parts bring
    device: torch.device
    _autocast: Callable[[], AbstractContextManager[Any]] | None
    _auto_call: bool
    _compile: dict[str, Any] | None
    _evaluated: dict[tuple[int, bool | None], EvaluationSource]

    def describe(self, dataloader: Any) -> str:
        return described(dataloader, -1)

    def evaluation_batches(self, dataloader: Any) -> Generator[Any, None, None]:
        return self.share_of(dataloader).batches()

    def share_of(self, dataloader: Any, share: bool | None = None, every: bool = False) -> Share:
        source = self._evaluated_as(dataloader, self.eval_share if share is None else share)
        rounds = self.ranks.gather(source.rounds(every))
        return Share(
            batches=lambda: self._read(source, every),
            length=source.length(),
            rounds=None if None in rounds else max(rounds),
            is_apart=lambda: source.is_apart(every),
        )

    def _evaluated_as(self, dataloader: Any, share: bool | None) -> EvaluationSource:
        held = self._evaluated.get((id(dataloader), share))
        if held is None:
            held = self._evaluated[id(dataloader), share] = EvaluationSource(dataloader, self.ranks, share)
        return held

    def _read(self, source: EvaluationSource, every: bool) -> Generator[Any, None, None]:
        with closing(source.batches(every)) as batches:
            try:
                for batch in batches:
                    self.evaluation_ids = source.ids
                    yield batch
            except BaseException:
                self.evaluation_ids = source.ids
                raise

    def release(self, dataloader: Any) -> None:
        for key in [key for key in self._evaluated if key[0] == id(dataloader)]:
            self._evaluated.pop(key).close()

    def place(self, metric: Any) -> None:
        if callable(getattr(metric, "to", None)):
            metric.to(self.device)

    def joins(self, metric: Any) -> bool:
        return joins(metric)

    def joining(self, metric: Any, apart: bool) -> AbstractContextManager[Any]:
        return joining(metric, self.all_gather if apart else None)

    def mean_of(self, value: Any) -> Any:
        if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "biuf":
            value = torch.as_tensor(value)
        if not isinstance(value, torch.Tensor):
            return super().mean_of(value)
        if value.is_complex():
            return None
        exact = torch.float32 if value.device.type == "mps" else torch.float64  # which that device hasn't got
        return value.detach().to(exact).mean()

    def samples_of(self, batch: Any, whole: bool) -> int:
        if whole and self.evaluation_ids is not None:
            return len(self.evaluation_ids)
        return batch_size(as_mapping(batch) or batch)

    def to_host(self, outputs: Any) -> Any:
        return storage.copied(outputs)

    def forked(self) -> AbstractContextManager[Any]:
        return generators.forked()

    @contextmanager
    def evaluating(self, model: Any, eval_mode: bool = True) -> Iterator[None]:
        first = next(model.parameters(), None)
        if first is not None and first.device != self.device:  # no run has moved it yet
            model.to(self.device)
        with undisturbed(model, eval_mode), torch.no_grad(), self._autocast() if self._autocast else nullcontext():
            yield

    def evaluate_fn(self, model: Any, mode: str) -> Callable[[Any], Any]:
        if mode in _LOOKUP:
            first, second = _LOOKUP[mode]
            name = first if hasattr(model, first) else second if hasattr(model, second) else None
            if name == second:
                warnings.warn(f"{type(model).__name__} has no {first}: {second} is used instead", stacklevel=2)
        else:
            name = method_of(model, mode, "evaluate_fn")
        return caller_of(model, name, self._auto_call, self._compile)


__all__ = ["Evaluations"]
