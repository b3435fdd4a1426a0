"""A trainer of sequences of unequal length, by precision, window and driver; and the loop of torch's documentation.

Tests of one process and jobs of several build the same with `build`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from tachograph.engine import Trainer

IGNORED = -100
PRECISIONS = ("fp32", "bf16", "fp16")
SCALER = {"init_scale": 64.0, "growth_interval": 3}
LENGTHS = (5, 1, 4, 0, 2, 7, 3, 1, 6, 2)
"""Valid targets of the samples, one after the other: a batch may have none."""


class Sentences(Dataset[dict[str, torch.Tensor]]):
    """Samples of eight tokens, of which the first few have a target."""

    def __init__(self, lengths: Sequence[int] = LENGTHS) -> None:
        self.lengths = list(lengths)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        made = torch.Generator().manual_seed(index)
        x, y = torch.randn(8, 4, generator=made), torch.randint(0, 3, (8,), generator=made)
        y[self.lengths[index] :] = IGNORED
        return {"x": x, "y": y, "id": torch.tensor(index)}


class Tagger(nn.Module):
    """Tags each token. Its loss is the mean over the valid targets, and no number where there are none.

    Args:
        dropout: of the hidden layer.
        overflows: samples whose loss overflows in half precision.
    """

    def __init__(self, dropout: float = 0.0, overflows: Sequence[int] = ()) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Dropout(dropout))
        self.head = nn.Linear(6, 3)
        self.overflows = frozenset(overflows)

    def train_step(self, x: torch.Tensor, y: torch.Tensor, id: torch.Tensor) -> dict[str, Any]:
        logits = self.head(self.body(x))
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), y.flatten(), ignore_index=IGNORED)
        if self.overflows & set(id.tolist()):
            loss = loss * 1e38
        return {"loss": loss, "n_targets": (y != IGNORED).sum()}


def optimizers_of(model: Tagger, many: bool = False) -> list[Any]:
    if not many:
        return [torch.optim.Adam(model.parameters(), lr=0.02)]
    return [torch.optim.SGD(model.body.parameters(), lr=0.1, momentum=0.9), torch.optim.Adam(model.head.parameters())]


def loader_of(lengths: Sequence[int] = LENGTHS, batch_size: int = 1) -> DataLoader[Any]:
    return DataLoader(Sentences(lengths), batch_size=batch_size)


class Unknown:
    """A loader that doesn't know its length."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __iter__(self) -> Any:
        return iter(self.loader)


def build(
    precision: str = "fp32",
    driver: Any = "torch",
    *,
    k: int = 4,
    many: bool = False,
    known: bool = True,
    lengths: Sequence[int] = LENGTHS,
    batch_size: int = 1,
    dropout: float = 0.0,
    overflows: Sequence[int] = (),
    make: Callable[[Any], Any] | None = None,
    **settings: Any,
) -> Trainer:
    """Build everything anew.

    Args:
        precision: "fp32", "bf16" or "fp16".
        driver: as a trainer takes it.
        k: micro-batches in a window.
        many: one optimizer for the body and one for the head.
        known: the loader knows its length.
        lengths: valid targets of the samples.
        batch_size: samples in a micro-batch of one process.
        dropout: of the model.
        overflows: the samples that overflow.
        make: `f(optimizers) -> callbacks`.
        settings: of the trainer.
    """
    torch.manual_seed(5)
    model = Tagger(dropout, overflows)
    optimizers = optimizers_of(model, many)
    loader: Any = loader_of(lengths, batch_size)
    settings = {"n_epochs": 2, "run_dir": None, "progress_bar": None, "seed": 3, **settings}
    return Trainer(
        model,
        driver,
        loader if known else Unknown(loader),
        optimizers,
        precision=precision,
        accumulation_steps=k,
        torch_kwargs={"gradscaler_kwargs": SCALER},
        callbacks=None if make is None else make(optimizers),
        **settings,
    )


def windows_of(n: int, k: int, epochs: int, tail: str) -> list[list[int]]:
    """Return the micro-batches of each update, by their numbers in an epoch."""
    if tail == "carry":
        every = list(range(n)) * epochs
        return [every[i : i + k] for i in range(0, len(every) - k + 1, k)]
    one = [list(range(i, min(i + k, n))) for i in range(0, n, k)]
    return [window for window in one if tail == "flush" or len(window) == k] * epochs


def by_hand(
    precision: str = "fp32",
    *,
    k: int = 4,
    many: bool = False,
    tail: str = "flush",
    weighed: bool = False,
    clip: float = math.inf,
    lengths: Sequence[int] = LENGTHS,
    batch_size: int = 1,
    overflows: Sequence[int] = (),
    epochs: int = 2,
) -> tuple[list[torch.Tensor], dict[str, Any], int]:
    """Train as torch's documentation says, in one process, with each loss divided by what it should be.

    Returns:
        The weights, the scaler's state and how many updates were taken.
    """
    torch.manual_seed(5)
    model = Tagger(0.0, overflows)
    optimizers = optimizers_of(model, many)
    batches = list(loader_of(lengths, batch_size))
    scaler = torch.amp.GradScaler("cpu", enabled=precision == "fp16", **SCALER)  # type: ignore[arg-type]
    dtype = torch.float16 if precision == "fp16" else torch.bfloat16
    taken = 0
    for window in windows_of(len(batches), k, epochs, tail):
        counts = [int((batches[i]["y"] != IGNORED).sum()) for i in window]
        total = sum(counts) if weighed else len(window)
        for i, count in zip(window, counts, strict=True):
            with torch.autocast("cpu", dtype=dtype, enabled=precision != "fp32"):
                loss = model.train_step(**batches[i])["loss"]
            if count or not weighed:
                scaler.scale(loss * count / total if weighed else loss / total).backward()
        if total:
            for optimizer in optimizers:
                scaler.unscale_(optimizer)
            if clip < math.inf:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            finite = all(bool(p.grad.isfinite().all()) for p in model.parameters() if p.grad is not None)
            for optimizer in optimizers if finite else ():
                scaler.step(optimizer)
            scaler.update()
            taken += finite
        for optimizer in optimizers:
            optimizer.zero_grad()
    return [p.detach().clone() for p in model.parameters()], scaler.state_dict(), taken


def weights_of(trainer: Trainer) -> list[torch.Tensor]:
    """The model's weights, whole on each rank."""
    assert trainer.driver is not None
    whole = [p.full_tensor() if hasattr(p, "full_tensor") else p for p in trainer.driver.model.parameters()]
    return [p.detach().clone() for p in whole]
