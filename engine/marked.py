"""`Trainer.on`: on the class a decorator for trainers still to be built, on an instance a subscription at once."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Protocol, TypeVar, overload

from tachograph.states import training_machine
from tachograph.states.errors import CallerError

from .engine import Engine
from .listeners import Handle, Listeners

Fn = TypeVar("Fn", bound=Callable[..., Any])

ALL = "all"
_marked: dict[str | None, list[tuple[Any, Callable[..., Any]]]] = {}


class Mark(Protocol):
    """`Trainer.on`, for type checkers."""

    def __call__(self, target: Any, marker: str | None = None) -> Callable[[Fn], Fn]:
        """Subscribe in trainers that are built later."""


class Subscribe(Protocol):
    """`trainer.on`, for type checkers."""

    @overload
    def __call__(self, target: Any, fn: None = None, *, priority: int = 0) -> Callable[[Fn], Fn]: ...
    @overload
    def __call__(self, target: Any, fn: Callable[..., Any], *, priority: int = 0) -> Handle: ...


class OnDescriptor:
    """Gives `Trainer.on` its two meanings."""

    @overload
    def __get__(self, instance: None, owner: type) -> Mark: ...
    @overload
    def __get__(self, instance: object, owner: type) -> Subscribe: ...
    def __get__(self, instance: Any, owner: type) -> Any:
        return mark if instance is None else Engine.on.__get__(instance, owner)


def mark(target: Any, marker: str | None = None) -> Callable[[Fn], Fn]:
    """Subscribe the decorated function in trainers that are built later.

    Args:
        target: what `Engine.on` takes.
        marker: None: in the next trainer; "all": in every later one; another string: in those with this `marker`.

    Returns:
        A decorator that returns the function unchanged.

    Raises:
        CallerError: the target doesn't exist, or the function can't take what it gives; nothing was subscribed.
    """
    if callable(marker):
        raise CallerError(
            "Trainer.on is a decorator: @Trainer.on(event), or trainer.on(event, fn) on one that is built"
        )
    _check_marker(marker)

    def subscribe(fn: Fn) -> Fn:
        Listeners(training_machine()).add(target, fn)  # a trial, before it's kept
        _marked.setdefault(marker, []).append((target, fn))
        return fn

    return subscribe


def marked_for(marker: str | None) -> list[tuple[Any, Callable[..., Any]]]:
    """Return what belongs to a trainer with this marker.

    Raises:
        CallerError: a marker is a string.
    """
    _check_marker(marker)
    if marker is not None and marker not in _marked:
        warnings.warn(f"no function is marked {marker!r}", stacklevel=4)
    named = _marked.get(marker, []) if marker not in (None, ALL) else []
    return [*_marked.get(None, []), *_marked.get(ALL, []), *named]


def _check_marker(marker: Any) -> None:
    if marker is not None and type(marker) is not str:
        raise CallerError(f"marker must be a string or None, not {marker!r}")


def hand_out() -> None:
    """Forget the functions without a marker: they belong to one trainer, which is built now."""
    _marked.pop(None, None)
