"""The work that every contender does, and the clock that is read in it.

The dataset reads the clock: when the first sample of a batch near the beginning is asked for, and that of the last one.
Between the two lies a known number of whole steps, whatever a library calls a step, whether it fetches a batch ahead,
and however long it takes to set up and to end. Nothing of a peer has to be instrumented.
"""

from __future__ import annotations

import logging
import os
import sys
import time
import warnings
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any, TextIO

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

BATCH = 16
BEFORE = 5  # steps before the clock is read: memory is found, Adam's moments are made


def answering() -> TextIO:
    """Make this a contender's process: one thread, and nothing said but what is written to the file returned."""
    said = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what a library prints isn't an answer
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    return said


class Samples(Dataset):
    """A dataset as people write it, one sample at a time, which reads a clock before two of its batches."""

    clock: Callable[[], Any] = staticmethod(lambda: (time.perf_counter(), time.process_time()))

    def __init__(self, steps: int) -> None:
        made = torch.Generator().manual_seed(0)
        self.batches = BEFORE + steps + 1
        self.x = torch.randn(BATCH * self.batches, 32, generator=made)
        self.y = torch.randint(0, 2, (BATCH * self.batches,), generator=made)
        self._marks = (BEFORE * BATCH, (BEFORE + steps) * BATCH)
        self.begin()

    def begin(self) -> None:
        """Forget what was noted."""
        self.asked = 0
        self.noted: list[Any] = []

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
        if self.asked in self._marks:
            self.noted.append(self.clock())
        self.asked += 1
        return self.x[i], self.y[i]


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 2))
        self.loss = nn.CrossEntropyLoss()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)

    def train_step(self, batch: Any) -> dict[str, torch.Tensor]:
        x, y = batch
        return {"loss": self.loss(self.net(x), y)}


class Work:
    """The same for all: an epoch on a small MLP with Adam, batch 16, shuffled, `steps` of whose steps are timed.

    Attributes:
        data: the dataset.
        folder: where a library may write.
    """

    def __init__(self, steps: int, folder: str) -> None:
        self.data = Samples(steps)
        self.folder = folder

    def loader(self) -> DataLoader:
        """Return a new loader."""
        return DataLoader(self.data, batch_size=BATCH, shuffle=True)

    def new(self) -> tuple[Model, torch.optim.Optimizer, DataLoader]:
        """Return a new model, its optimizer, and a loader."""
        model = Model()
        return model, torch.optim.Adam(model.parameters()), self.loader()

    def timed(self, run: Callable[[Work, int], torch.optim.Optimizer], listeners: int) -> tuple[float, float]:
        """Run an epoch; return the seconds of its timed steps, by the clock and of the processor.

        Raises:
            RuntimeError: it wasn't this work that was done.
        """
        torch.manual_seed(0)
        self.data.begin()
        optimizer = run(self, listeners)
        steps = {int(held["step"]) for held in optimizer.state.values()}
        if steps != {self.data.batches} or self.data.asked != len(self.data):
            raise RuntimeError(
                f"{self.data.batches} steps on {len(self.data)} samples, not {steps} on {self.data.asked}"
            )
        (began, cpu_began), (ended, cpu_ended) = self.data.noted
        return ended - began, cpu_ended - cpu_began

    def checked(self, run: Callable[[Work, int], torch.optim.Optimizer], listeners: int, listener: CodeType) -> None:
        """Run an epoch, and see that every listener is called at the end of each batch.

        Raises:
            RuntimeError: they are called more or less often, or it wasn't this work that was done.
        """
        heard = 0

        def count(frame: FrameType, event: str, _: Any) -> None:
            nonlocal heard
            heard += event == "call" and frame.f_code is listener

        sys.setprofile(count)
        try:
            self.timed(run, listeners)
        finally:
            sys.setprofile(None)
        if heard != listeners * self.data.batches:
            raise RuntimeError(f"{listeners} listeners heard {heard} calls in {self.data.batches} batches")


def bare(work: Work, listeners: int) -> torch.optim.Optimizer:
    """The loop that everybody knows."""
    model, optimizer, loader = work.new()
    for batch in loader:
        loss = model.train_step(batch)["loss"]
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return optimizer
