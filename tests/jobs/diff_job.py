"""Training runs with one fault each, planted where scripts have theirs: in data, model, listeners, at a resume."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils.data import Dataset, Sampler

from tachograph.engine import Callback, Events, Fingerprints, Trainer, recording
from tests.toys import Indexed, Run

BATCHES = 20  # an epoch, of two samples
ORDER = list(range(2 * BATCHES))


def fetched(step: int) -> int:
    """The transition at which the batch of a training step, from 1, was fetched."""
    return 2 * step + 1


def stepped(step: int) -> int:
    """The transition of a training step, from 1."""
    return 2 * step + 2


def train(
    run_dir: Path,
    *listeners: tuple[Any, Callable[[Trainer], None]],
    every: int | None = 1,
    plant: Callable[[Run], None] = lambda run: None,
    resume: bool | Path = False,
    **settings: Any,
) -> Path:
    """Train one epoch of 20 batches.

    Args:
        run_dir: where.
        listeners: pairs of what is heard and who hears it.
        every: of how many updates fingerprints are taken; None: of none.
        plant: changes what was built before it runs.
        resume: go on with the run that is there, or as a fork from this one.
        settings: of `Run`.
    """
    callbacks: list[Callback] = [] if every is None else [Fingerprints(every)]
    settings = {"n": 2 * BATCHES, "noise": False, "n_epochs": 1, "optimizer": momentum, **settings}
    run = Run(run_dir=run_dir, callbacks=lambda run: callbacks, **settings)
    plant(run)
    for target, listener in listeners:
        run.trainer.on(target, listener)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run.run(resume_from="auto" if resume is True else resume or None)
    return run_dir


def momentum(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def stopped_at(run_dir: Path, step: int, **settings: Any) -> Path:
    """A run that was stopped after a training step; a snapshot is there."""
    return train(run_dir, once(step, "on_train_batch_end", lambda trainer: trainer.stop("enough")), **settings)


def once(step: int, moment: str, act: Callable[[Trainer], None]) -> tuple[Any, Callable[[Trainer], None]]:
    """A listener that acts in one training step, from 1; on every other it does nothing."""

    def heard(trainer: Trainer, *args: Any) -> None:
        done = trainer.trainer_state.global_forward_batches
        if done == step - (moment != "on_train_batch_end"):
            act(trainer)

    return getattr(Events, moment), heard


# -- faults ------------------------------------------------------------------------------------------------


class Listed(Sampler[int]):
    """An order that somebody wrote down."""

    def __init__(self, order: Sequence[int]) -> None:
        self.order = order

    def __iter__(self) -> Iterator[int]:
        return iter(self.order)

    def __len__(self) -> int:
        return len(self.order)


def listed(order: Sequence[int]) -> dict[str, Any]:
    return {"loader": {"shuffle": False, "sampler": Listed(order)}}


def swapped(one: int, other: int) -> list[int]:
    order = list(ORDER)
    order[one], order[other] = order[other], order[one]
    return order


class Altered(Dataset[Any]):
    """A dataset in which one row is another one, by the last bits."""

    def __init__(self, data: Indexed, row: int) -> None:
        self.data, self.row = data, row

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> dict[str, Any]:
        held = self.data[index]
        return {**held, "x": held["x"] * (1 + 1e-6)} if index == self.row else held


def altered(row: int) -> Callable[[Run], None]:
    """Change a row of the data that a loader reads, under its feet."""

    def plant(run: Run) -> None:
        held = Altered(Indexed(run.data.n), row)
        run.data.__class__ = type("Indexed", (Indexed,), {"__getitem__": lambda self, index: held[index]})

    return plant


def flip_a_bit(trainer: Trainer) -> None:
    """Flip a low bit of one weight."""
    weight = next(trainer.model.parameters()).data  # type: ignore[attr-defined]
    weight.view(torch.int32)[0, 0] ^= 1 << 12


def draw(trainer: Trainer) -> None:
    torch.rand(1)


def halve_the_rate(trainer: Trainer) -> None:
    for group in trainer.driver.optimizers[0].param_groups:  # type: ignore[union-attr]
        group["lr"] = 0.025


def clear_the_gradients(trainer: Trainer) -> None:
    trainer.driver.optimizers[0].zero_grad()  # type: ignore[union-attr]


def forget_the_moments(run: Run) -> None:
    """Restore everything but the optimizer's state."""
    run.trainer.on("on_after_resume", lambda trainer, report: run.optimizer.state.clear())


def forget_the_generators(run: Run) -> None:
    """Restore everything but the generators, and say nothing."""
    assert run.trainer.driver is not None
    run.trainer.driver.restore_generators = lambda: ""  # type: ignore[method-assign]


class Uneven(torch.autograd.Function):
    """A backward pass whose last bits are the weather's."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return gradient * (1 + int.from_bytes(os.urandom(3), "little") / 2**28)


def uneven_backward(run: Run) -> None:
    run.model.hidden.register_forward_hook(lambda module, given, out: Uneven.apply(out))


def uneven_forward(run: Run) -> None:
    def noisy(module: nn.Module, given: Any, out: torch.Tensor) -> torch.Tensor:
        return out * (1 + int.from_bytes(os.urandom(3), "little") / 2**28)

    run.model.out.register_forward_hook(noisy)


class Wide(nn.Module):
    """A sum that is long enough to be split among threads."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        long = torch.linspace(0.1, 1.7, 300_001) * x.mean()
        return x + long.sum() * 1e-6


def wide(run: Run) -> None:
    run.model.dropout = Wide()  # type: ignore[assignment]


def rewrite(run_dir: Path, **environment: Any) -> None:
    """Have a run say that its environment was another one."""
    about = recording.load(run_dir)
    about["environment"] |= environment
    (run_dir / "run.json").write_text(json.dumps(about))
