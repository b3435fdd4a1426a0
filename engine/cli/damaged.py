"""A damaged journal, said with the way to read it nevertheless."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tachograph.states import TachographError


@contextlib.contextmanager
def naming_the_way(way: str = "") -> Iterator[None]:
    """Run the body, and say of a journal that turns out to be damaged where it is.

    Args:
        way: what reads it nevertheless: "`command --salvage` passes over what is damaged".

    Raises:
        JournalError: instead of a `JournalCorrupt`.
    """
    try:
        yield
    except TachographError as error:
        from tachograph.engine.journal import JournalCorrupt, JournalError

        if not isinstance(error, JournalCorrupt):
            raise
        told = f"{error.file} is damaged at byte {error.offset:,}: {error.reason}"
        raise JournalError(f"{told}. {way}" if way else told) from error
