"""What a run remembers of its training loader's order, so that a batch's sample ids can be found without the loader.

The order of an epoch is a pure function of (seed, epoch) and of a few numbers of the sampler: those go into `run.json`,
and the sampler is built from them again. Samplers of a user's own aren't remembered; their loader has to be at hand.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import attrs
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)

from tachograph.drivers import samplers as ours
from tachograph.drivers.ranks import Ranks
from tachograph.states.errors import CallerError

from .dealing import Dealt, whole
from .order import Order, ids_in, of_torch
from .sampler_states import SamplerStates
from .sharing import Sharing, has_index, sharing_of

_LONG = 1000
"""Indices or weights that are remembered; a longer list would make `run.json` large."""


@attrs.frozen(kw_only=True)
class Spot:
    """A batch of a run, by its place.

    Attributes:
        seed: of the run.
        epoch: its number.
        done: batches of the epoch before it.
        place: samples of the epoch before it, over all ranks; None where they weren't counted.
        rank: whose batch.
        world: how many ranks train together.
        batch_size: of one rank; None: what the loader says.
    """

    seed: int
    epoch: int
    done: int
    place: int | None
    rank: int
    world: int
    batch_size: int | None


# -- what is remembered ------------------------------------------------------------------------------------


def remembered(
    dataloader: Any, share: bool | None, batch_size: int | None, dealt: bool = False
) -> dict[str, Any] | None:
    """Return what `ids_remembered` needs of a training loader, as plain data; None where its samples have no ids.

    Args:
        dataloader: as `source_of` takes it.
        share: the user's `use_dist_sampler`.
        batch_size: what is told of it elsewhere.
        dealt: it is dealt out over several ranks: then the whole order stands for one rank's share of it, so that the
            number of ranks may change.

    Returns:
        `sampler`: the class that decides; `made_of`: its numbers, None where only the loader knows them; `single`,
        `sharing`, and where batches are made of a sampler's samples `drop_last` and, if it isn't told elsewhere,
        `batch_size`. `even`: a share of torch's leaves samples out, so that ranks have equally many.
    """
    if not has_index(dataloader):
        return None
    sampler = _decider(dataloader)
    told: dict[str, Any] = {
        "single": dataloader.batch_sampler is None,
        "sharing": sharing_of(dataloader, share).value,
    }
    if type(sampler) is BatchSampler:
        told["drop_last"] = bool(sampler.drop_last)
        if batch_size is None:
            told["batch_size"] = int(sampler.batch_size)
        sampler = of_torch(sampler.sampler)
    if dealt and whole(sampler) is not sampler:
        told |= {"even": True} if sampler.drop_last else {}
        sampler = whole(sampler)
    kind = type(sampler)
    read = _KINDS.get(_name(kind), (None, None, None))
    made_of = read[1](sampler) if read[0] is kind and read[1] is not None else None
    return {"sampler": _name(kind), "made_of": made_of, **told}


def _decider(loader: DataLoader[Any]) -> Any:
    return of_torch(loader.sampler if loader.batch_sampler is None else loader.batch_sampler)


def _name(kind: type) -> str:
    package = kind.__module__.partition(".")[0]
    return f"{package}.{kind.__qualname__}" if package in ("torch", "tachograph", "builtins") else kind.__qualname__


def _long(values: Any) -> list[Any] | None:
    held = values.tolist() if hasattr(values, "tolist") else list(values) if len(values) <= _LONG else []
    plain = all(type(value) in (int, float) for value in held)
    return held if len(values) <= _LONG and plain else None


def _indices(sampler: Any) -> dict[str, Any] | None:
    held = _long(sampler.indices if type(sampler) is SubsetRandomSampler else sampler)
    return None if held is None else {"indices": held}


def _weighted(sampler: Any) -> dict[str, Any] | None:
    weights = _long(sampler.weights)
    told = {"num_samples": sampler.num_samples, "replacement": sampler.replacement}
    return None if weights is None else {"weights": weights, **told}


def _random(sampler: Any) -> dict[str, Any]:
    told = {"replacement": bool(sampler.replacement), "num_samples": sampler._num_samples}
    return {"n": len(sampler.data_source), **told}


def _distributed(sampler: Any) -> dict[str, Any]:
    told = {"shuffle": bool(sampler.shuffle), "seed": sampler.seed, "drop_last": bool(sampler.drop_last)}
    return {"n": len(sampler.dataset), **told}


def _own(*names: str) -> Callable[[Any], dict[str, Any]]:
    def read(sampler: Any) -> dict[str, Any]:
        told = {name: getattr(sampler, name) for name in names}
        return {"n": sampler.num_samples, **told, "ranks": sampler.num_replicas, "pad": sampler.pad}

    return read


def _own_made(kind: Any) -> Callable[[dict[str, Any], Spot], Any]:
    def make(told: dict[str, Any], spot: Spot) -> Any:
        ranks, pad = told.pop("ranks"), told.pop("pad")
        if "batch_size" in told and spot.batch_size is not None:
            told["batch_size"] = spot.batch_size
        sampler = kind(told.pop("n"), **told)
        return sampler if ranks == 1 else sampler.set_distributed(spot.world, spot.rank, pad)

    return make


def _share_made(told: dict[str, Any], spot: Spot) -> Any:
    indices: Any = range(told.pop("n"))  # it asks a dataset for its length, and for nothing else
    return DistributedSampler(indices, spot.world, spot.rank, **told)


_Row = tuple[type, Callable[[Any], "dict[str, Any] | None"], Callable[[dict[str, Any], Spot], Any]]
_ROWS: tuple[_Row, ...] = (
    (SequentialSampler, lambda s: {"n": len(s.data_source)}, lambda t, _: SequentialSampler(range(t["n"]))),
    (RandomSampler, _random, lambda t, _: RandomSampler(range(t.pop("n")), **t)),
    (SubsetRandomSampler, _indices, lambda t, _: SubsetRandomSampler(t["indices"])),
    (WeightedRandomSampler, _weighted, lambda t, _: WeightedRandomSampler(**t)),
    (DistributedSampler, _distributed, _share_made),
    (range, lambda s: {"range": [s.start, s.stop, s.step]}, lambda t, _: range(*t["range"])),
    (list, _indices, lambda t, _: t["indices"]),
    (ours.SequentialSampler, _own(), _own_made(ours.SequentialSampler)),
    (ours.RandomSampler, _own("shuffle", "seed"), _own_made(ours.RandomSampler)),
    (
        ours.RandomBatchSampler,
        _own("batch_size", "shuffle", "drop_last", "seed"),
        _own_made(ours.RandomBatchSampler),
    ),
)
_KINDS: dict[str, _Row] = {_name(row[0]): row for row in _ROWS}
"""name -> the class, what is remembered of it, and how it is built of that again."""


# -- finding the ids ---------------------------------------------------------------------------------------


def ids_remembered(told: Mapping[str, Any], spot: Spot) -> list[Any] | None:
    """Return the sample ids at a place of the order that a run remembers; None if the epoch ends before.

    Args:
        told: what `remembered` returned, with its `made_of`.
        spot: the place.
    """
    _, _, make = _KINDS[told["sampler"]]
    sampler = make(copy.deepcopy(told["made_of"]), spot)
    if told.get("even"):
        shuffled = isinstance(sampler, RandomSampler)
        sampler = DistributedSampler(sampler.data_source, spot.world, spot.rank, shuffle=shuffled, drop_last=True)
    if "drop_last" in told:
        size = told.get("batch_size", spot.batch_size)
        sampler = BatchSampler(sampler, size, told["drop_last"])
    return _ids(sampler, told["single"], Sharing(told["sharing"]), spot)


def knows(told: Mapping[str, Any]) -> bool:
    """Say whether a run remembers all of its order."""
    return told.get("made_of") is not None and told.get("sampler") in _KINDS


def ids_asked(dataloader: Any, share: bool | None, spot: Spot) -> Iterator[list[Any] | None]:
    """Ask a loader for the sample ids at a place of its order: at once; then after the orders of all epochs before it.

    The second answer is that of samplers which keep something from one epoch to the next. They are left as they were.

    Args:
        dataloader: as the run's own was built.
        share: the user's `use_dist_sampler`.
        spot: the place.

    Yields:
        The ids; None if the epoch ends before the place.

    Raises:
        CallerError: the loader has no index.
    """
    if not has_index(dataloader):
        raise CallerError(
            f"the training loader, a {type(dataloader).__name__}, has no index: its samples have no ids, and no order "
            "says what was in a batch"
        )
    sampler: Any = _decider(dataloader)
    if type(sampler) is BatchSampler and spot.batch_size is not None:
        sampler = BatchSampler(sampler.sampler, spot.batch_size, sampler.drop_last)
    single, sharing, states = dataloader.batch_sampler is None, sharing_of(dataloader, share), SamplerStates(sampler)
    states.begin(0)
    try:
        yield _ids(sampler, single, sharing, spot)
        _put_back(states)
        order = _order(sampler, single, sharing, spot)
        for epoch in range(spot.epoch):
            for _ in order.open(epoch, 0, 0).entries:
                pass
        yield _ids(sampler, single, sharing, spot)
    finally:
        _put_back(states)


def _put_back(states: SamplerStates) -> None:
    held = states.state()
    if held is not None:
        states.load({**held, "now": held["begun"]})
        states.begin(0)


def _order(sampler: Any, single: bool, sharing: Sharing, spot: Spot) -> Order | Dealt:
    if spot.world == 1 or sharing is Sharing.OWN:
        return Order(sampler, spot.seed, single)
    return Dealt(sampler, spot.seed, single, _Absent(spot.rank, spot.world), lambda text: None)


def _ids(sampler: Any, single: bool, sharing: Sharing, spot: Spot) -> list[Any] | None:
    place = None if spot.world > 1 and sharing is Sharing.OWN else spot.place  # else it counts what others read
    order = _order(sampler, single, sharing, spot)
    entry = next(order.open(spot.epoch, spot.done, place).entries, None)
    if entry is None:
        return None
    return ids_in(entry.entry if isinstance(order, Dealt) else entry, single)


class _Absent(Ranks):
    """One of many ranks, of which no other is there: what all are asked, it answers as they did."""

    def __init__(self, rank: int, world: int) -> None:
        self.rank, self.world_size = rank, world


__all__ = ["Spot", "ids_asked", "ids_remembered", "knows", "remembered"]
