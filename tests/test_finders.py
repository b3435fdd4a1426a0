"""Finders look for a setting by trial, and the run has the same bits with them as without."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, Sampler, TensorDataset

from tachograph.drivers import StubDriver
from tachograph.engine import Callback, Events, Journal, Trainer
from tachograph.states.errors import CallerError
from tests.toys import Indexed, Regression, Run, equal, scribe, stub


def find_lr(trainer: Trainer) -> Any:
    return trainer.find_lr(1e-6, 10.0, num_batches=20)


def find_batch_size(trainer: Trainer) -> Any:
    return trainer.find_batch_size(start=2, max_size=8, fits=lambda size: size < 6)


FINDERS = [find_lr, find_batch_size]
both = pytest.mark.parametrize("find", FINDERS)


class Normed(nn.Module):
    """Keeps running means, a buffer that no state dict knows, and draws in its forward pass."""

    counted: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.inner = Regression()
        self.register_buffer("counted", torch.zeros(1), persistent=False)

    def forward(self, x: torch.Tensor, y: torch.Tensor, id: torch.Tensor) -> dict[str, Any]:
        self.counted += 1
        return {"loss": self.inner(self.norm(x), y, id)["loss"] * (1 + 0.001 * self.counted.sum())}


class Shuffled(Sampler[int]):
    """A sampler of a user's own that shuffles its list in place, with a generator of its own."""

    def __init__(self, n: int) -> None:
        self.order, self.random = list(range(n)), random.Random(3)

    def __iter__(self) -> Iterator[int]:
        self.random.shuffle(self.order)
        return iter(list(self.order))

    def __len__(self) -> int:
        return len(self.order)


def built(run_dir: Path | None, model: Callable[[], nn.Module] = Normed, **settings: Any) -> Trainer:
    """A trainer with much that could be moved: dropout, batch norm, shuffle, noise, momentum, two groups."""
    torch.manual_seed(3)
    net = model()
    first, *rest = net.parameters()
    optimizer = torch.optim.Adam([{"params": [first], "lr": 0.02}, {"params": rest}], lr=0.01, amsgrad=True)
    loader = {"batch_size": 2, "shuffle": True, **settings.pop("loader", {})}
    data = DataLoader(Indexed(12, noise=True), **loader)
    given = {"n_epochs": 2, "seed": 5, "progress_bar": None, "run_dir": run_dir, **settings}
    return Trainer(net, "torch", data, optimizer, **given)


def all_of(trainer: Trainer) -> tuple[Any, ...]:
    """Everything that a trial could have moved, as plain data."""
    driver: Any = trainer.driver
    state = driver.model.state_dict()
    return (
        {name: value.tolist() for name, value in state.items()},
        {name: value.tolist() for name, value in driver.model.named_buffers()},
        [None if p.grad is None else p.grad.tolist() for p in driver.model.parameters()],
        [module.training for module in driver.model.modules()],
        repr([optimizer.state_dict() for optimizer in driver.optimizers]),
        None if driver._scaler is None else driver._scaler.state_dict(),
        (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist(), torch.initial_seed()),
        trainer.trainer_state,
        dict(trainer.state),
    )


SETTINGS = [
    pytest.param({}, id="plain"),
    pytest.param({"loader": {"num_workers": 2}}, id="two workers"),
    pytest.param({"precision": "fp16"}, id="a gradient scaler"),
    pytest.param({"precision": "bf16", "accumulation_steps": 4, "accumulation_tail": "carry"}, id="an open window"),
    pytest.param({"loader": {"sampler": Shuffled, "shuffle": False}}, id="a sampler with a memory"),
]


def with_sampler(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings with a sampler of their own, since it has a memory."""
    loader = dict(settings.get("loader", {}))
    if "sampler" in loader:
        loader["sampler"] = loader["sampler"](12)
    return {**settings, "loader": loader}


@both
@pytest.mark.parametrize("settings", SETTINGS)
def test_a_trial_before_the_run_leaves_everything_as_it_was(
    tmp_path: Path, find: Callable[[Trainer], Any], settings: dict[str, Any]
) -> None:
    """C8: model, buffers, gradients, modes, optimizers, scaler, generators; the same chain and the same weights."""
    straight = built(tmp_path / "straight", **with_sampler(settings))
    torch.manual_seed(9)
    straight.run()
    trainer = built(tmp_path / "run", **with_sampler(settings))
    torch.manual_seed(9)
    before = all_of(trainer)
    find(trainer)
    assert all_of(trainer) == before
    trainer.run()
    assert Journal(tmp_path / "run").chain == Journal(tmp_path / "straight").chain
    assert all_of(trainer)[:-2] == all_of(straight)[:-2]


@both
@pytest.mark.parametrize("settings", SETTINGS)
@pytest.mark.parametrize("at", [4, 6])
def test_a_trial_between_two_parts_of_a_run_leaves_everything_as_it_was(
    tmp_path: Path, find: Callable[[Trainer], Any], settings: dict[str, Any], at: int
) -> None:
    """C8: in the middle of an epoch and at its end; the loader's position too."""
    trainers = []
    for name in ("straight", "run"):
        trainer = built(tmp_path / name, n_batches=at, **with_sampler(settings))
        torch.manual_seed(9)
        trainer.run()
        if name == "run":
            before = all_of(trainer)
            find(trainer)
            assert all_of(trainer) == before
        trainer.n_batches = 12
        trainer.run()
        trainers.append(trainer)
    assert Journal(tmp_path / "run").chain == Journal(tmp_path / "straight").chain
    assert all_of(trainers[0])[:-2] == all_of(trainers[1])[:-2]


class Stream(IterableDataset[Any]):
    """Samples in their order; each iteration goes on where the last one was left."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Iterator[Any]:
        while self.at % 24 != 23:
            self.at += 1
            yield {"id": torch.tensor(self.at), "x": torch.full((4,), self.at / 9), "y": torch.tensor(1.0)}
        self.at += 1

    def state_dict(self) -> dict[str, Any]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.at = state["at"]


def stateful() -> Any:
    torchdata = pytest.importorskip("torchdata.stateful_dataloader")
    return torchdata.StatefulDataLoader(Indexed(12, noise=True), batch_size=2, shuffle=True)


LOADERS: dict[str, Callable[[], Any]] = {
    "a stream with a state": lambda: DataLoader(Stream(), 2),
    "a loader with a state": stateful,
    "a list": lambda: list(DataLoader(Indexed(12), 2)),
}


@pytest.mark.parametrize("make", LOADERS.values(), ids=LOADERS)
@pytest.mark.parametrize("between", [False, True])
def test_data_that_keeps_its_place_is_put_back_to_it(tmp_path: Path, make: Callable[[], Any], between: bool) -> None:
    """C8."""
    chains = []
    for name in ("straight", "run"):
        run = Run()
        given = {"n_batches": 3 if between else 9, "seed": 7, "progress_bar": None, "run_dir": tmp_path / name}
        trainer = Trainer(run.model, "torch", make(), run.optimizer, **given)
        if between:
            trainer.run()
            trainer.n_batches = 9
        if name == "run":
            assert len(trainer.find_lr(1e-6, 1e-2, 15).losses) == 15
        trainer.run()
        chains.append(Journal(tmp_path / name).chain)
    assert chains[0] == chains[1]


@both
def test_nobody_hears_of_a_trial_and_nothing_is_recorded(tmp_path: Path, find: Callable[[Trainer], Any]) -> None:
    """C8: neither journal nor listeners."""
    log: list[str] = []
    trainer = stub(range(1, 5), callbacks=scribe(log), run_dir=tmp_path / "run")
    log.clear()
    find(trainer)
    assert log == []
    assert not (tmp_path / "run").exists()
    trainer.run()
    heard, records = len(log), len(list(Journal(tmp_path / "run")))
    find(trainer)
    assert (len(log), len(list(Journal(tmp_path / "run")))) == (heard, records)


@both
def test_a_step_of_ones_own_is_what_is_tried(find: Callable[[Trainer], Any]) -> None:
    """C8: with its helpers, and what it keeps in trainer.state is put back."""
    stepped = []

    def step(trainer: Any, batch: Any) -> None:
        outputs = trainer.train_step(batch)
        trainer.backward({"loss": outputs["loss"]})
        trainer.step()
        trainer.zero_grad()
        trainer.state["steps"] = trainer.state.get("steps", 0) + 1
        stepped.append(trainer.state["steps"])

    trainer = built(None, batch_step_fn=step)
    find(trainer)
    assert stepped == list(range(1, len(stepped) + 1))
    assert len(stepped) >= 6
    assert dict(trainer.state) == {}


@both
def test_a_trial_is_refused_while_the_run_is_under_way(find: Callable[[Trainer], Any]) -> None:
    """C8."""
    trainer = built(None, n_epochs=1)
    said: list[str] = []

    def ask(trainer: Any) -> None:
        with pytest.raises(CallerError, match="isn't for a run that is under way: call it before run") as caught:
            find(trainer)
        said.append(str(caught.value))

    trainer.on(Events.on_train_batch_end, ask)
    trainer.run()
    assert len(said) == 6


@both
def test_an_error_in_a_trial_is_raised_and_everything_is_put_back(find: Callable[[Trainer], Any]) -> None:
    """C8: between unscaling and update too."""

    class Fault(Exception):
        pass

    faulty = True

    def step(trainer: Any, batch: Any) -> None:
        trainer.backward(trainer.train_step(batch))
        trainer.driver.unscale()
        trainer.step()
        trainer.state["steps"] = trainer.state.get("steps", 0) + 1
        if faulty and trainer.state["steps"] == 4:
            trainer.backward(trainer.train_step(batch))
            trainer.driver.unscale()
            raise Fault
        trainer.zero_grad()

    trainer = built(None, precision="fp16", batch_step_fn=step)
    before = all_of(trainer)
    with pytest.raises(Fault):
        find(trainer)
    assert all_of(trainer) == before
    faulty = False
    straight = built(None, precision="fp16", batch_step_fn=step)
    for each in (trainer, straight):
        torch.manual_seed(9)
        each.run()
    assert all_of(trainer) == all_of(straight)


def test_a_learning_rate_that_is_set_after_the_trial_is_the_runs(tmp_path: Path) -> None:
    """C8: the trial doesn't take the rates of its time for those that the script has built."""
    trainer = built(tmp_path / "run", n_epochs=1)
    trainer.find_lr(num_batches=5)
    for group in trainer.driver.optimizers[0].param_groups:  # type: ignore[union-attr]
        group["lr"] = 0.125
    trainer.run()
    assert {tuple(r.data["lr"]) for r in Journal(tmp_path / "run") if r.event == "Stepped"} == {(0.125, 0.125)}
    told = json.loads((tmp_path / "run" / "run.json").read_text())["settings"]["hyperparameters"]
    assert {value for name, value in told.items() if name.startswith("lr")} == {0.125}


# -- what is found -----------------------------------------------------------------------------------------


class Valley(nn.Module):
    """A quadratic valley: gradient descent converges for rates below one, and diverges above."""

    def __init__(self) -> None:
        super().__init__()
        self.at = nn.Parameter(torch.tensor([4.0]))

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": (self.at**2).sum() + 0 * x.sum()}

    def train_step(self, batch: Any) -> dict[str, torch.Tensor]:
        return self(batch[0])  # type: ignore[no-any-return]


def valley(**settings: Any) -> Trainer:
    model = Valley()
    data = DataLoader(TensorDataset(torch.zeros(8, 1)), 2)
    given = {"run_dir": None, "progress_bar": None, **settings}
    return Trainer(model, "torch", data, torch.optim.SGD(model.parameters(), lr=0.5), **given)


def test_rates_rise_evenly_and_the_suggestion_is_where_the_loss_falls() -> None:
    """C8."""
    found = valley().find_lr(1e-4, 10.0, num_batches=50)
    assert len(found.lrs) == len(found.losses)
    ratios = [b / a for a, b in zip(found.lrs, found.lrs[1:], strict=False)]
    assert ratios == pytest.approx([ratios[0]] * len(ratios))
    assert found.lrs[0] == 1e-4
    assert found.suggestion in found.lrs
    assert 1e-2 < found.suggestion < 1.0
    assert found.plain() == {
        "lrs": list(found.lrs),
        "losses": list(found.losses),
        "suggestion": found.suggestion,
    }
    with pytest.raises(AttributeError):
        found.suggestion = 1.0  # type: ignore[misc]


def test_linear_rates_rise_by_equal_steps_up_to_the_last() -> None:
    """C8."""
    found = valley().find_lr(0.001, 0.1, num_batches=12, mode="linear")
    steps = [b - a for a, b in zip(found.lrs, found.lrs[1:], strict=False)]
    assert steps == pytest.approx([0.009] * 11)
    assert found.lrs[-1] == pytest.approx(0.1)


def test_it_leaves_off_where_the_loss_diverges() -> None:
    """C8: `stop_when` is a factor of the least smoothed loss."""
    far = valley().find_lr(1e-3, 100.0, num_batches=60, stop_when=1e6)
    near = valley().find_lr(1e-3, 100.0, num_batches=60)
    assert len(near.lrs) < len(far.lrs) <= 60
    assert near.losses == far.losses[: len(near.losses)]
    assert near.losses[-1] > min(near.losses)


def test_a_loss_that_is_no_number_ends_the_trial() -> None:
    """C8."""
    trainer = stub(driver=StubDriver(loss=lambda batch, n: float("nan") if n == 7 else 10.0 - n))
    found = trainer.find_lr(num_batches=30)
    assert len(found.losses) == 8
    assert found.suggestion is not None


def test_a_loss_that_falls_nowhere_makes_no_suggestion() -> None:
    """C8."""
    trainer = stub(driver=StubDriver(loss=lambda batch, n: 1.0 + 0.01 * n))
    assert trainer.find_lr(num_batches=30).suggestion is None


class Narrow(Regression):
    """Runs out of memory for batches of more samples than it bears."""

    def __init__(self, most: int, error: Callable[[], BaseException]) -> None:
        super().__init__()
        self.most, self.error, self.tried = most, error, []  # type: ignore[var-annotated]

    def forward(self, x: torch.Tensor, y: torch.Tensor, id: torch.Tensor) -> dict[str, Any]:
        self.tried.append(len(id))
        if len(id) > self.most:
            raise self.error()
        return super().forward(x, y, id)


OUT = [
    MemoryError,
    lambda: torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    lambda: RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"),
    lambda: RuntimeError("CUDA error: out of memory"),
]


def narrow(most: int, error: Callable[[], BaseException] = MemoryError, n: int = 100) -> tuple[Narrow, Trainer]:
    model = Narrow(most, error)
    data = DataLoader(Indexed(n), 3, shuffle=True, num_workers=2)
    return model, Trainer(
        model, "torch", data, torch.optim.Adam(model.parameters()), run_dir=None, progress_bar=None, seed=1
    )


@pytest.mark.parametrize("error", OUT)
@pytest.mark.parametrize(
    ("mode", "found", "tried"), [("power", 16, [2, 4, 8, 16, 32]), ("binary", 21, [2, 4, 8, 16, 32, 24, 20, 22, 21])]
)
def test_the_largest_batch_that_memory_is_enough_for_is_found(
    error: Callable[[], BaseException], mode: str, found: int, tried: list[int]
) -> None:
    """C8: every size gets its steps; the first that fails is left at once."""
    model, trainer = narrow(21, error)
    assert trainer.find_batch_size(mode=mode, steps=3) == found
    assert list(dict.fromkeys(model.tried)) == tried
    assert model.tried.count(found) == 3
    assert model.tried.count(32) == 1
    assert trainer.train_dataloader.batch_size == 3


def test_no_batch_is_larger_than_the_data_or_than_what_is_allowed() -> None:
    """C8."""
    model, trainer = narrow(1000, n=10)
    assert trainer.find_batch_size(start=4) == 10
    assert max(model.tried) == 10
    assert narrow(1000)[1].find_batch_size(max_size=24) == 24
    assert narrow(1000)[1].find_batch_size(start=64, fits=lambda size: size < 80, mode="binary") == 79


def test_a_stream_that_ends_bounds_its_batches() -> None:
    """C8: a size that the data can't make isn't one that fits."""
    run = Run()
    trainer = Trainer(run.model, "torch", DataLoader(Stream(), 2), run.optimizer, run_dir=None, progress_bar=None)
    assert trainer.find_batch_size(start=3) == 12
    assert trainer.train_dataloader.dataset.at == 0


def test_an_error_that_is_not_of_memory_is_raised() -> None:
    """C8."""
    _, trainer = narrow(8, lambda: RuntimeError("shapes don't match"))
    with pytest.raises(RuntimeError, match="shapes don't match"):
        trainer.find_batch_size()


def test_a_start_that_is_too_large_is_said() -> None:
    """C8."""
    with pytest.raises(CallerError, match="a batch of 8 is too large already: give a smaller start"):
        narrow(7)[1].find_batch_size(start=8)


# -- what is refused ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"min_lr": 0}, "min_lr must be a number > 0, not 0"),
        ({"max_lr": float("inf")}, "max_lr must be a number > 0, not inf"),
        ({"min_lr": 0.5, "max_lr": 0.1}, "max_lr must be more than min_lr, and 0.1 isn't more than 0.5"),
        ({"num_batches": 2}, "num_batches must be an integer >= 3, not 2"),
        ({"mode": "cosine"}, "mode must be one of 'exponential', 'linear', not 'cosine'"),
        ({"stop_when": 1.0}, "stop_when must be > 1.0, not 1.0"),
    ],
)
def test_what_find_lr_cannot_use_is_refused(given: dict[str, Any], said: str) -> None:
    """C8."""
    with pytest.raises(CallerError) as caught:
        valley().find_lr(**given)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"start": 0}, "start must be an integer >= 1, not 0"),
        ({"max_size": 1.5}, "max_size must be an integer >= 1, not 1.5"),
        ({"steps": 0}, "steps must be an integer >= 1, not 0"),
        ({"mode": "cubic"}, "mode must be one of 'power', 'binary', not 'cubic'"),
        ({"start": 9}, "start=9 is more than there is to try: at most 8"),
    ],
)
def test_what_find_batch_size_cannot_use_is_refused(given: dict[str, Any], said: str) -> None:
    """C8."""
    with pytest.raises(CallerError) as caught:
        valley().find_batch_size(**given)
    assert said in str(caught.value)


@pytest.mark.parametrize("loader", [[{"x": 1}], DataLoader(Indexed(4), batch_size=None)])
def test_a_loader_without_a_batch_size_is_refused(loader: Any) -> None:
    """C8."""
    run = Run()
    trainer = Trainer(run.model, "torch", loader, run.optimizer, run_dir=None, progress_bar=None)
    with pytest.raises(CallerError, match="find_batch_size needs a DataLoader that was given a batch_size"):
        trainer.find_batch_size()


def test_a_callback_that_moves_rates_at_updates_is_not_asked() -> None:
    """C8: a schedule stands where it stood."""

    class Halve(Callback):
        def on_after_optimizer_step(self, trainer: Any, optimizers: Any) -> None:
            raise AssertionError

    assert len(built(None, callbacks=Halve()).find_lr(num_batches=4).losses) == 4


def test_weights_and_parameter_groups_are_the_same_objects_after_a_trial() -> None:
    """C8: what holds on to a parameter, to a group or to a learning rate that is a tensor goes on holding it."""
    trainer = built(None)
    optimizer = trainer.driver.optimizers[0]  # type: ignore[union-attr]
    rate = optimizer.param_groups[0]["lr"] = torch.tensor(0.25)
    groups, dicts = optimizer.param_groups, list(optimizer.param_groups)
    before = list(trainer.driver.model.parameters())  # type: ignore[union-attr]
    values = [p.detach().clone() for p in before]
    find_lr(trainer)
    assert [id(p) for p in trainer.driver.model.parameters()] == [id(p) for p in before]  # type: ignore[union-attr]
    assert equal(values, before)
    assert optimizer.param_groups is groups
    assert all(a is b for a, b in zip(groups, dicts, strict=True))
    assert groups[0]["lr"] is rate
    assert float(rate) == 0.25
