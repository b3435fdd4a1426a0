"""One page about one run, or about several side by side: a file that needs nothing beside it."""

from .page import Written, report

__all__ = ["Written", "report"]
