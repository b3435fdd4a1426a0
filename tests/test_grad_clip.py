"""`GradClip` and `GradNormMonitor`: the gradients that an update really uses, and no device is waited for unasked."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from tachograph.drivers import StubDriver, gradients
from tachograph.engine import Callback, Events, GradClip, GradNormMonitor, NanGuard, TorchGradClipCallback, Trainer
from tachograph.states import Stepped
from tachograph.states.errors import CallerError
from tests.toys import Run, equal, stub

SCALER = {"init_scale": 256.0, "growth_interval": 3}
BATCHES = [torch.linspace(-2, 2, 8).reshape(2, 4) * (n + 1) for n in range(6)]
BLOWS = 3  # the batch whose loss is infinite, where a test wants that


class Net(nn.Module):
    def __init__(self, blows: bool = False) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.one, self.two, self.blows = nn.Linear(4, 6), nn.Linear(6, 1), blows

    def forward(self, batch: torch.Tensor) -> dict[str, torch.Tensor]:
        loss = (self.two(torch.tanh(self.one(batch))) - 3).float().pow(2).mean()
        return {"loss": loss * math.inf if self.blows and torch.equal(batch, BATCHES[BLOWS]) else loss}


def clipped(
    make: Callable[[Net], Any], blows: bool = False, many: bool = False, **settings: Any
) -> tuple[Trainer, Net, list[list[torch.Tensor]]]:
    """A trainer with what `make` makes of its model, and the gradients of each of its updates."""
    model, seen = Net(blows), []
    parts = [model.one, model.two] if many else [model]
    optimizers = [torch.optim.SGD(part.parameters(), lr=0.05, momentum=0.9) for part in parts]
    settings = {"run_dir": None, "progress_bar": None, "n_epochs": 2, "seed": 1, **settings}
    settings["torch_kwargs"] = {"gradscaler_kwargs": SCALER}
    trainer = Trainer(model, "torch", BATCHES, optimizers, callbacks=make(model), **settings)
    trainer.on(
        Events.on_before_optimizer_step,
        lambda t, optimizers: seen.append([p.grad.clone() for p in model.parameters() if p.grad is not None]),
        priority=-1,
    )
    return trainer, model, seen


def by_hand(
    clip: Callable[[Net], Any], k: int = 1, fp16: bool = False, blows: bool = False, many: bool = False
) -> tuple[Net, list[float], list[float]]:
    """The recipe of torch's documentation: unscale, clip, step, update. Returns the model, norms and scales."""
    model = Net(blows)
    parts = [model.one, model.two] if many else [model]
    optimizers = [torch.optim.SGD(part.parameters(), lr=0.05, momentum=0.9) for part in parts]
    scaler = torch.amp.GradScaler("cpu", enabled=fp16, **SCALER)
    norms, scales = [], []
    for n, batch in enumerate(BATCHES * 2):
        with torch.autocast("cpu", torch.float16, enabled=fp16):
            loss = model(batch)["loss"] / k
        scaler.scale(loss).backward()
        if (n + 1) % k:
            continue
        for optimizer in optimizers:
            scaler.unscale_(optimizer)
        norms.append(clip(model))
        for optimizer in optimizers:
            scaler.step(optimizer)
        scaler.update()
        for optimizer in optimizers:
            optimizer.zero_grad()
        scales.append(scaler.get_scale())
    return model, norms, scales


BY_NORM = (
    lambda model: GradClip(0.5),
    lambda model: nn.utils.clip_grad_norm_(model.parameters(), 0.5),
)
BY_LARGEST = (
    lambda model: GradClip(0.5, norm_type=math.inf),
    lambda model: nn.utils.clip_grad_norm_(model.parameters(), 0.5, math.inf),
)
BY_VALUE = (
    lambda model: GradClip(0.1, "value"),
    lambda model: nn.utils.clip_grad_value_(model.parameters(), 0.1),
)
each_way = pytest.mark.parametrize("way", [BY_NORM, BY_LARGEST, BY_VALUE], ids=["norm", "largest", "value"])


@each_way
@pytest.mark.parametrize("k", [1, 2, 3])
def test_clipped_once_a_window_the_weights_are_those_of_torch_s_recipe(way: Any, k: int) -> None:
    """K8, C4: bit for bit, with accumulation too."""
    trainer, model, seen = clipped(way[0], accumulation_steps=k)
    trainer.run()
    expected, *_ = by_hand(way[1], k)
    assert equal([*model.parameters()], [*expected.parameters()])
    assert len(seen) == 12 / k
    assert not equal([*model.parameters()], [*by_hand(lambda model: None, k)[0].parameters()])


@each_way
@pytest.mark.parametrize("k", [1, 2])
@pytest.mark.parametrize("blows", [False, True])
def test_under_a_scaler_the_weights_and_scales_are_those_of_torch_s_recipe(way: Any, k: int, blows: bool) -> None:
    """K8, C4, R33: the norm is that of the unscaled gradients; an overflow skips the update, clipped or not."""
    trainer, model, _ = clipped(way[0], blows, precision="fp16", accumulation_steps=k)
    scales: list[float] = []
    trainer.on(
        Events.on_after_optimizer_step, lambda t, optimizers: scales.append(t.driver.precision.scaler.get_scale())
    )
    end = trainer.run()
    expected, _, by_recipe = by_hand(way[1], k, True, blows)
    assert equal([*model.parameters()], [*expected.parameters()])
    assert scales == by_recipe
    assert end.optimizer_steps == 12 / k - 2 * blows


def test_with_two_optimizers_the_norm_is_that_of_all_they_move() -> None:
    """K8: one norm for both, unscaled for both."""
    norms: list[float] = []
    trainer, model, _ = clipped(BY_NORM[0], many=True, precision="fp16")
    (clip,) = trainer.listeners.callbacks.values()
    trainer.on(Events.on_after_optimizer_step, lambda t, optimizers: norms.append(clip.norm))  # type: ignore[attr-defined]
    trainer.run()
    expected, by_recipe, _ = by_hand(BY_NORM[1], fp16=True, many=True)
    assert equal(norms, by_recipe)  # type: ignore[arg-type]
    assert equal([*model.parameters()], [*expected.parameters()])


@pytest.mark.parametrize(
    "given",
    [
        lambda model: model.one.parameters(),
        lambda model: list(model.one.parameters()),
        lambda model: (p for p in model.one.parameters()),
    ],
)
@pytest.mark.parametrize("kind", ["norm", "value"])
def test_only_the_parameters_that_are_given_are_clipped(given: Any, kind: str) -> None:
    """K8: the reference trainer's callback forgot them; a generator isn't used up by the first update."""
    trainer, model, seen = clipped(lambda model: GradClip(1e-3, kind, given(model)))
    free, _, unclipped = clipped(lambda model: [])
    trainer.run()
    free.run()
    one = len([*model.one.parameters()])
    for update in seen:
        if kind == "norm":
            assert float(nn.utils.get_total_norm(update[:one])) <= 1e-3 * 1.001
        assert max(float(g.abs().max()) for g in update[:one]) <= 1e-3 * 1.001
        assert max(float(g.abs().max()) for g in update[one:]) > 1e-2
    assert equal(seen[0][one:], unclipped[0][one:])


def test_one_parameter_alone_may_be_given() -> None:
    """K8."""
    trainer, _, seen = clipped(lambda model: GradClip(1e-3, parameters=model.two.bias))
    trainer.run()
    assert max(float(update[-1].abs()) for update in seen) <= 1e-3 * 1.001
    assert float(seen[0][0].norm()) > 1e-2


def test_an_update_that_is_left_out_is_clipped_all_the_same_and_takes_nothing() -> None:
    """K8: a guard and a clip get on, in either order."""

    class Skips(Callback):
        def on_before_optimizer_step(self, trainer: Any, optimizers: Any) -> None:
            if trainer.global_forward_batches == 2:
                trainer.skip_update()

    ends = []
    for order in (1, -1):
        trainer, model, _ = clipped(lambda model, order=order: [GradClip(0.5), Skips()][::order])
        assert trainer.run().optimizer_steps == 11
        ends.append([*model.parameters()])
    assert equal(*ends)


# -- the norm ------------------------------------------------------------------------------------------------


class Reads(TorchDispatchMode):
    """Counts how often a tensor's value is asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


def reads_of(make: Callable[[Net], Any], *, listening: bool, updates: int = 12) -> int:
    trainer, _, _ = clipped(make)
    if listening:
        trainer.on(Events.on_log, lambda t, values: None)
    with Reads() as reads:
        assert trainer.run().optimizer_steps == updates
    return reads.count


@pytest.mark.parametrize("listening", [False, True])
def test_the_norm_is_kept_where_it_lies_and_read_only_where_it_is_asked_for(listening: bool) -> None:
    """K8: nobody waits for a device because of a clip."""
    assert reads_of(lambda model: GradClip(), listening=listening) == 0
    assert reads_of(lambda model: GradClip(log=True), listening=listening) == 12 * listening
    assert reads_of(lambda model: GradNormMonitor(3), listening=listening) == 4 * listening


def test_the_norm_that_is_kept_and_logged_is_the_one_before_clipping() -> None:
    """K8, C4: and the callback's own name may be the reference trainer's."""
    logged: list[Any] = []
    trainer, _, _ = clipped(lambda model: TorchGradClipCallback(0.5, log=True))
    free, _, unclipped = clipped(lambda model: [])
    (clip,) = trainer.listeners.callbacks.values()
    assert clip.norm is None  # type: ignore[attr-defined]
    trainer.on(Events.on_log, lambda t, values: logged.append(values))
    trainer.run()
    free.run()
    assert logged[0] == {"grad_norm": float(nn.utils.get_total_norm(unclipped[0]))}
    assert len(logged) == 12
    assert logged[-1] == {"grad_norm": float(clip.norm)}  # type: ignore[attr-defined]
    assert TorchGradClipCallback is GradClip


@pytest.mark.parametrize("norm_type", [1.0, 2.0, 3, math.inf])
def test_a_monitor_logs_the_norm_that_a_clip_would_find(norm_type: float) -> None:
    """C4: before the clip that of all, after it the clipped one, in every n-th update."""
    logged: list[Any] = []
    trainer, _, _ = clipped(
        lambda model: [
            GradNormMonitor(2, norm_type, "before"),
            GradClip(0.5, norm_type=norm_type, log=True),
            GradNormMonitor(4, norm_type, "after"),
        ]
    )
    trainer.on(Events.on_log, lambda t, values: logged.append(values))
    trainer.run()
    norms = [values["grad_norm"] for values in logged if "grad_norm" in values]
    before = [values["before"] for values in logged if "before" in values]
    after = [values["after"] for values in logged if "after" in values]
    assert before == norms[1::2]
    assert after == pytest.approx([min(0.5, norm) for norm in norms[3::4]], rel=1e-4)


def test_a_norm_of_sparse_gradients_counts_what_stands_twice_once_and_summed() -> None:
    weight = nn.Embedding(4, 2, sparse=True).weight
    values = torch.tensor([[3.0, 0.0], [0.0, 4.0]])
    weight.grad = torch.sparse_coo_tensor([[1, 1]], values, (4, 2), check_invariants=True)
    assert float(gradients.norm([weight])) == 5.0
    assert float(gradients.norm([nn.Parameter(torch.ones(1))])) == 0.0


def test_without_torch_a_driver_says_what_it_cannot_do_and_the_stub_clips_its_number() -> None:
    """C4."""
    trainer = stub(callbacks=[GradClip(5), GradNormMonitor()])
    logged: list[Any] = []
    trainer.on(Events.on_log, lambda t, values: logged.append(values["grad_norm"]))
    trainer.run()
    assert logged == [5.0] * 6

    class Bare(StubDriver):
        gradient_norm = StubDriver.__mro__[1].gradient_norm  # type: ignore[attr-defined]
        clip_gradients_by_norm = StubDriver.__mro__[1].clip_gradients_by_norm  # type: ignore[attr-defined]

    assert stub(driver=Bare(), callbacks=GradNormMonitor()).run().optimizer_steps == 6
    with pytest.raises(CallerError, match="Bare clips no gradients"):
        stub(driver=Bare(), callbacks=GradClip()).run()


# -- what isn't finite ---------------------------------------------------------------------------------------


def test_a_norm_that_is_not_finite_is_an_error_where_that_is_asked_for() -> None:
    """K8, C4: not where a scaler sees to it."""
    trainer, _, _ = clipped(lambda model: GradClip(error_if_nonfinite=True), blows=True)
    with pytest.raises(RuntimeError, match="non-finite"):
        trainer.run()
    assert trainer.trainer_state.global_forward_batches == BLOWS
    trainer, _, _ = clipped(lambda model: GradClip(error_if_nonfinite=True), blows=True, precision="fp16")
    assert trainer.run().optimizer_steps == 10


@pytest.mark.parametrize("order", [1, -1])
def test_a_guard_against_gradients_that_are_not_finite_sees_them_before_and_after_a_clip(order: int) -> None:
    """K8, R45: an infinite norm makes NaN of the infinity, and 0 of the rest; the update is left out."""
    trainer, model, _ = clipped(lambda model: [GradClip(), NanGuard("skip")][::order], blows=True)
    end = trainer.run()
    assert end.optimizer_steps == 10
    assert all(bool(torch.isfinite(p).all()) for p in model.parameters())


# -- over a resume -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
@pytest.mark.parametrize("n", [1, 3, 4, 8, 11])
def test_interrupted_in_any_window_it_ends_with_the_bits_of_the_straight_run(
    tmp_path: Path, n: int, precision: str
) -> None:
    """K8, R33: weights, chain, scale, and as many updates skipped."""

    def build(run_dir: Path) -> Any:
        return clipped(
            lambda model: [GradClip(0.5, log=True), GradNormMonitor(2, name="norm")],
            blows=precision == "fp16",
            precision=precision,
            accumulation_steps=2,
            run_dir=run_dir,
        )

    straight, expected, _ = build(tmp_path / "straight")
    end = straight.run()
    first, _, _ = build(tmp_path / "run")
    first.on(Stepped, lambda t, event: t.global_forward_batches == n and t.stop("here"))
    first.run()
    again, model, _ = build(tmp_path / "run")
    assert again.run(resume_from="auto") == end
    assert equal([*model.parameters()], [*expected.parameters()])
    assert again.journal.chain == straight.journal.chain
    if precision == "fp16":
        scales = [t.driver.precision.scaler.state_dict() for t in (again, straight)]
        assert scales[0] == scales[1]


def test_a_clip_that_is_another_at_a_resume_decides_from_there_on_and_is_recorded(run_dir: Path) -> None:
    """K8, R40."""
    first = Run(callbacks=lambda run: GradClip(0.5), run_dir=run_dir, n_epochs=1)
    first.run()
    again = Run(callbacks=lambda run: GradClip(0.25), run_dir=run_dir)
    said: list[str] = []
    again.trainer.on(Events.on_notice, lambda t, text: said.append(text))
    again.run(resume_from="auto")
    assert "callbacks.GradClip.clip_value changed from 0.5 to 0.25" in said


# -- what is refused -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"clip_value": 0}, "clip_value must be a number > 0, not 0"),
        ({"clip_value": "1"}, "clip_value must be a number > 0, not '1'"),
        ({"clip_value": math.nan}, "clip_value must be a number > 0, not nan"),
        ({"norm_type": -2}, "norm_type must be a number > 0, not -2"),
        ({"clip_type": "norms"}, "clip_type must be one of norm, value, not 'norms'"),
        ({"clip_type": "value", "log": True}, "clip_type='value' computes no norm: leave out"),
    ],
)
def test_a_clip_refuses_what_it_cannot_use(settings: Any, said: str) -> None:
    """K8."""
    with pytest.raises(CallerError) as caught:
        GradClip(**settings)
    assert str(caught.value).startswith(said)


@pytest.mark.parametrize("parameters", [[], "weight", 3, ["weight"], [0.5]])
def test_a_clip_of_what_is_no_parameter_is_refused_when_the_trainer_is_built(parameters: Any) -> None:
    """K8."""
    with pytest.raises(CallerError, match="GradClip: parameters must be parameters of the model, at least one"):
        clipped(lambda model: GradClip(parameters=parameters))


@pytest.mark.parametrize(("name", "value"), [("every", 0), ("every", 1.5), ("norm_type", 0), ("norm_type", "2")])
def test_a_monitor_refuses_what_it_cannot_use(name: str, value: Any) -> None:
    with pytest.raises(CallerError, match=f"{name} must be"):
        GradNormMonitor(**{name: value})
