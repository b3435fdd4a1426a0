"""Machines that people build have everything that the built-in one has; what can't work is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tachograph.drivers import RestoreFault, StubDriver, choose_driver
from tachograph.engine import Engine, Journal, Kept
from tachograph.engine.testing import assert_deterministic, assert_resumes_exactly
from tachograph.states import CallerError
from tests.jobs.own_machines import GAME, Playing, Table, blurring, game

# -- exact resume ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("build", [blurring, game])
def test_it_goes_on_exactly_from_every_transition(build: Any, tmp_path: Path, proven: Callable[[int], None]) -> None:
    """R01 R05: states of a user's own too, with a batch in hand that they have changed, and between two epochs."""
    cuts = assert_resumes_exactly(build, None, at="all", folder=tmp_path)
    build(tmp_path / "run").run()
    last = Journal(tmp_path / "run").last
    assert last is not None
    assert [cut.seq for cut in cuts] == list(range(1, last.seq))
    proven(len(cuts))


@pytest.mark.parametrize("build", [blurring, game])
def test_it_goes_on_exactly_where_processes_are_killed(build: Any, tmp_path: Path) -> None:
    """R01: three lives end by SIGKILL, and each process has another hash seed."""
    assert len(assert_resumes_exactly(build, None, kill=True, folder=tmp_path)) == 3


def test_a_machine_of_ones_own_is_deterministic_by_its_seed(tmp_path: Path) -> None:
    assert_deterministic(game, None, folder=tmp_path)


# -- the seed, and values of one's own ---------------------------------------------------------------------


def test_the_seed_of_an_engine_decides_on_what_is_drawn_and_is_kept_in_the_settings(tmp_path: Path) -> None:
    """T22: as a trainer's."""
    runs = {seed: game(tmp_path / str(seed), seed=seed) for seed in (1, 2, None)}
    for engine in runs.values():
        engine.run()
    one, other, none = (Journal(tmp_path / str(seed)).last.chain for seed in runs)  # type: ignore[union-attr]
    assert one != other != none
    again = game(tmp_path / "again", seed=1)
    again.run()
    assert Journal(tmp_path / "again").last.chain == one  # type: ignore[union-attr]
    with pytest.raises(CallerError, match="this run's seed is 1, this trainer's 2"):
        game(tmp_path / "1", seed=2).run(resume_from="auto")


def test_a_driver_is_set_up_and_its_gradients_cleared_when_a_run_begins() -> None:
    driver = StubDriver()
    engine = Engine(GAME, dict.fromkeys(("play", "judge", "judge_again", "learn"), ended), driver=driver, seed=11)
    with pytest.raises(Ended):
        engine.run()
    assert driver.calls[:2] == ["setup", "zero_grad"]
    assert driver.generator == 11


class Ended(Exception):
    pass


def ended(state: Any) -> Any:
    raise Ended


def test_values_in_the_engine_s_state_are_saved_with_every_snapshot(run_dir: Path) -> None:
    """T23."""
    engine = game(run_dir)
    engine.on("judge -> learn", lambda engine: engine.request_snapshot())
    engine.on("learn -> play", lambda engine: engine.stop("enough"))
    engine.run()
    again = game(run_dir)
    plays: list[int] = []
    again.on("on_after_resume", lambda engine, report: plays.append(engine.state.plays))
    again.run(resume_from="auto")
    assert (plays, again.state.plays) == ([1], 4)


def test_what_is_no_plain_data_in_the_engine_s_state_is_refused(run_dir: Path) -> None:
    engine = game(run_dir)
    engine.state.model = nn.Linear(1, 1)
    with pytest.raises(CallerError, match=r"\['model'\] is a Linear"):
        engine.run()


# -- things that are kept ----------------------------------------------------------------------------------


def test_a_thing_that_is_kept_has_its_state_back_at_a_resume(run_dir: Path) -> None:
    engine, table = game(run_dir), Table()
    engine.on("on_after_snapshot", lambda engine, path: engine.stop("enough"))
    engine.on("judge -> learn", lambda engine: engine.request_snapshot())
    engine.run()
    kept = engine.listeners.callbacks["Kept"].things["table"].state_dict()  # type: ignore[attr-defined]
    again = game(run_dir, table)
    seen: list[dict[str, Any]] = []
    again.on("on_after_resume", lambda engine, report: seen.append(table.state_dict()))
    again.run(resume_from="auto")
    assert seen == [kept] != [Table().state_dict()]


class Half:
    def state_dict(self) -> dict[str, Any]:
        return {}


@pytest.mark.parametrize(
    ("things", "said"),
    [
        ({}, "Kept() saves nothing: name what it is to save, Kept(env=env, buffer=buffer)"),
        ({"env": Half()}, "Kept can't save 'env': Half has no load_state_dict()"),
        (
            {"table": Table(), "env": object()},
            "Kept can't save 'env': object has no state_dict() and load_state_dict()",
        ),
        ({"env": Table}, "Kept(env=Table): give an instance, not the class"),
    ],
)
def test_what_cannot_be_kept_is_refused_by_name(things: dict[str, Any], said: str) -> None:
    with pytest.raises(CallerError) as found:
        Kept(**things)
    assert str(found.value).startswith(said)


@pytest.mark.parametrize(
    ("things", "said"),
    [
        ({"env": Table()}, "Kept saves 'env', whose state this snapshot lacks: it holds 'table'"),
        ({"table": Table(), "env": Table()}, "Kept saves 'env', whose state this snapshot lacks: it holds 'table'"),
    ],
)
def test_a_snapshot_of_other_things_is_refused_by_name(things: dict[str, Any], said: str, run_dir: Path) -> None:
    cut(run_dir)
    with pytest.raises(CallerError, match=said):
        game(run_dir, callbacks=[Kept(**things)]).run(resume_from="auto")


def test_a_thing_that_is_not_kept_any_more_is_named(run_dir: Path) -> None:
    cut(run_dir, callbacks=[Kept(table=Table(), tables=Table())])
    with pytest.raises(CallerError, match=r"'tables', which Kept wasn't given\. Did you mean 'table'"):
        game(run_dir).run(resume_from="auto")


def cut(run_dir: Path, **settings: Any) -> None:
    """Leave a run with a snapshot in its middle."""
    engine = game(run_dir, **settings)
    engine.on("judge -> learn", lambda engine: engine.request_snapshot())
    engine.on("learn -> play", lambda engine: engine.stop("enough"))
    engine.run()


# -- a torch driver without a loader -----------------------------------------------------------------------


def test_a_torch_driver_needs_no_loader_and_says_so_where_one_is_asked_for() -> None:
    """D3: all that a state's work does by itself works without one."""
    driver = choose_driver("torch", nn.ModuleDict({"a": nn.Linear(1, 1)}))
    driver.setup(0, True)
    driver.zero_grad()
    assert driver.length() is None
    assert driver.fingerprint().keys() == {"model", "optimizers", "precision", "train_fn"}
    with pytest.raises(CallerError, match="no training loader was given"):
        driver.open_epoch(0, 0)


def test_a_snapshot_with_a_loader_is_refused_by_a_driver_without_one(tmp_path: Path) -> None:
    trainer = blurring(tmp_path / "run", snapshot_every=1)
    trainer.run()
    (snapshot, *_) = sorted((tmp_path / "run" / "snapshots").glob("0*"))
    driver = choose_driver("torch", trainer.driver.model)  # type: ignore[union-attr]
    driver.set_optimizers(torch.optim.Adam(driver.model.parameters(), lr=0.01))
    with pytest.raises(RestoreFault, match="the state of a training loader, and there is none"):
        driver.read(snapshot)


def test_a_batch_in_hand_that_cannot_be_saved_nor_fetched_again_is_refused(run_dir: Path) -> None:
    engine = game(run_dir)

    def hold(engine: Any) -> None:
        engine.batch = [object()]
        engine.request_snapshot()

    engine.on("play -> judge", hold)
    with pytest.raises(CallerError, match="the batch in hand is saved with a snapshot: plain data and tensors only"):
        engine.run()


def test_what_a_builder_for_the_assertions_must_return_is_said(tmp_path: Path) -> None:
    with pytest.raises(CallerError, match="must return a Trainer, or an Engine, that wasn't run"):
        assert_resumes_exactly(lambda: Playing(), folder=tmp_path)
