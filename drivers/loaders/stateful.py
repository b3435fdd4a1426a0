"""Reading a loader that has a state of its own, or whose iterable dataset has: a position is reached by loading it.

What is saved is the state for the batches that training consumed. It's applied once, before the first fetch. It says of
which batch it is: where that lies before the position, the batches between are read again.
"""

from __future__ import annotations

from typing import Any

from tachograph.drivers.driver import NO_BATCH
from tachograph.drivers.errors import RestoreFault
from tachograph.drivers.lengths import length_of
from tachograph.drivers.storage import is_plain

from .double import is_torchdata
from .iterated import Iterated
from .plain import decoded, encoded
from .rounds import Rounds
from .source import Tell, has_state, warned
from .streams import StreamState

_KEYS = frozenset(("held", "epoch", "at", "turns", "before"))
_LATER = frozenset(("cut",))  # what older snapshots don't have


class StatefulSource(Iterated):
    """Reads anything with `state_dict` and `load_state_dict`: torchdata's `StatefulDataLoader`, or a user's own loader.

    An iterable dataset with a state, in a `DataLoader` without workers, is read in the same way.
    """

    def __init__(
        self, dataloader: Any, seed: int, max_batches: int, tell: Tell = warned, rounds: Rounds | None = None
    ) -> None:
        super().__init__(dataloader, seed, max_batches, tell, rounds)
        self._took = self._over = self._anew = self._checked = False
        self._holder = self._read if has_state(dataloader) else StreamState(self._ours["dataset"])
        what = "training loader" if has_state(dataloader) else "dataset"
        self._name = f"the {what}, a {type(dataloader if has_state(dataloader) else dataloader.dataset).__name__},"
        self._to_load: dict[str, Any] | None = None
        self._here = self._before = self._position(None, 0)
        self._all_plain = True

    def _double(self) -> Any:
        self._ours |= {"next_iter_state": None, "_initial_iter_for_state_dict": False}  # torchdata's
        return super()._double()

    def _by_items(self) -> bool:
        return True

    # -- the position --------------------------------------------------------------------------------------

    def open(self, epoch: int, done: int, samples: int | None = None) -> int | None:
        loaded, self._to_load = self._to_load, None
        if loaded is None and done:
            raise RestoreFault(f"there is no state of {self._name} for batch {done} of epoch {epoch}")
        if loaded is not None and loaded["epoch"] == epoch and loaded["at"] > done:
            loaded = loaded["before"]  # its last batch was fetched, and left at a limit
        cut = loaded is not None and loaded["epoch"] != epoch and loaded.get("cut", False)
        if cut and self._forgets():
            loaded = self._position(None, epoch)
        self._here = self._at_boundary() if loaded is None else loaded
        self._took = self._over = self._anew = False
        self._stand(epoch, 0)
        if loaded is not None:
            self._apply(loaded, epoch, done)
            if cut and (is_torchdata(self._loader) or self._holder is not self._read):
                self._stand(epoch, 0)  # its state is in the midst of an iteration that nobody goes on with
                self._iterate()
        return self._length_behind(done, samples)

    def _length_behind(self, done: int, samples: int | None) -> int | None:
        """The length of an epoch whose first batches may have been of another size."""
        length = self._known_length()
        n, size = length_of(getattr(self._loader, "dataset", None)), getattr(self._loader, "batch_size", None)
        if self._rounds is not None or length is None or n is None or size is None or samples is None:
            return length
        if samples == done * size:
            return length
        left = max(n - samples, 0)
        return self._limited(done + int(left // size if self._loader.drop_last else -(-left // size)))

    def _at_boundary(self) -> dict[str, Any]:
        """Where the next epoch begins: at the state that the last one has left."""
        if self._took and not self._over and self._forgets():
            return self._position(None, self._epoch)
        return self.state()

    def _forgets(self) -> bool:
        """Whether an epoch that was cut short leaves nothing behind: torchdata begins anew."""
        return is_torchdata(self._loader) and bool(self._loader.num_workers or not has_state(self._loader.dataset))

    def _apply(self, loaded: dict[str, Any], epoch: int, done: int) -> None:
        """Give the loader its state and begin its iteration, so that what can't be applied is refused here."""
        inside = loaded["epoch"] == epoch
        self._at = loaded["at"] if inside else 0
        try:
            if loaded["held"] is not None:
                self._holder.load_state_dict(decoded(loaded["held"]))
            if inside and loaded["turns"] is not None:
                self._turns.load(loaded["turns"])
            self._iterate()
        except Exception as error:
            reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            raise RestoreFault(f"the state of {self._name} can't be applied ({reason})") from error
        if done > self._at:
            self._tell(
                f"{done - self._at} batches of epoch {epoch} are read again and dropped: the state of {self._name} "
                "doesn't say where they ended. A dataset, or its iterator, with state_dict() and load_state_dict() does"
            )
            self._pass_over(done - self._at)

    def next(self) -> Any:
        if not self._took or not self._all_plain:
            self._before = self.state()
        if self._at_limit():
            return NO_BATCH
        if self._batches is None:
            self._iterate()
        batch = self._take()
        if batch is NO_BATCH:
            self._over = True
            return NO_BATCH
        self._took = True
        if not self._checked:
            self._checked = self.state() is not None
        self._all_plain = self._all_plain and is_plain(batch)
        return batch

    def _take(self) -> Any:
        batch = super()._take()
        if batch is not NO_BATCH or self._at or self._anew or self._here["held"] is None:
            return batch
        self._anew = True  # what was loaded was the state of an epoch's end: a new iteration begins
        self._stand(self._epoch, 0)
        self._iterate()
        return super()._take()

    # -- the state -----------------------------------------------------------------------------------------

    def _position(
        self, held: Any, epoch: int, at: int = 0, turns: Any = None, before: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        before = None if before is None else {**before, "before": None}
        return {"held": held, "epoch": epoch, "at": at, "turns": turns, "before": before, "cut": not self._over}

    def state(self, again: bool = False) -> dict[str, Any]:
        if self._to_load is not None:
            return self._to_load
        if again:
            return self._before
        if not self._took:
            return self._here
        held = encoded(self._holder.state_dict(), f"state_dict() of {self._name}")
        if is_torchdata(self._loader) and not _tells_a_position(held):
            return self._position(None, self._epoch)  # to read the data again is left to us: we know what it draws
        return self._position(held, self._epoch, self._at, self._turns.state(), self._before)

    def check(self, held: Any) -> None:
        if not isinstance(held, dict) or held.keys() | _LATER != _KEYS | _LATER:
            raise RestoreFault(f"the snapshot holds no state of {self._name} which needs one to go on")

    def load(self, held: Any) -> None:
        self._to_load = held

    def close(self) -> None:
        try:
            self._to_load = self.state()
        except Exception:  # a loader that failed; whoever goes on with it does so from the beginning of the epoch
            self._to_load = self._here
        self._end_workers()


def _tells_a_position(state: Any) -> bool:
    """Whether a torchdata loader's state holds one of a dataset or its iterator; without one, it reads all again."""
    if not isinstance(state, dict):
        return False
    own = (state.get(name) for name in ("dataset_state", "dataset_iter_state"))
    return any(held is not None for held in own) or any(map(_tells_a_position, state.values()))
