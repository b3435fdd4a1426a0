"""`Element`: a number of a metric that knows its beginning, and how those of several ranks become one."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch

from tachograph.states.errors import CallerError

Aggregate = str | Callable[[torch.Tensor], Any] | None

_OF_NUMBERS: dict[str, Callable[[Sequence[Any]], Any]] = {
    "sum": sum,
    "mean": lambda values: sum(values) / len(values),
    "max": max,
    "min": min,
}
_OF_TENSORS: dict[str, Callable[[torch.Tensor], Any]] = {
    "sum": lambda stacked: stacked.sum(0),
    "mean": lambda stacked: stacked.mean(0, dtype=None if stacked.is_floating_point() else torch.float64),
    "max": lambda stacked: stacked.amax(0),
    "min": lambda stacked: stacked.amin(0),
}


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, Element) else value


def _binary(operation: Callable[[Any, Any], Any]) -> Callable[[Element, Any], Any]:
    return lambda self, other: operation(self.value, _plain(other))


def _reflected(operation: Callable[[Any, Any], Any]) -> Callable[[Element, Any], Any]:
    return lambda self, other: operation(_plain(other), self.value)


def _in_place(operation: Callable[[Any, Any], Any]) -> Callable[[Element, Any], Element]:
    def change(self: Element, other: Any) -> Element:
        self.value = operation(self.value, _plain(other))
        return self

    return change


class Element:
    """Behaves as its value does: a number, or a tensor of any shape.

    Arithmetic gives plain values; `+=` and the like change the element. Nothing is read from a device before somebody
    asks for a number (`float(element)`, `get_scalar()`).

    Args:
        name: how messages call it.
        value: what it begins with, a number or a tensor.
        aggregate_method: how the values of several ranks become one: "sum", "mean", "max", "min", or a function of one
            tensor, the ranks' values stacked along a new first dimension. Ranks that had no batch are left out. None:
            they can't.

    Attributes:
        value: what it holds now.

    Raises:
        CallerError: the method isn't one of these.
    """

    def __init__(self, name: str, value: Any = 0, aggregate_method: Aggregate = "sum") -> None:
        if not callable(aggregate_method) and aggregate_method not in (*_OF_NUMBERS, None):
            raise CallerError(
                f"aggregate_method of element {name!r} must be one of {', '.join(map(repr, _OF_NUMBERS))}, a function "
                f"or None, not {aggregate_method!r}"
            )
        self.name = name
        self.value = value
        self._began = value
        self._method = aggregate_method

    def reset(self) -> None:
        """Begin anew."""
        self.value = self._began

    def joined(self, values: Sequence[Any]) -> Any:
        """Return what the values of all ranks come to.

        Raises:
            CallerError: it has no `aggregate_method`.
        """
        method = self._method
        if method is None:
            raise CallerError(
                f"element {self.name!r} can't be joined over ranks: register_element(..., aggregate_method=...)"
            )
        if not any(isinstance(value, torch.Tensor) for value in values):
            if not callable(method):
                return _OF_NUMBERS[method](values)
            held = method(torch.tensor(values))
            return held.item() if isinstance(held, torch.Tensor) and held.numel() == 1 else held
        first = next(value for value in values if isinstance(value, torch.Tensor))
        stacked = torch.stack([torch.as_tensor(value, device=first.device) for value in values])
        return (method if callable(method) else _OF_TENSORS[method])(stacked)

    def get_scalar(self) -> float | int | bool:
        """Return the number that it holds; a device is waited for."""
        return self.value.item() if hasattr(self.value, "item") else self.value  # type: ignore[no-any-return]

    def to_list(self) -> Any:
        """Return what it holds in lists; a number as it is."""
        return self.value.tolist() if hasattr(self.value, "tolist") else self.value

    def fill_value(self, value: Any) -> None:
        """Hold another value; a tensor is filled with it."""
        held = _plain(value)
        filled = isinstance(self.value, torch.Tensor) and not isinstance(held, torch.Tensor)
        self.value = torch.full_like(self.value, held) if filled else held

    def to(self, device: Any) -> Element:
        """Move a tensor; a number is everywhere."""
        for name in ("value", "_began"):
            if isinstance(getattr(self, name), torch.Tensor):
                setattr(self, name, getattr(self, name).to(device))
        return self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("value", "_began", "_method", "name"):
            raise AttributeError(name)
        return getattr(self.value, name)  # what a tensor can do

    def __repr__(self) -> str:
        return f"Element({self.name}={self.value!r})"

    def __float__(self) -> float:
        return float(self.value)

    def __int__(self) -> int:
        return int(self.value)

    def __index__(self) -> int:
        return operator.index(self.value)

    def __bool__(self) -> bool:
        return bool(self.value)

    def __len__(self) -> int:
        return len(self.value)

    def __getitem__(self, key: Any) -> Any:
        return self.value[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        if self.value is self._began:  # it must begin with the same values again
            self.value = self.value.clone()
        self.value[key] = _plain(value)

    def __round__(self, digits: int | None = None) -> Any:
        return round(self.get_scalar(), digits)

    def __neg__(self) -> Any:
        return -self.value

    def __abs__(self) -> Any:
        return abs(self.value)

    __hash__ = object.__hash__
    __add__, __radd__, __iadd__ = _binary(operator.add), _reflected(operator.add), _in_place(operator.add)
    __sub__, __rsub__, __isub__ = _binary(operator.sub), _reflected(operator.sub), _in_place(operator.sub)
    __mul__, __rmul__, __imul__ = _binary(operator.mul), _reflected(operator.mul), _in_place(operator.mul)
    __truediv__, __rtruediv__ = _binary(operator.truediv), _reflected(operator.truediv)
    __itruediv__ = _in_place(operator.truediv)
    __floordiv__, __rfloordiv__ = _binary(operator.floordiv), _reflected(operator.floordiv)
    __ifloordiv__ = _in_place(operator.floordiv)
    __mod__, __rmod__ = _binary(operator.mod), _reflected(operator.mod)
    __pow__, __rpow__, __ipow__ = _binary(operator.pow), _reflected(operator.pow), _in_place(operator.pow)
    __lt__, __le__ = _binary(operator.lt), _binary(operator.le)
    __gt__, __ge__ = _binary(operator.gt), _binary(operator.ge)
    __eq__ = _binary(operator.eq)  # type: ignore[assignment]
    __ne__ = _binary(operator.ne)  # type: ignore[assignment]
