"""`trainer.state`: a place for the user's own values, saved with every snapshot."""

from __future__ import annotations

from typing import Any


class State(dict[str, Any]):
    """A dict whose keys can also be read and set as attributes. Plain data and tensors only, to be saved."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        try:
            value = self[name]
        except KeyError:
            raise AttributeError(f"state has no {name!r}") from None
        return State(value) if type(value) is dict else value

    def __setattr__(self, name: str, value: Any) -> None:
        self[name] = value
