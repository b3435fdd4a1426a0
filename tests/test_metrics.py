"""The metrics of our own: what elements are, how ranks are joined; values checked by hand and by other libraries."""

from __future__ import annotations

import copy
import operator
import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torchmetrics
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import precision_recall_fscore_support
from torch import nn

from tachograph.drivers import (
    Accuracy,
    ClassifyFPreRecMetric,
    Element,
    Metric,
    SpanFPreRecMetric,
    StubDriver,
    TransformersAccuracy,
)
from tachograph.drivers.metrics.span import spans_of
from tachograph.engine import Evaluator
from tachograph.states.errors import CallerError


class Mean(Metric):
    """The mean of what it saw, its largest, and all of it."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.register_element("sum", 0.0, "sum")
        self.register_element("n", 0, "sum")
        self.register_element("most", -np.inf, "max")
        self.seen: list[Any] = []

    def update(self, value: Any) -> None:
        self.sum += value
        self.n += 1
        self.most = max(self.most, value)
        self.seen.append(value)

    def get_metric(self) -> dict[str, Any]:
        seen = [value for rank in self.all_gather_object(self.seen) for value in rank]
        return {"mean": self.sum / self.n, "most": self.most.get_scalar(), "seen": seen}

    def reset(self) -> None:
        self.seen = []


def fed(metric: Any, *batches: Any) -> Any:
    for batch in batches:
        metric.update(*batch) if isinstance(batch, tuple) else metric.update(batch)
    return metric


def warned(fn: Callable[[], Any]) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fn()
    return [str(warning.message) for warning in caught]


# -- elements ----------------------------------------------------------------------------------------------

OPERATIONS = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "lt", "le", "gt", "ge", "eq", "ne")


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_element_calculates_as_its_value_does(name: str) -> None:
    """M1."""
    operation, element = getattr(operator, name), Element("n", 7)
    for other in (2, 2.5, torch.tensor([1.0, 3.0])):
        for held, plain in (
            (operation(element, other), operation(7, other)),
            (operation(other, element), operation(other, 7)),
        ):
            assert torch.equal(torch.as_tensor(held), torch.as_tensor(plain))
    assert operation(element, Element("m", 2)) == operation(7, 2)
    assert element.value == 7


@pytest.mark.parametrize("name", ["iadd", "isub", "imul", "itruediv", "ifloordiv", "ipow"])
def test_an_element_that_is_changed_in_place_stays_the_element(name: str) -> None:
    """M1."""
    element = before = Element("n", 8)
    element = getattr(operator, name)(element, Element("m", 2))
    assert element is before
    assert element.value == getattr(operator, name.removeprefix("i"))(8, 2)
    element.reset()
    assert element.value == 8


def test_an_element_is_a_number_wherever_one_is_wanted() -> None:
    """M1."""
    element = Element("n", torch.tensor([3.25]))
    assert (float(element), int(element), round(element, 1), abs(-element).item()) == (3.25, 3, 3.2, 3.25)
    assert bool(element)
    assert not Element("n")
    assert [10, 20, 30][Element("n", 1)] == 20
    assert element.get_scalar() == 3.25
    assert (Element("n", 2).get_scalar(), Element("n", 2).to_list(), element.to_list()) == (2, 2, [3.25])
    assert element.mean().item() == 3.25  # what a tensor can do
    assert repr(Element("n", 2)) == "Element(n=2)"
    with pytest.raises(AttributeError):
        Element("n", 2).mean


def test_an_element_may_be_a_tensor_of_any_shape_and_begins_with_the_same_values_again() -> None:
    """M1."""
    began = torch.zeros(3)
    element = Element("counts", began)
    element[1] = 5
    element += torch.ones(3)
    assert (element.to_list(), len(element), element[1].item()) == ([1.0, 6.0, 1.0], 3, 6.0)
    element.fill_value(2)
    assert element.to_list() == [2.0, 2.0, 2.0]
    element.reset()
    assert element.to_list() == [0.0, 0.0, 0.0]
    assert began.tolist() == [0.0, 0.0, 0.0]
    assert Element("n", 1).to("cpu").value == 1
    assert element.to("meta").value.device.type == "meta"


# -- a metric of one's own ---------------------------------------------------------------------------------


def test_a_metric_s_elements_are_its_attributes_and_are_reset_with_it() -> None:
    """M1."""
    metric = fed(Mean(), 1.0, 5.0, 3.0)
    assert sorted(metric.elements) == ["most", "n", "sum"]
    assert metric.get_metric() == {"mean": 3.0, "most": 5.0, "seen": [1.0, 5.0, 3.0]}
    metric.reset()
    assert (metric.sum.value, metric.n.value, metric.most.value, metric.seen) == (0.0, 0, -np.inf, [])
    metric.n = metric.n + 2
    assert isinstance(metric.n, Element)
    assert metric.n.value == 2


def test_a_metric_that_saw_nothing_is_not_asked() -> None:
    """M2."""
    metric = Mean()
    for _ in range(2):
        with pytest.raises(CallerError, match=r"Mean.get_metric\(\) comes after update\(\), which wasn't called"):
            metric.get_metric()
        fed(metric, 1.0).get_metric()
        metric.reset()


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Mean(backend="paddle"), "backend must be one of 'auto', 'torch' or None, not 'paddle'"),
        (lambda: Mean().register_element("n"), "Mean can't have an element 'n': the name is taken or none"),
        (lambda: Mean().register_element("update"), "can't have an element 'update'"),
        (lambda: Mean().register_element("a b"), "can't have an element 'a b'"),
        (lambda: Mean().register_element("x", 0, "median"), "aggregate_method of element 'x' must be one of 'sum', "),
        (lambda: Mean().register_element("x", backend="jittor"), "backend must be one of"),
    ],
)
def test_a_metric_refuses_what_it_cannot_use(make: Callable[[], Any], said: str) -> None:
    """M1."""
    with pytest.raises(CallerError) as caught:
        make()
    assert said in str(caught.value)


def test_a_metric_that_forgot_to_call_its_base_says_so() -> None:
    class Forgot(Metric):
        def __init__(self) -> None:
            pass

    with pytest.raises(AttributeError, match=r"call super\(\).__init__\(\) first"):
        Forgot().register_element("n")


def test_a_metric_can_be_copied_and_keeps_its_numbers() -> None:
    metric = fed(Mean(), 1.0, 3.0)
    other = copy.deepcopy(metric)
    fed(other, 5.0)
    assert (metric.get_metric()["mean"], other.get_metric()["mean"]) == (2.0, 3.0)


def test_a_metric_s_tensors_are_read_as_arrays() -> None:
    """M1."""
    for value in (torch.tensor([1, 2], requires_grad=False), np.array([1, 2]), [1, 2]):
        assert Metric.tensor2numpy(value).tolist() == [1, 2]


# -- ranks -------------------------------------------------------------------------------------------------


def two(metric: Any, other: Any, distributed: bool = True) -> Any:
    """A metric that gathers with another one, as if that were on the second rank."""

    def gather(value: Any) -> list[Any]:
        if isinstance(value, tuple) and value[0] is True:
            return [value, (True, {name: other.elements[name].value for name in value[1]})]
        return [value, other.seen if hasattr(other, "seen") else other._counts.held]

    metric.gather_with(gather, distributed)
    return metric


def test_elements_are_joined_over_ranks_and_each_rank_has_its_own_again() -> None:
    """M2."""
    metric = two(fed(Mean(), 1.0, 2.0), fed(Mean(), 9.0))
    for _ in range(2):
        assert metric.get_metric() == {"mean": 4.0, "most": 9.0, "seen": [1.0, 2.0, 9.0]}
        assert (metric.sum.value, metric.n.value, metric.most.value) == (3.0, 2, 2.0)
    fed(metric, 4.0)
    assert metric.get_metric()["mean"] == 4.0


def test_a_rank_has_its_own_numbers_again_after_an_error_too() -> None:
    """M2."""

    class Fails(Mean):
        def get_metric(self) -> Any:
            raise ZeroDivisionError

    metric = two(fed(Fails(), 1.0), fed(Mean(), 9.0))
    with pytest.raises(ZeroDivisionError):
        metric.get_metric()
    assert metric.sum.value == 1.0


def test_a_metric_that_asks_its_base_is_joined_once() -> None:
    """M2."""

    class More(Mean):
        def get_metric(self) -> Any:
            return {**super().get_metric(), "sum": float(self.sum)}

    metric = two(fed(More(), 1.0, 2.0), fed(Mean(), 9.0))
    assert metric.get_metric() == {"mean": 4.0, "most": 9.0, "seen": [1.0, 2.0, 9.0], "sum": 12.0}


@pytest.mark.parametrize(
    ("method", "numbers", "tensors"),
    [
        ("sum", 7, [4.0, 6.0]),
        ("mean", 3.5, [2.0, 3.0]),
        ("max", 5, [3.0, 4.0]),
        ("min", 2, [1.0, 2.0]),
        (lambda stacked: stacked.prod(0), 10, [3.0, 8.0]),
    ],
)
def test_an_element_says_how_ranks_become_one(method: Any, numbers: float, tensors: list[float]) -> None:
    """M2."""
    assert Element("x", 0, method).joined([2, 5]) == numbers
    ranks = [torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])]
    assert Element("x", 0, method).joined(ranks).tolist() == tensors
    assert Element("x", 0, method).joined([torch.tensor(2), 5]).item() == numbers


def test_a_mean_of_whole_numbers_is_none_of_whole_numbers_only() -> None:
    """M2."""
    assert Element("x", 0, "mean").joined([torch.tensor(1), torch.tensor(2)]).item() == 1.5


def test_an_element_without_a_method_cannot_be_joined() -> None:
    """M2."""
    with pytest.raises(CallerError, match="element 'x' can't be joined over ranks"):
        Element("x", 0, None).joined([1, 2])


@pytest.mark.parametrize(
    ("asked", "distributed", "mean"), [(None, False, 1.0), (None, True, 5.0), (True, False, 5.0), (False, False, 1.0)]
)
def test_ranks_are_joined_where_they_share_the_data_unless_told_otherwise(
    asked: bool | None, distributed: bool, mean: float
) -> None:
    """M3."""
    metric = two(fed(Mean(aggregate_when_get_metric=asked), 1.0), fed(Mean(), 9.0), distributed)
    assert metric.get_metric()["mean"] == mean


def test_a_metric_that_sees_a_part_and_joins_nothing_warns_once() -> None:
    """M3."""

    class Bare(Metric):
        def update(self, value: Any) -> None: ...

        def get_metric(self) -> float:
            return 1.0

    metric = fed(Bare(), 1)
    metric.gather_with(lambda value: [value], True)
    assert len(warned(metric.get_metric)) == 1
    assert warned(metric.get_metric) == []
    apart = Mean(aggregate_when_get_metric=False)
    said = warned(lambda: [apart.gather_with(lambda value: [value], True) for _ in range(2)])
    assert said == [
        "Mean has aggregate_when_get_metric=False, and each rank sees a part of the data: its result is that of a part"
    ]
    assert warned(lambda: two(fed(Mean(), 1.0), fed(Mean(), 2.0)).get_metric()) == []
    alone = fed(Bare(), 1)
    assert warned(alone.get_metric) == []


class TwoRanks(StubDriver):
    """As if a second process held ten times as much."""

    world_size = 2

    def all_gather(self, value: Any) -> list[Any]:
        if isinstance(value, tuple):
            return [value, (True, {name: held * 10 for name, held in value[1].items()})]
        return [value, [one * 10 for one in value]]


def test_an_evaluator_joins_metrics_with_what_the_driver_gathers() -> None:
    """M3: where the loaders are shared between the ranks, which `use_dist_sampler` says."""
    alone = Evaluator(None, [1, 2], {"m": Mean()}, StubDriver(), verbose=0).run()
    assert alone == {"mean#m": 1.5, "most#m": 2, "seen#m": [1, 2]}
    joined = Evaluator(None, [1, 2], {"m": Mean()}, TwoRanks(), verbose=0).run()
    assert joined == {"mean#m": 33 / 22, "most#m": 20, "seen#m": [1, 2, 10, 20]}
    apart = Evaluator(None, [1, 2], {"m": Mean()}, TwoRanks(), verbose=0, use_dist_sampler=False).run()
    assert apart == alone


@pytest.mark.parametrize(
    "make",
    [
        Accuracy,
        lambda: ClassifyFPreRecMetric(only_gross=False),
        lambda: SpanFPreRecMetric(["O", "B", "I"], only_gross=False),
    ],
)
def test_two_ranks_with_a_half_each_have_the_result_of_the_whole(make: Callable[[], Any]) -> None:
    """M2, M4."""
    torch.manual_seed(0)
    halves = [(torch.randint(0, 3, (4, 6)), torch.randint(0, 3, (4, 6)), torch.tensor([6, 1, 3, 4])) for _ in "ab"]
    whole = fed(make(), *halves).get_metric()
    one, other = (fed(make(), half) for half in halves)
    assert two(one, other).get_metric() == whole
    assert one.gather_with(lambda value: [value], False) is None
    assert one.get_metric() == fed(make(), halves[0]).get_metric() != whole


# -- Accuracy ----------------------------------------------------------------------------------------------


def test_accuracy_is_the_part_that_is_right() -> None:
    """M4."""
    accuracy = fed(Accuracy(), (torch.tensor([1, 2, 3]), torch.tensor([1, 0, 3])))
    assert accuracy.get_metric() == {"acc": 2 / 3}
    fed(accuracy, (torch.tensor([[0.1, 0.9], [0.8, 0.2]]), torch.tensor([1, 1])))
    assert accuracy.get_metric() == {"acc": 3 / 5}
    accuracy.reset()
    fed(accuracy, ([[1, 1, 0], [2, 0, 0]], [[1, 0, 5], [2, 5, 5]], [2, 1]))
    assert accuracy.get_metric() == {"acc": 2 / 3}
    accuracy.reset()
    fed(accuracy, (torch.zeros(2, 2), torch.zeros(2, 2), torch.tensor([0, 0])))
    assert accuracy.get_metric() == {"acc": 0.0}


def test_accuracy_of_sequences_of_scores_counts_what_lies_within_the_lengths() -> None:
    """M4."""
    scores = nn.functional.one_hot(torch.tensor([[1, 2, 0], [0, 1, 2]]), 3).float()
    target = torch.tensor([[1, 0, 9], [0, 9, 9]])
    assert fed(Accuracy(), (scores, target, torch.tensor([2, 1]))).get_metric() == {"acc": 2 / 3}


def test_accuracy_is_torchmetrics_micro_accuracy() -> None:
    """M4."""
    torch.manual_seed(0)
    ours, theirs = Accuracy(), torchmetrics.Accuracy("multiclass", num_classes=5, average="micro")
    for _ in range(4):
        scores, target = torch.rand(7, 5), torch.randint(0, 5, (7,))
        ours.update(scores, target)
        theirs.update(scores, target)
    assert ours.get_metric()["acc"] == pytest.approx(theirs.compute().item(), abs=1e-7)


def test_accuracy_for_transformers_heeds_the_mask_and_leaves_out_what_has_no_label() -> None:
    """M4."""
    logits = nn.functional.one_hot(torch.tensor([[1, 1, 0], [0, 1, 1]]), 2).float()
    labels = torch.tensor([[1, 0, 0], [-100, 1, 0]])
    left_padded = torch.tensor([[1, 1, 1], [0, 1, 1]])
    accuracy = TransformersAccuracy()
    accuracy.update(logits, labels)
    assert accuracy.get_metric() == {"acc": 3 / 5}
    accuracy.reset()
    accuracy.update(logits, labels.clamp(min=0), left_padded)
    assert accuracy.get_metric() == {"acc": 3 / 5}
    accuracy.reset()
    accuracy.update(torch.tensor([[0.1, 0.9], [0.3, 0.7]]), torch.tensor([1, 0]), torch.ones(2, 8))
    assert accuracy.get_metric() == {"acc": 0.5}


@pytest.mark.parametrize(
    ("metric", "batch", "said"),
    [
        (
            Accuracy(),
            (torch.zeros(2), torch.zeros(3)),
            "pred must have the shape of target, [3], or one more dimension",
        ),
        (Accuracy(), (torch.zeros(3, 2), torch.zeros(2)), "for the classes, not [3, 2]"),
        (Accuracy(), (torch.zeros(2, 1), torch.zeros(2)), "pred of the shape [2, 1] has scores of one class only"),
        (Accuracy(), (torch.zeros(2, 3), torch.zeros(2, 3), torch.ones(3)), "seq_len must have the shape [2], not [3]"),
        (
            TransformersAccuracy(),
            (torch.zeros(2, 3), torch.zeros(2, 3), torch.ones(2, 4)),
            "attention_mask must have the shape of labels, [2, 3], not [2, 4]",
        ),
        (SpanFPreRecMetric(["O", "B"]), (torch.zeros(2), torch.zeros(2)), "target must have the shape [B, L], not [2]"),
        (SpanFPreRecMetric(["O", "B"]), ([[7]], [[0]]), "7 stands for no tag of tag_vocab"),
    ],
)
def test_shapes_that_do_not_fit_are_refused(metric: Any, batch: Any, said: str) -> None:
    """M4."""
    with pytest.raises(CallerError) as caught:
        metric.update(*batch)
    assert said in str(caught.value)


# -- ClassifyFPreRecMetric ---------------------------------------------------------------------------------

PRED, TARGET = [0, 0, 1, 1, 2, 3], [0, 1, 1, 2, 2, 0]
"""Class 0: 1 right, 1 wrong, 1 missed; 1: 1, 1, 1; 2: 1, 0, 1; 3: 0, 1, 0."""


def test_f_precision_and_recall_of_classes_are_those_found_by_hand() -> None:
    """M4."""
    metric = fed(ClassifyFPreRecMetric(only_gross=False), (PRED, TARGET))
    assert metric.get_metric() == pytest.approx(
        {
            "f": 0.5,
            "pre": 0.5,
            "rec": 0.5,
            "f-0": 0.5,
            "pre-0": 0.5,
            "rec-0": 0.5,
            "f-1": 0.5,
            "pre-1": 0.5,
            "rec-1": 0.5,
            "f-2": 2 / 3,
            "pre-2": 1.0,
            "rec-2": 0.5,
            "f-3": 0.0,
            "pre-3": 0.0,
            "rec-3": 0.0,
        }
    )
    macro = fed(ClassifyFPreRecMetric(f_type="macro"), (PRED, TARGET)).get_metric()
    assert macro == pytest.approx({"f": (0.5 + 0.5 + 2 / 3) / 4, "pre": 2 / 4, "rec": 1.5 / 4})


def test_classes_have_names_and_some_are_ignored() -> None:
    """M4."""

    class Vocabulary:
        idx2word = {0: "no", 1: "yes", 2: "maybe"}

    for vocab in (
        ["no", "yes", "maybe"],
        {0: "no", 1: "yes", 2: "maybe"},
        {"no": 0, "yes": 1, "maybe": 2},
        Vocabulary(),
    ):
        metric = ClassifyFPreRecMetric(vocab, ["no"], only_gross=False)
        results = fed(metric, (PRED, TARGET)).get_metric()
        assert list(results) == [f"{a}{b}" for b in ("", "-yes", "-maybe", "-3") for a in ("f", "pre", "rec")]
        assert (results["pre"], results["rec"]) == pytest.approx((2 / 4, 2 / 4))
    by_number = fed(ClassifyFPreRecMetric(ignore_labels=[0]), (PRED, TARGET)).get_metric()
    assert by_number == {name: results[name] for name in ("f", "pre", "rec")}


def test_classes_that_came_as_floats_are_the_same_classes() -> None:
    """M4."""
    floats = fed(ClassifyFPreRecMetric(only_gross=False), (torch.tensor(PRED).float(), torch.tensor(TARGET).float()))
    assert floats.get_metric() == fed(ClassifyFPreRecMetric(only_gross=False), (PRED, TARGET)).get_metric()


def test_padding_counts_for_nothing() -> None:
    """M4."""
    padded = fed(ClassifyFPreRecMetric(only_gross=False), ([[0, 1, 7], [2, 7, 7]], [[0, 2, 8], [2, 8, 8]], [2, 1]))
    flat = fed(ClassifyFPreRecMetric(only_gross=False), ([0, 1, 2], [0, 2, 2]))
    assert padded.get_metric() == flat.get_metric()


classes = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=40)


@given(
    classes, st.sampled_from(["micro", "macro"]), st.sampled_from([0.5, 1, 2]), st.sets(st.integers(0, 4), max_size=2)
)
def test_f_precision_and_recall_are_scikit_learn_s(
    pairs: list[tuple[int, int]], f_type: str, beta: float, ignored: set[int]
) -> None:
    """M4: in batches, whatever classes each of them holds."""
    pred, target = (np.array(side) for side in zip(*pairs, strict=True))
    metric = ClassifyFPreRecMetric(None, ignored, only_gross=False, f_type=f_type, beta=beta)
    for at in range(0, len(pred), 7):
        metric.update(pred[at : at + 7], target[at : at + 7])
    labels = sorted({*pred.tolist(), *target.tolist()} - ignored)
    results = metric.get_metric()
    if not labels:
        assert results == {"f": 0.0, "pre": 0.0, "rec": 0.0}
        return
    settings: dict[str, Any] = {"labels": labels, "beta": beta, "zero_division": 0}
    pre, rec, f, _ = precision_recall_fscore_support(target, pred, average=f_type, **settings)
    assert results["pre"] == pytest.approx(pre)
    assert results["rec"] == pytest.approx(rec)
    assert results["f"] == pytest.approx(f)
    each = precision_recall_fscore_support(target, pred, average=None, **settings)
    for i, label in enumerate(labels):
        assert [results[f"{name}-{label}"] for name in ("pre", "rec", "f")] == pytest.approx(
            [part[i] for part in each[:3]]
        )


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: ClassifyFPreRecMetric(f_type="mean"), "f_type must be 'micro' or 'macro', not 'mean'"),
        (lambda: ClassifyFPreRecMetric(beta=0), "beta must be a number > 0, not 0"),
        (lambda: ClassifyFPreRecMetric(tag_vocab=3), "tag_vocab must be a sequence of names, a dict number -> name"),
        (lambda: SpanFPreRecMetric(None), "SpanFPreRecMetric needs tag_vocab"),
        (lambda: SpanFPreRecMetric(["O", "B"], "bo"), "encoding_type must be one of bio, bmes, bioes, bmeso or None"),
        (
            lambda: SpanFPreRecMetric(["O", "B-X", "M-X"], "bio"),
            "tag_vocab has tags that begin with m, which bio hasn't",
        ),
        (lambda: SpanFPreRecMetric(["I", "M"]), "tag_vocab has tags that begin with i, m, which is none of bio, bmes"),
        (lambda: SpanFPreRecMetric(["<pad>"]), "tag_vocab has tags that begin with none"),
    ],
)
def test_the_metrics_of_classes_and_spans_refuse_what_they_cannot_use(make: Callable[[], Any], said: str) -> None:
    """M4."""
    with pytest.raises(CallerError) as caught:
        make()
    assert said in str(caught.value)


# -- SpanFPreRecMetric -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tags", "spans"),
    [
        ("B-a I-a O B-a", [("a", 0, 2), ("a", 3, 4)]),
        ("B-a B-a I-a I-a", [("a", 0, 1), ("a", 1, 4)]),
        ("B-a I-b I-b", [("a", 0, 1), ("b", 1, 3)]),
        ("O I-a I-a", [("a", 1, 3)]),
        ("I-a O I-a", [("a", 0, 1), ("a", 2, 3)]),
        ("B-a M-a E-a S-b", [("a", 0, 3), ("b", 3, 4)]),
        ("B-a E-a E-a", [("a", 0, 2), ("a", 2, 3)]),
        ("S-a M-a E-a", [("a", 0, 1), ("a", 1, 3)]),
        ("B-a I-a E-a O S-a", [("a", 0, 3), ("a", 4, 5)]),
        ("B E S B M E", [("", 0, 2), ("", 2, 3), ("", 3, 6)]),
        ("O O", []),
        ("", []),
    ],
)
def test_spans_are_read_from_tags_as_conll_s_script_does(tags: str, spans: list[Any]) -> None:
    """M4."""
    assert spans_of((tag[:1].lower(), tag[2:]) for tag in tags.split()) == spans


def test_f_precision_and_recall_of_spans_are_those_found_by_hand() -> None:
    """M4: 3 spans are there, 3 are found, 1 of them rightly; padding counts for nothing."""
    tags = ["O", "B-LOC", "I-LOC", "B-PER", "I-PER", "<pad>"]
    target = torch.tensor([[1, 2, 0, 3], [3, 4, 4, 5]])  # LOC 0-2, PER 3-4; PER 0-3
    pred = torch.tensor([[1, 2, 0, 1], [3, 4, 0, 1]])  # LOC 0-2, LOC 3-4; PER 0-2
    metric = fed(SpanFPreRecMetric(tags, only_gross=False), (pred, target, torch.tensor([4, 3])))
    assert metric.encoding_type == "bio"
    assert metric.get_metric() == pytest.approx(
        {
            "f": 1 / 3,
            "pre": 1 / 3,
            "rec": 1 / 3,
            "f-loc": 2 / 3,
            "pre-loc": 1 / 2,
            "rec-loc": 1.0,
            "f-per": 0.0,
            "pre-per": 0.0,
            "rec-per": 0.0,
        }
    )
    macro = fed(SpanFPreRecMetric(tags, f_type="macro"), (pred, target, torch.tensor([4, 3]))).get_metric()
    assert macro == pytest.approx({"f": 1 / 3, "pre": 1 / 4, "rec": 1 / 2})
    ignoring = fed(SpanFPreRecMetric(tags, ignore_labels=["PER"]), (pred, target, torch.tensor([4, 3]))).get_metric()
    assert ignoring == pytest.approx({"f": 2 / 3, "pre": 1 / 2, "rec": 1.0})
    scores = nn.functional.one_hot(pred, 6).float()
    assert fed(SpanFPreRecMetric(tags), (scores, target, [4, 3])).get_metric()["f"] == pytest.approx(1 / 3)
    assert fed(SpanFPreRecMetric(tags), (target, target)).get_metric() == {"f": 1.0, "pre": 1.0, "rec": 1.0}


@pytest.mark.parametrize(
    ("tags", "asked", "encoding"),
    [
        (["O", "B-a", "I-a"], None, "bio"),
        (["B", "M", "E", "S"], None, "bmes"),
        (["O", "B-a", "I-a", "E-a", "S-a"], None, "bioes"),
        (["O", "B_a", "M_a", "E_a", "S_a", "<unk>"], None, "bmeso"),
        (["O", "B-a", "I-a"], "BIOES", "bioes"),
    ],
)
def test_the_encoding_is_the_smallest_that_has_all_tags_unless_it_is_given(
    tags: list[str], asked: str | None, encoding: str
) -> None:
    """M4."""
    assert SpanFPreRecMetric(tags, asked).encoding_type == encoding


# -- in an evaluator, and at import ------------------------------------------------------------------------


def test_an_evaluator_takes_the_built_in_metrics() -> None:
    """EV7, M4."""

    class Tags(nn.Module):
        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"pred": x}

    batch = {"x": torch.tensor([[1, 2, 0]]), "target": torch.tensor([[1, 2, 1]]), "seq_len": torch.tensor([3])}
    metrics = {"acc": Accuracy(), "span": SpanFPreRecMetric(["O", "B-X", "I-X"]), "class": ClassifyFPreRecMetric()}
    results = Evaluator(Tags(), {"dev": [batch, batch]}, metrics, verbose=0).run()
    assert results == pytest.approx(
        {
            "acc#acc#dev": 2 / 3,
            "f#span#dev": 2 / 3,
            "pre#span#dev": 1.0,
            "rec#span#dev": 0.5,
            "f#class#dev": 2 / 3,
            "pre#class#dev": 2 / 3,
            "rec#class#dev": 2 / 3,
        }
    )


def test_metrics_import_torch_only_when_they_are_asked_for() -> None:
    asked = "d.Accuracy; assert 'torch' in sys.modules"
    code = f"import sys, tachograph.drivers as d; assert 'torch' not in sys.modules; {asked}"
    subprocess.run([sys.executable, "-c", code], check=True)
