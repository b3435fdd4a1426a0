"""The evaluator: what each metric is given, how results are named, and that training doesn't notice it."""

from __future__ import annotations

import dataclasses
import random
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torchmetrics
from torch import nn
from torch.utils.data import DataLoader

from tachograph.drivers import MatchFault, StubDriver, choose_driver
from tachograph.engine import Evaluator, Events, Trainer
from tachograph.states.errors import CallerError
from tests.toys import Indexed, Regression, Run, Sum, equal, stub


class Collects:
    """A metric that keeps what it was given."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.given: list[Any] = []

    def reset(self) -> None:
        self.log.append("reset")
        self.given = []

    def update(self, value: Any) -> None:
        self.log.append(f"update {value}")
        self.given.append(value)

    def compute(self) -> int:
        self.log.append("compute")
        return len(self.given)


def evaluator(dataloaders: Any, metrics: Any = None, **settings: Any) -> Evaluator:
    """An evaluator without torch: each batch is a number, and the outputs are {'value': it, 'weight': 1}."""
    metrics = {"m": Collects()} if metrics is None else metrics
    return Evaluator(None, dataloaders, metrics, StubDriver(), **{"verbose": 0, **settings})


def regression(n: int = 6, **settings: Any) -> Evaluator:
    torch.manual_seed(0)
    settings = {"metrics": {"loss": Mean()}, "verbose": 0, **settings}
    return Evaluator(Regression(), DataLoader(Indexed(n), batch_size=2), **settings)


class Mean:
    def reset(self) -> None:
        self.losses: list[float] = []

    def update(self, loss: torch.Tensor) -> None:
        self.losses.append(loss.item())

    def compute(self) -> float:
        return sum(self.losses) / len(self.losses)


# -- a run -------------------------------------------------------------------------------------------------


def test_every_metric_is_reset_updated_and_computed_on_every_loader() -> None:
    """EV3, EV5."""
    one, other = Collects(), Collects()
    results = evaluator({"a": [1, 2], "b": [3]}, {"x": one, "y": other}).run()
    assert results == {"x#a": 2, "y#a": 2, "x#b": 1, "y#b": 1}
    expected = ["reset", "update 1", "update 2", "compute", "reset", "update 3", "compute", "reset"]
    assert one.log == other.log == expected


def test_results_are_named_indicator_metric_loader_and_empty_parts_are_left_out() -> None:
    """EV4, EV8."""

    class Gives(Collects):
        def __init__(self, value: Any) -> None:
            super().__init__()
            self.value = value

        def compute(self) -> Any:
            return self.value

    def named(loaders: Any, value: Any, **settings: Any) -> dict[str, Any]:
        return evaluator(loaders, {"acc": Gives(value)}, **settings).run()

    assert named([1], 0.5) == {"acc": 0.5}
    assert named({"dev": [1]}, 0.5) == {"acc#dev": 0.5}
    assert named([1], {"f": 1, "pre": 2}) == {"f#acc": 1, "pre#acc": 2}
    assert named({"dev": [1], "test": [2]}, {"f": 1}) == {"f#acc#dev": 1, "f#acc#test": 1}
    assert named({"dev": [1]}, {"_raw": 1, "f": 2}, separator="/") == {"_raw/acc/dev": 1, "f/acc/dev": 2}


def test_a_standalone_run_prints_its_results_but_those_with_an_underscore(capsys: pytest.CaptureFixture[str]) -> None:
    """EV1, EV8."""

    class Gives(Collects):
        def compute(self) -> Any:
            return {"f": 0.5, "_raw": [1, 2]}

    assert evaluator([1], {"m": Gives()}, verbose=1).run() == {"f#m": 0.5, "_raw#m": [1, 2]}
    assert capsys.readouterr().out == "f#m: 0.5\n"
    evaluator([1], {"m": Gives()}, verbose=0).run()
    stub([1], n_epochs=1, metrics={"m": Gives()}, validate_dataloaders=[1]).run()
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(("asked", "seen"), [(-1, 3), (1, 1), (2, 2), (7, 3)])
def test_a_part_of_each_loader_may_be_used_and_no_batch_more_is_read(asked: int, seen: int) -> None:
    """EV2."""
    read: list[int] = []

    class Reads:
        def __iter__(self) -> Iterator[int]:
            for n in range(3):
                read.append(n)
                yield n

    assert evaluator(Reads()).run(asked) == {"m": seen}
    assert read == list(range(seen))


@pytest.mark.parametrize("wrong", [0, -2, 1.5, True, None])
def test_a_number_of_batches_is_all_or_at_least_one(wrong: Any) -> None:
    """EV2."""
    with pytest.raises(CallerError, match=r"num_eval_batch_per_dl must be -1 \(all\) or > 0, not "):
        evaluator([1]).run(wrong)


def test_an_evaluator_may_be_run_again_and_begins_anew() -> None:
    """R14."""
    one = evaluator([4, 5], {"m": Sum()})
    assert [one.run() for _ in range(3)] == [{"sum#m": 9, "n#m": 2}] * 3


def test_an_evaluator_stands_alone_with_a_module_a_driver_or_the_name_of_one() -> None:
    """EV1."""
    torch.manual_seed(0)
    model, loader = Regression(), DataLoader(Indexed(6), batch_size=2)
    results = [
        Evaluator(model, loader, {"loss": Mean()}, driver, verbose=0).run()
        for driver in (None, "torch", "auto", choose_driver("torch", model, "cpu"))
    ]
    results.append(Evaluator(None, loader, {"loss": Mean()}, choose_driver("torch", model, "cpu"), verbose=0).run())
    assert results == [results[0]] * 5


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"seperator": "/"}, "Evaluator has no argument 'seperator'. Did you mean 'separator'"),
        ({"verbos": 0}, "Evaluator has no argument 'verbos'. Did you mean 'verbose'"),
        ({"dataloader": [1]}, "Evaluator has no argument 'dataloader'. Did you mean 'dataloaders'"),
        ({"mode": "train"}, "mode must be 'validate' or 'test', not 'train'"),
        (
            {"batch_step_fn": lambda batch: None},
            "batch_step_fn must be a function of (evaluator, batch), not <function",
        ),
        ({"metrics": None}, "metrics is missing: give a dict name -> metric; what only predicts needs no loaders"),
        ({"metrics": {}}, "metrics must be a dict name -> metric with one metric at least, not {}"),
        ({"dataloaders": None}, "dataloaders is missing: give one loader, or a dict name -> loader"),
        ({"dataloaders": []}, "the evaluation loader is empty"),
    ],
)
def test_an_argument_that_cannot_be_used_is_refused(settings: dict[str, Any], said: str) -> None:
    """EV1, R62."""
    given = {"dataloaders": [1], "metrics": {"m": Sum()}, **settings}
    with pytest.raises(CallerError) as caught:
        Evaluator(None, driver=StubDriver(), **given)
    assert said in str(caught.value)


# -- what a metric is given --------------------------------------------------------------------------------


class Model(nn.Module):
    def __init__(self, outputs: Any) -> None:
        super().__init__()
        self.outputs = outputs

    def forward(self, batch: Any = None, **more: Any) -> Any:
        return self.outputs


def given_to(update: Any, batch: Any, outputs: Any, **settings: Any) -> Any:
    """What a metric with this `update` gets of a batch and the outputs."""
    metric = type("Metric", (Collects,), {"update": update})()
    Evaluator(Model(outputs), [batch], {"m": metric}, verbose=0, model_wo_auto_param_call=True, **settings).run()
    return metric


def test_a_metric_s_arguments_are_picked_by_name_from_the_outputs_and_the_batch() -> None:
    """EV6: defaults are respected."""
    seen: list[Any] = []
    batch, outputs = {"target": 1, "ids": 2, "mask": 3}, {"pred": 4, "loss": 5}
    given_to(lambda self, pred, target: seen.append((pred, target)), batch, outputs)
    given_to(lambda self, pred, mask=0, other=9: seen.append((pred, mask, other)), batch, outputs)
    given_to(lambda self, *, loss: seen.append(loss), batch, outputs)
    given_to(lambda self, **all: seen.append(all), batch, outputs)
    given_to(lambda self, pred, **all: seen.append((pred, sorted(all))), batch, outputs)
    given_to(lambda self: seen.append("nothing"), batch, outputs)
    assert seen == [
        (4, 1),
        (4, 3, 9),
        5,
        {**batch, **outputs},
        (4, ["ids", "loss", "mask", "target"]),
        "nothing",
    ]


@dataclasses.dataclass
class Outputs:
    pred: int


def test_outputs_and_batches_may_be_dataclasses_or_renamed_and_only_one_of_them_needs_names() -> None:
    """EV6, T14."""
    seen: list[Any] = []

    def update(self: Any, pred: Any, target: Any = None) -> None:
        seen.append((pred, target))

    given_to(update, Outputs(2), {"target": 1})
    given_to(update, (1, 2), Outputs(3))
    given_to(update, {"y": 4}, (5, 6), input_mapping={"y": "target"}, output_mapping={"_0": "pred"})
    given_to(update, 7, 8, input_mapping=lambda b: {"target": b}, output_mapping=lambda o: {"pred": o})
    assert seen == [(2, 1), (3, None), (5, 4), (8, 7)]


@pytest.mark.parametrize(
    ("update", "batch", "outputs", "said"),
    [
        (
            lambda self, label: None,
            {"target": 1},
            {"pred": 2},
            "metric 'm' needs 'label', which isn't among ['pred', 'target']. Rename it there, or map it",
        ),
        (
            lambda self, pred: None,
            {"pred": 1},
            {"pred": 2},
            "metric 'm': 'pred' is in the batch and in the outputs, with different values",
        ),
        (
            lambda self, pred: None,
            (1, 2),
            3,
            "metric 'm' needs names, but outputs are an int and the batch a tuple: return a dict from the model, or ",
        ),
    ],
)
def test_what_a_metric_cannot_be_given_is_told_by_name(update: Any, batch: Any, outputs: Any, said: str) -> None:
    """EV6."""
    with pytest.raises(MatchFault) as caught:
        given_to(update, batch, outputs)
    assert said in str(caught.value)
    assert isinstance(caught.value, ValueError)


def test_one_object_under_one_name_in_both_is_no_contradiction() -> None:
    """EV6."""
    both, seen = object(), []
    given_to(lambda self, x: seen.append(x), {"x": both}, {"x": both})
    assert seen == [both]


def test_a_metric_with_the_reference_trainer_s_method_is_taken() -> None:
    """EV7."""

    class Old:
        def reset(self) -> None:
            self.n = 0

        def update(self, value: int) -> None:
            self.n += value

        def get_metric(self) -> dict[str, int]:
            return {"sum": self.n}

    assert evaluator([1, 2], {"m": Old()}).run() == {"sum#m": 3}


def predicting() -> Any:
    """A model that predicts x + 0.5, and its data."""

    class Predicts(nn.Module):
        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"preds": x + 0.5}

    batches = [
        {"x": torch.tensor([1.0, 2.0]), "target": torch.tensor([1.0, 3.0])},
        {"x": torch.ones(2), "target": torch.ones(2)},
    ]
    return Predicts(), batches


def test_a_metric_of_torchmetrics_gives_plain_numbers() -> None:
    """EV7, MO7."""
    model, batches = predicting()
    metrics = {"mse": torchmetrics.MeanSquaredError(), "each": torchmetrics.CatMetric()}
    results = Evaluator(
        model, {"dev": batches}, metrics, verbose=0, output_mapping=lambda o: {**o, "value": o["preds"]}
    ).run()
    assert results == {"mse#dev": 0.25, "each#dev": [1.5, 2.5, 1.5, 1.5]}
    assert type(results["mse#dev"]) is float


def test_a_collection_of_torchmetrics_gives_its_members_by_their_names() -> None:
    """EV7."""
    model, batches = predicting()
    collection = torchmetrics.MetricCollection(
        {"mse": torchmetrics.MeanSquaredError(), "mae": torchmetrics.MeanAbsoluteError()}
    )
    results = Evaluator(model, batches, {"all": collection}, verbose=0).run()
    assert results == {"mse#all": 0.25, "mae#all": 0.5}


def test_a_trainer_s_validation_with_torchmetrics_begins_anew_each_time(run_dir: Any) -> None:
    """EV7, MO6."""
    metric = torchmetrics.MeanMetric()
    run = Run(
        n_epochs=3,
        run_dir=run_dir,
        metrics={"loss": metric},
        validate_dataloaders=DataLoader(Indexed(4), batch_size=2),
        evaluate_output_mapping={"loss": "value"},
    )
    fresh: list[float] = []

    def again(trainer: Any, results: dict[str, float]) -> None:
        trainer.evaluator.run()
        fresh.append(results["loss"])

    run.trainer.on(Events.on_validate_end, again)
    run.run()
    plain = Run(
        n_epochs=3,
        metrics={"loss": torchmetrics.MeanMetric()},
        validate_dataloaders=DataLoader(Indexed(4), batch_size=2),
        evaluate_output_mapping={"loss": "value"},
    )
    expected: list[float] = []
    plain.trainer.on(Events.on_validate_end, lambda t, results: expected.append(results["loss"]))
    plain.run(num_eval_sanity_batch=0)
    assert fresh == expected
    assert len(set(fresh)) == 3


# -- the model's call --------------------------------------------------------------------------------------


class Steps(nn.Module):
    """Says which of its methods was called."""

    def forward(self, x: Any) -> dict[str, str]:
        return {"value": "forward"}


def with_steps(*names: str) -> nn.Module:
    methods = {name: (lambda self, x, name=name: {"value": name}) for name in names}
    return type("Steps", (Steps,), methods)()  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("names", "mode", "called", "substituted"),
    [
        (("validate_step", "test_step"), "validate", "validate_step", False),
        (("validate_step", "test_step"), "test", "test_step", False),
        (("test_step",), "validate", "test_step", True),
        (("validate_step",), "test", "validate_step", True),
        ((), "validate", "forward", False),
        ((), "test", "forward", False),
        (("train_step",), "validate", "forward", False),
    ],
)
def test_the_model_s_method_is_looked_for_in_an_order_and_a_substitution_is_told(
    names: tuple[str, ...], mode: str, called: str, substituted: bool
) -> None:
    """T10, EV1."""
    metric = Collects()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        Evaluator(with_steps(*names), [{"x": 1}], {"m": metric}, mode=mode, verbose=0).run()
    assert f"update {called}" in metric.log
    said = [str(w.message) for w in caught]
    other = {"validate": "validate_step", "test": "test_step"}[mode]
    assert said == ([f"Steps has no {other}: {called} is used instead"] if substituted else [])


@pytest.mark.parametrize(
    ("settings", "called"),
    [
        ({}, "validate_step"),
        ({"validate_mode": "test"}, "test_step"),
        ({"evaluate_fn": "predict"}, "predict"),
        ({"evaluate_fn": "forward", "validate_mode": "test"}, "forward"),
    ],
)
def test_a_trainer_s_validate_mode_and_evaluate_fn_choose_the_method(settings: dict[str, Any], called: str) -> None:
    """T10."""
    metric = Collects()
    model = with_steps("validate_step", "test_step", "predict")
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))])
    given = {"metrics": {"m": metric}, "validate_dataloaders": [{"x": 1}], "run_dir": None, "progress_bar": None}
    Trainer(model, "torch", [{"x": 1}], optimizer, **given, **settings).validate()
    assert f"update {called}" in metric.log


def test_a_step_of_the_user_s_replaces_the_evaluation_of_a_batch() -> None:
    """T9."""
    metric, seen = Collects(), []

    def step(evaluator: Any, batch: Any) -> None:
        seen.append(batch)
        outputs = evaluator.evaluate_step(batch)
        evaluator.update(batch, {"value": outputs["value"] * 10})

    trainer = stub([1], n_epochs=1, metrics={"m": metric}, validate_dataloaders=[1, 2], validate_batch_step_fn=step)
    trainer.run(num_eval_sanity_batch=0)
    assert metric.log == ["reset", "update 10", "update 20", "compute", "reset"]
    assert seen == [1, 2]


def test_evaluation_takes_its_own_mappings_or_the_shared_ones() -> None:
    """T14."""
    for settings in (
        {"input_mapping": lambda b: {**b, "x": b["x"] + 1}},
        {"evaluate_input_mapping": lambda b: {**b, "x": b["x"] + 1}},
        {"output_mapping": lambda o: {**o, "loss": o["loss"] * 2}},
        {"evaluate_output_mapping": lambda o: {**o, "loss": o["loss"] * 2}},
    ):
        validation = {"metrics": {"loss": Mean()}, "validate_dataloaders": DataLoader(Indexed(4), batch_size=2)}
        plain = Run(**validation).trainer.validate()["loss"]
        mapped = Run(**validation, **settings).trainer.validate()["loss"]
        assert mapped == 2 * plain if "output" in next(iter(settings)) else mapped != plain


# -- training doesn't notice -------------------------------------------------------------------------------


def test_evaluation_makes_no_gradients_and_is_done_in_evaluation_mode_unless_that_is_unwanted() -> None:
    """EV3, T21."""
    for eval_mode in (True, False):
        seen: list[tuple[bool, bool]] = []
        model = Regression()
        model.register_forward_pre_hook(lambda m, args, seen=seen: seen.append((torch.is_grad_enabled(), m.training)))
        loader = DataLoader(Indexed(4), batch_size=2)
        Evaluator(model, loader, {"loss": Mean()}, verbose=0, model_use_eval_mode=eval_mode).run()
        assert seen == [(False, not eval_mode)] * 2
        assert torch.is_grad_enabled()


@pytest.mark.parametrize("fails", [False, True])
def test_every_module_gets_its_own_mode_back_whatever_happened(fails: bool) -> None:
    """EV3, C5: a frozen part stays frozen, and a model that was evaluated stays in evaluation mode."""

    class Fails(Mean):
        def update(self, loss: Any) -> None:
            if fails:
                raise ZeroDivisionError
            super().update(loss)

    for frozen in ("hidden", "dropout", "out", ""):
        model = Regression()
        model.get_submodule(frozen).eval()
        before = [module.training for module in model.modules()]
        one = Evaluator(model, DataLoader(Indexed(4), batch_size=2), {"loss": Fails()}, verbose=0)
        if fails:
            with pytest.raises(ZeroDivisionError):
                one.run()
        else:
            one.run()
        assert [module.training for module in model.modules()] == before
        assert torch.is_grad_enabled()


class Draws(Mean):
    """A metric that draws from every generator."""

    def update(self, loss: torch.Tensor) -> None:
        torch.rand(3), np.random.rand(2), random.random()
        super().update(loss)


@pytest.mark.parametrize(
    ("sanity", "every", "metrics", "shuffle"),
    [(0, -1, Mean, False), (2, -1, Mean, False), (-1, 1, Mean, True), (2, 1, Draws, True), (1, (2, -1), Draws, False)],
)
def test_training_does_not_depend_on_validation(sanity: int, every: Any, metrics: Any, shuffle: bool) -> None:
    """N12, R29, B16: sanity steps, intervals, evaluators that draw, shuffled validation data: not a bit."""
    plain = Run(n=12)
    plain.run()
    loader = DataLoader(Indexed(6, noise=True), batch_size=2, shuffle=shuffle)
    watched = Run(
        n=12, metrics={"loss": metrics()}, validate_dataloaders={"a": loader, "b": loader}, validate_every=every
    )
    losses: list[float] = []
    watched.trainer.on(Events.on_before_backward, lambda t, outputs: losses.append(outputs["loss"].item()))
    watched.run(num_eval_sanity_batch=sanity)
    after = watched.generators
    assert watched.model.seen == plain.model.seen
    assert equal(watched.weights, plain.weights)
    plain_again = Run(n=12)
    plain_again.run()
    assert plain_again.generators == after


@pytest.mark.parametrize("fails", [False, True])
def test_a_validation_by_hand_leaves_all_generators_where_they_were(fails: bool) -> None:
    """R29."""

    class Fails(Draws):
        def update(self, loss: torch.Tensor) -> None:
            super().update(loss)
            if fails:
                raise ZeroDivisionError

    run = Run(metrics={"loss": Fails()}, validate_dataloaders=DataLoader(Indexed(4, noise=True), shuffle=True))
    before = run.generators
    if fails:
        with pytest.raises(ZeroDivisionError):
            run.trainer.validate()
    else:
        run.trainer.validate()
    assert run.generators == before


def test_evaluation_is_done_under_the_precision_of_training() -> None:
    """EV9, the other way round: what is measured is what is trained."""
    seen: list[torch.dtype] = []

    def note(outputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        seen.append(outputs["predicted"].dtype)
        return outputs

    for precision, dtype in (("fp32", torch.float32), ("bf16", torch.bfloat16)):
        seen.clear()
        run = Run(
            n=4,
            n_epochs=1,
            precision=precision,
            metrics={"loss": Mean()},
            validate_dataloaders=DataLoader(Indexed(4), batch_size=2),
            evaluate_output_mapping=note,
        )
        run.run()
        assert seen == [dtype] * 4
    evaluated = regression(fp16=True, output_mapping=note)
    seen.clear()
    evaluated.run()
    assert set(seen) == {torch.float16}


def test_an_error_in_validation_ends_the_run_in_the_state_it_struck() -> None:
    """C5: it names the metric, the batch and the loader."""

    class Fails(Sum):
        def update(self, value: int) -> None:
            if value == 13:
                raise ZeroDivisionError("in the metric")
            super().update(value)

    trainer = stub([1, 2], metrics={"m": Fails()}, validate_dataloaders=[1, 2, 13])
    with pytest.raises(ZeroDivisionError, match="in the metric") as caught:
        trainer.run(num_eval_sanity_batch=2)
    assert caught.value.__notes__ == [  # type: ignore[attr-defined]
        "in the update of metric 'm'",
        "in batch 2 of the evaluation loader",
        "in state 'validate', epoch 0, batch 2, after transition 8",
    ]
    assert trainer.trainer_state.validations == 0
