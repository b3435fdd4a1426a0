"""What every sampler is: an order for each epoch, and a position in it.

The order is that of all ranks together, and a pure function of (seed, epoch). The position counts samples handed out
over all ranks, those included that were repeated to give every rank as many. Whatever is left behind it is dealt out to
the ranks in turn, so the number of ranks may change anywhere. Nothing here draws from a global generator.
"""

from __future__ import annotations

import abc
import inspect
import itertools
import operator
import warnings
import weakref
from collections.abc import Generator, Iterator, Mapping
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from tachograph.drivers.errors import SamplerFault
from tachograph.states.errors import CallerError

Order = npt.NDArray[np.int64]
"""Sample indices, or positions among them."""

S = TypeVar("S", bound="ReproducibleSampler")

_CHUNK = 1 << 16  # indices made into Python's integers at a time


class ReproducibleSampler(abc.ABC):
    """Hands out the sample indices of an epoch, from any position on: what all samplers of this package share.

    Give it to a `DataLoader` as `sampler`. An iteration begins at the beginning of `epoch`, or where `seek` or
    `load_state_dict` put it; such a position is used once. An iteration that ran through moves `epoch` on by one, so
    that a loop that never calls `set_epoch` has another order in each epoch all the same.

    Args:
        dataset: anything with a length, or the length itself. It is asked anew in every epoch.

    Attributes:
        epoch: whose order the next iteration has; any integer, from 0.
        num_consumed_samples: samples handed out in this epoch, over all ranks.
        num_replicas: ranks that share the epoch.
        rank: which of them this sampler is for.
        pad: how the ranks get equally many: True repeats samples from the head of the order, False drops the tail.

    Raises:
        CallerError: an argument can't be used.
    """

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        self.num_replicas, self.rank, self.pad = 1, 0, True
        self.epoch = self.num_consumed_samples = 0
        self._start = 0  # where the next iteration begins
        self._counted = 0  # the epoch that was begun last
        self._turn = 0  # only the iteration that was begun last counts
        self._walking: weakref.ref[Generator[Any, None, None]] | None = None
        size_of(dataset)

    @property
    def num_samples(self) -> int:
        """How many samples an epoch has, over all ranks, nothing repeated and nothing dropped."""
        return size_of(self.dataset)

    # -- the order -----------------------------------------------------------------------------------------

    @abc.abstractmethod
    def order(self, epoch: int) -> Order:
        """Return the sample indices of a whole epoch over all ranks: a pure function of (seed, `epoch`).

        Returns:
            An int64 array of `num_samples` indices (the batch samplers whose batches belong together say more).
        """

    def _left(self, epoch: int, consumed: int) -> Order:
        """What is dealt out behind a position, over all ranks: samples repeated, the tail dropped."""
        order = self.order(epoch)
        return fitted(order[consumed:], self.num_replicas, self.num_replicas, self.pad, False, order)

    def _count_left(self, epoch: int, consumed: int) -> int:
        """How many `_left` holds."""
        left = max(self.num_samples - consumed, 0)
        return fitted_length(left, self.num_replicas, self.num_replicas, self.pad, False)

    def _entries(self, epoch: int, start: int) -> Iterator[tuple[Any, int]]:
        """This rank's entries from a position on, each with the position behind it."""
        mine, step = self._left(epoch, start)[self.rank :: self.num_replicas], self.num_replicas
        return zip(_numbers(mine), itertools.count(start + step, step), strict=False)

    # -- iterating -----------------------------------------------------------------------------------------

    def __iter__(self) -> Iterator[Any]:
        self._begin(self.epoch, self._start)
        walk = self._walk(self._turn, self.epoch, self._start)
        self._walking = weakref.ref(walk)
        return walk

    def _walk(self, turn: int, epoch: int, start: int) -> Generator[Any, None, None]:
        if turn == self._turn:  # only now: a DataLoader with workers asks for two iterators, and uses the second one
            self._enter(epoch, start)
        for entry, position in self._entries(epoch, start):
            if turn == self._turn:
                self.num_consumed_samples = position
            yield entry
        if turn == self._turn:
            self.epoch, self.num_consumed_samples = epoch + 1, 0

    def _enter(self, epoch: int, start: int) -> None:
        """Use up the position that an iteration really begins at."""
        self._start = 0

    def _begin(self, epoch: int, consumed: int) -> None:
        self._turn += 1
        self.epoch = self._counted = epoch
        self.num_consumed_samples = consumed

    def __len__(self) -> int:
        return self._share(self._count_left(self.epoch, 0))

    @property
    def num_left_samples(self) -> int:
        """How many samples this rank is still to hand out in this epoch."""
        return self._share(self._count_left(self.epoch, self.num_consumed_samples))

    def _share(self, total: int) -> int:
        return total // self.num_replicas

    @property
    def during_iter(self) -> bool:
        """Whether an iteration was begun and neither came to its end nor was given up."""
        walk = None if self._walking is None else self._walking()
        return walk is not None and inspect.getgeneratorstate(walk) != inspect.GEN_CLOSED

    def _must_rest(self, what: str) -> None:
        if self.during_iter:
            raise SamplerFault(
                f"{what} of a {type(self).__name__} can't be called while an iteration over it is under way: let it "
                "come to its end, or drop the iterator (of the DataLoader) first"
            )

    # -- the position --------------------------------------------------------------------------------------

    def set_distributed(self: S, num_replicas: int, rank: int, pad: bool = True) -> S:
        """Share the epoch with other ranks.

        Args:
            num_replicas: how many ranks there are, >= 1.
            rank: which this one is, from 0.
            pad: True repeats samples so that all ranks get equally many; False drops the tail.

        Returns:
            The sampler.

        Raises:
            SamplerFault: an iteration is under way.
            CallerError: there is no such rank.
        """
        self._must_rest("set_distributed")
        num_replicas, rank = whole(num_replicas, "num_replicas", 1), whole(rank, "rank", 0)
        if rank >= num_replicas:
            raise CallerError(f"rank must be below num_replicas, which is {num_replicas}, not {rank}")
        self.num_replicas, self.rank, self.pad = num_replicas, rank, truth(pad, "pad")
        return self

    def set_epoch(self, epoch: int) -> None:
        """Have the next iteration follow the order of `epoch`, from its beginning.

        A position that was loaded in the same epoch, and not used yet, stays.
        """
        epoch = whole(epoch, "epoch")
        self.seek(epoch, self._start if epoch == self.epoch else 0)

    def seek(self, epoch: int, consumed: int = 0) -> None:
        """Have the next iteration begin in `epoch`, behind the first `consumed` samples of its order.

        An iteration that is under way is given up: whoever holds its iterator gets what is left of it, but nothing of
        that counts any more.

        Args:
            epoch: whose order.
            consumed: samples over all ranks, >= 0.
        """
        epoch, consumed = whole(epoch, "epoch"), whole(consumed, "consumed", 0)
        self._begin(epoch, consumed)
        self._start, self._walking = consumed, None

    # -- states --------------------------------------------------------------------------------------------

    def state_dict(self, consumed: int | None = None) -> dict[str, Any]:
        """Return the position, and what decides on the order, as plain data.

        Args:
            consumed: samples of the epoch that was begun last that really were trained on, over all ranks. Say it
                wherever batches are fetched ahead of training, as a `DataLoader` with workers does. None means
                whatever was handed out.
        """
        epoch, at = self._counted, consumed
        if at is None:
            epoch, at = self.epoch, self.num_consumed_samples
        position = {"epoch": epoch, "num_consumed_samples": whole(at, "consumed", 0)}
        return {**self._fixed(), **self._taken(), **self._held(epoch), **position}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a state was taken: the next iteration begins there.

        The state's seed and shuffle are taken over. What is all consumed is the beginning of the next epoch.

        Raises:
            SamplerFault: an iteration is under way.
            CallerError: the state is of another kind of sampler, of other data, or lacks a key or has an unknown one;
                nothing is changed then.
        """
        self._must_rest("load_state_dict")
        self.check(state)
        for name, own in self._taken().items():
            if state[name] != own:
                warnings.warn(
                    f"the state of this {type(self).__name__} was saved with {name}={state[name]}; it is used, rather "
                    f"than {name}={own}, so that the order stays what it was",
                    stacklevel=2,
                )
            setattr(self, name, state[name])
        epoch, consumed = state["epoch"], state["num_consumed_samples"]
        self._take(state)
        self.seek(epoch, consumed)
        if consumed and not self._count_left(epoch, consumed):
            self.seek(epoch + 1)

    def _fixed(self) -> dict[str, Any]:
        """The entries of a state that must be equal where it's loaded."""
        return {"sampler_type": type(self).__name__, "length": self.num_samples}

    def _taken(self) -> dict[str, Any]:
        """The entries of a state that become attributes where it's loaded."""
        return {}

    def _held(self, epoch: int) -> dict[str, Any]:
        """The entries of a state that `_take` uses."""
        return {}

    def _take(self, state: Mapping[str, Any]) -> None:
        """Use the entries of a state that `_held` made."""

    def check(self, state: Mapping[str, Any]) -> None:
        """Hold a state against this sampler; nothing is changed.

        Raises:
            CallerError: it can't be loaded here.
        """
        kind = type(self).__name__
        if not isinstance(state, Mapping):
            raise CallerError(f"the state of a {kind} is a dict, as its state_dict() returns it, not {state!r}")
        said = state.get("sampler_type", kind)
        if said != kind:
            raise CallerError(f"this is the state of a {said}, and it can't be loaded into a {kind}")
        known = self.state_dict()
        for name in (*known, *state):
            if name not in state:
                raise CallerError(f"this state of a {kind} lacks {name!r}")
            if name not in known:
                raise CallerError(f"this state of a {kind} has {name!r}, which isn't known. Known: {', '.join(known)}")
        for name, own in self._fixed().items():
            if state[name] != own:
                raise CallerError(
                    f"this state of a {kind} was saved with {name} {state[name]!r}, and here {name} is {own!r}: the "
                    "order would be another one"
                )
        for name, own in self._taken().items():
            if type(state[name]) is not type(own):
                raise CallerError(f"{name!r} in the state of a {kind} is a {type(own).__name__}, not {state[name]!r}")
        whole(state["epoch"], "'epoch' in the state")
        whole(state["num_consumed_samples"], "'num_consumed_samples' in the state", 0)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_walking": None}  # a copy has no iteration under way


# -- orders ------------------------------------------------------------------------------------------------


def _numbers(indices: Order) -> Iterator[int]:
    """Yield the numbers of a long array as Python's integers, without holding all of them at once."""
    for at in range(0, len(indices), _CHUNK):
        yield from indices[at : at + _CHUNK].tolist()


def generator_of(seed: int, epoch: int, *parts: int) -> np.random.Generator:
    """Return a private generator for a seed, an epoch and what else it's for."""
    return np.random.default_rng([part % (1 << 64) for part in (seed, epoch, *parts)])


def fitted_length(n: int, size: int, replicas: int, pad: bool, drop_last: bool) -> int:
    """Return how many of `n` samples are dealt out: the last batch of `size` is dropped, or is evened for the ranks."""
    short = n % size
    over = short % replicas
    if drop_last:
        return n - short
    return n + replicas - over if over and pad else n - over


def fitted(rest: Order, size: int, replicas: int, pad: bool, drop_last: bool, filler: Order) -> Order:
    """Return the samples that are dealt out: as many as `fitted_length` says, filled up from the head of `filler`."""
    n = fitted_length(len(rest), size, replicas, pad, drop_last)
    return rest[:n] if n <= len(rest) else np.concatenate([rest, np.resize(filler, n - len(rest))])


# -- checking what is given --------------------------------------------------------------------------------


def size_of(dataset: Any) -> int:
    """Return the length of a dataset, or the number that was given in its place."""
    if isinstance(dataset, int) and not isinstance(dataset, bool):
        return whole(dataset, "the length of a dataset", 0)
    try:
        return len(dataset)
    except TypeError as error:
        raise CallerError(
            f"a sampler must know how many samples there are, and a {type(dataset).__name__} has no length"
        ) from error


def whole(value: Any, name: str, least: int | None = None) -> int:
    """Check an integer, of Python's or numpy's kind, that is at least `least`."""
    try:
        if isinstance(value, (bool, np.bool_)):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or (least is not None and number < least):
        raise CallerError(f"{name} must be an integer{'' if least is None else f' >= {least}'}, not {value!r}")
    return number


def truth(value: Any, name: str) -> bool:
    """Check a bool."""
    if not isinstance(value, (bool, np.bool_)):
        raise CallerError(f"{name} must be True or False, not {value!r}")
    return bool(value)
