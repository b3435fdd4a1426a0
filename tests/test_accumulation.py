"""Precision and accumulation against torch's own recipe; weights by valid targets; what several ranks exchange, when.

The drivers of several ranks are held against the same (`tests/test_accumulation_ranks.py`); here ranks are scripted.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler as schedules

from tachograph.drivers import StubDriver
from tachograph.drivers.ranks import Ranks
from tachograph.engine import GradClip, LRSchedule, Trainer
from tachograph.states import Stepped
from tachograph.states.errors import CallerError
from tests.toys import equal, stub
from tests.windows import PRECISIONS, Tagger, build, by_hand, loader_of, weights_of, windows_of

FULL = (5, 1, 4, 3, 2, 7, 3, 1, 6, 2)
"""Lengths without an empty one, whose mean is a number."""
TAILS = ("flush", "carry", "drop")


def closeness(precision: str) -> float:
    return 1e-6 if precision == "fp32" else 4e-3


def farthest(a: Sequence[torch.Tensor], b: Sequence[torch.Tensor]) -> float:
    return max(float((x - y).abs().max()) for x, y in zip(a, b, strict=True))


# -- torch's own recipe ------------------------------------------------------------------------------------


@pytest.mark.parametrize("clip", [math.inf, 0.3])
@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_windows_in_any_precision_end_with_the_bits_of_torch_s_own_recipe(
    precision: str, many: bool, tail: str, clip: float
) -> None:
    """R06, R23, B15, B19: unscaled once, before clipping; one move of the scale a window; overflows in two of them."""
    overflows = (2, 9) if precision == "fp16" else ()
    settings: dict[str, Any] = {} if clip == math.inf else {"make": lambda optimizers: [GradClip(clip)]}
    trainer = build(precision, many=many, lengths=FULL, overflows=overflows, accumulation_tail=tail, **settings)
    end = trainer.run()
    expected, scaler, taken = by_hand(precision, many=many, tail=tail, lengths=FULL, overflows=overflows, clip=clip)
    assert equal(weights_of(trainer), expected)
    assert end.optimizer_steps == taken
    assert taken < len(windows_of(10, 4, 2, tail)) or precision != "fp16"
    if precision == "fp16":
        assert trainer.driver.precision.scaler.state_dict() == scaler  # type: ignore[union-attr]


@pytest.mark.parametrize("many", [False, True])
def test_the_scale_grows_once_after_so_many_windows_however_many_optimizers_there_are(many: bool) -> None:
    """B19: three windows are its growth interval."""
    trainer = build("fp16", many=many, lengths=FULL, n_epochs=4)
    scales: list[tuple[bool, float]] = []
    trainer.on(Stepped, lambda t, event: scales.append((event.closed, t.driver.precision.scaler.get_scale())))
    trainer.run()
    assert [scale for closed, scale in scales if closed] == [
        64.0,
        64.0,
        128.0,
        128.0,
        128.0,
        256.0,
        256.0,
        256.0,
        512.0,
        512.0,
        512.0,
        1024.0,
    ]


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("every", [1, 3])
def test_validations_inside_a_window_lose_nothing_of_it(precision: str, every: int) -> None:
    """R41: gradients, scale and counters stay as they are while something else is done."""

    class Count:
        def reset(self) -> None:
            self.n = 0

        def update(self, loss: Any) -> None:
            self.n += 1

        def compute(self) -> int:
            return self.n

    about: dict[str, Any] = {"lengths": FULL, "dropout": 0.5, "overflows": (5,) if precision == "fp16" else ()}
    straight = build(precision, **about)
    end = straight.run()
    checked = build(
        precision,
        **about,
        metrics={"n": Count()},
        validate_dataloaders=loader_of(FULL[:3]),
        validate_every=every,
        evaluate_fn="train_step",
    )
    state = checked.run()
    assert state.validations == 20 // every
    assert state.optimizer_steps == end.optimizer_steps
    assert equal(weights_of(checked), weights_of(straight))


class Turns(nn.Module):
    """Two parts that are trained by turns: one of two optimizers never has a gradient."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.parts = nn.ModuleList([nn.Linear(2, 1), nn.Linear(2, 1)])
        self.turn = 0

    def train_step(self, batch: torch.Tensor) -> dict[str, torch.Tensor]:
        self.turn += 1
        return {"loss": self.parts[self.turn % 2](batch).pow(2).mean()}


@pytest.mark.parametrize("looked_at", [False, True])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_an_optimizer_without_any_gradient_takes_a_step_that_does_nothing(precision: str, looked_at: bool) -> None:
    """B19, R33: a scaler by itself refuses it. And the other one's step can still be skipped."""
    model = Turns()
    batches = [torch.ones(2, 2)] * 3 + [torch.full((2, 2), 3e4)] + [torch.ones(2, 2)] * 2
    trainer = Trainer(
        model,
        "torch",
        batches,
        [torch.optim.SGD(part.parameters(), lr=1e-6) for part in model.parts],
        n_epochs=1,
        precision=precision,
        torch_kwargs={"gradscaler_kwargs": {"init_scale": 4.0}},
        run_dir=None,
        progress_bar=None,
    )
    if looked_at:
        trainer.on("on_before_optimizer_step", lambda trainer, optimizers: None)
    moved: list[tuple[int, int]] = []
    before = [[p.detach().clone() for p in part.parameters()] for part in model.parts]

    def note(trainer: Any, event: Any) -> None:
        for n, part in enumerate(model.parts):
            now = [p.detach().clone() for p in part.parameters()]
            if not equal(now, before[n]):
                moved.append((trainer.global_forward_batches, n))
            before[n] = now

    trainer.on(Stepped, note)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        end = trainer.run()
    overflow = precision == "fp16"
    assert moved == [(n, n % 2) for n in range(1, 7) if n != 4 or not overflow]
    assert end.optimizer_steps == 6 - overflow


# -- weights -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("many", [False, True])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_window_s_gradient_is_the_sum_of_its_losses_over_its_count_of_valid_targets(
    precision: str, many: bool, tail: str, known: bool
) -> None:
    """R06, C7: with clipping, a batch without any target, and an overflow; the scale goes as in torch's own recipe."""
    overflows = (5,) if precision == "fp16" else ()
    about: dict[str, Any] = {"many": many, "overflows": overflows}
    settings: dict[str, Any] = {"accumulation_tail": tail, "known": known, "make": lambda optimizers: [GradClip(0.3)]}
    trainer = build(precision, **about, **settings, loss_weight="n_targets")
    end = trainer.run()
    expected, scaler, taken = by_hand(precision, **about, tail=tail, weighed=True, clip=0.3)
    assert farthest(weights_of(trainer), expected) < closeness(precision)
    assert end.optimizer_steps == taken
    if precision == "fp16":
        assert trainer.driver.precision.scaler.state_dict() == scaler  # type: ignore[union-attr]
    alike = build(precision, **about, **settings)
    alike.run()
    assert not farthest(weights_of(alike), expected) < 2 * closeness(precision)  # NaN, for one


class Line(nn.Module):
    """Its loss is w times the mean of what isn't 0 in the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(1, dtype=torch.float64))

    def train_step(self, batch: torch.Tensor) -> dict[str, Any]:
        n = torch.count_nonzero(batch)
        return {"loss": (self.w * batch).sum() / n, "n": n, "real": n.double(), "plain": int(n), "one": n.reshape(1)}


BATCHES = [[1.0, 2.0, 6.0], [8.0], [3.0, 5.0], [0.0], [4.0], [0.0, 0.0], [0.0], [7.0, 9.0]]
"""By two: a window of four targets, one of two, one of one, and one of two; the third has a batch without any."""


def lined(batches: Sequence[Sequence[float]] = BATCHES, **settings: Any) -> tuple[Trainer, list[float]]:
    """A trainer, and the gradient of each update."""
    model = Line()
    settings = {"n_epochs": 1, "run_dir": None, "progress_bar": None, "accumulation_steps": 2, **settings}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    trainer = Trainer(model, "torch", [torch.tensor(b, dtype=torch.float64) for b in batches], optimizer, **settings)
    gradients: list[float] = []

    def note(trainer: Any, optimizers: Any) -> None:
        gradients.append(math.nan if model.w.grad is None else float(model.w.grad))

    trainer.on("on_before_optimizer_step", note)
    return trainer, gradients


def sums(batches: Sequence[Sequence[float]], k: int) -> list[float]:
    """The sum over the count of each window."""
    windows = [[x for batch in batches[i : i + k] for x in batch if x] for i in range(0, len(batches), k)]
    return [sum(held) / len(held) if held else math.nan for held in windows]


@pytest.mark.parametrize("given", ["n", "real", "plain", "one", lambda outputs, batch: batch.count_nonzero()])
@pytest.mark.parametrize("k", [1, 2, 3, 8, 9])
def test_weights_come_from_an_output_or_a_function_as_numbers_or_tensors(given: Any, k: int) -> None:
    """C7, R06: a batch without any target counts for nothing, though its loss and its gradient are no numbers."""
    trainer, gradients = lined(accumulation_steps=k, loss_weight=given)
    trainer.run()
    assert gradients == pytest.approx(sums(BATCHES, k), rel=1e-12, nan_ok=True)


def test_samples_weigh_as_many_as_the_batch_has() -> None:
    """C7, R06: the last, smaller batch of an epoch counts by its size."""
    batches = [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [10.0]]
    trainer, gradients = lined(batches, accumulation_steps=3, loss_weight="samples")
    trainer.run()
    assert gradients == pytest.approx([31 / 7], rel=1e-12)
    trainer, gradients = lined(batches, accumulation_steps=3)
    trainer.run()
    assert gradients == pytest.approx([17 / 3], rel=1e-12)


def test_the_chunks_of_a_batch_that_a_step_of_one_s_own_goes_through_weigh_by_their_own_size() -> None:
    """C7, A8.C5: every backward pass is one of a micro-batch."""

    def step(trainer: Any, batch: torch.Tensor) -> None:
        for chunk in batch.split(2):
            trainer.backward(trainer.train_step(chunk))
        trainer.step()
        trainer.zero_grad()

    trainer, gradients = lined([[1.0, 2.0, 6.0], [8.0]], loss_weight="samples", batch_step_fn=step)
    trainer.run()
    assert gradients == pytest.approx([17 / 4], rel=1e-12)


def test_a_loop_of_one_s_own_weighs_its_batches() -> None:
    """C7, A8.C5: what it gives to `train_step` is the batch."""

    class Loop:
        def run(self, trainer: Any, loader: Any) -> None:
            for batch in loader:
                trainer.batch_step_fn(trainer, batch) if hasattr(trainer, "batch_step_fn") else self.step(
                    trainer, batch
                )
                trainer.batch_idx_in_epoch += 1
                trainer.global_forward_batches += 1

        def step(self, trainer: Any, batch: Any) -> None:
            trainer.backward(trainer.train_step(batch))
            trainer.step()
            trainer.zero_grad()

    for given in ("samples", "n", lambda outputs, batch: len(batch)):
        trainer, gradients = lined([[1.0, 2.0, 6.0], [8.0]], loss_weight=given)
        trainer.train_batch_loop = Loop()
        trainer.run()
        assert gradients == pytest.approx([17 / 4], rel=1e-12)


@pytest.mark.parametrize("heard", [True, False])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_window_without_any_target_takes_no_update_and_moves_no_schedule(precision: str, heard: bool) -> None:
    """C7, R33: the very first too, before a scaler has seen any loss; it is told as a skipped one."""
    lengths = (0, 0, 3, 2, 0, 0, 4, 1, 0)
    held: list[Any] = []

    def make(optimizers: Any) -> list[Any]:
        held.append(LRSchedule(schedules.ExponentialLR(optimizers[0], 0.5)))
        return held

    trainer = build(precision, k=2, lengths=lengths, n_epochs=1, make=make, loss_weight="n_targets")
    seen: list[Any] = []
    trainer.on("on_skipped_optimizer_step", lambda trainer, optimizers: seen.append(trainer.global_forward_batches))
    if heard:
        trainer.on("on_before_optimizer_step", lambda trainer, optimizers: None)
    steps: list[Any] = []
    trainer.on(Stepped, lambda t, event: steps.append((event.closed, event.skipped)))
    weights: list[Any] = []
    trainer.on(Stepped, lambda t, event: weights.append(weights_of(t)))
    end = trainer.run()
    assert end.optimizer_steps == 2
    assert seen == [1, 5, 8]
    assert steps == [(False, False), (True, True), (False, False), (True, False)] * 2 + [(True, True)]
    assert equal(weights[1], weights_of(build(precision)))
    assert equal(weights[5], weights[3])
    assert equal(weights[8], weights[7])
    assert trainer.driver.learning_rates() == [0.02 * 0.25]  # type: ignore[union-attr]
    if precision == "fp16":
        assert trainer.driver.precision.scaler._get_growth_tracker() == 2  # type: ignore[union-attr]


def test_large_weights_make_no_loss_overflow() -> None:
    """C7, R33: in half precision a backward pass bears the same scale as without weights, and not one more doubling."""

    def run(scale: float, weight: Any) -> Trainer:
        trainer = build("fp16", lengths=FULL, n_epochs=1, accumulation_tail="carry", loss_weight=weight)
        scaler = trainer.driver.precision.scaler  # type: ignore[union-attr]
        scaler.load_state_dict({**scaler.state_dict(), "scale": scale})
        trainer.run()
        return trainer

    borne = [2.0**n for n in range(10, 30) if run(2.0**n, None).trainer_state.optimizer_steps == 2]
    assert borne
    for scale in (borne[-1], borne[-1] * 2):
        alike, weighed = run(scale, None), run(scale, lambda outputs, batch: 8192)
        assert weighed.trainer_state.optimizer_steps == alike.trainer_state.optimizer_steps
        assert equal(weights_of(weighed), weights_of(alike))


def test_the_unit_that_weights_are_measured_in_rounds_nothing_off() -> None:
    """C7: a power of two, found by the first batch, so that a factor of all weights changes no bit."""
    found = []
    for factor in (1, 1 << 20, 1.0 / 1024):
        trainer = build(loss_weight=lambda outputs, batch, factor=factor: int(outputs["n_targets"]) * factor)
        trainer.run()
        found.append(weights_of(trainer))
    assert equal(found[0], found[1])
    assert equal(found[0], found[2])


@pytest.mark.parametrize(
    ("precision", "many", "tail", "known"),
    [
        ("fp32", False, "flush", True),
        ("bf16", True, "carry", True),
        ("fp16", False, "drop", False),
        ("fp16", True, "flush", False),
    ],
)
def test_stopped_after_any_micro_batch_of_a_weighed_run_it_ends_with_the_bits_of_the_straight_one(
    tmp_path: Path, precision: str, many: bool, tail: str, known: bool, proven: Any
) -> None:
    """C7, R41, R33: what an open window weighs is saved with its gradients."""

    def ready(name: str) -> Trainer:
        return build(
            precision,
            many=many,
            known=known,
            dropout=0.3,
            overflows=(5,) if precision == "fp16" else (),
            accumulation_tail=tail,
            loss_weight="n_targets",
            run_dir=tmp_path / name,
            snapshot_every=None,
        )

    straight = ready("straight")
    end = straight.run()
    for stop in range(1, 20, 1 if known else 2):
        first = ready(str(stop))
        first.on(Stepped, lambda t, event, stop=stop: t.global_forward_batches == stop and t.stop())
        first.run()
        again = ready(str(stop))
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*has no index")
            assert again.run(resume_from="auto") == end
        assert equal(weights_of(again), weights_of(straight))
        assert again.journal.chain == straight.journal.chain  # type: ignore[union-attr]
        proven(1)


def test_a_weighed_window_whose_length_another_batch_size_changes_keeps_its_weights(run_dir: Path) -> None:
    """C7, R51: stopped in it, and resumed with half of the batch size, each target counts alike."""

    def ready(batch_size: int) -> tuple[Trainer, list[Any]]:
        trainer = build(k=4, lengths=FULL, batch_size=batch_size, n_epochs=1, loss_weight="n_targets", run_dir=run_dir)
        gradients: list[Any] = []
        trainer.on(
            "on_before_optimizer_step",
            lambda t, o: gradients.append([p.grad.clone() for p in t.driver.model.parameters()]),
        )
        return trainer, gradients

    first, _ = ready(4)
    first.on(Stepped, lambda t, event: t.global_forward_batches == 1 and t.stop())
    first.run()
    again, gradients = ready(2)
    assert again.run(resume_from="auto").optimizer_steps == 1  # of 1 batch of 4 and 3 of 2
    torch.manual_seed(5)
    model = Tagger()
    for batch in loader_of(FULL, 10):
        model.train_step(**batch)["loss"].backward()
    assert farthest(gradients[0], [p.grad for p in model.parameters()]) < 1e-6  # type: ignore[misc]


def test_a_trial_leaves_the_weights_of_an_open_window_alone() -> None:
    """C7, C8."""
    trainer, gradients = lined([[1.0, 2.0, 6.0], [8.0]], loss_weight="n", n_epochs=2)
    handle = trainer.on("on_train_batch_end", lambda trainer: trainer.stop())
    trainer.run()
    handle.remove()
    trainer.find_lr(num_batches=4)
    trainer.run()
    assert gradients == pytest.approx([17 / 4] * 2, rel=1e-12)


@pytest.mark.parametrize("given", [3, "", True, ["n"], lambda outputs: 1, lambda: 1])
def test_what_no_batch_could_be_weighed_by_is_refused(given: Any) -> None:
    """C7."""
    said = r"loss_weight must be 'samples', the name of an output, a function of \(outputs, batch\), or None, not "
    with pytest.raises(CallerError, match=said):
        stub(loss_weight=given)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            "tokens",
            r"='tokens': the training step's outputs have no 'tokens', but loss, n, one, plain, real",
        ),
        (lambda outputs, batch: -1, r"loss_weight='.*lambda>': a weight must be a number >= 0, .*, not -1"),
        (lambda outputs, batch: math.nan, "a weight must be a number >= 0, or a tensor of one, not nan"),
        (lambda outputs, batch: math.inf, "not inf"),
        (lambda outputs, batch: True, "not True"),
        (lambda outputs, batch: None, "not None"),
        (lambda outputs, batch: torch.tensor([1, 2]), r"not tensor\(\[1, 2\]\)"),
        (lambda outputs, batch: torch.tensor(True), r"not tensor\(True\)"),
        (lambda outputs, batch: torch.tensor(-2.0), "not tensor"),
    ],
)
def test_a_weight_that_is_none_ends_the_run_in_one_clear_sentence(given: Any, said: str) -> None:
    """C7."""
    trainer, _ = lined(loss_weight=given)
    with pytest.raises(CallerError, match=said):
        trainer.run()


def test_outputs_that_are_no_dict_have_no_weight_by_name() -> None:
    """C7."""

    class Bare:
        loss = 1.0

    trainer = stub(loss_weight="n", output_mapping=lambda outputs: Bare())
    with pytest.raises(CallerError, match="outputs have no 'n', being a Bare"):
        trainer.run()


# -- several ranks -----------------------------------------------------------------------------------------


class Scripted(Ranks):
    """One of two ranks, whose other one gives what it is told.

    Args:
        other: what the other one holds, given what this one does.
    """

    world_size = 2

    def __init__(self, other: Any = lambda value: value) -> None:
        self.other = other

    def gather(self, value: Any) -> list[Any]:
        return [value, self.other(value)]


class Exchanging(StubDriver):
    """Notes which backward passes exchange gradients, and when they are exchanged without one."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.ranks = Scripted()
        self.log: list[str] = []
        self.held = False

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        self.held = True
        yield
        self.held = False

    def train_step(self, batch: Any) -> Any:
        self.log.append("f" if self.held else "F")
        return super().train_step(batch)

    def backward(self, loss: Any, divisor: int) -> None:
        self.log.append("b" if self.held else "B")
        super().backward(loss, divisor)

    def exchange_gradients(self) -> None:
        self.log.append("X")

    def optimizer_step(self) -> bool:
        self.log.append("!")
        return super().optimizer_step()

    def zero_grad(self) -> None:
        self.log.append("0")
        super().zero_grad()


def exchanged(**settings: Any) -> str:
    """What a run of five batches an epoch does: small letters inside `no_sync`."""
    known, cut = settings.pop("known", True), settings.pop("cut", 0)
    driver = Exchanging(known_length=known)
    trainer = stub(list(range(5)), driver, n_epochs=2, **settings)
    if cut:
        trainer.on("on_train_batch_end", lambda t: t.batch_idx_in_epoch == cut and t.end_epoch("cut"))
    trainer.run()
    return "".join(driver.log).removeprefix("0")


@pytest.mark.parametrize("weight", [None, "samples"])
def test_gradients_are_exchanged_by_the_batch_that_closes_a_window_and_by_nothing_else(weight: Any) -> None:
    """B9: forward and backward of the others are inside `no_sync`, both."""
    one, two = "FB!0", "fbFB!0"
    assert exchanged(loss_weight=weight) == one * 10
    assert exchanged(accumulation_steps=2, loss_weight=weight) == (two + two + one) * 2
    assert exchanged(accumulation_steps=2, accumulation_tail="carry", loss_weight=weight) == two * 5
    assert exchanged(accumulation_steps=2, accumulation_tail="drop", loss_weight=weight) == (two + two + "fb0") * 2
    assert exchanged(accumulation_steps=8, loss_weight=weight) == "fbfbfbfbFB!0" * 2


@pytest.mark.parametrize("weight", [None, "samples"])
def test_a_window_that_turns_out_to_end_after_its_last_batch_is_exchanged_once_before_its_update(weight: Any) -> None:
    """B9, B15, R23: the loader's end wasn't known, or a listener cut the epoch; one that isn't used isn't exchanged."""
    two, late = "fbFB!0", "fbX!0"
    assert exchanged(accumulation_steps=2, known=False, loss_weight=weight) == (two + two + late) * 2
    assert exchanged(accumulation_steps=2, cut=3, loss_weight=weight) == (two + late) * 2
    assert exchanged(accumulation_steps=2, cut=4, loss_weight=weight) == (two + two) * 2
    about: dict[str, Any] = {"accumulation_steps": 2, "known": False, "loss_weight": weight}
    assert exchanged(**about, accumulation_tail="carry") == two * 5
    assert exchanged(**about, accumulation_tail="drop") == (two + two + "fb0") * 2


def test_a_step_and_a_loop_of_one_s_own_exchange_at_the_same_batches() -> None:
    """B9, A8.C5: `get_no_sync_context` is for a loop what a step has around it anyway."""

    def step(trainer: Any, batch: Any) -> None:
        with trainer.get_no_sync_context():
            trainer.backward(trainer.train_step(batch))
        trainer.step()
        trainer.zero_grad()

    class Loop:
        def run(self, trainer: Any, loader: Any) -> None:
            for batch in loader:
                step(trainer, batch)
                trainer.batch_idx_in_epoch += 1
                trainer.global_forward_batches += 1

    assert exchanged(accumulation_steps=2, accumulation_tail="carry", batch_step_fn=step) == "fbFB!0" * 5
    driver = Exchanging()
    trainer = stub(list(range(5)), driver, n_epochs=2, accumulation_steps=2)
    trainer.train_batch_loop = Loop()
    trainer.run()
    assert "".join(driver.log) == "0" + "fbFB!0" * 5


def test_one_process_holds_no_exchange_back() -> None:
    """B9: it asks nobody and enters nothing."""

    class Alone(StubDriver):
        def no_sync(self) -> Any:
            raise AssertionError

    assert stub(list(range(5)), Alone(), accumulation_steps=2).run().optimizer_steps == 6


def test_weights_are_summed_over_the_ranks_and_their_mean_is_undone() -> None:
    """C7, R06: 5 targets here and 15 there: of the mean of both, this rank's loss is to be 2 * 5/20."""
    factors: list[float] = []

    class Noting(Exchanging):
        def backward(self, loss: Any, divisor: int) -> None:
            factors.append(loss / divisor)
            super().backward(loss, divisor)

        def scale_gradients(self, factor: float) -> None:
            factors.append(factor)

    driver = Noting(loss=lambda batch, n: 1.0)
    driver.ranks = Scripted(lambda value: value * 3 if isinstance(value, float) else value)
    trainer = stub([0], driver, n_epochs=1, loss_weight=lambda outputs, batch: 5)
    trainer.run()
    assert math.prod(factors) == pytest.approx(2 * 5 / 20, rel=1e-12)
    assert len(factors) == 2
    driver.ranks = Scripted(lambda value: -value if isinstance(value, float) else value)
    trainer.n_epochs = 2
    assert trainer.run().optimizer_steps == 1  # nothing weighed anything, by what both ranks say
