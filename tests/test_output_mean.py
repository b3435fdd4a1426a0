"""A string as a metric, which is the mean of an output; and metrics that take their arguments from other names."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchmetrics
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

from tachograph.drivers import MatchFault, StubDriver
from tachograph.engine import EarlyStopping, Evaluator, Events, MoreEvaluate
from tachograph.states.errors import CallerError
from tests.toys import Indexed, Regression, Run, Sum, equal


class Losses(nn.Module):
    """The same errors as their mean, for each sample, and as a plain number."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(4, 1)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, Any]:
        errors = (self.layer(x).squeeze(-1) - y) ** 2
        return {
            "loss": errors.mean(),
            "of_one": errors.mean()[None],
            "each": errors,
            "as_half": errors.half(),
            "number": errors.mean().item(),
            "array": errors.detach().numpy(),
        }


def samples(n: int = 7) -> Indexed:
    return Indexed(n)


def at_once(model: Losses, n: int = 7) -> dict[str, Any]:
    """The outputs of the whole set in one batch."""
    (batch,) = DataLoader(samples(n), n)
    with torch.no_grad():
        return model(batch["x"], batch["y"])  # type: ignore[no-any-return]


class Streamed(IterableDataset[dict[str, Any]]):
    """Samples that have no index, so that their ids aren't known."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        data = samples()
        yield from (data[n] for n in range(7))


@pytest.mark.parametrize("name", ["loss", "of_one", "each", "number", "array"])
@pytest.mark.parametrize("size", [1, 2, 3, 5, 7])
@pytest.mark.parametrize("data", [samples, Streamed])
def test_a_string_as_a_metric_is_the_mean_over_all_samples_however_they_are_batched(
    data: Callable[[], Any], size: int, name: str
) -> None:
    """EV4, EV7: also where the last batch is smaller."""
    model = Losses()
    results = Evaluator(model, DataLoader(data(), size), {"val_loss": name}, verbose=0).run()
    assert list(results) == ["val_loss"]
    assert type(results["val_loss"]) is float
    assert results["val_loss"] == pytest.approx(at_once(model)["each"].mean().item(), rel=1e-6)


def test_halves_are_averaged_without_loss() -> None:
    """EV7."""
    model = Losses()
    results = Evaluator(model, DataLoader(samples(), 3), {"m": "as_half"}, verbose=0).run()
    assert results["m"] == pytest.approx(at_once(model)["as_half"].double().mean().item(), rel=1e-12)


def test_an_entry_of_the_batch_is_averaged_likewise_and_each_loader_by_itself() -> None:
    """EV4, EV5, EV7: whole numbers and truths are numbers too."""
    loaders = {"all": DataLoader(samples(), 4), "first": DataLoader(samples(3), 2)}
    mapped: dict[str, Any] = {"output_mapping": lambda outputs: {**outputs, "small": outputs["each"] < math.inf}}
    results = Evaluator(Losses(), loaders, {"id": "id", "small": "small"}, verbose=0, **mapped).run()
    assert results == {"id#all": 3.0, "small#all": 1.0, "id#first": 1.0, "small#first": 1.0}


def test_several_of_them_and_other_metrics_do_not_disturb_each_other_and_begin_anew_each_time() -> None:
    """EV3, EV7."""
    model = Losses()
    metrics = {"a": "loss", "b": "loss", "ids": "id", "mse": torchmetrics.MeanMetric()}
    mapped: dict[str, Any] = {"output_mapping": lambda outputs: {**outputs, "value": outputs["each"]}}
    evaluator = Evaluator(model, DataLoader(samples(), 3), metrics, verbose=0, **mapped)
    results = evaluator.run()
    assert list(results) == ["a", "b", "ids", "mse"]
    assert results["a"] == results["b"] == pytest.approx(results["mse"], rel=1e-6)
    assert results["ids"] == 3.0
    assert evaluator.run() == results
    evaluator.run(1)
    assert evaluator.run() == results


def test_a_mean_of_what_is_not_a_number_anywhere_is_not_a_number() -> None:
    """EV7: nor does it stay so afterwards."""
    bad = [True]

    def spoilt(outputs: Any) -> Any:
        return {"loss": outputs["loss"] * (math.nan if bad and bad.pop() else 1.0)}

    evaluator = Evaluator(Losses(), DataLoader(samples(), 3), {"m": "loss"}, output_mapping=spoilt, verbose=0)
    assert math.isnan(evaluator.run()["m"])
    assert math.isfinite(evaluator.run()["m"])


@pytest.mark.parametrize("size", [2, 3])
def test_a_step_of_the_user_s_that_gives_parts_of_a_batch_has_their_samples_counted(size: int) -> None:
    """T9, EV7."""

    def in_parts(evaluator: Any, batch: Any) -> None:
        for first in range(0, len(batch["x"]), size):
            part = {name: value[first : first + size] for name, value in batch.items()}
            evaluator.update(part, evaluator.evaluate_step(part))

    model = Losses()
    evaluator = Evaluator(model, DataLoader(samples(), 5), {"m": "loss"}, batch_step_fn=in_parts, verbose=0)
    assert evaluator.run()["m"] == pytest.approx(at_once(model)["each"].mean().item(), rel=1e-6)


@dataclasses.dataclass
class Batch:
    x: Any
    y: Any


def test_samples_without_ids_are_counted_by_the_first_tensor_and_batches_without_tensors_as_one_each() -> None:
    """EV7."""

    def evaluate(batches: Any, outputs: Any) -> float:
        mapped: dict[str, Any] = {"output_mapping": lambda held: {"m": outputs(held)}, "model_wo_auto_param_call": True}
        return Evaluator(nn.Identity(), batches, {"m": "m"}, verbose=0, **mapped).run()["m"]  # type: ignore[no-any-return]

    of_two = [Batch(torch.zeros(3, 1), 0), Batch(torch.ones(1, 1), 0)]
    assert evaluate(of_two, lambda batch: batch.x.mean()) == 0.25
    assert evaluate([(torch.zeros(3),), [torch.ones(1)]], lambda batch: batch[0].mean()) == 0.25
    assert evaluate([{"n": 1}, {"n": 2}], lambda batch: batch["n"]) == 1.5
    assert evaluate([{"n": 1}, {"n": 2}], lambda batch: np.float32(batch["n"])) == 1.5


def test_without_torch_a_batch_counts_as_one_or_as_its_ids() -> None:
    """EV7."""

    class Knows(StubDriver):
        def evaluation_batches(self, dataloader: Any) -> Any:
            for batch in dataloader:
                self.evaluation_ids = [0] * batch
                yield batch

    assert Evaluator(None, [1, 2, 6], {"m": "value"}, StubDriver(), verbose=0).run() == {"m": 3.0}
    assert Evaluator(None, [1, 3], {"m": "value"}, Knows(), verbose=0).run() == {"m": 2.5}


class TwoRanks(StubDriver):
    """As if a second process had evaluated three samples of 10."""

    world_size = 2

    def all_gather(self, value: Any) -> list[Any]:
        return [value, (30.0, 3)]


def test_ranks_that_share_the_data_have_one_mean() -> None:
    """EV7, M3: over all their samples."""
    assert Evaluator(None, [1], {"m": "value"}, TwoRanks(), verbose=0).run() == {"m": 31 / 4}
    assert Evaluator(None, [1], {"m": "value"}, TwoRanks(), verbose=0, use_dist_sampler=False).run() == {"m": 1.0}


# -- in a trainer ------------------------------------------------------------------------------------------


def validated(run_dir: Path | None = None, **settings: Any) -> Run:
    given = {"metrics": {"val_loss": "loss"}, "validate_dataloaders": DataLoader(Indexed(7), 2), **settings}
    return Run(run_dir=run_dir, **given)


def test_a_trainer_validates_and_tests_with_it_and_its_name_is_a_monitor(run_dir: Path) -> None:
    """EV4, T12: with other loaders, other metrics and in a second evaluator too."""
    more = MoreEvaluate(DataLoader(Indexed(5), 2), {"more": "loss"})
    stopping = EarlyStopping("val_loss", larger_better=False, patience=9)
    run = validated(run_dir, callbacks=lambda run: [more, stopping])
    seen: list[Any] = []
    run.trainer.on(Events.on_validate_end, lambda trainer, results: seen.append(results))
    state = run.run()
    assert [list(results) for results in seen] == [["val_loss"]] * 2
    assert list(more.results) == ["more"]
    trainer = run.trainer
    assert state.results == seen[-1] == trainer.validate()
    assert trainer.test(DataLoader(Indexed(7), 7))["val_loss"] == pytest.approx(seen[-1]["val_loss"], rel=1e-6)
    assert list(trainer.test({"t": DataLoader(Indexed(3), 2)}, {"l": "loss", "val_loss": "loss"})) == [
        "l#t",
        "val_loss#t",
    ]
    assert trainer.test(DataLoader(Indexed(7), 2), trainer.evaluator.metrics) == trainer.validate()  # type: ignore[union-attr]
    assert trainer.validate() == state.results


def test_training_does_not_notice_it(run_dir: Path) -> None:
    """R29: neither in its weights nor in its generators."""
    run, bare = validated(run_dir), Run()
    run.run()
    bare.run()
    assert equal(run.weights, bare.weights)
    assert run.generators[1:] == bare.generators[1:]


def test_nothing_of_a_batch_lives_on_in_it() -> None:
    """EV3: neither batch nor graph, and no value is read before the end."""
    evaluator = Evaluator(Losses(), DataLoader(samples(), 3), {"m": "loss"}, verbose=0)
    held: list[Any] = []
    metric = evaluator.metrics["m"]
    evaluator.after_batch = lambda: held.append(metric._sum)
    evaluator.run_until(lambda: False)
    assert [type(value) for value in held] == [torch.Tensor] * 3
    assert not any(value.requires_grad for value in held)
    assert evaluator._in_hand is None


# -- refused -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("metrics", "said"),
    [
        (
            {"acc": "accuracy"},
            "metric 'acc' needs 'accuracy', which isn't among ['array', 'as_half', 'each', 'id', 'loss', 'number', "
            "'of_one', 'x', 'y']. Rename it there, or map it with input_mapping / output_mapping; a string in place of "
            "a metric is the name of an output, whose mean is taken",
        ),
        (
            {"m": torchmetrics.MeanMetric()},
            "input_mapping / output_mapping; for this metric alone: metrics={'m': (metric, {'value': 'its name "
            "there'})}; the mean of an output: metrics={'m': 'its name'}",
        ),
        (
            {"m": torchmetrics.MeanSquaredError()},
            "; for this metric alone: metrics={'m': (metric, {'preds': 'its name there'})}",
        ),
        (
            {"m": (torchmetrics.MeanMetric(), {"value": "lost"})},
            "metric 'm' needs 'lost', which isn't among ['array', 'as_half', 'each', 'id', 'loss', 'number', 'of_one', "
            "'x', 'y']. Rename it there, or map it with input_mapping / output_mapping",
        ),
        ({"m": (torchmetrics.MeanMetric(), {"valu": "loss"})}, "metric 'm' takes no 'valu'. Did you mean 'value'?"),
        (
            {"m": (torchmetrics.MeanMetric(), {"value": 1})},
            "metric 'm': 'value' must be filled from a name, not from 1",
        ),
        ({"m": (3, "loss")}, "metric 'm' must be (metric, {parameter: name of an output}), not (3, 'loss')"),
        ({"m": ""}, "metric 'm' must have update, compute and reset; str lacks update"),
        ({"m": (Sum, {"value": "loss"})}, "metric 'm' is the class Sum: give an object of it"),
        (
            {"a": (one := torchmetrics.MeanMetric(), {"value": "loss"}), "b": (one, {"value": "each"})},
            "the metrics 'a' and 'b' are one object",
        ),
    ],
)
def test_a_name_that_is_not_there_is_refused_with_those_that_are_and_with_a_way_out(metrics: Any, said: str) -> None:
    """EV6, EV7."""
    with pytest.raises(ValueError) as caught:
        Evaluator(Losses(), DataLoader(samples(), 3), metrics, verbose=0).run()
    assert str(caught.value).endswith(said) or str(caught.value).startswith(said)


@pytest.mark.parametrize("update", [lambda self, value: None, lambda self, value=0: None, lambda self, **all: None])
def test_a_name_that_was_given_for_a_parameter_must_be_there_even_if_the_parameter_has_a_default(update: Any) -> None:
    """EV6: and no second way out is offered to who took the first."""
    metric = type("Metric", (Sum,), {"update": update})()
    with pytest.raises(MatchFault) as caught:
        Evaluator(None, [1], {"m": (metric, {"value": "lost"})}, StubDriver(), verbose=0).run()
    assert str(caught.value) == (
        "metric 'm' needs 'lost', which isn't among ['value', 'weight']. Rename it there, or map it with input_mapping "
        "/ output_mapping"
    )


def test_a_metric_that_lacks_nothing_is_offered_no_other_name() -> None:
    """EV6: where the outputs and the batch contradict each other."""
    mapped: dict[str, Any] = {"output_mapping": lambda outputs: {**outputs, "id": 3}}
    for metric in ("id", (torchmetrics.MeanMetric(), {"value": "id"})):
        with pytest.raises(MatchFault) as caught:
            Evaluator(Losses(), DataLoader(samples(), 3), {"m": metric}, verbose=0, **mapped).run()
        assert str(caught.value) == "metric 'm': 'id' is in the batch and in the outputs, with different values"


@pytest.mark.parametrize(
    ("value", "kind"), [([1.0], "a list"), (None, "a NoneType"), ("1", "a str"), (torch.tensor(1j), "a Tensor")]
)
def test_what_has_no_mean_is_refused_by_the_metric_s_name(value: Any, kind: str) -> None:
    """EV7."""
    mapped: dict[str, Any] = {"output_mapping": lambda outputs: {"loss": value}}
    with pytest.raises(CallerError) as caught:
        Evaluator(Losses(), DataLoader(samples(), 3), {"m": "loss"}, verbose=0, **mapped).run()
    assert (
        str(caught.value) == f"metric 'm' is the mean of 'loss', which must be a number or a tensor of them, not {kind}"
    )


def test_a_mean_of_nothing_is_refused() -> None:
    """EV7, M2."""
    evaluator = Evaluator(Losses(), DataLoader(samples()), {"m": "loss"}, batch_step_fn=lambda e, b: None, verbose=0)
    with pytest.raises(CallerError, match="there is no mean of 'loss': no sample was counted"):
        evaluator.run()


def test_a_missing_output_is_refused_by_the_sanity_check() -> None:
    """T12, EV6: and not hours later."""
    run = validated(metrics={"val_loss": "lost"})
    with pytest.raises(MatchFault, match="metric 'val_loss' needs 'lost'"):
        run.run()
    assert run.trainer.global_forward_batches == 0


# -- arguments from other names ----------------------------------------------------------------------------


def test_a_metric_takes_its_arguments_from_the_names_it_is_given_and_others_from_their_own() -> None:
    """EV6, EV7: so that two metrics may need different things by one name, in a test too."""
    model = Losses()
    metrics = {
        "loss": (torchmetrics.MeanMetric(), {"value": "loss"}),
        "id": (torchmetrics.MeanMetric(), {"value": "id"}),
        "plain": (Sum(), {}),
        "same": (torchmetrics.MeanSquaredError(), {"preds": "y", "target": "y"}),
    }
    mapped: dict[str, Any] = {"output_mapping": lambda outputs: {**outputs, "value": 2}}
    evaluator = Evaluator(model, DataLoader(samples(6), 3), metrics, verbose=0, **mapped)
    expected = at_once(model, 6)["each"].mean().item()
    results = evaluator.run()
    assert results == {"loss": pytest.approx(expected, rel=1e-6), "id": 2.5, "sum#plain": 4, "n#plain": 2, "same": 0.0}
    run = validated(metrics=metrics, evaluate_output_mapping=lambda outputs: {**outputs, "value": 2})
    assert run.trainer.test(DataLoader(Indexed(7), 2)) == run.trainer.validate()


def test_a_metric_that_takes_everything_is_given_the_renamed_beside_it() -> None:
    """EV6."""

    class All(Sum):
        def update(self, more: int = 0, **all: Any) -> None:  # type: ignore[override]
            self.seen = {**all, "more": more}

        def compute(self) -> dict[str, Any]:
            return self.seen

    evaluator = Evaluator(None, [5], {"m": (All(), {"more": "value", "new": "weight"})}, StubDriver(), verbose=0)
    assert evaluator.run() == {"value#m": 5, "weight#m": 1, "new#m": 1, "more#m": 5}


def test_what_a_run_was_built_with_says_what_is_averaged_and_where_arguments_come_from() -> None:
    """EV7."""
    metrics = {"a": "loss", "b": (Sum(), {"value": "loss"}), "c": Sum()}
    built = Evaluator(Regression(), DataLoader(samples()), metrics).built_with()
    assert built["metrics"] == {"a": "the mean of 'loss'", "b": ["Sum", {"value": "loss"}], "c": "Sum"}
