"""`EMA`: torch's own average, saved with the run, and in the model only while an evaluation is at work."""

from __future__ import annotations

import copy
import io
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils._python_dispatch import TorchDispatchMode

from tachograph.drivers.averaging import WeightAverages
from tachograph.engine import EMA, Callback, Events, Journal, LoadBestModel, Trainer
from tachograph.engine.snapshots import catalogue
from tachograph.states import Stepped
from tachograph.states.errors import CallerError
from tests.toys import Sum, equal, stub

BATCHES = [torch.linspace(-2, 2, 16).reshape(4, 4) * (n + 1) for n in range(5)]


class Net(nn.Module):
    """Linear layers around a normalisation, with dropout, and a name that is another one's too."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.one, self.norm, self.two = nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 1)
        self.same = self.two
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, batch: torch.Tensor) -> dict[str, torch.Tensor]:
        if self.training:
            self.calls = self.calls + 1  # another tensor after each batch
        hidden = nn.functional.dropout(torch.tanh(self.norm(self.one(batch))), 0.3, self.training)
        return {"loss": (self.two(hidden) - 3).float().pow(2).mean()}


class Loss:
    """A metric: the mean loss; it notes the weights that it was made with."""

    def __init__(self, model: Net) -> None:
        self.model, self.weights, self.losses = model, [], []
        self.training: list[bool] = []

    def reset(self) -> None:
        self.losses = []

    def update(self, loss: torch.Tensor) -> None:
        self.losses.append(float(loss))
        self.weights.append(copy.deepcopy([*self.model.parameters()]))
        self.training.append(self.model.training)

    def compute(self) -> float:
        return sum(self.losses) / len(self.losses)


class Averaged:
    """A run with an average, and torch's own average beside it, updated by hand after each update that was taken."""

    def __init__(
        self, ema: EMA | None = None, *, more: Any = (), after: Any = (), by_hand: Any = None, **settings: Any
    ) -> None:
        self.model = Net()
        self.ema = EMA(0.9) if ema is None else ema
        self.metric = Loss(self.model)
        optimizer = torch.optim.Adam(self.model.parameters(), lr=0.05)
        defaults = {"n_epochs": 2, "run_dir": None, "seed": 1, "progress_bar": None, "snapshot_every": None}
        self.trainer = Trainer(
            self.model,
            "torch",
            BATCHES,
            optimizer,
            callbacks=[*more, self.ema, *after],
            metrics={"loss": self.metric},
            validate_dataloaders=BATCHES[:2],
            **{**defaults, **settings},
        )
        self.by_torch = (
            AveragedModel(self.model, multi_avg_fn=get_ema_multi_avg_fn(0.9)) if by_hand is None else by_hand
        )
        self.trainer.on(
            Events.on_after_optimizer_step,
            lambda t, optimizers: None if t.step_skipped else self.by_torch.update_parameters(self.model),
            priority=1,
        )

    def run(self, **arguments: Any) -> Any:
        return self.trainer.run(**arguments)

    @property
    def average(self) -> dict[str, torch.Tensor]:
        return self.ema.state_dict()["average"]

    @property
    def weights(self) -> list[torch.Tensor]:
        return [p.detach().clone() for p in self.model.parameters()]


@pytest.fixture(autouse=True)
def _no_words_about_the_data(recwarn: pytest.WarningsRecorder) -> None:
    """A list of tensors is read again at a resume, which is said; that isn't what these tests are about."""


# -- the numbers ---------------------------------------------------------------------------------------------


def test_the_average_is_torch_s_bit_for_bit() -> None:
    """C4: `AveragedModel` with torch's own function, updated by hand."""
    run = Averaged()
    run.run()
    expected = dict(run.by_torch.module.named_parameters())
    assert run.average.keys() == expected.keys()
    assert equal([*run.average.values()], [*expected.values()])
    assert run.ema.count == 10
    assert not equal([*run.average.values()], run.weights)


def test_with_buffers_the_running_means_are_averaged_too_and_counters_are_copied() -> None:
    """C4: as in torch, but for counters, of which it takes the mean."""
    run = Averaged(EMA(0.9, buffers="average"))
    run.by_torch = AveragedModel(run.model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
    run.run()
    expected = dict(run.by_torch.module.named_buffers())
    for name in ("norm.running_mean", "norm.running_var"):
        assert torch.equal(run.average[name], expected[name])
        assert not torch.equal(run.average[name], run.model.get_buffer(name))
    assert run.average["calls"] == run.model.calls == 10
    with run.ema.applied():
        assert torch.equal(run.model.norm.running_mean, expected["norm.running_mean"])


@pytest.mark.parametrize(("warmup", "every", "start"), [(10, 1, 0), (0, 3, 0), (0, 1, 4), (4, 2, 3), (0, 1, 99)])
def test_warmup_frequency_and_start_are_as_by_hand(warmup: int, every: int, start: int) -> None:
    """C4."""
    run = Averaged(EMA(0.9, warmup, every, start))
    taken: list[list[torch.Tensor]] = []
    run.trainer.on(Events.on_after_optimizer_step, lambda t, optimizers: taken.append(run.weights))
    run.run()
    chosen = taken[start::every]
    average = chosen[0] if chosen else []
    for k, weights in enumerate(chosen[1:], 1):
        decay = min(0.9, (1 + k) / (warmup + k)) if warmup else 0.9
        average = [a + (w - a) * (1 - decay) for a, w in zip(average, weights, strict=True)]
    assert run.ema.count == len(chosen)
    held = [*run.average.values()]
    assert all(torch.allclose(a, b, atol=1e-7) for a, b in zip(held, average, strict=True))


def test_an_update_that_is_skipped_is_not_averaged() -> None:
    """C4, R33."""

    class Skips(Callback):
        def on_before_optimizer_step(self, trainer: Any, optimizers: Any) -> None:
            if trainer.global_forward_batches in (0, 3):
                trainer.skip_update()

    run = Averaged(more=[Skips()])
    run.run()
    assert run.ema.count == 8
    assert equal([*run.average.values()], [*run.by_torch.module.parameters()])


def test_a_window_is_averaged_once() -> None:
    """C4."""
    run = Averaged(accumulation_steps=2)
    assert run.run().optimizer_steps == run.ema.count == 6
    assert equal([*run.average.values()], [*run.by_torch.module.parameters()])


class Calls(TorchDispatchMode):
    """Notes what torch is asked to do."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def test_an_update_is_one_operation_in_place_for_all_weights_of_a_kind() -> None:
    """C4: and allocates nothing, after the first."""
    model = Net()
    averages = WeightAverages(model)
    averages.add(None)
    places = {name: held.data_ptr() for name, held in averages.state().items()}
    for _ in range(2):
        with Calls() as calls:
            averages.add(0.9)
        assert calls.names == ["aten._foreach_lerp_.Scalar"]
    model.two.double()
    other = WeightAverages(model)
    other.add(None)
    other.add(0.9)
    with Calls() as calls:
        other.add(0.9)
    assert calls.names == ["aten._foreach_lerp_.Scalar"] * 2
    assert {name: held.data_ptr() for name, held in averages.state().items()} == places


# -- evaluation ----------------------------------------------------------------------------------------------


def test_evaluations_are_made_with_the_average_and_training_goes_on_with_its_weights() -> None:
    """C4: in validations and by hand; before there is an average, with the weights as they are."""
    run = Averaged(validate_every=2)
    before: list[list[torch.Tensor]] = []
    after: list[list[torch.Tensor]] = []
    averages: list[list[torch.Tensor]] = []
    first = run.weights

    def begin(trainer: Any) -> None:
        before.append(run.weights)
        averages.append([p.clone() for p in run.average.values()])

    run.trainer.on(Events.on_validate_begin, begin)
    run.trainer.on(Events.on_validate_end, lambda t, results: after.append(run.weights))
    run.run(num_eval_sanity_batch=1)
    seen = run.metric.weights
    assert equal(seen[0], first)
    assert len(before) == 5
    for n, average in enumerate(averages):
        assert equal(seen[1 + 2 * n], average)
        assert equal(seen[2 + 2 * n], average)
        assert equal(before[n], after[n])
        assert not equal(average, before[n])
    run.trainer.validate()
    assert equal(seen[-1], [*run.average.values()])
    assert not any(run.metric.training)


def test_an_average_in_the_sanity_check_of_a_run_that_goes_on_is_the_saved_one(run_dir: Path) -> None:
    """C4: `trainer.validate()` in a listener too."""
    Averaged(run_dir=run_dir, n_epochs=1).run()
    again = Averaged(run_dir=run_dir)
    seen: list[Any] = []

    def validate(trainer: Any, report: Any) -> None:
        trainer.validate(1)
        seen.extend([again.metric.weights[-1], [p.clone() for p in again.average.values()]])

    again.trainer.on(Events.on_after_resume, validate)
    again.run(resume_from="auto")
    assert equal(*seen)


def test_it_can_be_kept_without_being_evaluated() -> None:
    """C4: and it moves training by no bit, evaluated or not."""
    ends = []
    for ema in (EMA(0.9), EMA(0.9, evaluate=False), EMA(0.0), EMA(0.9, buffers="average")):
        run = Averaged(ema)
        results = run.run().results
        ends.append((run.weights, run.model.norm.running_mean, results))
    for weights, mean, _ in ends[1:]:
        assert equal(weights, ends[0][0])
        assert torch.equal(mean, ends[0][1])
    assert ends[0][2] != ends[1][2]
    assert ends[1][2] == ends[2][2]  # an average that keeps nothing of itself is the weights


def test_after_an_error_or_a_signal_in_an_evaluation_the_trained_weights_are_in_the_model(run_dir: Path) -> None:
    """C4: and in the snapshots that are taken then."""
    for end in ("error", "signal"):
        run, there = Averaged(run_dir=run_dir / end), []
        run.trainer.on(Events.on_validate_begin, lambda t, run=run, there=there: there.append(run.weights))

        def strike(trainer: Any, batch: Any, end: str = end) -> None:
            if trainer.trainer_state.state == "validate":
                trainer.request_snapshot()
                if end == "error":
                    raise LookupError
                trainer.interrupt(signal.SIGTERM)

        run.trainer.on(Events.on_validate_batch_begin, strike)
        with pytest.raises((LookupError, SystemExit)):
            run.run(num_eval_sanity_batch=0)
        assert equal(run.weights, there[0])
        taken = catalogue(run_dir / end)[0]
        assert [s.about()["state"]["state"] for s in taken] == ["validate"]
        expect_trained_and_average(taken[-1].path, there[0], run)


def expect_trained_and_average(snapshot: Path, weights: list[torch.Tensor], run: Averaged) -> None:
    model = torch.load(snapshot / "model.pt", weights_only=True)
    names = [name for name, _ in run.model.named_parameters()]
    assert equal([model[name] for name in names], weights)
    extra = torch.load(snapshot / "rank-0.pt", weights_only=True)["extra"]
    held = extra["listeners"]["callbacks"]["EMA"]["average"]
    assert equal([held[name] for name in names], [run.average[name] for name in names])
    assert not equal([held[name] for name in names], weights)


def test_a_snapshot_holds_the_trained_weights_wherever_it_was_taken(run_dir: Path) -> None:
    """C4: between entering a validation and its work, and asked for in the middle of one."""
    run, weights, averages = Averaged(run_dir=run_dir), {}, {}

    def keep(trainer: Any) -> None:
        trainer.request_snapshot()
        weights[trainer.trainer_state.seq] = run.weights
        averages[trainer.trainer_state.seq] = copy.deepcopy(run.ema.state_dict().get("average"))

    for name in run.trainer.machine.names:
        if name not in ("init", *run.trainer.machine.final):
            run.trainer.on(name, keep, priority=-1)
    run.trainer.on(Events.on_validate_batch_end, lambda trainer: trainer.request_snapshot())
    run.run()
    taken = catalogue(run_dir)[0]
    states = [snapshot.about()["state"]["state"] for snapshot in taken]
    assert states.count("validate") == 2
    for snapshot in taken:
        model = torch.load(snapshot.path / "model.pt", weights_only=True)
        names = [name for name, _ in run.model.named_parameters()]
        assert equal([model[name] for name in names], weights[snapshot.seq])
        held = torch.load(snapshot.path / "rank-0.pt", weights_only=True)["extra"]["listeners"]["callbacks"]
        if averages[snapshot.seq] is not None:
            assert equal([*held["EMA"]["average"].values()], [*averages[snapshot.seq].values()])


# -- over a resume -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("buffers", ["copy", "average"])
def test_resumed_from_any_transition_the_average_and_the_results_are_those_of_the_straight_run(
    tmp_path: Path, buffers: str
) -> None:
    """C4: weights, average, results and chain, bit for bit."""

    def build(run_dir: Path) -> Averaged:
        ema = EMA(0.9, warmup=3, update_every=2, start_at=1, buffers=buffers)
        return Averaged(ema, run_dir=run_dir, accumulation_steps=2, validate_every=(3, -1))

    straight = build(tmp_path / "straight")
    for name in straight.trainer.machine.names:
        if name not in straight.trainer.machine.final:
            straight.trainer.on(name, lambda trainer: trainer.request_snapshot())
    end = straight.run()
    taken = catalogue(tmp_path / "straight")[0]
    expected = [r.data["results"] for r in Journal(tmp_path / "straight") if r.event == "Validated"]
    assert len(expected) == 5
    for snapshot in taken:
        again = build(tmp_path / snapshot.path.name)
        assert again.run(resume_from=snapshot.path) == end
        assert equal(again.weights, straight.weights)
        assert again.average.keys() == straight.average.keys()
        assert equal([*again.average.values()], [*straight.average.values()])
        assert again.trainer.journal.chain == straight.trainer.journal.chain  # type: ignore[union-attr]
        results = [r.data["results"] for r in Journal(again.trainer.run_dir) if r.event == "Validated"]  # type: ignore[arg-type]
        assert not results or results == expected[-len(results) :]
    assert len(taken) > 25


def test_a_run_cannot_be_resumed_while_the_average_is_in_the_model(run_dir: Path) -> None:
    """C4: it is refused before anything is changed."""
    run = Averaged(run_dir=run_dir, n_epochs=1)
    run.run()
    weights, average = run.weights, [p.clone() for p in run.average.values()]
    run.trainer.n_epochs = 2
    with run.ema.applied(), pytest.raises(CallerError, match="the averaged weights are in the model"):
        run.run(resume_from=run_dir)
    assert equal(run.weights, weights)
    assert equal([*run.average.values()], average)
    run.run()
    assert run.ema.count == 10


def test_a_second_run_of_the_same_trainer_goes_on_with_the_average() -> None:
    """C4, R61: after a stop inside an epoch, too."""
    straight = Averaged(n_epochs=3)
    straight.run()
    run = Averaged(n_epochs=1)
    run.trainer.on(Stepped, lambda t, event: t.global_forward_batches in (3, 8) and t.stop("here"))
    run.run()
    run.run()
    run.trainer.n_epochs = 3
    run.run()
    run.run()
    assert run.trainer.trainer_state.global_forward_batches == 15
    assert equal([*run.average.values()], [*straight.average.values()])


def test_it_can_be_added_to_a_run_that_had_none_and_begins_there(run_dir: Path) -> None:
    """C4, R40: and can't be forgotten without a word."""
    without = Averaged(EMA(0.9, start_at=99), run_dir=run_dir, n_epochs=1)
    without.trainer.listeners.remove_callback(without.ema)
    without.trainer.evaluator.within.clear()  # type: ignore[union-attr]
    without.run()
    run = Averaged(run_dir=run_dir, n_epochs=2)
    run.run(resume_from="auto")
    assert run.ema.count == 5
    other = Averaged(EMA(0.5), run_dir=run_dir, n_epochs=3)
    said: list[str] = []
    other.trainer.on(Events.on_notice, lambda t, text: said.append(text))
    other.run(resume_from="auto")
    assert "callbacks.EMA.decay changed from 0.9 to 0.5" in said
    assert other.ema.count == 10


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda held: held.pop("one.weight"), "it lacks 'one.weight', which the model has"),
        (lambda held: held.update(three=torch.ones(1)), "it has 'three', which the model lacks"),
        (
            lambda held: held.update({"two.bias": torch.ones(2)}),
            r"'two.bias' has shape \[2\] in it, \[1\] in the model",
        ),
    ],
)
def test_a_saved_average_that_does_not_fit_is_refused_and_nothing_is_changed(change: Any, said: str) -> None:
    run = Averaged(n_epochs=1)
    run.run()
    held = copy.deepcopy(run.ema.state_dict())
    change(held["average"])
    with pytest.raises(CallerError, match=said):
        run.ema.check_state_dict(run.trainer, held, run.trainer.trainer_state)


# -- in a script's hands -------------------------------------------------------------------------------------


def test_the_average_can_be_put_into_the_model_and_the_weights_come_back() -> None:
    """C4: nested, and after an error."""
    run = Averaged()
    run.run()
    weights, average = run.weights, [p.clone() for p in run.average.values()]
    places = [p.data_ptr() for p in run.model.parameters()]
    with run.ema.applied(run.trainer):
        assert equal(run.weights, average)
        with run.ema.applied():
            assert equal(run.weights, average)
            run.trainer.validate()
        assert equal(run.weights, average)
        assert [p.data_ptr() for p in run.model.parameters()] == places
        run.trainer.n_epochs = 3
        for act in (run.ema.state_dict, run.trainer.run):
            with pytest.raises(CallerError, match=r"the averaged weights are in the model, and can't .*: leave EMA"):
                act()
    assert equal(run.weights, weights)
    with pytest.raises(LookupError), run.ema.applied(run.trainer):
        raise LookupError
    assert equal(run.weights, weights)
    assert equal([*run.average.values()], average)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda model: setattr(model.two, "weight", nn.Parameter(torch.ones(2, 6))),
            r"shape \[2, 6\] in torch.float32",
        ),
        (
            lambda model: model.two.double(),
            r"shape \[1, 6\] in torch.float64, which had shape \[1, 6\] in torch.float32",
        ),
    ],
)
def test_what_an_exchange_would_lose_something_of_is_refused_before_anything_is_changed(change: Any, said: str) -> None:
    """C4: a weight that was replaced, or brought into another dtype."""
    model = Net()
    averages = WeightAverages(model)
    averages.add(None)
    with torch.no_grad():
        model.one.weight.add_(1.0)
    change(model)
    before = [tensor.clone() for tensor in model.state_dict().values()]
    held = [average.clone() for average in averages.state().values()]
    with pytest.raises(CallerError, match=said), averages.applied():
        pass
    assert equal([*model.state_dict().values()], before)
    assert equal([*averages.state().values()], held)


def test_the_averaged_model_is_saved_for_plain_torch_and_for_load_model(tmp_path: Path) -> None:
    """C4: the buffers are those that training has, and a weight of two names is under both."""
    run = Averaged()
    with pytest.raises(CallerError, match="there is no average yet"):
        run.ema.save_model(tmp_path / "early.pt")
    run.run()
    heard: list[list[torch.Tensor]] = []
    run.trainer.on(Events.on_save_model, lambda t: heard.append(run.weights))
    run.ema.save_model(tmp_path / "average.pt")
    assert equal(*heard, [*run.average.values()])
    held = torch.load(tmp_path / "average.pt", weights_only=True)
    assert held.keys() == run.model.state_dict().keys()
    assert all(torch.equal(held[name], average) for name, average in run.average.items())
    assert torch.equal(held["same.weight"], held["two.weight"])
    assert torch.equal(held["norm.running_mean"], run.model.norm.running_mean)
    file = io.BytesIO()
    run.ema.save_model(file)
    other = Averaged()
    other.trainer.load_model(io.BytesIO(file.getvalue()))
    assert equal(other.weights, [*run.average.values()])


def test_what_belongs_to_another_trainer_or_to_none_cannot_be_applied() -> None:
    run, other = Averaged(), Averaged()
    for ema in (other.ema, EMA()):
        applied = ema.applied(run.trainer)
        with pytest.raises(CallerError, match="this callback isn't one of that trainer's callbacks"), applied:
            pass


def test_without_torch_the_stub_averages_its_number_and_other_drivers_say_that_they_cannot() -> None:
    """C4."""
    ema = EMA(0.0)
    trainer = stub(callbacks=ema, metrics={"sum": Sum()}, validate_dataloaders=[1])
    trainer.run()
    assert ema.count == 6
    assert ema.state_dict()["average"] == {"weight": float(trainer.driver.weight)}  # type: ignore[union-attr]

    class Bare(type(trainer.driver)):  # type: ignore[misc]
        def averages(self, *, buffers: bool = False) -> Any:
            return super(type(trainer.driver), self).averages(buffers=buffers)

    with pytest.raises(CallerError, match="Bare averages no weights"):
        stub(driver=Bare(), callbacks=EMA())


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"decay": 1.5}, "decay must be a number from 0 to 1, not 1.5"),
        ({"decay": "0.9"}, "decay must be a number from 0 to 1, not '0.9'"),
        ({"warmup": -1}, "warmup must be an integer >= 0, not -1"),
        ({"update_every": 0}, "update_every must be an integer >= 1, not 0"),
        ({"start_at": 1.0}, "start_at must be an integer >= 0, not 1.0"),
        ({"buffers": "swap"}, "buffers must be one of copy, average, not 'swap'"),
    ],
)
def test_it_refuses_what_it_cannot_use(settings: Any, said: str) -> None:
    with pytest.raises(CallerError) as caught:
        EMA(**settings)
    assert str(caught.value) == said


# -- other weights in the model ------------------------------------------------------------------------------


def with_best(order: str, buffers: str = "copy", **settings: Any) -> Averaged:
    """A run whose first validation is its best, so that the last average is another one."""
    best = [LoadBestModel("loss", larger_better=True)]
    where = {"more": best} if order == "best, average" else {"after": best}
    return Averaged(EMA(0.9, buffers=buffers), **where, **settings)


def losses_of(run: Averaged) -> list[float]:
    """What is evaluated by hand, in each of the ways there are: one loss of each."""
    loss = Loss(run.model)
    predicted = [float(outputs["loss"]) for outputs in run.trainer.predict(BATCHES[:2])]
    tested = run.trainer.test(BATCHES[:2], {"loss": loss})["loss"]
    return [run.trainer.validate()["loss"], tested, sum(predicted) / len(predicted)]


def by_hand(run: Averaged) -> float:
    """The loss of what is in the model."""
    run.model.eval()
    with torch.no_grad():
        return sum(float(run.model(batch)["loss"]) for batch in BATCHES[:2]) / 2


ORDERS = ["average, best", "best, average"]


@pytest.mark.parametrize("buffers", ["copy", "average"])
@pytest.mark.parametrize("order", ORDERS)
def test_the_best_weights_that_were_put_into_the_model_are_evaluated_as_they_are(order: str, buffers: str) -> None:
    """C4, K4: once training has ended, in on_train_end too; and they are in the model after as before."""
    run = with_best(order, buffers, n_epochs=4)
    results: list[float] = []
    run.trainer.on("on_validate_end", lambda t, held: results.append(held["loss"]))
    at_end: list[float] = []
    run.trainer.on("on_train_end", lambda t: at_end.append(t.validate()["loss"]), priority=-1)
    run.run()
    assert max(results) == results[0] != results[-1]
    held = copy.deepcopy(run.model.state_dict())
    assert at_end == [results[0]]
    assert losses_of(run) == [results[0]] * 3
    assert by_hand(run) == results[0]
    assert equal([*run.model.state_dict().values()], [*held.values()])


@pytest.mark.parametrize("order", ORDERS)
def test_a_run_that_ended_with_its_best_weights_is_extended_to_the_bits_of_the_straight_one(
    tmp_path: Path, order: str
) -> None:
    """C4, K4, R61: evaluated in between or not, in the same objects and in others; with the same validations."""
    straight = with_best(order, run_dir=tmp_path / "straight", n_epochs=4)
    straight.run()
    one = with_best(order, run_dir=tmp_path / "one", n_epochs=2)
    one.run()
    losses_of(one)
    one.trainer.n_epochs = 4
    one.run()
    with_best(order, run_dir=tmp_path / "two", n_epochs=2).run()
    two = with_best(order, run_dir=tmp_path / "two", n_epochs=4)
    two.run(resume_from="auto")
    for run in (one, two):
        assert equal(run.weights, straight.weights)
        assert equal([*run.average.values()], [*straight.average.values()])
        assert run.trainer.journal.chain == straight.trainer.journal.chain  # type: ignore[union-attr]
        told = [
            [r.data["results"] for r in Journal(each.trainer.run_dir) if r.event == "Validated"]  # type: ignore[arg-type]
            for each in (run, straight)
        ]
        assert told[0] == told[1]
        assert losses_of(run) == losses_of(straight) == [by_hand(run)] * 3


@pytest.mark.parametrize("order", ORDERS)
def test_a_finished_run_that_is_run_again_is_evaluated_as_it_was(run_dir: Path, order: str) -> None:
    """C4, K4, R61: in the same object, by resume_from="auto" in it, and in another one."""
    run = with_best(order, run_dir=run_dir)
    run.run()
    expected = losses_of(run)
    assert expected == [by_hand(run)] * 3
    run.run()
    assert losses_of(run) == expected
    run.run(resume_from="auto")
    assert losses_of(run) == expected
    again = with_best(order, run_dir=run_dir)
    again.run(resume_from="auto")
    assert losses_of(again) == expected
    assert by_hand(again) == expected[0]


def test_weights_that_were_loaded_by_hand_are_evaluated_as_they_are(tmp_path: Path) -> None:
    """C4: and the trained ones with the average again, when they are back."""
    run = Averaged()
    run.run()
    averaged = losses_of(run)
    run.trainer.save_model(tmp_path / "trained.pt")
    other = Averaged(n_epochs=1)
    other.run()
    other.trainer.save_model(tmp_path / "other.pt")
    run.trainer.load_model(tmp_path / "other.pt")
    assert losses_of(run) == [by_hand(other)] * 3
    assert losses_of(run) != averaged
    run.trainer.load_model(tmp_path / "trained.pt")
    assert losses_of(run) == averaged != [by_hand(run)] * 3
    run.model.double()
    run.model.float()
    assert losses_of(run) == averaged


def test_a_run_that_goes_on_with_weights_of_the_user_s_is_validated_with_the_average() -> None:
    """C4: they are what is trained from there on."""
    run = Averaged(n_epochs=1)
    run.run()
    with torch.no_grad():
        run.model.two.weight.add_(1.0)
    assert losses_of(run) == [by_hand(run)] * 3
    run.trainer.n_epochs = 2
    averages: list[list[torch.Tensor]] = []
    run.trainer.on("on_validate_begin", lambda t: averages.append([p.clone() for p in run.average.values()]))
    run.run()
    assert equal(run.metric.weights[-1], averages[-1])
    assert run.trainer.validate()["loss"] != by_hand(run)


@pytest.mark.parametrize("order", ORDERS)
def test_the_average_that_is_applied_or_saved_after_the_end_has_the_buffers_of_training(
    tmp_path: Path, order: str
) -> None:
    """C4, K4: not those of the best weights, which come back."""
    alone, run = Averaged(), with_best(order)
    alone.run()
    run.run()
    best = copy.deepcopy(run.model.state_dict())
    for each, name in ((alone, "alone"), (run, "run")):
        each.ema.save_model(tmp_path / name)
    saved = [torch.load(tmp_path / name, weights_only=True) for name in ("alone", "run")]
    assert equal([*saved[1].values()], [*saved[0].values()])
    assert not torch.equal(saved[0]["norm.running_mean"], best["norm.running_mean"])
    with run.ema.applied(), run.ema.applied():
        assert losses_of(run) == losses_of(alone)
    assert equal([*run.model.state_dict().values()], [*best.values()])


def test_the_stub_evaluates_the_weight_that_was_put_into_it() -> None:
    """C4, K4: as torch's driver does."""
    weights: list[int] = []

    class Noting(Sum):
        def update(self, value: int) -> None:
            weights.append(trainer.driver.weight)  # type: ignore[union-attr]

    best = LoadBestModel(lambda results: -float(trainer.trainer_state.validations))
    trainer = stub(callbacks=[EMA(0.5), best], metrics={"sum": Noting()}, validate_dataloaders=[1])
    trainer.run(num_eval_sanity_batch=0)
    trainer.validate()
    assert weights[0] != weights[1]
    assert weights[2:] == [weights[0]] == [trainer.driver.weight]  # type: ignore[union-attr]


@pytest.mark.parametrize("change", ["a bit", "nan", "dtype", "shape", "buffer"])
def test_the_weights_that_training_left_are_known_by_their_bits(change: str) -> None:
    """C4: another place, or another device, makes no difference; buffers count where they are averaged."""
    model = Net()
    averages = WeightAverages(model, buffers=change == "buffer")
    assert averages.are_in_place
    averages.add(None)
    if change == "nan":
        model.two.weight.data.fill_(float("nan"))
    averages.leave()
    model.one.weight = nn.Parameter(model.one.weight.detach().clone())
    assert averages.are_in_place
    if change == "a bit":
        model.one.weight.data.view(torch.int32)[0, 0] ^= 1
    elif change == "dtype":
        model.two.double()
    elif change == "shape":
        model.two.weight = nn.Parameter(model.two.weight.detach().reshape(6, 1))
    elif change == "buffer":
        model.norm.running_mean += 1
    assert averages.are_in_place is (change == "nan")
    averages.take_up()
    assert averages.are_in_place


# -- several -------------------------------------------------------------------------------------------------


def test_two_averages_that_would_both_be_evaluated_with_are_refused() -> None:
    """R42: also where the second is added later; all but one may be kept without being evaluated."""
    with pytest.raises(CallerError, match="two EMA would each evaluate with an average of its own"):
        Averaged(EMA(0.5), more=[EMA(0.9)])
    run = Averaged(EMA(0.5), more=[EMA(0.9, evaluate=False)], n_epochs=1)
    with pytest.raises(CallerError, match="give evaluate=False to all but one"):
        run.trainer.add_callback(EMA(0.9))
    run.trainer.add_callback(EMA(0.99, evaluate=False))
    run.run()
    assert equal(run.metric.weights[-1], [*run.average.values()])


def test_evaluated_by_hand_inside_applied_it_is_that_average_that_is_evaluated() -> None:
    """C4: whichever the others are evaluated with; in a run and after it."""
    slow = EMA(0.99, evaluate=False)
    run = Averaged(EMA(0.5), more=[slow])
    seen: list[list[torch.Tensor]] = []

    def evaluate(trainer: Any) -> None:
        for ema in (slow, run.ema):
            average = [p.clone() for p in ema.state_dict()["average"].values()]
            with ema.applied():
                trainer.validate()
            seen.extend([run.metric.weights[-1], average])

    run.trainer.on("on_train_epoch_end", evaluate)
    run.run()
    evaluate(run.trainer)
    assert len(seen) == 12
    for n in range(0, len(seen), 2):
        assert equal(seen[n], seen[n + 1])
    assert not equal(seen[0], seen[2])


def test_an_average_that_is_given_to_another_trainer_begins_anew() -> None:
    """C4: the first trainer's evaluations go on using its own."""
    ema, fresh = EMA(0.9, warmup=3), EMA(0.9, warmup=3)
    first = Averaged(ema, n_epochs=1)
    first.run()
    before = losses_of(first)
    second, straight = Averaged(ema), Averaged(fresh)
    assert (ema.count, ema.state_dict()) == (0, {})
    for run in (second, straight):
        run.run()
    assert ema.count == fresh.count == 10
    assert equal([*second.average.values()], [*straight.average.values()])
    assert second.trainer.trainer_state.results == straight.trainer.trainer_state.results
    assert losses_of(first) == before
