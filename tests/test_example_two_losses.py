"""examples/two_losses.py: a step with two losses and two optimizers, exact after a kill; a code that is of use."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import pytest
import torch

from tachograph.engine import Trainer
from tachograph.engine.testing import assert_resumes_exactly

pytest.importorskip("sklearn", reason="the digits are scikit-learn's")
from examples.two_losses import HELD_OUT, build


def short(run_dir: Path | None = None) -> Trainer:
    """Two epochs of four batches."""
    return build(run_dir, n_epochs=2, images=HELD_OUT + 100, progress_bar=None)


def test_cut_after_any_transition_it_goes_on_exactly() -> None:
    assert_resumes_exactly(short, None, at="all")


def test_killed_twice_it_goes_on_exactly() -> None:
    assert_resumes_exactly(short, None, at=(6, 13), kill=True)


def test_the_code_is_learned_without_labels_and_a_probe_reads_most_digits_from_it(tmp_path: Path) -> None:
    """T8: and both losses of every update are in the log, whose sum is in the journal."""
    trainer = build(tmp_path, n_epochs=8, progress_bar=None)
    trainer.run()
    first, *_, last = (record.state.results for record in trainer.journal if record.event == "Validated")
    assert last["acc#accuracy"] > 0.75
    assert last["reconstruction"] < 0.5 * first["reconstruction"]
    [log] = tmp_path.rglob("metrics.csv")
    rows = list(csv.DictReader(log.open()))
    steps = [record for record in trainer.journal if record.event == "Stepped"]
    assert len(rows) == len(steps) == trainer.global_forward_batches
    for row, step in zip(rows, steps, strict=True):
        both = float(row["reconstruction"]) + float(row["classification"])
        assert math.isclose(both, step.data["loss"], rel_tol=1e-5)
        assert step.data["lr"] == [1e-3, 1e-2]


def test_no_label_reaches_the_autoencoder() -> None:
    """Trained on other labels, it has the same bits."""
    weights = []
    for shift in (0, 1):
        trainer = short()
        data = trainer.train_dataloader.dataset
        data.digits = (data.digits + shift) % 10
        trainer.run()
        weights.append(trainer.model)
    one, other = weights
    for a, b in zip(one.autoencoder.parameters(), other.autoencoder.parameters(), strict=True):
        assert torch.equal(a, b)
    assert not torch.equal(one.probe.weight, other.probe.weight)
