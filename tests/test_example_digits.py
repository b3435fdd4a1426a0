"""examples/digits.py: what workers draw for an image is the same after a kill, and for any number of them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tachograph.engine import Journal, Trainer
from tachograph.engine.testing import assert_resumes_exactly

pytest.importorskip("sklearn", reason="the digits are scikit-learn's")
from examples.digits import Digits, build


def short(run_dir: Path | None = None, **settings: object) -> Trainer:
    """Two epochs of two batches, read in this process."""
    settings = {"n_epochs": 2, "images": 64, "workers": 0, **settings}
    return build(run_dir, progress_bar=None, **settings)


def with_workers(run_dir: Path | None = None) -> Trainer:
    """Two epochs of four batches, read by two workers that live on."""
    return short(run_dir, images=128, workers=2)


def test_cut_after_any_transition_it_ends_with_the_same_bits() -> None:
    ended = short(None).run()
    cuts = assert_resumes_exactly(short, steps=None, at="all")
    assert [cut.seq for cut in cuts] == list(range(1, ended.seq))


def test_killed_while_two_workers_are_ahead_it_ends_with_the_same_bits() -> None:
    """R09, R26: in the first epoch with a batch in hand, and between two epochs."""
    assert len(assert_resumes_exactly(with_workers, steps=None, at=(8, 15), kill=True)) == 2


def test_an_image_looks_another_way_in_each_epoch_and_the_same_for_any_number_of_workers(tmp_path: Path) -> None:
    seen: dict[int, list[torch.Tensor]] = {}
    chains = set()
    for workers in (0, 2):
        trainer = short(tmp_path / str(workers), workers=workers)
        images = seen.setdefault(workers, [])

        @trainer.on("on_train_batch_begin")
        def keep(trainer: Trainer, batch: dict[str, torch.Tensor], ids: list[int], into: list = images) -> None:
            into.append(batch["image"][ids.index(0)]) if 0 in ids else None

        trainer.run()
        chains.add(Journal(trainer.run_dir).chain)
    first, second = seen[0]
    assert not torch.equal(first, second)
    assert not torch.equal(first, Digits(slice(1)).images[0])
    assert torch.equal(torch.stack(seen[0]), torch.stack(seen[2]))
    assert len(chains) == 1


def test_it_reads_what_other_people_wrote_and_keeps_its_best_model(tmp_path: Path) -> None:
    trainer = build(tmp_path / "run", n_epochs=8, workers=0, progress_bar=None)
    trainer.run()
    found = [record.state.results["acc#accuracy"] for record in trainer.journal if record.event == "Validated"]
    held_out = Digits(slice(-597, None)).digits
    assert max(found) > max(0.85, 5 * held_out.bincount().max().item() / len(held_out))  # always the commonest: 10 %
    [best] = (tmp_path / "run" / "checkpoints").iterdir()
    weights = torch.load(best / "model.pt", weights_only=True)
    assert all(torch.equal(weights[name], value) for name, value in trainer.driver.model.state_dict().items())
    assert f"{max(found):.6f}"[:6] in best.name
