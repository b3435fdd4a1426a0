"""Windows over several ranks: each job is a list of runs, and every rank leaves what each of them ended with."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch

from tachograph.engine import Trainer
from tests.jobs.ranks import serve_ranks
from tests.windows import build, weights_of


def listened(trainer: Trainer, cut: int, stop: int) -> dict[str, Any]:
    """Note the first weight's gradient after each backward pass and before each update; end epochs, or the run."""
    found: dict[str, Any] = {"backward": [], "update": []}

    def gradient() -> torch.Tensor:
        grad = next(trainer.driver.model.parameters()).grad  # type: ignore[union-attr]
        return torch.zeros(1) if grad is None else grad.clone()

    if not trainer.driver.keeps_step:  # type: ignore[union-attr]  # else each rank has a part of it
        trainer.on("on_after_backward", lambda trainer: found["backward"].append(gradient()))
        trainer.on("on_before_optimizer_step", lambda trainer, optimizers: found["update"].append(gradient()))
    if cut:
        trainer.on("on_train_batch_end", lambda t: t.batch_idx_in_epoch == cut and t.end_epoch("cut"))
    if stop:
        trainer.on("on_train_batch_end", lambda t: t.global_forward_batches == stop and t.stop(on_all_ranks=True))
    return found


def run(case: dict[str, Any], driver: str, where: Path) -> dict[str, Any]:
    """Run one case; it may be stopped, and gone on with."""
    case = dict(case)
    about = {"run_dir": where / case.pop("run_dir")} if "run_dir" in case else {}
    cut, stop, resume = (case.pop(name, default) for name, default in (("cut", 0), ("stop", 0), ("resume", None)))
    trainer = build(driver=driver, **case, **about)
    found = listened(trainer, cut, stop)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*has no index")
        state = trainer.run(resume_from=resume)
    scaler = trainer.driver.precision.scaler  # type: ignore[union-attr]
    return {
        **found,
        "weights": weights_of(trainer),
        "scaler": None if scaler is None else scaler.state_dict(),
        "updates": state.optimizer_steps,
    }


def work(job: dict[str, Any]) -> None:
    where = Path(job["where"])
    driver = job["driver"] if job["world"] > 1 else "torch"
    found = {name: run(case, driver, where) for name, case in job["cases"].items()}
    torch.save(found, where / f"{job['world']}-{job['rank']}.pt")


if __name__ == "__main__":
    serve_ranks(work)
