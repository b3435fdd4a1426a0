"""*validate*: the evaluator runs over the validation loaders, and training doesn't notice."""

from __future__ import annotations

from typing import Any

import attrs

from .event import Event, evolver
from .trainer_state import TrainerState

_validated = evolver(TrainerState, "validations", "results", "validate_due")


@attrs.frozen(kw_only=True)
class Validated(Event):
    """A validation is done.

    Attributes:
        results: `indicator#metric#loader` -> value, as the evaluator returned them. NaN stays NaN.
    """

    results: dict[str, Any] = attrs.field(factory=dict)

    def fold(self, state: TrainerState, dest: str) -> TrainerState:
        return _validated(state, dest, state.validations + 1, self.results, False)


def epoch_is_exhausted(state: TrainerState, event: Validated) -> bool:
    """the epoch is exhausted"""
    return state.epoch_exhausted


def validation_put_off(state: TrainerState, event: Event) -> bool:
    """a validation was put off"""
    return state.validate_due
