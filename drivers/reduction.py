"""Whether gradients come out as their mean over the ranks: it is tried at the start, on the real group.

A reduction that adds and doesn't divide trains with gradients that are too large by the number of ranks, and nothing
says so; some builds of gloo have done that. Then the sum is asked for, and divided here.
"""

from __future__ import annotations

import attrs
import torch
from torch import nn

from tachograph.states.errors import CallerError

from .ranks import Ranks
from .sharding import Options, shard
from .spread import local


def averaging(options: Options, device: torch.device, ranks: Ranks) -> Options:
    """Return options under which gradients are averaged.

    Args:
        options: how the model is going to be sharded.
        device: of this rank.
        ranks: all of them call it.

    Raises:
        CallerError: neither torch's averages nor its sums are right here.
    """
    found = _fault(options, device, ranks)
    if not found:
        return options
    summing = attrs.evolve(options, sums=True)
    if _fault(summing, device, ranks):
        raise CallerError(
            f"{found}, and dividing a sum doesn't mend it: every step would go wrong. Use another backend "
            "(torch.distributed.init_process_group), or another build of torch"
        )
    return summing


def _fault(options: Options, device: torch.device, ranks: Ranks) -> str:
    """Exchange a known gradient over all ranks; say what is wrong with what comes of it, "" if nothing is."""
    given = [rank % 8 + 1 for rank in range(ranks.world_size)]
    expected = sum(given) / len(given)
    probe = _Probe(ranks.world_size).to(device)
    shard(probe, [], options)
    probe(float(given[ranks.rank])).backward()
    got = local(probe.weight.grad).float()
    wrong = bool(((got - expected).abs() > 0.01 * expected).any())
    if not ranks.agree(int(wrong)):
        return ""
    seen = [value for held in ranks.gather(got.tolist()) for value in held]
    return f"the gradients {given} of {len(given)} ranks were averaged to {seen[0]:g} instead of {expected:g}"


class _Probe(nn.Module):
    """A parameter with a row for each rank; the gradient of each row is what is given."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(rows))

    def forward(self, factor: float) -> torch.Tensor:
        return (self.weight * factor).sum()


__all__ = ["averaging"]
