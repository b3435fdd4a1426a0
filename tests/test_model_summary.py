"""`ModelSummary`: a table of what is trained, said once in a run's life."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tachograph.drivers.summary import summary
from tachograph.engine import Callback, Events, ModelSummary
from tachograph.engine.callbacks.model_summary import as_text
from tachograph.engine.snapshots import catalogue
from tachograph.states.errors import CallerError
from tests.toys import Run, Sum, stub


class Net(nn.Module):
    """Two parts that share a layer, one of them frozen, and one that isn't there yet."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8))
        self.head = nn.Sequential(nn.Linear(8, 2), self.body[0])
        self.frozen = nn.Linear(3, 1, bias=False).requires_grad_(False)
        self.lazy = nn.LazyLinear(5)


def said_by(run: Run, **arguments: Any) -> list[str]:
    said: list[str] = []
    run.trainer.on(Events.on_notice, lambda t, text: said.append(text))
    run.run(**arguments)
    return said


TABLE = """\
module   kind        values  trainable   size
hidden   Linear          40         40  160 B
dropout  Dropout          0          0    0 B
out      Linear           9          9   36 B
in all   Regression      49         49  196 B"""


def test_a_table_of_the_modules_is_said_when_training_begins() -> None:
    """C4: once, before the first batch."""
    run = Run(callbacks=lambda run: ModelSummary())
    batches: list[int] = []
    run.trainer.on(Events.on_notice, lambda t, text: batches.append(t.global_forward_batches))
    assert said_by(run) == [TABLE]
    assert batches == [0]


def test_it_goes_as_deep_as_it_is_told() -> None:
    """C4."""
    names = {depth: [row["name"] for row in summary(Net(), depth)] for depth in (0, 1, 2, -1)}
    assert names[0] == [""]
    assert names[1] == ["", "body", "head", "frozen", "lazy"]
    assert names[2] == names[-1] == ["", "body", "body.0", "body.1", "head", "head.0", "frozen", "lazy"]
    run = Run(callbacks=lambda run: ModelSummary(0))
    assert said_by(run)[0].splitlines()[1:] == ["in all  Regression      49         49  196 B"]


def test_what_is_shared_is_counted_once_in_the_whole_and_what_is_frozen_is_not_trainable() -> None:
    """C4: buffers take room too; a parameter that isn't there yet has none."""
    model = Net()
    whole, body, head, frozen, lazy = summary(model)
    linear, norm, last = 4 * 8 + 8, 8 + 8, 8 * 2 + 2
    assert (body["parameters"], head["parameters"]) == (linear + norm, last + linear)
    assert whole["parameters"] == linear + norm + last + 3
    assert whole["trainable"] == linear + norm + last
    assert (frozen["parameters"], frozen["trainable"]) == (3, 0)
    assert lazy["parameters"] == lazy["bytes"] == 0
    assert body["bytes"] == 4 * (linear + norm) + 4 * 16 + 8  # running mean, variance and a count
    assert whole["kind"] == "Net"
    model.half()
    assert summary(model)[0]["bytes"] == 2 * (linear + norm + last + 3) + 2 * 16 + 8


def test_no_forward_pass_is_made_and_no_generator_is_drawn_from() -> None:
    """C4."""
    model = Net()
    model.register_forward_hook(lambda *_: pytest.fail("a forward pass"))
    before = torch.get_rng_state()
    summary(model, -1)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("state", ["sanity_check", "epoch_begin", "fetch", "step"])
def test_it_is_not_said_again_after_a_resume_wherever_that_goes_on(run_dir: Path, state: str) -> None:
    """C4: not even where the beginning is done again."""

    class Crash(Exception):
        pass

    class Crashes(Callback):
        def on_train_batch_end(self, trainer: Any) -> None:
            raise Crash

    def build(*more: Callback) -> Run:
        return Run(
            callbacks=lambda run: [ModelSummary(), *more],
            run_dir=run_dir,
            snapshot_every=None,
            metrics={"sum": Sum()},
            validate_dataloaders=[{"value": 1}],
            validate_batch_step_fn=lambda evaluator, batch: evaluator.metrics["sum"].update(1),
        )

    first = build(Crashes())
    first.trainer.on(state, lambda trainer: trainer.request_snapshot())
    said: list[str] = []
    first.trainer.on(Events.on_notice, lambda t, text: said.append(text))
    with pytest.raises(Crash):
        first.run()
    assert said == [TABLE]
    (taken, *_) = [s for s in catalogue(run_dir)[0] if s.about()["state"]["state"] == state]
    assert TABLE not in said_by(build(), resume_from=taken.path)


def test_a_driver_without_modules_has_nothing_to_say() -> None:
    trainer = stub(callbacks=ModelSummary())
    said: list[str] = []
    trainer.on(Events.on_notice, lambda t, text: said.append(text))
    trainer.run()
    assert said == []


def test_large_numbers_are_written_for_a_reader() -> None:
    row = {"name": "", "kind": "GPT", "parameters": 1_234_567_890, "trainable": 5, "bytes": 1_234_567_890 * 4}
    assert as_text([row]).splitlines()[1].split() == ["in", "all", "GPT", "1,234,567,890", "5", "4.599", "GiB"]


@pytest.mark.parametrize("depth", [-2, 1.5, True, None])
def test_a_summary_refuses_what_it_cannot_use(depth: Any) -> None:
    with pytest.raises(CallerError, match=r"depth must be -1 \(everything\) or an integer >= 0"):
        ModelSummary(depth)
