"""Reading an evaluation loader: again and again from its beginning, in its own order."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterator
from typing import Any

from torch.utils.data import DataLoader, IterableDataset

from .double import is_torchdata, iterates_as_torch
from .handed import HandingSampler
from .order import ids_in
from .unstopped import Unstopped
from .workers import Workers


class EvaluationSource:
    """Reads any loader. A `DataLoader` is read through a double, which knows its samples and ends its workers.

    Args:
        loader: anything that can be iterated over again and again.

    Attributes:
        ids: the sample ids of the batch yielded last, or of the one that couldn't be made; None where they aren't
            known.
    """

    def __init__(self, loader: Any) -> None:
        self.ids: list[Any] | None = None
        self._loader = loader
        self._read = loader
        self._handed: deque[list[Any]] = deque()
        self._workers = Workers()
        if isinstance(loader, DataLoader):
            kind = DataLoader if is_torchdata(loader) else None
            self._read = self._workers.double(loader, self._ours(loader), kind)

    def _ours(self, loader: Any) -> dict[str, Any]:
        ours: dict[str, Any] = {"collate_fn": Unstopped(loader.collate_fn)}
        indexed = not isinstance(loader.dataset, IterableDataset)
        if indexed and iterates_as_torch(loader) and getattr(loader, "in_order", True):
            single = loader.batch_sampler is None
            sampler = loader.sampler if single else loader.batch_sampler
            handing = HandingSampler(sampler, lambda: self._hand_out(iter(sampler), single))
            ours["sampler" if single else "batch_sampler"] = handing
        return ours

    def _hand_out(self, entries: Iterator[Any], single: bool) -> Iterator[Any]:
        for entry in entries:
            self._handed.append(ids_in(entry, single))
            yield entry

    def batches(self) -> Generator[Any, None, None]:
        """Yield the batches. Workers that don't live on are ended when this generator is closed, or fails."""
        self._handed.clear()
        try:
            batches = iter(self._read)
            while True:
                self.ids = None
                try:
                    batch = next(batches)
                except StopIteration as error:
                    if self._handed:
                        ids = self._handed[0]
                        raise RuntimeError(f"the dataset raised StopIteration for samples {ids}") from error
                    return
                self.ids = self._handed.popleft() if self._handed else None
                yield batch
        except GeneratorExit:
            if not getattr(self._loader, "persistent_workers", False):
                self.close()
            raise
        except BaseException:
            self.ids = self._workers.asked_of_the_dead(self._handed) or (self._handed[0] if self._handed else None)
            self.close()
            raise

    def close(self) -> None:
        """End the workers."""
        self._workers.end()
