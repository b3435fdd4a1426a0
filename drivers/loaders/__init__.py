"""Where training batches come from, and how an epoch is entered in its middle.

A loader with an index is asked for an order that is a pure function of (seed, epoch), from any position on, and loads
nothing before it. One with a state is given it. Anything else is read again up to the position. What data draws at
random is a function of (seed, epoch, place), so that it's the same wherever it is read. The user's objects are never
changed but by themselves.
"""

from .choosing import source_of
from .cloned import ClonedSource
from .describing import described, settings_of
from .direct import DirectSource
from .evaluated import EvaluationSource
from .order import Order, hash_ids
from .placed import PlacedSource
from .remembered import Spot, ids_asked, ids_remembered, knows
from .replayed import ListSource, ReplayedSource
from .source import BatchSource, check_loader
from .stateful import StatefulSource

__all__ = [
    "BatchSource",
    "ClonedSource",
    "DirectSource",
    "EvaluationSource",
    "ListSource",
    "Order",
    "PlacedSource",
    "ReplayedSource",
    "Spot",
    "StatefulSource",
    "check_loader",
    "described",
    "hash_ids",
    "ids_asked",
    "ids_remembered",
    "knows",
    "settings_of",
    "source_of",
]
