"""Settings at a resume: each is fixed and refused when it differs, or changeable and takes effect at the next step."""

from __future__ import annotations

import json
import math
import platform
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.optim import lr_scheduler as schedules
from torch.utils.data import DataLoader, RandomSampler

from tachograph.drivers import hyperparameters
from tachograph.engine import EarlyStopping, Events, Journal, LRSchedule, Trainer, recording
from tachograph.engine.describing import described
from tachograph.engine.listeners import RestoreMismatch
from tachograph.engine.recording import SettingsChanged
from tachograph.states import Event, Row, Stepped
from tachograph.states.errors import CallerError
from tests.test_resume import crash_at, crashed, files_of, job, notices
from tests.toys import Indexed, Regression, Run, equal, sides, stub

PER_EPOCH, AT = 6, 8  # batches of an epoch, and the one after which the first run stops


def sgd(lr: float = 0.1, **more: Any) -> Callable[[Any], Any]:
    return lambda parameters: torch.optim.SGD(parameters, lr=lr, momentum=0.9, **more)


def first(run_dir: Path, **settings: Any) -> Run:
    """A run of torch that stopped after eight of its batches."""
    run = Run(**{"run_dir": run_dir, "optimizer": sgd(), "n_epochs": 3, "n_batches": AT, **settings})
    run.run()
    return run


def again(run_dir: Path | None, **settings: Any) -> tuple[Run, list[str], list[Any]]:
    """The same script once more, with what it says and the learning rates of its updates."""
    run = Run(**{"run_dir": run_dir, "optimizer": sgd(), "n_epochs": 3, **settings})
    rates: list[Any] = []
    run.trainer.on(
        Events.on_before_optimizer_step, lambda t, optimizers: rates.append(optimizers[0].param_groups[0]["lr"])
    )
    return run, notices(run.trainer), rates


def changed(run_dir: Path) -> dict[str, Any]:
    """What the last resume recorded as changed."""
    return sides(run_dir, "resumed")[-1]["changed"]  # type: ignore[no-any-return]


def values_of(run: Run) -> dict[str, Any]:
    return {k: v for k, v in run.optimizer.param_groups[0].items() if k != "params"}


@attrs.frozen(kw_only=True)
class Rested(Event):
    """A pause is over."""

    def fold(self, state: Any, dest: str) -> Any:
        return attrs.evolve(state, state=dest, seq=state.seq + 1)


# -- the matrix --------------------------------------------------------------------------------------------


class Net(Regression):
    """A model whose training step can be chosen."""

    def train_step(self, **batch: Any) -> dict[str, Any]:
        return self(**batch)  # type: ignore[no-any-return]

    def other_step(self, **batch: Any) -> dict[str, Any]:
        return {"loss": 0 * self(**batch)["loss"] + 17}


class Wider(Net):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(8, 2)


class Mean:
    """A metric: the mean of the loss."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.losses: list[float] = []

    def update(self, loss: Any) -> None:
        self.losses.append(float(loss))

    def compute(self) -> float:
        return math.fsum(self.losses) / len(self.losses)


class Scored:
    """A metric that always says the same."""

    def reset(self) -> None: ...

    def update(self, loss: Any) -> None: ...

    def compute(self) -> float:
        return 7.0


def zero_loss(trainer: Any, batch: Any) -> None:
    outputs = {"loss": 0 * trainer.train_step(batch)["loss"] + 17}
    trainer.backward(outputs)
    trainer.step()
    trainer.zero_grad()


def script(run_dir: Path, **changes: Any) -> Trainer:
    """A script with everything that is a setting; some of it is another this time."""
    settings: dict[str, Any] = {
        "model": Net,
        "optimizer": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
        "loader": {"batch_size": 2, "shuffle": True},
        "n": 12,
        "metrics": {"loss": Mean()},
        "validation_batch": 3,
        "callbacks": lambda optimizer: [EarlyStopping("loss", larger_better=False, patience=9)],
        "n_epochs": 3,
        "seed": 7,
        "accumulation_steps": 2,
        "accumulation_tail": "carry",
        "snapshot_every": 1,
        **changes,
    }
    torch.manual_seed(3)
    model = settings.pop("model")()
    optimizer = settings.pop("optimizer")(model.parameters())
    loader = DataLoader(Indexed(settings.pop("n")), **settings.pop("loader"))
    about = {"validate_dataloaders": DataLoader(Indexed(6), settings.pop("validation_batch"))}
    settings["callbacks"] = settings["callbacks"](optimizer)
    return Trainer(model, "torch", loader, optimizer, run_dir=run_dir, progress_bar=None, **about, **settings)


def stopped(run_dir: Path) -> None:
    """The script, stopped after eight batches."""
    trainer = script(run_dir)
    trainer.on(Events.on_train_batch_end, lambda trainer: trainer.global_forward_batches == AT and trainer.stop())
    trainer.run()


FIXED: dict[str, tuple[dict[str, Any], str]] = {
    "machine": (
        {"rows": [Row("step", Stepped, "rest"), Row("rest", Rested, "fetch")], "perform": {"rest": lambda s: Rested()}},
        "this run's machine is [0-9a-f]{16}, this trainer's [0-9a-f]{16}",
    ),
    "model": ({"model": Wider}, "this run's model is Net with .*, this trainer's Wider with"),
    "optimizers": (
        {"optimizer": lambda p: torch.optim.Adam(p)},
        r"optimizers is \['SGD with groups of \[4\]'\], this trainer's \['Adam with",
    ),
    "precision": ({"precision": "bf16"}, "precision is fp32, this trainer's bf16"),
    "seed": ({"seed": 8}, "seed is 7, this trainer's 8"),
    "accumulation_steps": ({"accumulation_steps": 3}, "accumulation_steps is 2, this trainer's 3"),
    "accumulation_tail": ({"accumulation_tail": "drop"}, "accumulation_tail is carry, this trainer's drop"),
    "loss_weight": ({"loss_weight": "samples"}, "loss_weight is None, this trainer's samples"),
    "data": ({"n": 14}, "data is Indexed of 12 samples by .*, this trainer's Indexed of 14 samples"),
    "overfit_batches": ({"overfit_batches": 2}, "overfit_batches is 0, this trainer's 2"),
}


def losses_are_17(trainer: Trainer, records: list[Any]) -> bool:
    return all(r.data["loss"] == 17 for r in records if r.event == "Stepped")


# setting -> (what is changed, arguments of run, old value, new value, how it shows)
def remembered(num_samples: int | None) -> dict[str, Any]:
    """What is told of the script's order."""
    made_of = {"n": 12, "replacement": False, "num_samples": num_samples}
    about = {"single": False, "sharing": "dealt", "drop_last": False}
    return {"sampler": "torch.RandomSampler", "made_of": made_of, **about}


CHANGEABLE: dict[str, tuple[dict[str, Any], dict[str, Any], Any, Any, Callable[[Trainer, list[Any]], bool]]] = {
    "n_epochs": ({"n_epochs": 2}, {}, 3, 2, lambda t, records: t.trainer_state.cur_epoch_idx == 2),
    "n_batches": (
        {"n_batches": AT + 2},
        {},
        None,
        AT + 2,
        lambda t, records: t.trainer_state.global_forward_batches == AT + 2,
    ),
    "max_time": ({"max_time": "1h"}, {}, None, 3600.0, lambda t, records: t.max_time == 3600.0),
    "num_train_batch_per_epoch": (
        {},
        {"num_train_batch_per_epoch": 4},
        -1,
        4,
        lambda t, records: [r.state.batch_idx_in_epoch for r in records if r.event == "Exhausted"] == [4, 4],
    ),
    "batch_size": (
        {"loader": {"batch_size": 4, "shuffle": True}},
        {},
        2,
        4,
        lambda t, records: {r.data["samples"] for r in records if r.event == "Stepped"} == {4},
    ),
    "hyperparameters.lr": (
        {"optimizer": lambda p: torch.optim.SGD(p, lr=0.3, momentum=0.9)},
        {},
        0.1,
        0.3,
        lambda t, records: all(r.data["lr"] == [0.3] for r in records if r.event == "Stepped"),
    ),
    "callbacks.EarlyStopping.patience": (
        {"callbacks": lambda o: [EarlyStopping(lambda results: -1.0, larger_better=False, patience=1)]},
        {},
        9,
        1,
        lambda t, records: t.trainer_state.validations == 3 and "EarlyStopping" in t.trainer_state.stop_asked,
    ),
    "train_fn": ({"train_fn": "other_step"}, {}, "train_step", "other_step", losses_are_17),
    "batch_step_fn": ({"batch_step_fn": zero_loss}, {}, None, "zero_loss", losses_are_17),
    "compile": (
        {"compile": {"backend": "eager"}},
        {},
        False,
        {"backend": "eager"},
        lambda t, records: t.global_forward_batches == 18,
    ),
    "validate_every": (
        {"validate_every": 2},
        {},
        [-1],
        [2],
        lambda t, records: sum(r.event == "Validated" for r in records) == 5,
    ),
    "validation.metrics.loss": (
        {"metrics": {"loss": Scored()}},
        {},
        "Mean",
        "Scored",
        lambda t, records: [r.data["results"] for r in records if r.event == "Validated"] == [{"loss": 7.0}] * 2,
    ),
    "validation.loaders.given": (
        {"validation_batch": 2},
        {},
        "Indexed of 6 samples in batches of 3 by SequentialSampler",
        "Indexed of 6 samples in batches of 2 by SequentialSampler",
        lambda t, records: sum(r.event == "Validated" for r in records) == 2,
    ),
    "validation.batches": (
        {},
        {"num_eval_batch_per_dl": 1},
        -1,
        1,
        lambda t, records: sum(r.event == "Validated" for r in records) == 2,
    ),
    "snapshot_every": ({"snapshot_every": None}, {}, 1, None, lambda t, records: t.global_forward_batches == 18),
    "keep_snapshots": ({"keep_snapshots": 2}, {}, None, None, lambda t, records: t.keep_snapshots is not None),
    "on_snapshot_fault": (
        {"on_snapshot_fault": "warn"},
        {},
        "raise",
        "warn",
        lambda t, r: t.on_snapshot_fault == "warn",
    ),
    "sanity_batches": (
        {},
        {"num_eval_sanity_batch": 1},
        2,
        1,
        lambda t, records: t.global_forward_batches == 18,
    ),
    "order": (
        {"loader": {"batch_size": 2, "sampler": RandomSampler(range(12), num_samples=12)}},
        {},
        remembered(None),
        remembered(12),
        lambda t, records: t.global_forward_batches == 18,
    ),
    "environment.num_workers": (
        {"loader": {"batch_size": 2, "shuffle": True, "num_workers": 1}},
        {},
        0,
        1,
        lambda t, records: t.global_forward_batches == 18,
    ),
}


def test_the_matrix_below_is_whole() -> None:
    assert tuple(FIXED) == recording.FIXED
    of_one_process = tuple(name for name in recording.CHANGEABLE if name != "world")  # see test_ranks_elastic.py
    assert tuple(dict.fromkeys(name.split(".")[0] for name in CHANGEABLE)) == of_one_process


@pytest.mark.parametrize("fork", [False, True])
@pytest.mark.parametrize("name", FIXED)
def test_a_fixed_setting_that_differs_is_refused_by_its_old_and_its_new_value_and_nothing_is_touched(
    tmp_path: Path, name: str, fork: bool
) -> None:
    """R40."""
    stopped(tmp_path / "run")
    changes, said = FIXED[name]
    trainer = script(tmp_path / ("fork" if fork else "run"), **changes)
    model, optimizer = trainer.driver.model, trainer.driver.optimizers[0]  # type: ignore[union-attr]
    before = [p.detach().clone() for p in model.parameters()]
    files = files_of(tmp_path)
    with pytest.raises(
        SettingsChanged, match=f"{said}.*, and {name} is fixed for a run: use the old one, or start a new"
    ):
        trainer.run(resume_from=tmp_path / "run")
    assert equal(before, list(model.parameters()))
    assert not optimizer.state
    assert files_of(tmp_path) == files


@pytest.mark.parametrize("fork", [False, True])
@pytest.mark.parametrize("name", CHANGEABLE)
def test_a_changeable_setting_takes_effect_at_the_next_step_and_is_said_once_and_recorded(
    tmp_path: Path, name: str, fork: bool
) -> None:
    """R40: in the run itself, and in one that is forked off it."""
    stopped(tmp_path / "run")
    changes, arguments, old, new, shows = CHANGEABLE[name]
    place = tmp_path / ("fork" if fork else "run")
    trainer = script(place, **changes)
    said = notices(trainer)
    trainer.run(resume_from=tmp_path / "run", **arguments)
    records = [r for r in Journal(place) if r.incarnation == (0 if fork else 1)]
    assert shows(trainer, records)
    if name != "keep_snapshots":
        assert changed(place)[name] == [old, new]
        assert len([text for text in said if text.startswith(f"{name} changed from {old} to {new}")]) == 1
    once_more = script(place, **changes)
    said = notices(once_more)
    once_more.run(resume_from="auto", **arguments)
    assert not [text for text in said if "changed" in text]


@pytest.mark.parametrize("done", [1, 3, 5])
@pytest.mark.parametrize(("before", "after"), [(6, 4), (4, 6), (6, 2), (-1, 3), (3, -1), (6, 1)])
@pytest.mark.parametrize("steps", [1, 2, 4])
def test_an_epoch_may_be_truncated_otherwise_from_now_on(
    run_dir: Path, steps: int, before: int, after: int, done: int
) -> None:
    """R40, B17: inside an epoch too; one that is longer than that already ends where it is."""
    whole = list(range(7))
    settings = {"run_dir": run_dir, "n_epochs": 2, "accumulation_steps": steps}
    stub(whole, n_batches=done, **settings).run(num_train_batch_per_epoch=before)
    trainer = stub(whole, **settings)
    trainer.run(num_train_batch_per_epoch=after, resume_from="auto")
    epoch, at = divmod(done, 7 if before == -1 else before)
    now = 7 if after == -1 else after
    rest = whole[at:now] if at else []
    assert trainer.driver.seen == rest + whole[:now] * (2 - epoch - bool(at))  # type: ignore[union-attr]
    assert trainer.trainer_state.accumulated == 0


def test_what_environment_a_run_went_through_is_recorded_and_still_compared(tmp_path: Path) -> None:
    """DESIGN 6: other threads may have other bits; whether they have is seen from what is done again."""
    run_dir = tmp_path / "run"
    crashed(run_dir, 8)
    about = json.loads((run_dir / "run.json").read_text())
    about["environment"]["python"] = "3.9.0"
    (run_dir / "run.json").write_text(json.dumps(about))
    trainer = job(run_dir)
    said = notices(trainer)
    trainer.run(resume_from="auto")
    assert [text for text in said if "environment" in text] == [
        f"environment.python changed from 3.9.0 to {platform.python_version()}; what follows may have other bits"
    ]
    (matched,) = sides(run_dir, "matched")
    assert matched["matched"] == matched["of"] > 0


def test_threads_are_part_of_the_environment(run_dir: Path) -> None:
    first(run_dir)
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        run, _, _ = again(run_dir)
        run.run(resume_from="auto")
    finally:
        torch.set_num_threads(threads)
    assert changed(run_dir)["environment.threads"] == [threads, threads + 1]


def test_records_that_a_life_wrote_under_other_settings_are_not_expected_of_the_next(run_dir: Path) -> None:
    """R40, R66: an older account reaches further than the life that changed a setting."""
    crashed(run_dir, 9)
    trainer = job(run_dir, crash_at(2), validate_every=2)
    with pytest.raises(SystemError):
        trainer.run(resume_from="auto")
    third = job(run_dir, validate_every=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "(?s).*inexact|.*isn't exact")
        third.run(resume_from="auto")
    assert not sides(run_dir, "diverged")


# -- hyper-parameters of the optimizer ---------------------------------------------------------------------

KINDS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "SGD": (torch.optim.SGD, {"lr": 0.05, "momentum": 0.5, "weight_decay": 0.01, "dampening": 0.1}),
    "nesterov": (partial(torch.optim.SGD, momentum=0.9), {"nesterov": True, "maximize": True}),
    "Adam": (torch.optim.Adam, {"lr": 0.05, "betas": (0.8, 0.99), "eps": 1e-6, "weight_decay": 0.1}),
    "AdamW": (torch.optim.AdamW, {"lr": 1e-4, "weight_decay": 0.0, "betas": (0.5, 0.9)}),
    "SGD without momentum": (torch.optim.SGD, {"momentum": 0.9}),
    "RMSprop": (torch.optim.RMSprop, {"alpha": 0.5, "lr": 0.1}),
    "Adagrad": (torch.optim.Adagrad, {"lr_decay": 0.1, "lr": 0.5}),
}
CASES = [(kind, name) for kind, (_, values) in KINDS.items() for name in values]


@pytest.mark.parametrize(("kind", "name"), CASES, ids=[f"{kind}-{name}" for kind, name in CASES])
def test_a_hyper_parameter_that_the_script_changes_takes_effect_at_the_next_step(
    run_dir: Path, kind: str, name: str
) -> None:
    """R40: the new value is used, said with the old one and recorded; the others stay the snapshot's."""
    make, values = KINDS[kind]
    first(run_dir, optimizer=lambda p: make(p))
    run, said, _ = again(run_dir, optimizer=lambda p: make(p, **{name: values[name]}))
    used: list[Any] = []
    run.trainer.on(Events.on_before_optimizer_step, lambda t, optimizers: used.append(values_of(run)))
    run.run(resume_from="auto")
    script = make([nn.Parameter(torch.ones(1))]).param_groups[0]
    expected = {k: v for k, v in script.items() if k != "params"}
    assert used == [{**expected, name: values[name]}] * (3 * PER_EPOCH - AT)
    old, new = (list(v) if isinstance(v, tuple) else v for v in (script[name], values[name]))
    assert said.count(f"hyperparameters.{name} changed from {old} to {new}") == 1
    assert changed(run_dir)[f"hyperparameters.{name}"] == [old, new]


@pytest.mark.parametrize(
    ("make", "name", "value"),
    [
        (torch.optim.Adam, "amsgrad", True),
        (torch.optim.AdamW, "amsgrad", True),
        (torch.optim.RMSprop, "centered", True),
        (torch.optim.RMSprop, "momentum", 0.5),
    ],
)
def test_a_hyper_parameter_that_needs_more_than_was_kept_is_refused_by_its_old_and_its_new_value(
    run_dir: Path, make: Any, name: str, value: Any
) -> None:
    """R40: and nothing is touched; back to less is no matter."""
    first(run_dir, optimizer=lambda p: make(p))
    run, _, _ = again(run_dir, optimizer=lambda p: make(p, **{name: value}))
    before, files = run.weights, files_of(run_dir)
    old = make([nn.Parameter(torch.ones(1))]).param_groups[0][name]
    with pytest.raises(CallerError, match=f"{name} changed from {old} to {value}: {make.__name__} needs '.*' of each"):
        run.run(resume_from="auto")
    assert equal(run.weights, before)
    assert files_of(run_dir) == files
    first(run_dir.parent / "other", optimizer=lambda p: make(p, **{name: value}))
    run, said, _ = again(run_dir.parent / "other", optimizer=lambda p: make(p))
    run.run(resume_from="auto")
    assert f"hyperparameters.{name} changed from {value} to {old}" in said


def test_a_run_with_another_learning_rate_from_the_middle_on_has_the_bits_of_one_that_was_changed_by_hand(
    tmp_path: Path,
) -> None:
    """R40: at the next step, not before, and momentum goes on."""
    by_hand = Run(run_dir=tmp_path / "by hand", optimizer=sgd(), n_epochs=3)

    def change(trainer: Any) -> None:
        by_hand.optimizer.param_groups[0]["lr"] = 0.025

    by_hand.trainer.on(Events.on_train_batch_end(once=AT), change)
    by_hand.run()
    first(tmp_path / "run")
    run, _, rates = again(tmp_path / "run", optimizer=sgd(0.025))
    run.run(resume_from="auto")
    assert rates == [0.025] * 10
    assert equal(run.weights, by_hand.weights)
    assert run.chain == by_hand.chain


def test_what_the_script_did_not_change_stays_what_a_listener_made_of_it(run_dir: Path) -> None:
    """R40: the snapshot's values win where both scripts agree."""

    def decay(trainer: Any, optimizers: Any) -> None:
        optimizers[0].param_groups[0]["lr"] *= 0.5
        optimizers[0].param_groups[0]["weight_decay"] = 0.125

    run = Run(run_dir=run_dir, optimizer=sgd(), n_epochs=3, n_batches=3)
    run.trainer.on(Events.on_after_optimizer_step, decay)
    run.run()
    after, _, rates = again(run_dir, optimizer=lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.5), n_batches=5)
    after.run(resume_from="auto")
    assert rates == [0.0125, 0.0125]
    assert (values_of(after)["weight_decay"], values_of(after)["momentum"]) == (0.125, 0.5)
    assert [name for name in changed(run_dir) if name.startswith("hyperparameters")] == ["hyperparameters.momentum"]


def test_a_change_is_said_once_and_what_follows_is_no_change_any_more(run_dir: Path) -> None:
    """R40: each life is held against the one before it, and is exact if it is like it."""
    first(run_dir)
    lr = sgd(0.025)
    run, said, _ = again(run_dir, optimizer=lr, n_batches=10)
    run.run(resume_from="auto")
    assert "hyperparameters.lr changed from 0.1 to 0.025" in said
    run, said, rates = again(run_dir, optimizer=lr, n_batches=12)
    run.run(resume_from="auto")
    assert [text for text in said if "changed" in text] == ["n_batches changed from 10 to 12"]
    run, said, rates = again(run_dir, optimizer=sgd(), n_batches=14)
    run.run(resume_from="auto")
    assert "hyperparameters.lr changed from 0.025 to 0.1" in said
    assert rates == [0.1, 0.1]


def test_a_change_whose_life_died_before_its_first_snapshot_is_not_forgotten(tmp_path: Path) -> None:
    """R40, R66: the next life resumes from the same snapshot, uses the new value too, and matches the dead one."""
    run_dir = tmp_path / "run"
    first(run_dir, snapshot_every=None)

    class Killed(Exception):
        pass

    def kill(trainer: Any) -> None:
        if trainer.global_forward_batches == AT + 3:
            raise Killed

    run, said, _ = again(run_dir, optimizer=sgd(0.025), snapshot_every=None)
    run.trainer.on(Events.on_train_batch_end, kill)
    with pytest.raises(Killed):
        run.run(resume_from="auto")
    for snapshot in sorted((run_dir / "snapshots").iterdir())[1:]:
        for file in snapshot.iterdir():
            file.unlink()
        snapshot.rmdir()
    run, said, rates = again(run_dir, optimizer=sgd(0.025), snapshot_every=None)
    run.run(resume_from="auto")
    assert rates == [0.025] * 10
    assert not [text for text in said if "lr changed" in text]
    (matched,) = sides(run_dir, "matched")
    assert matched["matched"] == matched["of"] > 4
    assert not sides(run_dir, "diverged")


def test_groups_and_optimizers_keep_apart(run_dir: Path) -> None:
    """R40: only the group that was changed is, and it is named."""

    def build(run: Run, rates: list[float], n_batches: int) -> Trainer:
        one = torch.optim.SGD(
            [{"params": run.model.hidden.parameters()}, {"params": run.model.out.parameters(), "lr": rates[1]}],
            lr=rates[0],
        )
        other = torch.optim.Adam([nn.Parameter(torch.ones(1))], lr=rates[2])
        settings = {"n_epochs": 3, "n_batches": n_batches, "run_dir": run_dir, "seed": 7, "progress_bar": None}
        return Trainer(run.model, "torch", run.loader, [one, other], **settings)

    build(Run(), [0.1, 0.2, 0.3], AT).run()
    trainer = build(Run(), [0.1, 0.25, 0.3], AT + 2)
    said = notices(trainer)
    seen: list[Any] = []
    trainer.on(Stepped, lambda t, event: seen.append(event.lr))
    trainer.run(resume_from="auto")
    assert seen == [[0.1, 0.25, 0.3]] * 2
    assert "hyperparameters.lr of optimizer 0, group 1 changed from 0.2 to 0.25" in said


def test_a_learning_rate_that_is_a_tensor_stays_that_tensor(run_dir: Path) -> None:
    first(run_dir, optimizer=lambda p: torch.optim.Adam(p, lr=torch.tensor(0.5)))
    run, said, _ = again(run_dir, optimizer=lambda p: torch.optim.Adam(p, lr=torch.tensor(0.25)))
    run.run(resume_from="auto")
    assert torch.equal(values_of(run)["lr"], torch.tensor(0.25))
    assert "hyperparameters.lr changed from 0.5 to 0.25" in said


def test_the_scaler_s_settings_are_changeable_too(run_dir: Path) -> None:
    """R40, R54: its scale and its count of good steps go on."""

    def scaled(**options: Any) -> dict[str, Any]:
        return {"precision": "fp16", "torch_kwargs": {"gradscaler_kwargs": {"init_scale": 16.0, **options}}}

    first(run_dir, **scaled(growth_interval=5))
    run, said, _ = again(run_dir, **scaled(growth_interval=3), n_batches=10)
    run.run(resume_from="auto")
    assert "hyperparameters.scaler.growth_interval changed from 5 to 3" in said
    state = run.trainer.driver.precision.scaler.state_dict()  # type: ignore[union-attr]
    assert (state["growth_interval"], state["scale"]) == (3, 64.0)
    run, said, _ = again(run_dir, **scaled(growth_interval=3, init_scale=8.0), n_batches=11)
    run.run(resume_from="auto")
    assert "hyperparameters.scaler.scale changed from 16.0 to 8.0" in said


def test_the_same_object_resumed_from_its_own_run_has_changed_nothing(run_dir: Path) -> None:
    """R40: what training made of the values is no change of the script."""
    run = Run(
        run_dir=run_dir,
        optimizer=sgd(),
        n_epochs=1,
        callbacks=lambda run: LRSchedule(schedules.ExponentialLR(run.optimizer, 0.9)),
    )
    run.run()
    said = notices(run.trainer)
    run.trainer.n_epochs = 2  # type: ignore[attr-defined]
    run.run(resume_from="auto")
    assert [text for text in said if "changed" in text] == ["n_epochs changed from 1 to 2"]
    straight = Run(
        run_dir=run_dir.parent / "straight",
        optimizer=sgd(),
        callbacks=lambda run: LRSchedule(schedules.ExponentialLR(run.optimizer, 0.9)),
    )
    straight.run()
    assert run.chain == straight.chain


def test_a_fork_may_change_what_a_resume_may(tmp_path: Path) -> None:
    """R40: in a run of its own, whose `run.json` then tells the new value as its own."""
    first(tmp_path / "run")
    fork, said, rates = again(tmp_path / "fork", optimizer=sgd(0.025), n_batches=10)
    fork.run(resume_from=tmp_path / "run")
    assert rates == [0.025, 0.025]
    assert "hyperparameters.lr changed from 0.1 to 0.025" in said
    assert changed(tmp_path / "fork")["hyperparameters.lr"] == [0.1, 0.025]
    later, said, rates = again(tmp_path / "fork", optimizer=sgd(0.025), n_batches=11)
    later.run(resume_from="auto")
    assert [text for text in said if "changed" in text] == ["n_batches changed from 10 to 11"]
    assert rates == [0.025]


@pytest.mark.parametrize("scheduled_too", [False, True])
def test_what_is_changed_by_hand_between_two_runs_of_one_trainer_is_used(scheduled_too: bool) -> None:
    """R40: everything is used as it is in memory, under a schedule too."""
    make = scheduled(lambda o: schedules.ExponentialLR(o, 0.5)) if scheduled_too else None
    run, _, rates = again(None, callbacks=make)
    run.trainer.on(Events.on_train_batch_end, lambda t: t.global_forward_batches == 4 and t.stop())
    run.run()
    run.optimizer.param_groups[0]["lr"] = 0.75
    run.run()
    assert rates[4:6] == ([0.75, 0.375] if scheduled_too else [0.75, 0.75])


def test_a_limit_that_is_changed_between_two_runs_of_one_trainer_is_recorded(run_dir: Path) -> None:
    """R40: and is no news to the next process."""
    trainer = stub([1, 2], n_epochs=1, run_dir=run_dir)
    trainer.run()
    trainer.n_epochs = 2  # type: ignore[attr-defined]
    trainer.run()
    (record,) = sides(run_dir, "continued")
    assert record["changed"] == {"n_epochs": [1, 2]}
    later = stub([1, 2], n_epochs=3, run_dir=run_dir)
    said = notices(later)
    later.run(resume_from="auto")
    assert "n_epochs changed from 2 to 3" in said


def test_a_new_run_with_an_old_run_s_weights_and_moments_has_its_own_hyper_parameters(tmp_path: Path) -> None:
    """SV11: `resume_training=False` doesn't bring the last learning rate of a schedule that is over."""
    first(tmp_path / "run", callbacks=lambda run: LRSchedule(schedules.ExponentialLR(run.optimizer, 0.5)))
    run, _, rates = again(
        tmp_path / "new", n_batches=2, callbacks=lambda run: LRSchedule(schedules.ExponentialLR(run.optimizer, 0.5))
    )
    run.run(resume_from=tmp_path / "run", resume_training=False)
    assert rates == [0.1, 0.05]


plain_values = st.one_of(st.floats(0.001, 1), st.booleans(), st.lists(st.floats(0, 1), max_size=2))
names = st.sampled_from(["lr", "weight_decay", "betas", "momentum"])
groups = st.dictionaries(names, plain_values, min_size=1)


@given(saved=groups, old=groups, new=groups)
def test_where_both_scripts_agree_nothing_is_changed_and_elsewhere_the_new_one_wins(
    saved: dict[str, Any], old: dict[str, Any], new: dict[str, Any]
) -> None:
    for group in (saved, old, new):
        group.setdefault("lr", 0.1)
    changes = hyperparameters.merged(saved, old, new)
    assert changes == {k: v for k, v in new.items() if k not in old or old[k] != v}
    assert hyperparameters.merged(saved, old, old) == {}


# -- schedules ---------------------------------------------------------------------------------------------

Make = Callable[[Any], Any]


def scheduled(make: Make, step_on: str = "update", **about: Any) -> Callable[[Run], Any]:
    def callbacks(run: Run) -> LRSchedule:
        run.schedule = make(run.optimizer)  # type: ignore[attr-defined]
        return LRSchedule(run.schedule, step_on, **about)  # type: ignore[attr-defined]

    return callbacks


def by_hand(make: Make, n: int, per: int = 1, lr: float = 0.1) -> list[float]:
    """The learning rates of n updates of a loop written by hand, with a step of the schedule every `per` of them."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=lr, momentum=0.9)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        schedule, rates = make(optimizer), []
        for i in range(n):
            rates.append(optimizer.param_groups[0]["lr"])
            if (i + 1) % per == 0:
                schedule.step()
    return rates


def warm(optimizer: Any, total: int) -> Any:
    up = schedules.LinearLR(optimizer, 0.1, 1.0, total_iters=3)
    return schedules.SequentialLR(optimizer, [up, schedules.CosineAnnealingLR(optimizer, total - 3)], [3])


def linear(total: int, n: int) -> float:
    return max(0.0, 1 - n / total)


class Decay:
    """A callable with a memory of its own."""

    def __init__(self, total: int) -> None:
        self.total = total

    def __call__(self, n: int) -> float:
        return max(0.0, 1 - n / self.total)


HORIZONS: dict[str, Callable[[Any, int], Any]] = {
    "onecycle": lambda o, total: schedules.OneCycleLR(o, 0.5, total_steps=total),
    "onecycle of another height": lambda o, total: schedules.OneCycleLR(o, 0.5 * total, total_steps=30),
    "cosine": schedules.CosineAnnealingLR,
    "restarts": schedules.CosineAnnealingWarmRestarts,
    "milestones": lambda o, total: schedules.MultiStepLR(o, [total // 6, total // 2], 0.5),
    "step": lambda o, total: schedules.StepLR(o, total // 3, 0.5),
    "gamma": lambda o, total: schedules.ExponentialLR(o, 1 - 1 / total),
    "linear": lambda o, total: schedules.LinearLR(o, 1.0, 0.0, total_iters=total),
    "polynomial": lambda o, total: schedules.PolynomialLR(o, total_iters=total, power=2),
    "constant": lambda o, total: schedules.ConstantLR(o, 0.5, total_iters=total // 3),
    "cyclic": lambda o, total: schedules.CyclicLR(o, 0.01, 0.1, step_size_up=total // 3),
    "lambda that closes over it": lambda o, total: schedules.LambdaLR(o, lambda n: max(0.0, 1 - n / total)),
    "partial": lambda o, total: schedules.LambdaLR(o, partial(linear, total)),
    "callable object": lambda o, total: schedules.LambdaLR(o, Decay(total)),
    "sequential": warm,
    "chained": lambda o, total: schedules.ChainedScheduler(
        [schedules.ExponentialLR(o, 0.99), schedules.CosineAnnealingLR(o, total)]
    ),
}


@pytest.mark.parametrize("step_on", ["update", "epoch"])
@pytest.mark.parametrize("name", HORIZONS)
def test_a_schedule_that_is_built_with_another_horizon_goes_on_as_if_it_had_been_that_one(
    run_dir: Path, name: str, step_on: str
) -> None:
    """R40, R10: from the next step on; the old and the new learning rate of the next update are said and recorded."""
    make = HORIZONS[name]
    old, new = (lambda o: make(o, 18)), (lambda o: make(o, 30))
    per = PER_EPOCH if step_on == "epoch" else 1
    first(run_dir, callbacks=scheduled(old, step_on))
    run, said, rates = again(run_dir, callbacks=scheduled(new, step_on), n_epochs=5)
    run.run(resume_from="auto")
    expected = by_hand(new, 5 * PER_EPOCH, per)[AT:]
    assert rates == expected
    assert values_of(run)["lr"] == run.schedule.get_last_lr()[0]  # type: ignore[attr-defined]
    before = by_hand(old, AT + 1, per)[AT]
    told = f"LRSchedule: the learning rate of the next update is {expected[0]:g}; as it was set before, {before:g}"
    assert said.count(told) == (before != expected[0])
    assert any(about.startswith("callbacks.LRSchedule.") for about in changed(run_dir))
    assert told in [note["text"] for note in sides(run_dir, "noted")] or before == expected[0]


@pytest.mark.parametrize("name", HORIZONS)
def test_after_a_change_of_its_schedule_a_run_is_resumed_exactly(tmp_path: Path, name: str) -> None:
    """R40, R27: the change is over once it has been made."""
    make = HORIZONS[name]
    first(tmp_path / "straight", callbacks=scheduled(lambda o: make(o, 18)))
    straight, _, expected = again(tmp_path / "straight", callbacks=scheduled(lambda o: make(o, 30)))
    straight.run(resume_from="auto")
    first(tmp_path / "run", callbacks=scheduled(lambda o: make(o, 18)))
    found: list[Any] = []
    for limit in (9, 13, None):
        run, said, rates = again(
            tmp_path / "run", callbacks=scheduled(lambda o: make(o, 30)), n_batches=-1 if limit is None else limit
        )
        run.run(resume_from="auto")
        found += rates
        assert any("callbacks.LRSchedule" in text for text in said) == (limit == 9)
    assert found == expected
    assert equal(run.weights, straight.weights)
    assert run.chain == straight.chain


@pytest.mark.parametrize("end", ["inside", "at an epoch's end"])
@pytest.mark.parametrize(
    "name", ["step", "gamma", "cosine", "linear", "polynomial", "sequential", "partial", "chained"]
)
def test_the_base_of_a_schedule_is_changed_with_the_script_s_learning_rate(run_dir: Path, name: str, end: str) -> None:
    """R40: the current learning rate follows, and is the one of a schedule that had begun with the new base."""
    make = lambda o: HORIZONS[name](o, 18)  # noqa: E731
    at = AT if end == "inside" else 2 * PER_EPOCH
    first(run_dir, callbacks=scheduled(make), n_batches=at)
    run, said, rates = again(run_dir, optimizer=sgd(0.05), callbacks=scheduled(make))
    run.run(resume_from="auto")
    assert rates == by_hand(make, 3 * PER_EPOCH, lr=0.05)[at:]
    assert "hyperparameters.lr changed from 0.1 to 0.05" in said
    assert values_of(run)["initial_lr"] == 0.05


def test_a_schedule_that_nobody_saves_keeps_the_proportion(run_dir: Path) -> None:
    """R40: a scheduler that the user steps by himself: its base is the new one, and the current rate follows."""

    def stepping(run: Run) -> None:
        schedule = schedules.LambdaLR(run.optimizer, lambda n: 1.0)
        run.trainer.on(Events.on_train_begin, lambda trainer: schedule.optimizer.param_groups[0].update(lr=0.025))

    run = Run(run_dir=run_dir, optimizer=sgd(), n_batches=3)
    stepping(run)
    run.run()
    run, _, rates = again(run_dir, optimizer=sgd(0.2), n_batches=5)
    stepping(run)
    run.run(resume_from="auto")
    assert rates == [0.05, 0.05]
    assert values_of(run)["initial_lr"] == 0.2


@pytest.mark.parametrize("name", ["sequential", "onecycle", "gamma"])
def test_a_schedule_that_a_run_had_not_begins_at_its_beginning(run_dir: Path, name: str) -> None:
    """R40, SV2: only where it is asked for, since no snapshot knows it."""
    make = lambda o: HORIZONS[name](o, 18)  # noqa: E731
    first(run_dir)
    run, _, _ = again(run_dir, callbacks=scheduled(make))
    with pytest.raises(RestoreMismatch, match="the snapshot lacks the state of the callback 'LRSchedule'"):
        run.run(resume_from="auto")
    run, _, rates = again(run_dir, callbacks=scheduled(make))
    with pytest.warns(UserWarning, match="the snapshot lacks the state of the callback 'LRSchedule'"):
        run.run(resume_from="auto", strict=False)
    assert rates == by_hand(make, 18)[: 18 - AT]


@pytest.mark.parametrize(("which", "value"), [("patience", 5), ("factor", 0.5), ("min_lrs", [0.01]), ("cooldown", 3)])
def test_a_schedule_on_a_plateau_takes_its_new_settings_and_keeps_what_it_saw(
    run_dir: Path, which: str, value: Any
) -> None:
    """R40."""

    def build(**about: Any) -> dict[str, Any]:
        about = {name.replace("min_lrs", "min_lr"): value for name, value in about.items()}
        make = lambda o: schedules.ReduceLROnPlateau(o, **about)  # noqa: E731
        return {
            "callbacks": scheduled(make, "plateau", monitor="loss"),
            "metrics": {"loss": Mean()},
            "validate_dataloaders": DataLoader([{"x": torch.ones(4), "y": torch.ones(()), "id": torch.ones(())}]),
        }

    before = first(run_dir, **build())
    run, said, _ = again(run_dir, **build(**{which: value}), n_batches=AT + 1)
    run.run(resume_from="auto")
    state = run.schedule.state_dict()  # type: ignore[attr-defined]
    assert state[which] == value
    assert (state["best"], state["last_epoch"]) == (before.schedule.best, 1)  # type: ignore[attr-defined]
    assert f"callbacks.LRSchedule.{which} changed from" in " ".join(said)


def test_another_kind_of_schedule_begins_where_it_would_be_by_now(run_dir: Path) -> None:
    """R40."""
    first(run_dir, callbacks=scheduled(lambda o: schedules.StepLR(o, 3, 0.5)))
    cosine = lambda o: schedules.CosineAnnealingLR(o, 18)  # noqa: E731
    run, said, rates = again(run_dir, callbacks=scheduled(cosine))
    run.run(resume_from="auto")
    assert rates == by_hand(cosine, 18)[AT:]
    assert "callbacks.LRSchedule.class changed from StepLR to CosineAnnealingLR" in said


@pytest.mark.parametrize("name", ["gamma", "onecycle", "cosine"])
@pytest.mark.parametrize(("before", "after"), [("update", "epoch"), ("epoch", "update")])
def test_a_schedule_may_step_on_something_else_from_now_on(run_dir: Path, before: str, after: str, name: str) -> None:
    """R40: it stands where it would if it always had, and a change is over once it has been made."""
    make = lambda o: HORIZONS[name](o, 18)  # noqa: E731
    first(run_dir, callbacks=scheduled(make, before))
    run, said, rates = again(run_dir, callbacks=scheduled(make, after))
    run.run(resume_from="auto")
    expected = by_hand(make, 18, PER_EPOCH if after == "epoch" else 1)
    assert rates == expected[AT:]
    assert f"callbacks.LRSchedule.step_on changed from {before} to {after}" in said
    first(run_dir.parent / "in steps", callbacks=scheduled(make, before))
    found: list[Any] = []
    for limit in (AT + 1, 2 * PER_EPOCH, 2 * PER_EPOCH + 1, -1):
        run, _, rates = again(run_dir.parent / "in steps", callbacks=scheduled(make, after), n_batches=limit)
        run.run(resume_from="auto")
        found += rates
    assert found == expected[AT:]


def test_a_horizon_that_the_run_has_passed_is_refused_by_both_numbers_and_nothing_is_touched(run_dir: Path) -> None:
    """R40."""
    first(run_dir, callbacks=scheduled(lambda o: schedules.OneCycleLR(o, 0.5, total_steps=20)))
    run, _, rates = again(run_dir, callbacks=scheduled(lambda o: schedules.OneCycleLR(o, 0.5, total_steps=5)))
    before, files, values = run.weights, files_of(run_dir), values_of(run)
    state = run.schedule.state_dict()  # type: ignore[attr-defined]
    with pytest.raises(
        CallerError, match=r"the run has taken 8 steps of its schedule, and OneCycleLR as it is built now can't: .* 5"
    ):
        run.run(resume_from="auto")
    assert equal(run.weights, before)
    assert files_of(run_dir) == files
    assert values_of(run) == values
    assert run.schedule.state_dict() == state  # type: ignore[attr-defined]
    assert rates == []


def test_a_finished_schedule_of_a_run_that_is_to_go_on_is_refused_before_anything_is_trained(run_dir: Path) -> None:
    """R40: nobody trains on at a learning rate of nearly nothing, until an error ends it in the middle of an epoch."""
    one = lambda total: scheduled(lambda o: schedules.OneCycleLR(o, 0.5, total_steps=total))  # noqa: E731
    Run(run_dir=run_dir, optimizer=sgd(), callbacks=one(12)).run()
    run, _, rates = again(run_dir, callbacks=one(12))
    with pytest.raises(
        CallerError,
        match=r"OneCycleLR was built with total_steps=12, and this run has taken 12 steps of it and goes on",
    ):
        run.run(resume_from="auto")
    assert rates == []
    run, _, rates = again(run_dir, callbacks=one(12), n_epochs=2)  # which is no work, and no matter
    assert run.run(resume_from="auto").optimizer_steps == 12
    run, _, rates = again(run_dir, callbacks=one(18))
    run.run(resume_from="auto")
    assert rates == by_hand(lambda o: schedules.OneCycleLR(o, 0.5, total_steps=18), 18)[12:]


def test_a_schedule_that_comes_to_its_end_while_the_run_goes_on_says_so_by_both_numbers(run_dir: Path) -> None:
    """R40."""
    run = Run(
        run_dir=run_dir,
        optimizer=sgd(),
        callbacks=scheduled(lambda o: schedules.OneCycleLR(o, 0.5, total_steps=7)),
    )
    with pytest.raises(CallerError, match="total_steps=7, and this run has taken 7 steps of it and goes on: build it"):
        run.run()
    assert run.trainer.trainer_state.state == "exception"
    again_, _, rates = again(
        run_dir, callbacks=scheduled(lambda o: schedules.OneCycleLR(o, 0.5, total_steps=12)), n_epochs=2
    )
    again_.run(resume_from="auto")
    assert rates == by_hand(lambda o: schedules.OneCycleLR(o, 0.5, total_steps=12), 12)[-len(rates) :]


@pytest.mark.parametrize("tail", ["flush", "carry", "drop"])
def test_a_schedule_that_is_over_before_the_last_micro_batches_is_no_fault(run_dir: Path, tail: str) -> None:
    """R10: a straight run ends so, and so does one that was interrupted after its last update."""

    def build(n_batches: int = -1) -> Run:
        return Run(
            run_dir=run_dir,
            n=10,
            optimizer=sgd(),
            accumulation_steps=2,
            accumulation_tail=tail,
            n_batches=n_batches,
            callbacks=scheduled(
                lambda o: schedules.OneCycleLR(o, 0.5, total_steps={"flush": 6, "carry": 5}.get(tail, 4))
            ),
        )

    build(9).run()
    assert build().run(resume_from="auto").state == "done"


def test_a_limit_that_is_raised_under_a_schedule_that_is_not_is_told_once(run_dir: Path) -> None:
    """R40, point of the design: nobody trains on at a learning rate of 0 without having been told."""
    make = lambda o: schedules.CosineAnnealingLR(o, 12)  # noqa: E731
    Run(run_dir=run_dir, optimizer=sgd(), callbacks=scheduled(make)).run()
    run, said, rates = again(run_dir, callbacks=scheduled(make), n_epochs=3)
    run.run(resume_from="auto")
    told = [text for text in said if text.startswith("LRSchedule")]
    assert told == [
        "LRSchedule: the limit is another one, but CosineAnnealingLR was built as before; the learning rate of the "
        "next update is 0"
    ]
    assert rates[0] == pytest.approx(0)
    run, said, _ = again(run_dir, callbacks=scheduled(make), n_epochs=3)
    run.run(resume_from="auto")
    assert not [text for text in said if text.startswith("LRSchedule")]


@pytest.mark.parametrize("name", ["step", "gamma", "cyclic", "restarts"])
def test_a_schedule_without_an_end_has_nothing_to_say_to_another_limit(run_dir: Path, name: str) -> None:
    make = lambda o: HORIZONS[name](o, 18)  # noqa: E731
    first(run_dir, callbacks=scheduled(make))
    run, said, _ = again(run_dir, callbacks=scheduled(make))
    run.run(resume_from="auto")
    assert [text for text in said if "changed" in text or "LRSchedule" in text] == [
        "n_epochs changed from None to 3",
        "n_batches changed from 8 to None",
    ]


@pytest.mark.parametrize("epochs", [1, 2])
def test_the_learning_rate_that_is_told_is_the_next_update_s_where_the_schedule_steps_first(
    run_dir: Path, epochs: int
) -> None:
    """R40: at an epoch's end, a schedule by epochs has a step to take before the next update."""
    Run(
        run_dir=run_dir,
        optimizer=sgd(),
        n_epochs=epochs,
        callbacks=scheduled(lambda o: schedules.StepLR(o, 1, 0.5), "epoch"),
    ).run()
    run, said, rates = again(run_dir, callbacks=scheduled(lambda o: schedules.StepLR(o, 1, 0.25), "epoch"))
    run.run(resume_from="auto")
    assert rates[0] == 0.1 * 0.25**epochs
    old = 0.1 * 0.5**epochs
    assert f"LRSchedule: the learning rate of the next update is {rates[0]:g}; as it was set before, {old:g}" in said


# -- descriptions of functions -----------------------------------------------------------------------------

TOTAL = 10


def reads_a_global(n: int) -> float:
    return n / TOTAL


def make_lambdas(total: int) -> list[Any]:
    return [
        lambda n: n / total,
        lambda n, total=total: n / total,
        partial(linear, total),
        partial(linear, n=total),
        Decay(total),
        Decay(total).__call__,
        [lambda n: (lambda m: m / total)(n)],
        {"a": total},
    ]


@pytest.mark.parametrize("i", range(8))
def test_a_function_is_described_by_what_it_computes(i: int) -> None:
    one, same, other = (described(make_lambdas(total)[i]) for total in (5, 5, 6))
    assert one == same != other
    assert json.loads(json.dumps(one)) == one


def test_constants_and_module_level_numbers_are_part_of_a_function(monkeypatch: pytest.MonkeyPatch) -> None:
    assert described(lambda n: n / 3) != described(lambda n: n / 4)
    assert described(lambda n: n / 3) == described(lambda n: n / 3)
    before = described(reads_a_global)
    monkeypatch.setattr("tests.test_settings.TOTAL", 11)
    assert described(reads_a_global) != before


def test_what_cannot_be_described_is_named_by_its_kind() -> None:
    class Loop:
        def __init__(self) -> None:
            self.me = self

        def __call__(self, n: int) -> int:
            return n

    assert described(object()) == "object"
    assert described(math.sqrt) == described(math.sqrt)
    assert "Loop" in repr(described(Loop()))
    assert len(repr(described(list(range(10_000))))) < 100
    assert described(list(range(10_000))) != described(list(range(10_001)))
