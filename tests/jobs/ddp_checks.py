"""What `TorchDDPDriver` and a trainer on it promise, check by check; each is run by both ranks at the same time."""

from __future__ import annotations

import json
import time
import traceback
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from tachograph.drivers.ddp import TorchDDPDriver
from tachograph.drivers.processes import Processes
from tachograph.engine import Fingerprints, Trainer, diff
from tachograph.states import TrainerState
from tachograph.states.errors import CallerError
from tests.jobs.exact_job import Points, differences
from tests.jobs.ranks import serve_ranks


class Weight(nn.Module):
    """Has the loss w * x, so that its gradient is x."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(1))

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": (self.w * x).mean()}


class Stepping(Weight):
    """Says by a method of its own what is done with a training batch."""

    def __init__(self) -> None:
        super().__init__()
        self.unused = nn.Parameter(torch.ones(1))
        self.calls: list[str] = []

    def train_step(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        self.calls.append("train_step")
        return {"loss": (self.w * x).mean() + 0.0 * self.unused.sum()}

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        self.calls.append("forward")
        return super().forward(x)


class Numbers(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int) -> dict[str, torch.Tensor]:
        return {"x": torch.tensor(float(i))}


class MLP(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 2))

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": nn.functional.cross_entropy(self.body(x), y)}


def driver_of(model: nn.Module, **options: Any) -> TorchDDPDriver:
    driver = TorchDDPDriver(model, "cpu", **options)
    driver.set_optimizers(torch.optim.SGD(driver.model.parameters(), lr=0.1))
    driver.set_dataloader(DataLoader(Numbers(8), batch_size=2))
    driver.setup(0, False)
    return driver


def trainer_of(model: nn.Module | None = None, loader: Any = None, **options: Any) -> Trainer:
    torch.manual_seed(3)
    model = MLP() if model is None else model
    loader = DataLoader(Points(24, 1), batch_size=2, shuffle=True) if loader is None else loader
    inner = model.module if isinstance(model, DistributedDataParallel) else model
    optimizer = torch.optim.SGD(inner.parameters(), lr=0.05, momentum=0.9)
    given = {"driver": "torch_ddp", "n_epochs": 2, "run_dir": None, "seed": 4, "progress_bar": None, **options}
    return Trainer(model, given.pop("driver"), loader, optimizer, **given)


def expect_alike(value: Any) -> None:
    """Expect a value to be the same on both ranks."""
    first, second = ranks().gather(value)
    assert not differences(first, second)


def ranks() -> Processes:
    return TorchDDPDriver(Weight(), "cpu").processes


def mine(a: float, b: float) -> torch.Tensor:
    """A batch of one number, another one on each rank."""
    return torch.tensor([a, b][dist.get_rank()])


# -- gradients ---------------------------------------------------------------------------------------------


def gradients_are_averaged_over_ranks(folder: Path) -> None:
    driver = driver_of(Weight())
    driver.backward(driver.train_step({"x": mine(1, 3)})["loss"], 1)
    assert driver.model.w.grad.item() == 2.0


def a_window_exchanges_once(folder: Path) -> None:
    """B9: nothing is exchanged for a batch inside the window, and everything with its last one."""
    driver = driver_of(Weight())
    with driver.no_sync():
        driver.backward(driver.train_step({"x": mine(1, 3)})["loss"], 2)
    assert driver.model.w.grad.item() == [0.5, 1.5][dist.get_rank()]
    driver.backward(driver.train_step({"x": mine(5, 7)})["loss"], 2)
    assert driver.model.w.grad.item() == 0.5 * (0.5 * (1 + 5) + 0.5 * (3 + 7))


def a_window_that_ends_early_is_exchanged(folder: Path) -> None:
    driver = driver_of(Stepping(), train_fn="forward", ddp_options={"find_unused_parameters": True})
    with driver.no_sync():
        driver.backward(driver.train_step({"x": mine(1, 3)})["loss"], 1)
    driver.exchange_gradients()
    assert driver.model.w.grad.item() == 2.0
    assert driver.model.unused.grad is None


def a_method_of_the_model_is_called_through_the_wrapper(folder: Path) -> None:
    """D3."""
    model = Stepping()
    driver = driver_of(model)
    entered: list[str] = []
    driver.wrapped.register_forward_pre_hook(lambda *args: entered.append("wrapper"))  # type: ignore[union-attr]
    driver.backward(driver.train_step({"x": mine(1, 3)})["loss"], 1)
    assert model.calls == ["train_step"]
    assert entered == ["wrapper"]
    assert model.w.grad.item() == 2.0  # type: ignore[union-attr]


def the_buckets_of_more_than_two_ranks_are_settled_before_the_first_step(folder: Path) -> None:
    """C6: a resumed run's first step adds as the straight run's, whose buckets were arranged long before."""
    heard: list[str] = []
    for hooked in (False, True):
        driver = TorchDDPDriver(MLP(), "cpu")
        driver.tell = heard.append
        driver.set_optimizers(torch.optim.SGD(driver.model.parameters(), lr=0.1))
        driver.set_dataloader(DataLoader(Numbers(8), batch_size=2))
        if hooked:
            next(driver.model.parameters()).register_post_accumulate_grad_hook(lambda p: heard.append("hook"))
        driver.ranks.world_size = 3  # as far as setup() knows
        driver.setup(0, False)
        driver.ranks.world_size = 2
        assert all(p.grad is None for p in driver.model.parameters())
        driver.backward(driver.train_step({"x": torch.ones(2, 6), "y": torch.tensor([0, 1])})["loss"], 1)
        assert driver.wrapped.reducer._rebuild_buckets() == hooked  # type: ignore[union-attr]
    assert [text.partition(",")[0] for text in heard] == ["the model has hooks on its gradients", "hook"]


# -- options and hints -------------------------------------------------------------------------------------


def an_unused_parameter_is_named_with_what_to_do(folder: Path) -> None:
    driver = driver_of(Stepping(), train_fn="forward")
    driver.backward(driver.train_step({"x": mine(1, 3)})["loss"], 1)
    with pytest.raises(CallerError, match=r"\(unused\).*torch_ddp_kwargs=\{'find_unused_parameters': True\}"):
        driver.train_step({"x": mine(1, 3)})


def an_option_that_is_mistyped_is_refused_before_anything_is_built(folder: Path) -> None:
    with pytest.raises(CallerError, match=r"no option 'find_unused'.*find_unused_parameters"):
        trainer_of(torch_ddp_kwargs={"find_unused": True})


def options_reach_the_wrapper(folder: Path) -> None:
    trainer = trainer_of(torch_ddp_kwargs={"find_unused_parameters": True, "broadcast_buffers": False})
    trainer.run()
    wrapped: Any = trainer.driver.wrapped  # type: ignore[union-attr]
    assert wrapped.find_unused_parameters
    assert not wrapped.broadcast_buffers


def batch_norms_of_all_ranks_need_an_accelerator(folder: Path) -> None:
    with pytest.raises(CallerError, match="sync_batchnorm needs an accelerator"):
        TorchDDPDriver(nn.BatchNorm1d(2), "cpu", ddp_options={"sync_batchnorm": True})


# -- who wraps the model, and who made the group ------------------------------------------------------------


def a_users_own_wrapper_is_used_as_it_is(folder: Path) -> None:
    """D5. T1."""
    torch.manual_seed(3)
    model = MLP()
    names = list(model.state_dict())
    own = DistributedDataParallel(model, broadcast_buffers=False)
    trainer = trainer_of(own, driver="auto")
    trainer.run()
    driver: Any = trainer.driver
    assert driver.wrapped is own
    assert own.module is model
    assert driver.model is model
    assert list(model.state_dict()) == names
    expect_alike(dict(model.state_dict()))
    torch.manual_seed(3)
    ours = trainer_of()
    ours.run()
    assert not differences(dict(ours.driver.model.state_dict()), dict(model.state_dict()))  # type: ignore[union-attr]
    with pytest.raises(CallerError, match="already: give it its options there"):
        TorchDDPDriver(own, ddp_options={"static_graph": True})


def a_second_trainer_trains_in_the_same_group(folder: Path) -> None:
    """D6."""
    first, second = trainer_of(), trainer_of()
    first.run()
    second.run()
    assert first.ranks is second.ranks
    assert not differences(*(dict(t.driver.model.state_dict()) for t in (first, second)))  # type: ignore[union-attr]


# -- runs --------------------------------------------------------------------------------------------------


def loaders_of_unequal_length_end_together(folder: Path) -> None:
    """R08: 5 and 7 batches, windows of 2, validation after every 3: all ranks leave the epoch after the fifth."""
    loader = DataLoader(Points([10, 14][dist.get_rank()], 1), batch_size=2)
    notices: list[str] = []
    trainer = trainer_of(
        None,
        loader,
        use_dist_sampler=False,
        accumulation_steps=2,
        validate_every=3,
        validate_dataloaders=DataLoader(Points(6, 2), batch_size=4),
        metrics={"loss": "loss"},
        n_epochs=2,
    )
    trainer.on("on_notice", lambda trainer, text: notices.append(text))
    began = time.monotonic()
    state: TrainerState = trainer.run()
    assert time.monotonic() - began < 10
    assert (state.global_forward_batches, state.optimizer_steps, state.validations) == (10, 6, 3)
    assert state.samples == 40
    expect_alike(state.to_dict())
    expect_alike(dict(trainer.driver.model.state_dict()))  # type: ignore[union-attr]
    told = [text for text in ranks().gather(notices)[0] if "used" in text]
    assert told == [
        f"epoch {n} ends after 5 steps, since a rank has no batch left: 2 batches of the other ranks aren't used"
        for n in (0, 1)
    ]


def a_run_that_ended_goes_on_with_a_larger_limit(folder: Path) -> None:
    longer, whole = (trainer_of(run_dir=folder / name, n_epochs=n) for name, n in (("longer", 1), ("whole", 2)))
    longer.run()
    longer.n_epochs = 2
    longer.run()
    whole.run()
    expect_same(folder / "longer", folder / "whole")
    assert not differences(*(dict(t.driver.model.state_dict()) for t in (longer, whole)))  # type: ignore[union-attr]


def fingerprints_are_those_of_one_model_and_of_each_ranks_batch(folder: Path) -> None:
    """R38."""
    taken = Fingerprints(1)
    trainer = trainer_of(run_dir=folder / "run", accumulation_steps=2, callbacks=taken)
    trainer.run()
    journal = trainer.journal
    assert journal is not None
    told = [side.data for side in journal.sides("fingerprint")]
    assert told[-1] == taken.taken
    assert len(told) == trainer.trainer_state.global_forward_batches  # each micro-batch of a window
    assert sum(each["parameters"] is not None for each in told) == trainer.trainer_state.optimizer_steps
    expect_alike([{**each, "batch": None} for each in told])
    first, second = ranks().gather([each["batch"] for each in told])
    assert not {*first} & {*second}
    trainer_of(run_dir=folder / "bare", accumulation_steps=2).run()
    expect_same(folder / "run", folder / "bare")


def a_run_goes_on_in_a_directory_of_its_own(folder: Path) -> None:
    trainer_of(run_dir=folder / "first", n_epochs=1).run()
    other = trainer_of(run_dir=folder / "other", n_epochs=2)
    other.run(resume_from=folder / "first")
    whole = trainer_of(run_dir=folder / "straight", n_epochs=2)
    whole.run()
    assert other.journal is not None
    assert whole.journal is not None
    assert other.journal.chain == whole.journal.chain
    about = json.loads((folder / "other" / "run.json").read_text())
    assert about["world"] == 2
    assert about["parent"]["seq"] > 0


def only_the_weights_are_taken(folder: Path) -> None:
    trainer_of(run_dir=folder / "first", n_epochs=1).run()
    other = trainer_of(n_epochs=1)
    state = other.run(resume_from=folder / "first", resume_training=False)
    assert state.global_forward_batches == 6
    expect_alike(dict(other.driver.model.state_dict()))  # type: ignore[union-attr]


def a_run_directory_that_is_named_by_time_is_one(folder: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        trainer = trainer_of(run_dir="auto", n_epochs=1)
        trainer.run()
        expect_alike(str(trainer.run_dir))
        assert trainer.journal is not None
        assert {path.name for path in (folder / trainer.run_dir / "journal").iterdir()} == {"rank-0", "rank-1"}  # type: ignore[operator]


def a_run_directory_that_holds_a_run_is_refused_on_every_rank(folder: Path) -> None:
    """Last, since the group is gone after an error."""
    trainer_of(run_dir=folder / "first", n_epochs=1).run()
    with pytest.raises(CallerError, match="holds a run already"):
        trainer_of(run_dir=folder / "first", n_epochs=1).run()


def no_host_waits_for_another_where_ballots_are_counted_later(folder: Path) -> None:
    """R30. C6: as on an accelerator."""
    held = ranks()
    held.barrier()
    held.lag = 3
    held._ballots.clear()
    if held.rank == 1:
        time.sleep(1.0)
    began = time.monotonic()
    counted = [held.vote(1 << n if held.rank == 0 else 0) for n in range(3)]
    waited = time.monotonic() - began
    counted += [held.vote(0) for _ in range(3)]
    held.lag = 0
    for _, work in held._ballots:
        work.wait()
    held._ballots.clear()
    assert counted == [0, 0, 0, 1, 2, 4]
    assert held.rank == 1 or waited < 0.5


def expect_same(a: Path, b: Path) -> None:
    for rank in (0, 1):
        assert diff(a, b, rank=rank) is None


CHECKS = [
    name
    for name, held in list(globals().items())
    if getattr(held, "__annotations__", {}).keys() == {"folder", "return"}
]
"""Their names; the one that breaks the group is the last."""
CHECKS.sort(key=lambda name: name.endswith("refused_on_every_rank"))


def check(job: dict[str, Any]) -> None:
    """Run the checks, and leave in the folder `out` what went wrong with each."""
    found: dict[str, str] = {}
    for name in CHECKS:
        folder = Path(job["out"]) / name
        folder.mkdir(exist_ok=True)
        try:
            globals()[name](folder)
            found[name] = ""
        except BaseException:
            found[name] = traceback.format_exc()
            break  # the ranks may be apart now
    (Path(job["out"]) / f"rank-{job['rank']}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    serve_ranks(check)
