"""What a driver asks for batches, and which reader is fit for a loader."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

from torch.utils.data import DataLoader

from tachograph.drivers.lengths import length_of
from tachograph.states.errors import CallerError

Tell = Callable[[str], None]


class BatchSource(Protocol):
    """What a driver asks for batches.

    Attributes:
        ids: the sample ids of the batch returned last; None where they aren't known.
        samples: how many samples the batches of all ranks hold in the step of that batch; None where the batch tells,
            since there's one process.
    """

    ids: list[Any] | None
    samples: int | None

    def length(self) -> int | None:
        """Return the batches of an epoch that is read from its beginning; None if that isn't known, or not yet.

        Over ranks it is the same on all of them, and all of them ask.
        """

    def open(self, epoch: int, done: int, samples: int | None = None) -> int | None:
        """Stand behind what was consumed of an epoch.

        Args:
            epoch: its number.
            done: batches consumed.
            samples: samples consumed; decides on the position where the data has an index and this is given.

        Returns:
            The batches of the epoch, those consumed included; None if unknown.

        Raises:
            RestoreFault: a state that was loaded can't be applied.
        """

    def next(self) -> Any:
        """Return the next batch, as the loader made it, or `NO_BATCH`."""

    def state(self, again: bool = False) -> Any:
        """Return what `load` needs beside the position, as tensors and plain data.

        Args:
            again: the last batch will be fetched once more, so the state must be that from before it.
        """

    def check(self, held: Any) -> None:
        """Hold a state against this source; nothing is changed.

        Raises:
            RestoreFault: it can't be loaded here.
        """

    def load(self, held: Any) -> None:
        """Take what `state` returned; it's applied by the next `open`, and used once."""

    def close(self) -> None:
        """Let go of iterators and workers; what `load` would need is kept."""


def has_state(part: Any) -> bool:
    """Say whether an object can save and load a state."""
    return all(callable(getattr(part, name, None)) for name in ("state_dict", "load_state_dict"))


def warned(text: str) -> None:
    """Tell a sentence as a warning."""
    warnings.warn(text, stacklevel=3)


def check_loader(dataloader: Any, name: str = "train_dataloader") -> None:
    """Refuse what can't be a loader, and one that is known to be empty.

    Raises:
        CallerError: it is a list or dict of loaders, can't be iterated over, is an iterator, or has no batch.
    """
    said = f"{name} must be one DataLoader (or an iterable of batches that can be iterated over again)"
    if isinstance(dataloader, (dict, str, bytes)) or not isinstance(dataloader, Iterable):
        raise CallerError(f"{said}, not {type(dataloader).__name__}")
    if isinstance(dataloader, Iterator) and not has_state(dataloader):
        raise CallerError(f"{said}: an iterator is empty after its first epoch. Give the object that makes it")
    if isinstance(dataloader, (list, tuple)) and any(isinstance(part, DataLoader) for part in dataloader):
        raise CallerError(f"{said}, not a {type(dataloader).__name__} of them")
    if length_of(dataloader) == 0:
        data = getattr(dataloader, "dataset", dataloader)
        length = length_of(data)
        size = "" if length is None else f" of {length} samples"
        hint = ", with drop_last=True" if getattr(dataloader, "drop_last", False) else ""
        raise CallerError(f"{name} is empty: its {type(data).__name__}{size}{hint} makes no batch")
