"""`Ranks`: the processes that train together, as an engine and its listeners see them.

Here there is one process, and everything is agreed at once. `processes.Processes` is the same over torch.distributed.
Every method but `note_failure`, `post` and `posted` is called by all ranks, in the same order: a rank that doesn't come
makes the others wait, until they learn that it failed.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tachograph.states.errors import TachographError


class RankFailed(TachographError, RuntimeError):
    """Another rank failed, or is gone; its number, its state and its traceback are in the message."""


class Ranks:
    """One process.

    Attributes:
        rank: this process's number, from 0.
        world_size: how many processes train together.
        local_rank: its number among those of this machine.
        lag: votes after which a ballot is counted; 0: at once.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    lag: int = 0

    @property
    def first(self) -> bool:
        """Whether this is rank 0, which writes what is written once."""
        return self.rank == 0

    @property
    def there(self) -> bool:
        """Whether they still are this process's; no longer if the user has taken their group down."""
        return True

    @property
    def writes(self) -> bool:
        """Whether this process writes what is written once: rank 0, and any rank that is `alone`."""
        return self.first or self.world_size == 1

    def vote(self, bits: int) -> int:
        """Cast this rank's bits after a step, and return those of all ranks, or'ed, of the ballot that is counted now.

        It is the same one on every rank, and none waits for another's host. On the CPU it's that of the step after the
        one in which a rank first cast a bit; on an accelerator that of some votes ago. 0 where there is none.
        """
        return bits

    def agree(self, bits: int) -> int:
        """Return the bits of all ranks, or'ed. Every rank waits for all others."""
        return int(bits)

    def sums(self, numbers: list[int]) -> list[int]:
        """Return the sums over all ranks of as many integers as every rank gives. Every rank waits for all others."""
        return list(numbers)

    def gather(self, value: Any) -> list[Any]:
        """Return what every rank gave, in the order of their ranks: plain data, tensors on the CPU, trees of them."""
        return [value]

    def share(self, value: Any) -> Any:
        """Return what rank 0 gave."""
        return value

    def barrier(self) -> None:
        """Wait until every rank is here."""

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Run the body as if there were no other rank: nothing in it waits for one, or gathers from it."""
        yield

    def note_failure(self, error: BaseException, where: str) -> None:
        """Tell the other ranks that this one failed, so that they don't wait for it.

        Args:
            error: what it failed of.
            where: the state it was in, for people.
        """

    def reason(self, error: BaseException) -> BaseException:
        """Return what an error comes from: another rank's failure, if that broke a collective; else the error."""
        return error

    def failure(self) -> RankFailed | None:
        """Return what another rank failed of, if one has; it never waits."""
        return None

    def post(self, key: str, value: str) -> None:
        """Leave a text where the other ranks find it. From any thread."""

    def posted(self, key: str, seconds: float) -> str:
        """Wait for the text that some rank leaves under a key. From any thread.

        Raises:
            TimeoutError: it didn't come within `seconds`.
            RankFailed: a rank failed, so it won't.
        """
        raise TimeoutError(f"no other rank leaves {key!r}")

    def close(self) -> None:
        """Let go of what was opened for the run."""


ALONE = Ranks()
"""What a driver of one process has."""

_joined: list[Ranks] = [ALONE]


def join(ranks: Ranks) -> None:
    """Say that this process belongs to these ranks from now on."""
    _joined[:] = [ranks]


def current() -> Ranks:
    """Return the ranks that this process belongs to; `ALONE` before it has joined any."""
    return _joined[0] if _joined[0].there else ALONE


__all__ = ["ALONE", "RankFailed", "Ranks", "current", "join"]
