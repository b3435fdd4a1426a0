"""`Averages`: what a driver keeps of a model's weights over many updates. This module imports no torch."""

from __future__ import annotations

import abc
from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any


class Averages(abc.ABC):
    """An exponential moving average of the weights that a driver trains."""

    @abc.abstractmethod
    def add(self, decay: float | None) -> None:
        """Take the weights of now into the average; the first ones are the average.

        Args:
            decay: what the average keeps of itself, from 0 to 1; None begins it anew.
        """

    @abc.abstractmethod
    def state(self) -> dict[str, Any]:
        """Return the average by the names of the weights, uncopied; {} before the first."""

    @abc.abstractmethod
    def load(self, state: Mapping[str, Any]) -> None:
        """Take over what `state` returned."""

    @abc.abstractmethod
    def fault(self, state: Mapping[str, Any]) -> str:
        """Say why a state can't be loaded; "" if it can."""

    @abc.abstractmethod
    def applied(self) -> AbstractContextManager[Any]:
        """Run the body with the averaged weights in the model, and put the trained ones back. It may be nested.

        Before the first average nothing is exchanged.
        """

    @property
    @abc.abstractmethod
    def are_applied(self) -> bool:
        """The averaged weights are in the model, or would be."""

    def leave(self) -> None:
        """Hear that training has ended, and that others may be put in the place of the weights that it leaves."""

    def take_up(self) -> None:
        """Hear that training goes on with the weights that are in the model, whichever these are."""

    @property
    def are_in_place(self) -> bool:
        """The weights in the model are those that the average is one of; False: others were put there since `leave`."""
        return True


__all__ = ["Averages"]
