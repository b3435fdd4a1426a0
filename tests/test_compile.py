"""A compiled model and a profiled run: what is called is another function, and the run is the same."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from tachograph.drivers import StubDriver
from tachograph.engine import Events, Journal, Profiler, Trainer
from tachograph.states.errors import CallerError
from tests.toys import Indexed, Mean, Regression, Run, equal, sides, stop_at, stub

EAGER = {"backend": "eager"}


@pytest.fixture(autouse=True)
def _compiled_anew() -> Any:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Counting:
    """A backend that counts the graphs it is given, and runs them as they are."""

    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, graph: Any, inputs: Any) -> Any:
        self.graphs += 1
        return graph.forward


class Stepping(nn.Module):
    """Has methods of its own for training and evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Regression()

    def train_step(self, x: torch.Tensor, y: torch.Tensor, id: torch.Tensor) -> dict[str, Any]:
        predicted = self.inner.out(self.inner.dropout(torch.relu(self.inner.hidden(x)))).squeeze(-1)
        return {"loss": ((predicted - y) ** 2).mean()}

    def validate_step(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, Any]:
        return {"loss": ((self.inner.out(torch.relu(self.inner.hidden(x))).squeeze(-1) - y) ** 2).mean()}


def trained(model: nn.Module, **settings: Any) -> Trainer:
    settings = {"n_epochs": 2, "run_dir": None, "progress_bar": None, "seed": 7, **settings}
    loader = DataLoader(Indexed(12, noise=True), 2, shuffle=True)
    return Trainer(model, "torch", loader, torch.optim.Adam(model.parameters(), 0.01), **settings)


# -- compiling ---------------------------------------------------------------------------------------------


def test_what_is_called_is_compiled_and_the_run_is_the_same(tmp_path: Path) -> None:
    """C8: with a backend that changes no bit, so does the chain."""
    plain = Run(run_dir=tmp_path / "plain")
    plain.run()
    backend = Counting()
    run = Run(run_dir=tmp_path / "run", compile={"backend": backend})
    assert backend.graphs == 0
    run.run()
    assert backend.graphs > 0
    assert run.chain == plain.chain
    assert equal(run.weights, plain.weights)
    assert run.generators == plain.generators


def test_the_users_model_stays_what_it_is(tmp_path: Path) -> None:
    """C8: its class, its forward pass and the names in its state dict; so do files and snapshots."""
    run = Run(run_dir=tmp_path / "run", compile=EAGER, n_epochs=1)
    names = list(run.model.state_dict())
    run.run()
    assert type(run.model) is Regression
    assert "forward" not in vars(run.model)
    assert list(run.model.state_dict()) == names
    assert run.trainer.driver.model is run.model  # type: ignore[union-attr]
    run.trainer.save_model(tmp_path / "model.pt")
    assert list(torch.load(tmp_path / "model.pt", weights_only=True)) == names
    newest = max((tmp_path / "run" / "snapshots").iterdir())
    assert list(torch.load(newest / "model.pt", weights_only=True)) == names


def test_methods_for_training_and_evaluation_are_compiled_as_they_are_called() -> None:
    """C8: `train_step` and `validate_step`, in their modes; the metrics are those of a model that isn't compiled."""
    results = []
    for how in (False, {"backend": Counting()}):
        torch.manual_seed(1)
        model = Stepping()
        trainer = trained(
            model, compile=how, metrics={"loss": Mean()}, validate_dataloaders=DataLoader(Indexed(6), 3), n_epochs=1
        )
        results.append(trainer.run().results)
    assert results[0] == results[1]
    assert how["backend"].graphs >= 2  # type: ignore[index]


def test_the_mode_of_the_model_is_that_of_what_is_compiled() -> None:
    """C8: no dropout in evaluation, and dropout again after it."""
    run = Run(compile=EAGER, metrics={"loss": Mean()}, validate_dataloaders=DataLoader(Indexed(6), 3), n_epochs=1)
    run.run()
    assert run.model.training
    assert run.trainer.validate() == run.trainer.validate()


@pytest.mark.parametrize(("first", "second"), [(False, EAGER), (EAGER, False), (EAGER, EAGER)])
def test_a_run_goes_on_compiled_or_not_and_says_so(tmp_path: Path, first: Any, second: Any) -> None:
    """C8: recorded as a change that is felt; with a backend that changes no bit it ends the same."""
    straight = Run(run_dir=tmp_path / "straight")
    straight.run()
    stopped = Run(run_dir=tmp_path / "run", compile=first)
    stop_at(Events.on_train_batch_end, 7)(stopped.trainer)
    stopped.run()
    run = Run(run_dir=tmp_path / "run", compile=second)
    run.run(resume_from="auto")
    (resumed,) = sides(tmp_path / "run", "resumed")
    assert resumed["changed"] == ({} if first == second else {"compile": [first, second]})
    assert resumed["felt"] == (first != second)
    assert run.chain == straight.chain
    assert equal(run.weights, straight.weights)


def test_true_compiles_with_the_default_backend(tmp_path: Path) -> None:
    """C8: one small step; close to what isn't compiled, and kept in the settings."""
    if shutil.which("g++") is None and shutil.which("clang++") is None:
        pytest.skip("the inductor needs a C++ compiler, and there is none")
    losses = []
    for name, how in (("plain", False), ("run", True)):
        torch.manual_seed(1)
        trained(
            nn.Sequential(nn.Flatten(0), Total()),
            compile=how,
            run_dir=tmp_path / name,
            n_batches=2,
            train_output_mapping=lambda loss: {"loss": loss},
            train_input_mapping=lambda batch: batch["x"],
        ).run()
        losses.append([r.data["loss"] for r in Journal(tmp_path / name) if r.event == "Stepped"])
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
    assert json.loads((tmp_path / "run" / "run.json").read_text())["settings"]["compile"] is True


class Total(nn.Module):
    """A sum under one weight."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return ((x * self.weight - 1) ** 2).mean()


def test_an_option_that_torch_does_not_know_is_refused() -> None:
    """C8."""
    with pytest.raises(CallerError, match=r"compile: torch\.compile takes no 'backends'"):
        Run(compile={"backends": "eager"})


def test_an_error_while_compiling_has_our_note() -> None:
    """C8."""

    def backend(graph: Any, inputs: Any) -> Any:
        raise LookupError("no such backend")

    with pytest.raises(Exception, match="no such backend") as caught:
        Run(compile={"backend": backend}).run()
    assert any("in state 'step', epoch 0, batch 0" in note for note in caught.value.__notes__)


# -- profiling ---------------------------------------------------------------------------------------------


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_traces_are_written_by_the_schedule_and_the_chain_is_the_same(tmp_path: Path) -> None:
    """C8: two batches out, one to warm up, two that are recorded, twice."""
    plain = Run(run_dir=tmp_path / "plain")
    plain.run()
    profiler = Profiler((2, 1, 2, 2), activities=["cpu"])
    run = Run(run_dir=tmp_path / "run", callbacks=lambda run: profiler)
    run.run()
    assert names(tmp_path / "run" / "profiles") == ["batch-000000005.json", "batch-000000010.json"]
    assert profiler.traces == sorted((tmp_path / "run" / "profiles").iterdir())
    trace = json.loads(profiler.traces[0].read_text())
    found = {event.get("name") for event in trace["traceEvents"]}
    assert {"ProfilerStep#3", "ProfilerStep#4"} <= found
    assert "ProfilerStep#2" not in found
    assert run.chain == plain.chain
    assert equal(run.weights, plain.weights)
    assert run.generators == plain.generators


class Fault(Exception):
    pass


@pytest.mark.parametrize("how", ["stops", "fails", "is interrupted"])
def test_whatever_ends_the_run_ends_the_profiler_and_its_trace_is_written(tmp_path: Path, how: str) -> None:
    """C8: and the next run of a process can be profiled."""
    run = Run(callbacks=lambda run: Profiler((0, 0, 99, 1), folder=tmp_path / how, activities=["cpu"]))

    def end(trainer: Any) -> None:
        if how == "stops":
            trainer.stop()
        elif how == "fails":
            raise Fault
        else:
            trainer.interrupt(15)

    run.trainer.on(Events.on_train_batch_end(once=3), end)
    expected = {"stops": (), "fails": Fault, "is interrupted": SystemExit}[how]
    if expected:
        with pytest.raises(expected):  # type: ignore[arg-type]
            run.run()
    else:
        run.run()
    assert names(tmp_path / how) == ["batch-000000003.json"]
    again = Run(n_epochs=1, callbacks=lambda run: Profiler(None, folder=tmp_path / "again", activities=["cpu"]))
    again.run()
    assert names(tmp_path / "again") == ["batch-000000006.json"]


def test_a_resumed_run_is_profiled_anew_and_a_profiler_may_come_and_go(tmp_path: Path) -> None:
    """C8: it has no memory, so it needs none at a resume."""

    def profiled(run: Run) -> Profiler:
        return Profiler((1, 0, 1, 1), activities=["cpu"])

    straight = Run(run_dir=tmp_path / "straight")
    straight.run()
    for callbacks, at in ((profiled, 3), (None, 6), (profiled, 99)):
        run = Run(run_dir=tmp_path / "run", callbacks=callbacks)
        run.trainer.on("fetch -> step", lambda t, at=at: t.global_forward_batches == at and t.interrupt(15))
        if at == 99:
            run.run(resume_from="auto")
        else:
            with pytest.raises(SystemExit):
                run.run(resume_from="auto")
    assert names(tmp_path / "run" / "profiles") == ["batch-000000002.json", "batch-000000009.json"]
    assert run.chain == straight.chain


def test_a_second_run_of_the_same_trainer_is_profiled_too(tmp_path: Path) -> None:
    """C8."""
    run = Run(n_epochs=1, callbacks=lambda run: Profiler((0, 0, 1, 1), folder=tmp_path, activities=["cpu"]))
    run.run()
    run.trainer.n_epochs = 2
    run.run()
    assert names(tmp_path) == ["batch-000000001.json", "batch-000000007.json"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"schedule": (1, 1, 3)}, r"schedule must be \(wait, warmup, active, repeat\), integers >= 0"),
        ({"schedule": (1, 1, 0, 1)}, r"with active >= 1, or None, not \(1, 1, 0, 1\)"),
        ({"schedule": 5}, "or None, not 5"),
        ({"activities": ["gpu"]}, "there is no activity 'gpu' to profile. Known: cpu"),
        ({"with_stacks": True}, r"torch\.profiler\.profile takes no 'with_stacks'"),
        ({}, "Profiler needs a folder, since this trainer has no run_dir"),
    ],
)
def test_what_a_profiler_cannot_use_is_refused(tmp_path: Path, given: dict[str, Any], said: str) -> None:
    """C8."""
    folder = {"folder": tmp_path} if given else {}
    with pytest.raises(CallerError, match=said):
        Run(callbacks=lambda run: Profiler(**folder, **given))


def test_a_driver_without_a_profiler_says_so(tmp_path: Path) -> None:
    """C8."""
    with pytest.raises(CallerError, match="StubDriver has no profiler"):
        stub(driver=StubDriver(), callbacks=Profiler(folder=tmp_path))
