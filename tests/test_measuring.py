"""Losses that arrive from a device at a fixed lag, tried on the CPU with the lag asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from tachograph.drivers.single import TorchDriver
from tachograph.engine import Journal, Trainer


class Model(torch.nn.Linear):
    def train_step(self, batch: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": self(batch).pow(2).mean()}


def job(run_dir: Path, lag: int | None, n_epochs: int = 2, **settings: Any) -> Trainer:
    torch.manual_seed(1)
    model = Model(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    loader = DataLoader(torch.randn(10, 3).unbind(), batch_size=2)  # type: ignore[arg-type]
    driver = TorchDriver(model, "cpu", measure_lag=lag)
    return Trainer(None, driver, loader, optimizer, n_epochs=n_epochs, run_dir=run_dir, progress_bar=None, **settings)


def losses(run_dir: Path) -> dict[int, float]:
    """By the transition they belong to, wherever they stand."""
    found: dict[int, float] = {}
    for record in Journal(run_dir):
        data = record.data
        if record.event == "Stepped" and data["loss"] is not None:
            found[record.seq] = data["loss"]
        late = [data["late"]] if record.event == "Stepped" and data["late"] else data.get("late") or []
        found.update({seq: value for seq, value in late if record.event in ("Stepped", "Exhausted")})
    return found


@pytest.mark.parametrize("lag", [1, 3, 8])
def test_every_loss_arrives_with_the_number_of_its_own_transition(tmp_path: Path, lag: int) -> None:
    job(tmp_path / "now", None).run()
    job(tmp_path / "late", lag).run()
    assert losses(tmp_path / "now") == losses(tmp_path / "late")
    assert len(losses(tmp_path / "late")) == 10


def test_losses_on_their_way_survive_a_resume(tmp_path: Path) -> None:
    straight = job(tmp_path / "straight", 3)
    straight.run()

    def die(trainer: Any) -> None:
        if trainer.global_forward_batches == 7:
            raise KeyboardInterrupt

    first = job(tmp_path / "run", 3, snapshot_every=1)
    first.on("on_train_batch_end", die)
    with pytest.raises(KeyboardInterrupt):
        first.run()
    job(tmp_path / "run", 3, snapshot_every=1).run(resume_from="auto")
    assert Journal(tmp_path / "run").chain == Journal(tmp_path / "straight").chain
    assert losses(tmp_path / "run") == losses(tmp_path / "straight")


def test_a_step_reads_no_tensor_through_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """R50, N11: no `.item()`, `float()`, `.tolist()`, `.cpu()` or `.numpy()` of the loss in a step, journal or not."""
    reads: list[str] = []
    for name in ("item", "__float__", "tolist", "cpu", "numpy"):
        original = getattr(torch.Tensor, name)

        def counted(self: Any, *args: Any, _name: str = name, _original: Any = original, **kwargs: Any) -> Any:
            if self.requires_grad:
                reads.append(_name)
            return _original(self, *args, **kwargs)

        monkeypatch.setattr(torch.Tensor, name, counted)
    job(tmp_path / "run", None, snapshot_every=None).run()
    assert reads == []
