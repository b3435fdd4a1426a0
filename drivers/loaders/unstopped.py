"""A user's function that is called while a loader is iterated over, and whose StopIteration isn't the data's end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Unstopped:
    """Stands in for a `collate_fn`: the same, but StopIteration is an error there, as any other.

    Args:
        collate: the user's; what is read on this object is read there.
    """

    def __init__(self, collate: Callable[[Any], Any]) -> None:
        self._collate = collate

    def __reduce__(self) -> Any:
        return Unstopped, (self._collate,)

    def __call__(self, samples: Any) -> Any:
        try:
            return self._collate(samples)
        except StopIteration as error:
            raise RuntimeError("collate_fn raised StopIteration") from error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._collate, name)
