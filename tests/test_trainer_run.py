"""A training run: what is fetched, stepped, counted, validated and ended, batch by batch."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
import warnings
import weakref
from collections import UserDict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, SequentialSampler

from tachograph.drivers import LossFault, RestoreFault, StubDriver
from tachograph.drivers.errors import MatchFault
from tachograph.engine import Callback, Evaluator, Events, Journal, Trainer
from tachograph.states import Stepped
from tachograph.states.errors import CallerError
from tests.toys import Indexed, Regression, Run, Sum, equal, scribe, stub

# -- the whole ---------------------------------------------------------------------------------------------


def test_a_trainer_ends_with_the_bits_of_a_loop_written_by_hand(run_dir: Path) -> None:
    """L4, L5: dropout, Adam, three epochs; the journal, its snapshots and its listeners change nothing."""
    run = Run(n=6, noise=False, loader={"shuffle": False}, n_epochs=3, run_dir=run_dir, callbacks=lambda _: scribe([]))
    torch.manual_seed(7)
    model, data = Regression(), Indexed(6)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    torch.manual_seed(7)
    for _ in range(3):
        for first in (0, 2, 4):
            pair = [data[first], data[first + 1]]
            batch = {k: torch.stack([sample[k] for sample in pair]) for k in pair[0]}
            model(**batch)["loss"].backward()
            optimizer.step()
            optimizer.zero_grad()
    run.run()
    assert equal(run.weights, list(model.parameters()))
    assert run.model.seen == model.seen
    assert torch.equal(torch.get_rng_state(), torch.get_rng_state())


def test_two_runs_with_one_seed_are_one_and_another_seed_is_another() -> None:
    runs = [Run(seed=seed) for seed in (7, 7, 8)]
    for run in runs:
        run.run()
    assert equal(runs[0].weights, runs[1].weights)
    assert not equal(runs[0].weights, runs[2].weights)
    assert runs[0].model.seen == runs[1].model.seen != runs[2].model.seen


def test_a_run_without_a_seed_takes_torch_s_and_leaves_the_generators_alone(run_dir: Path) -> None:
    torch.manual_seed(123)
    run = Run(run_dir=run_dir, init=123, noise=False)
    run.trainer = Trainer(run.model, "torch", run.loader, run.optimizer, n_epochs=1, run_dir=run_dir, progress_bar=None)
    torch.manual_seed(123)
    torch.rand(5)
    before = torch.get_rng_state()
    run.trainer.on(Events.on_train_begin, lambda trainer: states.append(torch.get_rng_state()))
    states: list[torch.Tensor] = []
    run.run()
    assert torch.equal(states[0], before)
    assert json.loads((run_dir / "run.json").read_text())["settings"]["seed"] == 123


def test_each_epoch_has_an_order_of_its_own_that_holds_every_sample_once() -> None:
    run = Run(n=12, batch_size=5, n_epochs=3)
    run.run()
    seen = [i for batch in run.model.seen for i in batch]
    epochs = [seen[12 * e : 12 * e + 12] for e in range(3)]
    assert all(sorted(epoch) == list(range(12)) for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3


# -- limits ------------------------------------------------------------------------------------------------


def test_nothing_is_trained_where_there_is_nothing_to_train() -> None:
    log: list[str] = []
    for limit in ({"n_epochs": 0}, {"n_batches": 0}):
        trainer = stub([1, 2], callbacks=scribe(log), **limit)
        end = trainer.run()
        assert (end.state, end.seq, trainer.driver.seen) == ("done", 1, [])
        assert (end.n_epochs, end.total_batches) == (0, 0)
        assert log == ["on_after_trainer_initialized", "on_train_begin", "on_train_end"]
        log.clear()


def test_fewer_batches_of_an_epoch_may_be_used_and_more_than_there_are_are_all() -> None:
    """A2.R5, A2.R6, A8.C6."""
    for asked, used in ((2, 2), (5, 3), (-1, 3)):
        trainer = stub([1, 2, 3], n_epochs=2)
        end = trainer.run(num_train_batch_per_epoch=asked)
        assert trainer.driver.seen == [1, 2, 3][:used] * 2
        assert (end.num_batches_per_epoch, end.total_batches, end.global_forward_batches) == (used, 2 * used, 2 * used)


@pytest.mark.parametrize(("n_batches", "epochs_ended"), [(1, 0), (2, 0), (3, 1), (4, 1), (5, 1), (6, 2), (7, 2)])
def test_a_limit_in_batches_ends_inside_an_epoch_or_exactly_at_its_end(n_batches: int, epochs_ended: int) -> None:
    """T6, R21: at a boundary the epoch's end is heard, once."""
    log: list[str] = []
    end = stub([1, 2, 3], n_batches=n_batches, callbacks=scribe(log)).run()
    assert end.global_forward_batches == n_batches
    assert log.count("on_train_epoch_end") == epochs_ended == end.cur_epoch_idx
    assert log.count("on_train_end") == 1
    assert log.count("on_stop") == (n_batches % 3 > 0)


def mistaken(length: int) -> Any:
    """A loader that says it has 2 batches."""
    return type("Mistaken", (list,), {"__len__": lambda self: 2})(values(*range(length)))


@pytest.mark.parametrize("n_epochs", [1, 2, 5])
@pytest.mark.parametrize("length", [1, 2, 3, 5])
def test_all_epochs_are_trained_although_a_loader_is_wrong_about_its_length(n_epochs: int, length: int) -> None:
    """R53: the epoch is counted, not derived by division."""
    end = line(mistaken(length), n_epochs=n_epochs).run()
    assert (end.cur_epoch_idx, end.global_forward_batches) == (n_epochs, n_epochs * length)
    assert end.total_batches == n_epochs * length


@pytest.mark.parametrize("n_batches", [1, 2, 3, 7])
@pytest.mark.parametrize("length", [1, 2, 3, 5])
def test_a_limit_in_batches_is_kept_although_a_loader_is_wrong_about_its_length(n_batches: int, length: int) -> None:
    """R37."""
    assert line(mistaken(length), n_batches=n_batches).run().global_forward_batches == n_batches


def test_a_second_run_with_no_further_limit_trains_nothing_and_says_so() -> None:
    """A2.R12."""
    log: list[str] = []
    trainer = stub([1, 2], callbacks=scribe(log))
    end = trainer.run()
    heard = len(log)
    assert trainer.run() == end
    assert log[heard:] == ["on_notice"]
    assert trainer.driver.seen == [1, 2, 1, 2]


def test_a_second_run_with_a_higher_limit_goes_on() -> None:
    """C1, R37, A2.R12."""
    trainer = stub([1, 2])
    trainer.run()
    trainer.n_epochs = 3
    end = trainer.run()
    assert (end.state, end.cur_epoch_idx, end.total_batches) == ("done", 3, 6)
    assert trainer.driver.seen == [1, 2] * 3


# -- Ctrl-C ------------------------------------------------------------------------------------------------


def interrupted(**settings: Any) -> tuple[Trainer, KeyboardInterrupt]:
    error = KeyboardInterrupt()

    def strike(driver: StubDriver) -> None:
        if len(driver.seen) == 1:
            raise error

    return stub([1, 2], StubDriver(on={"train_step": strike}), **settings), error


def test_ctrl_c_is_raised_by_default_and_heard_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A2.R10, R25."""
    monkeypatch.delattr(sys, "ps1", raising=False)
    for asked in ({}, {"catch_KeyboardInterrupt": False}, {"catch_KeyboardInterrupt": None}):
        trainer, error = interrupted()
        heard: list[BaseException] = []
        trainer.on(Events.on_exception, lambda t, exception, heard=heard: heard.append(exception))
        with pytest.raises(KeyboardInterrupt) as caught:
            trainer.run(**asked)
        assert caught.value is error
        assert heard == [error]
        assert trainer.trainer_state.state == "exception"


def test_ctrl_c_is_swallowed_where_that_is_asked_for_and_in_a_repl(monkeypatch: pytest.MonkeyPatch) -> None:
    """A2.R10: the returned state says what happened."""
    trainer, _ = interrupted()
    assert trainer.run(catch_KeyboardInterrupt=True).state == "exception"
    monkeypatch.setattr(sys, "ps1", ">>> ", raising=False)
    trainer, _ = interrupted()
    assert trainer.run().state == "exception"
    trainer, _ = interrupted()
    with pytest.raises(KeyboardInterrupt):
        trainer.run(catch_KeyboardInterrupt=False)


# -- fetching ----------------------------------------------------------------------------------------------


def test_listeners_get_the_batch_in_hand_mapped_with_its_sample_ids() -> None:
    """L1, L3, T14."""
    seen: list[Any] = []
    run = Run(
        n=4,
        loader={"shuffle": False},
        n_epochs=1,
        noise=False,
        train_input_mapping=lambda b: {**b, "id": b["id"] + 100},
    )
    run.trainer.on(Events.on_train_batch_begin, lambda t, batch, indices: seen.append((batch["id"].tolist(), indices)))
    run.run()
    assert seen == [([100, 101], [0, 1]), ([102, 103], [2, 3])]
    assert run.model.seen == [[100, 101], [102, 103]]


def test_a_listener_may_change_a_batch_before_the_model_sees_it() -> None:
    """L3."""
    run = Run(n=4, loader={"shuffle": False}, n_epochs=1)
    run.trainer.on(Events.on_train_batch_begin, lambda t, batch, indices: batch.update(id=batch["id"] * 10))
    run.run()
    assert run.model.seen == [[0, 10], [20, 30]]


def test_the_batch_in_hand_is_the_trainer_s_between_its_fetch_and_the_end_of_its_step() -> None:
    held: list[tuple[str, Any, Any]] = []
    trainer = stub([7], n_epochs=1)
    for moment in ("on_fetch_data_begin", "on_train_batch_begin", "on_before_backward", "on_train_batch_end"):
        trainer.on(moment, lambda t, *args, moment=moment: held.append((moment, t.batch, t.batch_indices)))
    trainer.run()
    assert held == [
        ("on_fetch_data_begin", None, None),
        ("on_train_batch_begin", 7, [0]),
        ("on_before_backward", 7, [0]),
        ("on_train_batch_end", None, None),
        ("on_fetch_data_begin", None, None),
    ]


def test_batches_outputs_and_graphs_are_released_after_their_step() -> None:
    """N10: none is kept alive past its step."""
    alive: list[weakref.ref[Any]] = []
    left: list[int] = []
    run = Run(n=6, n_epochs=1)

    def hold(trainer: Any, batch: Any, indices: Any) -> None:
        alive.append(weakref.ref(batch["x"]))

    def hold_outputs(trainer: Any, outputs: Any) -> None:
        alive.extend([weakref.ref(outputs["loss"]), weakref.ref(outputs["predicted"])])

    run.trainer.on(Events.on_train_batch_begin, hold)
    run.trainer.on(Events.on_before_backward, hold_outputs)
    run.trainer.on(Events.on_train_batch_end, lambda t: left.append(sum(ref() is not None for ref in alive)))
    run.run()
    assert len(alive) == 9
    assert left == [0, 0, 0]


def test_a_sampler_is_told_the_epoch() -> None:
    """A2.R8."""

    class Told(SequentialSampler):
        epochs: list[int] = []

        def set_epoch(self, epoch: int) -> None:
            self.epochs.append(epoch)

    data = Indexed(4)
    for loader in ({"sampler": Told(data)}, {"batch_sampler": BatchSampler(Told(data), 2, False)}):
        Told.epochs = []
        size = {} if "batch_sampler" in loader else {"batch_size": 2}
        model = Regression()
        train = DataLoader(data, **size, **loader)  # type: ignore[arg-type]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        Trainer(model, "torch", train, optimizer, n_epochs=3, run_dir=None, progress_bar=None).run()
        assert Told.epochs == [0, 1, 2]


class Nothing(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(())


def test_a_loader_that_turns_out_to_be_empty_ends_the_run_at_its_first_fetch() -> None:
    """R62: not silently, and not by a division by zero."""
    for loader in (DataLoader(Nothing(), batch_size=None), type("Empty", (), {"__iter__": lambda self: iter(())})()):
        model = Regression()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        trainer = Trainer(model, "torch", loader, optimizer, n_epochs=2, run_dir=None, progress_bar=None)
        with pytest.raises(CallerError, match="train_dataloader made no batch at all in epoch 0"):
            trainer.run()
        assert trainer.trainer_state.state == "exception"
        assert trainer.trainer_state.optimizer_steps == 0


def test_a_validation_loader_that_turns_out_to_be_empty_ends_the_run() -> None:
    """R62."""
    empty = type("Empty", (), {"__iter__": lambda self: iter(())})()
    trainer = stub([1], metrics={"m": Sum()}, validate_dataloaders={"dev": empty})
    with pytest.raises(CallerError, match="the evaluation loader 'dev' made no batch"):
        trainer.run(num_eval_sanity_batch=0)


class Uneven:
    """Batches of an epoch whose length nobody knows beforehand: 5, 3, then 7."""

    def __init__(self) -> None:
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        for i in range((5, 3, 7)[self.epoch]):
            n = 10 * self.epoch + i
            yield {"id": torch.tensor([n]), "x": torch.full((1, 4), n / 10), "y": torch.tensor([float(n)])}


def uneven(run_dir: Path | None, limit: int = -1, **settings: Any) -> tuple[Run, list[tuple[int, int, int]]]:
    run = Run()
    triples: list[tuple[int, int, int]] = []
    settings = {"n_epochs": 3, "run_dir": run_dir, "n_batches": limit, "seed": 7, "snapshot_every": None, **settings}
    run.trainer = Trainer(run.model, "torch", Uneven(), run.optimizer, progress_bar=None, **settings)

    def note(trainer: Any) -> None:
        state = trainer.trainer_state
        triples.append((state.cur_epoch_idx, state.batch_idx_in_epoch, state.global_forward_batches))

    run.trainer.on(Events.on_train_batch_end, note)
    return run, triples


def test_an_epoch_of_unknown_length_ends_when_it_is_exhausted() -> None:
    """R53, C1."""
    run, triples = uneven(None)
    end = run.run()
    assert triples == [(0, i, i) for i in range(1, 6)] + [(1, i, 5 + i) for i in range(1, 4)] + [
        (2, i, 8 + i) for i in range(1, 8)
    ]
    assert (end.num_batches_per_epoch, end.total_batches, end.cur_epoch_idx) == (None, None, 3)


@pytest.mark.parametrize("accumulation_steps", [1, 3])
def test_a_run_of_unknown_length_goes_on_from_every_step(tmp_path: Path, accumulation_steps: int) -> None:
    """R53: epoch, batch and step triples, weights and chain equal those of the straight run."""
    settings = {"accumulation_steps": accumulation_steps}
    straight, triples = uneven(tmp_path / "straight", **settings)
    straight.run()
    for k in range(1, 15):
        run_dir = tmp_path / str(k)
        first, before = uneven(run_dir, k, **settings)
        first.run()
        again, after = uneven(run_dir, **settings)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "the training loader has no index")
            again.run(resume_from=run_dir)
        assert before + after == triples
        assert equal(again.weights, straight.weights)
        assert again.chain == straight.chain


# -- the model's call --------------------------------------------------------------------------------------


class Line(nn.Module):
    """loss = w * x, so that a gradient is the mean of the x it was made of."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": (self.w * x).mean()}


def line(batches: Any, model: nn.Module | None = None, **settings: Any) -> Trainer:
    model = Line() if model is None else model
    settings = {"n_epochs": 1, "run_dir": None, "progress_bar": None, **settings}
    return Trainer(model, "torch", batches, torch.optim.SGD(model.parameters(), lr=0.5), **settings)


def values(*numbers: float) -> list[torch.Tensor]:
    return [torch.tensor([float(n)]) for n in numbers]


def test_a_dict_batch_fills_parameters_by_name_and_any_other_is_passed_whole() -> None:
    """D4, T15."""
    seen: list[Any] = []

    class Model(Line):
        def forward(self, x: Any, y: Any = 5, *, z: Any = 6) -> Any:
            seen.append((x, y, z))
            return super().forward(torch.ones(1))

    line([{"x": 1, "z": 2, "other": 3}, {"y": 4, "x": 5}, (1, 2)], Model()).run()
    assert seen == [(1, 5, 2), (5, 4, 6), ((1, 2), 5, 6)]
    seen.clear()
    line([{"x": 1, "z": 2}], Model(), model_wo_auto_param_call=True).run()
    assert seen == [({"x": 1, "z": 2}, 5, 6)]


def test_a_mapping_that_is_no_dict_fills_them_too_unless_it_is_meant_as_a_whole() -> None:
    """D4: tokenizers hand out mappings of their own."""
    seen: list[Any] = []

    class ByName(Line):
        def forward(self, x: Any, y: Any = 5) -> Any:
            seen.append((x, y))
            return super().forward(torch.ones(1))

    class Whole(Line):
        def forward(self, batch: Any) -> Any:
            seen.append(batch["x"])
            return super().forward(torch.ones(1))

    line([UserDict({"x": 1, "other": 3})], ByName()).run()
    line([UserDict({"x": 2, "other": 3})], Whole()).run()
    assert seen == [(1, 5), 2]


def test_a_batch_that_lacks_what_the_model_needs_is_told_by_name() -> None:
    with pytest.raises(
        MatchFault, match=r"Line.forward needs 'x', which isn't among \['y'\]. Rename it there, or map it"
    ):
        line([{"y": 1}]).run()


def test_a_model_is_trained_in_training_mode_whatever_mode_it_came_in() -> None:
    """A2.R8."""
    run, modes = Run(n_epochs=2, n=4), []
    run.model.eval()
    run.model.register_forward_pre_hook(lambda module, args: modes.append(module.training and module.dropout.training))
    run.run()
    assert modes == [True] * 4


def test_a_model_s_train_step_comes_before_its_forward_and_any_method_may_be_named() -> None:
    """T10."""
    called: list[str] = []

    class Model(Line):
        def train_step(self, x: Any) -> Any:
            called.append("train_step")
            return self(x)

        def other(self, x: Any) -> Any:
            called.append("other")
            return self(x)

        def forward(self, x: Any) -> Any:
            called.append("forward")
            return super().forward(x)

    for settings, expected in (({}, ["train_step", "forward"]), ({"train_fn": "other"}, ["other", "forward"])):
        called.clear()
        line([{"x": torch.ones(1)}], Model(), **settings).run()
        assert called == expected
    called.clear()
    line([{"x": torch.ones(1)}], Model(), train_fn="forward").run()
    assert called == ["forward"]


@dataclasses.dataclass
class Outputs:
    cost: torch.Tensor


@dataclasses.dataclass
class WithLoss:
    loss: torch.Tensor


class Holds:
    def __init__(self, loss: torch.Tensor) -> None:
        self.loss = loss


@pytest.mark.parametrize(
    ("make", "mapping"),
    [
        (lambda loss: {"loss": loss}, None),
        (WithLoss, None),
        (Holds, None),
        (lambda loss: {"cost": loss}, {"cost": "loss"}),
        (Outputs, {"cost": "loss"}),
        (lambda loss: (loss, 3), {"_0": "loss"}),
        (lambda loss: loss, lambda outputs: {"loss": outputs}),
    ],
)
@pytest.mark.parametrize("key", ["output_mapping", "train_output_mapping"])
def test_the_loss_is_found_in_a_dict_or_a_dataclass_or_by_a_mapping(make: Any, mapping: Any, key: str) -> None:
    """L8, T14."""

    class Model(Line):
        def forward(self, x: torch.Tensor) -> Any:
            return make(super().forward(x)["loss"])

    trainer = line(values(3), Model(), **{key: mapping})
    grads: list[float] = []
    trainer.on(Events.on_before_optimizer_step, lambda t, optimizers: grads.append(float(t.driver.model.w.grad)))
    trainer.run()
    assert grads == [3.0]


@pytest.mark.parametrize(
    ("outputs", "held"),
    [
        ({"cost": 1, "aux": 2}, r"\['aux', 'cost'\]"),
        (Outputs(torch.ones(1)), r"\['cost'\]"),
        (torch.ones(1), "a Tensor"),
        (None, "a NoneType"),
    ],
)
def test_outputs_without_a_loss_are_refused_with_what_they_hold(outputs: Any, held: str) -> None:
    """L8."""
    trainer = line(values(1), type("Model", (Line,), {"forward": lambda self, x: outputs})())
    with pytest.raises(
        LossFault, match=f"must return a dict or dataclass with 'loss', but it returned {held}. Return"
    ) as e:
        trainer.run()
    for kind in (KeyError, AttributeError, ValueError):
        assert isinstance(e.value, kind)
    assert "output_mapping={'its name': 'loss'}" in str(e.value)


def frozen(loss: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return loss * 2


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            lambda loss: loss.item(),
            "the loss is of type float, and no tensor: return it as it is computed, without .item()",
        ),
        (lambda loss: 3, "the loss is of type int, and no tensor: "),
        (lambda loss: None, "the loss is of type NoneType, and no tensor: "),
        (lambda loss: loss.detach().numpy(), "the loss is of type ndarray, and no tensor: "),
        (lambda loss: loss.detach(), "the loss hangs on no parameter that is trained: it was detached (.detach(), "),
        (frozen, "the loss hangs on no parameter that is trained: "),
        (lambda loss: loss * torch.ones(2, 3), "the loss has the shape [2, 3]: return one number, its .mean() say"),
        (lambda loss: loss * torch.ones(0), "the loss has the shape [0]: return one number, its .mean() say"),
    ],
)
@pytest.mark.parametrize("settings", [{}, {"accumulation_steps": 2}, {"fp16": True}], ids=str)
@pytest.mark.parametrize("own", [False, True])
def test_a_loss_that_nothing_can_be_learned_from_is_refused_with_what_it_is(
    make: Any, said: str, settings: dict[str, Any], own: bool, run_dir: Path
) -> None:
    """L8."""

    class Model(Line):
        def forward(self, x: Any) -> Any:
            return {"loss": make(super().forward(x)["loss"])}

    def step(trainer: Trainer, batch: Any) -> None:
        trainer.backward(trainer.train_step(batch))
        trainer.step()
        trainer.zero_grad()

    trainer = line(values(1, 2), Model(), run_dir=run_dir, batch_step_fn=step if own else None, **settings)
    with pytest.raises(LossFault, match=re.escape(said)) as caught:
        trainer.run()
    assert isinstance(caught.value.__cause__, Exception)
    assert trainer.trainer_state.state == "exception"


def test_an_error_of_a_good_loss_s_backward_pass_is_raised_as_it_is() -> None:
    """L8: it isn't the loss's fault."""

    def fail(gradient: Any) -> None:
        raise LookupError("in a hook")

    class Model(Line):
        def forward(self, x: Any) -> Any:
            outputs = super().forward(x)
            outputs["loss"].register_hook(fail)
            return outputs

    with pytest.raises(LookupError, match="in a hook"):
        line(values(1), Model()).run()


class Lightning(nn.Module):
    """A model that was written for another library: its steps have other names."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(1, 1)

    def forward(self, x: Any) -> Any:
        return self.layer(x)

    def training_step(self, batch: Any, batch_idx: int) -> Any: ...

    def validation_step(self, batch: Any, batch_idx: int) -> Any: ...


PAIRS = [[torch.ones(2, 1), torch.ones(2, 1)]]


def test_a_model_whose_step_is_called_otherwise_is_told_so_when_its_forward_pass_fails() -> None:
    """D4, EV3: the note says what was called, with what, and what would have been."""
    with pytest.raises(TypeError, match="must be Tensor, not list") as caught:
        line(PAIRS, Lightning()).run()
    assert (
        "the batch, a list, was passed whole to Lightning.forward; Lightning has training_step, which is called "
        "train_step here, and takes the batch alone"
    ) in caught.value.__notes__  # type: ignore[attr-defined]

    with pytest.raises(MatchFault) as fault:
        line([{"y": 1}], Lightning()).run()
    assert (
        "the batch, a dict, filled the parameters of Lightning.forward; Lightning has training_step, which is called "
        "train_step here, and takes the batch alone"
    ) in fault.value.__notes__  # type: ignore[attr-defined]

    class Unforward(Lightning):
        forward = nn.Module.forward

    with pytest.raises(NotImplementedError) as missing:
        line(PAIRS, Unforward()).run()
    assert "which is called train_step here" in " ".join(missing.value.__notes__)  # type: ignore[attr-defined]


@pytest.mark.parametrize("mode", ["validate", "test"])
def test_a_model_whose_evaluation_is_called_otherwise_is_told_so_when_its_forward_pass_fails(mode: str) -> None:
    """EV3."""
    evaluator = Evaluator(Lightning(), PAIRS, {"m": Sum()}, mode=mode, verbose=0, progress_bar=None)
    with pytest.raises(TypeError, match="must be Tensor, not list") as caught:
        evaluator.run()
    assert (
        "the batch, a list, was passed whole to Lightning.forward; Lightning has validation_step, which is called "
        "validate_step here, and takes the batch alone"
    ) in caught.value.__notes__  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["train_step", "plain"])
def test_a_model_with_a_step_of_its_own_or_of_none_gets_no_such_note(name: str) -> None:
    """D4."""

    class Both(Lightning):
        def train_step(self, batch: Any) -> Any:
            return self.forward(batch)

    model = Both() if name == "train_step" else nn.Linear(1, 1)
    with pytest.raises(TypeError, match="must be Tensor, not list") as caught:
        line(PAIRS, model).run()
    assert "is called" not in " ".join(caught.value.__notes__)  # type: ignore[attr-defined]


def test_what_is_logged_is_checked_whether_anybody_listens_or_not() -> None:
    """A tensor is read only if somebody does."""
    for listens in (False, True):
        trainer = line(values(1))
        heard: list[Any] = []
        if listens:
            trainer.on("on_log", lambda trainer, values, heard=heard: heard.append(values))
        for log, said in (
            (lambda log: log(x="abc"), "log takes name -> number, not 'x': 'abc'"),
            (lambda log: log({"x": None}), "log takes name -> number, not 'x': None"),
            (lambda log: log({3: 1}), "log takes name -> number, not 3: 1"),
            (lambda log: log(x=[1.0]), "log takes name -> number, not 'x': [1.0]"),
            (lambda log: log(x=torch.ones(2)), "log takes name -> number, not 'x': a Tensor of the shape [2]"),
            (lambda log: log("x", 1), "log takes x=1 or {'x': 1}, not 'x', 1"),
            (lambda log: log({"x": 1}, 2), "log takes x=1 or {'x': 1}, not {'x': 1}, 2"),
            (lambda log: log("x"), "log takes x=1 or {'x': 1}, not 'x'"),
            (lambda log: log(3), "log takes x=1 or {'x': 1}, not 3"),
        ):
            with pytest.raises(CallerError) as caught:
                log(trainer.log)
            assert str(caught.value) == said
        assert heard == []
        trainer.log({"a": 1, "b": torch.tensor([2.0])}, c=True, d=torch.tensor(3))
        trainer.log()
        assert heard == [{"a": 1, "b": 2.0, "c": True, "d": 3}, {}] * listens
    trainer = line(values(1))
    trainer.log(x=torch.ones((), device="meta"))  # which can't be read


def test_a_mapping_by_names_renames_keys_fields_and_places() -> None:
    """T14."""
    seen: list[Any] = []

    class Model(Line):
        def forward(self, x: Any, y: Any = None, _1: Any = None) -> Any:
            seen.append((x, y, _1))
            return super().forward(torch.ones(1))

    line([{"a": 1, "y": 2}], Model(), input_mapping={"a": "x"}).run()
    line([Outputs(cost=3)], Model(), input_mapping={"cost": "x"}).run()  # type: ignore[arg-type]
    line([(4, 5)], Model(), train_input_mapping={"_0": "x"}).run()
    assert seen == [(1, 2, None), (3, None, None), (4, None, 5)]
    with pytest.raises(
        CallerError, match="input_mapping is a dict, so the data must be a dict, a dataclass or a sequence, not"
    ):
        line([3], Model(), input_mapping={"a": "x"}).run()


# -- windows -----------------------------------------------------------------------------------------------


class NoLength:
    def __init__(self, batches: list[Any]) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[Any]:
        return iter(self.batches)


def gradients(batches: Any, steps: int, n_epochs: int = 1, **settings: Any) -> tuple[list[float], Any]:
    trainer = line(batches, accumulation_steps=steps, n_epochs=n_epochs, **settings)
    found: list[float] = []
    trainer.on(Events.on_before_optimizer_step, lambda t, optimizers: found.append(float(t.driver.model.w.grad)))
    return found, trainer.run()


def test_a_window_s_gradient_is_the_mean_over_the_micro_batches_really_in_it() -> None:
    """R06: the naive divisor makes 2.5 of the last."""
    found, end = gradients(values(1, 2, 3, 4, 5), 2)
    assert found == [1.5, 3.5, 5.0]
    assert (end.optimizer_steps, end.accumulated) == (3, 0)


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("steps", [1, 2, 4, 8])
@pytest.mark.parametrize("known", [True, False])
def test_every_micro_batch_is_in_one_window_and_none_runs_over_the_end_of_an_epoch(
    length: int, steps: int, known: bool
) -> None:
    """R06, R23, B15: the loader may know its length or not; two epochs."""
    numbers = [float(n * n + 1) for n in range(length)]
    batches: Any = values(*numbers) if known else NoLength(values(*numbers))
    windows = [numbers[i : i + steps] for i in range(0, length, steps)]
    expected = [sum(w) / len(w) for w in windows] * 2
    found, end = gradients(batches, steps, n_epochs=2)
    assert found == pytest.approx(expected, rel=1e-6)
    assert end.optimizer_steps == 2 * -(-length // steps)
    assert (end.accumulated, end.global_forward_batches) == (0, 2 * length)


def test_gradients_are_those_of_one_batch_as_long_as_the_window() -> None:
    """T16: 3 windows of 2 batches of 2 are 3 batches of 4."""
    one, other = (
        Run(n=12, batch_size=size, loader={"shuffle": False}, n_epochs=2, noise=False, accumulation_steps=k)
        for size, k in ((2, 2), (4, 1))
    )
    for run in (one, other):
        run.model.dropout.p = 0.0
        run.run()
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(one.weights, other.weights, strict=True))


def test_moments_of_the_update_are_heard_at_the_end_of_a_window_only() -> None:
    """L5: and the step comes before the clearing."""
    log: list[str] = []

    def note(name: str, trainer: Any, args: Any) -> str:
        return f"{name[3:]} {trainer.trainer_state.global_forward_batches}"

    stub([1, 2, 3, 4, 5], n_epochs=1, accumulation_steps=2, callbacks=scribe(log, note)).run()
    about = [entry for entry in log if "optimizer_step" in entry or "zero_grad" in entry]
    assert about == [
        f"{name} {n}"
        for n in (1, 3, 4)
        for name in ("before_optimizer_step", "after_optimizer_step", "before_zero_grad", "after_zero_grad")
    ]


def test_gradients_that_lie_around_are_cleared_before_training_begins() -> None:
    """A2.R7."""
    model = Line()
    model.w.grad = torch.tensor([1000.0])
    trainer = line(values(3), model)
    grads: list[float] = []
    trainer.on(Events.on_before_optimizer_step, lambda t, optimizers: grads.append(float(model.w.grad)))
    trainer.run()
    assert grads == [3.0]


def test_several_optimizers_step_and_clear_together() -> None:
    model = Regression()
    optimizers = [torch.optim.SGD(model.hidden.parameters(), lr=0.1), torch.optim.Adam(model.out.parameters(), lr=0.1)]
    before = [p.detach().clone() for p in model.parameters()]
    loader = DataLoader(Indexed(2), batch_size=2)
    trainer = Trainer(model, "torch", loader, optimizers, n_epochs=1, run_dir=None, progress_bar=None)
    rates: list[list[float]] = []
    trainer.on(Stepped, lambda t, event: rates.append(event.lr))
    trainer.run()
    assert not any(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert all(p.grad is None for p in model.parameters())
    assert rates == [[0.1, 0.1]]


# -- the loss ----------------------------------------------------------------------------------------------


def test_the_loss_is_recorded_as_it_was_undivided_and_nan_stays_nan(run_dir: Path) -> None:
    """R45: no mean of earlier losses in its place."""
    losses = [0.5, float("nan"), float("inf"), -0.0, 1e-30]
    driver = StubDriver(loss=lambda batch, n: losses[n])
    stub([1, 2, 3, 4, 5], driver, n_epochs=1, run_dir=run_dir, accumulation_steps=2).run()
    recorded = [record.data["loss"] for record in Journal(run_dir) if record.event == "Stepped"]
    assert repr(recorded) == repr(losses)


def test_the_loss_of_torch_is_recorded_to_the_last_bit(run_dir: Path) -> None:
    losses: list[float] = []
    run = Run(run_dir=run_dir, accumulation_steps=4)
    run.trainer.on(Events.on_before_backward, lambda t, outputs: losses.append(outputs["loss"].item()))
    run.run()
    recorded = [record.data["loss"] for record in Journal(run_dir) if record.event == "Stepped"]
    assert recorded == losses
    assert run.trainer.last_loss == losses[-1]


# -- counters ----------------------------------------------------------------------------------------------


def test_the_counters_of_a_snapshot_taken_at_the_end_of_step_n_say_n(run_dir: Path) -> None:
    """R07, B14."""
    trainer = stub([1, 2, 3, 4], n_epochs=1, run_dir=run_dir, snapshot_every=None)
    trainer.on(Events.on_train_batch_end(once=3), lambda t: t.request_snapshot())
    trainer.run()
    first = min((run_dir / "snapshots").iterdir())
    state = json.loads((first / "state.json").read_bytes())["state"]
    counters = ("global_forward_batches", "batch_idx_in_epoch", "optimizer_steps", "samples", "cur_epoch_idx")
    assert [state[name] for name in counters] == [3, 3, 3, 3, 0]


def test_the_trainer_shows_the_counters_of_its_state_and_writes_them() -> None:
    """ST2, ST4."""
    trainer = stub([1, 2, 3], n_epochs=2)
    names = (
        "n_epochs",
        "cur_epoch_idx",
        "global_forward_batches",
        "batch_idx_in_epoch",
        "num_batches_per_epoch",
        "total_batches",
    )
    seen: list[list[Any]] = []
    trainer.on(Events.on_train_batch_end, lambda t: seen.append([getattr(t, name) for name in names]))
    trainer.run()
    assert seen[0] == [2, 0, 1, 1, 3, 6]
    assert seen[-1] == [2, 1, 6, 3, 3, 6]
    for name in names:
        setattr(trainer, name, 17)
        assert getattr(trainer, name) == getattr(trainer.trainer_state, name) == 17
    with pytest.raises(ValueError, match="cur_epoch_idx must be an integer >= 0, not -1"):
        trainer.cur_epoch_idx = -1


def test_the_user_s_state_reads_and_writes_like_attributes_and_says_what_it_lacks() -> None:
    """ST1, B29: `hasattr` works."""
    trainer = stub([1])
    trainer.state.name = "x"
    trainer.state["nested"] = {"deep": {"er": 1}}
    assert (trainer.state.name, trainer.state["name"]) == ("x", "x")
    assert trainer.state.nested.deep.er == 1
    assert not hasattr(trainer.state, "missing")
    with pytest.raises(AttributeError, match="state has no 'missing'"):
        trainer.state.missing
    assert trainer.state.get("missing", 3) == 3


def test_the_user_s_state_is_kept_with_the_run(run_dir: Path) -> None:
    """ST1, B12."""
    first = stub([1, 2], n_epochs=1, run_dir=run_dir)
    first.state.seen = []
    first.on(Events.on_train_batch_end, lambda t: t.state.seen.append(t.global_forward_batches))
    first.run()
    again = stub([1, 2], n_epochs=2, run_dir=run_dir)
    again.state.other = "dropped: the state is the run's"
    again.on(Events.on_train_batch_end, lambda t: t.state.seen.append(t.global_forward_batches))
    again.run(resume_from="auto")
    assert dict(again.state) == {"seen": [1, 2, 3, 4]}


# -- validation --------------------------------------------------------------------------------------------


def validations(n_epochs: int = 3, batches: int = 5, **settings: Any) -> list[tuple[int, int]]:
    """After which batch of the run, and at which epoch index, each validation was done."""
    found: list[tuple[int, int]] = []
    settings = {"metrics": {"m": Sum()}, "validate_dataloaders": [1, 2], "n_epochs": n_epochs, **settings}
    trainer = stub(list(range(1, batches + 1)), **settings)
    trainer.on(Events.on_validate_begin, lambda t: found.append((t.global_forward_batches, t.cur_epoch_idx)))
    end = trainer.run()
    assert end.validations == len(found)
    return found


def third(trainer: Any) -> bool:
    return bool(trainer.trainer_state.global_forward_batches % 3 == 0)


def third_call(filter: Any, trainer: Any) -> bool:
    return bool(filter.num_called % 3 == 0)


@pytest.mark.parametrize(
    ("every", "after"),
    [
        (-1, [5, 10, 15]),
        (-2, [10]),
        (-4, []),
        (1, list(range(1, 16))),
        (4, [4, 8, 12]),
        (5, [5, 10, 15]),
        (7, [7, 14]),
        (16, []),
        ((4, -1), [4, 5, 8, 10, 12, 15]),
        ((5, -1), [5, 10, 15]),
        ([3, 4], [3, 4, 6, 8, 9, 12, 15]),
        (third, [3, 6, 9, 12, 15]),
        (third_call, [3, 6, 9, 12, 15]),
        (lambda trainer: False, []),
        (lambda filter, trainer: filter.num_executed < 2, [1, 2]),
    ],
)
def test_validations_are_done_as_often_as_is_asked(every: Any, after: list[int]) -> None:
    """T13, R32, B3: batches of the run (they don't drift with the epochs), epochs, several, or functions."""
    assert [batch for batch, _ in validations(validate_every=every)] == after


def test_an_epoch_s_validation_comes_before_the_epoch_is_counted_and_a_step_s_after_its_batch() -> None:
    """A2.R8, L6."""
    assert validations(validate_every=-1) == [(5, 0), (10, 1), (15, 2)]
    assert validations(validate_every=5) == [(5, 0), (10, 1), (15, 2)]


def test_a_function_is_asked_after_every_batch_with_the_batch_counted() -> None:
    """T13."""
    asked: list[tuple[int, int, int]] = []

    def ask(trainer: Any) -> bool:
        state = trainer.trainer_state
        asked.append((state.global_forward_batches, state.batch_idx_in_epoch, state.optimizer_steps))
        return False

    assert validations(n_epochs=2, batches=2, validate_every=ask, accumulation_steps=2) == []
    assert asked == [(1, 1, 0), (2, 2, 1), (3, 1, 1), (4, 2, 2)]


@pytest.mark.parametrize("k", range(1, 15))
def test_validations_fall_on_the_same_batches_after_a_resume_at_every_step(tmp_path: Path, k: int) -> None:
    """SV4, B14, R32: also for a function that counts its calls."""
    for every in (4, -1, third_call):
        run_dir = tmp_path / str(every).replace("/", "")[:12]
        settings = {"validate_every": every, "run_dir": run_dir, "snapshot_every": None}
        found: list[int] = []
        for limit in (k, -1):
            trainer = stub(
                [1, 2, 3, 4, 5], n_epochs=3, n_batches=limit, metrics={"m": Sum()}, validate_dataloaders=[1], **settings
            )
            trainer.on(Events.on_validate_begin, lambda t, found=found: found.append(t.global_forward_batches))
            trainer.run(resume_from="auto")
        assert found == {4: [4, 8, 12], -1: [5, 10, 15]}.get(every, [3, 6, 9, 12, 15])


def test_results_are_in_the_state_and_in_the_record_and_a_new_validation_replaces_them(run_dir: Path) -> None:
    trainer = stub([1], n_epochs=2, metrics={"m": Sum()}, validate_dataloaders={"a": [1], "b": [2, 3]}, run_dir=run_dir)
    end = trainer.run()
    results = {"sum#m#a": 1, "n#m#a": 1, "sum#m#b": 5, "n#m#b": 2}
    assert end.results == results
    assert [r.data["results"] for r in Journal(run_dir) if r.event == "Validated"] == [results] * 2


@pytest.mark.parametrize(("asked", "n"), [(-1, 3), (1, 1), (2, 2), (9, 3)])
def test_a_part_of_each_validation_loader_may_be_used(asked: int, n: int) -> None:
    """A2.R2, A2.R4."""
    seen: dict[str, Any] = {}
    trainer = stub([1], n_epochs=1, metrics={"m": Sum()}, validate_dataloaders=[1, 2, 3])
    trainer.on(Events.on_validate_end, lambda t, results: seen.update(validation=results["n#m"]))
    trainer.on(Events.on_sanity_check_end, lambda t, results: seen.update(sanity=results["n#m"]))
    trainer.run(num_eval_batch_per_dl=asked, num_eval_sanity_batch=asked)
    assert seen == {"validation": n, "sanity": n}


def test_the_sanity_check_can_be_left_out_and_its_results_count_for_nothing() -> None:
    """A2.R4, MO6."""
    log: list[str] = []
    trainer = stub([1], n_epochs=1, metrics={"m": Sum()}, validate_dataloaders=[1], callbacks=scribe(log))
    trainer.run(num_eval_sanity_batch=0)
    assert not any("sanity" in entry for entry in log)
    trainer = stub([1], n_epochs=1, metrics={"m": Sum()}, validate_dataloaders=[1], validate_every=-5)
    end = trainer.run()
    assert (end.validations, end.results) == (0, {})
    assert not any("sanity" in entry for entry in transcript_of(stub([1], n_epochs=1)))


def transcript_of(trainer: Trainer) -> list[str]:
    entered: list[str] = []
    for name in trainer.machine.names[1:]:
        trainer.on(name, lambda t: entered.append(t.trainer_state.state))
    trainer.run()
    return entered


def test_a_validation_by_hand_is_no_transition_and_needs_metrics() -> None:
    trainer = stub([1], n_epochs=1, metrics={"m": Sum()}, validate_dataloaders=[4, 5])
    trainer.run(num_eval_sanity_batch=0)
    state = trainer.trainer_state
    assert trainer.validate() == {"sum#m": 9, "n#m": 2}
    assert trainer.validate(num_eval_batch_per_dl=1) == {"sum#m": 4, "n#m": 1}
    assert trainer.trainer_state is state
    with pytest.raises(
        CallerError, match="this trainer has nothing to validate: give it metrics and validate_dataloaders"
    ):
        stub([1]).validate()


# -- custom steps ------------------------------------------------------------------------------------------


def whole(trainer: Any, batch: Any) -> None:
    outputs = trainer.train_step(batch)
    trainer.backward(outputs)
    trainer.step()
    trainer.zero_grad()


@pytest.mark.parametrize("steps", [1, 4])
def test_a_custom_step_made_of_the_helpers_is_the_default_step(tmp_path: Path, steps: int) -> None:
    """T8, A8.C4, A8.C5, B7, N2: and nothing is warned of where nothing is missing."""
    default = Run(run_dir=tmp_path / "default", accumulation_steps=steps)
    custom = Run(
        run_dir=tmp_path / "custom", accumulation_steps=steps, batch_step_fn=whole, callbacks=lambda _: scribe([])
    )
    default.run()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        custom.run()
    assert equal(default.weights, custom.weights)
    assert default.chain == custom.chain


def test_a_custom_step_may_do_its_own_and_the_helpers_help() -> None:
    """A8.C5."""
    run = Run(n_epochs=1, n=4)
    model = run.model

    def own(trainer: Any, batch: Any) -> None:
        batch = trainer.move_data_to_device(batch)
        outputs = model(**batch)
        loss = trainer.extract_loss_from_outputs(outputs)
        trainer.backward({"loss": 2 * loss})
        trainer.step()
        trainer.zero_grad()

    before = run.weights
    run.trainer = Trainer(
        model, "torch", run.loader, run.optimizer, n_epochs=1, batch_step_fn=own, run_dir=None, progress_bar=None
    )
    assert run.run().optimizer_steps == 2
    assert not equal(before, run.weights)


def test_a_custom_step_that_reaches_too_little_is_told_of_each_moment_that_has_listeners() -> None:
    """A8.C1, A8.C4: once, after the first step, and for no moment without listeners."""

    def no_update(trainer: Any, batch: Any) -> None:
        trainer.train_step(batch)

    heard = ("on_before_backward", "on_after_optimizer_step", "on_before_zero_grad")
    trainer = stub([1, 2, 3], batch_step_fn=no_update, callbacks=[])
    for moment in heard:
        trainer.on(moment, lambda *args: None)
    said = [str(w.message) for w in warned(trainer)]
    assert said == [
        "batch_step_fn never reached on_after_optimizer_step, which has listeners: it should call trainer.step()",
        "batch_step_fn never reached on_before_backward, which has listeners: it should call trainer.backward(outputs)",
        "batch_step_fn never reached on_before_zero_grad, which has listeners: it should call trainer.zero_grad()",
    ]


def warned(trainer: Trainer) -> list[warnings.WarningMessage]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer.run()
    return caught


def test_a_custom_step_is_judged_when_its_first_window_is_closed() -> None:
    """A8.C1, A8.C4: inside a window there is nothing to update."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        stub([1, 2, 3, 4], batch_step_fn=whole, accumulation_steps=3, callbacks=scribe([])).run()

    def forgets(trainer: Any, batch: Any) -> None:
        trainer.backward(trainer.train_step(batch))

    def clears(trainer: Any, batch: Any) -> None:
        trainer.backward(trainer.train_step(batch))
        trainer.zero_grad()

    assert len(warned(stub([1, 2, 3, 4], batch_step_fn=forgets, accumulation_steps=3, callbacks=scribe([])))) == 4
    said = [str(w.message).split()[3] for w in warned(stub([1, 2], batch_step_fn=clears, callbacks=scribe([])))]
    assert said == ["on_after_optimizer_step,", "on_before_optimizer_step,"]


def test_a_step_may_call_backward_for_several_losses_and_their_sum_is_recorded(run_dir: Path) -> None:
    def twice(trainer: Any, batch: Any) -> None:
        for factor in (1.0, 10.0):
            trainer.backward({"loss": trainer.train_step(batch)["loss"] * factor})
        trainer.step()
        trainer.zero_grad()

    line(values(2), batch_step_fn=twice, run_dir=run_dir).run()
    assert [r.data["loss"] for r in Journal(run_dir) if r.event == "Stepped"] == [22.0]


def test_a_step_without_a_loss_is_recorded_without_one(run_dir: Path) -> None:
    stub([1], n_epochs=1, batch_step_fn=lambda trainer, batch: None, run_dir=run_dir).run()
    assert [r.data["loss"] for r in Journal(run_dir) if r.event == "Stepped"] == [None]


# -- the model on its own ----------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["path", "file"])
def test_a_model_is_saved_and_loaded_to_a_path_or_an_open_file(tmp_path: Path, where: str) -> None:
    """SV14, B22, E13, E14: and plain torch reads it."""
    log: list[str] = []
    first, other = Run(n_epochs=1, callbacks=lambda run: scribe(log)), Run(init=8)
    first.run()
    log.clear()
    path = tmp_path / "model.pt"
    if where == "path":
        first.trainer.save_model(path)
        first.trainer.load_model(str(path))
        other.trainer.load_model(path)
    else:
        with open(path, "wb") as file:
            first.trainer.save_model(file)
        for run in (first, other):
            with open(path, "rb") as file:
                run.trainer.load_model(file)
    assert log == ["on_save_model", "on_load_model"]
    assert equal(first.weights, other.weights)
    assert set(torch.load(path, weights_only=True)) == set(first.model.state_dict())
    assert [p.name for p in tmp_path.iterdir()] == ["model.pt"]


def test_a_model_that_does_not_fit_is_refused_and_nothing_is_changed(tmp_path: Path) -> None:
    """SV14, R64, B31."""
    run = Run()
    before = run.weights
    torch.save(Line().state_dict(), tmp_path / "line.pt")
    torch.save([1, 2], tmp_path / "list.pt")
    torch.save({**run.model.state_dict(), "out.bias": torch.ones(2)}, tmp_path / "shape.pt")
    for name, said in (
        ("line.pt", "the model has 'hidden.weight', which the saved one lacks"),
        ("list.pt", "this file holds a list, not a model's state dict"),
        ("shape.pt", r"'out.bias' has shape \[2\] in the saved model, \[1\] in this one"),
    ):
        with pytest.raises(RestoreFault, match=said):
            run.trainer.load_model(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        run.trainer.load_model(tmp_path / "nothing.pt")
    assert equal(run.weights, before)


# -- errors ------------------------------------------------------------------------------------------------


def test_an_error_inside_a_batch_says_which_samples_it_held(run_dir: Path) -> None:
    """L9, B30: those of this batch, not of the one before."""

    class Model(Regression):
        def forward(self, x: Any, y: Any, id: Any) -> Any:
            if 5 in id:
                raise ValueError("bad sample")
            return super().forward(x, y, id)

    run = Run(n=8, loader={"shuffle": False})
    run.model = Model()
    optimizer = torch.optim.SGD(run.model.parameters(), lr=0.1)
    run.trainer = Trainer(run.model, "torch", run.loader, optimizer, n_epochs=1, run_dir=run_dir, progress_bar=None)
    with pytest.raises(ValueError, match="bad sample") as caught:
        run.run()
    (note,) = caught.value.__notes__  # type: ignore[attr-defined]
    assert note == "in state 'step', epoch 0, batch 2, after transition 7; the batch holds the samples [4, 5]"
    last = Journal(run_dir).last
    assert last is not None
    assert last.data["ids"] == "[4, 5]"


@pytest.mark.parametrize("place", ["dataset", "mapping", "listener", "step", "metric"])
def test_a_stop_iteration_of_the_user_s_code_is_an_error_and_not_the_end_of_the_epoch(place: str) -> None:
    """N1, B23."""

    def stop(*args: Any, **kwargs: Any) -> Any:
        raise StopIteration("mine")

    class Data(Indexed):
        def __getitem__(self, index: int) -> Any:
            return stop() if place == "dataset" and index == 3 else super().__getitem__(index)

    class Bad(Sum):
        update = stop  # type: ignore[assignment]

    settings: dict[str, Any] = {
        "mapping": {"input_mapping": stop},
        "step": {"batch_step_fn": lambda trainer, batch: stop()},
        "metric": {"metrics": {"m": Bad()}, "validate_dataloaders": [{"loss": 1}]},
    }.get(place, {})
    if place == "metric":
        settings["validate_batch_step_fn"] = lambda evaluator, batch: evaluator.update({"value": 1}, batch)
    model = Regression()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    settings = {"n_epochs": 2, "run_dir": None, "progress_bar": None, **settings}
    trainer = Trainer(model, "torch", DataLoader(Data(8), batch_size=2), optimizer, **settings)
    if place == "listener":
        trainer.on(Events.on_fetch_data_begin(once=2), stop)
    with pytest.raises((StopIteration, RuntimeError)) as caught:
        trainer.run()
    assert "mine" in repr(caught.value) or "raised StopIteration for samples [2, 3]" in str(caught.value)
    assert trainer.trainer_state.state == "exception"


def test_a_callback_hears_the_trainer_s_end_and_the_driver_lets_go_of_its_workers_after_an_error() -> None:
    """R59."""
    closed: list[str] = []

    class Closes(StubDriver):
        def close(self) -> None:
            closed.append("closed")

    class Ends(Callback):
        def on_train_end(self, trainer: Any) -> None:
            closed.append("heard")

    trainer = stub(
        [1], Closes(on={"train_step": lambda driver: (_ for _ in ()).throw(ValueError("x"))}), callbacks=Ends()
    )
    with pytest.raises(ValueError, match="x"):
        trainer.run()
    assert closed == ["heard", "closed"]
