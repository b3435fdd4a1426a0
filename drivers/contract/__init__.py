"""The tests that every driver must pass, for the test suite of whoever writes one.

Subclass `DriverContract` in a file of tests, and say how a driver is built:

    class TestMyDriver(DriverContract):
        def make(self):
            return MyDriver(model()), loader(), None

pytest collects the tests that the class inherits; this package imports no pytest, so `failures` runs them without it,
in each of many processes for example.
"""

from __future__ import annotations

from .evaluating import EvaluatingContract
from .fingerprinting import FingerprintingContract
from .loading import LoadingContract
from .offers import OffersContract
from .snapshots import SnapshotsContract
from .subject import Subject
from .together import TogetherContract
from .training import TrainingContract


class DriverContract(
    LoadingContract,
    TrainingContract,
    EvaluatingContract,
    SnapshotsContract,
    FingerprintingContract,
    TogetherContract,
    OffersContract,
):
    """What a driver promises to an engine, as tests; see `Subject` for what may be overridden."""


__all__ = ["DriverContract", "Subject"]
