"""Loggers, one file each: what a run measures, in files and on servers for people to look at.

What all of them share, and what a logger of one's own is made of, is `Logger`. No backend's library is imported before
its logger is built.
"""

from .logger import Logger

__all__ = ["Logger"]
