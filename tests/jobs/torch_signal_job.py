"""A short run with torch whose data are read by worker processes, and which stands still in one place.

It is what `signal_job` is, for Ctrl-C and the like that reach the workers too.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from torch.utils.data import DataLoader

from tachograph.engine import Trainer
from tests.toys import Indexed, Regression

GO = 9
"""Where standard input is to be found: a worker's is another one."""


def stand(times: int = 1) -> None:
    """Stand here until told to go on, so many times."""
    for _ in range(times):
        print("here", flush=True)
        os.read(GO, 1)


class Slow(Indexed):
    """Samples of which one is slow to read."""

    def __init__(self, slow: bool) -> None:
        super().__init__(12)
        self.slow = slow

    def __getitem__(self, index: int) -> dict[str, Any]:
        if self.slow and index == 6:
            stand()
        return super().__getitem__(index)


class Model(Regression):
    """A model that stands still at its third batch, so many times."""

    def __init__(self, slow: int) -> None:
        super().__init__()
        self.slow = slow

    def forward(self, x: torch.Tensor, y: torch.Tensor, id: torch.Tensor) -> dict[str, Any]:
        if self.slow and self.training and len(self.seen) == 2:
            stand(self.slow)
        return super().forward(x, y, id)


class Count:
    """A metric: how many samples were seen."""

    def reset(self) -> None:
        self.n = 0

    def update(self, predicted: torch.Tensor) -> None:
        self.n += len(predicted)

    def compute(self) -> int:
        return self.n


def build(run_dir: Any, place: str = "", context: str | None = None) -> Trainer:
    """Build the run: six batches in a row, and a validation of six after four of them."""
    torch.manual_seed(3)
    model = Model({"a step": 1, "a step, twice": 2}.get(place, 0))
    options: dict[str, Any] = {"batch_size": 2, "num_workers": 2, "multiprocessing_context": context}
    return Trainer(
        model,
        "torch",
        DataLoader(Slow(place == "a fetch"), **options),
        torch.optim.Adam(model.parameters()),
        n_epochs=1,
        validate_dataloaders=DataLoader(Slow(place == "a validation"), **options),
        metrics={"seen": Count()},
        validate_every=4,
        run_dir=run_dir,
        seed=5,
        snapshot_every=None,
        progress_bar=None,
    )


def prepare() -> None:
    """Have torch import what it imports with the first optimizer."""
    torch.optim.SGD([torch.zeros(1)])


def main(run_dir: str, place: str, **settings: Any) -> None:
    """Run it."""
    torch.set_num_threads(1)
    os.dup2(0, GO)
    build(run_dir, place, **settings).run(num_eval_sanity_batch=0, resume_from="auto")
    print("the script goes on")
