"""`Processes`: ranks over torch.distributed. What they agree on travels through a gloo group of its own, on the CPU.

A rank that fails leaves word in the store, and then takes the process groups down: whoever waits for it in a collective
learns of it at once. A thread looks at the store as well, for those who wait elsewhere, and ends a process that hasn't
ended by itself in time.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
import torch.distributed as dist

from . import storage
from .launch_environment import attempt
from .ranks import RankFailed, Ranks

logger = logging.getLogger("tachograph")

LIMIT = 20.0
"""Seconds that a process has to end by itself after another rank has failed; then it is ended."""
PATIENCE = 60.0
"""Seconds after which a rank says that it waits for the others."""
_LOOKS_EVERY = 0.5
_TO_FINISH = 5.0  # seconds that is waited for other ranks' work after one has failed
_FAILED = "failed"
_SAID = 100_000  # characters of a traceback that travel


class Processes(Ranks):
    """The ranks of the default process group.

    Args:
        ours: that group was formed here, and is taken down when a rank fails; one of the user's is left as it is.

    Attributes:
        lag: votes after which a ballot is counted; 0: at once.
        paced: the ranks' hosts keep step with each other by exchanging gradients, as on the CPU: a ballot is counted
            only when one is asked for.
        limit: seconds that a process has to end by itself after another rank has failed.
    """

    def __init__(self, ours: bool = True) -> None:
        self._ours = ours
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self._size = self.world_size  # `alone` or not
        self.local_rank = int(os.environ.get("LOCAL_RANK", self.rank))
        self.lag = 0
        self.limit = LIMIT
        self._group: Any = dist.new_group(backend="gloo")
        number = len(_names)
        _names.append(number)
        api: Any = dist
        default = api.distributed_c10d._get_default_store()
        self._store = api.PrefixStore(f"tachograph/{attempt()}/{number}", default)
        self._bits = torch.zeros(1, dtype=torch.int64)
        self._ballots: deque[tuple[torch.Tensor, Any]] = deque()
        self.paced = False
        self._exchanged = self._kept_apart = False  # since the last vote
        self._exchanges = 0
        self._asked = ""
        self._alone = 0
        self._over = threading.Event()
        self._watch: threading.Thread | None = None
        self._broken = False
        self._told: dict[str, Any] | None = None  # what was read of the first failure
        self._waits_since: float | None = None
        self._hook = sys.excepthook
        sys.excepthook = self._outside_a_run

    @property
    def there(self) -> bool:
        return self._broken or dist.is_initialized()

    # -- agreeing ------------------------------------------------------------------------------------------

    def vote(self, bits: int) -> int:
        if self._alone:
            return bits
        if not self.lag:
            return self._paced(bits) if self.paced else self.agree(bits)
        cast = torch.tensor([bits], dtype=torch.int64)
        with self._together():
            work: Any = dist.all_reduce(cast, dist.ReduceOp.BOR, self._group, async_op=True)
            self._ballots.append((cast, work))
            if len(self._ballots) <= self.lag:
                return 0
            counted, work = self._ballots.popleft()
            work.wait()
        return int(counted)

    def exchanged(self) -> None:
        """Hear of a backward pass that has exchanged gradients: every rank has begun it before any has ended it."""
        self._exchanged = True

    def kept_apart(self) -> None:
        """Hear of a step without an exchange."""
        self._kept_apart = True

    def _paced(self, bits: int) -> int:
        """Count a ballot if a rank has asked for one before the exchange of gradients that every rank has behind it.

        Whoever asks leaves word for the next exchange before it takes part in it. So all ranks that come out of that
        one find the word, and nobody waits for anybody in order to learn that there is none.
        """
        exchanged, self._exchanged = self._exchanged, False
        apart, self._kept_apart = self._kept_apart, False
        if not exchanged and not apart:
            return self.agree(bits)
        agreed = 0
        if exchanged:
            self._exchanges += 1
            with self._together():
                asked = self._store.check([f"vote/{self._exchanges}"])
            agreed = self.agree(bits) if asked else 0
        if bits & ~agreed:
            self._ask_for_a_ballot(f"vote/{self._exchanges + 1}")
        return agreed

    def _ask_for_a_ballot(self, key: str) -> None:
        if key == self._asked:
            return
        self._asked = key
        with self._together():
            self._store.set(key, "")
            self._store.check([key])  # it is there when this returns

    def agree(self, bits: int) -> int:
        if self._alone:
            return int(bits)
        self._bits[0] = bits
        with self._together():
            dist.all_reduce(self._bits, dist.ReduceOp.BOR, self._group)
        return int(self._bits[0])

    def sums(self, numbers: list[int]) -> list[int]:
        if self._alone:
            return list(numbers)
        held = torch.tensor(numbers, dtype=torch.int64)
        with self._together():
            dist.all_reduce(held, dist.ReduceOp.SUM, self._group)
        return [int(number) for number in held]

    def gather(self, value: Any) -> list[Any]:
        if self._alone:
            return [value]
        held: list[Any] = [None] * self.world_size
        with self._together():
            dist.all_gather_object(held, storage.mapped(value, lambda t: t.detach().cpu()), self._group)
        return held

    def share(self, value: Any) -> Any:
        if self._alone:
            return value
        held = [value]
        with self._together():
            dist.broadcast_object_list(held, src=0, group=self._group)
        return held[0]

    def barrier(self) -> None:
        self.agree(0)

    @contextmanager
    def alone(self) -> Iterator[None]:
        size, self.world_size, self._alone = self.world_size, 1, self._alone + 1
        try:
            yield
        finally:
            self.world_size, self._alone = size, self._alone - 1

    @contextmanager
    def _together(self) -> Iterator[None]:
        """Run a collective; one that breaks says why."""
        try:
            with self.waiting():
                yield
        except RuntimeError as error:
            reason = self.reason(error)
            raise reason from (None if reason is not error else error.__cause__)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Run what waits for the other ranks; it is said if that takes long."""
        self._waits_since = time.monotonic()
        try:
            yield
        finally:
            self._waits_since = None

    # -- failing -------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Look out for the failure of other ranks, until `close`."""
        if self._watch is None:
            self._over.clear()
            self._ballots.clear()
            self._watch = threading.Thread(target=self._look_out, name="tachograph-ranks", daemon=True)
            self._watch.start()

    def close(self) -> None:
        self._over.set()
        if self._watch is not None:
            self._watch.join()
            self._watch = None
        if not self._broken:
            with suppress(RuntimeError):
                while self._ballots:
                    self._ballots.popleft()[1].wait()

    def note_failure(self, error: BaseException, where: str) -> None:
        if self._broken:
            return
        told = {
            "rank": self.rank,
            "where": where,
            "error": f"{type(error).__name__}: {error}",
            "traceback": "".join(traceback.format_exception(type(error), error, error.__traceback__))[-_SAID:],
        }
        with suppress(RuntimeError):
            self._store.compare_set(_FAILED, "", json.dumps(told))
        first: dict[str, Any] = self._read_failure() or told
        self._break()
        if self.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
            self._wait_for_readers(first["rank"])  # the store is this process's, and goes with it

    def _outside_a_run(self, kind: type[BaseException], error: BaseException, trace: Any) -> None:
        """Tell the others of an error that ends this rank's script, wherever it struck."""
        self._hook(kind, error, trace)
        self.note_failure(error, "in its script")

    def _break(self) -> None:
        """Take the process groups down, so that nobody waits for this rank in a collective."""
        self._broken = True
        self._alone += 1  # what listeners still ask of the others is answered by this rank alone
        take_down = getattr(dist.distributed_c10d, "_abort_process_group", dist.destroy_process_group)
        with suppress(Exception):
            take_down(*([] if self._ours else [self._group]))
        self._group = None  # a gloo group closes its connections when nobody holds it any more

    def _wait_for_readers(self, failed: int) -> None:
        end = time.monotonic() + 5.0
        others = [f"read/{rank}" for rank in range(1, self._size) if rank != failed]
        with suppress(RuntimeError):
            while others and time.monotonic() < end and not self._store.check(others):
                time.sleep(0.05)

    def failure(self) -> RankFailed | None:
        told = self._read_failure()
        if told is None or told["rank"] == self.rank:
            return None
        who = f"rank {told['rank']} failed {told['where']}: {told['error']}"
        return RankFailed(f"{who}\n\nthere it was\n\n{told['traceback']}")

    def _read_failure(self) -> dict[str, Any] | None:
        try:
            if self._told is None and self._store.check([_FAILED]):
                self._told = json.loads(self._store.get(_FAILED))
                self._store.set(f"read/{self.rank}", "")
        except RuntimeError:  # the store is gone, with the process that kept it
            pass
        return self._told

    def reason(self, error: BaseException) -> BaseException:
        """Return why a collective broke: another rank's failure if that is what it is, else the error itself."""
        if isinstance(error, RankFailed) or not (isinstance(error, RuntimeError) and _speaks_of_a_lost_rank(error)):
            return error
        gone = f"another rank is gone, without a word why (it may have been killed): {_first(error)}"
        return self.failure() or RankFailed(gone)

    def _look_out(self) -> None:
        """Wait for the word that a rank failed, and see to it that this process ends."""
        said: float | None = None
        while not self._over.wait(_LOOKS_EVERY):
            failure = self.failure()
            if failure is None:
                said = self._say_that_it_waits(said)
                continue
            if not self._over.wait(self.limit):
                sys.stderr.write(f"rank {self.rank} didn't end within {self.limit:g} seconds after {failure}\n")
                sys.stderr.flush()
                os._exit(1)
            return

    def _say_that_it_waits(self, said: float | None) -> float | None:
        """Say that the others don't come, once for each time that this rank waits long; return since when it waits."""
        since = self._waits_since
        if since is None or since == said or time.monotonic() - since < PATIENCE:
            return said
        logger.warning(
            "rank %d has waited %.0f seconds for the others: one of them is at work elsewhere, or stands still in a "
            "collective that not all ranks take part in",
            self.rank,
            time.monotonic() - since,
        )
        return since

    # -- from any thread -----------------------------------------------------------------------------------

    def post(self, key: str, value: str) -> None:
        self._store.set(key, value)

    def posted(self, key: str, seconds: float) -> str:
        end = time.monotonic() + seconds
        pause, failure = 0.002, None
        while not self._store.check([key]):
            if failure is None and (self._broken or self.failure() is not None):
                failure = self.failure() or TimeoutError("this rank has failed, and the others have gone")
                end = min(end, time.monotonic() + _TO_FINISH)  # what others have begun they may still finish
            if time.monotonic() > end:
                raise failure or TimeoutError(f"no rank has left {key!r} within {seconds:g} seconds")
            time.sleep(pause)
            pause = min(pause * 1.5, 0.02)
        return str(self._store.get(key).decode())


_names: list[int] = []  # of groups in this process: every rank counts alike
_LOST = ("gloo/transport", "Connection closed by peer", "Connection reset by peer", "ncclRemoteError", "remote process")


def _speaks_of_a_lost_rank(error: BaseException) -> bool:
    return isinstance(error, dist.DistBackendError) or any(sign in str(error) for sign in _LOST)


def _first(error: BaseException) -> str:
    return str(error).strip().splitlines()[0][:300]


__all__ = ["LIMIT", "Processes"]
