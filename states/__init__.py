"""What a run is: its states, its events, one table, and the value that says where it stands.

Pure: nothing on this floor touches torch, files, the clock, randomness or the screen.
"""

from .done import Stopped
from .epoch_begin import EpochBegan
from .epoch_end import EpochEnded
from .errors import CallerError, IllegalEvent, MachineFault, StateFault, TachographError
from .event import Event, evolver, maker
from .exception import Failed
from .fetch import Exhausted, Fetched
from .init import Started
from .sanity_check import SanityChecked
from .step import Stepped
from .table import ANY, Machine, Row, training_machine, training_rows
from .trainer_state import TrainerState
from .validate import Validated, validation_put_off

__all__ = [
    "ANY",
    "CallerError",
    "EpochBegan",
    "EpochEnded",
    "Event",
    "Exhausted",
    "Failed",
    "Fetched",
    "IllegalEvent",
    "Machine",
    "MachineFault",
    "Row",
    "SanityChecked",
    "Started",
    "StateFault",
    "Stepped",
    "Stopped",
    "TachographError",
    "TrainerState",
    "Validated",
    "evolver",
    "maker",
    "training_machine",
    "training_rows",
    "validation_put_off",
]
