"""Standing in for a dataset of the user's: what is read or set on the stand-in is read or set on the dataset."""

from __future__ import annotations

from typing import Any


def set_own(stand_in: StandIn, **attributes: Any) -> None:
    """Set attributes that are the stand-in's alone."""
    for name, value in attributes.items():
        object.__setattr__(stand_in, name, value)


class StandIn:
    """Shows a dataset, `_dataset`, but for what a subclass does otherwise."""

    _dataset: Any

    def __len__(self) -> int:
        return len(self._dataset)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dataset, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._dataset, name, value)

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """The user's class: `isinstance(get_worker_info().dataset, ...)` is asked in `worker_init_fn`."""
        return type(self._dataset)


class ShowsState:
    """Shows the dataset's state too, where it has one: a loader looks for the methods on the class."""

    _dataset: Any

    def state_dict(self) -> Any:
        """Return the dataset's state."""
        return self._dataset.state_dict()

    def load_state_dict(self, state: Any) -> None:
        """Give the dataset its state."""
        self._dataset.load_state_dict(state)
