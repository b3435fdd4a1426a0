"""`JsonLines`: one object a line, for programs. NaN and infinities are strings, as in the journal."""

from __future__ import annotations

import attrs

from tachograph.engine.journal.codec import plain

from .display import Display
from .status import Said, Status
from .wording import to_json

_KEYS = tuple(a.name for a in attrs.fields(Status))


class JsonLines(Display):
    """Shows a run in JSON lines: `event`, all fields of `Status`, and the facts of the event."""

    name = "json"

    def say(self, said: Said) -> None:
        numbers = {key: getattr(said.status, key) for key in _KEYS}
        self.stream.line(to_json(plain({"event": said.event, **numbers, **said.facts})).decode())

    def close(self) -> None:
        self.stream.close()
