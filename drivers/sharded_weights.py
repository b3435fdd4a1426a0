"""The weights of a sharded model, whole: copied, put back, compared, averaged, written, read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from . import buffers, restoring, storage
from .averaging import WeightAverages, digest_of
from .plain_models import read_model
from .sharded_captures import ShardedCaptures
from .spread import cut, local, whole
from .weights import same


class ShardedWeights(ShardedCaptures):
    """The part of `TorchFSDPDriver` that knows the model as a whole. All ranks call each of its methods."""

    @contextmanager
    def _with_buffers_of_rank_0(self) -> Iterator[None]:
        """Run the body with the same buffers on every rank; in a step each moves its own (running means, say)."""
        self._reshard()
        with buffers.of_the_first(self.model):
            yield

    def weights(self) -> Any:
        """Copy the whole weights to the CPU's memory, on every rank: all of them call it."""
        with self._with_buffers_of_rank_0():
            return {name: storage.copied(whole(value)) for name, value in self.model.state_dict().items()}

    def put_weights(self, held: Any) -> None:
        self._reshard()
        restoring.check_model(self.model, held)
        mine = self.model.state_dict()
        self.model.load_state_dict({name: cut(value, mine[name]) for name, value in held.items()})

    def has_weights(self, held: Any) -> bool:
        with self._with_buffers_of_rank_0():
            mine = self.model.state_dict()
            alike = isinstance(held, dict) and mine.keys() == held.keys()
            alike = alike and all(same(local(value), _own_of(held[name], value)) for name, value in mine.items())
        return not self.ranks.agree(int(not alike))

    def save_model(self, target: Any) -> None:
        """Write the whole weights, by the names of the model as it was given: all ranks call it, and rank 0 writes."""
        self._reshard()
        state = {}
        for name, value in self.model.state_dict().items():
            gathered = whole(value)
            if self.ranks.first:
                state[name] = storage.copied(gathered)
        if self.ranks.first:
            storage.write_model(state, target)

    def load_model(self, source: Any) -> None:
        self.put_weights(read_model(source))


class ShardedAverages(WeightAverages):
    """Averages this rank's shares; whether the average is in place, all ranks know of all shares."""

    def _digest(self) -> bytes:
        own = digest_of({name: local(tensor) for name, tensor in self._named().items()})
        return b"".join(self._ranks.gather(own))


def _own_of(whole: Any, like: Any) -> Any:
    """Return this rank's part of a whole tensor; None if the shapes differ."""
    alike = getattr(whole, "shape", None) == getattr(like, "shape", None)
    return local(cut(whole, like)) if alike else None


__all__ = ["ShardedAverages", "ShardedWeights"]
