"""Evaluations by hand, tests and predictions; what is left behind by one that fails; what a standalone one is told."""

from __future__ import annotations

import dataclasses
import gc
import io
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchmetrics
from torch import nn
from torch.utils.data import DataLoader

from tachograph.drivers import MatchFault, StubDriver, choose_driver
from tachograph.drivers.single import TorchDriver
from tachograph.engine import EMA, Callback, Evaluator, Events, Trainer
from tachograph.engine.callbacks.callback import MOMENTS
from tachograph.engine.pass_progress import PassProgress
from tachograph.states.errors import CallerError
from tests.toys import Indexed, Regression, Run, Sum, equal, stub


class Mean:
    """A metric: the mean of the losses."""

    def reset(self) -> None:
        self.losses: list[float] = []

    def update(self, loss: torch.Tensor) -> None:
        self.losses.append(float(loss))

    def compute(self) -> float:
        return sum(self.losses) / len(self.losses)


class Gives(Sum):
    """A metric that gives what it is told."""

    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value

    def compute(self) -> Any:
        return self.value


def loader(n: int = 6, **settings: Any) -> DataLoader[Any]:
    return DataLoader(Indexed(n), **{"batch_size": 2, **settings})


def validated_run(**settings: Any) -> Run:
    return Run(**{"metrics": {"loss": Mean()}, "validate_dataloaders": loader(), **settings})


def standalone(dataloaders: Any, metrics: Any, **settings: Any) -> Evaluator:
    return Evaluator(None, dataloaders, metrics, StubDriver(), **{"verbose": 0, **settings})


# -- by hand, in the midst of a run ------------------------------------------------------------------------

HEARD = (
    Events.on_train_begin,
    Events.on_train_epoch_begin,
    Events.on_fetch_data_end,
    Events.on_before_backward,
    Events.on_after_backward,
    Events.on_train_batch_end,
    Events.on_validate_begin,
    Events.on_validate_end,
    Events.on_train_epoch_end,
)


def by_hand(trainer: Any) -> None:
    """All three, on data that draws and is shuffled; and on the training data."""
    noisy = DataLoader(Indexed(4, noise=True), batch_size=2, shuffle=True)
    trainer.validate()
    trainer.test(noisy)
    trainer.predict({"noisy": noisy, "training": trainer.train_dataloader})


@pytest.mark.parametrize("moment", HEARD, ids=str)
def test_an_evaluation_by_hand_in_the_midst_of_a_run_leaves_the_run_as_it_was(tmp_path: Path, moment: Any) -> None:
    """C5, R29: no transition, the same chain, weights and generators."""
    plain, watched = (validated_run(run_dir=tmp_path / name, validate_every=4) for name in ("plain", "watched"))

    heard: list[Any] = []

    def listener(trainer: Any) -> None:
        before = trainer.trainer_state, [module.training for module in trainer.driver.model.modules()]
        by_hand(trainer)
        after = trainer.trainer_state, [module.training for module in trainer.driver.model.modules()]
        assert after == before
        heard.append(trainer.trainer_state.seq)

    watched.trainer.on(moment, (lambda trainer, given: listener(trainer)) if MOMENTS[str(moment)] else listener)
    plain.run()
    watched.run()
    assert heard
    assert watched.chain == plain.chain
    assert equal(watched.weights, plain.weights)
    assert watched.model.seen == plain.model.seen
    after = watched.generators
    again = validated_run(run_dir=tmp_path / "again", validate_every=4)
    again.run()
    assert again.generators == after


def test_nobody_hears_of_an_evaluation_by_hand() -> None:
    """C5: a listener's memory is moved by those of the run only."""

    class Heard(Callback):
        n = 0

        def on_validate_batch_begin(self, trainer: Any, batch: Any) -> None:
            self.n += 1

        on_validate_batch_end = on_validate_begin = lambda self, trainer: setattr(self, "n", self.n + 1)

        def on_validate_end(self, trainer: Any, results: Any) -> None:
            self.n += 1

    heard = Heard()
    trainer = stub([1], n_epochs=1, metrics={"m": Sum()}, validate_dataloaders=[1, 2], callbacks=heard)
    trainer.validate()
    trainer.test([1, 2, 3])
    trainer.predict([1])
    assert heard.n == 0
    trainer.run(num_eval_sanity_batch=0)
    assert heard.n == 2 + 2 * 2


@pytest.mark.parametrize("what", [lambda t: t.validate(), lambda t: t.test([3]), lambda t: t.predict([3])])
@pytest.mark.parametrize("moment", [Events.on_validate_batch_begin, Events.on_validate_batch_end])
def test_no_evaluation_is_made_in_the_midst_of_another(moment: Any, what: Callable[[Any], Any]) -> None:
    """C5: its metrics would be reset by it. It is refused, and the next one is as good as new."""
    trainer = stub([1], n_epochs=1, metrics={"m": Sum()}, validate_dataloaders=[4, 5])

    handle = trainer.on(moment, (lambda t, batch: what(t)) if "begin" in str(moment) else lambda t: what(t))
    with pytest.raises(CallerError, match="an evaluation is under way already, and another one can't be made in its"):
        trainer.run()
    handle.remove()
    assert trainer.validate() == {"sum#m": 9, "n#m": 2}


def test_validations_by_hand_before_between_and_after_runs_give_what_the_model_is_then(run_dir: Path) -> None:
    """C5."""
    run = validated_run(run_dir=run_dir, n_epochs=1)
    first = run.trainer.validate()
    assert not run.trainer.predict(loader())[0]["loss"].requires_grad
    state = run.run()
    assert state.results == run.trainer.validate() != first
    assert run.trainer.validate(1) != run.trainer.validate()


# -- test --------------------------------------------------------------------------------------------------


class Says(nn.Module):
    """Says which of its methods was called."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x: Any) -> dict[str, Any]:
        return {"value": "forward"}


def saying(*names: str) -> nn.Module:
    methods = {name: (lambda self, x, name=name: {"value": name}) for name in names}
    return type("Says", (Says,), methods)()  # type: ignore[no-any-return]


class Values(Sum):
    """A metric: all values it saw."""

    def reset(self) -> None:
        self.values: list[Any] = []

    def update(self, value: Any) -> None:
        self.values.append(value)

    def compute(self) -> list[Any]:  # type: ignore[override]
        return self.values


def trainer_of(model: nn.Module, **settings: Any) -> Trainer:
    given = {"metrics": {"v": Values()}, "validate_dataloaders": [{"x": 1}], "run_dir": None, "progress_bar": None}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return Trainer(model, "torch", [{"x": 1}], optimizer, **{**given, **settings})  # type: ignore[arg-type]


def test_a_test_looks_for_the_model_s_test_step_first() -> None:
    """C5, T10."""
    trainer = trainer_of(saying("validate_step", "test_step"))
    assert trainer.validate() == {"v": ["validate_step"]}
    assert trainer.test([{"x": 1}, {"x": 2}]) == {"v": ["test_step"] * 2}
    assert trainer.test({"a": [{"x": 1}], "b": [{"x": 2}]}) == {"v#a": ["test_step"], "v#b": ["test_step"]}
    assert trainer.test([{"x": 1}] * 5, num_eval_batch_per_dl=3) == {"v": ["test_step"] * 3}
    named = trainer_of(saying("validate_step", "test_step", "mine"), evaluate_fn="mine")
    assert named.test([{"x": 1}]) == {"v": ["mine"]}


@pytest.mark.parametrize("steps", [(), ("validate_step",), ("test_step",), ("validate_step", "test_step")])
def test_a_test_tells_of_no_substitution_since_nobody_asked_for_a_mode(steps: tuple[str, ...]) -> None:
    """C5, T10: and finds the step that it would find."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer = trainer_of(saying(*steps), metrics=None, validate_dataloaders=None)
        called = trainer.test([{"x": 1}], {"v": Values()})["v"]
    assert called == [steps[-1] if steps else "forward"]
    assert caught == []


def test_a_mode_that_was_asked_for_is_told_of_its_substitution_once_also_when_a_test_is_made() -> None:
    """T10."""
    with pytest.warns(UserWarning, match="Says has no test_step: validate_step is used instead"):
        trainer = trainer_of(saying("validate_step"), validate_mode="test")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert trainer.test([{"x": 1}]) == trainer.validate() == {"v": ["validate_step"]}


def test_a_test_takes_other_metrics_also_where_the_trainer_has_none(capsys: pytest.CaptureFixture[str]) -> None:
    """C5."""
    trainer = trainer_of(saying(), metrics=None, validate_dataloaders=None)
    assert trainer.test([{"x": 1}], {"other": Values()}, verbose=1) == {"other": ["forward"]}
    assert capsys.readouterr().out == "other: ['forward']\n"
    with pytest.raises(CallerError, match=r"this trainer has no metrics: give test\(\) some"):
        trainer.test([{"x": 1}])
    with pytest.raises(CallerError, match="this trainer has nothing to validate"):
        trainer.validate()


def test_a_test_is_made_with_the_mappings_the_step_and_the_weights_of_a_validation() -> None:
    """C5, T9, T14."""

    def step(evaluator: Any, batch: Any) -> None:
        evaluator.update(
            batch, {"value": [evaluator.evaluate_step(batch)["said"], batch["x"], evaluator.model.weight.item()]}
        )

    trainer = trainer_of(
        saying("test_step"),
        validate_batch_step_fn=step,
        output_mapping={"value": "said"},
        evaluate_input_mapping={"z": "x"},
        validate_dataloaders=[{"z": 7}],
    )

    @contextmanager
    def doubled() -> Iterator[None]:
        trainer.driver.model.weight.data.mul_(2)  # type: ignore[union-attr]
        yield
        trainer.driver.model.weight.data.div_(2)  # type: ignore[union-attr]

    trainer.within.append(doubled)
    assert trainer.validate() == trainer.test([{"z": 7}]) == {"v": [["test_step", 7, 2.0]]}


# -- predict -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "settings", "called"),
    [
        (("predict_step", "validate_step"), {}, "predict_step"),
        (("predict_step",), {"evaluate_fn": "predict_step"}, "predict_step"),
        (("validate_step", "test_step"), {}, "validate_step"),
        (("validate_step", "test_step"), {"validate_mode": "test"}, "test_step"),
        (("mine", "validate_step"), {"evaluate_fn": "mine"}, "mine"),
        ((), {}, "forward"),
    ],
)
def test_a_prediction_is_made_by_predict_step_then_by_what_evaluates_then_by_the_forward_pass(
    names: tuple[str, ...], settings: dict[str, Any], called: str
) -> None:
    """C5."""
    assert trainer_of(saying(*names), **settings).predict([{"x": 1}]) == [{"value": called}]
    mode = {"mode": settings["validate_mode"]} if "validate_mode" in settings else {}
    own = {name: value for name, value in settings.items() if name == "evaluate_fn"}
    one = Evaluator(saying(*names), [{"x": 1}], {"v": Values()}, verbose=0, **mode, **own)
    assert one.predict() == [{"value": called}]


@pytest.mark.parametrize("metrics", [{"v": Values()}, None])
def test_a_prediction_tells_of_no_substitution_for_a_method_it_does_not_need(metrics: Any) -> None:
    """C5, T10."""
    given = {"metrics": metrics, "validate_dataloaders": None if metrics is None else [{"x": 1}]}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        trainer = trainer_of(saying("predict_step", "validate_step"), **given)
        assert trainer.predict([{"x": 1}]) == trainer.predict([{"x": 1}]) == [{"value": "predict_step"}]
    assert [str(warning.message) for warning in caught] == []


def test_predictions_are_collected_by_loader_and_batch_on_the_cpu_or_handed_out_one_by_one() -> None:
    """C5."""
    run = Run()
    run.model.eval()
    expected = [run.model(**batch)["predicted"].detach() for batch in loader()]
    single = run.trainer.predict(loader())
    assert equal([outputs["predicted"] for outputs in single], expected)
    assert not any(outputs["predicted"].requires_grad for outputs in single)
    both = run.trainer.predict({"a": loader(), "b": loader(2)}, num_eval_batch_per_dl=2)
    assert {name: len(outputs) for name, outputs in both.items()} == {"a": 2, "b": 1}
    taken: list[Any] = []
    kept = run.trainer.predict(loader(), on_batch=lambda outputs, batch: taken.append((batch["id"], outputs)))
    assert kept is None
    assert torch.cat([ids for ids, _ in taken]).tolist() == [0, 1, 2, 3, 4, 5]
    assert equal([outputs["predicted"] for _, outputs in taken], expected)
    assert len(run.trainer.predict(loader(), 0.5)) == 1


def test_predictions_are_copies_that_later_batches_do_not_write_over() -> None:
    """C5."""

    class Reuses(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("held", torch.zeros(1))

        def predict_step(self, x: float) -> Any:
            return [self.held.fill_(x)]

    evaluator = Evaluator(Reuses(), [{"x": 1.0}, {"x": 2.0}], {"v": Values()}, verbose=0)
    assert [outputs[0].item() for outputs in evaluator.predict()] == [1.0, 2.0]


@dataclasses.dataclass(frozen=True)
class Predicted:
    scores: torch.Tensor
    parts: list[Any]


def test_predictions_in_dataclasses_are_copied_too_and_batches_in_them_are_moved() -> None:
    """C5, T14."""

    class Makes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.held = nn.Parameter(torch.zeros(1))

        def predict_step(self, x: float) -> Predicted:
            with torch.no_grad():
                return Predicted(self.held.fill_(x), [{"x": self.held}])

    model = Makes()
    first, second = Evaluator(model, [{"x": 1.0}, {"x": 2.0}], {"v": Values()}, verbose=0).predict()
    assert (first.scores.item(), first.parts[0]["x"].item(), second.scores.item()) == (1.0, 1.0, 2.0)
    moved = TorchDriver(model, "meta").to_device(first)
    assert (moved.scores.device.type, moved.parts[0]["x"].device.type) == ("meta", "meta")
    assert first.scores.device.type == "cpu"


def test_mappings_apply_to_predictions_but_what_predict_step_returns_is_left_as_it_is() -> None:
    """C5, T14."""
    settings = {"evaluate_input_mapping": {"z": "x"}, "evaluate_output_mapping": {"value": "said"}}
    given: dict[str, Any] = {**settings, "validate_dataloaders": [{"z": 1}]}
    assert trainer_of(saying("predict_step"), **given).predict([{"z": 1}]) == [{"value": "predict_step"}]
    assert trainer_of(saying(), **given).predict([{"z": 1}]) == [{"said": "forward"}]


def test_a_trainer_without_metrics_predicts_too() -> None:
    """C5."""
    assert trainer_of(saying(), metrics=None, validate_dataloaders=None).predict([{"x": 1}]) == [{"value": "forward"}]


@pytest.mark.parametrize(
    ("predict", "said"),
    [
        (lambda t: t.predict(None), "dataloaders is missing: give predict() one loader, or a dict name -> loader"),
        (lambda t: t.predict({}), "dataloaders is an empty dict"),
        (lambda t: t.predict([]), "the evaluation loader is empty"),
        (lambda t: t.predict([1], 0), "num_eval_batch_per_dl must be -1 (all) or > 0, not 0"),
        (lambda t: t.predict([1], on_batch="print"), "on_batch must be a function f(outputs, batch), not 'print'"),
    ],
)
def test_a_prediction_that_cannot_be_made_is_refused(predict: Callable[[Any], Any], said: str) -> None:
    """C5."""
    with pytest.raises(CallerError) as caught:
        predict(stub([1]))
    assert said in str(caught.value)


def test_a_trainer_s_prediction_wants_a_loader_and_an_evaluator_s_takes_its_own() -> None:
    """C5: the validation data is no answer to a loader that is missing."""
    trainer = stub([1], metrics={"m": Sum()}, validate_dataloaders=[4, 5])
    said = r"dataloaders is missing: give predict\(\) one loader, or a dict name -> loader"
    with pytest.raises(CallerError, match=said):
        trainer.predict(None)
    assert [outputs["value"] for outputs in trainer.evaluator.predict()] == [4, 5]  # type: ignore[union-attr]


def test_an_evaluator_without_loaders_and_metrics_predicts_and_does_nothing_else() -> None:
    """EV1, C5: and it looks for no step that it doesn't need."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        evaluator = Evaluator(saying("predict_step", "test_step"))
        assert evaluator.predict([{"x": 1}, {"x": 2}]) == [{"value": "predict_step"}] * 2
    assert Evaluator(saying()).predict({"a": [{"x": 1}]}) == {"a": [{"value": "forward"}]}
    for run in (evaluator.run, lambda: evaluator.run_until(lambda: False)):
        with pytest.raises(CallerError, match="there is nothing to evaluate: build the Evaluator with dataloaders and"):
            run()
    with pytest.raises(CallerError, match="there is nothing to predict on: give dataloaders"):
        evaluator.predict()


@pytest.mark.parametrize("validates", [True, False])
def test_averaged_weights_predict_and_test_also_where_nothing_is_validated(validates: bool) -> None:
    """C5: as they validate."""
    own = {"metrics": {"v": Values()}, "validate_dataloaders": [{"x": 1}]}
    given = own if validates else dict.fromkeys(own)
    model = Weighs()
    trainer = trainer_of(model, callbacks=EMA(0.5), n_epochs=2, **given)
    trainer.run()
    now = model.weight.item()
    (outputs,) = trainer.predict([{"x": 1}])
    assert outputs["value"] != now
    assert trainer.test([{"x": 1}], {"v": Values()}) == {"v": [outputs["value"]]}
    assert model.weight.item() == now


class Weighs(Says):
    """Says its weight."""

    def forward(self, x: Any) -> dict[str, Any]:
        return {"value": self.weight.item(), "loss": self.weight.sum()}


def test_loaders_that_came_for_one_evaluation_are_let_go_of() -> None:
    """C5: and with them their data."""
    run = validated_run()
    gone = []
    for evaluate in (run.trainer.predict, run.trainer.test):
        given = loader(4)
        gone.append(weakref.ref(given.dataset))
        evaluate(given)
        del given
    gc.collect()
    assert [ref() for ref in gone] == [None, None]
    assert run.trainer.validate() == run.trainer.validate()


def test_an_error_in_a_prediction_names_its_batch_and_leaves_everything_as_it_was() -> None:
    """C5."""
    run = validated_run()
    before = run.generators, [module.training for module in run.model.modules()]

    def fails(outputs: Any, batch: Any) -> None:
        torch.rand(3)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError) as caught:
        run.trainer.predict(loader(), on_batch=fails)
    assert caught.value.__notes__ == ["in batch 0 of the evaluation loader, which holds the samples [0, 1]"]  # type: ignore[attr-defined]
    assert (run.generators, [module.training for module in run.model.modules()]) == before
    assert torch.is_grad_enabled()
    run.trainer.validate()


# -- what training doesn't notice --------------------------------------------------------------------------


class Norm(nn.Module):
    """A model whose buffers move with every batch in training mode."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.out = nn.Linear(4, 1)
        self.register_buffer("batches", torch.zeros(1))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        if self.training:
            self.batches = self.batches + 1  # another tensor each time
        return {"loss": (self.out(self.norm(x)).squeeze(-1) - y).pow(2).mean()}


@pytest.mark.parametrize("eval_mode", [True, False])
def test_a_model_s_running_means_are_what_they_were_whatever_mode_it_is_evaluated_in(eval_mode: bool) -> None:
    """EV3, C5, R29: nothing is learned from validation data."""
    torch.manual_seed(0)
    model = Norm()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    settings: dict[str, Any] = {"run_dir": None, "progress_bar": None, "model_use_eval_mode": eval_mode}
    trainer = Trainer(
        model, "torch", loader(), optimizer, metrics={"l": Mean()}, validate_dataloaders=loader(), **settings
    )
    before = {name: value.clone() for name, value in model.state_dict().items()}
    batches = model.batches
    trainer.validate()
    trainer.predict(loader())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert model.batches is batches
    assert trainer.validate() == trainer.validate()


def test_a_run_that_is_interrupted_in_its_validation_validates_again_as_the_straight_run(tmp_path: Path) -> None:
    """B12, R05: a metric's numbers are those of one whole validation, never of a part and another."""

    def build(name: str, at: int | None = None) -> Run:
        run = validated_run(run_dir=tmp_path / name, validate_every=4)
        seen = []

        def interrupt(trainer: Any) -> None:
            seen.append(1)
            if len(seen) == at:
                raise KeyboardInterrupt

        run.trainer.on(Events.on_validate_batch_end, interrupt)
        return run

    straight = build("straight")
    end = straight.run(num_eval_sanity_batch=0)
    interrupted = build("interrupted", at=5)
    with pytest.raises(KeyboardInterrupt):
        interrupted.run(num_eval_sanity_batch=0)
    resumed = build("interrupted")
    assert resumed.run(resume_from="auto", num_eval_sanity_batch=0).results == end.results
    assert resumed.chain == straight.chain
    assert equal(resumed.weights, straight.weights)


# -- what an error leaves behind ---------------------------------------------------------------------------


class Breaks(Sum):
    """A metric that fails in one of its methods, if it is told to."""

    broken = ""

    def update(self, value: int) -> None:
        super().update(value)
        if self.broken == "update" and value == 2:
            raise ZeroDivisionError("of the metric")

    def compute(self) -> dict[str, int]:
        if self.broken == "compute":
            raise ZeroDivisionError("of the metric")
        return super().compute()


@pytest.mark.parametrize(
    ("broken", "notes"),
    [
        ("update", ["in the update of metric 'bad'", "in batch 1 of the evaluation loader 'dev'"]),
        ("compute", ["when metric 'bad' was computed"]),
    ],
)
def test_a_metric_that_fails_is_named_and_nothing_half_done_remains(broken: str, notes: list[str]) -> None:
    """C5, EV3."""
    bad, good = Breaks(), Sum()
    evaluator = standalone({"dev": [1, 2, 3], "test": [4]}, {"good": good, "bad": bad})
    bad.broken = broken
    with pytest.raises(ZeroDivisionError) as caught:
        evaluator.run()
    assert caught.value.__notes__ == notes  # type: ignore[attr-defined]
    assert [(metric.total, metric.n) for metric in (good, bad)] == [(0, 0), (0, 0)]
    bad.broken = ""
    assert evaluator.run()["sum#bad#dev"] == 6


def test_a_loader_that_makes_no_batch_is_named_and_nothing_half_done_remains() -> None:
    """C5, R62."""

    class Nothing:
        def __iter__(self) -> Iterator[int]:
            return iter(())

    metric = Sum()
    evaluator = standalone({"dev": [1, 2], "none": Nothing()}, {"m": metric})
    for _ in range(2):
        with pytest.raises(CallerError, match="the evaluation loader 'none' made no batch"):
            evaluator.run()
        assert metric.n == 0
    assert standalone([1], {"m": metric}).run() == {"sum#m": 1, "n#m": 1}


def test_a_metric_that_cannot_be_reset_after_an_error_does_not_hide_it() -> None:
    """C5."""

    class Stuck(Breaks):
        def reset(self) -> None:
            if self.broken and getattr(self, "n", 0):
                raise RuntimeError("stuck")
            super().reset()

    stuck, good = Stuck(), Sum()
    stuck.broken = "update"
    with pytest.raises(ZeroDivisionError) as caught:
        standalone([2], {"stuck": stuck, "good": good}).run()
    assert [str(error) for error in caught.value.later] == ["stuck"]  # type: ignore[attr-defined]
    assert good.n == 0


# -- what results may be -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "plain"),
    [
        (np.float32(0.5), 0.5),
        (np.float64(0.5), 0.5),
        (np.arange(3), [0, 1, 2]),
        ([1, (2, np.int64(3))], [1, [2, 3]]),
        (None, None),
        ("said", "said"),
    ],
)
def test_results_are_plain_data_whatever_holds_them(run_dir: Path, given: Any, plain: Any) -> None:
    """MO7, C5: a record takes them."""
    metric = Gives(given)
    trainer = stub([1], n_epochs=1, metrics={"m": metric}, validate_dataloaders=[1], run_dir=run_dir)
    assert trainer.run().results == {"m": plain}


def test_tensors_in_lists_and_dicts_are_numbers_at_any_depth() -> None:
    """MO7, EV4."""
    value = {"a": {"b": [torch.tensor(1), torch.tensor([2.0, 3.0])]}, 4: torch.tensor([[5]])}
    results = Evaluator(Regression(), loader(2), {"m": Given(value)}, verbose=0).run()
    assert results == {"a#m": {"b": [1, [2.0, 3.0]]}, "4#m": 5}


class Given(Gives):
    def update(self, loss: Any) -> None: ...  # type: ignore[override]


@pytest.mark.parametrize("value", [object(), {1, 2}, {"a": [b"x"]}])
def test_what_no_record_can_hold_is_refused_by_the_metric_s_name(value: Any) -> None:
    """C5."""
    with pytest.raises(CallerError, match=r"metric 'm' gave a (object|set|bytes), which no record can hold"):
        standalone([1], {"m": Gives(value)}).run()


def test_two_results_of_one_name_are_refused() -> None:
    """EV4."""
    evaluator = standalone({"x": [1]}, {"a": Gives({"b": 1}), "b#a": Gives(2)})
    with pytest.raises(CallerError, match="two results are called 'b#a#x'"):
        evaluator.run()


@pytest.mark.parametrize(
    ("loaders", "metrics", "said"),
    [
        ({1: [1]}, {"m": Sum()}, "the name of an evaluation loader must be a string, not 1"),
        ([1], {1: Sum()}, "the name of a metric must be a string, not 1"),
        ([1], {"m": Sum}, "metric 'm' is the class Sum: give an object of it"),
        ([1], {"a": (one := Sum()), "b": one}, "the metrics 'a' and 'b' are one object, which would count every batch"),
        ([1], {"m": object()}, "metric 'm' must have update, compute and reset; object lacks update"),
        ([1], [Sum()], "metrics must be a dict name -> metric with one metric at least"),
        (None, {"m": Sum()}, "dataloaders is missing: give one loader, or a dict name -> loader"),
        ({"dev": None}, {"m": Sum()}, "the evaluation loader 'dev' can't be iterated over: it is a NoneType"),
        (7, {"m": Sum()}, "the evaluation loader can't be iterated over: it is an int"),
        ([loader(), loader()], {"m": Sum()}, "the evaluation loader is a list of loaders: give a dict name -> loader"),
        ((loader(),), {"m": Sum()}, "the evaluation loader is a tuple of loaders: give a dict name -> loader"),
        ({"a": [loader()]}, {"m": Sum()}, "the evaluation loader 'a' is a list of loaders: give a dict name -> loader"),
    ],
)
def test_names_and_metrics_that_cannot_be_used_are_refused(loaders: Any, metrics: Any, said: str) -> None:
    """EV4, EV7."""
    with pytest.raises(CallerError) as caught:
        standalone(loaders, metrics)
    assert said in str(caught.value)


@pytest.mark.parametrize("batch", [1, "one", (1, 2), [1], {"x": 1}, {1, 2}, torch.ones(2), np.ones(2), Indexed(2)])
def test_a_list_of_batches_is_a_loader_whatever_they_are(batch: Any) -> None:
    """T7, EV7."""
    assert standalone([batch, batch], {"m": "weight"}).run() == {"m": 1.0}
    assert standalone({"a": (batch,)}, {"m": "weight"}).run() == {"m#a": 1.0}


def test_a_single_loader_may_be_called_none() -> None:
    """EV4."""
    assert standalone({None: [1]}, {"m": Sum()}).run() == standalone([1], {"m": Sum()}).run() == {"sum#m": 1, "n#m": 1}


def test_a_trainer_validates_on_one_loader_or_on_several_by_their_names() -> None:
    """T7, EV5."""
    for loaders, keys in (([1], ["sum#m", "n#m"]), ({"a": [1], "b": [2]}, ["sum#m#a", "n#m#a", "sum#m#b", "n#m#b"])):
        trainer = stub([1], n_epochs=1, metrics={"m": Sum()}, validate_dataloaders=loaders)
        assert list(trainer.run().results) == keys


# -- what a metric is given --------------------------------------------------------------------------------


class Predicts(nn.Module):
    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"preds": (x > 1.5).int(), "x": x + 1}


BATCH = {"x": torch.tensor([1.0, 2.0]), "target": torch.tensor([0, 0])}


def test_a_collection_is_given_what_its_members_name_and_nothing_else() -> None:
    """EV6, EV7: a name that nobody asks for may be in the batch and in the outputs."""
    collection = torchmetrics.MetricCollection(
        [torchmetrics.Accuracy("binary"), torchmetrics.MetricCollection([torchmetrics.Recall("binary")])]
    )
    results = Evaluator(Predicts(), [BATCH], {"c": collection}, verbose=0).run()
    assert results == {"BinaryAccuracy#c": 0.5, "BinaryRecall#c": 0.0}
    with pytest.raises(MatchFault, match="metric 'c' needs 'target', which isn't among"):
        Evaluator(Predicts(), [{"x": BATCH["x"]}], {"c": collection}, verbose=0).run()


@pytest.mark.parametrize(
    "make",
    [
        lambda: torchmetrics.ClasswiseWrapper(torchmetrics.Accuracy("multiclass", num_classes=2, average=None)),
        lambda: torchmetrics.MinMaxMetric(torchmetrics.Accuracy("binary")),
        lambda: torchmetrics.BootStrapper(torchmetrics.Accuracy("binary"), num_bootstraps=2),
    ],
)
def test_a_metric_that_wraps_another_is_given_what_that_one_names(make: Callable[[], Any]) -> None:
    """EV6, EV7."""
    results = Evaluator(Predicts(), [BATCH], {"m": make()}, verbose=0).run()
    assert results
    assert all(type(value) is float for value in results.values())


def test_a_metric_that_is_called_instead_of_updated_is_taken() -> None:
    """EV7: allennlp's kind."""

    class Called:
        def reset(self) -> None:
            self.n = 0

        def __call__(self, value: int) -> None:
            self.n += value

        def get_metric(self, reset: bool = False) -> dict[str, int]:
            return {"sum": self.n}

    assert standalone([1, 2], {"m": Called()}).run() == {"sum#m": 3}


def test_a_metric_that_takes_all_and_holds_what_is_no_metric_is_given_everything() -> None:
    """EV6."""

    class Keeps(Sum):
        metric: Any = {}
        metrics = ("a", "b")

        def update(self, **all: Any) -> None:  # type: ignore[override]
            self.n += len(all)

    assert standalone([{"a": 1}], {"m": Keeps()}).run()["n#m"] == 3


def test_metrics_are_moved_to_where_the_model_is() -> None:
    """EV7."""

    class Moves(Sum):
        to_ = None

        def to(self, device: Any) -> None:
            self.to_ = device

        def update(self, loss: Any) -> None:  # type: ignore[override]
            assert self.to_ is not None

    metric = Moves()
    Evaluator(Regression(), loader(2), {"m": metric}, verbose=0).run()
    assert metric.to_ == torch.device("cpu")


def test_a_model_is_moved_to_the_device_that_was_asked_for() -> None:
    """EV1: also where no run has moved it before."""
    model = Regression()
    seen: list[Any] = []

    class Sees(Sum):
        def update(self, predicted: torch.Tensor) -> None:  # type: ignore[override]
            seen.append(predicted.device.type)

    driver = TorchDriver(model, "meta")  # the one device beside the CPU that is everywhere
    Evaluator(None, loader(2), {"m": Sees()}, driver, verbose=0).run()
    assert (seen, {p.device.type for p in model.parameters()}) == (["meta"], {"meta"})


# -- what a standalone evaluator is told -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "dtype"),
    [
        ({}, torch.float32),
        ({"precision": "fp32"}, torch.float32),
        ({"precision": "bf16"}, torch.bfloat16),
        ({"precision": "fp16"}, torch.float16),
        ({"fp16": True}, torch.float16),
    ],
)
def test_a_standalone_evaluator_evaluates_and_predicts_under_its_precision(
    settings: dict[str, Any], dtype: torch.dtype
) -> None:
    """EV9, the other way round; EV1."""
    seen: list[torch.dtype] = []

    class Sees(Sum):
        def update(self, predicted: torch.Tensor) -> None:  # type: ignore[override]
            seen.append(predicted.dtype)

    evaluator = Evaluator(Regression(), loader(2), {"m": Sees()}, verbose=0, **settings)
    evaluator.run()
    assert [*seen, evaluator.predict()[0]["predicted"].dtype] == [dtype] * 2


def test_a_driver_that_is_given_keeps_its_precision() -> None:
    """EV1: another one is refused and not passed over."""
    driver = choose_driver("torch", Regression(), precision="bf16")
    for settings in ({"precision": "fp16"}, {"fp16": True}):
        with pytest.raises(CallerError, match="a driver that is given has its precision"):
            Evaluator(None, loader(2), {"m": Sum()}, driver, **settings)  # type: ignore[arg-type]
    with pytest.raises(CallerError, match="a driver that is given has its way to call"):
        Evaluator(None, loader(2), {"m": Sum()}, driver, model_wo_auto_param_call=True)
    with pytest.raises(CallerError, match="precision must be one of fp32, bf16, fp16, not 'int4'"):
        Evaluator(Regression(), loader(2), {"m": Sum()}, precision="int4")


@pytest.mark.parametrize("whole", [True, False])
def test_a_batch_is_passed_whole_if_that_is_wanted(whole: bool) -> None:
    """T15, EV1: standalone too."""

    class Takes(nn.Module):
        def forward(self, x: Any) -> dict[str, Any]:
            return {"value": x}

    metric = Values()
    Evaluator(Takes(), [{"x": 1}], {"m": metric}, verbose=0, model_wo_auto_param_call=whole)
    results = Evaluator(Takes(), [{"x": 1}], {"m": metric}, verbose=0, model_wo_auto_param_call=whole).run()
    assert results == {"m": [{"x": 1} if whole else 1]}


@pytest.mark.parametrize("name", ["validate", "test"])
def test_a_mode_s_word_is_no_name_of_a_method(name: str) -> None:
    """T10: it would look for another method."""
    with pytest.raises(CallerError, match=f"evaluate_fn='{name}' is the name of a mode"):
        Evaluator(saying(name), [{"x": 1}], {"v": Values()}, evaluate_fn=name)
    with pytest.raises(CallerError, match="evaluate_fn='validates': Says has no such method"):
        Evaluator(saying(), [{"x": 1}], {"v": Values()}, evaluate_fn="validates")


def test_a_part_of_each_loader_may_be_given_as_a_fraction() -> None:
    """EV2."""
    evaluator = standalone({"a": [1] * 10, "b": [1] * 3}, {"m": Sum()})
    assert [value for key, value in evaluator.run(0.5).items() if key.startswith("n")] == [5, 1]


# -- progress ----------------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("mode", "file", "kind"),
    [
        ("auto", io.StringIO(), None),
        ("auto", Terminal(), "rich"),
        ("rich", io.StringIO(), "rich"),
        ("tqdm", io.StringIO(), "rich"),
        ("raw", io.StringIO(), "plain"),
        ("plain", Terminal(), "plain"),
        (None, Terminal(), None),
    ],
)
def test_progress_is_a_live_line_in_a_terminal_a_plain_one_if_asked_for_or_nothing(
    mode: str | None, file: Any, kind: str | None
) -> None:
    """EV1."""
    assert PassProgress(mode, file).mode == kind


def test_plain_progress_says_how_far_each_loader_is_at_its_end(capsys: pytest.CaptureFixture[str]) -> None:
    """EV1: of a standalone evaluator; a trainer's is silent."""
    evaluator = standalone({"dev": [1, 2, 3], "test": iter_of(2)}, {"m": Sum()}, progress_bar="plain")
    evaluator.run(2)
    lines = capsys.readouterr().err.splitlines()
    assert [line.rsplit("  ", 1)[0] for line in lines] == ["evaluating dev: batch 2/2", "evaluating test: batch 2/2"]
    evaluator.run()
    lines = capsys.readouterr().err.splitlines()
    assert [line.rsplit("  ", 1)[0] for line in lines] == ["evaluating dev: batch 3/3", "evaluating test: batch 2"]
    for mode in ("auto", None):
        standalone([1], {"m": Sum()}, progress_bar=mode).run()
    stub([1], n_epochs=1, metrics={"m": Sum()}, validate_dataloaders=[1]).run()
    assert capsys.readouterr().err == ""


def iter_of(n: int) -> Any:
    class Endless:
        def __iter__(self) -> Iterator[int]:
            return iter(range(n))

    return Endless()


def test_a_live_line_is_shown_and_taken_away_whatever_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    """EV1."""
    monkeypatch.setattr("tachograph.engine.pass_progress._EVERY", {"rich": 0.0, "plain": 0.0})
    for error in (None, ZeroDivisionError):
        file = Terminal()
        progress = PassProgress("rich", file)
        with suppress(ZeroDivisionError), progress.of("dev", 2):
            progress.moves(1)
            if error is not None:
                raise error
        assert "evaluating dev: batch 1/2" in file.getvalue()
        assert progress._live is None


def test_progress_of_an_unknown_kind_is_refused() -> None:
    """EV1."""
    with pytest.raises(
        CallerError, match="progress_bar must be one of auto, rich, plain, raw, tqdm or None, not 'bar'"
    ):
        standalone([1], {"m": Sum()}, progress_bar="bar")
