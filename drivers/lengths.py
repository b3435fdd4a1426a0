"""How long a loader says it is. No torch: training loaders and the evaluator's are asked alike."""

from __future__ import annotations

from typing import Any


def length_of(dataloader: Any) -> int | None:
    """Return how many batches a loader says it has; None where it doesn't know."""
    try:
        return len(dataloader)
    except (TypeError, NotImplementedError):
        return None
