"""Samplers whose order depends on its layout: on the batch size, say, or on the number of ranks.

Such an order can't simply be cut behind what is consumed when one of these changes. So the position comes with its
history: which layout was followed from which position on. The old order is made again, what was handed out of it is
taken away, and the rest is arranged anew. An epoch may be cut like this as often as you like.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tachograph.states.errors import CallerError

from .batch_sampler import ReproducibleBatchSampler
from .sampler import Order, ReproducibleSampler, fitted, fitted_length, generator_of


class Arranged(ReproducibleSampler):
    """A sampler that arranges what is left of an epoch by a layout: a few settings that its order depends on.

    The samples of an epoch stand in a pool, and what is arranged are places in it.
    """

    seed = 0
    _cuts: Sequence[dict[str, int]] = ()  # "at" which position, and the layout followed from there on; the first at 0
    _cut_epoch = 0
    _made: tuple[str, tuple[Order, Order]] | None = None

    @abc.abstractmethod
    def _layout(self) -> dict[str, int]:
        """What the arrangement depends on, as it is now."""

    @abc.abstractmethod
    def _pool(self, epoch: int) -> Order:
        """The samples of an epoch, in the order from which an arrangement is made."""

    @abc.abstractmethod
    def _arrange(self, rest: Order, layout: Mapping[str, int], rng: np.random.Generator) -> tuple[Order, Order]:
        """Arrange the places of the pool that are left.

        Args:
            rest: places, ascending.
            layout: as `_layout` gave it.
            rng: whose draws decide.

        Returns:
            The places as they are dealt out over all ranks, and where among them each batch of all ranks ends.
        """

    @abc.abstractmethod
    def _whole(self) -> int:
        """How many samples a whole epoch deals out over all ranks, with the present layout."""

    # -- the order -----------------------------------------------------------------------------------------

    def order(self, epoch: int) -> Order:
        """Return the sample indices of a whole epoch over all ranks, as they are dealt out with the present settings.

        Returns:
            An int64 array, samples that are repeated for the ranks included, those that are dropped left out.
        """
        return self._arranged(epoch, [{"at": 0, **self._layout()}])[0]

    def _arranged(self, epoch: int, cuts: list[dict[str, int]]) -> tuple[Order, Order]:
        """The samples that the last of the cuts arranged, and where among them each batch ends."""
        pool = self._pool(epoch)
        rest, before, places = np.arange(len(pool)), 0, np.arange(0)
        for number, cut in enumerate(cuts):
            rest = np.setdiff1d(rest, places[: cut["at"] - before]) if number else rest
            rng = generator_of(self.seed, epoch, *([number] if number else []))
            places, ends = self._arrange(rest, cut, rng)
            before = cut["at"]
        return pool[places], ends

    def _arranged_once(self, epoch: int, cuts: list[dict[str, int]]) -> tuple[Order, Order]:
        """The same, made once while an epoch is entered in its middle, where several ask for it."""
        key = repr((epoch, cuts, self._taken(), self._fixed()))
        if self._made is None or self._made[0] != key:
            self._made = (key, self._arranged(epoch, cuts))
        return self._made[1]

    def _batches(self, epoch: int, consumed: int) -> tuple[Order, Order]:
        """The samples behind a position, over all ranks, and where among them each batch ends."""
        cuts = self._history(epoch, consumed)
        samples, ends = self._arranged_once(epoch, cuts) if consumed else self._arranged(epoch, cuts)
        behind = consumed - cuts[-1]["at"]
        return samples[behind:], ends[ends > behind] - behind

    def _left(self, epoch: int, consumed: int) -> Order:
        return self._batches(epoch, consumed)[0]

    def _count_left(self, epoch: int, consumed: int) -> int:
        return len(self._left(epoch, consumed)) if consumed else self._whole()

    # -- the history ---------------------------------------------------------------------------------------

    def _enter(self, epoch: int, start: int) -> None:
        super()._enter(epoch, start)
        self._made = self._made if start else None
        self._cuts, self._cut_epoch = self._history(epoch, start), epoch

    def _history(self, epoch: int, consumed: int) -> list[dict[str, int]]:
        """The cuts before a position, and one there if the present layout can't simply be followed from it."""
        now = self._layout()
        known = self._cuts if epoch == self._cut_epoch else ()
        cuts = [cut for cut in known if cut["at"] < consumed] or [{"at": 0, **now}]
        if consumed and not (_same(cuts[-1], now) and self._is_end(epoch, consumed, cuts)):
            cuts.append({"at": consumed, **now})
        return cuts

    def _is_end(self, epoch: int, consumed: int, cuts: list[dict[str, int]]) -> bool:
        samples, ends = self._arranged_once(epoch, cuts)
        behind = consumed - cuts[-1]["at"]
        return behind >= len(samples) or behind in ends

    def _held(self, epoch: int) -> dict[str, Any]:
        known = self._cuts if epoch == self._cut_epoch else ()
        return {"cuts": [dict(cut) for cut in known] or [{"at": 0, **self._layout()}]}

    def _take(self, state: Mapping[str, Any]) -> None:
        self._cuts, self._cut_epoch = [dict(cut) for cut in state["cuts"]], state["epoch"]

    def check(self, state: Mapping[str, Any]) -> None:
        super().check(state)
        keys, at = ["at", *self._layout()], -1
        for cut in state["cuts"] if isinstance(state["cuts"], Sequence) and state["cuts"] else [state["cuts"]]:
            if not _is_cut(cut, keys):
                raise CallerError(f"a cut in the state of a {type(self).__name__} has {', '.join(keys)}, not {cut!r}")
            if cut["at"] <= at or (at < 0 and cut["at"]):
                raise CallerError(f"the cuts in the state of a {type(self).__name__} must begin at 0 and ascend")
            at = cut["at"]


class ArrangedBatches(Arranged, ReproducibleBatchSampler):
    """A batch sampler that arranges what is left of an epoch by its batch size and the ranks."""

    def _layout(self) -> dict[str, int]:
        return {
            "batch_size": self.batch_size,
            "num_replicas": self.num_replicas,
            "pad": int(self.pad and self.num_replicas > 1),  # one rank has nothing to fill up
            "drop_last": int(self.drop_last),
        }

    def _portions(self) -> list[int]:
        """The lengths of the parts of an epoch that end in a short batch each."""
        return [self.num_samples]

    def _dealt(self) -> list[int]:
        replicas, pad = self.num_replicas, self.pad
        return [fitted_length(n, self._size, replicas, pad, self.drop_last) for n in self._portions()]

    def _whole(self) -> int:
        return sum(self._dealt())

    def _count_batches(self, epoch: int, consumed: int) -> int:
        if consumed:
            return len(self._batches(epoch, consumed)[1])
        return sum(-(-n // self._size) for n in self._dealt())


def size_of_batch(layout: Mapping[str, int]) -> int:
    """Return how many samples a batch of all ranks has."""
    return layout["batch_size"] * layout["num_replicas"]


def fitted_batches(places: Order, layout: Mapping[str, int]) -> Order:
    """Return places with their last batch, if it's short, dropped or made even for the ranks from its own samples."""
    size = size_of_batch(layout)
    tail = places[len(places) // size * size :]
    return fitted(places, size, layout["num_replicas"], bool(layout["pad"]), bool(layout["drop_last"]), tail)


def _is_cut(cut: Any, keys: list[str]) -> bool:
    if not isinstance(cut, Mapping) or set(cut) != set(keys):
        return False
    return all(isinstance(n, int) and n >= (key not in ("at", "pad", "drop_last")) for key, n in cut.items())


def _same(cut: Mapping[str, int], layout: Mapping[str, int]) -> bool:
    return all(cut[name] == value for name, value in layout.items())
