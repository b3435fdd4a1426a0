"""`Metric`: the base of metrics whose numbers are joined over ranks.

A metric registers its numbers, adds to them in `update`, and computes with them in `get_metric`. When there are several
ranks, `get_metric` sees what they come to together, and each rank has its own numbers again afterwards. What gathers
them is the driver's, and comes from the evaluator through `gather_with`.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from tachograph.states.errors import CallerError

from .element import Aggregate, Element

_BACKENDS = ("auto", "torch", None)


def _alone(value: Any) -> list[Any]:
    return [value]


class Metric:
    """Counts something over batches.

    Subclass it: `__init__` calls `super().__init__()` and registers elements, `update` takes what it names from the
    batch and the outputs, `get_metric` returns a number or a dict of them. Elements are reset by themselves; override
    `reset` for what else there is.

    Args:
        backend: "auto", "torch" or None, which mean the same here.
        aggregate_when_get_metric: join the elements of all ranks in `get_metric`; None: where the ranks share the data.

    Raises:
        CallerError: it is another backend.
    """

    def __init__(self, backend: str | None = "auto", aggregate_when_get_metric: bool | None = None) -> None:
        if backend not in _BACKENDS:
            raise CallerError(f"backend must be one of 'auto', 'torch' or None, not {backend!r}")
        self.aggregate_when_get_metric = aggregate_when_get_metric
        self._elements: dict[str, Element] = {}
        self._updated = False
        self._inside = 0  # calls of get_metric that are under way: one may call another's
        self._gather: Callable[[Any], list[Any]] = _alone
        self._distributed = False
        self._gathered = self._warned = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name, wrap in (("update", _noting), ("get_metric", _joining), ("reset", _resetting)):
            own = vars(cls).get(name)
            if own is not None:
                setattr(cls, name, wrap(own))

    # -- for subclasses ------------------------------------------------------------------------------------

    def register_element(
        self, name: str, value: Any = 0, aggregate_method: Aggregate = "sum", backend: str | None = "auto"
    ) -> Element:
        """Register a number, to be used as `self.<name>` from then on.

        Args:
            name: what it is called.
            value: what it begins with: a number, or a tensor.
            aggregate_method: how the values of several ranks become one; see `Element`.
            backend: as the metric's.

        Raises:
            CallerError: the name is taken or no identifier, or an argument can't be used.
        """
        if not name.isidentifier() or hasattr(self, name):
            raise CallerError(f"{type(self).__name__} can't have an element {name!r}: the name is taken or none")
        if backend not in _BACKENDS:
            raise CallerError(f"backend must be one of 'auto', 'torch' or None, not {backend!r}")
        element = self._elements[name] = Element(name, value, aggregate_method)
        return element

    @property
    def elements(self) -> dict[str, Element]:
        """All that were registered, by their names."""
        return self._elements

    def update(self, *args: Any, **kwargs: Any) -> Any:
        """Count a batch; parameters are filled by name."""
        raise NotImplementedError(f"{type(self).__name__} must have update()")

    def get_metric(self) -> Any:
        """Compute what was counted: a number, or a dict name -> number."""
        raise NotImplementedError(f"{type(self).__name__} must have get_metric()")

    def reset(self) -> None:
        """Forget what was counted; elements are reset before this is called."""
        for element in self._elements.values():
            element.reset()
        self._updated = False

    def all_gather_object(self, value: Any) -> list[Any]:
        """Return what every rank holds, in their order, for what is no element; alone: `[value]`."""
        self._gathered = True
        return self._gather(value) if self._joins else [value]

    @staticmethod
    def tensor2numpy(value: Any) -> np.ndarray[Any, Any]:
        """Return a tensor, an array or a list as an array of numpy; a device is waited for."""
        return value.detach().cpu().numpy() if isinstance(value, torch.Tensor) else np.asarray(value)

    # -- for an evaluator ----------------------------------------------------------------------------------

    def gather_with(self, gather: Callable[[Any], list[Any]], distributed: bool) -> None:
        """Take what gathers values over ranks.

        Args:
            gather: gives every rank's value, in their order.
            distributed: the ranks share the data between them, so that each sees a part of it.
        """
        self._gather, self._distributed = gather, distributed
        if distributed and self.aggregate_when_get_metric is False and not self._warned:
            self._warned = True
            warnings.warn(
                f"{type(self).__name__} has aggregate_when_get_metric=False, and each rank sees a part of the data: "
                "its result is that of a part",
                stacklevel=2,
            )

    def to(self, device: Any) -> Metric:
        """Move the elements that are tensors."""
        for element in self._elements.values():
            element.to(device)
        return self

    @property
    def _joins(self) -> bool:
        asked = self.aggregate_when_get_metric
        return self._distributed if asked is None else asked

    @contextmanager
    def _joined(self) -> Iterator[None]:
        """Run the body with every element holding what all ranks come to, and put back what it held."""
        if self._inside or not self._joins:
            self._check_updated(self._updated)
            yield
            return
        local = {name: element.value for name, element in self._elements.items()}
        self._gathered = False
        try:
            ranks = [held for updated, held in self._gather((self._updated, local)) if updated]
            self._check_updated(bool(ranks))
            for name, element in self._elements.items():
                element.value = element.joined([held[name] for held in ranks])
            yield
        finally:
            for name, element in self._elements.items():
                element.value = local[name]
        if self._distributed and not local and not self._gathered and not self._warned:
            self._warned = True
            warnings.warn(
                f"{type(self).__name__} has no elements and doesn't call all_gather_object(): its result is that of "
                "the part that this rank saw",
                stacklevel=3,
            )

    def _check_updated(self, updated: bool) -> None:
        if not updated:
            raise CallerError(f"{type(self).__name__}.get_metric() comes after update(), which wasn't called")

    # -- elements as attributes ----------------------------------------------------------------------------

    def __getattr__(self, name: str) -> Any:
        elements = self.__dict__.get("_elements", {})
        if name in elements:
            return elements[name]
        hint = "" if "_elements" in self.__dict__ else ": call super().__init__() first"
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}{hint}")

    def __setattr__(self, name: str, value: Any) -> None:
        element = self.__dict__.get("_elements", {}).get(name)
        if element is None:
            object.__setattr__(self, name, value)
        elif value is not element:  # `self.total = self.total + 1` changes the element, as += does
            element.value = value.value if isinstance(value, Element) else value


def _noting(update: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(update)
    def noted(self: Metric, *args: Any, **kwargs: Any) -> Any:
        self._updated = True
        return update(self, *args, **kwargs)

    return noted


def _joining(get_metric: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(get_metric)
    def joined(self: Metric, *args: Any, **kwargs: Any) -> Any:
        with self._joined():
            self._inside += 1
            try:
                return get_metric(self, *args, **kwargs)
            finally:
                self._inside -= 1

    return joined


def _resetting(reset: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(reset)
    def both(self: Metric, *args: Any, **kwargs: Any) -> Any:
        Metric.reset(self)
        return reset(self, *args, **kwargs)

    return both
