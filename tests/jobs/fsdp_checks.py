"""What `TorchFSDPDriver` promises, check by check; each is run by all ranks at the same time."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.fsdp._fully_shard import _fsdp_collectives
from torch.utils.data import DataLoader

from tachograph.drivers import RestoreFault
from tachograph.drivers.ddp import TorchDDPDriver
from tachograph.drivers.fsdp import TorchFSDPDriver
from tachograph.drivers.spread import local, whole
from tachograph.engine import Evaluator
from tachograph.states.errors import CallerError
from tests.jobs.exact_job import Points
from tests.jobs.fsdp_job import Net, driver_of, groups, net


def batch(part: int = 0, of: int = 1, rank: int | None = None) -> dict[str, torch.Tensor]:
    """A part of this rank's batch of 8 samples; of all ranks' batches where `rank` is -1."""
    n = dist.get_world_size()
    points = Points(8 * n, 5)
    at = dist.get_rank() if rank is None else rank
    x, y, ids = points.x, points.y, torch.arange(8 * n)
    if at >= 0:
        x, y, ids = (t[8 * at : 8 * at + 8] for t in (x, y, ids))
    each = len(x) // of
    return {key: t[each * part : each * part + each] for key, t in (("x", x), ("y", y), ("id", ids))}


def step(driver: TorchFSDPDriver, given: dict[str, torch.Tensor], divisor: int = 1, sync: bool = True) -> None:
    with nullcontext() if sync else driver.no_sync():
        driver.backward(driver.train_step(given)["loss"], divisor)


def gradients(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: whole(p.grad).clone() for name, p in model.named_parameters() if p.grad is not None}


def in_one_process(**settings: Any) -> dict[str, torch.Tensor]:
    """The gradients of all ranks' batches in one."""
    model = plain(**settings)
    model(**batch(rank=-1))["loss"].backward()
    return gradients(model)


def plain(**settings: Any) -> Net:
    """A model without anything that depends on how a batch is divided."""
    return net(dropout=0.0, norm=False, **settings)


def expect_close(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor], tolerance: float = 1e-6) -> None:
    assert a.keys() == b.keys()
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=tolerance, atol=tolerance, msg=lambda m, n=name: f"{n}: {m}")


# -- gradients ---------------------------------------------------------------------------------------------


def gradients_are_those_of_one_process(folder: Path) -> None:
    driver = driver_of(plain())
    step(driver, batch())
    expect_close(gradients(driver.model), in_one_process())


def a_window_exchanges_with_its_last_batch_only(folder: Path) -> None:
    driver = driver_of(plain())
    step(driver, batch(0, 2), 2, sync=False)
    assert not gradients(driver.model)
    step(driver, batch(1, 2), 2)
    expect_close(gradients(driver.model), in_one_process())


def a_window_that_ends_early_is_exchanged(folder: Path) -> None:
    driver = driver_of(plain())
    step(driver, batch(0, 2), 2, sync=False)
    step(driver, batch(1, 2), 2, sync=False)
    driver.exchange_gradients()
    expect_close(gradients(driver.model), in_one_process())
    driver.zero_grad()
    step(driver, batch())
    expect_close(gradients(driver.model), in_one_process())


def gradients_without_an_exchange_are_scaled_and_dropped_too(folder: Path) -> None:
    driver = driver_of(plain())
    step(driver, batch(), sync=False)
    driver.scale_gradients(3.0)
    driver.exchange_gradients()
    expect_close(gradients(driver.model), {name: 3.0 * grad for name, grad in in_one_process().items()})
    driver.zero_grad()
    step(driver, batch(), sync=False)
    driver.zero_grad()
    step(driver, batch())
    expect_close(gradients(driver.model), in_one_process())


def a_fingerprint_is_of_a_ranks_own_share(folder: Path) -> None:
    """R38."""
    found = []
    for _ in range(2):
        driver = driver_of(plain())
        step(driver, batch())
        found.append(driver.fingerprints())
    assert found[0] == found[1]
    told = [None] * dist.get_world_size()
    dist.all_gather_object(told, found[0])
    for part in ("gradients", "parameters"):
        assert len({each[part] for each in told if each is not None}) == len(told)


def a_rank_without_a_gradient_counts_as_zero(folder: Path) -> None:
    driver = driver_of(plain())
    step(driver, batch(), sync=False)
    if dist.get_rank() != 0:
        assert driver._pending is not None
        driver._pending.clear()
    driver.exchange_gradients()
    model = plain()
    model(**batch(rank=0))["loss"].backward()
    expect_close(gradients(driver.model), {n: g / dist.get_world_size() for n, g in gradients(model).items()})


class Branching(nn.Module):
    """One of its branches is used on rank 0 only."""

    def __init__(self) -> None:
        super().__init__()
        self.always = nn.Linear(6, 1)
        self.sometimes = nn.Linear(6, 1)

    def forward(self, x: torch.Tensor, y: torch.Tensor, id: torch.Tensor) -> dict[str, torch.Tensor]:
        both = self.always(x) + (self.sometimes(x) if int(id[0]) == 0 else 0.0)
        return {"loss": both.mean()}


def parameters_that_a_rank_leaves_unused_count_as_zero(folder: Path) -> None:
    torch.manual_seed(7)
    driver = driver_of(Branching(), find_unused_parameters=True)
    step(driver, batch())
    found, n = gradients(driver.model), dist.get_world_size()
    torch.testing.assert_close(found["always.weight"][0], batch(rank=-1)["x"].mean(0))
    torch.testing.assert_close(found["sometimes.weight"][0], batch(rank=0)["x"].mean(0) / n)


def the_norm_is_that_of_the_whole(folder: Path) -> None:
    driver = driver_of(plain())
    step(driver, batch())
    model = plain()
    model(**batch(rank=-1))["loss"].backward()
    for kind in (1.0, 2.0, float("inf")):
        expected = torch.nn.utils.get_total_norm([p.grad for p in model.parameters()], kind)
        torch.testing.assert_close(driver.gradient_norm(kind), expected, rtol=1e-5, atol=1e-7)
    norm = driver.clip_gradients_by_norm(0.1)
    torch.testing.assert_close(norm, nn.utils.clip_grad_norm_(model.parameters(), 0.1), rtol=1e-5, atol=1e-7)
    expect_close(gradients(driver.model), gradients(model))
    driver.clip_gradients_by_value(0.001)
    nn.utils.clip_grad_value_(model.parameters(), 0.001)
    expect_close(gradients(driver.model), gradients(model))


def parameters_that_were_named_before_are_clipped(folder: Path) -> None:
    model = plain()
    named = list(model.outer.parameters())
    driver = driver_of(model)
    step(driver, batch())
    before = gradients(model)
    driver.clip_gradients_by_norm(1e-4, named)
    after = gradients(model)
    clipped = {name for name in before if not torch.equal(before[name], after[name])}
    assert clipped == {"outer.weight", "outer.bias"}


def an_infinite_gradient_in_one_share_is_known_to_all(folder: Path) -> None:
    driver = driver_of(plain())
    step(driver, batch())
    assert driver.gradients_are_finite()
    if dist.get_rank() == dist.get_world_size() - 1:
        local(driver.model.inner.weight.grad).view(-1)[0] = float("inf")
    assert not driver.gradients_are_finite()


# -- optimizers --------------------------------------------------------------------------------------------


def groups_are_kept(folder: Path) -> None:
    model = plain()
    optimizer = torch.optim.AdamW(groups(model), lr=0.02)
    held = optimizer.param_groups
    named = {id(parameter): name for name, parameter in model.named_parameters()}
    names = [[named[id(parameter)] for parameter in group["params"]] for group in held]
    before = [{k: v for k, v in group.items() if k != "params"} for group in held]
    driver = TorchFSDPDriver(model, "cpu")
    driver.set_optimizers(optimizer)
    driver.set_dataloader([batch()])
    driver.setup(3, True)
    assert optimizer.param_groups is held
    assert [{k: v for k, v in group.items() if k != "params"} for group in held] == before
    sharded = {id(parameter): name for name, parameter in model.named_parameters()}
    assert [[sharded[id(parameter)] for parameter in group["params"]] for group in held] == names
    step(driver, batch())
    assert driver.optimizer_step()
    one = plain()
    other = torch.optim.AdamW(groups(one), lr=0.02)
    one(**batch(rank=-1))["loss"].backward()
    other.step()
    expect_close(driver.weights(), dict(one.state_dict()), 1e-4)


def an_optimizer_that_has_stepped_is_refused(folder: Path) -> None:
    model = plain()
    optimizer = torch.optim.AdamW(model.parameters())
    model(**batch())["loss"].backward()
    optimizer.step()
    driver = TorchFSDPDriver(model, "cpu")
    driver.set_optimizers(optimizer)
    driver.set_dataloader([batch()])
    with pytest.raises(CallerError, match="has taken steps on the model before it is sharded"):
        driver.setup(3, True)


def weights_are_those_of_rank_0(folder: Path) -> None:
    torch.manual_seed(dist.get_rank())
    model = Net()
    own = {name: value.clone() for name, value in model.state_dict().items()}
    expected: list[Any] = [own]
    dist.broadcast_object_list(expected)
    driver = driver_of(model)
    weights = driver.weights()
    assert all(torch.equal(weights[name], expected[0][name]) for name in own)


def a_step_that_failed_is_tidied_up(folder: Path) -> None:
    driver = driver_of(plain())
    step(driver, batch(), sync=False)
    handle = driver.model.blocks[1].register_forward_pre_hook(_fail)
    with pytest.raises(ValueError, match="planted"):
        driver.train_step(batch())
    handle.remove()
    driver.tidy_up()
    step(driver, batch())
    expect_close(gradients(driver.model), in_one_process())


def _fail(*_: Any) -> None:
    raise ValueError("planted")


# -- precision ---------------------------------------------------------------------------------------------


def bf16_gathers_in_bf16_and_keeps_fp32(folder: Path) -> None:
    model = net(dropout=0.0)
    seen: dict[str, torch.dtype] = {}
    model.outer.register_forward_pre_hook(lambda module, given: seen.update(outer=module.weight.dtype))
    model.norm.register_forward_pre_hook(lambda module, given: seen.update(norm=module.weight.dtype))
    driver = driver_of(model, precision="bf16")
    step(driver, batch(0, 2), 2, sync=False)
    step(driver, batch(1, 2), 2)
    assert seen == {"outer": torch.bfloat16, "norm": torch.float32}
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert {grad.dtype for grad in gradients(model).values()} == {torch.float32}
    assert driver.train_step(batch())["loss"].dtype is torch.float32
    driver.tidy_up()


def a_policy_of_ones_own_is_used(folder: Path) -> None:
    model = plain()
    seen: dict[str, torch.dtype] = {}
    model.outer.register_forward_pre_hook(lambda module, given: seen.update(outer=given[0].dtype))
    policy = MixedPrecisionPolicy(param_dtype=torch.float16, reduce_dtype=torch.float32)
    step(driver_of(model, fsdp_options={"mixed_precision": policy}), batch())
    assert seen == {"outer": torch.float16}
    with pytest.raises(CallerError, match="mixed_precision must be a torch"):
        driver_of(plain(), mixed_precision="bf16")


def an_overflow_in_one_share_skips_the_step_of_all(folder: Path) -> None:
    driver = driver_of(plain(), precision="fp16", scaler_options={"init_scale": 64.0})
    before = driver.weights()
    step(driver, batch())
    grads = [p.grad for p in driver.model.parameters()]
    if dist.get_rank() == dist.get_world_size() - 1:
        local(grads[0]).view(-1)[0] = float("inf")
    assert driver.optimizer_step() is False
    assert driver.has_weights(before)
    driver.zero_grad()
    step(driver, batch())
    assert driver.optimizer_step() is True
    assert not driver.has_weights(before)


# -- the self-test -----------------------------------------------------------------------------------------


def _summing(always: bool) -> Any:
    real = _fsdp_collectives._get_gradient_divide_factors

    def factors(*args: Any, **kwargs: Any) -> Any:
        forced = args[5] if len(args) > 5 else kwargs.get("force_sum_reduction_for_comms", False)
        summed = (None, None, dist.ReduceOp.SUM, dist.ReduceOp.SUM)
        return real(*args, **kwargs) if forced and not always else summed

    return factors


def a_build_that_sums_is_corrected(folder: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_fsdp_collectives, "_get_gradient_divide_factors", _summing(False))
        said: list[str] = []
        driver = TorchFSDPDriver(plain(), "cpu")
        driver.tell = said.append  # type: ignore[method-assign]
        driver.set_optimizers(torch.optim.SGD(driver.model.parameters(), lr=0.1))
        driver.set_dataloader([batch()])
        if dist.get_rank() == 0:
            with pytest.warns(UserWarning, match="were summed where a mean was asked for"):
                driver.setup(3, True)
            assert len(said) == 1
        else:
            driver.setup(3, True)
        step(driver, batch())
        expect_close(gradients(driver.model), in_one_process())


def a_build_that_cannot_be_corrected_is_refused(folder: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_fsdp_collectives, "_get_gradient_divide_factors", _summing(True))
        with pytest.raises(CallerError, match=r"were averaged to \S+ instead of \S+, and dividing a sum"):
            driver_of(plain())


# -- evaluation and weights --------------------------------------------------------------------------------


def an_average_is_evaluated_and_leaves_no_trace(folder: Path) -> None:
    driver, straight = driver_of(plain()), driver_of(plain())
    averages = driver.averages()
    averages.add(None)
    first = driver.weights()
    for turn in range(3):
        for one in (driver, straight):
            step(one, batch())
            one.optimizer_step()
            one.zero_grad()
        if turn == 1:
            with driver.evaluating(driver.model), averages.applied():
                averaged = driver.evaluate_fn(driver.model, "validate")(batch())["loss"]
            one = plain()
            one.load_state_dict(first)
            torch.testing.assert_close(averaged, one(**batch())["loss"].detach())
    assert driver.has_weights(straight.weights())
    averages.leave()
    assert averages.are_in_place
    driver.put_weights(first)
    assert not averages.are_in_place


def a_forward_pass_before_the_update_leaves_no_old_weights(folder: Path) -> None:
    driver, straight = driver_of(plain()), driver_of(plain())
    for _ in range(2):
        for one in (driver, straight):
            step(one, batch())
            if one is driver:
                with torch.no_grad():
                    one.model(**batch())
            one.optimizer_step()
            one.zero_grad()
    assert driver.has_weights(straight.weights())


def steps_of_other_names_gather_too(folder: Path) -> None:
    class Named(Net):
        def train_step(self, x: Any, y: Any, id: Any) -> Any:
            return Net.forward(self, x, y, id)

        validate_step = predict = train_step

    torch.manual_seed(7)
    model = Named(dropout=0.0, norm=False)
    driver = driver_of(model)
    step(driver, batch())
    expect_close(gradients(model), in_one_process())
    with driver.evaluating(model):
        losses = [driver.evaluate_fn(model, name)(batch())["loss"] for name in ("validate", "predict")]
    assert torch.equal(*losses)


def weights_go_out_whole_and_come_back(folder: Path) -> None:
    driver = driver_of(net())
    start = driver.weights()
    step(driver, batch())
    driver.optimizer_step()
    driver.save_model(folder / "model.pt")
    dist.barrier()
    trained, other = driver.weights(), Net()
    other.load_state_dict(torch.load(folder / "model.pt", weights_only=True))
    assert all(torch.equal(value, trained[name]) for name, value in other.state_dict().items())
    driver.put_weights(start)
    assert driver.has_weights(start)
    assert not driver.has_weights(trained)
    driver.load_model(folder / "model.pt")
    assert driver.has_weights(trained)
    if dist.get_rank() == 0:
        trained["outer.bias"] = trained["outer.bias"] + 1  # a difference that one rank alone sees
    assert not driver.has_weights(trained)


class Ids:
    """A metric: which samples were scored, on all ranks."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.ids: list[int] = []

    def gather_with(self, gather: Any, distributed: bool) -> None:
        self.gather = gather if distributed else lambda value: [value]

    def update(self, id: torch.Tensor) -> None:
        self.ids += id.tolist()

    def compute(self) -> dict[str, int]:
        every = sorted(i for ids in self.gather(self.ids) for i in ids)
        assert every == list(range(len(every)))
        return {"scored": len(every)}


def an_evaluation_scores_each_sample_once(folder: Path) -> None:
    driver = driver_of(plain())
    for n in (1, 3, 5):
        evaluator = Evaluator(driver=driver, dataloaders=DataLoader(Points(n, 2), batch_size=1), metrics={"ids": Ids()})
        assert evaluator.run() == {"scored#ids": n}
    step(driver, batch())
    expect_close(gradients(driver.model), in_one_process())


# -- snapshots ---------------------------------------------------------------------------------------------


def an_open_window_goes_into_a_snapshot(folder: Path) -> None:
    driver = driver_of(net(), precision="bf16")
    step(driver, batch(0, 2), 2, sync=False)
    capture = driver.capture({})
    driver.save(capture, folder)
    dist.barrier()
    step(driver, batch(1, 2), 2)
    straight = gradients(driver.model)
    resumed = driver_of(Net(), precision="bf16")
    _, held = resumed.read(folder)
    resumed.restore(held)
    resumed.restore_generators()
    step(resumed, batch(1, 2), 2)
    again = gradients(resumed.model)
    assert all(torch.equal(straight[name], again[name]) for name in straight)
    ended = driver_of(Net(), precision="bf16")
    ended.restore(ended.read(folder)[1])
    ended.exchange_gradients()  # nothing was gathered in this process yet
    assert gradients(ended.model).keys() == straight.keys()


def a_save_waits_for_no_other_rank(folder: Path) -> None:
    driver = driver_of(net())
    step(driver, batch())
    capture = driver.capture({})
    if dist.get_rank() == 0:
        driver.save(capture, folder)  # alone
    step(driver, batch())
    if dist.get_rank() != 0:
        driver.save(capture, folder)
    dist.barrier()
    assert driver.read(folder)[0] == {}


def snapshots_of_other_drivers_are_refused(folder: Path) -> None:
    sharded, whole = driver_of(net()), TorchDDPDriver(net(), "cpu")
    whole.set_optimizers(torch.optim.AdamW(groups(whole.model), lr=0.02))
    whole.set_dataloader(DataLoader(Points(8, 1), batch_size=2))
    whole.setup(3, True)
    for driver, name in ((sharded, "shares"), (whole, "whole")):
        if dist.get_rank() == 0:
            (folder / name).mkdir()
        dist.barrier()
        driver.save(driver.capture({}), folder / name)
    dist.barrier()
    with pytest.raises(RestoreFault, match="holds no sharded model: another driver than torch_fsdp took it"):
        sharded.read(folder / "whole")
    with pytest.raises(RestoreFault, match=r"has no model\.pt: another driver took it"):
        whole.read(folder / "shares")


def a_compiled_model_is_sharded_too(folder: Path) -> None:
    driver = TorchFSDPDriver(plain(), "cpu")
    driver.set_optimizers(torch.optim.SGD(driver.model.parameters(), lr=0.1))
    driver.set_dataloader([batch()])
    driver.compile({"backend": "eager"})
    driver.setup(3, True)
    step(driver, batch())
    expect_close(gradients(driver.model), in_one_process())


def a_model_that_was_sharded_before_is_taken(folder: Path) -> None:
    model = plain()
    fully_shard(model.blocks[0])
    fully_shard(model)
    driver = driver_of(model)
    step(driver, batch())
    expect_close(gradients(model), in_one_process())
    assert driver.fingerprint()["model"].startswith("Net with ")
    with pytest.raises(CallerError, match="the model is sharded already"):
        TorchFSDPDriver(model, "cpu", wrap_policy={nn.Linear})


def meshes_that_leave_out_ranks_are_refused(folder: Path) -> None:
    for mesh in ((1,), (3, 1), "all", (1, 1, 2)):
        with pytest.raises(CallerError, match="give a DeviceMesh or sizes"):
            driver_of(plain(), mesh=mesh)
    with pytest.raises(CallerError, match=r"has no option 'mash'\. Did you mean 'mesh'"):
        driver_of(plain(), fsdp_options={"mash": (2,)})


CHECKS = [name for name, held in list(globals().items()) if "folder" in getattr(held, "__annotations__", {})]
"""Their names."""
