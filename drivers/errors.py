"""The errors of this floor."""

from __future__ import annotations

from tachograph.states.errors import CallerError, TachographError


class LossFault(CallerError, KeyError, AttributeError):
    """A training step gave outputs without a usable loss; the message names what they hold."""

    def __str__(self) -> str:  # KeyError would print the repr
        return str(self.args[0])


class MatchFault(CallerError):
    """A function's parameters can't be filled from a batch; the message names function and parameter."""


class RestoreFault(TachographError):
    """A snapshot doesn't fit what it is to be restored into; the message names the entry or the owner."""


class SamplerFault(CallerError, RuntimeError):
    """A sampler was asked for what it can't do, or can't do now; the message says why and what to do."""
