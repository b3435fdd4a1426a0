"""The work that several benchmarks do: the small model that all are measured on, and a stub that keeps no notes.

torch is imported by what needs it, so that a benchmark of the engine alone is one of a process without it.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tachograph.drivers import StubDriver
from tachograph.engine import Trainer

if TYPE_CHECKING:
    import torch

BATCHES = 1000  # an epoch of the stub's
WIDTHS = (32, 64, 2)
BATCH = 16
QUIET: dict[str, Any] = {"snapshot_every": None, "progress_bar": None}


class Forgetful(StubDriver):
    """The stub without its notes for tests, which would grow."""

    def _called(self, name: str) -> None:
        pass

    def train_step(self, batch: int) -> dict[str, float]:
        outputs = super().train_step(batch)
        self.seen.clear()
        return outputs


def stub_trainer(run_dir: Path | None, transitions: int, driver: StubDriver | None = None, **settings: Any) -> Trainer:
    """Return a trainer of the stub's that makes about so many transitions, two epochs at the least."""
    epochs = max(transitions // (2 * BATCHES), 2)
    given = {"n_epochs": epochs, **QUIET, **settings}
    return Trainer(None, driver or Forgetful(), list(range(BATCHES)), None, run_dir=run_dir, **given)


def stub_run(run_dir: Path | None, transitions: int, driver: StubDriver | None = None, **settings: Any) -> int:
    """Make a run of the stub's; return how many transitions it has."""
    return int(stub_trainer(run_dir, transitions, driver, **settings).run().seq)


def resident() -> float:
    """Return this process's resident memory in MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 1e6


def model(widths: tuple[int, ...] = WIDTHS) -> torch.nn.Module:
    """Return an MLP with a `train_step` on (inputs, classes), from seed 0."""
    import torch
    from torch import nn

    class MLP(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layers = [nn.Linear(a, b) for a, b in itertools.pairwise(widths)]
            self.net = nn.Sequential(*[part for layer in layers for part in (layer, nn.ReLU())][:-1])
            self.loss = nn.CrossEntropyLoss()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.net(x)

        def train_step(self, batch: list[torch.Tensor]) -> dict[str, torch.Tensor]:
            x, y = batch
            return {"loss": self.loss(self.net(x), y)}

    torch.manual_seed(0)
    return MLP()


def samples(n: int, widths: tuple[int, ...] = WIDTHS) -> tuple[torch.Tensor, torch.Tensor]:
    """Return so many inputs and classes, the same each time."""
    import torch

    made = torch.Generator().manual_seed(0)
    return torch.randn(n, widths[0], generator=made), torch.randint(0, widths[-1], (n,), generator=made)
