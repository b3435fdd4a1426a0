"""Two machines of a user's own: a trainer with two states more, and an engine that plays and learns in turns."""

from __future__ import annotations

import argparse
import random
from pathlib import Path
from typing import Any

import attrs
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tachograph.drivers import choose_driver
from tachograph.engine import Engine, Kept, Trainer
from tachograph.states import EpochEnded, Event, Failed, Fetched, Machine, Row, Stopped, TrainerState

torch.set_num_threads(1)


# -- a trainer with two states more ------------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class Blurred(Event):
    """Noise was added to the batch in hand.

    Attributes:
        noise: how much.
    """

    noise: float


@attrs.frozen(kw_only=True)
class Rested(Event):
    """The weights were shrunk between two epochs."""


def odd(state: TrainerState, event: Fetched) -> bool:
    """every second batch"""
    return state.global_forward_batches % 2 == 1


def enough(state: TrainerState, event: Rested) -> bool:
    """all epochs are done"""
    return state.cur_epoch_idx == state.n_epochs


BLURRING = [
    Row("fetch", Fetched, "blur", odd),
    Row("blur", Blurred, "step"),
    Row("epoch_end", EpochEnded, "rest"),
    Row("rest", Rested, "done", enough),
    Row("rest", Rested, "epoch_begin"),
]


class Line(nn.Module):
    """A line through points, with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2, 4), nn.Dropout(0.3), nn.Linear(4, 1))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": nn.functional.mse_loss(self.body(x), y)}


def collated(points: Any) -> dict[str, torch.Tensor]:
    x, y = zip(*points, strict=True)
    return {"x": torch.stack(x), "y": torch.stack(y)}


def blurring(run_dir: Any = None, n_batches: int = -1, **settings: Any) -> Trainer:
    """Add noise to every second batch in a state of its own, and rest after every epoch in another."""
    torch.manual_seed(0)
    model = Line()
    x = torch.arange(24.0).reshape(12, 2) / 24
    loader = DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=4, shuffle=True, collate_fn=collated)

    def blur(state: TrainerState) -> Event:
        noise = torch.randn(4, 2) / 10
        trainer.batch = {**trainer.batch, "x": trainer.batch["x"] + noise}
        return Blurred(noise=noise.abs().mean().item())

    def rest(state: TrainerState) -> Event:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter *= 0.99
        return Rested()

    given = {"n_epochs": 2, "seed": 1, "run_dir": run_dir, "progress_bar": None, **settings}
    trainer = Trainer(
        model,
        "torch",
        loader,
        torch.optim.Adam(model.parameters(), lr=0.01),
        n_batches=n_batches,
        rows=BLURRING,
        perform={"blur": blur, "rest": rest},
        **given,
    )
    return trainer


# -- an engine that plays and learns -----------------------------------------------------------------------


@attrs.frozen(kw_only=True)
class Playing:
    """Where a game is.

    Attributes:
        state: the state's name.
        seq: transitions.
        rounds: that were learned from.
        won: what was won in all.
        stop_asked: why it was asked to stop.
    """

    state: str = "play"
    seq: int = 0
    rounds: int = 0
    won: float = 0.0
    stop_asked: str = ""


@attrs.frozen(kw_only=True)
class Played(Event):
    """A round was played.

    Attributes:
        reward: what was won.
    """

    reward: float

    def fold(self, state: Any, dest: str) -> Any:
        return attrs.evolve(super().fold(state, dest), won=state.won + self.reward)


@attrs.frozen(kw_only=True)
class Judged(Event):
    """The critic was trained."""

    loss: float


@attrs.frozen(kw_only=True)
class Learned(Event):
    """The player was trained."""

    def fold(self, state: Any, dest: str) -> Any:
        return attrs.evolve(super().fold(state, dest), rounds=state.rounds + 1)


def over(state: Playing, event: Learned) -> bool:
    """four rounds are learned from"""
    return state.rounds + 1 == 4


def strong(state: Playing, event: Judged) -> bool:
    """the critic has an even round"""
    return state.rounds % 2 == 0


GAME = Machine(
    [
        Row("play", Played, "judge"),
        Row("judge", Judged, "judge_again", strong),
        Row("judge", Judged, "learn"),
        Row("judge_again", Judged, "learn"),
        Row("learn", Learned, "done", over),
        Row("learn", Learned, "play"),
        Row("*", Stopped, "done"),
        Row("*", Failed, "exception"),
    ],
    initial="play",
)


class Table:
    """A game's table: a generator of its own, and what was played last."""

    def __init__(self) -> None:
        self.random = random.Random(7)
        self.last = 0.0

    def play(self, move: float) -> float:
        self.last = (self.last + move + self.random.random()) % 1
        return self.last

    def state_dict(self) -> dict[str, Any]:
        return {"random": self.random.getstate(), "last": self.last}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        version, words, gauss = state["random"]
        self.random.setstate((version, tuple(words), gauss))
        self.last = state["last"]


def game(run_dir: Any = None, table: Table | None = None, **settings: Any) -> Engine:
    """Play, have the critic judge once or twice, and learn: two models, two optimizers, and a table outside of them."""
    torch.manual_seed(0)
    both = nn.ModuleDict({"player": nn.Linear(3, 1), "critic": nn.Linear(3, 1)})
    driver = choose_driver("torch", both)
    optimizers = {name: torch.optim.Adam(model.parameters(), lr=0.05) for name, model in both.items()}
    driver.set_optimizers(list(optimizers.values()))
    table = Table() if table is None else table

    def train(name: str, loss: torch.Tensor) -> float:
        optimizers[name].zero_grad()
        loss.backward()
        optimizers[name].step()
        return loss.item()

    def play(state: Playing) -> Event:
        engine.batch = torch.randn(5, 3)
        with torch.no_grad():
            move = both["player"](engine.batch).mean().item()
        engine.state.plays = engine.state.get("plays", 0) + 1
        return Played(reward=table.play(move))

    def judge(state: Playing) -> Event:
        return Judged(loss=train("critic", (both["critic"](engine.batch) - state.won).square().mean()))

    def learn(state: Playing) -> Event:
        train("player", -both["critic"](both["player"](engine.batch) + engine.batch).mean() / engine.state.plays)
        engine.batch = None
        return Learned()

    given = {"state": Playing(), "seed": 5, "callbacks": [Kept(table=table)], **settings}
    perform = {"play": play, "judge": judge, "judge_again": judge, "learn": learn}
    engine = Engine(GAME, perform, driver=driver, run_dir=run_dir, **given)
    return engine


if __name__ == "__main__":
    asked = argparse.ArgumentParser()
    asked.add_argument("which", choices=["blurring", "game"])
    asked.add_argument("run_dir", type=Path)
    told = asked.parse_args()
    {"blurring": blurring, "game": game}[told.which](told.run_dir).run(resume_from="auto")
