"""`SortedSampler`: the longest sample first."""

from __future__ import annotations

from typing import Any
from zlib import crc32

import numpy as np
import numpy.typing as npt

from tachograph.states.errors import CallerError

from .sampler import Order, ReproducibleSampler, size_of


class SortedSampler(ReproducibleSampler):
    """Hands out the samples from the longest to the shortest, those of equal length in their own order.

    Batches then hold samples of like length, and a batch that is too large for the memory shows at once.

    Args:
        dataset: anything with a length, or the length itself.
        length: one number a sample.

    Raises:
        CallerError: `length` isn't one number a sample.
    """

    def __init__(self, dataset: Any, length: Any) -> None:
        super().__init__(dataset)
        self.length = length
        self._lengths = lengths_of(length, size_of(dataset))
        self._digest = digest_of(self._lengths)

    def order(self, epoch: int) -> Order:
        return longest_first(self._lengths)

    def _fixed(self) -> dict[str, Any]:
        return {**super()._fixed(), "lengths": self._digest}


def lengths_of(length: Any, n: int) -> npt.NDArray[np.float64]:
    """Check the lengths of `n` samples, and return them as an array."""
    try:
        lengths = np.asarray(length)
    except (TypeError, ValueError):  # ragged lists
        lengths = np.asarray(None)
    if lengths.ndim != 1 or (lengths.dtype.kind not in "iuf" and n):
        hint = f"; for a column of texts: list(map(len, dataset[{length!r}]))" if isinstance(length, str) else ""
        raise CallerError(f"length must be a sequence of numbers, one a sample, not {type(length).__name__}{hint}")
    if len(lengths) != n:
        raise CallerError(f"length must hold one number for each of the {n} samples of the dataset, not {len(lengths)}")
    return lengths.astype(np.float64)


def longest_first(lengths: npt.NDArray[np.float64]) -> Order:
    """Return the samples from the longest to the shortest, those of equal length in their own order."""
    return np.argsort(-lengths, kind="stable")


def digest_of(lengths: npt.NDArray[np.float64]) -> int:
    """Hash lengths in their order: 32 bits."""
    return crc32(lengths.astype("<f8").tobytes())
