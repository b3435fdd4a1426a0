"""`Share`: what one rank reads of an evaluation loader. No torch, since the engine counts with it."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import attrs


@attrs.frozen(kw_only=True)
class Share:
    """One rank's part in an evaluation on a loader.

    Attributes:
        batches: makes the generator of this rank's batches, and sets the driver's `evaluation_ids` with each of them.
        length: batches of all ranks together; None where that isn't known.
        rounds: batches of the rank that has most of them, the same number on every rank; None where it isn't known.
        is_apart: says whether each rank has a part of the data. It may change while the first batch is read: only then
            is it known of a stream whether it shares its data by itself.
    """

    batches: Callable[[], Generator[Any, None, None]]
    length: int | None
    rounds: int | None
    is_apart: Callable[[], bool]


__all__ = ["Share"]
