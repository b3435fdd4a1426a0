"""The average of a model's weights, with torch's own arithmetic (`torch.optim.swa_utils`).

It lies beside the weights, tensor by tensor, on their device. An update is one operation for all tensors of a device
and dtype. To apply it the contents are exchanged and not the tensors, so whoever holds one (an optimizer, a compiled
model, a recorded graph) goes on holding it; that takes the memory of one tensor.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from tachograph.states.errors import CallerError

from .averages import Averages
from .ranks import ALONE, Ranks

_Pairs = list[tuple[torch.Tensor, torch.Tensor]]  # an average, and what it is the average of


class WeightAverages(Averages):
    """Averages the parameters of a module, each once, whatever it is called.

    Args:
        model: the module.
        buffers: its buffers too; those that aren't floating point (counters, say) are copied.
        ranks: who trains it. All come here together, and rank 0's buffers are those that count.
    """

    def __init__(self, model: nn.Module, *, buffers: bool = False, ranks: Ranks = ALONE) -> None:
        self._model = model
        self._ranks = ranks
        self._buffers = buffers
        self._made: dict[str, torch.Tensor] = {}
        self._parameters: _Groups | None = None
        self._depth = 0
        self._exchanged: _Pairs = []
        self._left: bytes | None = None

    def add(self, decay: float | None) -> None:
        if decay is None or not self._made:
            self._begin()
            return
        if self._parameters is None:  # the same objects for good, where a buffer may be another one after each batch
            self._parameters = _Groups(self._pairs(self._model.named_parameters()))
        self._parameters.move(decay)
        if self._buffers:
            _Groups(self._pairs(self._model.named_buffers())).move(decay)

    def state(self) -> dict[str, Any]:
        return dict(self._made)

    def load(self, state: Mapping[str, Any]) -> None:
        self._made, self._parameters = {}, None
        if state:
            self._begin()
            for name, average in self._made.items():
                average.copy_(state[name])

    def fault(self, state: Mapping[str, Any]) -> str:
        mine = self._named()
        for name in [*mine, *state] if state else ():
            if name not in state:
                return f"it lacks '{name}', which the model has"
            if name not in mine:
                return f"it has '{name}', which the model lacks"
            if state[name].shape != mine[name].shape:
                return f"'{name}' has shape {list(state[name].shape)} in it, {list(mine[name].shape)} in the model"
        return ""

    @property
    def are_applied(self) -> bool:
        return self._depth > 0

    @contextmanager
    def applied(self) -> Iterator[None]:
        if not self._depth:
            self._take_buffers()
            pairs = self._pairs(self._named().items()) if self._made else []
            _check(pairs)
            _exchange(pairs)
            self._exchanged = pairs
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1
            if not self._depth:
                pairs, self._exchanged = self._exchanged, []
                _exchange(pairs)

    def leave(self) -> None:
        self._left = self._digest()

    def take_up(self) -> None:
        self._left = None

    @property
    def are_in_place(self) -> bool:
        return self._left is None or bool(self._ranks.share(self._left == self._digest()))

    def _digest(self) -> bytes:
        return digest_of(self._named())

    @torch.no_grad()
    def _take_buffers(self) -> None:
        """Take rank 0's averages of the buffers; those that are averaged are each rank's own."""
        if not (self._buffers and self._made) or self._ranks.world_size == 1:
            return
        own = {name: self._made[name] for name, _ in self._model.named_buffers()}
        held = self._ranks.share({name: average.cpu() for name, average in own.items()})
        for name, average in own.items():
            average.copy_(held[name])

    def _begin(self) -> None:
        with torch.no_grad():
            for name, tensor in self._named().items():
                if name in self._made:
                    self._made[name].copy_(tensor)
                else:
                    self._made[name] = tensor.detach().clone()

    def _named(self) -> dict[str, torch.Tensor]:
        held: dict[str, torch.Tensor] = dict(self._model.named_parameters())
        return {**held, **dict(self._model.named_buffers())} if self._buffers else held

    def _pairs(self, named: Any) -> _Pairs:
        return [(self._made[name], tensor) for name, tensor in named]


class _Groups:
    """Averages and weights, sorted by what one operation can do."""

    def __init__(self, pairs: _Pairs) -> None:
        groups: dict[Any, _Pairs] = {}
        for pair in pairs:
            groups.setdefault((pair[1].device, pair[1].dtype), []).append(pair)
        split = [([a for a, _ in group], [w for _, w in group]) for group in groups.values()]
        self._moved = [group for group in split if group[1][0].is_floating_point() or group[1][0].is_complex()]
        self._copied = [group for group in split if not any(group is moved for moved in self._moved)]

    @torch.no_grad()
    def move(self, decay: float) -> None:
        move = get_ema_multi_avg_fn(decay)
        for averages, weights in self._moved:
            move(averages, weights, None)
        for averages, weights in self._copied:
            torch._foreach_copy_(averages, weights)


def _check(pairs: _Pairs) -> None:
    """Refuse an exchange that would lose something of either."""
    for average, weight in pairs:
        if average.shape != weight.shape or average.dtype != weight.dtype:
            raise CallerError(
                f"the model has a weight of shape {list(weight.shape)} in {weight.dtype}, which had shape "
                f"{list(average.shape)} in {average.dtype} when its average was begun: the average can't be applied"
            )


def digest_of(named: Mapping[str, torch.Tensor]) -> bytes:
    """Tell tensors from all others, bit for bit; it takes the memory of one, and not of them all."""
    held = hashlib.blake2b(digest_size=16)
    for name, tensor in named.items():
        held.update(f"{name} {tensor.dtype} {list(tensor.shape)};".encode())
        held.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]
    return held.digest()


@torch.no_grad()
def _exchange(pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
    """Exchange the contents of each pair; of all or, after an error, of none."""
    done: _Pairs = []
    try:
        for average, weight in pairs:
            held = weight.detach().clone()  # there may be no memory for it
            weight.copy_(average)
            average.copy_(held)
            done.append((average, weight))
    except BaseException:
        _exchange(done)
        raise


__all__ = ["WeightAverages", "digest_of"]
