"""Who touches the hardware: the protocol, the drivers, and everything that knows a tensor.

Importing this package imports no torch; `choose_driver` does when it builds a driver that needs it.
"""

from .choose import choose_driver
from .driver import NO_BATCH, Driver
from .errors import LossFault, MatchFault, RestoreFault
from .stub import StubDriver

__all__ = ["NO_BATCH", "Driver", "LossFault", "MatchFault", "RestoreFault", "StubDriver", "choose_driver"]
