"""*sanity_check*: a few validation batches before the first training batch, so that a mistake in the
validation code shows now and not after an epoch. Its results count for nothing.
"""

from __future__ import annotations

from typing import Any

import attrs

from .event import Event


@attrs.frozen(kw_only=True)
class SanityChecked(Event):
    """The sanity check ran through.

    Attributes:
        results: what the evaluator returned, by its flat names; kept in the record, not in the state.
    """

    results: dict[str, Any] = attrs.field(factory=dict)
