"""Writing one snapshot by many ranks: each writes its own files, and rank 0 publishes the whole.

It happens beside the run on every rank, so nothing here is a collective: the ranks leave each other word.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tachograph.drivers.ranks import Ranks

SECONDS = 1800.0
"""How long a rank waits for another one's part of a snapshot."""
_numbers = itertools.count()

Files = dict[str, tuple[int, str]]
Save = Callable[[Path], Files]


class Joint:
    """One snapshot of many ranks. Every rank makes as many of these, in the same order.

    Args:
        ranks: who writes it.
    """

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._key = f"snapshot/{next(_numbers)}"
        self._begun = False

    @contextmanager
    def published(self) -> Iterator[Callable[[Path], None]]:
        """Run the body, in which rank 0 writes and publishes it; what becomes of it is told to the others.

        Yields:
            What is called with the path under which it was published.
        """
        told: dict[str, Any] = {}
        try:
            yield lambda path: told.update(path=str(path))
        except BaseException as error:
            told = {"fault": f"{error}"}
            raise
        finally:
            if not self._begun:
                self._ranks.post(f"{self._key}/begun", "")
            self._ranks.post(f"{self._key}/done", json.dumps(told))

    def all_parts(self, save: Save) -> Save:
        """Return what writes rank 0's files into a directory, and waits for those of all others."""

        def write(directory: Path) -> Files:
            self._begun = True
            self._ranks.post(f"{self._key}/begun", str(directory.resolve()))
            files = dict(save(directory))
            for rank in range(1, self._ranks.world_size):
                told = json.loads(self._ranks.posted(f"{self._key}/{rank}", SECONDS))
                if "fault" in told:
                    raise OSError(f"rank {rank} couldn't write its part: {told['fault']}")
                files |= {name: (size, digest) for name, (size, digest) in told["files"].items()}
            return files

        return write

    def part(self, save: Save, before: Callable[[], None]) -> Path:
        """Write this rank's files, and wait until rank 0 has published the whole.

        Args:
            save: writes them into a directory.
            before: makes durable what the snapshot relies on.

        Returns:
            The path under which it was published.

        Raises:
            OSError: it wasn't.
        """
        directory = self._ranks.posted(f"{self._key}/begun", SECONDS)
        if directory:
            self._write(Path(directory), save, before)
        told = json.loads(self._ranks.posted(f"{self._key}/done", SECONDS))
        if "fault" in told:
            raise OSError(told["fault"])
        return Path(told["path"])

    def _write(self, directory: Path, save: Save, before: Callable[[], None]) -> None:
        told: dict[str, Any] = {}
        try:
            told = {"files": save(directory)}
            before()
        except BaseException as error:  # rank 0 may have failed before, and says so in the end
            told = {"fault": f"{error}"}
        finally:
            self._ranks.post(f"{self._key}/{self._ranks.rank}", json.dumps(told))


__all__ = ["Joint"]
