"""Loggers, one file each: what a run measures, in files and on servers for people to look at.

What all of them share, and what a logger of one's own is made of, is `Logger`. Importing this package imports none.
"""

__all__: list[str] = []
