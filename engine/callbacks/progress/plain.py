"""`Plain`: a line at a time, for logs, pipes and everything that is no terminal."""

from __future__ import annotations

from .display import Display


class Plain(Display):
    """Shows a run in lines."""

    name = "plain"

    def close(self) -> None:
        self.stream.close()
