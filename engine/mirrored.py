"""`Mirrored`: a field of the committed state, read and set as an attribute of the trainer."""

from __future__ import annotations

from typing import Any, Generic, TypeVar, overload

import attrs

T = TypeVar("T")


class Mirrored(Generic[T]):
    """Stands for `trainer.trainer_state.<its name>`; setting it puts an evolved state in place."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name
        self.__doc__ = f"`trainer_state.{name}`."

    @overload
    def __get__(self, trainer: None, owner: type) -> Mirrored[T]: ...
    @overload
    def __get__(self, trainer: object, owner: type) -> T: ...
    def __get__(self, trainer: Any, owner: type) -> Mirrored[T] | T:
        if trainer is None:
            return self
        value: T = getattr(trainer.trainer_state, self._name)
        return value

    def __set__(self, trainer: Any, value: T) -> None:
        trainer.trainer_state = attrs.evolve(trainer.trainer_state, **{self._name: value})


__all__ = ["Mirrored"]
