"""What the tests train: small models, data that knows its index, trainers without torch, listeners that take notes."""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from torch import nn
from torch.utils.data import DataLoader, Dataset

from tachograph.drivers import StubDriver
from tachograph.engine import Callback, Journal, Trainer
from tachograph.engine.callbacks.callback import MOMENTS
from tachograph.states import TrainerState, training_machine

counts = st.integers(0, 1000)
states = st.builds(
    TrainerState,
    state=st.sampled_from(training_machine().names),
    **dict.fromkeys(("seq", "cur_epoch_idx", "batch_idx_in_epoch", "global_forward_batches"), counts),
    **dict.fromkeys(("optimizer_steps", "accumulated", "samples", "place", "validations"), counts),
    **{name: st.none() | counts for name in ("num_batches_per_epoch", "n_epochs", "total_batches")},
    epoch_exhausted=st.booleans(),
    epoch_cut_asked=st.sampled_from(["", "overfit"]),
    validate_due=st.booleans(),
    stop_asked=st.sampled_from(["", "enough"]),
    results=st.dictionaries(st.text(max_size=3), st.integers() | st.floats(allow_nan=False), max_size=2),
)
"""Any `TrainerState`."""


def files_of(folder: Path) -> dict[Path, bytes]:
    """All files under a folder, but for journals' locks."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != "lock"}


# -- without torch -----------------------------------------------------------------------------------------


class Sum:
    """A metric: the sum of what it saw, and how much it saw."""

    def __init__(self) -> None:
        self.reset()

    def update(self, value: int) -> None:
        self.total += value
        self.n += 1

    def compute(self) -> dict[str, int]:
        return {"sum": self.total, "n": self.n}

    def reset(self) -> None:
        self.total = self.n = 0


class Scores:
    """A metric that gives away a fixed list of scores, one per validation (the sanity check takes none of them)."""

    def __init__(self, scores: Sequence[float]) -> None:
        self.scores = list(scores)
        self.trainer: Any = None

    def update(self, value: Any) -> None:
        pass

    def compute(self) -> float:
        return self.scores[self.trainer.trainer_state.validations]

    def reset(self) -> None:
        pass


def stub(batches: Sequence[Any] = (1, 2, 3), driver: StubDriver | None = None, **settings: Any) -> Trainer:
    """A trainer of whole numbers: three batches, two epochs, nothing on disk."""
    driver = StubDriver() if driver is None else driver
    settings = {"n_epochs": 2, "run_dir": None, "progress_bar": None, **settings}
    return Trainer(None, driver, list(batches), None, **settings)


def validated(scores: Sequence[float], **settings: Any) -> Trainer:
    """A trainer of one batch an epoch, whose n-th validation scores the n-th of `scores`."""
    metric = Scores(scores)
    settings = {"n_epochs": len(scores), **settings}
    metric.trainer = stub([1], metrics={"score": metric}, validate_dataloaders=[1], **settings)
    return metric.trainer


# -- with torch --------------------------------------------------------------------------------------------


class Mean:
    """A metric of the loss."""

    def __init__(self) -> None:
        self.reset()

    def update(self, loss: torch.Tensor) -> None:
        self.losses.append(float(loss))

    def compute(self) -> float:
        return sum(self.losses) / len(self.losses)

    def reset(self) -> None:
        self.losses: list[float] = []


class Indexed(Dataset[dict[str, Any]]):
    """`n` samples that know their index; each read is noted, and moved by noise from all three generators.

    Args:
        n: how many samples.
        noise: draw from Python's, numpy's and torch's generator for each sample.
    """

    def __init__(self, n: int = 12, noise: bool = False) -> None:
        self.n, self.noise = n, noise
        self.reads: list[int] = []

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, index: int) -> dict[str, Any]:
        self.reads.append(index)
        x = torch.linspace(-1, 1, 4) * (index + 1) / self.n
        if self.noise:
            x = x + 0.1 * torch.rand(4) + 0.1 * random.random() + 0.1 * float(np.random.rand())
        return {"id": torch.tensor(index), "x": x.float(), "y": x.sum().float()}


class Regression(nn.Module):
    """Four numbers to one, through dropout: equal only if generators, order and batches are."""

    def __init__(self, dropout: float = 0.5) -> None:
        super().__init__()
        self.hidden = nn.Linear(4, 8)
        self.dropout = nn.Dropout(dropout)
        self.out = nn.Linear(8, 1)
        self.seen: list[list[int]] = []

    def forward(self, x: torch.Tensor, y: torch.Tensor, id: torch.Tensor) -> dict[str, Any]:
        if self.training:
            self.seen.append(id.tolist())
        predicted = self.out(self.dropout(torch.relu(self.hidden(x)))).squeeze(-1)
        return {"loss": ((predicted - y) ** 2).mean(), "predicted": predicted}


class Run:
    """Everything a training script builds anew after a crash: model, data, loader, optimizer, trainer.

    Args:
        seed: of the model's weights and of the run.
        optimizer: `f(parameters) -> optimizer`; None means Adam.
        callbacks: `f(run) -> callbacks`, since they may need the optimizer.
        settings: of the trainer.
    """

    def __init__(
        self,
        *,
        seed: int = 7,
        n: int = 12,
        batch_size: int = 2,
        noise: bool = True,
        loader: dict[str, Any] | None = None,
        optimizer: Callable[[Any], Any] | None = None,
        callbacks: Callable[[Run], Any] | None = None,
        init: int | None = None,
        **settings: Any,
    ) -> None:
        torch.manual_seed(seed if init is None else init)
        self.model = Regression()
        self.data = Indexed(n, noise)
        loader = {"shuffle": True, **(loader or {})}
        self.loader: Any = DataLoader(self.data, batch_size=batch_size, **loader)
        make = optimizer or (lambda parameters: torch.optim.Adam(parameters, lr=0.01))
        self.optimizer = make(self.model.parameters())
        settings = {"n_epochs": 2, "run_dir": None, "progress_bar": None, "seed": seed, **settings}
        held = None if callbacks is None else callbacks(self)
        self.trainer = Trainer(self.model, "torch", self.loader, self.optimizer, callbacks=held, **settings)

    def run(self, **arguments: Any) -> TrainerState:
        return self.trainer.run(**arguments)

    @property
    def chain(self) -> str:
        journal = self.trainer.journal
        assert journal is not None
        return journal.chain

    @property
    def weights(self) -> list[torch.Tensor]:
        return [p.detach().clone() for p in self.model.parameters()]

    @property
    def generators(self) -> tuple[Any, ...]:
        return random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()


def equal(a: Sequence[torch.Tensor], b: Sequence[torch.Tensor]) -> bool:
    """Whether two lists of tensors are the same, bit for bit."""
    return len(a) == len(b) and all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


# -- listeners ---------------------------------------------------------------------------------------------


class Counts(Callback):
    """Counts batches, from where it is told.

    Args:
        start: the first number.
        name: what it calls itself; "" leaves it its class's name.
    """

    def __init__(self, start: int = 0, name: str = "") -> None:
        self.n, self.name = start, name

    @property
    def callback_name(self) -> str:
        return self.name or type(self).__name__

    def on_train_batch_end(self, trainer: Any) -> None:
        self.n += 1

    def state_dict(self) -> dict[str, Any]:
        return {"n": self.n}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.n = state["n"]


def scribe(
    log: list[str], note: Callable[[str, Any, tuple[Any, ...]], str] | None = None, but: Sequence[str] = ()
) -> Callback:
    """A callback that hears every moment, and notes each with what it was given.

    Args:
        log: takes the notes.
        note: `f(name, trainer, args) -> text`; None: the name, with the arguments that are plain.
        but: moments it doesn't hear.
    """

    def listener(name: str) -> Callable[..., None]:
        def heard(self: Any, trainer: Any, *args: Any) -> None:
            log.append(name if note is None else note(name, trainer, args))

        parameters = [
            inspect.Parameter(p, inspect.Parameter.POSITIONAL_OR_KEYWORD) for p in ("self", "trainer", *MOMENTS[name])
        ]
        heard.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return heard

    return type("Scribe", (Callback,), {name: listener(name) for name in MOMENTS if name not in but})()  # type: ignore[no-any-return]


def stop_at(target: Any, number: int, reason: str = "here") -> Callable[[Trainer], None]:
    """Subscribe a stop to the `number`-th time that a target is heard."""

    def subscribe(trainer: Trainer) -> None:
        heard = []

        def stop(trainer: Any) -> None:
            heard.append(1)
            if len(heard) == number:
                trainer.stop(reason)

        trainer.on(target, stop)

    return subscribe


def transitions(run_dir: Path) -> list[str]:
    """A run's live history, one line per transition."""
    return [f"{r.source} --{r.event}--> {r.dest}" for r in Journal(run_dir)]


def sides(run_dir: Path, kind: str) -> list[dict[str, Any]]:
    """The data of a run's side records of a kind."""
    return [record.data for record in Journal(run_dir).sides() if record.kind == kind]
