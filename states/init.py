"""*init*: everything is built and nothing has happened.

It leaves by `Started`: into the sanity check where one is asked for, straight to the end where there is
nothing to train, else into the first epoch.
"""

from __future__ import annotations

import attrs

from .event import Event
from .trainer_state import TrainerState


@attrs.frozen(kw_only=True)
class Started(Event):
    """The run began.

    Attributes:
        sanity_check: a sanity check is asked for.
    """

    sanity_check: bool = False


def nothing_to_train(state: TrainerState, event: Started) -> bool:
    """nothing to train"""
    return state.n_epochs == 0 or state.total_batches == 0


def sanity_check_asked_for(state: TrainerState, event: Started) -> bool:
    """a sanity check is asked for"""
    return event.sanity_check
