"""Training doesn't notice who watches it: whatever is switched on beside it, its trace has the same bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from tachograph.engine import Events
from tests.jobs.exact_job import NoisyLoss, after_everyone, differences
from tests.toys import Indexed, Run, scribe


def validation(workers: int = 0, every: Any = -1, shuffle: bool = True) -> dict[str, Any]:
    """Two loaders with noise in their samples, and a metric that draws from every generator."""
    loader = DataLoader(Indexed(6, noise=True), batch_size=2, shuffle=shuffle, num_workers=workers)
    return {
        "metrics": {"loss": NoisyLoss()},
        "validate_dataloaders": {"a": loader, "b": loader},
        "validate_every": every,
    }


def trace(run_dir: Path | None = None, sanity: int = 2, snapshot_each: bool = False, **settings: Any) -> dict[str, Any]:
    """Train, and return all that training did."""
    run = Run(run_dir=run_dir, **settings)
    losses: list[float] = []
    generators: list[Any] = []
    run.trainer.on(Events.on_before_backward, lambda trainer, outputs: losses.append(outputs["loss"].item()))
    run.trainer.on(Events.on_train_batch_end, lambda trainer: generators.append(run.generators))
    if snapshot_each:
        after_everyone(run.trainer, lambda trainer: trainer.request_snapshot())
    run.run(num_eval_sanity_batch=sanity)
    return {
        "ids": run.model.seen,
        "losses": losses,
        "generators": generators,
        "weights": run.weights,
        "moments": run.optimizer.state_dict(),
    }


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    """What training does when nobody watches, and nothing is kept."""
    return trace()


WATCHED: dict[str, dict[str, Any]] = {
    "validation without a sanity check": {"sanity": 0, **validation()},
    "validation after a short sanity check": {"sanity": 1, **validation()},
    "validation after a sanity check of everything": {"sanity": -1, **validation()},
    "validation after every batch": validation(every=1),
    "validation now and then": validation(every=(4, -2)),
    "validation where a function says so": validation(every=lambda trainer: trainer.global_forward_batches == 5),
    "validation in one order": validation(shuffle=False),
    "validation with data read by workers": validation(workers=2),
    "a progress bar": {"progress_bar": "plain"},
    "a listener to every moment": {"callbacks": lambda run: [scribe([])]},
    "a journal": {"run_dir": "run", "snapshot_every": None},
    "a snapshot an epoch": {"run_dir": "run"},
    "a snapshot a batch": {"run_dir": "run", "snapshot_every": 1},
    "a snapshot a transition": {"run_dir": "run", "snapshot_each": True},
    "one worker": {"loader": {"num_workers": 1}},
    "two workers": {"loader": {"num_workers": 2}},
    "three workers that stay, and read ahead": {
        "loader": {"num_workers": 3, "persistent_workers": True, "prefetch_factor": 4}
    },
    "all at once": {
        **validation(workers=1, every=1),
        "run_dir": "run",
        "snapshot_each": True,
        "progress_bar": "rich",
        "loader": {"num_workers": 2},
    },
}


@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # more workers than a small machine has cores
@pytest.mark.parametrize("name", WATCHED)
def test_training_does_not_notice(name: str, alone: dict[str, Any], tmp_path: Path) -> None:
    """N12, R29 B16: ids, losses, generators after each batch, weights and moments."""
    settings = dict(WATCHED[name])
    if "run_dir" in settings:
        settings["run_dir"] = tmp_path / settings["run_dir"]
    assert differences(alone, trace(**settings)) == []


def test_a_listener_that_draws_is_noticed(alone: dict[str, Any]) -> None:
    """The trace can differ, so that its being equal says something."""

    def draws(run: Run) -> Any:
        return [scribe([], lambda name, trainer, args: str(torch.rand(1)))]

    assert differences(alone, trace(callbacks=draws))
