"""examples/language_model.py: words that count alike, a rate that rises and falls; exact after a kill."""

from __future__ import annotations

from pathlib import Path

import torch

from examples.language_model import PAD, Reader, Text, build, guessed, padded
from tachograph.engine import Trainer
from tachograph.engine.testing import assert_resumes_exactly


def short(run_dir: Path | None = None) -> Trainer:
    """Two epochs of five batches, in windows of four."""
    return build(run_dir, n_epochs=2, text=Text(84), progress_bar=None)


def test_cut_after_any_transition_it_ends_with_the_same_bits() -> None:
    """C7: within an accumulation window whose words are counted, too."""
    cuts = assert_resumes_exactly(short, None, at="all")
    assert any("in an open window" in cut.where for cut in cuts)


def test_killed_within_a_window_and_after_a_validation_it_ends_with_the_same_bits() -> None:
    within, after = assert_resumes_exactly(short, None, at=(9, 31), kill=True)
    assert "in an open window" in within.where
    assert "after Validated" in after.where


def test_a_gradient_is_the_mean_over_all_words_of_a_window() -> None:
    """C7: however the paragraphs are padded and put into batches."""
    trainer, found = short(), []
    texts = []
    trainer.on("on_train_batch_begin", lambda trainer, batch, indices: texts.extend(batch["text"]))

    def gradient(trainer: Trainer, optimizers: object) -> None:
        found.append([p.grad.clone() for p in trainer.model.parameters()])
        trainer.stop("one is enough")

    trainer.on("on_before_optimizer_step", gradient)
    trainer.model.dropout.p = 0.0
    weights = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    trainer.run(num_eval_sanity_batch=0)
    whole = Reader()
    whole.load_state_dict(weights)
    whole.dropout.p = 0.0
    together = padded([text[text != PAD] for text in texts])
    whole(**together)["loss"].backward()
    for got, wanted in zip(found[0], whole.parameters(), strict=True):
        torch.testing.assert_close(got, wanted.grad, atol=1e-6, rtol=1e-3)


def test_it_learns_more_than_how_often_a_word_comes_and_ends_with_its_best_weights(tmp_path: Path) -> None:
    """K4. K7."""
    text = Text(1500)
    trainer = build(tmp_path, n_epochs=5, text=text, progress_bar=None)
    trainer.run()
    validated = [
        record.state.results["perplexity#held_out"] for record in trainer.journal if record.event == "Validated"
    ]
    rates = [record.data["lr"][0] for record in trainer.journal if record.event == "Stepped" and record.data["closed"]]
    assert len(validated) == 20
    assert min(validated) < 0.8 * guessed(text)
    assert trainer.validate()["perplexity#held_out"] == min(validated)
    highest = rates.index(max(rates))
    assert rates[: highest + 1] == sorted(rates[: highest + 1])
    assert rates[highest:] == sorted(rates[highest:], reverse=True)
    assert 0 < highest < 0.2 * len(rates)
    assert rates[-1] < 1e-5
