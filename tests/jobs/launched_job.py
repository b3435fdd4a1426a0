"""A script that trains in two processes, as a user writes it.

    python -m tests.jobs.launched_job MODE FOLDER OUTPUT [ARGUMENT ...]

Each rank leaves what it found in FOLDER, as `rank-k.json`, and prints a line to both of its outputs.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from tachograph.drivers import (
    all_gather,
    all_rank_call,
    broadcast_object,
    is_rank_zero,
    rank,
    rank_zero_call,
    seed_everything,
    world_size,
)
from tachograph.drivers.ranks import current
from tachograph.engine import Trainer
from tachograph.states.errors import CallerError
from tests.toys import Indexed, Regression


def trainer_of(folder: Path, name: str, model: Any = None, **settings: Any) -> Trainer:
    """Build a trainer of 2 epochs of 4 batches of 2."""
    torch.manual_seed(7)
    model = Regression() if model is None else model
    loader = DataLoader(Indexed(16), batch_size=2, shuffle=True)
    given: dict[str, Any] = {"driver": "auto", "device": ["cpu", "cpu"], "n_epochs": 2, "seed": 7, **settings}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    return Trainer(
        model,
        train_dataloader=loader,
        optimizers=optimizer,
        run_dir=folder / name,
        progress_bar=None,
        **given,
    )


def refusal(build: Any) -> str:
    """Return the sentence of the refusal of what isn't legal."""
    try:
        build()
    except CallerError as error:
        return str(error)
    return "nothing was refused"


def helped(folder: Path, output: str) -> dict[str, Any]:
    """Train twice, and try everything that a script may ask of its ranks."""
    before = [rank(), world_size(), is_rank_zero(), refusal(lambda: all_gather(1))]
    first = trainer_of(folder, "first", output_from_new_proc=output)
    heard = []

    @rank_zero_call
    def alone(trainer: Any) -> Any:
        current().barrier()
        heard.append(trainer.global_forward_batches)
        return all_gather(rank()), world_size()

    first.on("fetch -> step", alone)
    state = first.run()
    gathered = all_gather({"n": torch.full((rank() + 1,), rank()), "words": ["a", rank()], "none": None})
    with all_rank_call():
        everywhere = alone(first)
    second = trainer_of(folder, "second", driver="torch_ddp", device="cpu", processes=2)
    seeded = [seed_everything(3), torch.initial_seed(), seed_everything(3, add_global_rank_to_seed=False)]
    return {
        "before": before,
        "steps": [state.optimizer_steps, second.run().optimizer_steps],
        "backend": dist.get_backend(),
        "heard": heard[:-1],
        "alone": alone(first),
        "everywhere": everywhere,
        "gathered": [[one["n"].tolist(), one["words"], one["none"]] for one in gathered],
        "broadcast": [broadcast_object({"of": rank()}), broadcast_object(torch.tensor([rank()]), src=1).tolist()],
        "no such rank": refusal(lambda: broadcast_object(1, src=2)),
        "three": refusal(lambda: trainer_of(folder, "third", device=["cpu"] * 3)),
        "also three": refusal(lambda: trainer_of(folder, "third", driver="torch_fsdp", device="cpu", processes=3)),
        "seeds": seeded,
        "argv": sys.argv,
        "development": sys.flags.dev_mode,
        "told of its launcher's death by": _death_signal(),
        "ranks": [first.driver.ranks.rank, first.driver.ranks.local_rank, first.driver.world_size],  # type: ignore[union-attr]
    }


def _death_signal() -> int:
    """Return the signal that this process gets when its parent dies; 0: none."""
    if sys.platform != "linux":
        return 0
    number = ctypes.c_int()
    ctypes.CDLL(None).prctl(2, ctypes.byref(number), 0, 0, 0)
    return number.value


def failing(folder: Path, output: str) -> dict[str, Any]:
    """Fail on rank 1, whose listeners, like the other's, take their time to hear of it."""
    trainer = trainer_of(folder, "run", output_from_new_proc=output)

    def heard(trainer: Trainer, error: BaseException) -> None:
        time.sleep(1.0)
        (folder / f"heard-{rank()}").write_text(f"{type(error).__name__}: {error}".splitlines()[0], encoding="utf-8")

    def fail(trainer: Trainer) -> None:
        if rank() == 1 and trainer.global_forward_batches == 3:
            raise ArithmeticError("of rank 1 alone")

    trainer.on("on_exception", heard)
    trainer.on("step -> fetch", fail)
    trainer.run()
    return {}


def waiting(folder: Path, output: str) -> dict[str, Any]:
    """Stand still in the third batch until a file comes; then go on, for so long as it takes."""
    trainer = trainer_of(folder, "run", output_from_new_proc=output, snapshot_every=None)

    def stand(trainer: Trainer) -> None:
        if trainer.global_forward_batches == 2 and not (folder / "go").exists():
            (folder / f"here-{rank()}").write_text(str(os.getpid()), encoding="utf-8")
            while not (folder / "go").exists():
                time.sleep(0.01)
            time.sleep(0.5 * rank())

    trainer.on("fetch -> step", stand)
    state = trainer.run(resume_from="auto")
    return {"steps": state.optimizer_steps}


def joined(folder: Path, output: str) -> dict[str, Any]:
    """Train under torchrun in a group of the user's with a model that is wrapped, then with one that isn't."""
    dist.init_process_group("gloo")
    torch.manual_seed(7)
    model = DistributedDataParallel(Regression())
    first = trainer_of(folder, "first", model=model, device=None, output_from_new_proc=output)
    state = first.run()
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        second = trainer_of(folder, "second", device=["cpu"] * 3)
    return {
        "steps": [state.optimizer_steps, second.run().optimizer_steps],
        "driver": type(first.driver).__name__,
        "told": [str(one.message) for one in told if "device=" in str(one.message)],
        "three": refusal(lambda: trainer_of(folder, "third", device="cpu", processes=3)),
        "group": dist.get_world_size(),
        "weights": [trained.model.hidden.weight.sum().item() for trained in (first.driver, second.driver)],  # type: ignore[union-attr]
    }


MODES = {"helped": helped, "failing": failing, "waiting": waiting, "joined": joined}


def main() -> None:
    mode, folder, output = sys.argv[1:4]
    print(f"rank {os.environ.get('RANK')} says so", flush=True)
    print(f"rank {os.environ.get('RANK')} complains", file=sys.stderr, flush=True)
    found = MODES[mode](Path(folder), output)
    (Path(folder) / f"rank-{rank()}.json").write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main()
