"""How long a loader says it is. No torch: training loaders and the evaluator's are asked alike."""

from __future__ import annotations

from typing import Any

from tachograph.states.errors import CallerError


def length_of(dataloader: Any) -> int | None:
    """Return how many batches a loader says it has; None where it doesn't know."""
    try:
        return len(dataloader)
    except (TypeError, NotImplementedError):
        return None


def most_of(dataloader: Any, limit: int | float, name: str, loader_s_name: str, *, length: int | None = None) -> int:
    """Return a limit in batches: a fraction is one of the loader's length, and one batch at least.

    Args:
        dataloader: whose length.
        limit: a number of batches, -1 for all, or a fraction > 0.0 and <= 1.0.
        name: what messages call the limit.
        loader_s_name: what they call the loader.
        length: what is known of its length; None: what it says itself.

    Raises:
        CallerError: a fraction of a length that isn't known.
    """
    if not isinstance(limit, float):
        return limit
    length = length_of(dataloader) if length is None else length
    if length is None:
        raise CallerError(
            f"{name}={limit} is a fraction, and {loader_s_name}, a {type(dataloader).__name__}, doesn't know its "
            "length: give a number of batches"
        )
    return max(int(length * limit), 1)
