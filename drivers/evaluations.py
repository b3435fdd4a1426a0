"""What a driver of one device does in an evaluation."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from typing import Any

import torch

from . import generators, storage
from .calls import caller_of, method_of
from .driver import Driver
from .loaders import EvaluationSource, described
from .undisturbed import undisturbed

_LOOKUP = {"validate": ("validate_step", "test_step"), "test": ("test_step", "validate_step")}


class Evaluations(Driver):
    """The part of `TorchDriver` that evaluates, so that training doesn't notice."""

    # what the other parts bring
    device: torch.device
    _autocast: Callable[[], AbstractContextManager[Any]] | None
    _auto_call: bool
    _compile: dict[str, Any] | None
    _evaluated: dict[int, EvaluationSource]

    def describe(self, dataloader: Any) -> str:
        return described(dataloader, -1)

    def evaluation_batches(self, dataloader: Any) -> Generator[Any, None, None]:
        source = self._evaluated.setdefault(id(dataloader), EvaluationSource(dataloader))
        with closing(source.batches()) as batches:
            try:
                for batch in batches:
                    self.evaluation_ids = source.ids
                    yield batch
            except BaseException:
                self.evaluation_ids = source.ids
                raise

    def release(self, dataloader: Any) -> None:
        source = self._evaluated.pop(id(dataloader), None)
        if source is not None:
            source.close()

    def place(self, metric: Any) -> None:
        if callable(getattr(metric, "to", None)):
            metric.to(self.device)

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
