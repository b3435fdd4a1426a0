"""`Attempts`: what becomes of an error of a logger's backend: the run's own, or borne and tried again later."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from tachograph.engine.notes import message
from tachograph.states.errors import CallerError

_RAREST = 10  # powers of two


class Attempts:
    """Does things with a backend.

    Args:
        who: what warnings call the logger.
        borne: an error is warned of, once until something succeeds again; else it is raised.
        silent: nothing is done: another rank does it.
    """

    def __init__(self, who: str, borne: bool, silent: bool = False) -> None:
        self._who = who
        self._borne = borne
        self._silent = silent
        self._faults = self._rest = 0

    def done(self, act: Callable[..., Any], *given: Any) -> bool:
        """Do something; False if it failed and that is borne."""
        if self._silent:
            return True
        try:
            act(*given)
        except Exception as error:
            if not self._borne or isinstance(error, CallerError):
                raise
            if not self._faults:
                said = f"{type(error).__name__}: {message(error)}"
                warnings.warn(f"{self._who}: {said}. What it has to say is kept, and tried again later", stacklevel=4)
            self._faults += 1
            self._rest = 2 ** min(self._faults, _RAREST)
            return False
        self._faults = 0
        return True

    def resting(self) -> bool:
        """Count a step, and say whether it's too early to try again."""
        self._rest = max(self._rest - 1, 0)
        return self._rest > 0
